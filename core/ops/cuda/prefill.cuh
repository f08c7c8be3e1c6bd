/* prefill.cuh - what the operators share that multiply a chunk of queries with the keys of a lane.
 *
 * Keys come in tiles of PF_SLOTS.  A tile begins with the addresses of its rows in shared memory, so that
 * paged lanes, lists of slots and ranges cost the same, and a missing row (NULL) is zero and read from
 * nowhere.
 *
 * The float tile: 256 threads hold 4 rows by 4 slots each of a 64 x 64 tile of products, and later 4 rows by
 * 4 columns of every 64 columns of the output.  Thread t has rows 4 (t / 16) .. + 3: the 16 threads of a row
 * are neighbours in a warp, so that a softmax takes four shuffles.  Channels come in steps of PF_STEP,
 * turned, so that a step reads two vectors of four for 16 multiply-adds; any head_dim is padded with
 * zeros.  Every product is one chain of multiply-adds over the channels, every output one over the
 * slots: no bit depends on a row's neighbours. */
#ifndef KVL_PREFILL_CUH
#define KVL_PREFILL_CUH

#include "cuda.cuh"

enum {
    PF_THREADS = 256,
    PF_ROWS = 64,
    PF_SLOTS = 64,
    PF_STEP = 32,
    PF_STRIDE = PF_ROWS + 4, /* rows of four floats stay aligned */
    PF_MAX_DIM = 256,
};

/* Below every logit, and finite: a row may see nothing of its first tiles. */
#define PF_LOWEST (-1e30f)
#define PF_LOG2_E 1.44269504f
#define PF_LN_2   0.693147181f

/* Four floats that move at once. */
struct alignas(16) pf_four {
    float x[4];
};

/* Products x become out * tanh(in * x), which the scale makes capped logits of; in 0: they stay. */
struct pf_cap {
    float in, out;
};

static __device__ inline float pf_capped(const struct pf_cap &cap, float x)
{
    return cap.out * kvl_tanh(cap.in * x);
}

/* Of logits that are their products times `scale`. */
static inline struct pf_cap pf_cap_of(float cap, float scale)
{
    struct pf_cap c = {};
    if (cap > 0) c = { scale / cap, cap / scale };
    return c;
}

/* The queries of one head, one after the other: row r at q + r * step. */
struct pf_queries {
    const float *q;
    size_t step;
    int32_t n, head_dim;
    int32_t vectors; /* rows of queries are 16-byte aligned */
    int32_t group;   /* query heads of a kv head */
    struct pf_cap cap;
};

struct pf_step {
    float q[PF_STEP][PF_STRIDE], k[PF_STEP][PF_STRIDE]; /* [channel][row], [channel][slot] */
};

struct pf_shared {
    union {
        struct pf_step step;
        float v[PF_SLOTS][PF_ROWS]; /* [slot][column] */
    };
    float p[PF_SLOTS][PF_STRIDE]; /* weights: [slot][row] */
    const uint8_t *row[PF_SLOTS]; /* pf_row of each slot, or NULL */
};

/* The address of slot `slot` less the offset of a part: kvl_lane_row for all parts at once. */
static __device__ inline const uint8_t *pf_row(const struct kvl_cuda_lane *l, int32_t slot)
{
    return static_cast<const uint8_t *>(kvl_lane_row(l, KVL_PART_K, slot)) - l->off[KVL_PART_K];
}

/* Channels c .. c + 3 of a row that is not in q8_0, zero behind the last. */
static __device__ inline struct pf_four pf_load_plain(const void *row, enum kvl_kv_type type,
                                                      int32_t c, int32_t dim, bool vectors)
{
    struct pf_four y;
    if (type == KVL_KV_F32 && vectors && c + 4 <= dim)
        return *reinterpret_cast<const struct pf_four *>(static_cast<const float *>(row) + c);
    for (int32_t i = 0; i < 4; i++) y.x[i] = c + i < dim ? kvl_widen(type, row, c + i) : 0.0f;
    return y;
}

/* The same of one that is. */
static __device__ inline struct pf_four pf_load_q8(const uint8_t *row, int32_t c, int32_t dim)
{
    struct pf_four y = { { 0, 0, 0, 0 } };
    if (c >= dim) return y;
    const uint8_t *block = row + c / KVL_KV_BLOCK * KVL_KV_BLOCK_BYTES;
    const uint16_t *q = reinterpret_cast<const uint16_t *>(block + 2 + c % KVL_KV_BLOCK);
    uint16_t scale = *reinterpret_cast<const uint16_t *>(block);
    for (int32_t i = 0; i < 4; i++)
        y.x[i] = kvl_q8_at(scale, (int8_t)(q[i / 2] >> (i % 2 * 8) & 0xff));
    return y;
}

static __device__ inline struct pf_four pf_load(const void *row, enum kvl_kv_type type, int32_t c,
                                                int32_t dim, bool vectors)
{
    if (type == KVL_KV_Q8_0) return pf_load_q8(static_cast<const uint8_t *>(row), c, dim);
    return pf_load_plain(row, type, c, dim, vectors);
}

