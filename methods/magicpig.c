/* magicpig - samples keys by locality-sensitive hashing, and weights them by how likely that was.
 *
 * Chen et al.: MagicPIG: LSH Sampling for Efficient LLM Generation, ICLR 2025 (arXiv 2410.16179),
 * Algorithm 1.  The first `sink` and the last `local` tokens of the context and all that comes later
 * are read densely.  The others are hashed once, when the context is complete, per layer and kv head:
 *     centred keys k' = k - mean(k);  code_l = bits [k'.h_(l,j) > 0], j < K, in each of L tables
 * Per step and query head, on queries that are not centred:
 *     S   = keys that share the code of q in at least 2 tables
 *     w   = P[at least 2 of L] = 1 - (1 - p)^(L-1) (L p + 1 - p),  p = (1 - angle(q, k') / pi)^K
 *     out = softmax over S of q.k / sqrt(d) - ln(w + eps), merged with the dense part
 * Left open there, defined here: the cosine is clamped; an empty S counts nothing; a query of zeros
 * has angle pi / 2 to everything.
 * Budget B: K follows from the share of the hashed tokens that B leaves room for (magicpig_settings); L=0
 * takes as many tables, per layer, as keep what the last 16 queries of the context find within 9 / 10 of
 * it (kvl_lsh_fit); a larger sample is thinned to the room, uniformly, and the weights corrected for it:
 * still unbiased.  With L given, nothing is
 * measured or thinned, and B is what comes out. */
#include "kvl/policy.h"
#include "magicpig_weight.h"
#include "parts/lsh.h"

enum {
    MAGICPIG_HITS = 2,
    MAGICPIG_QUERIES = 16, /* of the context, that say how many tables */
};

struct magicpig_opts {
    int32_t K, L, sink, local, dense_every, seed;
    double eps;
    bool centre;
    struct kvl_lsh lsh; /* not an option: from plan */
};

struct magicpig_state {
    double n_lists, n_sampled, n_lanes, n_thinned, n_tables, n_layers;
    int32_t used[]; /* [n_layers] tables in use */
};

static const struct kvl_opt magicpig_options[] = {
    KVL_ROW_INT(magicpig_opts, K, "auto", 1, 16,
                "bits of a code; auto = by the share that the budget holds (paper: 8 to 11)"),
    KVL_ROW_INT(magicpig_opts, L, "0", 0, 4096,
                "hash tables; 0 = as many as the budget holds, measured (paper: 75 to 300)"),
    KVL_ROW_INT(magicpig_opts, sink, "4", 0, 1 << 20, "first tokens, always read (paper: 4)"),
    KVL_ROW_INT(magicpig_opts, local, "auto", 0, 1 << 20,
                "last tokens of the context, always read; auto = min(64, budget / 4) (paper: 64)"),
    KVL_ROW_INT(
        magicpig_opts, dense_every, "auto", 0, 1024,
        "layers that it divides are dense, 0 = none; auto = 16, below 4 layers 0 (paper: 16)"),
    KVL_ROW_FLOAT(magicpig_opts, eps, "0.0001", 0, 1,
                  "added to a weight before its logarithm (official: 1e-4)"),
    KVL_ROW_BOOL(magicpig_opts, centre, "true", "hash keys without their mean"),
    KVL_ROW_INT(magicpig_opts, seed, "0", 0, 1 << 30, "of the hyperplanes; 0 = the sample's"),
    { 0 },
};

static int32_t magicpig_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct magicpig_opts *o = opts;
    (void)shape;
    if (o->L > 0) return 1;
    return o->local == KVL_AUTO ? KVL_MAX(16, 2 * o->sink) : o->sink + o->local + 2;
}

/* K and the tables to build, by the share of hashed tokens that the budget holds: the more, the shorter
 * the codes.  K=10 with 150, 9 with 120 and 8 with 75 tables are the authors'. */
