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
 * has angle pi / 2 to everything.  dense_every is 16 from 4 layers on (so a small model has one dense
 * layer, as the published ones have 1 in 16) and 0 below.  Keys of a sample are read once for the
 * angles and again by attention: both are counted.
 * Budget B.  Published settings have no budget: K=10, L=150 samples about 2 % of a long context.  K
 * follows from the share of the hashed tokens that B leaves room for (magicpig_settings); L=0 takes as
 * many of the tables built as keep the tokens of a lane, the union over its query heads, within 9 / 10
 * of that room for the last 16 queries of the context: measured per layer, reported as tables_mean.
 * A larger union is thinned to the room, uniformly, and the weights corrected for it: still unbiased.
 * With L given, nothing is measured or thinned, and B is what comes out. */
#include "kvl/policy.h"
#include "magicpig_weight.h"

#include <string.h>

enum {
    MAGICPIG_HITS = 2,
    MAGICPIG_QUERIES = 16,
    MAGICPIG_LEAST = 16,
    MAGICPIG_CHUNK = 256 /* keys hashed at a time */,
    MAGICPIG_BUCKETS = 1 << 22 /* K=11, L=300 are 614400 */
};
/* What is kept of a lane: first entries of buckets, entries, |k'|, mean(k); and of a layer: h. */
enum { MAGICPIG_START, MAGICPIG_ID, MAGICPIG_NORM, MAGICPIG_MEAN, MAGICPIG_PLANE, MAGICPIG_ROWS };

struct magicpig_opts {
    int32_t K, L, sink, local, dense_every, seed;
    double eps;
    bool centre;
    /* from plan: tables built, tokens hashed at most, handles */
    int32_t n_tables, n_hashed, handle[MAGICPIG_ROWS];
};

struct magicpig_state {
    double n_lists, n_sampled, n_lanes, n_thinned, n_tables, n_layers;
    int32_t used[]; /* [n_layers] tables in use */
};

static const struct kvl_opt magicpig_options[] = {
    KVL_ROW_INT(
        magicpig_opts, K, "auto", 1, 16,
        "bits of a code; auto = by the share of tokens that the budget holds (paper: 8 to 11)"),
    KVL_ROW_INT(magicpig_opts, L, "0", 0, 4096,
                "hash tables; 0 = as many as the budget holds, measured (paper: 75 to 300)"),
    KVL_ROW_INT(magicpig_opts, sink, "4", 0, 1 << 20, "first tokens, always read (paper: 4)"),
    KVL_ROW_INT(magicpig_opts, local, "auto", 0, 1 << 20,
                "last tokens of the context, always read; auto = min(64, budget / 4) (paper: 64)"),
    KVL_ROW_INT(magicpig_opts, dense_every, "auto", 0, 1024,
                "layers that it divides read everything, 0 = none; auto = 16, 0 below 4 layers "
                "(paper: 16)"),
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
    return o->local == KVL_AUTO ? KVL_MAX(MAGICPIG_LEAST, 2 * o->sink) : o->sink + o->local + 2;
}

/* K and the tables to build, by the share of hashed tokens that the budget holds: the more, the
 * shorter the codes.  K=10 with 150, 9 with 120 and 8 with 75 tables are the authors'; measuring takes
 * them all or fewer. */
static void magicpig_settings(struct magicpig_opts *o, double share)
{
    static const struct {
        double share;
        int32_t K, L;
    } s[] = { { .03, 10, 150 }, { .06, 9, 120 }, { .12, 8, 75 }, { .25, 7, 50 }, { 1, 6, 32 } };
    int32_t i = 0;
    while (i < 4 && (o->K == KVL_AUTO ? share > s[i].share : s[i].K > o->K)) i++;
    if (o->K == KVL_AUTO) o->K = s[i].K;
    o->n_tables = o->L > 0 ? o->L : s[i].L;
}

