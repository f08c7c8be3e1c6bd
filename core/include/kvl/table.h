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

enum kvl_table_unit {
    KVL_UNIT_PAGE = 1, /* one row per `unit_tok` positions: row = position / unit_tok */
    /* One row per live token of a lane, in the order of positions: the engine adds a row of zeros for
     * every token that comes and takes out those of evicted ones.  unit_tok is 1.  Rows lie by column. */
    KVL_UNIT_LIVE = 2,
    /* One row per lane, of any length (codebooks, sorted tables, low-rank factors); unit_tok is 1. */
    KVL_UNIT_LANE = 3,
};
enum kvl_table_elem {
    KVL_ELEM_F32 = 0,
    KVL_ELEM_KEY, /* the element type of the store: exact for what stored keys hold (minima, copies).
                     Of a store in q8_0: f16, to which such numbers are rounded */
    KVL_ELEM_I32,
    KVL_ELEM_U8,
};

#define KVL_MAX_TABLES 8

struct kvl_table_desc {
    enum kvl_table_unit unit;
    int32_t unit_tok, row_elems;
    enum kvl_table_elem elem;
    const uint8_t *layers; /* [n_layers], non-zero = has rows; NULL = all.  Copied */
    bool per_layer;        /* one row per unit and layer, which every kv head sees */
};
/* Declares a table with rows per unit, layer and kv head; *out is its handle.  Counted as metadata bytes: only what
 * exists is.  In one line: kvl_plan_table(plan, &o->codes, .unit = KVL_UNIT_PAGE, .unit_tok = 1, ...). */
KVL_API int kvl_plan_table_desc(struct kvl_plan *plan, const struct kvl_table_desc *desc,
                                int32_t *out);
#define kvl_plan_table(plan, out, ...)                                                             \
    kvl_plan_table_desc(plan, &(struct kvl_table_desc){ __VA_ARGS__ }, out)

/* ---- rows ------------------------------------------------------------------------------------ */

/* Rows of a layer, wherever they lie; those for all positions appended so far are there.  No pointer outlives the
 * hook, nor the next of these calls for the same table and layer.  KVL_EPOLICY: the handle is wrong, or the layer has
 * no rows, or not as many.
 *
 * Relatives (forks, sessions at other budgets) share rows until one of them writes.  A method whose rows stay as they
 * are once their tokens are past writes from the first of them that changes, and pays for what it writes. */
struct kvl_rows {
    struct {
        void *data;
        size_t head_bytes; /* from one kv head to the next; 0 where they share rows */
        int32_t n_rows;
    } part[2]; /* one after the other; either may be empty */
    size_t row_bytes, elem_bytes;
    size_t
        column_bytes; /* of a table of live tokens: from one element of a row to the next; else 0 */
    int32_t n_rows;   /* of live tokens: of the longest lane */
    int32_t row_elems;
    enum kvl_table_unit unit;
    int32_t unit_tok;
    enum kvl_table_elem elem;
    enum kvl_kv_type type; /* of KVL_ELEM_F32 and KVL_ELEM_KEY */
};
/* The first n_rows rows of every kv head, to read; counted as read, in whichever hook. */
KVL_API int kvl_table_read(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);
/* The same, to read single elements of them (some channels, some buckets): nothing is counted, and kvl_table_count says
 * how many were read, of all kv heads together. */
KVL_API int kvl_table_peek(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out);
KVL_API int kvl_table_count(const struct kvl_pctx *ctx, int32_t table, int64_t n_elems);
/* Rows `first` and up, in one piece, to write; row 0 of `out` is row `first` of the table.  Not counted. */
KVL_API int kvl_table_write(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                            struct kvl_rows *out);
/* All rows, in one piece, to read and to write anywhere: what is shared of the layer is copied whole.  Every call counts
 * them as read in a hook that selects; in one that evicts, those of live tokens. */
KVL_API int kvl_table_all(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                          struct kvl_rows *out);
/* As kvl_table_peek and kvl_table_write, for operators alone: the host neither reads nor writes them, so that on a GPU
 * nothing crosses. */
KVL_API int kvl_table_operand(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                              int32_t n_rows, struct kvl_rows *out);
KVL_API int kvl_table_operand_out(const struct kvl_pctx *ctx, int32_t table, int32_t layer,
                                  int32_t first, struct kvl_rows *out);
/* One row of one kv head: [row_elems].  A row and the next of the same kv head lie side by side in one piece. */
KVL_API const void *kvl_table_row(const struct kvl_rows *rows, int32_t kv_head, int32_t row);
KVL_API void *kvl_table_row_out(const struct kvl_rows *rows, int32_t kv_head, int32_t row);
/* Of a table of live tokens: element `column` of all rows of a lane, side by side, in the order of positions. */
KVL_API void *kvl_table_column(const struct kvl_rows *rows, int32_t kv_head, int32_t column);

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
    float *score;       /* out [n_lists][n_rows] */
};
KVL_API int kvl_table_scores(const struct kvl_pctx *ctx, const struct kvl_table_scores *s);
/* Rows of a minimum and a maximum of keys [2][head_dim], one per unit: keys k [step->n_tok][n_kv_heads][head_dim]
 * of this step go in. */
KVL_API int kvl_table_minmax(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                             const float *k);
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
