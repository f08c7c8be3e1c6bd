/* wtype.cuh - weights of every type in kernels, eight columns of a row at a time.
 *
 * A piece is what one lane takes of a row: eight neighbouring columns, or of Q4_0, whose bytes hold columns 16
 * apart, four and the four that share their bytes.  32 lanes take 32 neighbouring pieces, so that a warp reads
 * one stretch of memory.
 *
 * A type without kernels of its own (KVL_FAST false) is widened by its definition, byte by byte: for it kernels
 * are compiled in fewer forms.
 *
 * WIDE: loads of 16 bytes (plain types) or of 4 (blocks of 34 and 18 bytes begin at even addresses only: words
 * around a piece are read and shifted).  Without it, loads of an element's size and any number of columns,
 * those past the end 0.  Values are the same. */
#ifndef KVL_CUDA_WTYPE_CUH
#define KVL_CUDA_WTYPE_CUH

#include "cuda.cuh"
#include "wtype.h"

#include <string.h>

enum { KVL_PIECE = 8 };

/* Types that kvl_piece reads in words. */
template <int TYPE> struct kvl_wtype_is {
    enum {
        value = TYPE,
        fast = TYPE == KVL_W_F32 || TYPE == KVL_W_F16 || TYPE == KVL_W_BF16 || TYPE == KVL_W_Q8_0 ||
               TYPE == KVL_W_Q4_0
    };
};

/* Calls `call` with a kvl_wtype_is of the type: the one place where a type becomes a template argument. */
template <class CALL> static inline void kvl_wtype_dispatch(enum kvl_wtype type, const CALL &call)
{
    switch (type) {
#define KVL_WTYPE_PLAIN(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        call(kvl_wtype_is<KVL_W_##name>());                                                        \
        break;
#define KVL_WTYPE_BLOCK(name, ...)                                                                 \
    case KVL_W_##name:                                                                             \
        call(kvl_wtype_is<KVL_W_##name>());                                                        \
        break;
#include "kvl/wtypes.def"
    }
}

/* The eight elements from column c on, c a multiple of 8, of a type in blocks: by the definition. */
template <int TYPE>
static __device__ inline void kvl_block_piece(float *w, const uint8_t *row, int32_t c)
{
    switch (TYPE) {
#define KVL_WTYPE_PLAIN(name, ...)
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, word, word2, exponent, eight, ...)          \
    case KVL_W_##name:                                                                             \
        eight(w, row + (size_t)(c / (elements)) * (bytes), c % (elements));                        \
        break;
#include "kvl/wtypes.def"
    }
}

static __device__ inline float kvl_float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static __device__ inline float kvl_float_of_half(uint16_t u)
{
    __half h;
    memcpy(&h, &u, sizeof h);
    return __half2float(h);
}

static __device__ inline uint16_t kvl_u16_at(const uint8_t *p)
{
    return *reinterpret_cast<const uint16_t *>(p);
}

