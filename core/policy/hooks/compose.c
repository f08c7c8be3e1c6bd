/* outer(inner): two policies that the engine and the harness see as one.
 *
 * The composed object is a policy like any other: its options are those of the outer one and, with the
 * inner one's name and a dot before theirs, those of the inner one; its state is both states.  Its hooks
 * call the parts, each with a context that shows it its own options, state and budget.  Tables and
 * observers need nothing: handles are the plan's, whichever part asked for them.
 *
 * Hooks that build or watch (open, append, prefilled, observe, report) run for both, the inner
 * one's first; of those that decide (score, select, evict, prefill_mask) one runs, the outer's where it
 * has one, and calls the inner's where it wants to.  A layer is dense where either says so. */
#include "policy_impl.h"

#include <string.h>

enum { OUTER = 0, INNER = 1, N_PARTS = 2, COMPOSE_ALIGN = 64 };

struct kvl_composed {
    struct kvl_policy policy; /* the object that others see */
    const struct kvl_policy *part[N_PARTS];
    size_t opts_at[N_PARTS]; /* of a part's options, after composed_opts */
    struct kvl_opt *opts;
    struct kvl_buf name, title, paper, help, names, defaults;
};

/* In front of the options of both: what plan found out. */
struct composed_opts {
    int32_t inner_budget_tok;
    size_t state_at[N_PARTS];
    enum kvl_replay replay[N_PARTS];
};

/* The state of the inner part begins where any type may begin. */
static size_t aligned(size_t n)
{
    return (n + COMPOSE_ALIGN - 1) / COMPOSE_ALIGN * COMPOSE_ALIGN;
}

/* For names and cards, which are made of both. */
bool kvl_policy_parts(const struct kvl_policy *policy, const struct kvl_policy **outer,
                      const struct kvl_policy **inner)
{
    const struct kvl_composed *c = policy->composed;
    if (!c) return false;
    if (outer) *outer = c->part[OUTER];
    if (inner) *inner = c->part[INNER];
    return true;
}

/* Whether an outer select hook changes what the inner one chose: a trace then shows the outer's lists. */
bool kvl_policy_reselects(const struct kvl_policy *policy)
{
    const struct kvl_composed *c = policy->composed;
    return c && c->part[OUTER]->select;
}

/* ---- plan ---------------------------------------------------------------------------------- */

/* Options of both parts are one struct for parsing, sweeps and logs; each part gets its own piece of it. */
static void *part_opts(const struct kvl_composed *c, const void *opts, int i)
{
    return (uint8_t *)(uintptr_t)opts + c->opts_at[i];
}

/* The outer part knows what it leaves the inner one; without an opinion of its own the inner one's counts. */
int32_t kvl_policy_min_budget(const struct kvl_policy *policy, const struct kvl_shape *shape,
                              const void *opts)
{
    const struct kvl_composed *c = policy->composed;
    if (!c) return policy->min_budget ? policy->min_budget(shape, opts) : 1;
    int i = c->part[OUTER]->min_budget ? OUTER : INNER;
    return c->part[i]->min_budget ? c->part[i]->min_budget(shape, part_opts(c, opts, i)) : 1;
}

/* The inner one plans for what the outer one leaves it. */
static int compose_inner_budget(const struct kvl_plan *plan, const struct kvl_composed *c,
                                int32_t budget_tok)
{
    const struct kvl_policy *p = c->part[INNER];
    if (budget_tok < 0)
        return kvl_fail(plan->err, KVL_EPOLICY, "inner_budget_tok %d, want 0 (none) or more",
                        budget_tok);
    int32_t min = p->min_budget ? p->min_budget(plan->shape, part_opts(c, plan->opts, INNER)) : 1;
    if (budget_tok > 0 && budget_tok < min)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d gives %s %d tokens, which needs at least %d with these options",
                        plan->budget_tok, p->name, budget_tok, min);
    return KVL_OK;
}

/* One that evicts step by step asks about later tokens, too. */
static enum kvl_asking compose_asking(const struct kvl_composed *c)
{
    const struct kvl_policy *outer = c->part[OUTER];
    if (!(outer->caps & KVL_CAP_ASKS)) return KVL_ASKS_NOTHING;
    return outer->evict ? KVL_ASKS_LATER : KVL_ASKS_CONTEXT;
}

/* Columns of queries that both parts asked for; scores of inputs are of a token alone. */
static int32_t compose_of_queries(const struct kvl_observer_set *set)
{
    int32_t n = 0;
    for (int32_t k = 0; k < set->n_columns; k++) n += set->column[k].what != KVL_OBS_INPUTS;
    return n;
}

