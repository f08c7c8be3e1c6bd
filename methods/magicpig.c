/* magicpig - samples keys by locality-sensitive hashing, and weights them by how likely that was.
 *
 * Chen et al.: MagicPIG: LSH Sampling for Efficient LLM Generation, ICLR 2025 (arXiv 2410.16179),
 * Algorithm 1.  The first `sink` and the last `local` tokens of the context and all that comes later are
 * read densely.  The others are hashed once, when the context is complete, per layer and kv head:
 *     centred keys k' = k - mean(k);  code_l = bits [k'.h_(l,j) > 0], j < K, in each of L tables
 * Per step and query head, on queries that are not centred:
 *     S   = keys that share the code of q in at least 2 tables
 *     w   = P[at least 2 of L] = 1 - (1 - p)^(L-1) (L p + 1 - p),  p = (1 - angle(q, k') / pi)^K
 *     out = softmax over S of q.k / sqrt(d) - ln(w + eps), merged with the dense part
 * Follows the official code: centring, hyperplanes shared by the heads of a layer, eps = 1e-4, every
 * 16th layer dense.  The official code subtracts the mean from the keys of every part, a constant shift
 * of all logits; here logits are those of the keys as they are in every part, and the mean serves codes
 * and angles alone.
 * Left open there, defined here: the cosine is clamped; an empty S counts nothing; a query of zeros has
 * angle pi / 2 to everything.
 * Deviations: dense_every is 16 from 4 layers on (so a small model has one dense layer, as the published
 * ones have 1 in 16) and 0 below.  The tail is unlimited (official: 256).  Keys of a sample are read once
 * for the angles and again by attention: both are counted.
 * Budget B.  Published settings have no budget: K=10, L=150 samples about 2 % of a long context.  K
 * follows from the share of the hashed tokens that B leaves room for (magicpig_settings); L=0 takes as
 * many of the tables built as keep the tokens of a lane, the union over its query heads, within 9 / 10 of
 * that room for the last 16 queries of the context: measured per layer, reported as tables_mean.  A
 * larger union is thinned to the room, uniformly, and the weights corrected for it: still unbiased.
 * With L given, nothing is measured or thinned, and B is what comes out.
 * Cost per step and layer: K L d multiply-adds per query head and as many floats of hyperplanes read once;
 * about n L / 2^K bucket entries and n bytes of counters per query head; d values per sampled token.
 * Once: K L d multiply-adds per key and head, a counting sort per table.  Memory: L (n + 2^K) integers
 * and n floats per kv head.
 */
#include "magicpig_tables.h"
#include "magicpig_weight.h"

enum {
    MAGICPIG_QUERIES = 16,
    MAGICPIG_MAX_LAYERS = 1024,
    MAGICPIG_LEAST = 16,
    MAGICPIG_BUCKETS = 1 << 22 /* K=11, L=300 are 614400 */
};

struct magicpig_opts {
    int32_t K, L, sink, local, dense_every, seed;
    double eps;
    bool centre;
    struct magicpig_tables tables; /* not an option: from plan */
};

struct magicpig_state {
    double n_lists, n_sampled, n_lanes, n_thinned, n_tables, n_layers;
    int32_t used[]; /* [n_layers] tables in use */
};

