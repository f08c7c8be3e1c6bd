/* Sparse prefill: what a policy's prefill_mask says, checked and carried out.
 *
 * A policy planned with its own prefill and with this hook gets its context as a dense prefill would,
 * chunk by chunk and layer by layer; only attention differs.  Nothing leaves the cache before the context
 * is complete: a slot is a position.  Under the mask oracle the same mask is laid over full attention, row
 * by row. */
#include "prefill_mask.h"

#include <string.h>

struct kvl_prefill_mask {
    struct kvl_session *s;
    struct kvl_err *err;
    int32_t layer, n_heads, past, n; /* the chunk: positions past .. past + n - 1 */
    struct kvl_sparse_head *head;    /* [n_heads] in the step arena, as are its lists */
    uint8_t *seen;                   /* room for the keys of a query; NULL until it is needed */
    int32_t *range; /* room of kvl_mask_slash_blocks, n_range numbers, for the length of a call */
    int64_t n_range;
};

/* ---- the builder --------------------------------------------------------------------------------- */

/* All heads read everything. */
static int mask_begin(struct kvl_prefill_mask *m)
{
    m->head = kvl_arena_get(&m->s->engine->step, (size_t)m->n_heads, sizeof *m->head);
    if (!m->head) return kvl_fail(m->err, KVL_ENOMEM, "out of memory for a prefill mask");
    for (int32_t h = 0; h < m->n_heads; h++) m->head[h] = (struct kvl_sparse_head){ .dense = true };
    return KVL_OK;
}

/* Shares nothing with the mask that is carried out but the chunk: a method may try several and ask what each captures
 * (kvl_mask_captures) before it says one. */
int kvl_mask_trial(struct kvl_prefill_mask *m, struct kvl_prefill_mask **out)
{
    struct kvl_prefill_mask *trial = kvl_arena_get(&m->s->engine->step, 1, sizeof *trial);
    if (!trial) return kvl_fail(m->err, KVL_ENOMEM, "out of memory for a prefill mask");
    *trial = *m;
    trial->seen = NULL;
    *out = trial;
    return mask_begin(trial);
}

/* The heads that a call means; from now on they read what is said. */
static int mask_heads(struct kvl_prefill_mask *m, int32_t q_head, int32_t *from, int32_t *to)
{
    if (q_head < -1 || q_head >= m->n_heads)
        return kvl_fail(m->err, KVL_EPOLICY, "query head %d, want 0 to %d or -1 for all", q_head,
                        m->n_heads - 1);
    *from = q_head < 0 ? 0 : q_head;
    *to = q_head < 0 ? m->n_heads : q_head + 1;
    for (int32_t h = *from; h < *to; h++) m->head[h].dense = false;
    return KVL_OK;
}

static int32_t *mask_memory(struct kvl_prefill_mask *m, int64_t n)
{
    int32_t *p = kvl_arena_get(&m->s->engine->step, (size_t)n + 1, sizeof *p);
    if (!p) kvl_fail(m->err, KVL_ENOMEM, "out of memory for a mask of %lld items", (long long)n);
    return p;
}

/* Lists of methods are long and made by arithmetic: order and range are checked one by one, once. */
static int mask_check(struct kvl_prefill_mask *m, const char *what, const int32_t *item, int32_t n,
                      int32_t limit)
{
    if (n < 0) return kvl_fail(m->err, KVL_EPOLICY, "%d %ss, want 0 or more", n, what);
    for (int32_t i = 0; i < n; i++) {
        if (item[i] < 0 || item[i] >= limit)
            return kvl_fail(m->err, KVL_EPOLICY, "%s %d, want 0 to %d", what, item[i], limit - 1);
        if (i > 0 && item[i] <= item[i - 1])
            return kvl_fail(m->err, KVL_EPOLICY, "%s %d after %d, want ascending and unique", what,
                            item[i], item[i - 1]);
    }
    return KVL_OK;
}

/* Scratch of the hook ends with it; attention comes after. */
static const int32_t *mask_copy(struct kvl_prefill_mask *m, const int32_t *item, int32_t n)
{
    int32_t *copy = mask_memory(m, n);
    if (copy && n > 0) memcpy(copy, item, (size_t)n * sizeof *copy);
    return copy;
}

