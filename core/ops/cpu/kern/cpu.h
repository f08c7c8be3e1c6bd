/* cpu.h - what the operators of this folder share: kernels by instruction set, threads, scratch.
 *
 * An operator (gemm.c ...) checks shapes, cuts the work in pieces of fixed size and spreads them
 * over threads.  The arithmetic of a piece is a kernel: kern_*.h holds it once, and kern_base.c,
 * kern_avx2.c, kern_avx512.c and kern_avx512bf16.c compile it for one instruction set each.  Results
 * may differ between instruction sets, never between thread counts.
 */
#ifndef KVL_CPU_H
#define KVL_CPU_H

#include "kvl/ops.h"
#include "lane.h"

/* Slots of one piece of a decode list, and of these how many at a time; query heads computed
 * together. */
enum { KVL_SPAN_SLOTS = 512, KVL_SPAN_TILE = 128, KVL_HEAD_ALIGN = 16 };

/* head_dim rounded up to whole vectors of any width. */
static inline size_t kvl_head_pad(int32_t head_dim)
{
    return ((size_t)head_dim + KVL_HEAD_ALIGN - 1) / KVL_HEAD_ALIGN * KVL_HEAD_ALIGN;
}

/* Elements of tables by the name that operators on weights have for them: F32, F16, BF16. */
static inline enum kvl_wtype kvl_kv_wtype(enum kvl_kv_type type)
{
    if (type == KVL_KV_F32) return KVL_W_F32;
    return type == KVL_KV_F16 ? KVL_W_F16 : KVL_W_BF16;
}

struct kvl_rope_table; /* cosines and sines by position, kept between calls */

/* Columns col0 .. col0 + n_cols - 1 of Y, that is as many rows of W, for all n rows of x. */
struct kvl_gemm_item {
    float *y;                   /* [n][ld_y], column 0 */
    const float *x;             /* packed: [n / mr][places of k][mr] */
    const struct kvl_weight *w; /* [n_rows][k] */
    size_t ld_y;
    int32_t n, col0, n_cols;
    float *scratch; /* scratch(n_cols) floats */
};

/* What gemm multiplies: floats, rounded to bf16, or integers of 16 bits (kern_gemmq.h). */
enum kvl_gemm_kind { KVL_GEMM_F32, KVL_GEMM_BF16, KVL_GEMM_INT16, KVL_GEMM_KINDS };

struct kvl_gemm_kern {
    int32_t (*places)(int32_t k); /* of k columns, in floats */
    void (*pack)(float *dst, const float *x, size_t ld, int32_t n_rows, int32_t k);
    size_t (*scratch)(int32_t n_cols);
    void (*item)(const struct kvl_gemm_item *it); /* NULL: the kernels have no such gemm */
};

/* 256 columns of x as integers, x = scale * q with a scale for each 32; the same in two bytes, 256 hi + lo; sums
 * of q.  Sixteens lie in the order 0 4 8 12, 1 5 9 13, 2 6 10 14, 3 7 11 15, and thirty-twos in the order 0 2 4 6,
 * 1 3 5 7, as vectors take them (vec_k8_base.h). */
struct kvl_gemv_k {
    int8_t hi[256];
    uint8_t lo[256];
    int16_t q[256], split[256]; /* split: of each 32 the even ones, then the odd ones */
    float scale16[16], sum16[16], scale32[8], sum32[8];
};

/* 256 columns of x as bytes with one scale; sums of each 16 of them, first those with an even number. */
struct kvl_gemv_b {
    int8_t q[256];
    int16_t sum[16];
    float scale, none[7]; /* whole lines */
};

/* Blocks of 32 columns of x lie eight at a time, in units.  Of blocks that are left a unit of their own is filled up with
 * zeros; up to four are there twice, since two rows of W share the unit (kern_gemvq.h). */
static inline int32_t kvl_gemv_units(int32_t n_blocks)
{
    return (n_blocks + 7) / 8;
}
static inline bool kvl_gemv_shared(int32_t n_blocks)
{
    return n_blocks % 8 > 0 && n_blocks % 8 <= 4;
}

