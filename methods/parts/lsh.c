/* Hash tables of keys: hyperplanes, codes, buckets, collisions and angles. */
#include "lsh.h"

#include <math.h>
#include <string.h>

enum {
    LSH_CHUNK = 256,       /* keys hashed at a time */
    LSH_BUCKETS = 1 << 22, /* of a lane: K=11, L=300 are 614400 */
};

/* ---- plan -------------------------------------------------------------------------------------- */

static int lsh_check(struct kvl_plan *plan, const struct kvl_lsh *lsh)
{
    if (lsh->K < 1 || lsh->K > 16 || lsh->L < 1)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "%d hash tables of %d bits, want 1 or more of 1 to 16", lsh->L, lsh->K);
    if (lsh->min_hits < 1 || lsh->min_hits > KVL_MIN(255, lsh->L))
        return kvl_fail(plan->err, KVL_EPOLICY, "%d collisions in %d hash tables, want 1 to %d",
                        lsh->min_hits, lsh->L, KVL_MIN(255, lsh->L));
    if (lsh->first < 0 || lsh->behind < 0)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "keys are hashed but for %d and %d tokens, want 0 or more", lsh->first,
                        lsh->behind);
    return KVL_OK;
}

int kvl_plan_lsh(struct kvl_plan *plan, const uint8_t *layers, struct kvl_lsh *lsh)
{
    KVL_TRY(lsh_check(plan, lsh));
    lsh->n_most = KVL_MAX(0, plan->context_tok - lsh->first - lsh->behind);
    int64_t n_tables = lsh->L, n_buckets = n_tables << lsh->K, d = plan->shape->head_dim;
    const int64_t elems[KVL_LSH_ROWS] = { n_buckets + n_tables, n_tables * lsh->n_most, lsh->n_most,
                                          d, n_tables * lsh->K * d };
    if (n_buckets > LSH_BUCKETS)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "K=%d with L=%d: %lld buckets per kv head; give at most %d", lsh->K, lsh->L,
                        (long long)n_buckets, LSH_BUCKETS);
    for (int32_t i = 0; i < KVL_LSH_ROWS; i++) {
        if (elems[i] > INT32_MAX)
            return kvl_fail(plan->err, KVL_EINVAL,
                            "a hash table of %lld entries for %d tokens; give a smaller L",
                            (long long)elems[i], plan->context_tok);
        KVL_TRY(kvl_plan_table(plan, &lsh->handle[i], .unit = KVL_UNIT_LANE, .unit_tok = 1,
                               .layers = layers, .row_elems = (int32_t)KVL_MAX(elems[i], 1),
                               .elem = i <= KVL_LSH_ID ? KVL_ELEM_I32 : KVL_ELEM_F32,
                               .per_layer = i == KVL_LSH_PLANE));
    }
    return KVL_OK;
}

int32_t kvl_lsh_hashed(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh)
{
    return KVL_MAX(0, KVL_MIN(lsh->n_most, ctx->context_tok - lsh->first - lsh->behind));
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* Norms and means are the host's; the rest is for operators. */
static int lsh_row(struct kvl_lsh_hits *m, bool write, int32_t i)
{
    int32_t handle = m->lsh->handle[i];
    if (write) return kvl_table_write(m->ctx, handle, m->layer, 0, &m->rows[i]);
    return i == KVL_LSH_NORM || i == KVL_LSH_MEAN
               ? kvl_table_peek(m->ctx, handle, m->layer, 1, &m->rows[i])
               : kvl_table_operand(m->ctx, handle, m->layer, 1, &m->rows[i]);
}

/* Rows to write, or to read in pieces: who reads says how much (kvl_table_count).  Room for products of n_side vectors
 * and codes of n_code. */
static int lsh_rows(struct kvl_lsh_hits *m, bool write, size_t n_side, size_t n_code)
{
    size_t n_tables = (size_t)m->lsh->L;
    void *code;
    for (int32_t i = 0; i < KVL_LSH_ROWS; i++) KVL_TRY(lsh_row(m, write, i));
    KVL_TRY(kvl_scratch_get(m->ctx, n_side * n_tables * (size_t)m->lsh->K, &m->side));
    KVL_TRY(kvl_scratch_items(m->ctx, n_code * n_tables, sizeof *m->code, &code));
    m->code = code;
    return KVL_OK;
}

/* y [n][n_rows]: products of a few vectors x [n][head_dim], each row read where it lies; kvl_product packs rows first, which
 * many vectors are worth. */
static int lsh_few(const struct kvl_lsh_hits *m, const float *x, int32_t n, const float *row,
                   int32_t n_rows, float *y)
{
    int32_t d = m->ctx->shape->head_dim;
    struct kvl_weight w = { .data = row,
                            .type = KVL_W_F32,
                            .n_rows = n_rows,
                            .n_cols = d,
                            .row_bytes = (size_t)d * sizeof *row };
    if (n_rows == 0) return KVL_OK;
    return m->ctx->ops->gemv(&(struct kvl_gemv_args){ .y = y, .x = x, .w = &w, .n = n });
}

static const float *lsh_plane(const struct kvl_lsh_hits *m)
{
    return kvl_table_row(&m->rows[KVL_LSH_PLANE], 0, 0);
}

/* code [n][n_tables] of n vectors in the first n_tables tables, from their products with hyperplanes. */
static int lsh_codes(const struct kvl_lsh_hits *m, int32_t n_tables, int32_t n, uint16_t *code)
{
    return m->ctx->ops->lsh_codes(&(struct kvl_lsh_codes_args){
        .code = code, .side = m->side, .n = n, .n_tables = n_tables, .n_bits = m->lsh->K });
}

/* ---- once: tables ------------------------------------------------------------------------------ */

/* h: normal numbers (Box and Muller), the same on every machine but for the last bit of libm. */
static void lsh_planes(struct kvl_lsh_hits *m)
{
    const double turn = 2 * acos(-1.0);
    float *x = kvl_table_row_out(&m->rows[KVL_LSH_PLANE], 0, 0);
    uint64_t seed = m->lsh->seed ? (uint64_t)m->lsh->seed : m->ctx->seed;
    size_t n = (size_t)(m->lsh->L * m->lsh->K) * (size_t)m->ctx->shape->head_dim;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_mix(seed, (uint64_t)m->layer));
    for (size_t i = 0; i < n; i++) {
        double radius = sqrt(-2 * log(1 - kvl_rng_f64(&rng)));
        x[i] = (float)(radius * cos(turn * kvl_rng_f64(&rng)));
    }
}