static void magicpig_settings(struct magicpig_opts *o, double share)
{
    static const struct {
        double share;
        int32_t K, L;
    } s[] = { { .03, 10, 150 }, { .06, 9, 120 }, { .12, 8, 75 }, { .25, 7, 50 }, { 1, 6, 32 } };
    int32_t i = 0;
    while (i < 4 && (o->K == KVL_AUTO ? share > s[i].share : s[i].K > o->K)) i++;
    if (o->K == KVL_AUTO) o->K = s[i].K;
    o->lsh.L = o->L > 0 ? o->L : s[i].L;
}

static int magicpig_plan(struct kvl_plan *plan)
{
    struct magicpig_opts *o = plan->opts;
    size_t n_layers = (size_t)plan->shape->n_layers;
    uint8_t *layers;
    if (o->K == KVL_AUTO || o->L == 0 || o->local == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->L == 1)
        return kvl_fail(plan->err, KVL_EINVAL, "L=1; a sample needs 2 collisions, give 2 or more");
    if (o->local == KVL_AUTO) o->local = KVL_MIN(64, plan->budget_tok / 4);
    if (o->dense_every == KVL_AUTO) o->dense_every = n_layers < 4 ? 0 : 16;
    if (o->dense_every == 1)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_every=1 leaves no layer; give 2 or more, or 0");
    int32_t ends = o->sink + o->local, n_hashed = KVL_MAX(1, plan->context_tok - ends);
    magicpig_settings(o, (double)(plan->budget_tok - 1 - ends) / n_hashed);
    o->lsh.K = o->K;
    o->lsh.min_hits = MAGICPIG_HITS;
    o->lsh.first = o->sink;
    o->lsh.behind = o->local;
    o->lsh.seed = o->seed;
    o->lsh.centre = o->centre;
    plan->state_bytes = sizeof(struct magicpig_state) + n_layers * sizeof(int32_t);
    if (o->L == 0) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, MAGICPIG_QUERIES));
    KVL_TRY(kvl_plan_layers(plan, "dense_every", 0, 1, &layers));
    for (size_t l = 0; o->dense_every > 0 && l < n_layers; l += (size_t)o->dense_every)
        layers[l] = 0;
    return kvl_plan_lsh(plan, layers, &o->lsh);
}

static int magicpig_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct magicpig_opts *o = ctx->opts;
    return o->dense_every > 0 && step->layer % o->dense_every == 0 ? KVL_DENSE : KVL_SELECT;
}

/* ---- Algorithm 1, once: tables --------------------------------------------------- */

/* Tokens that the budget leaves for samples at a position. */
static int32_t magicpig_room(const struct kvl_pctx *ctx, int32_t pos)
{
    const struct magicpig_opts *o = ctx->opts;
    return KVL_MAX(0, ctx->budget_tok - 1 - (pos - kvl_lsh_hashed(ctx, &o->lsh)));
}

static int magicpig_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct magicpig_opts *o = ctx->opts;
    struct magicpig_state *state = ctx->state;
    const struct kvl_step step = { .layer = layer };
    if (magicpig_schedule(ctx, &step) == KVL_DENSE || kvl_lsh_hashed(ctx, &o->lsh) == 0)
        return KVL_OK;
    KVL_TRY(kvl_lsh_build(ctx, &o->lsh, layer));
    state->used[layer] = o->lsh.L;
    if (o->L == 0)
        KVL_TRY(kvl_lsh_fit(ctx, &o->lsh, layer, MAGICPIG_QUERIES,
                            0.9 * magicpig_room(ctx, ctx->context_tok), &state->used[layer]));
    state->n_tables += state->used[layer];
    state->n_layers++;
    return KVL_OK;
}

/* ---- Algorithm 1, a step: S, w and what is read ------------------------------------------------ */

/* Leaves `room` of n positions, every set of them equally likely; returns how many. */
static int32_t magicpig_thin(const struct kvl_pctx *ctx, const struct kvl_step *step,
                             int32_t kv_head, int32_t *pos, int32_t n, int32_t room)
{
    struct kvl_rng rng;
    int32_t left = 0;
    uint64_t seed = kvl_seed_mix(ctx->seed, (uint64_t)step->layer);
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)kv_head), (uint64_t)step->pos));
    for (int32_t i = 0; i < n; i++)
        if ((int32_t)kvl_rng_below(&rng, (uint32_t)(n - i)) < room - left) pos[left++] = pos[i];
    return left;
}