static int magicpig_tables(struct kvl_plan *plan, struct magicpig_opts *o)
{
    uint8_t *layers;
    int64_t n_tables = o->n_tables, n_buckets = n_tables << o->K, d = plan->shape->head_dim;
    const int64_t elems[MAGICPIG_ROWS] = { n_buckets + n_tables, n_tables * o->n_hashed,
                                           o->n_hashed, d, n_tables * o->K * d };
    if (n_buckets > MAGICPIG_BUCKETS)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "K=%d with L=%d: %lld buckets per kv head; give at most %d", o->K,
                        o->n_tables, (long long)n_buckets, MAGICPIG_BUCKETS);
    KVL_TRY(kvl_plan_layers(plan, "dense_every", 0, 1, &layers));
    for (int32_t l = 0; o->dense_every > 0 && l < plan->shape->n_layers; l += o->dense_every)
        layers[l] = 0;
    for (int32_t i = 0; i < MAGICPIG_ROWS; i++) {
        if (elems[i] > INT32_MAX)
            return kvl_fail(plan->err, KVL_EINVAL,
                            "a hash table of %lld entries for %d tokens; give a smaller L",
                            (long long)elems[i], plan->context_tok);
        struct kvl_meta_desc desc = { .unit = KVL_META_LANE, .unit_tok = 1, .layers = layers };
        desc.row_elems = (int32_t)KVL_MAX(elems[i], 1);
        desc.elem = i <= MAGICPIG_ID ? KVL_META_I32 : KVL_META_F32;
        desc.per_layer = i == MAGICPIG_PLANE;
        KVL_TRY(kvl_plan_meta_desc(plan, &desc, &o->handle[i]));
    }
    return KVL_OK;
}

static int magicpig_plan(struct kvl_plan *plan)
{
    struct magicpig_opts *o = plan->opts;
    size_t n_layers = (size_t)plan->shape->n_layers;
    if (o->K == KVL_AUTO || o->L == 0 || o->local == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->L == 1)
        return kvl_fail(plan->err, KVL_EINVAL, "L=1; a sample needs 2 collisions, give 2 or more");
    if (o->local == KVL_AUTO) o->local = KVL_MIN(64, plan->budget_tok / 4);
    if (o->dense_every == KVL_AUTO) o->dense_every = n_layers < 4 ? 0 : 16;
    if (o->dense_every == 1)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_every=1 leaves no layer; give 2 or more, or 0");
    int32_t ends = o->sink + o->local;
    o->n_hashed = KVL_MAX(0, plan->context_tok - ends);
    magicpig_settings(o, (double)(plan->budget_tok - 1 - ends) / KVL_MAX(1, o->n_hashed));
    plan->state_bytes = sizeof(struct magicpig_state) + n_layers * sizeof(int32_t);
    if (o->L == 0) KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, MAGICPIG_QUERIES));
    return magicpig_tables(plan, o);
}

static int magicpig_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct magicpig_opts *o = ctx->opts;
    return o->dense_every > 0 && step->layer % o->dense_every == 0 ? KVL_DENSE : KVL_SELECT;
}

/* What a context has beyond the planned length is not hashed. */
static int32_t magicpig_hashed(const struct kvl_pctx *ctx)
{
    const struct magicpig_opts *o = ctx->opts;
    return KVL_MAX(0, KVL_MIN(o->n_hashed, ctx->context_tok - o->sink - o->local));
}

/* A layer at work. */
struct magicpig_layer {
    const struct kvl_pctx *ctx;
    const struct magicpig_opts *o;
    int32_t layer, n, d; /* tokens that are hashed, head_dim */
    struct kvl_rows rows[MAGICPIG_ROWS];
    float *side;    /* [keys at a time or n_heads][n_tables K] products with the hyperplanes */
    uint16_t *code; /* [n or n_heads][n_tables] */
    /* What one query finds by the first n_used tables; in magicpig_find_open. */
    int32_t n_used;
    const int32_t **start, **id; /* [n_heads] */
    int32_t *found;              /* [n_heads][n], ascending, counted from the first hashed token */
    int32_t *n_found;            /* [n_heads] */
    int64_t *n_visited;          /* [n_heads] */
    uint8_t *mark;               /* [n] */
};