/* One list of a head, as it is and with n more ascending items; a head's first list is the one that all
 * heads of the call share. */
static int mask_unite(struct kvl_prefill_mask *m, const int32_t **list, int32_t *n_list,
                      const int32_t *item, int32_t n)
{
    if (*n_list == 0) {
        *list = item;
        *n_list = n;
        return KVL_OK;
    }
    int32_t *to = mask_memory(m, (int64_t)*n_list + n), k = 0;
    if (!to) return KVL_ENOMEM;
    for (int32_t i = 0, j = 0; i < *n_list || j < n; k++) {
        bool first = j == n || (i < *n_list && (*list)[i] <= item[j]);
        to[k] = first ? (*list)[i] : item[j];
        /* Both sides go past what was taken: an item that both have comes once. */
        while (i < *n_list && (*list)[i] <= to[k]) i++;
        while (j < n && item[j] <= to[k]) j++;
    }
    *list = to;
    *n_list = k;
    return KVL_OK;
}

/* Several windows of a head are the largest of them. */
int kvl_mask_window(struct kvl_prefill_mask *m, int32_t q_head, int32_t sink, int32_t window)
{
    int32_t from = 0, to = 0;
    if (sink < 0 || window < 0)
        return kvl_fail(m->err, KVL_EPOLICY, "a sink of %d and a window of %d, want 0 or more",
                        sink, window);
    KVL_TRY(mask_heads(m, q_head, &from, &to));
    for (int32_t h = from; h < to; h++) {
        m->head[h].sink = KVL_MAX(m->head[h].sink, sink);
        m->head[h].window = KVL_MAX(m->head[h].window, window);
    }
    return KVL_OK;
}

/* All heads of a call share one copy until one of them gets more. */
int kvl_mask_vertical_slash(struct kvl_prefill_mask *m, int32_t q_head, const int32_t *vertical,
                            int32_t n_vertical, const int32_t *slash, int32_t n_slash)
{
    int32_t from = 0, to = 0, end = m->past + m->n;
    KVL_TRY(mask_check(m, "column", vertical, n_vertical, end));
    KVL_TRY(mask_check(m, "diagonal", slash, n_slash, end));
    KVL_TRY(mask_heads(m, q_head, &from, &to));
    const int32_t *v = mask_copy(m, vertical, n_vertical), *s = mask_copy(m, slash, n_slash);
    if (!v || !s) return KVL_ENOMEM;
    for (int32_t h = from; h < to; h++) {
        struct kvl_sparse_head *p = &m->head[h];
        KVL_TRY(mask_unite(m, &p->column, &p->n_columns, v, n_vertical));
        KVL_TRY(mask_unite(m, &p->distance, &p->n_distances, s, n_slash));
    }
    return KVL_OK;
}

/* As columns, plus the chunk itself, which is read causally. */
int kvl_mask_tokens(struct kvl_prefill_mask *m, int32_t q_head, const int32_t *pos, int32_t n)
{
    int32_t from = 0, to = 0;
    KVL_TRY(mask_check(m, "position before the chunk", pos, n, m->past));
    KVL_TRY(mask_heads(m, q_head, &from, &to));
    const int32_t *copy = mask_copy(m, pos, n);
    if (!copy) return KVL_ENOMEM;
    for (int32_t h = from; h < to; h++) {
        m->head[h].chunk = true;
        KVL_TRY(mask_unite(m, &m->head[h].column, &m->head[h].n_columns, copy, n));
    }
    return KVL_OK;
}

/* Lists for blocks of block_tok queries. */
static int mask_check_lists(struct kvl_prefill_mask *m, int32_t block_tok, const int32_t *off,
                            int32_t n_blocks)
{
    int32_t want = block_tok < 1 ? 0 : m->n / block_tok + (m->n % block_tok != 0);
    if (block_tok < 1 || n_blocks != want || off[0] != 0)
        return kvl_fail(m->err, KVL_EPOLICY,
                        "lists for %d blocks of %d queries, the first from %d on: want %d, from 0",
                        n_blocks, block_tok, block_tok < 1 ? 0 : off[0], want);
    for (int32_t b = 0; b < n_blocks; b++)
        if (off[b + 1] < off[b])
            return kvl_fail(m->err, KVL_EPOLICY, "the list of query block %d ends before it begins",
                            b);
    return KVL_OK;
}