/* S of query head h: of what it found, what is left among the lane's positions (place: which of these it is, -1: none of
 * them), each token with -ln of its weight w, times the share `thin` of what was found that is left.  cosine: of q and
 * k', by the lane's positions. */
static int magicpig_list(const struct kvl_lsh_hits *hits, int32_t h, const int32_t *place,
                         const double *cosine, double thin, struct kvl_sel *sel)
{
    const struct kvl_pctx *ctx = hits->ctx;
    const struct magicpig_opts *o = ctx->opts;
    struct magicpig_state *state = ctx->state;
    const int32_t *found = hits->found + (size_t)h * (size_t)hits->n;
    int32_t n_list = 0, *pos;
    float *weight;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)hits->n_found[h], &pos));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)hits->n_found[h], &weight));
    for (int32_t i = 0; i < hits->n_found[h]; i++) {
        int32_t at = place[found[i]];
        if (at < 0) continue;
        double w = magicpig_weight(cosine[at], o->K, hits->n_tables);
        pos[n_list] = o->sink + found[i];
        weight[n_list++] = (float)-log((w + o->eps) * thin);
    }
    state->n_lists++;
    state->n_sampled += n_list;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n_list));
    return kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, n_list);
}

/* Of a kv head: how many tokens were found, and are left of them; their products with its query heads. */
struct magicpig_lane {
    int32_t n_found, n;
    float *dot;
};

static int magicpig_found(const struct kvl_lsh_hits *hits, const struct kvl_step *step,
                          int32_t kv_head, struct magicpig_lane *l)
{
    const struct kvl_pctx *ctx = hits->ctx;
    const struct magicpig_opts *o = ctx->opts;
    struct magicpig_state *state = ctx->state;
    int32_t room = magicpig_room(ctx, step->pos);
    KVL_TRY(kvl_lsh_union(hits, kv_head, &l->n_found));
    l->n = l->n_found;
    state->n_lanes++;
    if (o->L > 0 || l->n <= room) return KVL_OK;
    int32_t *pos = hits->pos + (size_t)kv_head * (size_t)hits->n;
    l->n = magicpig_thin(ctx, step, kv_head, pos, l->n, room);
    state->n_thinned++;
    return KVL_OK;
}

/* Of what the query heads of a kv head found: which of the lane's n positions it is. */
static int magicpig_places(const struct kvl_lsh_hits *hits, int32_t kv_head, int32_t n,
                           int32_t **place)
{
    const struct magicpig_opts *o = hits->ctx->opts;
    const int32_t *pos = hits->pos + (size_t)kv_head * (size_t)hits->n;
    int32_t group = hits->ctx->shape->group;
    KVL_TRY(kvl_scratch_get(hits->ctx, (size_t)hits->n, place));
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
        const int32_t *found = hits->found + (size_t)h * (size_t)hits->n;
        for (int32_t i = 0; i < hits->n_found[h]; i++) (*place)[found[i]] = -1;
    }
    for (int32_t i = 0; i < n; i++) (*place)[pos[i] - o->sink] = i;
    return KVL_OK;
}

static int magicpig_weigh(const struct kvl_lsh_hits *hits, const float *q, int32_t kv_head,
                          const struct magicpig_lane *l, struct kvl_sel *sel)
{
    const int32_t *pos = hits->pos + (size_t)kv_head * (size_t)hits->n;
    int32_t group = hits->ctx->shape->group, *place;
    double *cosine, thin = l->n > 0 ? (double)l->n / l->n_found : 1;
    KVL_TRY(kvl_lsh_cosines(hits, kv_head, q, pos, l->n, l->dot, &cosine));
    KVL_TRY(magicpig_places(hits, kv_head, l->n, &place));
    for (int32_t g = 0; g < group; g++, cosine += l->n)
        KVL_TRY(magicpig_list(hits, kv_head * group + g, place, cosine, thin, sel));
    return KVL_OK;
}