static __device__ inline uint32_t kvl_u32_at(const uint8_t *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

/* Where the two halves of a piece begin. */
template <int TYPE> static __device__ inline int32_t kvl_piece_first(int32_t piece)
{
    return TYPE == KVL_W_Q4_0 ? piece / 4 * 32 + piece % 4 * 4 : piece * KVL_PIECE;
}
template <int TYPE> static __device__ inline int32_t kvl_piece_second(int32_t piece)
{
    return kvl_piece_first<TYPE>(piece) + (TYPE == KVL_W_Q4_0 ? 16 : 4);
}

/* Words from an even address.  WIDE: rows begin at multiples of 4 and have an even number of blocks, so that
 * what the last word is shifted from is of the row too. */
template <bool WIDE>
static __device__ inline void kvl_even_words(uint32_t *word, const uint8_t *p, int n_words)
{
    if (WIDE) {
        uint32_t odd = (uint32_t)(reinterpret_cast<uintptr_t>(p) & 2), at = kvl_u32_at(p - odd);
        for (int i = 0; i < n_words; i++) {
            uint32_t after = odd || i + 1 < n_words ? kvl_u32_at(p - odd + 4 * (i + 1)) : 0;
            word[i] = odd ? at >> 16 | after << 16 : at;
            at = after;
        }
    } else {
        for (int i = 0; i < n_words; i++)
            word[i] = (uint32_t)kvl_u16_at(p + 4 * i) | (uint32_t)kvl_u16_at(p + 4 * i + 2) << 16;
    }
}

/* Quantised elements times their scale, without conversions of integers, which run at a quarter of the speed:
 * a byte in the mantissa of 256 is 256 + byte, 16 + nibble likewise; one multiply-add takes the offset away
 * and is exact, but for infinite scales, which give NaN, and the sign of zeros. */
static __device__ inline void kvl_q8_widen(float *w, const uint32_t *word, float scale)
{
    float less = -384.0f * scale;
    for (int i = 0; i < KVL_PIECE; i++) {
        uint32_t byte = (word[i / 4] >> (8 * (i % 4)) & 0xffu) ^ 0x80u;
        w[i] = fmaf(kvl_float_of_bits(0x43800000u | byte << 15), scale, less);
    }
}

static __device__ inline void kvl_q4_widen(float *w, uint32_t word, float scale)
{
    float less = -24.0f * scale;
    for (int i = 0; i < KVL_PIECE; i++) {
        uint32_t nibble = word >> (8 * (i % 4) + i / 4 * 4) & 15u;
        w[i] = fmaf(kvl_float_of_bits(0x41800000u | nibble << 19), scale, less);
    }
}

template <bool WIDE>
static __device__ inline void kvl_f32_piece(float *w, const uint8_t *row, int32_t c0,
                                            int32_t n_cols)
{
    const float *p = reinterpret_cast<const float *>(row) + c0;
    if (WIDE) {
        float4 a = *reinterpret_cast<const float4 *>(p);
        float4 b = *reinterpret_cast<const float4 *>(p + 4);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
        w[4] = b.x, w[5] = b.y, w[6] = b.z, w[7] = b.w;
    } else {
        for (int i = 0; i < KVL_PIECE; i++) w[i] = c0 + i < n_cols ? p[i] : 0;
    }
}

/* Eight elements of 16 bits as they lie there. */
template <bool WIDE>
static __device__ inline void kvl_16bit_piece(uint16_t *h, const uint8_t *row, int32_t c0,
                                              int32_t n_cols)
{
    const uint8_t *p = row + 2 * (size_t)c0;
    if (WIDE) {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        uint32_t word[4] = { v.x, v.y, v.z, v.w };
        for (int i = 0; i < KVL_PIECE; i++) h[i] = (uint16_t)(word[i / 2] >> (16 * (i % 2)));
    } else {
        for (int i = 0; i < KVL_PIECE; i++)
            h[i] = c0 + i < n_cols ? kvl_u16_at(p + 2 * i) : (uint16_t)0;
    }
}

/* w [8]: piece `piece` of a row of n_cols columns. */
template <int TYPE, bool WIDE>
static __device__ inline void kvl_piece(float *w, const uint8_t *row, int32_t piece, int32_t n_cols)
{
    uint16_t h[KVL_PIECE];
    uint32_t word[2];
    const uint8_t *block = row + (size_t)(piece / 4) * (TYPE == KVL_W_Q8_0 ? 34 : 18);
    if (TYPE == KVL_W_F32) {
        kvl_f32_piece<WIDE>(w, row, piece * KVL_PIECE, n_cols);
    } else if (TYPE == KVL_W_Q8_0) {
        kvl_even_words<WIDE>(word, block + 2 + piece % 4 * 8, 2);
        kvl_q8_widen(w, word, kvl_float_of_half(kvl_u16_at(block)));
    } else if (TYPE == KVL_W_Q4_0) {
        kvl_even_words<WIDE>(word, block + 2 + piece % 4 * 4, 1);
        kvl_q4_widen(w, word[0], kvl_float_of_half(kvl_u16_at(block)));
    } else if (!kvl_wtype_is<TYPE>::fast) {
        kvl_block_piece<TYPE>(w, row, piece * KVL_PIECE);
    } else {
        kvl_16bit_piece<WIDE>(h, row, piece * KVL_PIECE, n_cols);
        for (int i = 0; i < KVL_PIECE; i++)
            w[i] = TYPE == KVL_W_F16 ? kvl_float_of_half(h[i])
                                     : kvl_float_of_bits((uint32_t)h[i] << 16);
    }
}

/* x [8]: the floats that a piece of this type is multiplied with. */
template <int TYPE, bool WIDE>
static __device__ inline void kvl_piece_x(float *x, const float *row, int32_t piece, int32_t n_cols)
{
    int32_t c[2] = { kvl_piece_first<TYPE>(piece), kvl_piece_second<TYPE>(piece) };
    for (int i = 0; i < 2; i++) {
        if (WIDE) {
            float4 v = *reinterpret_cast<const float4 *>(row + c[i]);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        } else {
            for (int j = 0; j < 4; j++) x[4 * i + j] = c[i] + j < n_cols ? row[c[i] + j] : 0;
        }
    }
}

/* Whether rows of w at `data` may be read WIDE. */
static inline bool kvl_wide_rows(const struct kvl_weight *w, const void *data)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(data);
    if (w->type == KVL_W_Q8_0 || w->type == KVL_W_Q4_0)
        return at % 4 == 0 && w->row_bytes % 4 == 0 && w->n_cols % 64 == 0;
    return at % 16 == 0 && w->row_bytes % 16 == 0 && w->n_cols % KVL_PIECE == 0;
}
static inline bool kvl_wide_floats(const float *x, int32_t n_cols)
{
    return reinterpret_cast<uintptr_t>(x) % 16 == 0 && n_cols % KVL_PIECE == 0;
}

/* From the first to the last element. */
static inline size_t kvl_weight_bytes(const struct kvl_weight *w)
{
    return (size_t)(w->n_rows - 1) * w->row_bytes + kvl_wtype_row_bytes(w->type, w->n_cols);
}

#endif