/* Rows to write, or to read in pieces: who reads says how much (kvl_meta_count). */
static int magicpig_open(const struct kvl_pctx *ctx, int32_t layer, bool write,
                         struct magicpig_layer *m)
{
    *m = (struct magicpig_layer){ .ctx = ctx, .o = ctx->opts, .layer = layer };
    m->n = magicpig_hashed(ctx);
    m->d = ctx->shape->head_dim;
    size_t n_tables = (size_t)m->o->n_tables, heads = (size_t)ctx->shape->n_heads;
    size_t n_side = write ? MAGICPIG_CHUNK : heads, n_code = write ? (size_t)m->n : heads;
    void *code;
    for (int32_t i = 0; i < MAGICPIG_ROWS; i++)
        KVL_TRY(write ? kvl_table_write(ctx, m->o->handle[i], layer, 0, &m->rows[i])
                      : kvl_table_peek(ctx, m->o->handle[i], layer, 1, &m->rows[i]));
    KVL_TRY(kvl_scratch_get(ctx, n_side * n_tables * (size_t)m->o->K, &m->side));
    KVL_TRY(kvl_scratch_items(ctx, n_code * n_tables, sizeof *m->code, &code));
    m->code = code;
    return KVL_OK;
}

/* code [n][n_tables] of vectors x [n][head_dim] in the first n_tables tables. */
static int magicpig_codes(const struct magicpig_layer *m, int32_t n_tables, const float *x,
                          int32_t n, uint16_t *code)
{
    const float *plane = kvl_table_row(&m->rows[MAGICPIG_PLANE], 0, 0);
    KVL_TRY(kvl_product(m->ctx, x, n, plane, n_tables * m->o->K, m->d, m->side));
    return m->ctx->ops->lsh_codes(&(struct kvl_lsh_codes_args){
        .code = code, .side = m->side, .n = n, .n_tables = n_tables, .n_bits = m->o->K });
}

/* ---- once: hash tables ------------------------------------------------------------------------- */

/* h: normal numbers (Box and Muller), the same on every machine but for the last bit of libm. */
static void magicpig_planes(struct magicpig_layer *m)
{
    const double turn = 2 * acos(-1.0);
    float *x = kvl_table_row_out(&m->rows[MAGICPIG_PLANE], 0, 0);
    uint64_t seed = m->o->seed ? (uint64_t)m->o->seed : m->ctx->seed;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_mix(seed, (uint64_t)m->layer));
    for (size_t i = 0; i < (size_t)(m->o->n_tables * m->o->K) * (size_t)m->d; i++) {
        double radius = sqrt(-2 * log(1 - kvl_rng_f64(&rng)));
        x[i] = (float)(radius * cos(turn * kvl_rng_f64(&rng)));
    }
}

/* mean(k) of a lane; 0 where keys are not centred. */
static int magicpig_mean(const struct magicpig_layer *m, int32_t kv_head, float *key, float *mean)
{
    double *sum;
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)m->d, &sum));
    memset(sum, 0, (size_t)m->d * sizeof *sum);
    for (int32_t at = 0; m->o->centre && at < m->n; at += MAGICPIG_CHUNK) {
        int32_t n = KVL_MIN(MAGICPIG_CHUNK, m->n - at);
        KVL_TRY(kvl_read_key_span(m->ctx, m->layer, kv_head, m->o->sink + at, n, false, key));
        for (int32_t i = 0; i < n * m->d; i++) sum[i % m->d] += (double)key[i];
    }
    for (int32_t c = 0; c < m->d; c++) mean[c] = (float)(sum[c] / m->n);
    return KVL_OK;
}

/* k' = k - mean; returns its norm. */
static float magicpig_centre(float *k, const float *mean, int32_t d)
{
    double square = 0;
    for (int32_t c = 0; c < d; c++) {
        k[c] -= mean[c];
        square += (double)k[c] * (double)k[c];
    }
    return (float)sqrt(square);
}

