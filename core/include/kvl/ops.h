/* kvl/ops.h - arguments and shapes of the operators listed in ops.def.
 *
 * Layouts are row-major, innermost dimension last.  All float buffers are 4-byte aligned, host
 * memory for ref and cpu, memory of any place for cuda (kvl/device.h).  An operator never allocates in decode; the few that need scratch take
 * it from memory of the process that grows to its high-water mark.
 *
 * Every result is independent of the number of threads: work is cut in pieces of fixed size and
 * partial results are merged in a fixed order.
 *
 * Thread-safe: no.  Operators use OpenMP inside and share scratch: call them from one thread.
 */
#ifndef KVL_OPS_H
#define KVL_OPS_H

#include "kvl/kvstore.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_lane;
struct kvl_run;

/* Element types of weights, from wtypes.def; values are those of GGUF. */
enum kvl_wtype {
#define KVL_WTYPE_PLAIN(name, number, ...) KVL_W_##name = (number),
#define KVL_WTYPE_BLOCK(name, number, ...) KVL_W_##name = (number),
#include "kvl/wtypes.def"
};

/* A row of wtypes.def, which says what the fields mean. */
struct kvl_wtype_row {
    enum kvl_wtype type;
    const char *name;
    int32_t block; /* elements; 1 = no blocks */
    size_t block_bytes;
    int32_t word[2];
    uint16_t exponent;
    bool x_int16; /* gemv of ref and cpu rounds x; cuda's: see kvl_gemv_args */
};

/* All of them, in the order of their numbers. */
const struct kvl_wtype_row *kvl_wtype_rows(int32_t *n);
/* By the number of a GGUF file; NULL: no such type, or none that kvlab computes with. */
const struct kvl_wtype_row *kvl_wtype_find(uint32_t number);

/* A weight matrix in its file's own type: [n_rows][n_cols], rows of `row_bytes`. */
struct kvl_weight {
    const void *data; /* borrowed (mapped file) */
    enum kvl_wtype type;
    int32_t n_rows, n_cols; /* n_cols a multiple of the type's block */
    size_t row_bytes;
};

/* What an MLP does with its gate g and its other branch u. */
enum kvl_act {
    KVL_ACT_SILU = 0,
    KVL_ACT_GELU_TANH, /* the approximation by tanh */
    KVL_ACT_GELU,      /* by erf */
    KVL_ACT_RELU,
    KVL_ACT_SWISH_CLAMPED, /* min(g, 7) sigmoid(1.702 min(g, 7)) (1 + u between -7 and 7); gpt-oss */
};

struct kvl_embed_args {
    float *y; /* out [n][n_cols] */
    const struct kvl_weight *w;
    const int32_t *id; /* [n], each < n_rows */
    int32_t n;
};

/* gemm: rows are computed in tiles of a fixed size, the last padded.  gemv: one row at a time; the
 * result of a row does not depend on n.  The two may round differently from each other: gemv with weights in blocks
 * (ref and cpu: int16 and k16 in wtypes.def; cuda: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K) rounds x to 16-bit
 * integers per block of 32 columns (ops/gemv_x.h), so that their products are summed exactly; others keep x as float. */
struct kvl_gemm_args {
    float *y;       /* out [n][n_rows] */
    const float *x; /* [n][n_cols] */
    const struct kvl_weight *w;
    int32_t n;
    /* x and the weights are rounded to bf16 (nearest even), products summed in float: about twice as
     * fast where the processor multiplies bf16, the same meaning elsewhere */
    bool bf16;
    /* by OpenBLAS, in float: a row may depend on n.  ref ignores it, cuda refuses it (KVL_EINVAL); without
     * bf16 */
    bool blas;
    /* Without bf16, weights in blocks (int16 and k16 in wtypes.def): x may be rounded to 15-bit integers per block
     * of 32 columns (ops/gemv_x.h) and their products summed exactly.  ref does so; cpu where that is faster, which
     * is with avx2 and avx512; cuda keeps x as float. */
    bool int16;
};
struct kvl_gemv_args {
    float *y;       /* out [n][n_rows] */
    const float *x; /* [n][n_cols] */
    const struct kvl_weight *w;
    int32_t n;
    const struct kvl_gemv_args *next; /* another product of the same x, computed with this one */
    /* What is made of a product, in this order, each rounded by itself: the bits are those of gemv, add and glu
     * one after the other. */
    const float *bias; /* [n_rows], added; NULL: none */
    const struct kvl_weight
        *up;              /* as glu: act(of it) * (up x + up_bias), of w's shape; NULL: none */
    const float *up_bias; /* [n_rows] or NULL */
    enum kvl_act act;     /* with `up` */
    bool add;             /* y += it in place of y = it */
    /* Weights in blocks (int16 and k16 in wtypes.def): x is rounded to 8-bit integers, with one scale for the columns of
     * a block of W (32 or 256), which is what llama.cpp multiplies.  cuda refuses it (KVL_EINVAL).  The same in a whole
     * list. */
    bool q8;
};

