/* wtype.cuh - weights of every type in kernels, eight columns of a row at a time.
 *
 * A piece is what one lane takes of a row: eight neighbouring columns, or of Q4_0, whose bytes hold columns 16
 * apart, four and the four that share their bytes.  32 lanes take 32 neighbouring pieces, so that a warp reads
 * one stretch of memory.
 *
 * A type without kernels of its own (KVL_FAST false) is widened by its definition, byte by byte: for it kernels
 * are compiled in fewer forms.
 *
 * WIDE: loads of 16 bytes (plain types), of 4 (blocks of 34 and 18 bytes begin at even addresses only: words
 * around a piece are read and shifted) or of 2 (Q6_K in gemv_ints.cu, which has some of 4 for other types too).  Without it, loads of an element's size and any number of columns,
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

/* A piece as WIDE loads bring it, so that several can be under way before the first is widened: words, of which blocks
 * at even addresses have one more than they need, and their scale. */
template <int TYPE> struct kvl_raw {
    enum {
        BLOCK = TYPE == KVL_W_Q8_0 || TYPE == KVL_W_Q4_0,
        BYTES = TYPE == KVL_W_Q8_0 ? 34 : 18, /* of a block */
        PART = TYPE == KVL_W_Q8_0 ? 8 : 4,    /* of it in a piece */
        QUADS = BLOCK               ? 0
                : TYPE == KVL_W_F32 ? 2
                                    : 1
    };
    uint4 quad[QUADS > 0 ? QUADS : 1];
    uint32_t word[3];
    uint16_t scale;
};

/* WIDE rows begin at multiples of 4 and have an even number of blocks: the first block lies beside a multiple of 4,
 * the next one at it, and what the last word is shifted from is of the row too. */
template <int TYPE>
static __device__ inline void kvl_raw_load(struct kvl_raw<TYPE> *raw, const uint8_t *row,
                                           int32_t piece)
{
    typedef struct kvl_raw<TYPE> type;
    if constexpr (type::BLOCK) {
        const uint8_t *block = row + (size_t)(piece / 4) * type::BYTES;
        int32_t odd = piece / 4 % 2 == 0 ? 2 : 0;
        const uint8_t *p = block + 2 + piece % 4 * type::PART - odd;
        raw->scale = kvl_u16_at(block);
        for (int i = 0; i < type::PART / 4; i++) raw->word[i] = kvl_u32_at(p + 4 * i);
        raw->word[type::PART / 4] = odd ? kvl_u32_at(p + type::PART) : 0;
    } else {
        const uint4 *p = reinterpret_cast<const uint4 *>(row) + (size_t)piece * type::QUADS;
        for (int i = 0; i < type::QUADS; i++) raw->quad[i] = p[i];
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

static __device__ inline uint32_t kvl_quad_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* w [8] of the words of a piece of Q8_0 or Q4_0. */
template <int TYPE>
static __device__ inline void kvl_block_widen(float *w, const uint32_t *word, uint16_t scale)
{
    if (TYPE == KVL_W_Q8_0)
        kvl_q8_widen(w, word, kvl_float_of_half(scale));
    else
        kvl_q4_widen(w, word[0], kvl_float_of_half(scale));
}

/* Of F16 and BF16. */
template <int TYPE> static __device__ inline float kvl_half_widen(uint32_t half)
{
    return TYPE == KVL_W_F16 ? kvl_float_of_half((uint16_t)half) : kvl_float_of_bits(half << 16);
}

/* w [8] of what was loaded of piece `piece`. */
template <int TYPE>
static __device__ inline void kvl_raw_widen(float *w, const struct kvl_raw<TYPE> &raw,
                                            int32_t piece)
{
    typedef struct kvl_raw<TYPE> type;
    if constexpr (type::BLOCK) {
        uint32_t word[2] = {};
        for (int i = 0; i < type::PART / 4; i++)
            word[i] = piece / 4 % 2 == 0 ? raw.word[i] >> 16 | raw.word[i + 1] << 16 : raw.word[i];
        kvl_block_widen<TYPE>(w, word, raw.scale);
    } else if constexpr (TYPE == KVL_W_F32) {
        for (int i = 0; i < KVL_PIECE; i++)
            w[i] = kvl_float_of_bits(kvl_quad_word(raw.quad[i / 4], i % 4));
    } else {
        for (int i = 0; i < KVL_PIECE; i++)
            w[i] =
                kvl_half_widen<TYPE>(kvl_quad_word(raw.quad[0], i / 2) >> (16 * (i % 2)) & 0xffffu);
    }
}

/* w [8] of a type in words, element by element; columns past the end 0. */
template <int TYPE>
static __device__ inline void kvl_narrow_piece(float *w, const uint8_t *row, int32_t piece,
                                               int32_t n_cols)
{
    typedef struct kvl_raw<TYPE> type;
    if constexpr (type::BLOCK) {
        const uint8_t *block = row + (size_t)(piece / 4) * type::BYTES;
        const uint8_t *part = block + 2 + piece % 4 * type::PART;
        uint32_t word[2] = {};
        for (int i = 0; i < type::PART / 2; i++)
            word[i / 2] |= (uint32_t)kvl_u16_at(part + 2 * i) << (16 * (i % 2));
        kvl_block_widen<TYPE>(w, word, kvl_u16_at(block));
    } else {
        for (int i = 0; i < KVL_PIECE; i++) {
            int32_t c = piece * KVL_PIECE + i;
            if (TYPE == KVL_W_F32)
                w[i] = c < n_cols ? reinterpret_cast<const float *>(row)[c] : 0;
            else
                w[i] = kvl_half_widen<TYPE>(c < n_cols ? kvl_u16_at(row + 2 * (size_t)c) : 0u);
        }
    }
}

/* w [8]: piece `piece` of a row of n_cols columns. */
template <int TYPE, bool WIDE>
static __device__ inline void kvl_piece(float *w, const uint8_t *row, int32_t piece, int32_t n_cols)
{
    if constexpr (!kvl_wtype_is<TYPE>::fast) {
        kvl_block_piece<TYPE>(w, row, piece * KVL_PIECE);
    } else if constexpr (WIDE) {
        struct kvl_raw<TYPE> raw;
        kvl_raw_load<TYPE>(&raw, row, piece);
        kvl_raw_widen<TYPE>(w, raw, piece);
    } else {
        kvl_narrow_piece<TYPE>(w, row, piece, n_cols);
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
    if (w->type == KVL_W_Q4_1 || w->type == KVL_W_Q5_1) return at % 4 == 0 && w->row_bytes % 4 == 0;
    if (w->type == KVL_W_Q8_0 || w->type == KVL_W_Q4_0 || w->type == KVL_W_Q5_0)
        return at % 4 == 0 && w->row_bytes % 4 == 0 && w->n_cols % 64 == 0;
    if (w->type == KVL_W_Q6_K) return at % 2 == 0 && w->row_bytes % 2 == 0;
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