static const struct kvl_opt magicpig_options[] = {
    { .name = "K",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, K),
      .def = "auto",
      .min = 1,
      .max = 16,
      .help =
          "bits of a code; auto = by the share of tokens that the budget holds (paper: 8 to 11)" },
    { .name = "L",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, L),
      .def = "0",
      .min = 0,
      .max = 4096,
      .help = "hash tables; 0 = as many as the budget holds, measured (paper: 75 to 300)" },
    { .name = "sink",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, sink),
      .def = "4",
      .min = 0,
      .max = 1 << 20,
      .help = "first tokens, always read (paper: 4)" },
    { .name = "local",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, local),
      .def = "auto",
      .min = 0,
      .max = 1 << 20,
      .help = "last tokens of the context, always read; auto = min(64, budget / 4) (paper: 64)" },
    { .name = "dense_every",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, dense_every),
      .def = "auto",
      .min = 0,
      .max = MAGICPIG_MAX_LAYERS,
      .help = "layers that it divides read everything, 0 = none; auto = 16, 0 below 4 layers "
              "(paper: 16)" },
    { .name = "eps",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct magicpig_opts, eps),
      .def = "0.0001",
      .min = 0,
      .max = 1,
      .help = "added to a weight before its logarithm (official: 1e-4)" },
    { .name = "centre",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct magicpig_opts, centre),
      .def = "true",
      .help = "hash keys without their mean" },
    { .name = "seed",
      .type = KVL_OPT_INT,
      .off = offsetof(struct magicpig_opts, seed),
      .def = "0",
      .min = 0,
      .max = 1 << 30,
      .help = "of the hyperplanes; 0 = the sample's" },
    { 0 },
};

static int32_t magicpig_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct magicpig_opts *o = opts;
    (void)shape;
    if (o->L > 0) return 1;
    return o->local == KVL_AUTO ? KVL_MAX(MAGICPIG_LEAST, 2 * o->sink) : o->sink + o->local + 2;
}

/* K and the tables to build, by the share of hashed tokens that the budget holds: the more, the shorter
 * the codes.  K=10 with 150, 9 with 120 and 8 with 75 tables are the authors'; measuring takes them all
 * or fewer. */
static void magicpig_settings(struct magicpig_opts *o, double share)
{
    static const struct {
        double share;
        int32_t K, n_tables;
    } settings[] = { { 0.03, 10, 150 }, { 0.06, 9, 120 }, { 0.12, 8, 75 }, { 0.25, 7, 50 } };
    int32_t n = (int32_t)(sizeof settings / sizeof settings[0]), i = 0;
    if (o->K != KVL_AUTO)
        while (i < n && settings[i].K > o->K) i++;
    else
        while (i < n && share > settings[i].share) i++;
    if (o->K == KVL_AUTO) o->K = i < n ? settings[i].K : 6;
    o->tables.n_tables = o->L > 0 ? o->L : (i < n ? settings[i].n_tables : 32);
}

static int magicpig_resolve(struct kvl_plan *plan, struct magicpig_opts *o)
{
    int32_t budget = plan->budget_tok;
    int32_t least = magicpig_min_budget(plan->shape, o);
    bool given = o->K != KVL_AUTO && o->L > 0 && o->local != KVL_AUTO;
    if (!given && budget < least)
        return kvl_fail(plan->err, KVL_EINVAL, "budget %d; give %d or more, or K, L and local",
                        budget, least);
    if (o->L == 1)
        return kvl_fail(plan->err, KVL_EINVAL, "L=1; a sample needs 2 collisions, give 2 or more");
    if (plan->shape->n_layers > MAGICPIG_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL, "a model of %d layers; magicpig serves up to %d",
                        plan->shape->n_layers, MAGICPIG_MAX_LAYERS);
    if (o->local == KVL_AUTO) o->local = KVL_MIN(64, budget / 4);
    if (o->dense_every == KVL_AUTO) o->dense_every = plan->shape->n_layers < 4 ? 0 : 16;
    if (o->dense_every == 1)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_every=1 leaves no layer; give 2 or more, or 0");
    int32_t ends = o->sink + o->local, n = KVL_MAX(0, plan->context_tok - ends);
    magicpig_settings(o, (double)(budget - 1 - ends) / KVL_MAX(1, n));
    int64_t n_buckets = (int64_t)o->tables.n_tables << o->K;
    if (n_buckets > MAGICPIG_BUCKETS)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "K=%d with L=%d: %lld buckets per kv head; give at most %d", o->K,
                        o->tables.n_tables, (long long)n_buckets, MAGICPIG_BUCKETS);
    o->tables = (struct magicpig_tables){ .n_bits = o->K,
                                          .n_tables = o->tables.n_tables,
                                          .first = o->sink,
                                          .n = n,
                                          .behind = o->local,
                                          .seed = (uint64_t)o->seed,
                                          .centre = o->centre };
    return KVL_OK;
}