struct kvl_rmsnorm_args {
    float *y;       /* out [n][dim]; may be x */
    const float *x; /* [n][dim] */
    const float *w; /* [dim] */
    int32_t n, dim;
    float eps;
};

struct kvl_layernorm_args {
    float *y;           /* out [n][dim]; may be x */
    const float *x;     /* [n][dim] */
    const float *w, *b; /* [dim] */
    int32_t n, dim;
    float eps;
};

enum kvl_rope_style {
    KVL_ROPE_NORM = 0, /* pairs (x[2i], x[2i+1]) */
    KVL_ROPE_NEOX = 1, /* pairs (x[i], x[i + n_rot/2]) */
};

/* How heads turn with their position.  Pair i of the first n_rot elements turns by pos * inv_freq[i] and is
 * multiplied by mag; the elements behind stay as they are.  The angle is formed in double, so that 1M positions
 * stay exact to float. */
struct kvl_rope {
    const double *inv_freq; /* [n_rot / 2], scaling and rope_freqs included; all 0: nothing turns */
    int32_t n_rot;          /* even, at most head_dim */
    enum kvl_rope_style style;
    float mag; /* 1 = none; of YaRN and LongRoPE */
};

struct kvl_rope_args {
    float *y;           /* out [n][n_heads][head_dim]; may be x */
    const float *x;     /* [n][n_heads][head_dim] */
    const int32_t *pos; /* [n] */
    const struct kvl_rope *rope;
    int32_t n, n_heads, head_dim;
    /* other heads of the same tokens: pos, rope, n and head_dim are the same; neither reads what another writes */
    const struct kvl_rope_args *next;
};

struct kvl_glu_args {
    float *y;               /* out [n]; may be gate */
    const float *gate, *up; /* [n]; up NULL: y = act(gate), not of SWISH_CLAMPED */
    size_t n;
    enum kvl_act act;
};

/* y = factor * y; then, with a cap above 0, cap * tanh(y / cap). */
struct kvl_scale_args {
    float *y; /* in, out [n] */
    size_t n;
    float factor, cap;
};

/* y_i = the sum of weight[i][j] times row row[i][j] of x, in the order of j. */
struct kvl_mix_rows_args {
    float *y;            /* out [n][dim] */
    const float *x;      /* [n_x][dim] */
    const int32_t *row;  /* [n][k], each below n_x */
    const float *weight; /* [n][k] */
    int32_t n, k, n_x, dim;
};

struct kvl_add_args {
    float *y;       /* in, out [n] */
    const float *x; /* [n_x] */
    size_t n;
    const float *factor; /* y = y * *factor + x, rounded twice; NULL = 1 */
    size_t n_x;          /* x begins anew after so many, as one row for all rows of y; 0 = n */
    /* more sums, as if one came after the other; those of one y and n stand together, and n_x is 0 */
    const struct kvl_add_args *next;
};

/* Every operator of attention has a `cap`: logits become cap * tanh(scale q.k / cap) before anything is added
 * to them; 0 = none, and no work. */

/* The chunk's own n keys are the last n slots of every lane; query i sees slots
 * 0 .. n_slots - n + i, of these the last `window`.  Key tiles start at fixed slots, so that a row does not
 * depend on the chunk it came in. */
struct kvl_attn_prefill_args {
    float *out;                   /* out [n][n_heads][head_dim], or NULL: lse alone */
    float *lse;                   /* out [n][n_heads] natural log-sum-exp, or NULL */
    const float *q;               /* [n][n_heads][head_dim], after RoPE */
    const struct kvl_lane *lanes; /* [n_kv_heads] */
    int32_t n, n_heads, n_kv_heads, head_dim;
    float scale; /* 1 / sqrt(head_dim) */
    float cap;
    int32_t window; /* slots that a query sees at most, its own included; 0 = all */
    bool bf16; /* q, k, v and exp(logit - max) are rounded to bf16; softmax and sums in float */
};