/* An outer one that asks about tokens of its own choice has keys and values of them, and queries where it looks at
 * those itself. */
static int compose_check_asks(const struct kvl_plan *plan, const struct kvl_composed *c,
                              const struct kvl_observer_set *outers)
{
    const struct kvl_observer_set *all = &plan->p->observers;
    const char *o = c->part[OUTER]->name, *i = c->part[INNER]->name;
    bool queries = c->part[OUTER]->select;
    if (!(c->part[OUTER]->caps & KVL_CAP_ASKS)) return KVL_OK;
    if (!queries &&
        (all->window > outers->window || compose_of_queries(all) > compose_of_queries(outers)))
        return kvl_fail(plan->err, KVL_EINVAL,
                        "%s(%s): %s asks about keys and values alone, %s looks at queries; want a "
                        "policy such as %s",
                        o, i, o, i, c->part[OUTER]->inner);
    for (int32_t k = 0; k < all->n_columns; k++)
        if (all->column[k].what != KVL_OBS_MOMENTS && all->column[k].what != KVL_OBS_INPUTS)
            return kvl_fail(
                plan->err, KVL_EINVAL,
                "%s(%s): %s looks at all queries of the context (\"%s\"), %s asks again "
                "later; want a policy such as %s",
                o, i, i, kvl_observer_name(all->column[k].what), o, c->part[OUTER]->inner);
    return KVL_OK;
}

/* What of the context is replayed: as much as the part wants that wants most (the smallest
 * kind). */
static enum kvl_replay compose_replay(const struct kvl_composed *c, const struct composed_opts *o)
{
    enum kvl_replay want = KVL_REPLAY_NONE;
    for (int i = 0; i < N_PARTS; i++)
        if (c->part[i]->append && o->replay[i] < want) want = o->replay[i];
    return want;
}

/* The outer part plans first, for it says what budget the inner one gets; parts share the plan's tables and
 * observers. What only one of them can want is the one's that has the hook. */
static int compose_plan(struct kvl_plan *plan)
{
    const struct kvl_composed *c = plan->p->policy->composed;
    struct composed_opts *o = plan->opts;
    size_t state = 0;
    int masks = c->part[OUTER]->prefill_mask ? OUTER : INNER;
    int32_t budget_tok = plan->budget_tok;
    struct kvl_observer_set outers = { 0 };
    for (int i = OUTER; i < N_PARTS; i++) {
        struct kvl_plan part = *plan;
        part.opts = part_opts(c, plan->opts, i);
        /* An outer part that says nothing leaves the inner one the whole budget. */
        part.budget_tok = part.inner_budget_tok = budget_tok;
        part.asked = i == INNER ? compose_asking(c) : KVL_ASKS_NOTHING;
        if (i == INNER) KVL_TRY(compose_inner_budget(plan, c, budget_tok));
        if (c->part[i]->plan) KVL_TRY(c->part[i]->plan(&part));
        KVL_TRY(kvl_plan_check(&part));
        o->state_at[i] = state;
        state += aligned(part.state_bytes);
        o->replay[i] = part.replay;
        plan->raw_keys |= part.raw_keys;
        if (i == masks) plan->prefill_chunk_tok = part.prefill_chunk_tok;
        if (i == masks) plan->prefill_layerwise = part.prefill_layerwise;
        budget_tok = part.inner_budget_tok;
        if (i == OUTER) o->inner_budget_tok = budget_tok;
        /* What is there after both and not yet now is the inner one's (compose_check_asks). */
        if (i == OUTER) outers = plan->p->observers;
    }
    KVL_TRY(compose_check_asks(plan, c, &outers));
    plan->state_bytes = state;
    plan->replay = compose_replay(c, o);
    return KVL_OK;
}

/* ---- hooks --------------------------------------------------------------------------------- */

/* By the session and not by the options, which a part sees as its own. */
static const struct kvl_composed *composed_here(const struct kvl_pctx *ctx)
{
    return ctx->host->session->planned->policy->composed;
}

/* The context as part i sees it.  Made of the session's context and not of the caller's, which may be a part's already
 * (kvl_inner_select in a hook of the outer one). */
