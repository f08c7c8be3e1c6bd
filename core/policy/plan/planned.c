/* A policy with resolved options, checked against the model. */
#include "policy_impl.h"

#include "kvl/fpenv.h"

#include <string.h>

enum { PLANNED_MAX_BUDGET = 1 << 30 }; /* no context is longer; sums of sizes stay in 32 bits */
enum { PLANNED_MASKS = 128 }; /* bytes, not an arena's 64 KiB: a sweep may have 100,000 plans */

int kvl_plan_layers(struct kvl_plan *plan, const char *option, int32_t first, int32_t step,
                    uint8_t **out)
{
    size_t n = (size_t)plan->shape->n_layers;
    if (first >= plan->shape->n_layers)
        return kvl_fail(plan->err, KVL_EINVAL, "%s=%d; the model has %d layers, give less", option,
                        first, plan->shape->n_layers);
    if (first < 0 || step < 1)
        return kvl_fail(plan->err, KVL_EPOLICY, "every %d layers from %d on, want 1 and 0 or more",
                        step, first);
    /* Memory of the plan and not of the method's frame: descriptors that name the mask may borrow
     * it. */
    uint8_t *layers = kvl_arena_get(&plan->p->masks, n, sizeof *layers);
    if (!layers) return kvl_fail(plan->err, KVL_ENOMEM, "out of memory for %zu layers", n);
    memset(layers, 0, n);
    for (size_t l = (size_t)first; l < n; l += (size_t)step) layers[l] = 1;
    *out = layers;
    return KVL_OK;
}

/* The rest in 64 bits: parts are options, whose sum may be large. */
void kvl_plan_pair(int32_t total, int32_t part_a, int32_t part_b, int32_t least, int32_t *a,
                   int32_t *b)
{
    int32_t share = (int32_t)((int64_t)total * part_a / ((int64_t)part_a + part_b));
    /* In this order: once the first is set, the second is what the first left. */
    if (*a == KVL_AUTO) *a = KVL_MAX(least, *b == KVL_AUTO ? share : total - *b);
    if (*b == KVL_AUTO) *b = KVL_MAX(1, total - *a);
}

int kvl_plan_share(struct kvl_plan *plan, const char *option, const char *text, const char *word,
                   double *out)
{
    double share = -1;
    if (strcmp(text, word) != 0 &&
        (kvl_parse_f64(text, &share) != KVL_OK || !(share >= 0 && share <= 1)))
        return kvl_fail(plan->err, KVL_EINVAL, "%s=%s; give %s, or a number from 0 to 1", option,
                        text, word);
    *out = share;
    return KVL_OK;
}

int kvl_plan_needs_budget(struct kvl_plan *plan)
{
    if (plan->budget_tok > 0) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL,
                    "no budget with these options; give one, in tokens per lane");
}

/* ---- layers of a window ------------------------------------------------------------------------------------ */

/* A policy with nothing to choose is refused: what it reports would be the model's own doing. */
static bool planned_chooses(const struct kvl_policy *policy)
{
    return policy->select || policy->score || policy->evict || policy->prefill_mask;
}

/* A policy sees layers that read everything; those of a window are the model's own. Tables of the model are
 * measured over all layers and would be misread over some. */
static int planned_layers(struct kvl_planned *p, const struct kvl_shape *shape, struct kvl_err *err)
{
    p->shape = *shape;
    p->p.n_layers = shape->n_layers;
    if (!shape->window) return KVL_OK;
    p->layer_of = kvl_alloc((size_t)shape->n_layers, sizeof *p->layer_of);
    p->seen_as = kvl_alloc((size_t)shape->n_layers, sizeof *p->seen_as);
    if (!p->layer_of || !p->seen_as)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for %d layers", shape->n_layers);
    int32_t n = 0;
    for (int32_t l = 0; l < shape->n_layers; l++) {
        p->seen_as[l] = shape->window[l] ? -1 : n;
        if (!shape->window[l]) p->layer_of[n++] = l;
    }
    if (n == 0 && planned_chooses(p->policy))
        return kvl_fail(err, KVL_EINVAL,
                        "all %d layers of the model have a window (%d tokens in layer 0): there is "
                        "nothing to choose; want another model, or window: off",
                        shape->n_layers, shape->window[0]);
    p->shape.n_layers = n;
    p->shape.window = NULL;
    p->shape.tables = NULL; /* they are of all layers */
    return KVL_OK;
}