/* What the queries of one query head read of the slots up to their own: the union of all that is given,
 * and always their own. */
struct kvl_sparse_head {
    bool dense;           /* everything; nothing else counts */
    bool chunk;           /* the chunk's own slots */
    int32_t sink, window; /* slots < sink, distances < window */
    const int32_t *column,
        *distance; /* slots; distances of a key from the query: ascending, unique */
    int32_t n_columns, n_distances;
    /* Blocks of block_tok slots for each block_tok queries of the chunk: block[off[b]] ..
     * block[off[b + 1] - 1], ascending, unique.  block_tok 0: none.  ranges: pairs in place of blocks, of
     * slots block[2 k] .. block[2 k + 1] - 1 for k = off[b] .. off[b + 1] - 1, ascending, apart. */
    bool ranges;
    int32_t block_tok;
    const int32_t *block_off, *block;
};

/* As attn_prefill, but a query reads what its head says.  A row does not depend on the chunk it came in
 * (but for `chunk` and blocks, which are of the chunk). */
struct kvl_attn_prefill_sparse_args {
    float *out;                         /* out [n][n_heads][head_dim] */
    const float *q;                     /* [n][n_heads][head_dim], after RoPE */
    const struct kvl_lane *lanes;       /* [n_kv_heads] of the same length */
    const struct kvl_sparse_head *head; /* [n_heads] */
    int32_t n, n_heads, n_kv_heads, head_dim;
    float scale; /* 1 / sqrt(head_dim) */
    float cap;
    bool bf16; /* as in attn_prefill */
    /* NULL, or added to: pairs of a query and a key that it read; keys, each with its value, that were
     * fetched, once for some neighbouring queries that read them */
    int64_t *n_pairs, *n_reads;
};

/* One query-head group over one list of slots of one lane.  Over a bf16 lane queries (but for
 * repositioned keys) and the weights of values may be rounded to bf16 too, sums stay in float: lse and
 * probs are exact for the rounded query. */
struct kvl_attn_job {
    float *out;     /* out [n_heads][head_dim], zero for an empty list */
    float *lse;     /* out [n_heads], -inf for an empty list */
    const float *q; /* [n_heads][head_dim]; before RoPE when pos is given */
    const struct kvl_lane *lane;
    const struct kvl_run
        *runs; /* [n_runs] in the order of the list; NULL = slots 0 .. n_slots - 1 */
    int32_t n_runs;
    int32_t n_slots;         /* slots in the list */
    int32_t n_heads;         /* query heads that share the list */
    const float *log_weight; /* [n_slots] added to the logits, or NULL */
    float *probs;            /* out [n_heads][n_slots] weights within this list, or NULL */
    /* Repositioned attention: raw keys of the list are rotated to pos[i], the query to q_pos.
     * NULL = keys as stored after RoPE. */
    const int32_t *pos; /* [n_slots] */
    int32_t q_pos;
    const float
        *keys; /* [n_slots][head_dim] in place of the stored ones, after RoPE; NULL = stored.
                          Not together with pos; the query is not rounded */
    /* A list in place of runs that may lie in memory of a device: slots page[i] * page_tok .. + page_tok - 1
     * for every i below n_pages, in this order, then tail, tail + 1 .. up to n_slots entries.  Pages are
     * whole, and their slots exist.  Not together with runs, log_weight, probs, pos or keys.  NULL: there
     * is none. */
    const int32_t *page; /* [n_pages] */
    int32_t n_pages, page_tok, tail;
};

struct kvl_attn_decode_args {
    const struct kvl_attn_job *jobs;
    int32_t n_jobs, head_dim;
    float scale;
    float cap;
    const struct kvl_rope *rope; /* of repositioned jobs */
};

/* Merges n_parts partial results; a part with lse -inf counts nothing. */
struct kvl_attn_merge_args {
    float *out;                   /* out [n_heads][head_dim] */
    float *lse;                   /* out [n_heads], or NULL */
    const float *const *part;     /* [n_parts] -> [n_heads][head_dim] */
    const float *const *part_lse; /* [n_parts] -> [n_heads] */
    int32_t n_parts, n_heads, head_dim;
    const struct kvl_attn_merge_args
        *next; /* another one, which reads nothing that this one writes */
};