/* Codes and norms of the centred keys of a lane. */
static int magicpig_hash(const struct magicpig_layer *m, int32_t kv_head, float *key,
                         const float *mean)
{
    float *norm = kvl_table_row_out(&m->rows[MAGICPIG_NORM], kv_head, 0);
    for (int32_t at = 0; at < m->n; at += MAGICPIG_CHUNK) {
        int32_t n = KVL_MIN(MAGICPIG_CHUNK, m->n - at);
        uint16_t *code = m->code + (size_t)at * (size_t)m->o->n_tables;
        KVL_TRY(kvl_read_key_span(m->ctx, m->layer, kv_head, m->o->sink + at, n, false, key));
        for (int32_t i = 0; i < n; i++) norm[at + i] = magicpig_centre(key + i * m->d, mean, m->d);
        KVL_TRY(magicpig_codes(m, m->o->n_tables, key, n, code));
    }
    return KVL_OK;
}

static int magicpig_build(const struct kvl_pctx *ctx, int32_t layer)
{
    struct magicpig_layer m;
    float *key;
    KVL_TRY(magicpig_open(ctx, layer, true, &m));
    KVL_TRY(kvl_scratch_get(ctx, MAGICPIG_CHUNK * (size_t)m.d, &key));
    magicpig_planes(&m);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *mean = kvl_table_row_out(&m.rows[MAGICPIG_MEAN], h, 0);
        KVL_TRY(magicpig_mean(&m, h, key, mean));
        KVL_TRY(magicpig_hash(&m, h, key, mean));
        KVL_TRY(ctx->ops->lsh_build(
            &(struct kvl_lsh_build_args){ .start = kvl_table_row_out(&m.rows[MAGICPIG_START], h, 0),
                                          .id = kvl_table_row_out(&m.rows[MAGICPIG_ID], h, 0),
                                          .code = m.code,
                                          .n = m.n,
                                          .n_tables = m.o->n_tables,
                                          .n_bits = m.o->K }));
    }
    return KVL_OK;
}

/* ---- collisions -------------------------------------------------------------------------------- */

static int magicpig_find_open(const struct kvl_pctx *ctx, int32_t layer, struct magicpig_layer *m)
{
    size_t heads = (size_t)ctx->shape->n_heads;
    void *start, *id, *visited;
    KVL_TRY(magicpig_open(ctx, layer, false, m));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *m->start, &start));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *m->id, &id));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *m->n_visited, &visited));
    KVL_TRY(kvl_scratch_get(ctx, heads * (size_t)m->n, &m->found));
    KVL_TRY(kvl_scratch_get(ctx, heads, &m->n_found));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)m->n, &m->mark));
    m->start = start;
    m->id = id;
    m->n_visited = visited;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        m->start[h] = kvl_table_row(&m->rows[MAGICPIG_START], h / ctx->shape->group, 0);
        m->id[h] = kvl_table_row(&m->rows[MAGICPIG_ID], h / ctx->shape->group, 0);
    }
    return KVL_OK;
}

/* found and n_found of the queries q [n_heads][head_dim], by the first n_used tables. */
static int magicpig_collide(struct magicpig_layer *m, const float *q, int32_t n_used)
{
    int32_t n_heads = m->ctx->shape->n_heads;
    m->n_used = n_used;
    KVL_TRY(magicpig_codes(m, n_used, q, n_heads, m->code));
    return m->ctx->ops->lsh_find(&(struct kvl_lsh_find_args){ .found = m->found,
                                                              .n_found = m->n_found,
                                                              .n_visited = m->n_visited,
                                                              .code = m->code,
                                                              .start = m->start,
                                                              .id = m->id,
                                                              .n_q = n_heads,
                                                              .n = m->n,
                                                              .n_tables = n_used,
                                                              .n_bits = m->o->K,
                                                              .min_hits = MAGICPIG_HITS });
}