static bool magicpig_dense(const struct magicpig_opts *o, int32_t layer)
{
    return o->dense_every > 0 && layer % o->dense_every == 0;
}

static int magicpig_plan(struct kvl_plan *plan)
{
    struct magicpig_opts *o = plan->opts;
    uint8_t layers[MAGICPIG_MAX_LAYERS];
    KVL_TRY(magicpig_resolve(plan, o));
    for (int32_t l = 0; l < plan->shape->n_layers; l++) layers[l] = !magicpig_dense(o, l);
    plan->state_bytes =
        sizeof(struct magicpig_state) + (size_t)plan->shape->n_layers * sizeof(int32_t);
    if (o->L == 0) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, MAGICPIG_QUERIES));
    return magicpig_plan_tables(plan, layers, &o->tables);
}

/* ---- samples ----------------------------------------------------------------------------------- */

/* Marks what the query heads of a kv head found; returns how many. */
static int32_t magicpig_union(const struct magicpig_find *f, int32_t kv_head)
{
    int32_t group = f->ctx->shape->n_heads / f->ctx->shape->n_kv_heads, n = 0;
    memset(f->mark, 0, (size_t)f->n);
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int32_t i = 0; i < f->n_found[h]; i++) {
            uint8_t *mark = &f->mark[f->found[(size_t)h * (size_t)f->n + (size_t)i]];
            n += !*mark;
            *mark = 1;
        }
    return n;
}

/* Tokens that the budget leaves for samples at a position. */
static int32_t magicpig_room(const struct kvl_pctx *ctx, int32_t pos)
{
    const struct magicpig_opts *o = ctx->opts;
    return KVL_MAX(0, ctx->budget_tok - 1 - (pos - magicpig_hashed(ctx, &o->tables)));
}

/* Tables whose samples fit: the most for which the mean union of the last queries is within 9 / 10 of
 * the room; the union grows with the tables. */
static int magicpig_measure(const struct kvl_pctx *ctx, int32_t layer, int32_t *out)
{
    const struct magicpig_opts *o = ctx->opts;
    int32_t n_queries = KVL_MIN(MAGICPIG_QUERIES, ctx->context_tok), n_kv = ctx->shape->n_kv_heads;
    int32_t lo = MAGICPIG_HITS, hi = o->tables.n_tables;
    double room = 0.9 * magicpig_room(ctx, ctx->context_tok);
    struct magicpig_find f;
    float *q = kvl_scratch(ctx, (size_t)ctx->shape->n_heads * (size_t)ctx->shape->head_dim);
    if (!q) return magicpig_no_memory(ctx);
    KVL_TRY(magicpig_find_get(ctx, &o->tables, layer, &f));
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        double sum = 0;
        for (int32_t b = 0; b < n_queries; b++) {
            KVL_TRY(kvl_obs_window_query(ctx, layer, b, q));
            KVL_TRY(magicpig_collide(&f, q, mid));
            for (int32_t h = 0; h < n_kv; h++) sum += magicpig_union(&f, h);
        }
        if (sum > room * n_queries * n_kv)
            hi = mid - 1;
        else
            lo = mid;
    }
    *out = lo;
    return KVL_OK;
}

static int magicpig_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct magicpig_opts *o = ctx->opts;
    struct magicpig_state *state = ctx->state;
    if (magicpig_dense(o, layer) || magicpig_hashed(ctx, &o->tables) == 0) return KVL_OK;
    KVL_TRY(magicpig_build_layer(ctx, &o->tables, layer));
    state->used[layer] = o->tables.n_tables;
    if (o->L == 0) KVL_TRY(magicpig_measure(ctx, layer, &state->used[layer]));
    state->n_tables += state->used[layer];
    state->n_layers++;
    return KVL_OK;
}