/* As one attn_decode job over slots 0 .. n_slots - 1, but slots with mask 0 get weight 0. */
struct kvl_attn_masked_args {
    float *out, *lse; /* out [n_heads][head_dim], [n_heads] */
    float *probs;     /* out [n_heads][n_slots], 0 where masked, or NULL */
    const float *q;   /* [n_heads][head_dim]; before RoPE when pos is given */
    const struct kvl_lane *lane;
    const uint8_t *mask; /* [n_slots] */
    const float *bias;   /* [n_slots] added to the logits, or NULL */
    const int32_t *pos;  /* [n_slots] or NULL: as in kvl_attn_job */
    int32_t q_pos;
    /* [n_slots] -> [head_dim]: a key in place of the stored one, NULL = stored; or NULL: all stored */
    const float *const *keys;
    int32_t n_slots, n_heads, head_dim;
    float scale;
    float cap;
    const struct kvl_rope *rope; /* where pos is given */
};

/* out = sum_i softmax(logit)_i value_i. */
struct kvl_attn_pseudo_args {
    float *out, *lse;   /* out [n_heads][head_dim], zero for n = 0; [n_heads], then -inf */
    const float *logit; /* [n_heads][n] */
    const float *value; /* [n][head_dim] */
    int32_t n, n_heads, head_dim; /* head_dim at most 1024 */
};

/* mass[h][s] = sum over the last W queries w of softmax(q_w . k)_s, query w seeing slots
 * 0 .. n_slots - W + w (SnapKV, Eq. 5: causal inside the W x W corner). */
struct kvl_attn_window_args {
    float *mass;                  /* out [n_heads][n_slots] */
    const float *q;               /* [n_window][n_heads][head_dim], after RoPE, oldest first */
    const float *lse;             /* [n_window][n_heads] as attn_prefill gave it: half the work is
                                     done; NULL: not known */
    const struct kvl_lane *lanes; /* [n_kv_heads], n_slots each */
    int32_t n_window, n_slots, n_heads, n_kv_heads, head_dim;
    float scale;
    float cap;
    bool bf16; /* q and k are rounded as in an attn_prefill of that kind */
};

/* What a slot receives from queries: their probabilities, its own query's included, or the scaled
 * logits of the queries after its own. */
enum kvl_columns {
    KVL_COLUMNS_PROBS = 0,
    KVL_COLUMNS_LOGITS = 1,
};

/* The chunk's own n keys are the last n slots of every lane, and slots are positions in ascending
 * order without a gap.  Adds to every slot
 *   PROBS   exp(q.k scale - lse) of the queries at distance 0 .. next - 1 from it (0 = all later)
 *   LOGITS  q.k scale            of the queries at distance 1 .. next
 * Sums are compensated (Kahan): a total is sums - carry, sums alone is it rounded to float.  Queries
 * are added one by one in order, so that a context gives the same bits in any chunks. */
struct kvl_attn_columns_args {
    float *sums, *carry;          /* in, out: head h at h * stride: [n_slots]; new slots are 0 */
    size_t stride;                /* floats */
    const float *q;               /* [n][n_heads][head_dim], after RoPE */
    const float *lse;             /* [n][n_heads] as attn_prefill gives it; PROBS only */
    const struct kvl_lane *lanes; /* [n_kv_heads] of the same length */
    int32_t n, n_heads, n_kv_heads, head_dim;
    float scale; /* 1 / sqrt(head_dim) */
    float cap;
    enum kvl_columns kind;
    int32_t next; /* queries that a slot counts; 0 = all from its own on */
    bool bf16;    /* q and k are rounded as in an attn_prefill of that kind */
};

struct kvl_attn_probs_args {
    float *probs;                 /* out [n_heads][n_slots] */
    float *lse;                   /* out [n_heads] natural log-sum-exp, or NULL */
    const float *q;               /* [n_heads][head_dim], after RoPE */
    const struct kvl_lane *lanes; /* [n_kv_heads], at least n_slots each */
    int32_t n_slots, n_heads, n_kv_heads, head_dim;
    float scale;
    float cap;
};

struct kvl_lane_read_args {
    float *out;    /* out: slot slot0 + i at out + i * stride: [head_dim] */
    size_t stride; /* floats, at least head_dim */
    const struct kvl_lane *lane;
    enum kvl_kv_part part; /* one that the store keeps */
    int32_t slot0, n;
};

/* minmax[h][p][0][c] is the minimum, [1][c] the maximum over the keys of page p seen so far.  A page
 * whose first position is among the new keys is initialised. */
