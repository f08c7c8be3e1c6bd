/* kvl/table.h - tables of a policy: declare, write, read, count, score.
 *
 * Part of kvl/policy.h.  A table has rows for every (layer, kv head); the engine grows it as tokens come, copies
 * it when a sequence forks and counts its bytes as metadata. */
#ifndef KVL_POLICY_TABLE_H
#define KVL_POLICY_TABLE_H

#include "kvl/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_pctx;
struct kvl_plan;
struct kvl_step;

/* ---- plan ------------------------------------------------------------------------------------ */

enum kvl_meta_unit {
    KVL_META_PAGE = 1, /* one row per `unit_tok` positions: row = position / unit_tok */
    /* One row per live token of a lane, in the order of positions: the engine adds a row of zeros for
     * every token that comes and takes out those of evicted ones.  unit_tok is 1.  Rows lie by column:
     * element c of row i is at c * column_stride + i. */
    KVL_META_LIVE = 2,
    /* One row per lane, of any length (codebooks, sorted tables, low-rank factors); unit_tok is 1. */
    KVL_META_LANE = 3,
};

#define KVL_MAX_META 8

/* Declares a table of `row_elems` floats per (layer, kv head) and unit, grown by the engine as
 * tokens come; *out is its handle.  Counted as metadata bytes. */
KVL_API int kvl_plan_meta(struct kvl_plan *plan, enum kvl_meta_unit unit, int32_t unit_tok,
                          int32_t row_elems, int32_t *out);
enum kvl_meta_elem {
    KVL_META_F32 = 0,
    KVL_META_KEY, /* the element type of the store: exact for what stored keys hold (minima, copies).
                     Of a store in q8_0: f16, to which such numbers are rounded */
    KVL_META_I32,
    KVL_META_U8,
};
/* The same for other elements, for some layers only, or with one row per layer and unit instead of one
 * per kv head: kvl_meta of another layer is an error, and only what exists is counted. */
struct kvl_meta_desc {
    enum kvl_meta_unit unit;
    int32_t unit_tok, row_elems;
    enum kvl_meta_elem elem;
    const uint8_t *layers; /* [n_layers], non-zero = has rows; NULL = all.  Copied */
    bool per_layer;        /* head_stride is 0: every kv head sees the layer's rows */
};
KVL_API int kvl_plan_meta_desc(struct kvl_plan *plan, const struct kvl_meta_desc *desc,
                               int32_t *out);
/* The same in one line: kvl_plan_table(plan, &o->codes, .unit = KVL_META_PAGE, .unit_tok = 1, ...). */
#define kvl_plan_table(plan, out, ...)                                                             \
    kvl_plan_meta_desc(plan, &(struct kvl_meta_desc){ __VA_ARGS__ }, out)

/* ---- rows ------------------------------------------------------------------------------------ */

/* A table declared in plan: rows of kv head h start at data + h * head_stride; rows for all positions
 * appended so far are there.  KVL_EPOLICY when the handle is wrong, or the layer has no rows.
 *
 * Relatives (forks, sessions at other budgets) share rows until one of them writes.  kvl_meta gives
 * all rows in one piece, to write anywhere: what is shared of the layer is copied whole.  A method
 * whose rows stay as they are once their tokens are past writes through kvl_meta_from and reads
 * through kvl_table_read, and pays for the rows that it writes.  No pointer outlives the hook, nor the
 * next of these calls for the same table and layer. */
struct kvl_meta_view {
    float *base; /* of a table of floats; NULL for another */
    void *data;  /* of any table: elements of `elem` */
    enum kvl_meta_elem elem;
    enum kvl_kv_type type; /* of KVL_META_F32 and KVL_META_KEY */
    size_t head_stride;    /* elements */
    size_t column_stride;  /* elements; of a live table */
    int32_t n_rows;        /* of a live table: of its longest lane */
};
/* Every call counts its rows as read in a hook that selects; in one that evicts, those of live
 * tokens. */
KVL_API int kvl_meta(const struct kvl_pctx *ctx, int32_t handle, int32_t layer,
                     struct kvl_meta_view *out);
/* The same, but the first n_rows rows of every kv head are counted as read, in whichever hook. */
KVL_API int kvl_meta_read(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_view *out);
/* Rows `first` and up, to write: row `first` is at data.  Not counted. */
KVL_API int kvl_meta_from(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t first,
                          struct kvl_meta_view *out);
/* Rows in two pieces one after the other, either of which may be empty. */
struct kvl_meta_part {
    const void *data; /* elements of `elem` */
    enum kvl_meta_elem elem;
    enum kvl_kv_type type; /* of KVL_META_F32 and KVL_META_KEY */
    size_t head_stride;    /* elements */
    int32_t n_rows;
};
/* The first n_rows rows, to read single elements of them (some channels, some buckets): nothing is counted,
 * and kvl_meta_count says how many were read, of all kv heads together. */
