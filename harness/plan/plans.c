/* Plans of policies, by what they are made of. */
#include "plans.h"

#include <string.h>

struct plan_entry {
    struct kvl_plan_for of;
    struct kvl_planned *planned; /* NULL: the place is free */
};

/* Open addressing; at most half full. */
struct kvl_plans {
    struct plan_entry *entry;
    size_t n, cap; /* cap: a power of two */
};

enum { PLANS_FIRST = 64 };

int kvl_plans_create(struct kvl_plans **out, struct kvl_err *err)
{
    struct kvl_plans *t = kvl_alloc(1, sizeof *t);
    if (t) t->entry = kvl_alloc(PLANS_FIRST, sizeof *t->entry);
    if (!t || !t->entry) {
        kvl_free(t);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for plans");
    }
    t->cap = PLANS_FIRST;
    *out = t;
    return KVL_OK;
}

void kvl_plans_destroy(struct kvl_plans *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->cap; i++) kvl_planned_destroy(t->entry[i].planned);
    kvl_free(t->entry);
    kvl_free(t);
}

static bool plans_same(const struct kvl_plan_for *a, const struct kvl_plan_for *b)
{
    return a->policy == b->policy && a->budget_tok == b->budget_tok &&
           a->context_tok == b->context_tok && a->own == b->own;
}

/* The entry that has it, or the free one where it would be. */
static struct plan_entry *plans_at(const struct kvl_plans *t, const struct kvl_plan_for *f)
{
    uint64_t h = kvl_seed_mix((uintptr_t)f->policy, (uint64_t)f->budget_tok << 1 | f->own);
    h = kvl_seed_mix(h, (uint64_t)f->context_tok);
    for (size_t i = h & (t->cap - 1);; i = (i + 1) & (t->cap - 1))
        if (!t->entry[i].planned || plans_same(&t->entry[i].of, f)) return &t->entry[i];
}

const struct kvl_planned *kvl_plans_find(const struct kvl_plans *t, const struct kvl_plan_for *f)
{
    return plans_at(t, f)->planned;
}

static int plans_grow(struct kvl_plans *t)
{
    struct kvl_plans more = { .cap = 2 * t->cap, .n = t->n };
    more.entry = kvl_alloc(more.cap, sizeof *more.entry);
    if (!more.entry) return KVL_ENOMEM;
    for (size_t i = 0; i < t->cap; i++)
        if (t->entry[i].planned) *plans_at(&more, &t->entry[i].of) = t->entry[i];
    kvl_free(t->entry);
    *t = more;
    return KVL_OK;
}

int kvl_plans_add(struct kvl_plans *t, const struct kvl_plan_for *f, struct kvl_planned *planned,
                  struct kvl_err *err)
{
    if (2 * t->n >= t->cap && plans_grow(t) != KVL_OK) {
        kvl_planned_destroy(planned);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for %zu plans", t->n);
    }
    *plans_at(t, f) = (struct plan_entry){ *f, planned };
    t->n++;
    return KVL_OK;
}