struct kvl_page_minmax_args {
    void *minmax; /* in, out: kv head h from element h * head_stride: [n_pages][2][head_dim] */
    enum kvl_kv_type type; /* of minmax; k is rounded to it.  Not Q8_0 */
    size_t head_stride;    /* elements */
    const float *k;        /* [n][n_kv_heads][head_dim] */
    int32_t pos0, n;       /* positions pos0 .. pos0 + n - 1 */
    int32_t n_kv_heads, head_dim, page_tok;
};

/* How scores of a group's query heads become one score (published ports of Quest differ).  KVL_EINVAL: one
 * that the operator has not. */
enum kvl_reduce {
    KVL_REDUCE_NONE = 0, /* one list per query head */
    KVL_REDUCE_SUM,
    KVL_REDUCE_MAX,
    KVL_REDUCE_MEAN,
    KVL_REDUCE_FIRST,  /* the first query head of the group */
    KVL_REDUCE_MEAN_Q, /* average the queries first; page_bound only */
};

struct kvl_page_bound_args {
    /* out list l at l * bound_stride: [n_pages]; n_heads lists for NONE, else n_kv_heads */
    float *bound;
    size_t bound_stride; /* floats; 0 = n_pages */
    const float *q;      /* [n_heads][head_dim] */
    const void *minmax;  /* as in page_minmax */
    enum kvl_kv_type type;
    size_t head_stride;
    int32_t n_pages, n_heads, n_kv_heads, head_dim;
    enum kvl_reduce reduce;
    /* other pages for the same queries: all but bound, minmax, head_stride and n_pages is the same */
    const struct kvl_page_bound_args *next;
};

struct kvl_group_reduce_args {
    float *y;       /* out [n_kv_heads][n] */
    const float *x; /* query head h at x + h * x_stride: [n] */
    size_t x_stride;
    int32_t n, n_heads, n_kv_heads;
    enum kvl_reduce reduce; /* SUM, MAX, MEAN or FIRST */
};

struct kvl_raise_args {
    float *y;              /* out [n]: the largest of 0 and every factor[r] x[r]; no NaN is */
    const float *const *x; /* [n_rows] of [n] */
    const float *factor;   /* [n_rows] */
    size_t n;
    int32_t n_rows;
};

struct kvl_pool1d_args {
    float *y;       /* out [n_rows][n]; not x */
    const float *x; /* row r at x + r * x_stride: [n] */
    size_t x_stride;
    int32_t n_rows, n, kernel; /* kernel odd */
    bool average;
};

struct kvl_topk_args {
    int32_t *index; /* out [n_rows][k], ascending */
    const float *x; /* row r at x + r * x_stride: [n] */
    size_t x_stride;
    int32_t n_rows, n, k; /* 0 <= k <= n */
};

/* The `safe` largest of every row come before all others; ties to the lower row, then the lower index.
 * NaN is an error. */
struct kvl_joint_share_args {
    int32_t *count; /* out [n_rows]; they sum to k */
    const float *x; /* row r at x + r * x_stride: [n] */
    size_t x_stride;
    int32_t n_rows, n, k, safe; /* n_rows * safe <= k <= n_rows * n */
};

/* Tokens i * chunk .. of all rows become their mean; the last chunk may be shorter. */
struct kvl_chunk_mean_args {
    float *x; /* in, out: row r at x + r * stride: [n] */
    size_t stride;
    int32_t n_rows, n, chunk, k;
    int32_t *
        n_best; /* out: tokens of the k best chunks (all where there are fewer); ties: the earlier */
};

/* A row: minimum and step as floats in the machine's order, then channel c in the low (c even) or high
 * four bits of byte c / 2: minimum + step * code. */
#define KVL_KEY4_BYTES(head_dim) (8 + ((size_t)(head_dim) + 1) / 2)
struct kvl_key4_put_args {
    uint8_t *rows; /* out: kv head h at rows + h * head_stride: [n][KVL_KEY4_BYTES] */
    size_t head_stride;
    const float *k; /* [n][n_kv_heads][head_dim] */
    int32_t n, n_kv_heads, head_dim;
};

struct kvl_key4_logits_args {
    float *logit; /* out: head h at logit + h * stride: [n] */
    size_t stride;
    const float *q;      /* [n_heads][head_dim] */
    const uint8_t *rows; /* [...][KVL_KEY4_BYTES] */
    const int32_t *row;  /* [n] logit i is of row[i] - row0; NULL: of i */
    int32_t row0, n, n_heads, head_dim;
    float scale;
};

/* Of every row the largest (ties: the lower index) until their sum reaches p of the row's; the union of
 * the rows; of these, where they are more than k, those of largest sum over the rows.  Weights are not
 * negative; NaN is an error. */