/* Channels c0 .. of all rows of queries from row0 on. */
static __device__ inline void pf_put_queries(struct pf_shared *sh, const struct pf_queries *q,
                                             int32_t row0, int32_t c0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < PF_ROWS * PF_STEP / 4; i += PF_THREADS) {
        int32_t r = i % PF_ROWS, c = i / PF_ROWS * 4;
        struct pf_four y = { { 0, 0, 0, 0 } };
        if (row0 + r >= 0 && row0 + r < q->n)
            y = pf_load(q->q + (size_t)(row0 + r) * q->step, KVL_KV_F32, c0 + c, q->head_dim,
                        q->vectors);
        for (int32_t j = 0; j < 4; j++) sh->step.q[c + j][r] = y.x[j];
    }
}

/* Four numbers of a key: channels c .. of slot s. */
static __device__ inline void pf_put_key(struct pf_shared *sh, int32_t s, int32_t c,
                                         const struct pf_four &y)
{
    for (int32_t j = 0; j < 4; j++) sh->step.k[c + j][s] = y.x[j];
}

/* q8_0 has a loop of its own, which is not unrolled: other types do not pay for its registers. */
static __device__ inline void pf_put_keys(struct pf_shared *sh, const struct kvl_cuda_lane *l,
                                          int32_t c0)
{
    const uint32_t off = l->off[KVL_PART_K];
    const int32_t n = PF_SLOTS * PF_STEP / 4, dim = l->head_dim;
    const struct pf_four none = { { 0, 0, 0, 0 } };
    if (l->type == KVL_KV_Q8_0) {
#pragma unroll 1
        for (int32_t i = (int32_t)threadIdx.x; i < n; i += PF_THREADS) {
            int32_t s = i % PF_SLOTS, c = i / PF_SLOTS * 4;
            pf_put_key(sh, s, c, sh->row[s] ? pf_load_q8(sh->row[s] + off, c0 + c, dim) : none);
        }
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += PF_THREADS) {
        int32_t s = i % PF_SLOTS, c = i / PF_SLOTS * 4;
        struct pf_four y = none;
        if (sh->row[s]) y = pf_load_plain(sh->row[s] + off, l->type, c0 + c, dim, dim % 4 == 0);
        pf_put_key(sh, s, c, y);
    }
}

static __device__ inline void pf_put_values(struct pf_shared *sh, const struct kvl_cuda_lane *l,
                                            int32_t c0)
{
    const uint32_t off = l->off[KVL_PART_V];
    const int32_t n = PF_SLOTS * PF_ROWS / 4, dim = l->head_dim;
    const struct pf_four none = { { 0, 0, 0, 0 } };
    if (l->type == KVL_KV_Q8_0) {
#pragma unroll 1
        for (int32_t i = (int32_t)threadIdx.x; i < n; i += PF_THREADS) {
            int32_t s = i / (PF_ROWS / 4), c = i % (PF_ROWS / 4) * 4;
            struct pf_four y = sh->row[s] ? pf_load_q8(sh->row[s] + off, c0 + c, dim) : none;
            *reinterpret_cast<struct pf_four *>(&sh->v[s][c]) = y;
        }
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += PF_THREADS) {
        int32_t s = i / (PF_ROWS / 4), c = i % (PF_ROWS / 4) * 4;
        struct pf_four y = none;
        if (sh->row[s]) y = pf_load_plain(sh->row[s] + off, l->type, c0 + c, dim, dim % 4 == 0);
        *reinterpret_cast<struct pf_four *>(&sh->v[s][c]) = y;
    }
}

/* Whether the 8 rows of the warp are rows of the chunk, some of them. */
static __device__ inline bool pf_has_rows(const struct pf_queries *q, int32_t row0)
{
    int32_t r = row0 + (int32_t)threadIdx.x / KVL_WARP * 8;
    return r + 8 > 0 && r < q->n;
}

/* s[i][j], zero before: row 4 (t / 16) + i times slot 4 (t % 16) + j.  sh->row is set; ends before its barrier.  A warp
 * without rows of the chunk only loads. */
static __device__ inline void pf_products(struct pf_shared *sh, const struct kvl_cuda_lane *l,
                                          const struct pf_queries *q, int32_t row0, float s[4][4])
{
    int32_t r = (int32_t)threadIdx.x / 16 * 4, t = (int32_t)threadIdx.x % 16 * 4;
    bool is = pf_has_rows(q, row0);
    for (int32_t c0 = 0; c0 < q->head_dim; c0 += PF_STEP) {
        __syncthreads(); /* what lay here has been read, and rows are known */
        pf_put_queries(sh, q, row0, c0);
        pf_put_keys(sh, l, c0);
        __syncthreads();
        for (int32_t c = 0; is && c < PF_STEP; c++) {
            struct pf_four x = *reinterpret_cast<const struct pf_four *>(&sh->step.q[c][r]);
            struct pf_four y = *reinterpret_cast<const struct pf_four *>(&sh->step.k[c][t]);
            for (int32_t i = 0; i < 4; i++)
                for (int32_t j = 0; j < 4; j++) s[i][j] = fmaf(x.x[i], y.x[j], s[i][j]);
        }
    }
    for (int32_t i = 0; q->cap.in > 0 && i < 16; i++)
        s[i / 4][i % 4] = pf_capped(q->cap, s[i / 4][i % 4]);
}

/* Over the 16 threads of a row. */
static __device__ inline float pf_row_max(float x)
{
    for (int o = 8; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
static __device__ inline float pf_row_sum(float x)
{
    for (int o = 8; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

#endif