/* Gives the blocks or ranges of `lists` to heads from .. to - 1. */
static int mask_lists(struct kvl_prefill_mask *m, int32_t from, int32_t to,
                      const struct kvl_sparse_head *lists)
{
    if (!lists->block_off || !lists->block) return KVL_ENOMEM;
    for (int32_t h = from; h < to; h++) {
        struct kvl_sparse_head *p = &m->head[h];
        /* One block size per head: kernels walk one list of blocks, and two could not be merged. */
        if (p->block_tok > 0)
            return kvl_fail(m->err, KVL_EPOLICY, "blocks of query head %d are given twice", h);
        p->ranges = lists->ranges;
        p->block_tok = lists->block_tok;
        p->block_off = lists->block_off;
        p->block = lists->block;
    }
    return KVL_OK;
}

int kvl_mask_blocks(struct kvl_prefill_mask *m, int32_t q_head, int32_t block_tok,
                    const int32_t *off, const int32_t *block, int32_t n_blocks)
{
    int32_t from = 0, to = 0;
    KVL_TRY(mask_check_lists(m, block_tok, off, n_blocks));
    for (int32_t b = 0; b < n_blocks; b++) {
        int32_t last = m->past + KVL_MIN(m->n, (b + 1) * block_tok) - 1;
        KVL_TRY(mask_check(m, "block", block + off[b], off[b + 1] - off[b], last / block_tok + 1));
    }
    KVL_TRY(mask_heads(m, q_head, &from, &to));
    return mask_lists(m, from, to,
                      &(struct kvl_sparse_head){
                          .block_tok = block_tok,
                          .block_off = mask_copy(m, off, n_blocks + 1),
                          .block = mask_copy(m, block, off[n_blocks]),
                      });
}

/* Ranges of one block of queries, which are to end before slot `limit`. */
static int mask_check_ranges(struct kvl_prefill_mask *m, const int32_t *range, int32_t n,
                             int32_t limit)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t first = range[2 * i], last = range[2 * i + 1];
        if (first < 0 || last <= first || last > limit)
            return kvl_fail(m->err, KVL_EPOLICY, "range %d .. %d - 1, want positions 0 to %d",
                            first, last, limit - 1);
        if (i > 0 && first <= range[2 * i - 1])
            return kvl_fail(m->err, KVL_EPOLICY, "range from %d on after one up to %d, want a gap",
                            first, range[2 * i - 1] - 1);
    }
    return KVL_OK;
}

/* Kernels read ranges one after the other and count on a gap between them. */
int kvl_mask_ranges(struct kvl_prefill_mask *m, int32_t q_head, int32_t block_tok,
                    const int32_t *off, const int32_t *range, int32_t n_blocks)
{
    int32_t from = 0, to = 0;
    KVL_TRY(mask_check_lists(m, block_tok, off, n_blocks));
    for (int32_t b = 0; b < n_blocks; b++)
        KVL_TRY(mask_check_ranges(m, range + 2 * (size_t)off[b], off[b + 1] - off[b],
                                  m->past + KVL_MIN(m->n, (b + 1) * block_tok)));
    KVL_TRY(mask_heads(m, q_head, &from, &to));
    return mask_lists(m, from, to,
                      &(struct kvl_sparse_head){
                          .ranges = true,
                          .block_tok = block_tok,
                          .block_off = mask_copy(m, off, n_blocks + 1),
                          .block = mask_copy(m, range, 2 * off[n_blocks]),
                      });
}

/* Ranges of keys for the `block` queries from position `start` on, of `limit` keys in all: range [.][2], ascending,
 * apart, start / block + 1 at most.  Farthest diagonals first; one that does not go on from the range before begins
 * another.  Returns their number. */