static struct kvl_pctx part_ctx(const struct kvl_pctx *ctx, const struct kvl_composed *c, int i)
{
    const struct kvl_pctx *all = &ctx->host->session->ctx;
    const struct composed_opts *o = all->opts;
    struct kvl_pctx part = *all;
    part.opts = part_opts(c, all->opts, i);
    part.state = (uint8_t *)all->state + o->state_at[i];
    if (i == INNER) part.budget_tok = o->inner_budget_tok;
    return part;
}

/* The inner part first, here and below: the outer one may look at what that did. */
static int compose_open(struct kvl_pctx *ctx)
{
    const struct kvl_composed *c = composed_here(ctx);
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        if (c->part[i]->open) KVL_TRY(c->part[i]->open(&part));
    }
    return KVL_OK;
}

/* Each part sees of the context what it asked for, whatever the other one did. */
static int compose_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    const struct kvl_composed *c = composed_here(ctx);
    const struct composed_opts *o = ctx->opts;
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        if (!c->part[i]->append || (step->replay && o->replay[i] == KVL_REPLAY_NONE)) continue;
        bool values = !step->replay || o->replay[i] == KVL_REPLAY_ALL;
        KVL_TRY(c->part[i]->append(&part, step, k, values ? v : NULL));
    }
    return KVL_OK;
}

static int compose_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct kvl_composed *c = composed_here(ctx);
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        if (c->part[i]->prefilled) KVL_TRY(c->part[i]->prefilled(&part, layer));
    }
    return KVL_OK;
}

/* A layer is dense where either says so. Weights are made where a part that observes wants them. */
static int compose_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct kvl_composed *c = composed_here(ctx);
    int all = KVL_SELECT, unobserved = KVL_UNOBSERVED;
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        int rc = c->part[i]->schedule ? c->part[i]->schedule(&part, step) : KVL_SELECT;
        int what = rc < 0 ? rc : rc & ~KVL_UNOBSERVED;
        if (what != KVL_DENSE && what != KVL_SELECT) return rc;
        if (what == KVL_DENSE) all = KVL_DENSE;
        if (c->part[i]->observe && rc == what) unobserved = 0;
    }
    return all | unobserved;
}

/* keep_tok arrives as the budget of the part that answers. */
static int compose_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct kvl_composed *c = composed_here(ctx);
    int i = c->part[OUTER]->score ? OUTER : INNER;
    struct kvl_pctx part = part_ctx(ctx, c, i);
    scores->keep_tok = part.budget_tok;
    return c->part[i]->score(&part, layer, scores);
}

/* A selection that was changed is of this step: shared, it would be handed out without asking the outer part. */
static int compose_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct kvl_composed *c = composed_here(ctx);
    int i = c->part[OUTER]->select ? OUTER : INNER;
    struct kvl_pctx part = part_ctx(ctx, c, i);
    KVL_TRY(c->part[i]->select(&part, step, q, sel));
    if (i == OUTER && sel->share_steps > 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "%s shares a selection that it made of another one's: want kvl_sel_share "
                        "in the inner policy alone",
                        c->part[OUTER]->name);
    return KVL_OK;
}

static int compose_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    const struct kvl_composed *c = composed_here(ctx);
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        if (c->part[i]->observe) KVL_TRY(c->part[i]->observe(&part, step, probs, n, lse));
    }
    return KVL_OK;
}

/* One of them: two that evict would each cut what the other left. */
static int compose_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct kvl_composed *c = composed_here(ctx);
    int i = c->part[OUTER]->evict ? OUTER : INNER;
    struct kvl_pctx part = part_ctx(ctx, c, i);
    return c->part[i]->evict(&part, step, keep);
}

static int compose_prefill_mask(struct kvl_pctx *ctx, const struct kvl_step *step,
                                const struct kvl_query *q, struct kvl_prefill_mask *mask)
{
    const struct kvl_composed *c = composed_here(ctx);
    int i = c->part[OUTER]->prefill_mask ? OUTER : INNER;
    struct kvl_pctx part = part_ctx(ctx, c, i);
    return c->part[i]->prefill_mask(&part, step, q, mask);
}

static int compose_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct kvl_composed *c = composed_here(ctx);
    for (int i = INNER; i >= OUTER; i--) {
        struct kvl_pctx part = part_ctx(ctx, c, i);
        if (c->part[i]->report) KVL_TRY(c->part[i]->report(&part, report));
    }
    return KVL_OK;
}

/* ---- what outer policies call ----------------------------------------------------------------- */