/* Counts what the last query read of the tables. */
static int magicpig_count(const struct magicpig_layer *m)
{
    int64_t entries = 0, n_heads = m->ctx->shape->n_heads, planes = m->n_used * m->o->K;
    for (int64_t h = 0; h < n_heads; h++) entries += m->n_visited[h];
    KVL_TRY(kvl_meta_count(m->ctx, m->o->handle[MAGICPIG_ID], entries));
    KVL_TRY(kvl_meta_count(m->ctx, m->o->handle[MAGICPIG_START], 2 * m->n_used * n_heads));
    return kvl_meta_count(m->ctx, m->o->handle[MAGICPIG_PLANE], planes * m->d);
}

/* Marks what the query heads of a kv head found; returns how many. */
static int32_t magicpig_union(const struct magicpig_layer *m, int32_t kv_head)
{
    int32_t group = m->ctx->shape->group, n = 0;
    memset(m->mark, 0, (size_t)m->n);
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int32_t i = 0; i < m->n_found[h]; i++) {
            uint8_t *mark = &m->mark[m->found[(size_t)h * (size_t)m->n + (size_t)i]];
            n += !*mark;
            *mark = 1;
        }
    return n;
}

/* Tokens that the budget leaves for samples at a position. */
static int32_t magicpig_room(const struct kvl_pctx *ctx, int32_t pos)
{
    return KVL_MAX(0, ctx->budget_tok - 1 - (pos - magicpig_hashed(ctx)));
}

/* Tables whose samples fit: the most for which the mean union of the last queries is within 9 / 10 of
 * the room; the union grows with the tables. */
static int magicpig_measure(const struct kvl_pctx *ctx, int32_t layer, int32_t *out)
{
    int32_t n_queries = KVL_MIN(MAGICPIG_QUERIES, ctx->context_tok), n_kv = ctx->shape->n_kv_heads;
    double room = 0.9 * magicpig_room(ctx, ctx->context_tok);
    struct magicpig_layer m;
    float *q;
    KVL_TRY(magicpig_find_open(ctx, layer, &m));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(ctx->shape->n_heads * m.d), &q));
    int32_t lo = MAGICPIG_HITS, hi = m.o->n_tables;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        double sum = 0;
        for (int32_t b = 0; b < n_queries; b++) {
            KVL_TRY(kvl_obs_window_query(ctx, layer, b, q));
            KVL_TRY(magicpig_collide(&m, q, mid));
            for (int32_t h = 0; h < n_kv; h++) sum += magicpig_union(&m, h);
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
    const struct kvl_step step = { .layer = layer };
    if (magicpig_schedule(ctx, &step) == KVL_DENSE || magicpig_hashed(ctx) == 0) return KVL_OK;
    KVL_TRY(magicpig_build(ctx, layer));
    state->used[layer] = o->n_tables;
    if (o->L == 0) KVL_TRY(magicpig_measure(ctx, layer, &state->used[layer]));
    state->n_tables += state->used[layer];
    state->n_layers++;
    return KVL_OK;
}

/* ---- a step ------------------------------------------------------------------------------------ */

/* Leaves `room` of the n marked, every set of them equally likely. */
static void magicpig_thin(const struct magicpig_layer *m, const struct kvl_step *step,
                          int32_t kv_head, int32_t n, int32_t room)
{
    struct kvl_rng rng;
    uint64_t seed = kvl_seed_mix(m->ctx->seed, (uint64_t)m->layer);
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)kv_head), (uint64_t)step->pos));
    for (int32_t i = 0; n > 0; i++) {
        if (!m->mark[i]) continue;
        if ((int32_t)kvl_rng_below(&rng, (uint32_t)n) < room)
            room--;
        else
            m->mark[i] = 0;
        n--;
    }
}

/* The marked tokens of one kv head. */
struct magicpig_lane {
    int32_t n;
    int32_t *pos; /* [n] ascending */
    float *dot;   /* [group][n] their keys' products with the queries */
    double thin;  /* of what was found, the share that is left */
    const float *mean, *norm;
};

/* The list of query head h: of what it found, what is marked, each token with -ln of its weight w,
 * times what thinning did. */
