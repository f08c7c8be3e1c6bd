/* A policy object, checked before it is used, and what its plan answered. */
#include "policy_impl.h"

#include <string.h>

/* What a policy says that it can, and the hooks that it has, agree. */
static int policy_check_hooks(const struct kvl_policy *p, struct kvl_err *err)
{
    const struct {
        bool cap, hook;
        const char *what;
    } rules[] = {
        { (p->caps & KVL_CAP_EVICTS) != 0, p->score || p->evict,
          "KVL_CAP_EVICTS and score or evict" },
        { (p->caps & KVL_CAP_SELECTS) != 0, p->select != NULL, "KVL_CAP_SELECTS and select" },
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        /* A select hook that only moves positions, or keeps queries for evict, drops nothing. */
        bool names_none = (p->caps & KVL_CAP_REPOSITIONS) || p->evict;
        bool moves = rules[i].hook && !rules[i].cap && i == 1 && names_none;
        if (rules[i].cap != rules[i].hook && !moves)
            return kvl_fail(err, KVL_EPOLICY, "policy %s: %s go together, it has only one of them",
                            p->name, rules[i].what);
    }
    if (p->prefill < KVL_PREFILL_SHARED || p->prefill > KVL_PREFILL_OWN)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: prefill %d, want shared, either or own",
                        p->name, (int)p->prefill);
    if (p->prefill_mask && p->prefill == KVL_PREFILL_SHARED)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: prefill_mask without a prefill of its own",
                        p->name);
    if (p->prefill == KVL_PREFILL_OWN && !p->prefill_mask)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: KVL_PREFILL_OWN without prefill_mask",
                        p->name);
    if (p->caps & ~(uint32_t)KVL_CAPS)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: caps 0x%x, this build knows 0x%x", p->name,
                        p->caps, (uint32_t)KVL_CAPS);
    return KVL_OK;
}

/* Before anything of it is called: a plug-in may be of another build, and its struct of another size. */
int kvl_policy_check(const struct kvl_policy *p, struct kvl_err *err)
{
    if (p->abi != KVL_POLICY_ABI)
        return kvl_fail(err, KVL_EPOLICY, "policy ABI is %u, this program wants %u: rebuild it",
                        p->abi, KVL_POLICY_ABI);
    if (p->size != sizeof *p)
        return kvl_fail(err, KVL_EPOLICY,
                        "struct kvl_policy has %u bytes, this program wants %zu: rebuild it",
                        p->size, sizeof *p);
    if (!p->name || !p->name[0] ||
        (strspn(p->name, "abcdefghijklmnopqrstuvwxyz0123456789_.") != strlen(p->name) &&
         !p->composed))
        return kvl_fail(err, KVL_EPOLICY, "policy name \"%s\": want a-z, 0-9, '_' and '.'",
                        p->name ? p->name : "");
    if (!p->title || !p->paper || !p->help)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: title, paper and help must be set", p->name);
    if (p->opts && p->opts_size == 0)
        return kvl_fail(err, KVL_EPOLICY, "policy %s: options without opts_size", p->name);
    if (kvl_opt_check(p->opts, p->opts_size, err) != KVL_OK)
        return kvl_fail_at(err, KVL_EPOLICY, "policy %s", p->name);
    return policy_check_hooks(p, err);
}

/* Answers that are not checked where they are given. */
int kvl_plan_check(const struct kvl_plan *plan)
{
    if (plan->replay >= KVL_REPLAY_ALL && plan->replay <= KVL_REPLAY_NONE) return KVL_OK;
    return kvl_fail(plan->err, KVL_EPOLICY, "plan: replay %d, want %d to %d", (int)plan->replay,
                    KVL_REPLAY_ALL, KVL_REPLAY_NONE);
}