/* What plan said of the layers that the policy sees, as the store and tables count them: once here, so that no step
 * has to translate a mask. */
static int planned_spread(struct kvl_planned *p, int32_t n_layers, struct kvl_err *err)
{
    if (!p->seen_as) return KVL_OK;
    for (int32_t i = 0; i < p->p.n_tables; i++) {
        struct kvl_row_decl *d = &p->p.table[i];
        int32_t *at = kvl_alloc((size_t)n_layers, sizeof *at);
        if (!at) return kvl_fail(err, KVL_ENOMEM, "out of memory for a table's layers");
        for (int32_t l = 0, seen; l < n_layers; l++) {
            seen = p->seen_as[l];
            at[l] = seen < 0 || !d->at ? seen : d->at[seen];
        }
        kvl_free(d->at);
        d->at = at;
    }
    if (!p->p.offloads) return KVL_OK;
    uint8_t *layers = kvl_alloc((size_t)n_layers, 1);
    if (!layers) return kvl_fail(err, KVL_ENOMEM, "out of memory for layers");
    for (int32_t l = 0, seen; l < n_layers; l++) {
        seen = p->seen_as[l];
        layers[l] = seen >= 0 && (!p->p.offload.layers || p->p.offload.layers[seen]);
    }
    kvl_free(p->p.offload_layers);
    p->p.offload.layers = p->p.offload_layers = layers;
    return KVL_OK;
}

/* After options are known and before plan: sizes that are auto can count on the least budget. */
static int planned_check_budget(const struct kvl_planned *p, const struct kvl_shape *shape,
                                struct kvl_err *err)
{
    if (p->budget_tok == 0) return KVL_OK;
    int32_t min = kvl_policy_min_budget(p->policy, shape, p->opts);
    /* min_budget is a method's code as any hook: rounding that it left changed would change every
     * answer after it. */
    KVL_TRY(kvl_fp_kept(KVL_OK, KVL_EPOLICY, err));
    if (p->budget_tok < min)
        return kvl_fail(err, KVL_EINVAL,
                        "budget %d tokens, %s needs at least %d with these options", p->budget_tok,
                        p->policy->name, min);
    return KVL_OK;
}

/* One that neither drops nor chooses would be full attention under another name. */
static int planned_check_positions(const struct kvl_policy *policy, const struct kvl_shape *shape,
                                   struct kvl_err *err)
{
    uint32_t reads = KVL_CAP_EVICTS | KVL_CAP_SELECTS;
    if (!shape->no_rope || (policy->caps & (reads | KVL_CAP_REPOSITIONS)) != KVL_CAP_REPOSITIONS)
        return KVL_OK;
    return kvl_fail(err, KVL_EINVAL,
                    "changes positions of keys and nothing else, and the keys of this model do not "
                    "turn with their position; want a model with RoPE");
}

/* In order: options as text become a struct; what the model and the budget forbid is refused; the policy plans;
 * what it said is checked once more, whatever it returned. `options` is printed last, since plan writes back
 * what was auto. */