/* What was found of all kv heads, then the products of all, then weights: each waits for the one before once. */
static int magicpig_sample(const struct kvl_lsh_hits *hits, const struct kvl_step *step,
                           const float *q, struct kvl_sel *sel)
{
    const struct kvl_pctx *ctx = hits->ctx;
    int32_t lanes = ctx->shape->n_kv_heads;
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, (size_t)lanes, sizeof(struct magicpig_lane), &room));
    struct magicpig_lane *l = room;
    for (int32_t h = 0; h < lanes; h++) KVL_TRY(magicpig_found(hits, step, h, &l[h]));
    for (int32_t h = 0; h < lanes; h++)
        KVL_TRY(kvl_lsh_products(hits, h, q, hits->pos + (size_t)h * (size_t)hits->n, l[h].n,
                                 &l[h].dot));
    for (int32_t h = 0; h < lanes; h++) KVL_TRY(magicpig_weigh(hits, q, h, &l[h], sel));
    return KVL_OK;
}

static int magicpig_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct magicpig_opts *o = ctx->opts;
    const struct magicpig_state *state = ctx->state;
    int32_t n = kvl_lsh_hashed(ctx, &o->lsh);
    struct kvl_lsh_hits hits;
    if ((o->L == 0 && step->pos < ctx->budget_tok) || n == 0) return KVL_OK;
    KVL_TRY(kvl_lsh_open(ctx, &o->lsh, step->layer, &hits));
    KVL_TRY(kvl_lsh_find(&hits, q->q, state->used[step->layer]));
    KVL_TRY(kvl_lsh_count(&hits));
    KVL_TRY(kvl_sel_first(sel, KVL_SCOPE_LAYER, 0, o->sink));
    KVL_TRY(kvl_sel_recent(sel, KVL_SCOPE_LAYER, 0, step->pos + 1 - o->sink - n));
    KVL_TRY(kvl_sel_segment(sel));
    return magicpig_sample(&hits, step, q->q, sel);
}

static int magicpig_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct magicpig_state *state = ctx->state;
    if (state->n_layers > 0)
        KVL_TRY(kvl_report_num(r, "tables_mean", state->n_tables / state->n_layers));
    if (state->n_lists < 1) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "sampled_mean", state->n_sampled / state->n_lists));
    return kvl_report_num(r, "thinned", state->n_thinned / state->n_lanes);
}

static const struct kvl_policy magicpig = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "magicpig",
    .title = "MagicPIG",
    .paper = "Chen et al., ICLR 2025, arXiv 2410.16179",
    .help = "keeps all; samples keys that collide with the query in hash tables, weighted by how "
            "likely that was",
    .follows =
        "The official code: keys hashed without their mean (an option), hyperplanes shared by the "
        "heads of a layer, at least 2 collisions, sampling probabilities with 1e-4 added, sink, "
        "local and later tokens dense, every 16th layer dense, samples per query head.",
    .deviations =
        "Logits are those of the keys as they are in every part (official: of centred keys, the "
        "same but for a constant); the mean serves codes and angles alone. Tables are measured to "
        "the budget unless L is given, and a larger sample is thinned at random, with corrected "
        "weights; both are ours. dense_every is 0 below 4 layers. The tail is unlimited (official: "
        "256). Left out: base-2 log-sum-exp, a cosine that is not clamped, what an empty sample "
        "leaves undefined.",
    .cost =
        "Per step and layer K L d products for each of H heads, and as many floats of hyperplanes "
        "read per layer; about n L / 2^K bucket entries and n bytes of counters for each of H "
        "heads; d values per sampled token of a kv head, which attention reads again per query "
        "head. Once K L d products per key and kv head, a counting sort per table; measuring runs "
        "some hundred queries through the tables of a layer. Memory: L (n + 2^K) + n + d integers "
        "or floats per kv head, K L d floats per layer.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_SAMPLES | KVL_CAP_ASYNC,
    .opts = magicpig_options,
    .opts_size = sizeof(struct magicpig_opts),
    .min_budget = magicpig_min_budget,
    .plan = magicpig_plan,
    .prefilled = magicpig_prefilled,
    .schedule = magicpig_schedule,
    .select = magicpig_select,
    .report = magicpig_report,
};

KVL_POLICY_EXPORT(magicpig)
