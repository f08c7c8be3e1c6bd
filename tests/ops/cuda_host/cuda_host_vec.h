/* cuda_host_vec.h - vector types, integer and float intrinsics of device code, for the host emulation.
 *
 * Rounding is that of a GPU where the meaning is exact; approximate intrinsics (__expf, rsqrtf ...) are the
 * exact functions here. */
#ifndef KVL_CUDA_HOST_VEC_H
#define KVL_CUDA_HOST_VEC_H

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KVL_EMU_VEC(T, name, a1, a2, a4)                                                           \
    struct alignas(a1) name##1                                                                     \
    {                                                                                              \
        T x;                                                                                       \
    };                                                                                             \
    struct alignas(a2) name##2                                                                     \
    {                                                                                              \
        T x, y;                                                                                    \
    };                                                                                             \
    struct name##3                                                                                 \
    {                                                                                              \
        T x, y, z;                                                                                 \
    };                                                                                             \
    struct alignas(a4) name##4                                                                     \
    {                                                                                              \
        T x, y, z, w;                                                                              \
    };                                                                                             \
    static inline name##1 make_##name##1(T x)                                                      \
    {                                                                                              \
        return { x };                                                                              \
    }                                                                                              \
    static inline name##2 make_##name##2(T x, T y)                                                 \
    {                                                                                              \
        return { x, y };                                                                           \
    }                                                                                              \
    static inline name##3 make_##name##3(T x, T y, T z)                                            \
    {                                                                                              \
        return { x, y, z };                                                                        \
    }                                                                                              \
    static inline name##4 make_##name##4(T x, T y, T z, T w)                                       \
    {                                                                                              \
        return { x, y, z, w };                                                                     \
    }
KVL_EMU_VEC(signed char, char, 1, 2, 4)
KVL_EMU_VEC(unsigned char, uchar, 1, 2, 4)
KVL_EMU_VEC(short, short, 2, 4, 8)
KVL_EMU_VEC(unsigned short, ushort, 2, 4, 8)
KVL_EMU_VEC(int, int, 4, 8, 16)
KVL_EMU_VEC(unsigned, uint, 4, 8, 16)
KVL_EMU_VEC(float, float, 4, 8, 16)
KVL_EMU_VEC(long long, longlong, 8, 16, 16)
KVL_EMU_VEC(unsigned long long, ulonglong, 8, 16, 16)
KVL_EMU_VEC(double, double, 8, 16, 16)
#undef KVL_EMU_VEC

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

/* ---- bits ------------------------------------------------------------------------------------------- */

template <class To, class From> static inline To kvl_emu_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

static inline int __float_as_int(float x)
{
    return kvl_emu_bits<int>(x);
}
static inline unsigned __float_as_uint(float x)
{
    return kvl_emu_bits<unsigned>(x);
}
static inline float __int_as_float(int x)
{
    return kvl_emu_bits<float>(x);
}
static inline float __uint_as_float(unsigned x)
{
    return kvl_emu_bits<float>(x);
}
static inline long long __double_as_longlong(double x)
{
    return kvl_emu_bits<long long>(x);
}
static inline double __longlong_as_double(long long x)
{
    return kvl_emu_bits<double>(x);
}
static inline int __double2hiint(double x)
{
    return (int)(kvl_emu_bits<uint64_t>(x) >> 32);
}
static inline int __double2loint(double x)
{
    return (int)kvl_emu_bits<uint64_t>(x);
}
static inline double __hiloint2double(int hi, int lo)
{
    return kvl_emu_bits<double>((uint64_t)(unsigned)hi << 32 | (unsigned)lo);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
    return __builtin_popcountll(x);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}
