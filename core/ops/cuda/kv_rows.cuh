/* kv_rows.cuh - stores whose keys and values are not all of one type that kernels of attention read in place (f32, f16,
 * bf16, q8_0): rows are quantised, widened and rounded here, and attention sees lanes of floats. */
#ifndef KVL_KV_ROWS_CUH
#define KVL_KV_ROWS_CUH

#include "cuda.cuh"

/* A lane as it is stored; blocks[b] + off[part] are the rows of slot 0 of block b. */
struct kvl_kept_lane {
    const uint8_t *const *blocks;
    int32_t block_shift, head_dim;
    enum kvl_kv_type type[3];
    uint32_t off[3], row[3]; /* row: bytes of one */
};

/* One of three by selection: parameters of a kernel that are indexed are copied to memory of every thread. */
template <class T> static __device__ inline T kvl_third(const T *of, unsigned i)
{
    return i == 0 ? of[0] : i == 1 ? of[1] : of[2];
}

static inline bool kvl_cuda_is_kept(const struct kvl_layout *l)
{
    return l->type[KVL_PART_K] != l->type[KVL_PART_V] || l->type[KVL_PART_K] > KVL_KV_Q8_0;
}

/* What kernels of attention see of a lane: the type of its rows, and where parts begin in a block. */
static inline enum kvl_kv_type kvl_cuda_type(const struct kvl_layout *l)
{
    return kvl_cuda_is_kept(l) ? KVL_KV_F32 : l->type[KVL_PART_K];
}
static inline uint32_t kvl_cuda_off(const struct kvl_layout *l, int part)
{
    if (!kvl_cuda_is_kept(l)) return (uint32_t)l->part_off[part];
    return (uint32_t)part * (uint32_t)l->block_tok * (uint32_t)l->head_dim *
           (uint32_t)sizeof(float);
}

/* A lane as it is stored, for kernels (call.cu). */
struct kvl_kept_lane kvl_cuda_kept(struct kvl_cuda_call *c, const struct kvl_lane *lane);

/* Rows slot0 .. slot0 + n - 1 of a part, `stride` floats apart; given to the call's stream. */
void kvl_cuda_rows_read(const struct kvl_kept_lane *lane, int part, int32_t slot0, int32_t n,
                        float *out, size_t stride);
/* The blocks of a lane of floats in memory of the call, as kvl_cuda_type and kvl_cuda_off tell. */
const uint8_t *const *kvl_cuda_rows_widen(struct kvl_cuda_call *c, const struct kvl_kept_lane *lane,
                                          const struct kvl_layout *l, int32_t n_slots);
/* Rows of spans, from arrays [...][n_kv_heads][head_dim]. */
void kvl_cuda_rows_put(const struct kvl_layout *l, const float *const *part,
                       const struct kvl_kv_span *span, int32_t n_spans, int32_t n_kv_heads);
/* n rows of head_dim, in place. */
void kvl_cuda_rows_round(enum kvl_kv_type type, float *x, int32_t n, int32_t head_dim);

#endif