static int32_t mask_slash_ranges(const int32_t *slash, int32_t n_slash, int32_t block,
                                 int32_t start, int32_t limit, int32_t *range)
{
    int32_t end = start + block, n_ranges = 0, last = 0; /* where the latest range ends */
    for (int32_t i = n_slash - 1; i >= 0; i--) {
        int32_t to = KVL_MAX(block, end - slash[i]);
        if (slash[i] >= end) continue;
        if (n_ranges == 0 || to > last + block) {
            range[2 * n_ranges++] = to - block;
            last = to;
        } else if (to > last) {
            last += block;
        }
        range[2 * n_ranges - 1] = KVL_MIN(last, KVL_MIN(limit, end));
    }
    return n_ranges;
}

/* Room for n numbers, the same for every head. */
static int32_t *mask_room(struct kvl_prefill_mask *m, int64_t n)
{
    if (n > m->n_range) {
        m->range = mask_memory(m, n);
        m->n_range = m->range ? n : 0;
    }
    return m->range;
}

/* More keys than the diagonals themselves: a kernel computes whole blocks, and what it computes counts as read, so that
 * the mask is what MInference's kernel sees and not what its paper draws. */
int kvl_mask_slash_blocks(struct kvl_prefill_mask *m, int32_t q_head, int32_t block_tok,
                          const int32_t *slash, int32_t n_slash)
{
    int32_t end = m->past + m->n;
    if (block_tok < 1)
        return kvl_fail(m->err, KVL_EPOLICY, "diagonals in blocks of %d, want 1 or more",
                        block_tok);
    KVL_TRY(mask_check(m, "diagonal", slash, n_slash, end));
    int32_t n_blocks = (m->n + block_tok - 1) / block_tok, n = 0;
    int32_t *off = mask_memory(m, (int64_t)n_blocks + 1);
    int32_t *range = mask_room(m, (int64_t)2 * (end / block_tok + 1) * n_blocks);
    if (!off || !range) return KVL_ENOMEM;
    for (int32_t b = off[0] = 0; b < n_blocks; b++) {
        n += mask_slash_ranges(slash, n_slash, block_tok, m->past + b * block_tok, end,
                               range + 2 * (size_t)n);
        off[b + 1] = n;
    }
    return kvl_mask_ranges(m, q_head, block_tok, off, range, n_blocks);
}

/* ---- what a hook may ask --------------------------------------------------------------------------- */

/* Exact and expensive, so it is counted: a method that asks for many of them saves little. */
int kvl_mask_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q, int32_t i, float *probs, int32_t n)
{
    struct kvl_session *s = ctx->host->session;
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = ctx->shape;
    if (ctx->host->phase != HOOK_MASK)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "weights of a chunk's queries: in prefill_mask only");
    if (i < 0 || i >= step->n_tok || n != step->pos + i + 1)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "weights of query %d over %d positions, the chunk has %d from %d on", i, n,
                        step->n_tok, step->pos);
    int32_t layer = kvl_layer_of(ctx, step->layer);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    /* Pairs that are only scored are kept apart from those that attention computes. */
    s->count.prefill_scored_pairs += (int64_t)n * sh->n_heads;
    size_t row = (size_t)sh->n_heads * (size_t)sh->head_dim;
    return kvl_lane_probs(e, e->now, layer, q->q + (size_t)i * row, probs, n);
}

/* ---- attention ---------------------------------------------------------------------------------------- */

static int mask_ask(const struct kvl_forward *f, int32_t layer, struct kvl_prefill_mask *m)
{
    struct kvl_engine *e = f->e;
    struct kvl_session *s = m->s;
    struct kvl_query q = { .q = e->q, .q_raw = e->q_raw, .x = e->xn };
    struct kvl_step step = { .layer = layer, .index = -1, .pos = m->past, .n_tok = m->n };
    return kvl_call_prefill_mask(s, &step, &q, m, f->err);
}