static int planned_fill(struct kvl_planned *p, const struct kvl_shape *shape, const char *options,
                        int32_t context_tok, struct kvl_err *err)
{
    const struct kvl_policy *policy = p->policy;
    bool clean = !err || err->code == KVL_OK;
    if (policy->opts) {
        p->opts = kvl_alloc(1, policy->opts_size);
        if (!p->opts) return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
        KVL_TRY(kvl_opt_defaults(policy->opts, p->opts, err));
        KVL_TRY(kvl_opt_parse(policy->opts, p->opts, options ? options : "", err));
    } else if (options && options[0]) {
        return kvl_fail(err, KVL_EINVAL, "%s takes no options, got \"%s\"", policy->name, options);
    }
    KVL_TRY(planned_layers(p, shape, err));
    KVL_TRY(planned_check_budget(p, &p->shape, err));
    KVL_TRY(planned_check_positions(policy, shape, err));
    struct kvl_plan plan = { .shape = &p->shape,
                             .opts = p->opts,
                             .budget_tok = p->budget_tok,
                             .context_tok = context_tok,
                             .own_prefill = p->own_prefill,
                             .err = err,
                             .p = &p->p };
    KVL_TRY(kvl_call_plan(policy, &plan));
    if (clean && err && err->code != KVL_OK) return err->code; /* a refusal that plan ignored */
    KVL_TRY(kvl_plan_check(&plan));
    KVL_TRY(planned_spread(p, shape->n_layers, err));
    p->state_bytes = plan.state_bytes;
    if (p->p.offloads && !(policy->caps & KVL_CAP_OFFLOADS))
        return kvl_fail(err, KVL_EPOLICY, "offloads without KVL_CAP_OFFLOADS");
    p->raw_keys = plan.raw_keys;
    p->replay = plan.replay;
    p->prefill_chunk_tok = plan.prefill_chunk_tok;
    p->prefill_layerwise = plan.prefill_layerwise;
    /* Texts are there even if empty: they are compared and printed unasked. */
    KVL_TRY(kvl_buf_adds(&p->options, ""));
    KVL_TRY(kvl_buf_adds(&p->tabled, ""));
    for (const struct kvl_opt *o = policy->opts; o && o->name; o++) {
        /* By this text attach_like knows whose tables it may share. */
        if (o->not_in_tables) continue;
        KVL_TRY(kvl_buf_adds(&p->tabled, ","));
        KVL_TRY(kvl_opt_value(o, p->opts, &p->tabled));
    }
    return policy->opts ? kvl_opt_print(policy->opts, p->opts, &p->options) : KVL_OK;
}

/* A hook may return anything: what is no status is the policy's fault. */
static bool planned_is_status(int rc)
{
    switch (rc) {
#define KVL_X(sym, val, ex, text) case sym:
        KVL_STATUS_LIST(KVL_X)
#undef KVL_X
        return true;
    default: return false;
    }
}

/* A plan is made once per policy, options and budget, and shared by all sessions that attach it: what it says (tables,
 * observers, options as they ran) may not depend on any text. */
static int planned_create(const struct kvl_policy *policy, const struct kvl_shape *shape,
                          const char *options, int32_t budget_tok, int32_t context_tok, bool own,
                          struct kvl_planned **out, struct kvl_err *err)
{
    KVL_TRY(kvl_policy_check(policy, err));
    if (policy->inner)
        return kvl_fail(err, KVL_EINVAL, "%s wraps another policy: want %s(%s)", policy->name,
                        policy->name, policy->inner);
    if (budget_tok < 0 || budget_tok > PLANNED_MAX_BUDGET)
        return kvl_fail(err, KVL_EINVAL, "%s: budget %d tokens, want 1 to %d", policy->name,
                        budget_tok, PLANNED_MAX_BUDGET);
    struct kvl_planned *p = kvl_alloc(1, sizeof *p);
    if (!p) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    p->policy = p->p.policy = policy;
    p->p.masks.first = PLANNED_MASKS;
    p->budget_tok = budget_tok;
    p->own_prefill = own;
    int rc = planned_fill(p, shape, options, context_tok, err);
    if (rc != KVL_OK) {
        kvl_planned_destroy(p);
        return kvl_fail_at(err, planned_is_status(rc) ? rc : KVL_EPOLICY, "%s", policy->name);
    }
    *out = p;
    return KVL_OK;
}