static inline unsigned long long __brevll(unsigned long long x)
{
    unsigned long long r = 0;
    for (int i = 0; i < 64; i++) r |= (x >> i & 1u) << (63 - i);
    return r;
}
static inline unsigned __brev(unsigned x)
{
    return (unsigned)(__brevll(x) >> 32);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        unsigned pick = s >> 4 * i & 0xf, b = (unsigned)(both >> 8 * (pick & 7)) & 0xff;
        if (pick & 8) b = b & 0x80 ? 0xff : 0;
        r |= b << 8 * i;
    }
    return r;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) << (s & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s)
{
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (s & 31));
}
static inline int __mul24(int x, int y)
{
    int64_t a = (int64_t)((uint64_t)x << 40) >> 40, b = (int64_t)((uint64_t)y << 40) >> 40;
    return (int)(unsigned)(uint64_t)(a * b);
}
static inline int __mulhi(int x, int y)
{
    return (int)((int64_t)x * y >> 32);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y)
{
    __extension__ typedef unsigned __int128 wide;
    return (unsigned long long)((wide)x * y >> 64);
}
static inline int __dp4a(int a, int b, int c)
{
    unsigned s = (unsigned)c;
    for (int i = 0; i < 4; i++)
        s += (unsigned)((int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i));
    return (int)s;
}
static inline unsigned __dp4a(unsigned a, unsigned b, unsigned c)
{
    for (int i = 0; i < 4; i++) c += (a >> 8 * i & 0xff) * (b >> 8 * i & 0xff);
    return c;
}

/* ---- floats ----------------------------------------------------------------------------------------- */

/* libc has names of its own that these would collide with. */
#define __expf(x)    expf(x)
#define __exp10f(x)  powf(10.0f, x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __log10f(x)  log10f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __powf(x, y) powf(x, y)

#define KVL_EMU_1(T, name, expr)                                                                   \
    static inline T name(T x)                                                                      \
    {                                                                                              \
        return expr;                                                                               \
    }
#define KVL_EMU_2(T, name, expr)                                                                   \
    static inline T name(T x, T y)                                                                 \
    {                                                                                              \
        return expr;                                                                               \
    }
KVL_EMU_1(float, __frcp_rn, 1.0f / x)
KVL_EMU_1(float, __fsqrt_rn, sqrtf(x))
KVL_EMU_1(float, __frsqrt_rn, (float)(1.0 / sqrt((double)x)))
KVL_EMU_1(float, rsqrtf, (float)(1.0 / sqrt((double)x)))
KVL_EMU_1(float, __saturatef, x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f)
KVL_EMU_1(double, rsqrt, 1.0 / sqrt(x))
KVL_EMU_1(double, __dsqrt_rn, sqrt(x))
KVL_EMU_2(float, __fadd_rn, x + y)
KVL_EMU_2(float, __fsub_rn, x - y)
KVL_EMU_2(float, __fmul_rn, x *y)
KVL_EMU_2(float, __fdiv_rn, x / y)
KVL_EMU_2(float, __fdividef, x / y)
KVL_EMU_2(float, fdividef, x / y)
KVL_EMU_2(double, __dadd_rn, x + y)
KVL_EMU_2(double, __dsub_rn, x - y)
KVL_EMU_2(double, __dmul_rn, x *y)
KVL_EMU_2(double, __ddiv_rn, x / y)
#undef KVL_EMU_1
#undef KVL_EMU_2
static inline float __fmaf_rn(float x, float y, float z)
{
    return fmaf(x, y, z);
}
static inline double __fma_rn(double x, double y, double z)
{
    return fma(x, y, z);
}

/* Conversions to integers saturate on a GPU; a NaN gives 0. */
template <class T> static inline T kvl_emu_saturate(double x)
{
    const double lo = (double)(sizeof(T) == 8 ? (T)-1 < 0 ? LLONG_MIN : 0
                               : (T)-1 < 0    ? INT_MIN
                                              : 0);
    const double hi = ldexp(1.0, (int)sizeof(T) * 8 - ((T)-1 < 0 ? 1 : 0));
    if (x != x) return 0;
    if (x < lo) return (T)((T)-1 < 0 ? (T)((uint64_t)1 << (sizeof(T) * 8 - 1)) : 0);
    if (x >= hi) return (T)((T)-1 < 0 ? ((uint64_t)1 << (sizeof(T) * 8 - 1)) - 1 : UINT64_MAX);
    return (T)x;
}
#define KVL_EMU_TO(from, F, to, T)                                                                 \
    static inline T __##from##2##to##_rn(F x)                                                      \
    {                                                                                              \
        return kvl_emu_saturate<T>(nearbyint((double)x));                                          \
    }                                                                                              \
    static inline T __##from##2##to##_rz(F x)                                                      \
    {                                                                                              \
        return kvl_emu_saturate<T>(trunc((double)x));                                              \
    }                                                                                              \
    static inline T __##from##2##to##_rd(F x)                                                      \
    {                                                                                              \
        return kvl_emu_saturate<T>(floor((double)x));                                              \
    }                                                                                              \
    static inline T __##from##2##to##_ru(F x)                                                      \
    {                                                                                              \
        return kvl_emu_saturate<T>(ceil((double)x));                                               \
    }
