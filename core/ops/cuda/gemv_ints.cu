/* Decode projections of quantised weights, as products of integers.  x becomes 16-bit integers and a scale per 32
 * columns, as gemv_x.h says and on the CPU.  Sums of 16 columns (of Q6_K: 8) are integers, and exact.  __dp4a multiplies
 * four bytes at a time: x is its upper bytes, which have a sign, and its lower ones, which have none.
 *
 * A block of threads rounds x into shared memory while its first weights are on their way, and takes as many rows of W
 * as it can: there are two on a multiprocessor, or one (ints_per_sm).  A lane takes a piece of a block of W (ints_kind),
 * 32 lanes 32 neighbouring pieces.  Its sum is one chain over its pieces, the warp's a butterfly: neither the number of
 * rows of x nor where a row of W lies changes a bit.
 *
 * Limit: the bytes of W over the memory's bandwidth.  Where x does not fit into its room (ints_most_cols: of one row 16384
 * columns, of two to four 4096, of more 2048), every turn of a block rounds it anew. */
#include "gemv.cuh"
#include "gemv_x.h"

/* How a type is cut: a piece has WORDS words of four weights, in SUBS groups that have a scale each; PER_BLOCK
 * pieces are a block of BYTES bytes.  Words 2i and 2i + 1 are of eight columns that lie together.  ZERO is taken off
 * every weight.  OF_16: groups are 16 columns, whose sum of x is at hand.  LESS: a part of each group, no integer, is
 * taken off too (OF_16 alone).  LEAST: of types of 32 columns, whether a block begins with two halves, of which the
 * second is the least value, and at a multiple of four.  LOADED, HEAD: registers of a piece as it is loaded.  PIECES:
 * how many of those are asked for at once. */