/* Items at .. at + n - 1 of a lane. */
static int lsh_keys(const struct kvl_lsh_hits *m, int32_t kv_head, int32_t at, int32_t n,
                    float *key)
{
    return kvl_read_key_span(m->ctx, m->layer, kv_head, m->lsh->first + at, n, false, key);
}

/* mean(k) of a lane; 0 where keys are not centred. */
static int lsh_mean(const struct kvl_lsh_hits *m, int32_t kv_head, float *key, float *mean)
{
    int32_t d = m->ctx->shape->head_dim;
    double *sum;
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)d, &sum));
    memset(sum, 0, (size_t)d * sizeof *sum);
    for (int32_t at = 0; m->lsh->centre && at < m->n; at += LSH_CHUNK) {
        int32_t n = KVL_MIN(LSH_CHUNK, m->n - at);
        KVL_TRY(lsh_keys(m, kv_head, at, n, key));
        for (int32_t i = 0; i < n * d; i++) sum[i % d] += (double)key[i];
    }
    for (int32_t c = 0; c < d; c++) mean[c] = (float)(sum[c] / m->n);
    return KVL_OK;
}

/* k' = k - mean; returns its norm. */
static float lsh_centre(float *k, const float *mean, int32_t d)
{
    double square = 0;
    for (int32_t c = 0; c < d; c++) {
        k[c] -= mean[c];
        square += (double)k[c] * (double)k[c];
    }
    return (float)sqrt(square);
}

/* Codes and norms of the centred keys of a lane. */
static int lsh_hash(const struct kvl_lsh_hits *m, int32_t kv_head, float *key, const float *mean)
{
    int32_t d = m->ctx->shape->head_dim, n_planes = m->lsh->L * m->lsh->K;
    float *norm = kvl_table_row_out(&m->rows[KVL_LSH_NORM], kv_head, 0);
    for (int32_t at = 0; at < m->n; at += LSH_CHUNK) {
        int32_t n = KVL_MIN(LSH_CHUNK, m->n - at);
        KVL_TRY(lsh_keys(m, kv_head, at, n, key));
        for (int32_t i = 0; i < n; i++) norm[at + i] = lsh_centre(key + i * d, mean, d);
        KVL_TRY(kvl_product(m->ctx, key, n, lsh_plane(m), n_planes, d, m->side));
        KVL_TRY(lsh_codes(m, m->lsh->L, n, m->code + (size_t)at * (size_t)m->lsh->L));
    }
    return KVL_OK;
}