/* A row of x as integers, x = scale * q.  What no W wants is NULL. */
struct kvl_gemv_x {
    int16_t *q; /* [units][8][32] */
    /* the same as bytes, 256 hi + lo, and in 8 bits hi alone, of blocks p and p + 4: [units][4 p][halves][2][16] */
    int8_t *hi;
    uint8_t *lo;
    float *scale, *sum;   /* [units][8]; the sum of q */
    int32_t *start;       /* [units][8]: -8 times that sum */
    struct kvl_gemv_k *k; /* [n_cols / 256] */
    struct kvl_gemv_b *b; /* in 8 bits */
};

/* Rows row0 .. row1 - 1 of one W for all rows of x; a->next does not count. */
struct kvl_gemv_item {
    const struct kvl_gemv_args *a;
    const struct kvl_gemv_x *x; /* [n]; types that take x as integers only */
    int32_t row0, row1;
    float *scratch; /* kern->gemv_scratch(type, n_cols) floats */
};

/* Run i of a job's list, however it is written. */
static inline struct kvl_run kvl_span_run(const struct kvl_attn_job *job, int32_t i)
{
    if (job->runs) return job->runs[i];
    if (!job->page) return (struct kvl_run){ .slot = 0, .n = job->n_slots };
    if (i < job->n_pages)
        return (struct kvl_run){ .slot = job->page[i] * job->page_tok, .n = job->page_tok };
    return (struct kvl_run){ .slot = job->tail, .n = job->n_slots - job->n_pages * job->page_tok };
}

/* A piece of a decode job: entries i0 .. i0 + n - 1 of its list. */
struct kvl_span {
    const struct kvl_attn_decode_args *a;
    const struct kvl_attn_job *job;
    int32_t i0, n;
    int32_t run, run_off; /* where entry i0 is: kvl_span_run */
    float *max,
        *sum; /* out [span_heads]: largest logit, sum of exp(logit - max); or NULL: the logits are probs */
    float *acc;                        /* out [span_heads][span_pad], or NULL: no values wanted */
    const struct kvl_rope_table *rope; /* jobs with pos */
    const struct kvl_span *next;       /* whose first rows to ask for at the end, or NULL */
    float *scratch;                    /* kvl_span_scratch() floats */
};

/* Rows row0 .. row0 + n_rows - 1 of a chunk for one kv head; row r is token r / group, query head
 * head0 + r % group. */
struct kvl_prefill_item {
    const struct kvl_attn_prefill_args *a; /* out NULL: only lse */
    int32_t kv_head, head0, group, row0, n_rows;
    float *scratch; /* kern->prefill_scratch(n_rows, head_dim) floats */
};

/* Tokens of a sparse item at most: so many zeros lie before kvl_sparse_item.distance[0]. */
enum { KVL_SPARSE_TOK = 64 };

/* The same under a mask: what all rows read, and at which distances. */
struct kvl_sparse_item {
    struct kvl_prefill_item rows;
    const uint8_t *column;   /* [n_slots] 1 = a slot that every later row reads */
    const uint8_t *distance; /* [-KVL_SPARSE_TOK .. n_slots - 1] 1 = read; that of 0 is */
    const int32_t *n_before; /* [n_slots + 1] distances below that are read */
    const int32_t *block; /* [n_blocks] ascending: slots / block_tok that every later row reads */
    int32_t n_blocks, block_tok;
    bool ranges;              /* [n_blocks][2] in place of it: first slot, end */
    int64_t n_pairs, n_reads; /* out: added to */
};

/* Mass that queries w0 .. w0 + n_w - 1 of the window put on slots slot0 .. slot0 + n - 1. */
struct kvl_window_item {
    const struct kvl_attn_window_args *a;
    const float *q; /* packed by window_pack: [group][q_stride] */
    size_t q_stride;
    const float *lse; /* [n_window][n_heads] */
    int32_t kv_head, w0, n_w, slot0, n;
    float *scratch; /* kern->window_scratch(head_dim) floats */
};

/* What slots slot0 .. slot0 + n - 1 of one kv head receive from a chunk of queries. */
struct kvl_columns_item {
    const struct kvl_attn_columns_args *a;
    const float *q; /* packed by columns_pack: [n_heads][q_stride] */
    size_t q_stride;
    int32_t nearest, farthest; /* distances of the queries that count */
    int32_t kv_head, slot0, n;
    float *scratch; /* kern->columns_scratch(head_dim) floats */
};