static int magicpig_list(const struct magicpig_layer *m, const struct magicpig_lane *l, int32_t h,
                         const float *q, struct kvl_sel *sel)
{
    struct magicpig_state *state = m->ctx->state;
    const int32_t *found = m->found + (size_t)h * (size_t)m->n;
    const float *dot = l->dot + (size_t)(h % m->ctx->shape->group) * (size_t)l->n;
    double with_mean = 0, square = 0;
    int32_t n = 0, at = 0, *pos;
    float *weight;
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)m->n_found[h], &pos));
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)m->n_found[h], &weight));
    for (int32_t c = 0; c < m->d; c++) {
        with_mean += (double)q[h * m->d + c] * (double)l->mean[c];
        square += (double)q[h * m->d + c] * (double)q[h * m->d + c];
    }
    for (int32_t i = 0; i < m->n_found[h]; i++) {
        if (!m->mark[found[i]]) continue;
        while (l->pos[at] < m->o->sink + found[i]) at++;
        double norms = sqrt(square) * (double)l->norm[found[i]];
        double cosine = norms > 0 ? ((double)dot[at] - with_mean) / norms : 0;
        double w = magicpig_weight(cosine, m->o->K, m->n_used);
        pos[n] = l->pos[at];
        weight[n++] = (float)-log((w + m->o->eps) * l->thin);
    }
    state->n_lists++;
    state->n_sampled += n;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
    return kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, n);
}

static int magicpig_sample(const struct magicpig_layer *m, const struct kvl_step *step,
                           const float *q, int32_t kv_head, struct kvl_sel *sel)
{
    struct magicpig_state *state = m->ctx->state;
    int32_t n = magicpig_union(m, kv_head), room = magicpig_room(m->ctx, step->pos);
    int32_t group = m->ctx->shape->group, first = kv_head * group;
    struct magicpig_lane l = { .thin = 1,
                               .mean = kvl_table_row(&m->rows[MAGICPIG_MEAN], kv_head, 0),
                               .norm = kvl_table_row(&m->rows[MAGICPIG_NORM], kv_head, 0) };
    float *key;
    state->n_lanes++;
    if (m->o->L == 0 && n > room) {
        magicpig_thin(m, step, kv_head, n, room);
        l.thin = (double)room / n;
        n = room;
        state->n_thinned++;
    }
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n, &l.pos));
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n * (size_t)m->d, &key));
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n * (size_t)group, &l.dot));
    for (int32_t i = 0; i < m->n; i++)
        if (m->mark[i]) l.pos[l.n++] = m->o->sink + i;
    KVL_TRY(kvl_meta_count(m->ctx, m->o->handle[MAGICPIG_MEAN], m->d));
    KVL_TRY(kvl_meta_count(m->ctx, m->o->handle[MAGICPIG_NORM], n));
    KVL_TRY(kvl_read_keys(m->ctx, m->layer, kv_head, l.pos, n, false, key));
    KVL_TRY(kvl_product(m->ctx, q + first * m->d, group, key, n, m->d, l.dot));
    for (int32_t h = first; h < first + group; h++) KVL_TRY(magicpig_list(m, &l, h, q, sel));
    return KVL_OK;
}

static int magicpig_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct magicpig_opts *o = ctx->opts;
    const struct magicpig_state *state = ctx->state;
    int32_t n = magicpig_hashed(ctx);
    struct magicpig_layer m;
    if ((o->L == 0 && step->pos < ctx->budget_tok) || n == 0) return KVL_OK;
    KVL_TRY(magicpig_find_open(ctx, step->layer, &m));
    KVL_TRY(magicpig_collide(&m, q->q, state->used[step->layer]));
    KVL_TRY(magicpig_count(&m));
    KVL_TRY(kvl_sel_first(sel, KVL_SCOPE_LAYER, 0, o->sink));
    KVL_TRY(kvl_sel_recent(sel, KVL_SCOPE_LAYER, 0, step->pos + 1 - o->sink - n));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(magicpig_sample(&m, step, q->q, h, sel));
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