int kvl_lsh_build(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer)
{
    struct kvl_lsh_hits m = {
        .ctx = ctx, .lsh = lsh, .layer = layer, .n = kvl_lsh_hashed(ctx, lsh)
    };
    float *key;
    KVL_TRY(lsh_rows(&m, true, LSH_CHUNK, (size_t)m.n));
    KVL_TRY(kvl_scratch_get(ctx, LSH_CHUNK * (size_t)ctx->shape->head_dim, &key));
    lsh_planes(&m);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *mean = kvl_table_row_out(&m.rows[KVL_LSH_MEAN], h, 0);
        KVL_TRY(lsh_mean(&m, h, key, mean));
        KVL_TRY(lsh_hash(&m, h, key, mean));
        KVL_TRY(ctx->ops->lsh_build(
            &(struct kvl_lsh_build_args){ .start = kvl_table_row_out(&m.rows[KVL_LSH_START], h, 0),
                                          .id = kvl_table_row_out(&m.rows[KVL_LSH_ID], h, 0),
                                          .code = m.code,
                                          .n = m.n,
                                          .n_tables = lsh->L,
                                          .n_bits = lsh->K }));
    }
    return KVL_OK;
}

/* ---- collisions -------------------------------------------------------------------------------- */

int kvl_lsh_open(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer,
                 struct kvl_lsh_hits *out)
{
    size_t heads = (size_t)ctx->shape->n_heads;
    void *start, *id, *visited;
    *out = (struct kvl_lsh_hits){
        .ctx = ctx, .lsh = lsh, .layer = layer, .n = kvl_lsh_hashed(ctx, lsh)
    };
    KVL_TRY(lsh_rows(out, false, heads, heads));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *out->start, &start));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *out->id, &id));
    KVL_TRY(kvl_scratch_items(ctx, heads, sizeof *out->n_visited, &visited));
    KVL_TRY(kvl_scratch_get(ctx, heads * (size_t)out->n, &out->found));
    KVL_TRY(kvl_scratch_get(ctx, heads, &out->n_found));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)out->n, &out->mark));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)out->n, &out->pos));
    out->start = start;
    out->id = id;
    out->n_visited = visited;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        out->start[h] = kvl_table_row(&out->rows[KVL_LSH_START], h / ctx->shape->group, 0);
        out->id[h] = kvl_table_row(&out->rows[KVL_LSH_ID], h / ctx->shape->group, 0);
    }
    return KVL_OK;
}

int kvl_lsh_find(struct kvl_lsh_hits *m, const float *q, int32_t n_tables)
{
    int32_t n_heads = m->ctx->shape->n_heads;
    if (n_tables < 0 || n_tables > m->lsh->L)
        return kvl_fail(m->ctx->err, KVL_EPOLICY, "collisions in %d hash tables, want 0 to %d",
                        n_tables, m->lsh->L);
    m->n_tables = n_tables;
    KVL_TRY(lsh_few(m, q, n_heads, lsh_plane(m), n_tables * m->lsh->K, m->side));
    KVL_TRY(lsh_codes(m, n_tables, n_heads, m->code));
    return m->ctx->ops->lsh_find(&(struct kvl_lsh_find_args){ .found = m->found,
                                                              .n_found = m->n_found,
                                                              .n_visited = m->n_visited,
                                                              .code = m->code,
                                                              .start = m->start,
                                                              .id = m->id,
                                                              .n_q = n_heads,
                                                              .n = m->n,
                                                              .n_tables = n_tables,
                                                              .n_bits = m->lsh->K,
                                                              .min_hits = m->lsh->min_hits });
}

int kvl_lsh_count(const struct kvl_lsh_hits *m)
{
    const int32_t *handle = m->lsh->handle;
    int64_t entries = 0, n_heads = m->ctx->shape->n_heads, planes = m->n_tables * m->lsh->K;
    KVL_TRY(kvl_look(m->ctx)); /* the host reads what the operator wrote */
    for (int64_t h = 0; h < n_heads; h++) entries += m->n_visited[h];
    KVL_TRY(kvl_table_count(m->ctx, handle[KVL_LSH_ID], entries));
    KVL_TRY(kvl_table_count(m->ctx, handle[KVL_LSH_START], 2 * m->n_tables * n_heads));
    return kvl_table_count(m->ctx, handle[KVL_LSH_PLANE], planes * m->ctx->shape->head_dim);
}

int kvl_lsh_union(const struct kvl_lsh_hits *m, int32_t kv_head, int32_t *n_union)
{
    int32_t group = m->ctx->shape->group, n = 0;
    if (kv_head < 0 || kv_head >= m->ctx->shape->n_kv_heads)
        return kvl_fail(m->ctx->err, KVL_EPOLICY, "what kv head %d found, want 0 to %d", kv_head,
                        m->ctx->shape->n_kv_heads - 1);
    KVL_TRY(kvl_look(m->ctx));
    memset(m->mark, 0, (size_t)m->n);
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
        for (int32_t i = 0; i < m->n_found[h]; i++)
            m->mark[m->found[(size_t)h * (size_t)m->n + (size_t)i]] = 1;
    int32_t *pos = m->pos + (size_t)kv_head * (size_t)m->n;
    for (int32_t i = 0; i < m->n; i++) { /* without branches, which nobody could guess */
        pos[n] = m->lsh->first + i;
        n += m->mark[i];
    }
    *n_union = n;
    return KVL_OK;
}