/* The first n tokens of a page of channels, for the query heads of one kv head. */
struct kvl_channels_item {
    float *score; /* out [n_q][ld] */
    size_t ld;
    const float *q;         /* [n_q][n_channels] */
    const int32_t *channel; /* [n_channels] */
    const void *keys;       /* [head_dim][page_tok] */
    const void *next;       /* a page like it that comes later, or this one */
    enum kvl_wtype type;
    size_t page_tok;
    int32_t n_q, n_channels, n;
};

/* Up to kern->box_tile boxes, for the query heads of one kv head. */
struct kvl_boxes_item {
    float *score; /* out [n_q][ld] */
    size_t ld;
    const float *q;       /* [n_q][n_channels], times the scale */
    const size_t *column; /* [n_channels]: element of `boxes` where the bound of the first box is */
    const void *boxes;
    enum kvl_wtype type;
    size_t box_tok; /* elements from a box to the next */
    int32_t n_q, n_channels, n;
};

enum { KVL_KEY4_MAX_DIM = 512 };

struct kvl_kern {
    const char *name;
    int32_t mr, nr; /* register tile of products */

    void (*widen)(float *y, const void *src, enum kvl_wtype type, int32_t n);
    void (*kv_row)(float *y, struct kvl_kept kept, int32_t n);
    struct kvl_gemm_kern gemm[KVL_GEMM_KINDS];
    size_t (*gemv_scratch)(enum kvl_wtype type, int32_t n_cols);
    /* Whether weights in blocks of 32 are multiplied as bytes, with x in bytes. */
    bool (*gemv_bytes)(enum kvl_wtype type, bool q8);
    void (*gemv_pack)(const struct kvl_gemv_x *to, const float *x, int32_t n_blocks, bool q8);
    void (*gemvk_pack)(struct kvl_gemv_k *to, const float *x, int32_t n_blocks);
    void (*gemvb_pack)(struct kvl_gemv_b *to, const float *x, int32_t n_blocks);
    void (*gemv_item)(const struct kvl_gemv_item *it);
    void (*span)(const struct kvl_span *s);
    size_t (*prefill_scratch)(int32_t n_rows, int32_t head_dim);
    void (*prefill_item)(const struct kvl_prefill_item *it);
    void (*sparse_item)(struct kvl_sparse_item *it);
    size_t (*window_scratch)(int32_t head_dim);
    void (*window_pack)(float *dst, const struct kvl_attn_window_args *a, int32_t head, int32_t w0,
                        int32_t n_w);
    void (*window_item)(const struct kvl_window_item *it);
    size_t (*columns_scratch)(int32_t head_dim);
    size_t (*columns_packed)(int32_t n, int32_t head_dim); /* floats of the queries of one head */
    void (*columns_pack)(float *dst, const struct kvl_attn_columns_args *a, int32_t head);
    void (*columns_item)(const struct kvl_columns_item *it);
    void (*rmsnorm_row)(float *y, const float *x, const float *w, int32_t dim, float eps);
    /* cs: head_dim / 2 cosines, then as many sines. */
    void (*rotate)(float *y, const float *x, const float *cs, int32_t head_dim,
                   const struct kvl_rope *rope);
    void (*glu)(float *y, const float *gate, const float *up, size_t n, enum kvl_act act);
    void (*add)(float *y, const float *x, size_t n);
    void (*exp_shift)(float *x, float shift, size_t n); /* x = exp(x - shift) */
    float (*row_max)(const float *x, int32_t n);        /* NaN aside; -inf: there is nothing else */
    void (*softmax_row)(float *x, int32_t n);
    /* y = sum over parts of weight times row; rows of dim floats. */
    void (*blend)(float *y, const float *const *part, const float *weight, int32_t n_parts,
                  int32_t dim);
    /* Takes n_tok keys, ld floats apart, into the minima and maxima of one page; first: those of its
     * first token begin them. */
    void (*page_minmax)(void *row, enum kvl_wtype type, const float *k, size_t ld, int32_t n_tok,
                        int32_t dim, bool first);
    /* q_pos = max(q, 0), q_neg = min(q, 0): [n_q][head_pad].  bound [n_q][ld], n pages; n_ahead
     * pages lie behind them. */
    void (*page_bound)(float *bound, size_t ld, const float *q_pos, const float *q_neg, int32_t n_q,
                       const void *minmax, enum kvl_wtype type, int32_t head_dim, int32_t n,
                       int32_t n_ahead);
    void (*channel_scores)(const struct kvl_channels_item *it);
    int32_t box_tile;
    void (*box_scores)(const struct kvl_boxes_item *it);
    float (*sum_exp)(const float *x, int32_t n, float *max); /* of exp(x - *max), n > 0 */
    /* Logits first .. last - 1 of keys in 4 bits; q [n_heads][KVL_KEY4_MAX_DIM]: even channels of a query, then odd
     * ones; q_sum [n_heads]: sums of its channels. */
    void (*key4_rows)(const struct kvl_key4_logits_args *a, const float *q, const float *q_sum,
                      int32_t first, int32_t last);
    void (*random_fill)(float *y, uint64_t seed, uint64_t first, size_t n);
    /* Indices of the k largest of x [n]; key: room for n.  False: one is no number. */
    bool (*topk_row)(int32_t *index, const float *x, int32_t n, int32_t k, int32_t *key);
    /* The first of the largest y[i] = dot[i] * scale[i] + bias[i], i < n, n > 0; *most = that y. */
    int32_t (*nearest)(const float *dot, const float *scale, const float *bias, int32_t n,
                       float *most);
    void (*max_into)(float *y, const float *x, size_t n); /* y = max(y, x) */
    void (*scale)(float *y, float divisor, size_t n);     /* y = y / divisor */
    /* kvl/peak.h: sum of p [n]; n rounds of peak_lanes multiply-adds; peak_bf16 does two in each
     * lane and is NULL where the processor has no instruction for it. */
    int32_t peak_lanes;
    float (*peak_read)(const float *p, size_t n);
    float (*peak_fma)(const float *x, int64_t n);
    float (*peak_bf16)(const float *x, int64_t n);
};