KVL_API int kvl_meta_peek(const struct kvl_pctx *ctx, int32_t handle, int32_t layer, int32_t n_rows,
                          struct kvl_meta_part out[2]);
KVL_API int kvl_meta_count(const struct kvl_pctx *ctx, int32_t handle, int64_t n_elems);

/* Rows of a layer, wherever they lie. */
struct kvl_rows {
    struct {
        void *data;
        size_t head_bytes; /* from one kv head to the next; 0 where they share rows */
        int32_t n_rows;
    } part[2]; /* one after the other; either may be empty */
    size_t row_bytes;
    int32_t n_rows, row_elems;
    enum kvl_meta_elem elem;
    enum kvl_kv_type type; /* of KVL_META_F32 and KVL_META_KEY */
};
/* The first n_rows rows of every kv head, to read; counted as read, in whichever hook. */
KVL_API int kvl_table_read(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);
/* The same, not counted: kvl_meta_count says what was read. */
KVL_API int kvl_table_peek(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);
/* The same for operators alone: on a device the rows stay there, and the host may look at none of them. */
KVL_API int kvl_table_lend(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);
/* Rows `first` and up, to write; row 0 of `out` is row `first` of the table.  Not counted. */
KVL_API int kvl_table_write(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                            struct kvl_rows *out);
/* The same for operators alone. */
KVL_API int kvl_table_lend_from(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                                int32_t first, struct kvl_rows *out);
/* One row of one kv head: [row_elems].  A row and the next of the same kv head lie side by side where they were
 * got by kvl_table_write. */
KVL_API const void *kvl_table_row(const struct kvl_rows *rows, int32_t kv_head, int32_t row);
KVL_API void *kvl_table_row_out(const struct kvl_rows *rows, int32_t kv_head, int32_t row);

/* ---- tables of live tokens --------------------------------------------------------------------- */

/* In prefilled: scores of live tokens begin as what every token of the context received (KVL_OBS_COLUMNS of all
 * queries), a column for each query head of a group. */
KVL_API int kvl_live_begin(const struct kvl_pctx *ctx, int32_t table, int32_t layer);
/* Adds what observe got, weights probs [n_heads] -> [n], to the scores of live tokens: per_head: each query head of a
 * group has a column of its own, else they share column 0.  Before, these columns are multiplied by *factor; NULL = 1. */
KVL_API int kvl_live_add(const struct kvl_pctx *ctx, int32_t table, int32_t layer, bool per_head,
                         const float *const *probs, const int32_t *n, const float *factor);
/* *score [n_kv_heads][n] in scratch: the first n_columns columns of all n live tokens of a layer whose lanes hold as
 * many, reduced to one for each kv head. */
KVL_API int kvl_live_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                            int32_t n_columns, int32_t n, enum kvl_reduce reduce, float **score);
/* Column `column` of a lane: elements of the live tokens, in the order of positions.  Of a view by kvl_meta. */
KVL_API float *kvl_live_column(const struct kvl_meta_view *view, int32_t kv_head, int32_t column);

/* ---- tables as operands ------------------------------------------------------------------------ */

/* score = scale q . row: list l multiplies rows of kv head l / (n_lists / n_kv_heads).  All of n_rows rows are
 * counted as read. */
struct kvl_table_scores {
    int32_t table, layer, n_rows;
    const float *q; /* [n_lists][elems] */
    int32_t
        n_lists; /* a multiple of n_kv_heads: n_heads with a vector per query head, n_kv_heads with one
                           per kv head; 0 = n_heads */
    int32_t first_elem; /* of a row, where the vector begins */
    int32_t elems;      /* length of the vector; 0 = row_elems */
    float scale;        /* 0 = 1 */
    bool gemm;    /* products of ops->gemm, whose sums have another order than those of gemv */
    float *score; /* out [n_lists][n_rows] */
};
KVL_API int kvl_table_scores(const struct kvl_pctx *ctx, const struct kvl_table_scores *s);
/* best [k or n]: of the first n units, whose rows are a vector for each query head of a group, the k with the largest
 * sum of q . vector over all query heads of the layer, ascending (ties: the lower); all of them, and nothing is read,
 * when there are not more.  A trace is told the scores. */
struct kvl_table_best {
    int32_t table, first_tok; /* of the first unit */
    int32_t n, k;
    const float *q; /* [n_heads][head_dim] */
};
KVL_API int kvl_table_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_table_best *b, int32_t *best);
/* Rows of a minimum and a maximum of keys [2][head_dim], one per unit: keys k [step->n_tok][n_kv_heads][head_dim]
 * of this step go in. */