/* Marks what the query at slot i reads. */
static void oracle_mark(const struct kvl_prefill_mask *m, const struct kvl_sparse_head *h,
                        int32_t i, uint8_t *seen)
{
    size_t n = (size_t)i + 1, past = (size_t)m->past;
    memset(seen, h->dense, n);
    memset(seen, 1, KVL_MIN(n, (size_t)h->sink));
    for (int32_t d = 0; d < h->window && d <= i; d++) seen[i - d] = 1;
    for (int32_t c = 0; c < h->n_columns && h->column[c] <= i; c++) seen[h->column[c]] = 1;
    for (int32_t d = 0; d < h->n_distances && h->distance[d] <= i; d++)
        seen[i - h->distance[d]] = 1;
    if (h->chunk) memset(seen + past, 1, n - past);
    int32_t b = h->block_tok > 0 ? (i - m->past) / h->block_tok : 0;
    for (int32_t k = h->block_tok > 0 ? h->block_off[b] : 0;
         h->block_tok > 0 && k < h->block_off[b + 1]; k++) {
        int32_t first = h->ranges ? h->block[2 * k] : h->block[k] * h->block_tok;
        int32_t end = h->ranges ? h->block[2 * k + 1] : first + h->block_tok;
        for (int32_t j = first; j < end && j <= i; j++) seen[j] = 1;
    }
    /* Every query reads its own token, as the operator does: a row without any would have no
     * softmax. */
    seen[i] = 1;
}

int kvl_mask_captures(struct kvl_prefill_mask *m, int32_t i, const float *probs, float *captured)
{
    int32_t n = m->past + i + 1;
    if (i < 0 || i >= m->n)
        return kvl_fail(m->err, KVL_EPOLICY, "what query %d captures, the chunk has %d", i, m->n);
    if (!m->seen) m->seen = kvl_arena_get(&m->s->engine->step, (size_t)(m->past + m->n), 1);
    if (!m->seen) return kvl_fail(m->err, KVL_ENOMEM, "out of memory for a mask's keys");
    for (int32_t h = 0; h < m->n_heads; h++, probs += n) {
        oracle_mark(m, &m->head[h], n - 1, m->seen);
        captured[h] = 0;
        for (int32_t j = 0; j < n; j++) captured[h] += m->seen[j] ? probs[j] : 0;
    }
    return KVL_OK;
}

/* The mask oracle: full attention of every row under its mask. */
static int mask_oracle(const struct kvl_forward *f, const struct kvl_prefill_mask *m,
                       int64_t *n_pairs)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    uint8_t *seen = kvl_arena_get(&e->step, (size_t)m->past + (size_t)m->n, 1);
    float lse;
    if (!seen) return KVL_ENOMEM;
    for (int32_t r = 0; r < m->n * m->n_heads; r++) {
        int32_t i = m->past + r / m->n_heads, h = r % m->n_heads;
        size_t at = (size_t)r * (size_t)sh->head_dim;
        oracle_mark(m, &m->head[h], i, seen);
        for (int32_t j = 0; j <= i; j++) *n_pairs += seen[j];
        KVL_TRY(e->now->attn_masked(
            &(struct kvl_attn_masked_args){ .out = e->att + at,
                                            .lse = &lse,
                                            .q = e->q + at,
                                            .lane = &e->lanes[h / kvl_group(sh)],
                                            .mask = seen,
                                            .n_slots = i + 1,
                                            .n_heads = 1,
                                            .head_dim = sh->head_dim,
                                            .scale = e->scale,
                                            .cap = e->cap }));
    }
    return KVL_OK;
}

/* Pairs and reads are counted by the operator, which alone knows what blocks it touched. */
static int mask_sparse(const struct kvl_forward *f, const struct kvl_prefill_mask *m,
                       int64_t *n_pairs, int64_t *n_reads)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    return e->ops->attn_prefill_sparse(
        &(struct kvl_attn_prefill_sparse_args){ .out = e->att,
                                                .q = e->q,
                                                .lanes = e->lanes,
                                                .head = m->head,
                                                .n = m->n,
                                                .n_heads = sh->n_heads,
                                                .n_kv_heads = sh->n_kv_heads,
                                                .head_dim = sh->head_dim,
                                                .scale = e->scale,
                                                .cap = e->cap,
                                                .bf16 = kvl_prefills_bf16(e),
                                                .n_pairs = n_pairs,
                                                .n_reads = n_reads });
}