extern const struct kvl_kern kvl_kern_base;
#if defined(__x86_64__)
extern const struct kvl_kern kvl_kern_avx2, kvl_kern_avx512, kvl_kern_avx512bf16;
#endif

/* The kernels in use: the widest that this processor has, lowered by
 * KVL_ISA=scalar|avx2|avx512|avx512bf16. */
const struct kvl_kern *kvl_kern(void);
/* For tests: uses the kernels of this name from now on; false when the processor lacks them. */
bool kvl_kern_select(const char *name);

/* Memory of at least `bytes`, 64-byte aligned, valid until the next call; NULL when there is none.
 * It grows to its high-water mark and is never freed. */
void *kvl_cpu_scratch(size_t bytes);

/* Threads for work of about `ns` nanoseconds on one core: one when a team would cost more than it
 * saves. */
int kvl_team(double ns);

/* Makes sure that these positions are in the table.  NULL when memory is short. */
const struct kvl_rope_table *kvl_rope_prepare(const struct kvl_rope *rope, const int32_t *pos,
                                              int32_t n);
/* [n_rot]: cosines, then sines of one position, times mag; from the table or computed into tmp. */
const float *kvl_rope_row(const struct kvl_rope_table *t, int32_t pos, float *tmp);

/* Heads and channels of a span's results: kernels take 4, 2 or 1 heads and pairs of vectors. */
static inline int32_t kvl_span_heads(int32_t n_heads)
{
    return n_heads % 4 == 3 ? n_heads + 1 : n_heads;
}
static inline size_t kvl_span_pad(int32_t head_dim)
{
    return ((size_t)head_dim + 31) / 32 * 32;
}
size_t kvl_span_scratch(int32_t n_heads, int32_t head_dim);

/* gemm where its `blas` is set. */
int kvl_cpu_gemm_blas(const struct kvl_gemm_args *a);

/* attn_decode, with or without values: without, out is ignored, and lse may be NULL. */
int kvl_cpu_attend(const struct kvl_attn_decode_args *a, bool values);

#endif