/* What the last n_queries queries find in n_tables tables, summed over these and lanes. */
static int lsh_found(struct kvl_lsh_hits *m, int32_t n_queries, int32_t n_tables, float *q,
                     double *sum)
{
    *sum = 0;
    for (int32_t b = 0; b < n_queries; b++) {
        KVL_TRY(kvl_obs_window_query(m->ctx, m->layer, b, q));
        KVL_TRY(kvl_lsh_find(m, q, n_tables));
        for (int32_t h = 0, n; h < m->ctx->shape->n_kv_heads; h++) {
            KVL_TRY(kvl_lsh_union(m, h, &n));
            *sum += n;
        }
    }
    return KVL_OK;
}

/* What is found grows with the tables. */
int kvl_lsh_fit(const struct kvl_pctx *ctx, const struct kvl_lsh *lsh, int32_t layer,
                int32_t n_queries, double room, int32_t *n_tables)
{
    int32_t low = lsh->min_hits, high = lsh->L, n_kv = ctx->shape->n_kv_heads;
    struct kvl_lsh_hits m;
    double sum;
    float *q;
    n_queries = KVL_MIN(n_queries, ctx->context_tok);
    KVL_TRY(kvl_lsh_open(ctx, lsh, layer, &m));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(ctx->shape->n_heads * ctx->shape->head_dim), &q));
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        KVL_TRY(lsh_found(&m, n_queries, middle, q, &sum));
        if (sum > room * n_queries * n_kv)
            high = middle - 1;
        else
            low = middle;
    }
    *n_tables = low;
    return KVL_OK;
}

/* ---- angles ------------------------------------------------------------------------------------ */

/* cosine [n] of one query: dot [n] are its products with the keys, as they are stored. */
static void lsh_angles(const struct kvl_lsh_hits *m, int32_t kv_head, const float *q,
                       const int32_t *pos, int32_t n, const float *dot, double *cosine)
{
    const float *mean = kvl_table_row(&m->rows[KVL_LSH_MEAN], kv_head, 0);
    const float *norm = kvl_table_row(&m->rows[KVL_LSH_NORM], kv_head, 0);
    double with_mean = 0, square = 0;
    for (int32_t c = 0; c < m->ctx->shape->head_dim; c++) {
        with_mean += (double)q[c] * (double)mean[c];
        square += (double)q[c] * (double)q[c];
    }
    for (int32_t i = 0; i < n; i++) {
        double norms = sqrt(square) * (double)norm[pos[i] - m->lsh->first];
        cosine[i] = norms > 0 ? ((double)dot[i] - with_mean) / norms : 0;
    }
}

int kvl_lsh_products(const struct kvl_lsh_hits *m, int32_t kv_head, const float *q,
                     const int32_t *pos, int32_t n, float **dot)
{
    int32_t d = m->ctx->shape->head_dim, group = m->ctx->shape->group;
    float *key;
    for (int32_t i = 0; i < n; i++)
        if (pos[i] < m->lsh->first || pos[i] >= m->lsh->first + m->n)
            return kvl_fail(m->ctx->err, KVL_EPOLICY, "angle of position %d, %d to %d are hashed",
                            pos[i], m->lsh->first, m->lsh->first + m->n - 1);
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n * (size_t)d, &key));
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n * (size_t)group, dot));
    KVL_TRY(kvl_read_keys(m->ctx, m->layer, kv_head, pos, n, false, key));
    q += (size_t)(kv_head * group) * (size_t)d;
    return lsh_few(m, q, group, key, n, *dot);
}

int kvl_lsh_cosines(const struct kvl_lsh_hits *m, int32_t kv_head, const float *q,
                    const int32_t *pos, int32_t n, const float *dot, double **cosine)
{
    int32_t d = m->ctx->shape->head_dim, group = m->ctx->shape->group;
    KVL_TRY(kvl_scratch_get(m->ctx, (size_t)n * (size_t)group, cosine));
    KVL_TRY(kvl_table_count(m->ctx, m->lsh->handle[KVL_LSH_MEAN], d));
    KVL_TRY(kvl_table_count(m->ctx, m->lsh->handle[KVL_LSH_NORM], n));
    KVL_TRY(kvl_look(m->ctx));
    q += (size_t)(kv_head * group) * (size_t)d;
    for (int32_t g = 0; g < group; g++)
        lsh_angles(m, kv_head, q + g * d, pos, n, dot + (size_t)g * (size_t)n,
                   *cosine + (size_t)g * (size_t)n);
    return KVL_OK;
}