/* No head says anything: the operator that needs no lists. */
static int mask_dense(const struct kvl_forward *f, const struct kvl_prefill_mask *m,
                      int64_t all_pairs, int64_t *n_pairs, int64_t *n_reads)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    *n_pairs += all_pairs;
    /* Counted as the sparse operator counts: the queries of a tile fetch their keys together, up to
     * the tile's end. */
    for (int32_t i = m->past, end = m->past + m->n, next; i < end; i = next) {
        next = KVL_MIN(end, (i / KVL_PREFILL_TILE + 1) * KVL_PREFILL_TILE);
        *n_reads += (int64_t)next * sh->n_kv_heads;
    }
    return e->ops->attn_prefill(&(struct kvl_attn_prefill_args){ .out = e->att,
                                                                 .q = e->q,
                                                                 .lanes = e->lanes,
                                                                 .n = m->n,
                                                                 .n_heads = sh->n_heads,
                                                                 .n_kv_heads = sh->n_kv_heads,
                                                                 .head_dim = sh->head_dim,
                                                                 .scale = e->scale,
                                                                 .cap = e->cap,
                                                                 .bf16 = kvl_prefills_bf16(e) });
}

/* Heads that were not named read everything; where none was, the dense operator is faster and gives the same
 * bits. */
static int mask_attend(const struct kvl_forward *f, const struct kvl_prefill_mask *m)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    struct kvl_counters *c = &m->s->count;
    /* past + 1 pairs for the first query of the chunk, past + n for the last, in every head. */
    int64_t all = ((int64_t)2 * m->past + m->n + 1) * m->n / 2 * m->n_heads, n_reads = 0;
    bool dense = true;
    int rc;
    for (int32_t h = 0; h < m->n_heads; h++) dense = dense && m->head[h].dense;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(m->s->seq, m->layer, h);
    c->prefill_dense_pairs += all;
    if (dense)
        rc = mask_dense(f, m, all, &c->prefill_pairs, &n_reads);
    else if (m->s->exec == KVL_EXEC_MASKED)
        rc = mask_oracle(f, m, &c->prefill_pairs);
    else
        rc = mask_sparse(f, m, &c->prefill_pairs, &n_reads);
    c->prefill_read_bytes += n_reads * kvl_token_bytes(&m->s->ctx);
    e->pending = true;
    return kvl_engine_failed(e, "sparse prefill attention", rc, f->err);
}

/* Rows for the chunk's tokens in the policy's tables, token by token: a live table adds one row at
 * each call. */
static void mask_tables(const struct kvl_forward *f, struct kvl_session *s, int32_t layer)
{
    for (int32_t i = 0; i < f->n; i++)
        for (int32_t t = 0; t < s->planned->p.n_tables; t++)
            kvl_row_table_append(s->host.table[t], layer, f->e->pos[i] + 1);
}

/* The chunk has rows in the tables before the hook runs, as in a step.  Observers get no log-sum-exp: that of a masked
 * row is not over all keys, which is what they are asked about. */
int kvl_prefill_masked(const struct kvl_forward *f, int32_t layer)
{
    struct kvl_engine *e = f->e;
    struct kvl_session *s = e->row[0].s;
    struct kvl_prefill_mask m = { .s = s,
                                  .err = f->err,
                                  .layer = layer,
                                  .n_heads = e->model->shape.n_heads,
                                  .past = e->pos[0],
                                  .n = f->n };
    KVL_TRY(kvl_step_reset(e, f->err));
    KVL_TRY(mask_begin(&m));
    mask_tables(f, s, layer);
    KVL_TRY(mask_ask(f, layer, &m));
    KVL_TRY(mask_attend(f, &m));
    if (s->planned->p.observers.window == 0) return KVL_OK;
    return kvl_engine_failed(e, "observers", kvl_observers_add(e, s->obs, layer, e->q, NULL, f->n),
                             f->err);
}