/* ---- select ------------------------------------------------------------------------------------ */

static int magicpig_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return magicpig_dense(ctx->opts, step->layer) ? KVL_DENSE : KVL_SELECT;
}

/* First tokens, and all behind those that are hashed; the current one is the engine's to add. */
static int magicpig_ends(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         struct kvl_sel *sel)
{
    const struct magicpig_opts *o = ctx->opts;
    int32_t n = 0, behind = o->sink + magicpig_hashed(ctx, &o->tables);
    int32_t *pos = (void *)kvl_scratch(ctx, (size_t)(o->sink + step->pos - behind));
    if (!pos) return magicpig_no_memory(ctx);
    for (int32_t i = 0; i < o->sink; i++) pos[n++] = i;
    for (int32_t i = behind; i < step->pos; i++) pos[n++] = i;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n);
}

/* Leaves `room` of the n marked, every set of them equally likely. */
static void magicpig_thin(const struct magicpig_find *f, const struct kvl_step *step,
                          int32_t kv_head, int32_t n, int32_t room)
{
    struct kvl_rng rng;
    uint64_t seed = kvl_seed_mix(f->ctx->seed, (uint64_t)f->layer);
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)kv_head), (uint64_t)step->pos));
    for (int32_t i = 0; n > 0; i++) {
        if (!f->mark[i]) continue;
        if ((int32_t)kvl_rng_below(&rng, (uint32_t)n) < room)
            room--;
        else
            f->mark[i] = 0;
        n--;
    }
}

/* The marked tokens of one kv head: their keys' products with the group's queries, angles and norms. */
struct magicpig_lane {
    int32_t kv_head, group, n;
    int32_t *id; /* [n] */
    float *dot;  /* [group][n] */
    double thin; /* of what was found, the share that is left */
    const float *mean, *norm;
};

static int magicpig_products(const struct magicpig_find *f, const float *q, struct magicpig_lane *l)
{
    const struct magicpig_opts *o = f->ctx->opts;
    size_t n = (size_t)l->n, d = (size_t)f->ctx->shape->head_dim;
    int32_t m = 0, *pos = (void *)kvl_scratch(f->ctx, n);
    float *key = kvl_scratch(f->ctx, n * d);
    l->id = (void *)kvl_scratch(f->ctx, n);
    l->dot = kvl_scratch(f->ctx, n * (size_t)l->group);
    if (!pos || !key || !l->id || !l->dot) return magicpig_no_memory(f->ctx);
    for (int32_t i = 0; i < f->n; i++)
        if (f->mark[i]) l->id[m++] = i;
    for (int32_t i = 0; i < m; i++) pos[i] = o->sink + l->id[i];
    if (m == 0) return KVL_OK;
    KVL_TRY(kvl_read_keys(f->ctx, f->layer, l->kv_head, pos, m, false, key));
    struct kvl_weight w = { .data = key,
                            .type = KVL_W_F32,
                            .n_rows = m,
                            .n_cols = (int32_t)d,
                            .row_bytes = d * sizeof(float) };
    return f->ctx->ops->gemm(&(struct kvl_gemm_args){
        .y = l->dot, .x = q + (size_t)(l->kv_head * l->group) * d, .w = &w, .n = l->group });
}

/* -ln w of every token of a query head's list, times what thinning did. */
static void magicpig_log_weights(const struct magicpig_find *f, const struct magicpig_lane *l,
                                 const float *q, const float *dot, const int32_t *entry, int32_t n,
                                 float *out)
{
    const struct magicpig_opts *o = f->ctx->opts;
    double with_mean = 0, square = 0;
    for (int32_t c = 0; c < f->ctx->shape->head_dim; c++) {
        with_mean += (double)q[c] * (double)l->mean[c];
        square += (double)q[c] * (double)q[c];
    }
    for (int32_t i = 0; i < n; i++) {
        double norms = sqrt(square) * (double)l->norm[l->id[entry[i]]];
        double cosine = norms > 0 ? ((double)dot[entry[i]] - with_mean) / norms : 0;
        out[i] = (float)-log((magicpig_weight(cosine, o->K, f->n_tables) + o->eps) * l->thin);
    }
}