template <int TYPE> struct ints_kind;
template <> struct ints_kind<KVL_W_Q8_0> {
    enum { COLS = 16, WORDS = 4, SUBS = 1, PER_BLOCK = 2, BYTES = 34, ZERO = 128 };
    enum { OF_16 = false, LESS = false, LEAST = false, LOADED = 5, HEAD = 1, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q4_0> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 1, BYTES = 18, ZERO = 8 };
    enum { OF_16 = true, LESS = false, LEAST = false, LOADED = 5, HEAD = 1, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q4_1> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 1, BYTES = 20, ZERO = 0 };
    enum { OF_16 = true, LESS = true, LEAST = true, LOADED = 4, HEAD = 1, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q5_0> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 1, BYTES = 22, ZERO = 16 };
    enum { OF_16 = true, LESS = false, LEAST = false, LOADED = 6, HEAD = 1, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q5_1> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 1, BYTES = 24, ZERO = 0 };
    enum { OF_16 = true, LESS = true, LEAST = true, LOADED = 5, HEAD = 1, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q4_K> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 8, BYTES = 144, ZERO = 0 };
    enum { OF_16 = true, LESS = true, LEAST = false, LOADED = 4, HEAD = 4, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q5_K> {
    enum { COLS = 32, WORDS = 8, SUBS = 2, PER_BLOCK = 8, BYTES = 176, ZERO = 0 };
    enum { OF_16 = true, LESS = true, LEAST = false, LOADED = 8, HEAD = 4, PIECES = 2 };
};
template <> struct ints_kind<KVL_W_Q6_K> {
    enum { COLS = 32, WORDS = 8, SUBS = 4, PER_BLOCK = 8, BYTES = 210, ZERO = 32 };
    enum { OF_16 = false, LESS = false, LEAST = false, LOADED = 12, HEAD = 5, PIECES = 1 };
};

/* ---- x ----------------------------------------------------------------------------------------------- */

enum {
    INTS_SUM = 16,   /* columns of a sum of x */
    INTS_SCALE = 32, /* of a scale */
    INTS_UNIT = 8,   /* of what is read at once */
    INTS_SWIZZLE = 64,
    INTS_AHEAD = 4 /* loads of x that a thread has under way while it is rounded */
};

/* Columns of x in shared memory at a time.  With one row most projections fit whole. */
static constexpr int32_t ints_most_cols(int n)
{
    return n == 1 ? 16384 : n <= 4 ? 4096 : 2048;
}

/* Rows of x in shared memory, `room` columns each.  A unit is the upper bytes of four columns, their lower bytes, the
 * same of the next four. */
struct ints_x {
    uint4 *unit;
    float *scale;
    int32_t *sum; /* of integers */
    int32_t room;
};

static __host__ __device__ inline size_t ints_bytes(int32_t n, int32_t room)
{
    return (size_t)n * (size_t)(2 * room + 4 * (room / INTS_SCALE) + 4 * (room / INTS_SUM));
}

static __device__ inline struct ints_x ints_rooms(uint4 *shared, int32_t n, int32_t room)
{
    struct ints_x x;
    x.unit = shared;
    x.scale = reinterpret_cast<float *>(x.unit + n * (room / INTS_UNIT));
    x.sum = reinterpret_cast<int32_t *>(x.scale + n * (room / INTS_SCALE));
    x.room = room;
    return x;
}

/* The unit of column c of row i.  Eight lanes that read at once would meet in the same banks: each 64 columns have an
 * order of their own, by which the eight find eight units. */
template <int TYPE> static __device__ inline int32_t ints_unit(int32_t room, int32_t i, int32_t c)
{
    const int32_t turn = c / INTS_SWIZZLE % 4;
    const int32_t by = ints_kind<TYPE>::PER_BLOCK == 1 ? turn : (turn & 1) | (turn & 2) << 1;
    return i * (room / INTS_UNIT) + (c / INTS_UNIT ^ by);
}

template <bool WIDE> static __device__ inline void ints_four(float *v, const float *x)
{
    if (WIDE) {
        float4 f = *reinterpret_cast<const float4 *>(x);
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    } else {
        for (int j = 0; j < 4; j++) v[j] = x[j];
    }
}

/* Columns c .. c + 3 of row i, by a lane of eight that share a scale; there: the row has them. */
template <int TYPE>
static __device__ inline void ints_round_four(const struct ints_x *x, const float *v, int32_t i,
                                              int32_t c, bool there)
{
    float top = 0, times;
    uint32_t high = 0, low = 0;
    int32_t sum = 0;
    for (int j = 0; j < 4; j++) /* fmaxf would drop a NaN */
        top = fabsf(v[j]) <= FLT_MAX ? fmaxf(top, fabsf(v[j])) : INFINITY;
    for (int o = INTS_SCALE / 8; o > 0; o /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    const float scale = kvl_gemv_scale(top, KVL_GEMV_MOST, &times);
    for (int j = 0; j < 4; j++) {
        int32_t q = kvl_gemv_round(v[j], times);
        high |= ((uint32_t)q >> 8 & 0xffu) << 8 * j;
        low |= ((uint32_t)q & 0xffu) << 8 * j;
        sum += q;
    }
    for (int o = INTS_SUM / 8; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (!there) return;
    reinterpret_cast<uint2 *>(x->unit + ints_unit<TYPE>(x->room, i, c))[c / 4 % 2] =
        make_uint2(high, low);
    if (c % INTS_SCALE == 0) x->scale[(i * x->room + c) / INTS_SCALE] = scale;
    if (c % INTS_SUM == 0) x->sum[(i * x->room + c) / INTS_SUM] = sum;
}

/* Columns col0 .. col0 + n_cols - 1 of the rows of a, by the whole block, four a thread.  INTS_AHEAD such fours are asked
 * for before the first is looked at; a warp goes on while one of its lanes has one. */
template <int TYPE, bool WIDE>
static __device__ void ints_round(const struct ints_x *x, const gemv_in *a, int32_t col0,
                                  int32_t n_cols)
{
    const int32_t fours = n_cols / 4, count = a->n * fours;
    const int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    for (int32_t warp0 = (int32_t)threadIdx.x - lane; warp0 < count;
         warp0 += INTS_AHEAD * GEMV_THREADS) {
        float v[INTS_AHEAD][4] = {};
        int32_t i[INTS_AHEAD] = {}, c[INTS_AHEAD] = {};
#pragma unroll
        for (int k = 0; k < INTS_AHEAD; k++) {
            const int32_t at = warp0 + k * GEMV_THREADS + lane;
            if (at >= count) continue;
            i[k] = at / fours;
            c[k] = at % fours * 4;
            ints_four<WIDE>(v[k], a->x + (size_t)i[k] * (size_t)a->n_cols + (size_t)(col0 + c[k]));
        }
#pragma unroll
        for (int k = 0; k < INTS_AHEAD; k++) {
            const int32_t from = warp0 + k * GEMV_THREADS;
            if (from < count) ints_round_four<TYPE>(x, v[k], i[k], c[k], from + lane < count);
        }
    }
}

/* ---- W ----------------------------------------------------------------------------------------------- */

/* A piece as it is loaded: nothing waits for it. */
template <int TYPE> struct ints_raw {
    uint32_t word[ints_kind<TYPE>::LOADED], head[ints_kind<TYPE>::HEAD];
};

static __device__ inline uint32_t ints_bytes_at(const uint8_t *p, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) v |= (uint32_t)p[i] << 8 * i;
    return v;
}

template <bool WIDE> static __device__ inline uint32_t ints_half_at(const uint8_t *p)
{
    return WIDE ? kvl_u16_at(p) : ints_bytes_at(p, 2);
}

template <bool WIDE> static __device__ inline void ints_quad_at(uint32_t *w, const uint8_t *p)
{
    if (WIDE) {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
        for (int i = 0; i < 4; i++) w[i] = ints_bytes_at(p + 4 * i, 4);
    }
}

/* What is behind the halves: 16 bytes, before them fifth bits.  As in kvl_raw_load: words at multiples of four, of
 * blocks that begin beside one. */
template <int TYPE, bool WIDE>
static __device__ inline void ints_load_32(struct ints_raw<TYPE> *raw, const uint8_t *block,
                                           int32_t part, bool beside)
{
    constexpr bool LEAST = ints_kind<TYPE>::LEAST;
    constexpr int WORDS = ints_kind<TYPE>::LOADED - !LEAST;
    const uint8_t *p = block + (LEAST ? 4 : 2) + part * 16 - (beside ? 2 : 0);
    if (LEAST)
        raw->head[0] = WIDE ? kvl_u32_at(block) : ints_bytes_at(block, 4);
    else
        raw->head[0] = ints_half_at<WIDE>(block);
    for (int i = 0; i < WORDS; i++)
        raw->word[i] = WIDE ? kvl_u32_at(p + 4 * i) : ints_bytes_at(p + 4 * i, 4);
    if (!LEAST) raw->word[ints_kind<TYPE>::LOADED - 1] = beside ? kvl_u32_at(p + 4 * WORDS) : 0;
}

/* Four low bits of 64 columns, four of 64, two more; one byte for each of four groups, their factor. */
template <bool WIDE>
static __device__ inline void ints_load_6(struct ints_raw<KVL_W_Q6_K> *raw, const uint8_t *block,
                                          int32_t part)
{
    const int32_t half = part / 4, at = part % 4 * 8;
    const uint8_t *low = block + 64 * half + at, *high = block + 128 + 32 * half + at;
    for (int i = 0; i < 4; i++) {
        raw->word[i] = ints_half_at<WIDE>(low + 2 * i);
        raw->word[4 + i] = ints_half_at<WIDE>(low + 32 + 2 * i);
        raw->word[8 + i] = ints_half_at<WIDE>(high + 2 * i);
    }
    for (int i = 0; i < 4; i++) raw->head[i] = block[192 + 8 * half + at / 16 + 2 * i];
    raw->head[4] = ints_half_at<WIDE>(block + 208);
}

/* Of pieces that lie 32 apart a lane finds the same part in every block, and blocks beside or at a multiple of four. */
template <int TYPE, bool WIDE>
static __device__ inline void ints_load(struct ints_raw<TYPE> *raw, const uint8_t *block,
                                        int32_t part, bool beside)
{
    typedef struct ints_kind<TYPE> kind;
    if constexpr (TYPE == KVL_W_Q6_K) {
        ints_load_6<WIDE>(raw, block, part);
    } else if constexpr (TYPE == KVL_W_Q4_K || TYPE == KVL_W_Q5_K) {
        ints_quad_at<WIDE>(raw->head, block);
        ints_quad_at<WIDE>(raw->word, block + kind::BYTES - 128 + 16 * part);
        if (TYPE == KVL_W_Q5_K)
            ints_quad_at<WIDE>(raw->word + kind::LOADED - 4, block + 16 + part % 2 * 16);
    } else {
        ints_load_32<TYPE, WIDE>(raw, block, part, beside);
    }
}

/* Weights as bytes, the scales of their groups, and what is taken off. */
template <int TYPE> struct ints_piece {
    uint32_t word[ints_kind<TYPE>::WORDS];
    float scale[ints_kind<TYPE>::SUBS], less[ints_kind<TYPE>::SUBS];
};

/* Of Q4_K and Q5_K: six bits of each of two neighbouring groups, the first of which is 2 * quarter: as bytes. */
static __device__ inline void ints_scales(uint32_t *scale, uint32_t *less, const uint32_t *head,
                                          int32_t quarter)
{
    const int32_t by = quarter % 2 * 16;
    const uint32_t a = head[1] >> by, b = head[2] >> by, c = head[3] >> by;
    *scale = quarter < 2 ? a & 0x3f3fu : (c & 0x0f0fu) | (a >> 2 & 0x3030u);
    *less = quarter < 2 ? b & 0x3f3fu : (c >> 4 & 0x0f0fu) | (b >> 2 & 0x3030u);
}

template <int TYPE>
static __device__ inline void ints_unpack_k(struct ints_piece<TYPE> *p,
                                            const struct ints_raw<TYPE> &raw, int32_t part)
{
    const float d = kvl_float_of_half((uint16_t)(raw.head[0] & 0xffffu));
    const float least = kvl_float_of_half((uint16_t)(raw.head[0] >> 16));
    uint32_t scale, less;
    ints_scales(&scale, &less, raw.head, part / 2);
    for (int s = 0; s < 2; s++) {
        p->scale[s] = d * (float)(scale >> 8 * s & 0xffu);
        p->less[s] = least * (float)(less >> 8 * s & 0xffu);
        for (int i = 0; i < 4; i++) {
            uint32_t w = raw.word[i] >> 4 * s & 0x0f0f0f0fu;
            if (TYPE == KVL_W_Q5_K)
                w |= (raw.word[ints_kind<TYPE>::LOADED - 4 + i] >> (part / 2 * 2 + s) & 0x01010101u)
                     << 4;
            p->word[4 * s + i] = w;
        }
    }
}

static __device__ inline void ints_unpack_6(struct ints_piece<KVL_W_Q6_K> *p,
                                            const struct ints_raw<KVL_W_Q6_K> &raw)
{
    const float d = kvl_float_of_half((uint16_t)raw.head[4]);
    for (int s = 0; s < 4; s++) {
        p->scale[s] = d * (float)(int8_t)raw.head[s];
        for (int i = 0; i < 2; i++) {
            const uint32_t *low = &raw.word[s % 2 * 4 + 2 * i], *high = &raw.word[8 + 2 * i];
            p->word[2 * s + i] = ((low[0] | low[1] << 16) >> s / 2 * 4 & 0x0f0f0f0fu) |
                                 ((high[0] | high[1] << 16) >> 2 * s & 0x03030303u) << 4;
        }
    }
}

/* Bits 0 to 3 as the fifth ones of four bytes. */
static __device__ inline uint32_t ints_fifth(uint32_t bits)
{
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/* Of 16 bytes of a block of Q8_0, or the nibbles of other types, with their fifth bits. */
template <int TYPE>
static __device__ inline void ints_unpack_32(struct ints_piece<TYPE> *p,
                                             const struct ints_raw<TYPE> &raw, bool beside)
{
    constexpr bool LEAST = ints_kind<TYPE>::LEAST, FIVE = TYPE == KVL_W_Q5_0 || TYPE == KVL_W_Q5_1;
    constexpr int WORDS = ints_kind<TYPE>::LOADED - !LEAST, LAST = ints_kind<TYPE>::WORDS - 4;
    const float d = kvl_float_of_half((uint16_t)(raw.head[0] & 0xffffu));
    const float least = LEAST ? kvl_float_of_half((uint16_t)(raw.head[0] >> 16)) : 0;
    uint32_t word[WORDS];
    for (int i = 0; i < WORDS; i++)
        word[i] = !LEAST && beside ? raw.word[i] >> 16 | raw.word[i + !LEAST] << 16 : raw.word[i];
    for (int i = 0; i < 4; i++) {
        const uint32_t w = word[FIVE + i];
        p->word[i] = TYPE == KVL_W_Q8_0 ? w : w & 0x0f0f0f0fu;
        if (TYPE != KVL_W_Q8_0) p->word[LAST + i] = w >> 4 & 0x0f0f0f0fu;
        if (FIVE) p->word[i] |= ints_fifth(word[0] >> 4 * i);
        if (FIVE) p->word[LAST + i] |= ints_fifth(word[0] >> (16 + 4 * i));
    }
    for (int s = 0; s < ints_kind<TYPE>::SUBS; s++) {
        p->scale[s] = d;
        p->less[s] = -least;
    }
}

template <int TYPE>
static __device__ inline void
ints_unpack(struct ints_piece<TYPE> *p, const struct ints_raw<TYPE> &raw, int32_t part, bool beside)
{
    if constexpr (TYPE == KVL_W_Q6_K)
        ints_unpack_6(p, raw);
    else if constexpr (TYPE == KVL_W_Q4_K || TYPE == KVL_W_Q5_K)
        ints_unpack_k<TYPE>(p, raw, part);
    else
        ints_unpack_32<TYPE>(p, raw, beside);
}

/* The first column of word i of a lane's first piece; 32 pieces are a turn. */
template <int TYPE> static __device__ inline int32_t ints_col(int32_t lane, int i)
{
    typedef struct ints_kind<TYPE> kind;
    const int32_t part = lane % kind::PER_BLOCK;
    const int32_t block = lane / kind::PER_BLOCK * (kind::PER_BLOCK * kind::COLS);
    if (kind::HEAD == 1) return block + 16 * part + 4 * i;
    if (TYPE == KVL_W_Q6_K) return block + part / 4 * 128 + part % 4 * 8 + i / 2 * 32 + i % 2 * 4;
    return block + part / 2 * 64 + part % 2 * 16 + i / 4 * 32 + i % 4 * 4;
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* What a lane has in every turn. */
template <int TYPE, int R> struct ints_lane {
    enum {
        COLS =
            KVL_WARP * ints_kind<TYPE>::COLS, /* of a turn: whole swizzles, 256 columns at least */
        BYTES = KVL_WARP / ints_kind<TYPE>::PER_BLOCK * ints_kind<TYPE>::BYTES
    };
    const uint8_t *block[R]; /* of each row, of turn 0 */
    int32_t lane, part;
    bool beside;
    int32_t turns, last; /* turns that are its own; the last one that may be loaded */
};

/* Words of x that belong to those of a piece: of row i, in one turn. */
template <int TYPE>
static __device__ inline void ints_x_of(uint32_t *high, uint32_t *low, const struct ints_x *x,
                                        int32_t i, int32_t lane, int32_t turn)
{
    typedef struct ints_kind<TYPE> kind;
    const uint4 *from =
        x->unit + (i * (x->room / INTS_UNIT) + turn * (ints_lane<TYPE, 1>::COLS / INTS_UNIT));
#pragma unroll
    for (int k = 0; k < kind::WORDS; k += 2) {
        uint4 v = from[ints_unit<TYPE>(0, 0, ints_col<TYPE>(lane, k))];
        high[k] = v.x, low[k] = v.y, high[k + 1] = v.z, low[k + 1] = v.w;
    }
}

/* The sum of n words of weights times those of x; OF_16: their ZERO is not taken off yet.  Weights of Q8_0 have a sign,
 * which the lower bytes of x do not: 128 more is multiplied with them and taken off. */
template <int TYPE>
static __device__ inline int32_t ints_dot(const uint32_t *w, const uint32_t *high,
                                          const uint32_t *low, int n)
{
    constexpr bool SIGNED = TYPE == KVL_W_Q8_0;
    constexpr int32_t ZERO = ints_kind<TYPE>::OF_16 ? 0 : ints_kind<TYPE>::ZERO;
    int32_t upper = 0, uppers = 0;
    uint32_t lower = 0, lowers = 0;
#pragma unroll
    for (int k = 0; k < n; k++) {
        upper = __dp4a((int)high[k], (int)w[k], upper);
        lower = __dp4a(low[k], SIGNED ? w[k] ^ 0x80808080u : w[k], lower);
        if (ZERO && !SIGNED) uppers = __dp4a((int)high[k], 0x01010101, uppers);
        if (ZERO) lowers = __dp4a(low[k], 0x01010101u, lowers);
    }
    return 256 * (upper - ZERO * uppers) + ((int32_t)lower - ZERO * (int32_t)lowers);
}

/* A piece of R rows of W times N rows of x, of which there are n. */
template <int TYPE, int N, int R>
static __device__ inline void ints_step(float (*sum)[N], const struct ints_piece<TYPE> *p,
                                        const struct ints_x *x, int32_t n, int32_t lane,
                                        int32_t turn)
{
    typedef struct ints_kind<TYPE> kind;
    constexpr int WORDS = kind::WORDS / kind::SUBS;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int32_t at = i < n ? i : n - 1; /* rows that are not there: the last one again */
        uint32_t high[kind::WORDS], low[kind::WORDS];
        ints_x_of<TYPE>(high, low, x, at, lane, turn);
#pragma unroll
        for (int s = 0; s < kind::SUBS; s++) {
            const int32_t c = ints_col<TYPE>(lane, s * WORDS);
            const int32_t first = at * x->room + turn * ints_lane<TYPE, R>::COLS;
            const float scale = x->scale[first / INTS_SCALE + c / INTS_SCALE];
            const int32_t ones = kind::OF_16 ? x->sum[first / INTS_SUM + c / INTS_SUM] : 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                int32_t dot =
                    ints_dot<TYPE>(p[r].word + s * WORDS, high + s * WORDS, low + s * WORDS, WORDS);
                if (kind::OF_16) dot -= kind::ZERO * ones;
                sum[r][i] = fmaf(p[r].scale[s] * scale, (float)dot, sum[r][i]);
                if (kind::LESS) sum[r][i] = fmaf(-(p[r].less[s] * scale), (float)ones, sum[r][i]);
            }
        }
    }
}

/* Two such sets are used by turns: one is under way while the other is multiplied. */
template <int TYPE, int R> struct ints_sets {
    enum { SETS = 2, PIECES = KVL_MAX(1, (int)ints_kind<TYPE>::PIECES / R) };
    struct ints_raw<TYPE> raw[SETS][PIECES][R];
};

/* Without a branch, so that all are under way at once: what is past the last turn is that one again. */
template <int TYPE, bool WIDE, int R>
static __device__ inline void ints_ask(struct ints_raw<TYPE> (*set)[R],
                                       const struct ints_lane<TYPE, R> *l, int32_t turn)
{
#pragma unroll
    for (int i = 0; i < ints_sets<TYPE, R>::PIECES; i++) {
        const int32_t at = turn + i < l->last ? turn + i : l->last;
#pragma unroll
        for (int r = 0; r < R; r++)
            ints_load<TYPE, WIDE>(&set[i][r],
                                  l->block[r] + (size_t)at * (ints_lane<TYPE, R>::BYTES), l->part,
                                  l->beside);
    }
}

template <int TYPE, bool WIDE, int N, int R>
static __device__ inline void ints_walk(float (*sum)[N], struct ints_sets<TYPE, R> *sets,
                                        const struct ints_lane<TYPE, R> *l, const struct ints_x *x,
                                        int32_t n)
{
    typedef struct ints_sets<TYPE, R> ring;
    for (int32_t turn = 0; turn < l->turns; turn += ring::SETS * ring::PIECES)
#pragma unroll
        for (int s = 0; s < ring::SETS; s++) {
            const int32_t from = turn + s * ring::PIECES;
#pragma unroll
            for (int i = 0; i < ring::PIECES; i++) {
                struct ints_piece<TYPE> p[R];
                if (from + i >= l->turns) continue;
#pragma unroll
                for (int r = 0; r < R; r++)
                    ints_unpack<TYPE>(&p[r], sets->raw[s][i][r], l->part, l->beside);
                ints_step<TYPE, N, R>(sum, p, x, n, l->lane, from + i);
            }
            if (from + ring::SETS * ring::PIECES <= l->last)
                ints_ask<TYPE, WIDE, R>(sets->raw[s], l, from + ring::SETS * ring::PIECES);
        }
}

/* Of n pieces from piece `first` of the rows on; own: the rows are there.  A lane without a piece loads the last one. */
template <int TYPE, bool WIDE, int R>
static __device__ inline void ints_begin(struct ints_lane<TYPE, R> *l, const uint8_t *const *row,
                                         int32_t first, int32_t n, bool own)
{
    typedef struct ints_kind<TYPE> kind;
    const int32_t lane = (int32_t)(threadIdx.x % KVL_WARP), at = lane < n ? lane : n - 1;
    l->lane = lane;
    l->part = at % kind::PER_BLOCK;
    l->beside = WIDE && kind::HEAD == 1 && !ints_kind<TYPE>::LEAST && at / kind::PER_BLOCK % 2 == 0;
    l->last = (n - 1 - at) / KVL_WARP;
    l->turns = own && lane < n ? l->last + 1 : 0;
#pragma unroll
    for (int r = 0; r < R; r++)
        l->block[r] =
            row[r] + (size_t)(first / kind::PER_BLOCK + at / kind::PER_BLOCK) * kind::BYTES;
}

/* Blocks beside each other on a multiprocessor; one where two would leave too few registers. */
static constexpr int ints_per_sm(int type, int n, int r)
{
    return (type == KVL_W_Q6_K && r == 2) || (type == KVL_W_Q5_K && n == 8) ? 1 : 2;
}

/* `room`: columns of x at a time.  Where they are not all of them, every turn of a block rounds them anew.  They are whole
 * turns of the lanes, so that a column is the same lane's whatever the room. */
template <int TYPE, bool WIDE, int N, int R, bool GATED>
static __global__ void __launch_bounds__(GEMV_THREADS, ints_per_sm(TYPE, N, R))
    gemv_ints(const gemv_in a, int32_t n_blocks, int32_t room)
{
    constexpr int OUT = GATED ? 1 : R, COLS = ints_kind<TYPE>::COLS;
    typedef struct ints_sets<TYPE, R> ring;
    KVL_SHARED(uint4, shared);
    const struct ints_x x = ints_rooms(shared, a.n, room);
    const int32_t warp = (int32_t)threadIdx.x / KVL_WARP;
    bool rounded = false;
    for (int32_t block = (int32_t)blockIdx.x; block < n_blocks; block += (int32_t)gridDim.x) {
        const gemv_matrix *of = &a.matrix[gemv_matrix_at(&a, block)];
        const int32_t row0 = ((block - of->block0) * GEMV_WARPS + warp) * OUT;
        const uint8_t *row[R];
        float sum[R][N] = {};
        gemv_rows_at<R, GATED>(row, of, row0);
        for (int32_t col0 = 0; col0 < a.n_cols; col0 += room) {
            const int32_t n_cols = room < a.n_cols - col0 ? room : a.n_cols - col0;
            struct ints_lane<TYPE, R> l;
            ring sets;
            ints_begin<TYPE, WIDE, R>(&l, row, col0 / COLS, n_cols / COLS, row0 < of->n_rows);
#pragma unroll
            for (int s = 0; s < ring::SETS; s++)
                ints_ask<TYPE, WIDE, R>(sets.raw[s], &l, s * ring::PIECES);
            if (!rounded) {
                __syncthreads(); /* all have read what was there */
                ints_round<TYPE, WIDE>(&x, &a, col0, n_cols);
                __syncthreads();
            }
            rounded = room >= a.n_cols;
            ints_walk<TYPE, WIDE, N, R>(sum, &sets, &l, &x, a.n);
        }
        gemv_finish<N, R, GATED>(of, sum, row0, a.n);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

/* ints_per_sm blocks a multiprocessor, or so many fewer that each takes as many rows as the others. */
template <int TYPE, bool WIDE, int N, int R, bool GATED> static void ints_start(gemv_in *in)
{
    const int32_t n_blocks = gemv_blocks(in, GEMV_WARPS * (GATED ? 1 : R));
    const int32_t turns =
        kvl_ceil_div(n_blocks, ints_per_sm(TYPE, N, R) * kvl_cuda_multiprocessors());
    const int32_t all = kvl_ceil_div(in->n_cols, INTS_SWIZZLE) * INTS_SWIZZLE;
    const int32_t room = KVL_MIN(all, ints_most_cols(N));
    static_assert(ints_most_cols(N) % ints_lane<TYPE, R>::COLS == 0, "bits would depend on n");
    KVL_LAUNCH((gemv_ints<TYPE, WIDE, N, R, GATED>), (unsigned)kvl_ceil_div(n_blocks, turns),
               GEMV_THREADS, ints_bytes(in->n, room), *in, n_blocks, room);
}

/* Two rows of W a warp halve the reads of x: for one row of x where that leaves every multiprocessor a block, for more
 * rows of x always. */
template <int TYPE> static void ints_launch(gemv_in *in, bool wide, bool gated)
{
    const bool many = TYPE != KVL_W_Q6_K && /* two of its rows are a block a multiprocessor */
                      gemv_n_rows(in) >= 2 * GEMV_WARPS * kvl_cuda_multiprocessors();
    assert(wide || !gated);
    if (!wide && in->n == 1)
        ints_start<TYPE, false, 1, 1, false>(in);
    else if (!wide)
        ints_start<TYPE, false, 8, 1, false>(in);
    else if (gated && in->n == 1)
        ints_start<TYPE, true, 1, 2, true>(in);
    else if (gated && in->n <= 4)
        ints_start<TYPE, true, 4, 2, true>(in);
    else if (gated)
        ints_start<TYPE, true, 8, 2, true>(in);
    else if (in->n == 1 && many)
        ints_start<TYPE, true, 1, 2, false>(in);
    else if (in->n == 1)
        ints_start<TYPE, true, 1, 1, false>(in);
    else if (in->n <= 4)
        ints_start<TYPE, true, 4, 2, false>(in);
    else
        ints_start<TYPE, true, 8, 2, false>(in);
}

void kvl_cuda_gemv_ints(gemv_in *in, enum kvl_wtype type, bool wide, bool gated)
{
    kvl_wtype_dispatch(type, [&](auto t) {
        constexpr int TYPE = decltype(t)::value;
        if constexpr (kvl_gemv_has_ints(TYPE)) ints_launch<TYPE>(in, wide, gated);
    });
}