int kvl_inner_ctx(const struct kvl_pctx *ctx, struct kvl_pctx *out, const struct kvl_policy **inner)
{
    const struct kvl_composed *c = composed_here(ctx);
    if (!c)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "asks an inner policy and has none: want a policy with inner");
    *out = part_ctx(ctx, c, INNER);
    *inner = c->part[INNER];
    return KVL_OK;
}

/* An inner policy whose options keep everything would make the outer one a name without a method. */
static int inner_score(const struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    struct kvl_pctx in;
    const struct kvl_policy *inner;
    KVL_TRY(kvl_inner_ctx(ctx, &in, &inner));
    if (!inner->score)
        return kvl_fail(ctx->err, KVL_EPOLICY, "asks %s for scores, which gives none", inner->name);
    scores->keep_tok = in.budget_tok;
    KVL_TRY(inner->score(&in, layer, scores));
    if (scores->keep_tok >= scores->n_tok && in.budget_tok < scores->n_tok)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "%s keeps all %d tokens at budget %d: with these options it does not evict "
                        "by scores",
                        inner->name, scores->n_tok, in.budget_tok);
    return KVL_OK;
}

/* The outer policy gives lanes their numbers; an inner one that does so too would be overruled without a word. */
int kvl_inner_even_score(const struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores,
                         bool *evicts)
{
    KVL_TRY(inner_score(ctx, layer, scores));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        if (scores->keep_lane[h] >= 0)
            return kvl_fail(ctx->err, KVL_EINVAL,
                            "the inner policy gives its lanes budgets of its own (%d tokens to kv "
                            "head %d); want one that keeps as many everywhere",
                            scores->keep_lane[h], h);
    *evicts = scores->keep_tok < scores->n_tok;
    return KVL_OK;
}

/* Saved where the inner one shares it, and loaded where it did: it is asked as often as it would be alone. */
int kvl_inner_select(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_pctx in;
    const struct kvl_policy *inner;
    const struct kvl_row row = { .s = sel->s, .index = step->index, .pos = step->pos };
    KVL_TRY(kvl_inner_ctx(ctx, &in, &inner));
    if (!inner->select)
        return kvl_fail(ctx->err, KVL_EPOLICY, "asks %s for a selection, which makes none",
                        inner->name);
    if (kvl_sel_load(sel, &row)) return KVL_OK;
    KVL_TRY(inner->select(&in, step, q, sel));
    KVL_TRY(kvl_sel_complete(sel));
    /* Before the outer part changes it: others are to get what the inner one chose. */
    KVL_TRY(kvl_sel_save(sel, &row));
    /* What the outer part makes of it is of this step alone (compose_select). */
    sel->share_layer = sel->share_steps = 0;
    return KVL_OK;
}

/* ---- the object ---------------------------------------------------------------------------- */

/* Its own prefill needs both; it is the only one where either has no other. */
static enum kvl_prefill_kind compose_prefill(const struct kvl_policy *outer,
                                             const struct kvl_policy *inner)
{
    if (outer->prefill == KVL_PREFILL_SHARED || inner->prefill == KVL_PREFILL_SHARED)
        return KVL_PREFILL_SHARED;
    return KVL_MAX(outer->prefill, inner->prefill);
}

/* Everything that would not be the method of either paper is refused here, by what policies declare and not by their
 * names: an outer policy that works on scores needs scores, decides once, and may not undo budgets that the inner one
 * gave to lanes; one that works on selections needs lists of tokens and nothing else, which the inner one does not look
 * at again. */
static int compose_check(const struct kvl_policy *outer, const struct kvl_policy *inner,
                         struct kvl_err *err)
{
    const char *o = outer->name, *i = inner->name;
    KVL_TRY(kvl_policy_check(outer, err));
    KVL_TRY(kvl_policy_check(inner, err));
    if (!outer->inner)
        return kvl_fail(err, KVL_EINVAL, "%s(%s): %s wraps no other policy", o, i, o);
    if (inner->inner || inner->composed)
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s wraps a policy itself, want one level: %s(%s) or %s alone", o,
                        i, i, o, outer->inner, i);
    if (outer->score && !inner->score)
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s works on scores, %s gives none; want a policy that evicts by "
                        "scores, such as %s",
                        o, i, o, i, outer->inner);
    bool reselects = outer->select && !outer->score; /* else it moves positions, or keeps queries */
    if (reselects && !(inner->caps & KVL_CAP_SELECTS))
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s works on selections, %s makes none; want a policy that "
                        "selects, such as %s",
                        o, i, o, i, outer->inner);
    if (reselects && (inner->caps & KVL_CAP_ESTIMATES))
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): what %s selects is more than a list of tokens, %s would lose it; "
                        "want a policy such as %s",
                        o, i, i, o, outer->inner);
    if (reselects && inner->observe)
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s looks at the weights of what it selected, which %s changes; "
                        "want a policy such as %s",
                        o, i, i, o, outer->inner);
    bool own = outer->prefill == KVL_PREFILL_OWN || inner->prefill == KVL_PREFILL_OWN;
    if (own && compose_prefill(outer, inner) == KVL_PREFILL_SHARED)
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): one of them reads the context itself, the other one cannot; want "
                        "a policy like %s",
                        o, i, outer->inner);
    if (outer->score && inner->evict && !outer->evict)
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s decides once, %s evicts at every step; want a policy that "
                        "evicts once, such as %s",
                        o, i, o, i, outer->inner);
    if (outer->score && (inner->caps & KVL_CAP_RAGGED))
        return kvl_fail(err, KVL_EINVAL,
                        "%s(%s): %s gives every lane a budget of its own, which %s would change; "
                        "want a policy such as %s",
                        o, i, i, o, outer->inner);
    return KVL_OK;
}

