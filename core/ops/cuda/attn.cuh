/* attn.cuh - what attention over paged lanes shares on a GPU: eight elements of a row at a time, sums
 * over lanes, angles. */
#ifndef KVL_ATTN_CUH
#define KVL_ATTN_CUH

#include "cuda.cuh"

#include <string.h>
#include <type_traits>

/* As kvl_cuda_attn_decode; without values `out` is not written and lse may be NULL. */
int kvl_cuda_attend(const struct kvl_attn_decode_args *a, bool values);

/* Element types by overload, so that kernels are templates over them. */
static __device__ inline float kvl_float(float x)
{
    return x;
}
static __device__ inline float kvl_float(__half x)
{
    return __half2float(x);
}
static __device__ inline float kvl_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

/* In the place of an element type: blocks of q8_0. */
struct kvl_q8 {
    uint8_t byte[KVL_KV_BLOCK_BYTES];
};

template <class T> static __device__ inline size_t kvl_row_bytes(int32_t dim)
{
    if constexpr (std::is_same<T, struct kvl_q8>::value)
        return kvl_cuda_row_bytes(KVL_KV_Q8_0, dim);
    else
        return (size_t)dim * sizeof(T);
}

template <class T> static __device__ inline float kvl_row_at(const uint8_t *row, int32_t i)
{
    if constexpr (std::is_same<T, struct kvl_q8>::value)
        return kvl_widen(KVL_KV_Q8_0, row, i);
    else
        return kvl_float(reinterpret_cast<const T *>(row)[i]);
}

/* Eight elements: pairs of 16 bits as one load brings them; of q8_0 eight bytes and a scale. */
struct __align__(16) kvl_eight
{
    uint32_t pair[4];
};
/* Elements 8 l .. 8 l + 7 of a row, which begins at a multiple of 16 bytes, in q8_0 of 4. */
template <class T>
static __device__ inline struct kvl_eight kvl_load_eight(const uint8_t *row, int32_t l)
{
    if constexpr (std::is_same<T, struct kvl_q8>::value) {
        const uint8_t *block = row + l / 4 * KVL_KV_BLOCK_BYTES;
        int32_t odd = l / 4 % 2 == 0 ? 2 : 0; /* bytes behind a whole word */
        const uint32_t *w = reinterpret_cast<const uint32_t *>(block + 2 + l % 4 * 8 - odd);
        uint32_t a = __ldg(w), b = __ldg(w + 1), c = odd ? __ldg(w + 2) : 0;
        uint32_t scale = __ldg(reinterpret_cast<const uint16_t *>(block));
        if (odd == 0) return { { a, b, scale, 0 } };
        return { { a >> 16 | b << 16, b >> 16 | c << 16, scale, 0 } };
    } else {
        uint4 w = __ldg(reinterpret_cast<const uint4 *>(row) + l);
        return { { w.x, w.y, w.z, w.w } };
    }
}
template <class T> static __device__ inline float kvl_eight_at(const struct kvl_eight &x, int i)
{
    if constexpr (std::is_same<T, struct kvl_q8>::value) {
        return kvl_q8_at((uint16_t)x.pair[2], (int8_t)(x.pair[i / 4] >> (i % 4 * 8) & 0xff));
    } else {
        uint16_t bits = (uint16_t)(x.pair[i / 2] >> (i % 2 * 16));
        T value;
        memcpy(&value, &bits, sizeof value);
        return kvl_float(value);
    }
}

/* Adds v[N] over L lanes that are S apart, N and L powers of two.  While there is more than one value,
 * a lane gives half of them away, so that values end up spread over the lanes: with N >= L lane i of
 * the L holds values i N / L .. of the sums, else value i N / L, which L / N lanes then share.  The sums
 * are those of a butterfly from the far lanes to the near ones, whatever N is. */
template <int N, int L, int S> static __device__ inline void kvl_fold(float *v)
{
    if constexpr (L > 1) {
        const int o = L / 2 * S;
        if constexpr (N > 1) {
            const bool upper = (threadIdx.x & o) != 0;
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                float give = upper ? v[i] : v[i + N / 2];
                float keep = upper ? v[i + N / 2] : v[i];
                v[i] = keep + __shfl_xor_sync(0xffffffffu, give, o);
            }
            kvl_fold<N / 2, L / 2, S>(v);
        } else {
            v[0] += __shfl_xor_sync(0xffffffffu, v[0], o);
            kvl_fold<1, L / 2, S>(v);
        }
    }
}

/* Cosine and sine of pos * inv_freq.  The angle is formed in double and brought to [-pi, pi] there, so that
 * floats do for the rest. */
static __device__ inline void kvl_turn(int32_t pos, double inv_freq, float *c, float *s)
{
    double angle = pos * inv_freq, turns = rint(angle * 0.15915494309189535);
    double rest = fma(-turns, 6.283185307179586, angle);
    float x = (float)fma(-turns, 2.4492935982947064e-16, rest);
    *c = cosf(x);
    *s = sinf(x);
}

/* struct kvl_rope as kernels see it. */
struct kvl_cuda_rope {
    const double *inv_freq; /* [half] */
    int32_t half, neox;
    float mag;
};

/* The elements of pair `p` of a head; pairs from `half` on hold what does not turn. */
static __device__ inline void kvl_rope_pair(const struct kvl_cuda_rope &r, int32_t p, int32_t *x,
                                            int32_t *y)
{
    bool apart = r.neox && p < r.half;
    *x = apart ? p : 2 * p;
    *y = apart ? p + r.half : 2 * p + 1;
}

static __device__ inline void kvl_rope_turn(const struct kvl_cuda_rope &r, int32_t p, int32_t pos,
                                            float *x, float *y)
{
    float c, s, x0 = *x, y0 = *y;
    if (p >= r.half) return;
    kvl_turn(pos, r.inv_freq[p], &c, &s);
    c *= r.mag;
    s *= r.mag;
    *x = x0 * c - y0 * s;
    *y = x0 * s + y0 * c;
}

/* `turns`: frequencies are needed. */
static inline struct kvl_cuda_rope kvl_cuda_rope_of(struct kvl_cuda_call *c,
                                                    const struct kvl_rope *rope, bool turns)
{
    struct kvl_cuda_rope r = {};
    if (!rope) return r;
    r.half = rope->n_rot / 2;
    r.neox = rope->style == KVL_ROPE_NEOX;
    r.mag = rope->mag;
    if (turns) r.inv_freq = kvl_cuda_in(c, rope->inv_freq, (size_t)r.half);
    return r;
}

#endif