KVL_EMU_TO(float, float, int, int)
KVL_EMU_TO(float, float, uint, unsigned)
KVL_EMU_TO(float, float, ll, long long)
KVL_EMU_TO(float, float, ull, unsigned long long)
KVL_EMU_TO(double, double, int, int)
KVL_EMU_TO(double, double, uint, unsigned)
KVL_EMU_TO(double, double, ll, long long)
KVL_EMU_TO(double, double, ull, unsigned long long)
#undef KVL_EMU_TO
#define KVL_EMU_FROM(name, T, F)                                                                   \
    static inline T name(F x)                                                                      \
    {                                                                                              \
        return (T)x;                                                                               \
    }
KVL_EMU_FROM(__int2float_rn, float, int)
KVL_EMU_FROM(__uint2float_rn, float, unsigned)
KVL_EMU_FROM(__ll2float_rn, float, long long)
KVL_EMU_FROM(__ull2float_rn, float, unsigned long long)
KVL_EMU_FROM(__double2float_rn, float, double)
KVL_EMU_FROM(__int2double_rn, double, int)
KVL_EMU_FROM(__uint2double_rn, double, unsigned)
KVL_EMU_FROM(__ll2double_rn, double, long long)
#undef KVL_EMU_FROM

/* ---- minima and maxima ------------------------------------------------------------------------------- */

#define KVL_EMU_MINMAX(R, A, B)                                                                    \
    static inline R min(A a, B b)                                                                  \
    {                                                                                              \
        return (R)a < (R)b ? (R)a : (R)b;                                                          \
    }                                                                                              \
    static inline R max(A a, B b)                                                                  \
    {                                                                                              \
        return (R)a > (R)b ? (R)a : (R)b;                                                          \
    }
KVL_EMU_MINMAX(int, int, int)
KVL_EMU_MINMAX(unsigned, unsigned, unsigned)
KVL_EMU_MINMAX(unsigned, int, unsigned)
KVL_EMU_MINMAX(unsigned, unsigned, int)
KVL_EMU_MINMAX(long, long, long)
KVL_EMU_MINMAX(unsigned long, unsigned long, unsigned long)
KVL_EMU_MINMAX(unsigned long, long, unsigned long)
KVL_EMU_MINMAX(unsigned long, unsigned long, long)
KVL_EMU_MINMAX(long long, long long, long long)
KVL_EMU_MINMAX(unsigned long long, unsigned long long, unsigned long long)
KVL_EMU_MINMAX(unsigned long long, long long, unsigned long long)
KVL_EMU_MINMAX(unsigned long long, unsigned long long, long long)
#undef KVL_EMU_MINMAX
#define KVL_EMU_MINMAX(R, A, B, lo, hi)                                                            \
    static inline R min(A a, B b)                                                                  \
    {                                                                                              \
        return lo((R)a, (R)b);                                                                     \
    }                                                                                              \
    static inline R max(A a, B b)                                                                  \
    {                                                                                              \
        return hi((R)a, (R)b);                                                                     \
    }
KVL_EMU_MINMAX(float, float, float, fminf, fmaxf)
KVL_EMU_MINMAX(double, double, double, fmin, fmax)
KVL_EMU_MINMAX(double, float, double, fmin, fmax)
KVL_EMU_MINMAX(double, double, float, fmin, fmax)
#undef KVL_EMU_MINMAX

#endif