/* What either can, the whole can, but for what holds only if it holds of both: hooks that run ahead, and tables that
 * depend on the context alone.  Over a bound a wrapper is a method like any other. */
static uint32_t compose_caps(const struct kvl_policy *const part[N_PARTS])
{
    uint32_t caps = 0, never = KVL_CAP_BOUND;
    for (int i = 0; i < N_PARTS; i++) {
        const struct kvl_policy *p = part[i];
        caps |= p->caps;
        if (!(p->caps & KVL_CAP_ASYNC)) never |= KVL_CAP_ASYNC;
        if ((p->append || p->prefilled) && !(p->caps & KVL_CAP_SHARES_META))
            never |= KVL_CAP_SHARES_META;
    }
    return caps & ~never;
}

static int32_t opts_count(const struct kvl_opt *o)
{
    int32_t n = 0;
    while (o && o[n].name) n++;
    return n;
}

/* The value that `text`, "name:a=1,b=2", gives an option of that policy; NULL: none. */
static const char *default_of(const char *text, const char *policy, const char *option, size_t *len)
{
    size_t n = strlen(policy), m = strlen(option);
    if (strncmp(text, policy, n) != 0 || text[n] != ':') return NULL;
    for (const char *p = text + n + 1; *p; p += *p == ',') {
        *len = strcspn(p, ",");
        if (*len > m && p[m] == '=' && strncmp(p, option, m) == 0) {
            *len -= m + 1;
            return p + m + 1;
        }
        p += *len;
    }
    return NULL;
}

/* An option's name as that of the inner policy. */
static int compose_name(struct kvl_composed *c, const char *option, const char **out)
{
    *out = c->names.data + c->names.len;
    KVL_TRY(kvl_buf_printf(&c->names, "%s.%s", c->part[INNER]->name, option));
    return kvl_buf_add(&c->names, "", 1);
}

/* Rows of part i, moved to where its options lie.  Texts are made of names and defaults, which must not
 * grow: both were given room for all of them. */
static int compose_rows(struct kvl_composed *c, int i, struct kvl_opt *row)
{
    const struct kvl_policy *p = c->part[i];
    for (const struct kvl_opt *o = p->opts; o && o->name; o++, row++) {
        size_t len;
        *row = *o;
        row->off += c->opts_at[i];
        if (i == OUTER) continue;
        KVL_TRY(compose_name(c, o->name, &row->name));
        if (o->alias) KVL_TRY(compose_name(c, o->alias, &row->alias));
        const char *def = default_of(c->part[OUTER]->inner, p->name, o->name, &len);
        if (!def) continue;
        row->def = c->defaults.data + c->defaults.len;
        KVL_TRY(kvl_buf_add(&c->defaults, def, len));
        KVL_TRY(kvl_buf_add(&c->defaults, "", 1));
    }
    return KVL_OK;
}

/* Room for what compose_rows writes, so that no text moves: rows point into it. */
static int compose_room(struct kvl_composed *c)
{
    const struct kvl_policy *p = c->part[INNER];
    size_t room = strlen(c->part[OUTER]->inner) + 1;
    for (const struct kvl_opt *o = p->opts; o && o->name; o++)
        room += 2 * strlen(p->name) + strlen(o->name) + 4 + (o->alias ? strlen(o->alias) : 0);
    struct kvl_buf *texts[] = { &c->names, &c->defaults };
    for (size_t i = 0; i < 2; i++) {
        for (size_t n = 0; n < room; n++) KVL_TRY(kvl_buf_add(texts[i], "", 1));
        texts[i]->len = 0;
    }
    return KVL_OK;
}