KVL_API int kvl_table_minmax(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                             const float *k);
/* Rows of floats, one per unit, of one vector [head_dim] or several that are the same: the sum of the keys k (as
 * above) of every `every`-th token of a unit, from its first on; with `mean` their mean, once the unit is full.  The
 * first takes the place of what the row held. */
KVL_API int kvl_table_key_sums(const struct kvl_pctx *ctx, int32_t table,
                               const struct kvl_step *step, const float *k, int32_t every,
                               bool mean);
/* Rows that begin with a vector [head_dim] for each query head of a group, of floats: the mean, or the sum, of those
 * k keys of a unit, or all, whose scores are the largest (ties: the lower position).  All keys of the units are
 * read, once per kv head. */
struct kvl_table_top_keys {
    int32_t table, layer;
    int32_t row, n;              /* rows to write: row .. row + n - 1 */
    int32_t first_tok, unit_tok; /* of the first of these units; live positions */
    int32_t k;
    bool raw, sum;      /* keys before RoPE; the sum */
    const float *score; /* of query head h and token first_tok + i: [h * stride + i] */
    size_t stride;
};
KVL_API int kvl_table_top_keys(const struct kvl_pctx *ctx, const struct kvl_table_top_keys *t);
/* y [n][row_elems / n_cols]: products of n vectors x [n][n_cols] with the rows of the matrix
 * [row_elems / n_cols][n_cols] of floats that row 0 of a kv head is; by ops->gemv. */
KVL_API int kvl_table_product(const struct kvl_pctx *ctx, const struct kvl_rows *rows,
                              int32_t kv_head, int32_t n_cols, const float *x, int32_t n, float *y);
/* Keys in 4 bits: rows of KVL_KEY4_BYTES(head_dim) bytes, one per position.  Keys k [step->n_tok][n_kv_heads]
 * [head_dim] of this step go in. */
KVL_API int kvl_table_key4(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                           const float *k);
/* logit [group][n] = q . key / sqrt(d) of the query heads q [n_heads][head_dim] of a kv head and its keys at n
 * ascending positions; these alone are counted as read. */
KVL_API int kvl_table_key4_logits(const struct kvl_pctx *ctx, int32_t table,
                                  const struct kvl_step *step, int32_t kv_head, const float *q,
                                  const int32_t *pos, int32_t n, float *logit);
/* Product quantisation: the rows of `codes` are bytes [n_sub], one for each piece of a key; a lane's row of
 * `centroids` is [n_sub][n_codes][head_dim / n_sub].  score [n_heads][n] = scale q . (the centroids of its codes), of
 * the n rows from `first` on; what lies before counts as read too. */
struct kvl_table_codes {
    int32_t codes, centroids, layer, first, n, n_sub, n_codes;
    const float *q; /* [n_heads][head_dim] */
    float scale;
    float *score; /* out */
};
KVL_API int kvl_table_code_scores(const struct kvl_pctx *ctx, const struct kvl_table_codes *c);
/* Boxes in a table of live tokens, whose rows have KVL_BOX_ELEMS floats or stored keys: of box_tok consecutive tokens
 * of a lane the minimum and the maximum of their keys, per channel.  Boxes first .. first + n - 1 get those of tokens
 * pos [(first + n) * box_tok], live positions, ascending. */
#define KVL_BOX_ELEMS(head_dim, box_tok) ((2 * (head_dim) + (box_tok)-1) / (box_tok))
KVL_API int kvl_table_boxes(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                            int32_t kv_head, int32_t box_tok, const int32_t *pos, int32_t first,
                            int32_t n);
/* score [n_heads][n] of the first n boxes of every kv head by n_channels channels of the queries q
 * [n_heads][head_dim] (kvl_box_scores_args): these alone are counted as read.  box_tok is 16 at most. */
KVL_API int kvl_table_box_scores(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                                 int32_t box_tok, int32_t n, int32_t n_channels, const float *q,
                                 float *score);
/* Upper bounds of q . k for the first n_rows units of a table of kvl_table_minmax (Quest): bound [lists][n_rows], a
 * list for every kv head, or vector of q with KVL_REDUCE_NONE.  Vector l meets the boxes of kv head
 * l / (n_lists / n_kv_heads). */
struct kvl_table_bounds {
    int32_t table, layer, n_rows;
    const float *q; /* [n_lists][row_elems / 2] */
    /* A multiple of n_kv_heads, where rows are boxes [2][row_elems / 2] of another length than a key's; 0 =
     * n_heads, of keys */
    int32_t n_lists;
    enum kvl_reduce reduce;
    float *bound; /* out */
};
KVL_API int kvl_table_bounds(const struct kvl_pctx *ctx, const struct kvl_table_bounds *b);

#ifdef __cplusplus
}
#endif

#endif