int kvl_planned_create(const struct kvl_policy *policy, const struct kvl_shape *shape,
                       const char *options, int32_t budget_tok, int32_t context_tok,
                       struct kvl_planned **out, struct kvl_err *err)
{
    return planned_create(policy, shape, options, budget_tok, context_tok,
                          policy->prefill == KVL_PREFILL_OWN, out, err);
}

/* Only a policy that can read its context itself; the engine then keeps no prefill for it. */
int kvl_planned_create_own(const struct kvl_policy *policy, const struct kvl_shape *shape,
                           const char *options, int32_t budget_tok, int32_t context_tok,
                           struct kvl_planned **out, struct kvl_err *err)
{
    KVL_TRY(kvl_policy_check(policy, err));
    if (policy->prefill == KVL_PREFILL_SHARED)
        return kvl_fail(err, KVL_EINVAL, "%s cannot do its own prefill; give prefill: shared",
                        policy->name);
    return planned_create(policy, shape, options, budget_tok, context_tok, true, out, err);
}

/* Sessions borrow the plan: they go first. */
void kvl_planned_destroy(struct kvl_planned *p)
{
    if (!p) return;
    for (int32_t i = 0; i < p->p.n_tables; i++) kvl_free(p->p.table[i].at);
    kvl_free(p->p.offload_layers);
    kvl_free(p->layer_of);
    kvl_free(p->seen_as);
    kvl_arena_free(&p->p.masks);
    kvl_buf_free(&p->options);
    kvl_buf_free(&p->tabled);
    kvl_free(p->opts);
    kvl_free(p);
}

const struct kvl_policy *kvl_planned_policy(const struct kvl_planned *p)
{
    return p->policy;
}
int32_t kvl_planned_budget(const struct kvl_planned *p)
{
    return p->budget_tok;
}
const char *kvl_planned_options(const struct kvl_planned *p)
{
    return p->options.data;
}
/* Of types that seal: an eviction that moves sealed tokens quantises them once more, which once is what a method may
 * cost, and again and again would be the store's fault.  Whether an evict hook takes single tokens or many at once is
 * not known here; that it may do so at any step is. */
int kvl_planned_serves(const struct kvl_planned *p, enum kvl_kv_type type, struct kvl_err *err)
{
    const char *what = NULL;
    if (!kvl_kv_seals(type)) return KVL_OK;
    if (p->policy->evict) what = "may evict at any step";
    if (p->own_prefill && p->policy->prefill_mask) what = "masks its own prefill";
    if (p->p.offloads) what = "keeps tokens in the host tier";
    if (!what) return KVL_OK;
    return kvl_fail(
        err, KVL_EINVAL,
        "%s %s, which is not served of %s, whose keys are quantised %d tokens together%s; "
        "want a kv_type whose rows stand alone (f16, q8_0, q4_0 ...)",
        p->policy->name, what, kvl_kv_name(type).text, KVL_KV_GROUP,
        p->policy->evict ? ", and anew after every eviction" : "");
}

bool kvl_planned_raw_keys(const struct kvl_planned *p)
{
    return p->raw_keys;
}
int32_t kvl_planned_chunk(const struct kvl_planned *p)
{
    return p->prefill_chunk_tok;
}
size_t kvl_planned_table_bytes(const struct kvl_planned *p, int32_t n_kv_heads,
                               enum kvl_kv_type type, int32_t n_tok)
{
    size_t bytes = p->state_bytes;
    for (int32_t i = 0; i < p->p.n_tables; i++) {
        const struct kvl_row_decl *d = &p->p.table[i];
        const struct kvl_row_table t = kvl_row_table_shape(d, n_kv_heads, type, n_tok);
        bytes += (size_t)d->n_layers * t.n_lanes * (size_t)t.n_rows * t.row_bytes;
    }
    return bytes;
}
const struct kvl_observer_set *kvl_planned_observers(const struct kvl_planned *p)
{
    return &p->p.observers;
}
bool kvl_planned_own_prefill(const struct kvl_planned *p)
{
    return p->own_prefill;
}