/* One struct for the options of both, each part's at an aligned offset, so that a part finds its own struct there. */
static int compose_options(struct kvl_composed *c)
{
    size_t at = aligned(sizeof(struct composed_opts));
    int32_t n = opts_count(c->part[OUTER]->opts);
    for (int i = OUTER; i < N_PARTS; i++) {
        c->opts_at[i] = at;
        at += aligned(c->part[i]->opts_size);
    }
    c->opts = kvl_alloc((size_t)(n + opts_count(c->part[INNER]->opts) + 1), sizeof *c->opts);
    if (!c->opts) return KVL_ENOMEM;
    KVL_TRY(compose_room(c));
    KVL_TRY(compose_rows(c, OUTER, c->opts));
    KVL_TRY(compose_rows(c, INNER, c->opts + n));
    c->policy.opts = c->opts;
    c->policy.opts_size = at;
    return KVL_OK;
}

static int compose_texts(struct kvl_composed *c)
{
    const struct kvl_policy *o = c->part[OUTER], *i = c->part[INNER];
    KVL_TRY(kvl_buf_printf(&c->name, "%s(%s)", o->name, i->name));
    KVL_TRY(kvl_buf_printf(&c->title, "%s over %s", o->title, i->title));
    KVL_TRY(kvl_buf_printf(&c->paper, "%s; over %s", o->paper, i->paper));
    KVL_TRY(kvl_buf_printf(&c->help, "%s; over %s: %s", o->help, i->name, i->help));
    c->policy.name = c->name.data;
    c->policy.title = c->title.data;
    c->policy.paper = c->paper.data;
    c->policy.help = c->help.data;
    c->policy.follows = o->follows;
    c->policy.deviations = o->deviations;
    c->policy.cost = o->cost;
    return KVL_OK;
}

/* A hook that a part lacks is none of the whole. */
static void compose_hooks(struct kvl_composed *c)
{
    const struct kvl_policy *o = c->part[OUTER], *i = c->part[INNER];
    struct kvl_policy *p = &c->policy;
    p->plan = compose_plan;
    p->open = compose_open;
    if (o->append || i->append) p->append = compose_append;
    if (o->prefilled || i->prefilled) p->prefilled = compose_prefilled;
    if (o->schedule || i->schedule) p->schedule = compose_schedule;
    if (o->score || i->score) p->score = compose_score;
    if (o->select || i->select) p->select = compose_select;
    if (o->observe || i->observe) p->observe = compose_observe;
    if (o->evict || i->evict) p->evict = compose_evict;
    if (o->prefill_mask || i->prefill_mask) p->prefill_mask = compose_prefill_mask;
    if (o->report || i->report) p->report = compose_report;
}

/* Versions become one number, which changes with either part as long as they stay below 1000. */
int kvl_policy_compose(const struct kvl_policy *outer, const struct kvl_policy *inner,
                       const struct kvl_policy **out, struct kvl_err *err)
{
    KVL_TRY(compose_check(outer, inner, err));
    struct kvl_composed *c = kvl_alloc(1, sizeof *c);
    if (!c) return kvl_fail(err, KVL_ENOMEM, "out of memory for %s(%s)", outer->name, inner->name);
    c->part[OUTER] = outer;
    c->part[INNER] = inner;
    c->policy = (struct kvl_policy){ .abi = KVL_POLICY_ABI,
                                     .size = sizeof c->policy,
                                     .version = 1000 * outer->version + inner->version,
                                     .caps = compose_caps(c->part),
                                     .prefill = compose_prefill(outer, inner),
                                     .composed = c };
    compose_hooks(c);
    if (compose_texts(c) != KVL_OK || compose_options(c) != KVL_OK) {
        kvl_policy_decompose(&c->policy);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for %s(%s)", outer->name, inner->name);
    }
    *out = &c->policy;
    return KVL_OK;
}

void kvl_policy_decompose(const struct kvl_policy *policy)
{
    if (!policy) return;
    struct kvl_composed *c = (struct kvl_composed *)(uintptr_t)policy->composed;
    struct kvl_buf *texts[] = { &c->name, &c->title, &c->paper, &c->help, &c->names, &c->defaults };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) kvl_buf_free(texts[i]);
    kvl_free(c->opts);
    kvl_free(c);
}