struct kvl_top_p_args {
    int32_t *index;      /* out [*n_index], ascending; room for KVL_MIN(k, n) */
    int32_t *n_index;    /* out */
    const float *weight; /* row r at weight + r * stride: [n] */
    size_t stride;
    int32_t n_rows, n, k;
    float p;
    bool last; /* the last index is among them, and its weight counts first */
};

/* New keys into a table that lies channel by channel: kv head h from element h * head_stride:
 * [n_pages][head_dim][page_tok].  k must be exact in `type`. */
struct kvl_channel_put_args {
    void *keys; /* in, out */
    enum kvl_kv_type type;
    size_t head_stride; /* elements */
    const float *k;     /* [n][n_kv_heads][head_dim] */
    int32_t pos0, n;    /* positions pos0 .. pos0 + n - 1; page 0 of keys begins at position 0 */
    int32_t n_kv_heads, head_dim, page_tok;
};

/* score[h][t] = factor[h] * sum of q[h][c] k[t][c] over the channels c of h's kv head, and the
 * largest score of each head and sum of exp(score - max) over tokens (for softmax; 0 tokens: -inf, 0).
 * Channels may come in any order. */
struct kvl_channel_scores_args {
    float *score; /* out query head h at h * score_stride: [n_tok] */
    size_t score_stride;
    float *max, *sum;       /* out [n_heads] */
    const float *q;         /* [n_heads][head_dim] */
    const float *factor;    /* [n_heads] */
    const int32_t *channel; /* [n_kv_heads][n_channels] */
    const void *keys;       /* as in channel_put */
    enum kvl_kv_type type;
    size_t head_stride;
    int32_t n_tok, page_tok, n_channels, n_heads, n_kv_heads, head_dim;
};

/* Boxes of box_tok keys each, in a table of live tokens: element v of box i (the minima of its channels,
 * then the maxima) at v / box_tok * column_stride + i * box_tok + v % box_tok.  So a box takes the rows of
 * its own tokens, of 2 head_dim / box_tok columns, rounded up. */
struct kvl_box_put_args {
    void *boxes; /* in, out: of one kv head */
    enum kvl_kv_type type;
    size_t column_stride; /* elements */
    const float *k;       /* [n * box_tok][head_dim], exact in `type` */
    int32_t box0, n, box_tok, head_dim;
};

/* Per kv head, the n_channels channels of largest sum of |q| over its query heads (ties: the lower), and
 * in each the maximum of a box where the sum of q is not negative, else its minimum:
 * score[h][i] = scale * sum of q_h times these (RocketKV). */
struct kvl_box_scores_args {
    float *score; /* out query head h at h * score_stride: [n] */
    size_t score_stride;
    const float *q;    /* [n_heads][head_dim] */
    const void *boxes; /* kv head h from element h * head_stride */
    enum kvl_kv_type type;
    size_t head_stride, column_stride;
    int32_t n, box_tok, n_channels, n_heads, n_kv_heads, head_dim; /* box_tok 16 at most */
    float scale;
};

/* Locality-sensitive hashing: n_tables codes of n_bits bits (16 at most) for each of n vectors.  Bit j
 * of code l is set where the vector lies on the positive side of hyperplane l * n_bits + j, strictly. */
struct kvl_lsh_codes_args {
    uint16_t *code;    /* out [n][n_tables] */
    const float *side; /* [n][n_tables * n_bits] products with the hyperplanes */
    int32_t n, n_tables, n_bits;
};

/* Vectors sorted by code, table by table: those of code b of table l are id [start[b]] up to
 * [start[b + 1] - 1] of its row, ascending. */
struct kvl_lsh_build_args {
    int32_t *start;       /* out [n_tables][2^n_bits + 1] */
    int32_t *id;          /* out [n_tables][n] */
    const uint16_t *code; /* [n][n_tables] */
    int32_t n, n_tables, n_bits;
};

/* Vectors that share the code of query q in at least min_hits tables, ascending. */
struct kvl_lsh_find_args {
    int32_t *found;              /* out [n_q][n]: the first n_found[q] of a row */
    int32_t *n_found;            /* out [n_q] */
    int64_t *n_visited;          /* out [n_q] entries of buckets read */
    const uint16_t *code;        /* [n_q][n_tables] */
    const int32_t *const *start; /* [n_q] -> tables of each query, as lsh_build made them */
    const int32_t *const *id;
    int32_t n_q, n, n_tables, n_bits, min_hits; /* min_hits 1 to 255 */
};