/* The list of one query head: of what it found, what is marked. */
static int magicpig_list(const struct magicpig_find *f, const struct magicpig_lane *l, int32_t g,
                         const float *q, struct kvl_sel *sel)
{
    const struct magicpig_opts *o = f->ctx->opts;
    int32_t h = l->kv_head * l->group + g, n = 0, at = 0;
    const int32_t *found = f->found + (size_t)h * (size_t)f->n;
    size_t room = (size_t)f->n_found[h];
    int32_t *entry = (void *)kvl_scratch(f->ctx, room), *pos = (void *)kvl_scratch(f->ctx, room);
    float *weight = kvl_scratch(f->ctx, room);
    if (!entry || !pos || !weight) return magicpig_no_memory(f->ctx);
    for (int32_t i = 0; i < f->n_found[h]; i++) {
        if (!f->mark[found[i]]) continue;
        while (l->id[at] < found[i]) at++;
        entry[n] = at;
        pos[n++] = o->sink + found[i];
    }
    magicpig_log_weights(f, l, q + (size_t)h * (size_t)f->ctx->shape->head_dim,
                         l->dot + (size_t)g * (size_t)l->n, entry, n, weight);
    struct magicpig_state *state = f->ctx->state;
    state->n_lists++;
    state->n_sampled += n;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
    return kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, n);
}

static int magicpig_sample(const struct magicpig_find *f, const struct kvl_step *step,
                           const struct kvl_query *q, int32_t kv_head, struct kvl_sel *sel)
{
    const struct magicpig_opts *o = f->ctx->opts;
    struct magicpig_state *state = f->ctx->state;
    int32_t n = magicpig_union(f, kv_head), room = magicpig_room(f->ctx, step->pos);
    struct magicpig_lane l = { .kv_head = kv_head,
                               .group = f->ctx->shape->n_heads / f->ctx->shape->n_kv_heads,
                               .n = n,
                               .thin = 1 };
    struct kvl_meta_part mean, norm;
    KVL_TRY(magicpig_row(f->ctx, o->tables.mean, f->layer, &mean));
    KVL_TRY(magicpig_row(f->ctx, o->tables.norm, f->layer, &norm));
    l.mean = (const float *)mean.data + (size_t)kv_head * mean.head_stride;
    l.norm = (const float *)norm.data + (size_t)kv_head * norm.head_stride;
    state->n_lanes++;
    if (o->L == 0 && n > room) {
        magicpig_thin(f, step, kv_head, n, room);
        l.thin = (double)room / n;
        l.n = room;
        state->n_thinned++;
    }
    KVL_TRY(kvl_meta_count(f->ctx, o->tables.mean, f->ctx->shape->head_dim));
    KVL_TRY(kvl_meta_count(f->ctx, o->tables.norm, l.n));
    KVL_TRY(magicpig_products(f, q->q, &l));
    for (int32_t g = 0; g < l.group; g++) KVL_TRY(magicpig_list(f, &l, g, q->q, sel));
    return KVL_OK;
}

static int magicpig_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct magicpig_opts *o = ctx->opts;
    const struct magicpig_state *state = ctx->state;
    struct magicpig_find f;
    if (o->L == 0 && step->pos < ctx->budget_tok) return KVL_OK;
    if (magicpig_hashed(ctx, &o->tables) == 0) return KVL_OK;
    KVL_TRY(magicpig_find_get(ctx, &o->tables, step->layer, &f));
    KVL_TRY(magicpig_collide(&f, q->q, state->used[step->layer]));
    KVL_TRY(magicpig_count(&f));
    KVL_TRY(magicpig_ends(ctx, step, sel));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(magicpig_sample(&f, step, q, h, sel));
    return KVL_OK;
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
            "likely "
            "that was",
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
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_SAMPLES,
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