/* y[i] = the sum of |x| of row i (norm 1), or the square root of the sum of its squares (2).  KVL_EINVAL:
 * another norm. */
struct kvl_row_norms_args {
    float *y;       /* out [n] */
    const float *x; /* [n][dim] */
    int32_t n, dim, norm;
};

/* y[i] = cosine of row i and the mean of all rows brought to length 1; 0 where one of them is zero
 * (KeyDiff). */
struct kvl_mean_cosine_args {
    float *y;       /* out [n] */
    const float *x; /* [n][dim] */
    int32_t n, dim;
};

/* Rows of a block between the minimum and the maximum that their channel has in the block behind it (0
 * where these are equal); standard deviation over the channels, divided by dim - 1; softmax of these over
 * the block (LagKV). */
struct kvl_lag_spread_args {
    float *y;       /* out [n_blocks][lag] */
    const float *x; /* [n_blocks + 1][lag][dim] */
    int32_t n_blocks, lag, dim;
};

/* y[h][i] = scale x_i.mean_h + scale^2 / 2 x_i^T cov_h x_i: the logarithm of what exp(scale q.x_i) is on
 * average for normal q (expected attention). */
struct kvl_gauss_logits_args {
    float *y;          /* out [n_heads][n] */
    const float *x;    /* [n][dim] */
    const float *mean; /* [n_heads][dim] */
    const float *cov;  /* [n_heads][dim][dim], symmetric; NULL = zero */
    int32_t n, n_heads, dim;
    float scale;
};

struct kvl_softmax_args {
    float *x; /* in, out: row r at x + r * stride: [n] */
    size_t stride;
    int32_t n_rows, n; /* n at least 1 */
};

/* Adds n vectors to the sums of every head, in double and in their order. */
struct kvl_moments_args {
    double *sum; /* in, out [n_heads][dim] */
    double
        *product; /* in, out [n_heads][dim (dim + 1) / 2]: x x^T from the diagonal on, row by row */
    const float *x; /* [n][n_heads][dim] */
    int32_t n, n_heads, dim;
};

/* The queries are those of the last n slots of every lane.  Each sees slots [0, sink), [first, last) and,
 * from slot `own` on, those up to its own.  Raises peak[h][j] to the largest logarithm of the weight that
 * one of them gives slot first + j, less bias (KVzip). */
struct kvl_attn_peaks_args {
    float *peak;                    /* in, out [n_heads][last - first] */
    const float *q;                 /* [n][n_heads][head_dim], after RoPE */
    const float *bias;              /* [n], or NULL */
    const float *rest;              /* [n_heads] a logit more of every softmax, or NULL */
    const struct kvl_lane *lanes;   /* [n_kv_heads] of the same length */
    int32_t sink, first, last, own; /* sink <= last <= own */
    int32_t n, n_heads, n_kv_heads, head_dim;
    float scale;
    float cap;
};

enum { KVL_KMEANS_TILE = 256 };

/* n_iter rounds of: every row to its nearest centroid (ties: the first), every centroid to the mean of
 * its rows.  Centroid j begins as row floor(j n / n_clusters).  A cluster left empty takes the row that
 * fits its own worst, among clusters of more than one, in ascending order of clusters.  On return
 * centroids are the means of `assign`.  n_iter = 0: centroids come from the caller, rows are assigned,
 * clusters may be empty. */
struct kvl_kmeans_args {
    float *centroid; /* out [n_clusters][dim]; in with n_iter = 0 */
    int32_t *assign; /* out [n] */
    int32_t *count;  /* out [n_clusters] rows */
    const float *x;  /* row i at x + i * x_stride: [dim] */
    size_t x_stride;
    int32_t n, dim, n_clusters, n_iter; /* n_clusters at most n, unless n_iter is 0 */
    bool cosine; /* nearest in angle, not in distance; means are plain means all the same */
    float *work; /* KVL_KMEANS_TILE (n_clusters + dim) + 2 n_clusters + n floats */
};

/* table[h][s][c] = scale x (piece s of q[h]) . centroid[h / group][s][c]; pieces are head_dim / n_sub
 * channels. */
struct kvl_pq_table_args {
    float *table;          /* out [n_heads][n_sub][n_codes] */
    const float *q;        /* [n_heads][head_dim] */
    const float *centroid; /* kv head g from g * head_stride: [n_sub][n_codes][head_dim / n_sub] */
    size_t head_stride;
    int32_t n_heads, n_kv_heads, head_dim, n_sub, n_codes;
    float scale;
};

/* score[h][i] = sum over s of table[h][s][code of sub-vector s of row i, of kv head h / group]. */
struct kvl_pq_scores_args {
    float *score;        /* out: head h at h * stride: [n] */
    size_t stride;       /* floats */
    const float *table;  /* [n_heads][n_sub][n_codes] */
    const uint8_t *code; /* kv head g from g * head_stride: [n][n_sub], each below n_codes */
    size_t head_stride;
    int32_t n, n_heads, group, n_sub, n_codes;
};

enum { KVL_SYM_EIG_MAX = 4096 };

/* Of A = sum_i val[i] vec_i vec_i'.  The component of largest magnitude of a vector (the first of several)
 * is positive; vectors of equal eigenvalues are any orthonormal basis, always the same one on one kind
 * of machine with one version of OpenBLAS.  One thread; KVL_ENUMERIC: an element is not finite;
 * KVL_EDEVICE: kvl_ops_blas_error. */
struct kvl_sym_eig_args {
    float *vec;     /* out [n][n]: row i belongs to val[i] */
    float *val;     /* out [n] descending, or NULL */
    const float *a; /* [n][n]; only the lower triangle is read */
    int32_t n;      /* 1 .. KVL_SYM_EIG_MAX */
};

/* Per page the centre of the box around its keys and their mean distance from it: lo = centre - radius,
 * hi = centre + radius (ArkVale).  What ops->page_bound reads. */
struct kvl_page_digest_args {
    float *digest;  /* out [n_pages][2][head_dim]: lo, hi */
    const float *k; /* [n_pages][page_tok][head_dim] */
    int32_t n_pages, page_tok, head_dim;
};

/* The r of dim directions with the largest sum of |q.direction| + |k.direction|, in the order of their
 * index, ties to the lower: eigenvectors of the sum of q q^T, largest first, or plain channels
 * (InfiniGen). */
struct kvl_partial_basis_args {
    float *basis;    /* out [r][dim] */
    const float *q;  /* query j of row i at q + i * q_stride + j * dim: [n_q][group][dim] */
    size_t q_stride; /* floats */
    const float *k;  /* [n_k][dim] */
    int32_t n_q, group, n_k, dim, r;
    bool skew; /* eigenvectors; dim as for sym_eig */
};

struct kvl_near_max_args {
    float *x;       /* in, out [n_rows][n]: less the row's largest */
    int32_t *count; /* out [n_rows]: how many are above -alpha then */
    int32_t n_rows, n;
    float alpha;
};

struct kvl_random_fill_args {
    float *y; /* out [n] */
    size_t n;
    uint64_t seed;
};

/* One table per device. */
struct kvl_ops {
    const char *name; /* "ref", "cpu", "cuda" */
#define KVL_OP(op, meaning) int (*op)(const struct kvl_##op##_args *a);
#include "kvl/ops.def"
#undef KVL_OP
};

#define KVL_OP(op, meaning)                                                                        \
    int kvl_ref_##op(const struct kvl_##op##_args *a);                                             \
    int kvl_cpu_##op(const struct kvl_##op##_args *a);                                             \
    int kvl_cuda_##op(const struct kvl_##op##_args *a);
#include "kvl/ops.def"
#undef KVL_OP

extern const struct kvl_ops kvl_ops_ref; /* plain loops: the definition; tests only */
extern const struct kvl_ops kvl_ops_cpu;
extern const struct kvl_ops kvl_ops_cuda; /* only where built with CUDA; see kvl/device.h */

/* Bytes of a row of n_cols elements, or 0 for an unknown type or a length the type cannot hold. */
size_t kvl_wtype_row_bytes(enum kvl_wtype type, int64_t n_cols);
const char *kvl_wtype_name(enum kvl_wtype type);

/* Threads that operators use from now on; 0 = all cores this process may run on. */
void kvl_ops_set_threads(int32_t n);
int32_t kvl_ops_threads(void);
/* What this machine's code path is called: "avx512bf16", "avx512", "avx2", "neon", "scalar". */
const char *kvl_ops_isa(void);
/* Version and kernels of the OpenBLAS that sym_eig, partial_basis and gemm's `blas` call, which is loaded when it
 * is first needed; NULL: there is none.  They return KVL_EDEVICE then. */
const char *kvl_ops_blas(void);
/* What is wrong, once it was looked for in vain; else "". */
const char *kvl_ops_blas_error(void);

#ifdef __cplusplus
}
#endif

#endif
