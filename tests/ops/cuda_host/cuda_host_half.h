/* cuda_host_half.h - __half and __nv_bfloat16 for the host emulation: conversions and arithmetic round to
 * nearest even, and a NaN becomes 0x7fff, as on a GPU. */
#ifndef KVL_CUDA_HOST_HALF_H
#define KVL_CUDA_HOST_HALF_H

#include "cuda_host_vec.h"

struct alignas(2) __half_raw {
    unsigned short x;
};
struct alignas(2) __nv_bfloat16_raw {
    unsigned short x;
};

/* To odd: what is not exact gets an odd last bit, so that rounding once more rounds right. */
static inline float kvl_emu_odd(double x)
{
    float f = (float)x;
    uint32_t u = kvl_emu_bits<uint32_t>(f);
    if (x != x || (double)f == x || u & 1u) return f;
    bool away = fabs((double)f) > fabs(x); /* toward zero is one less in the bits */
    return kvl_emu_bits<float>(away ? u - 1 : u + 1);
}

/* By bits, for kernels do little else; test_cuda_host goes through them with those of core/base/half.h. */
static inline unsigned short kvl_emu_to_f16(float f)
{
    uint32_t u = kvl_emu_bits<uint32_t>(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return 0x7fff;
    if (a < 0x38800000u) /* below 2^-14: the last bit of 0.5f is that of a subnormal half */
        return (unsigned short)(sign | (kvl_emu_bits<uint32_t>(kvl_emu_bits<float>(a) + 0.5f) -
                                        kvl_emu_bits<uint32_t>(0.5f)));
    a = (a + 0xfff + (a >> 13 & 1u) - (112u << 23)) >> 13; /* carries into the exponent by itself */
    return (unsigned short)(sign | (a < 0x7c00u ? a : 0x7c00u));
}
static inline unsigned short kvl_emu_to_bf16(float f)
{
    uint32_t u = kvl_emu_bits<uint32_t>(f);
    return f != f ? 0x7fff : (unsigned short)((u + 0x7fff + (u >> 16 & 1u)) >> 16);
}
static inline float kvl_emu_from_f16(unsigned short h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7fffu;
    uint32_t u = a >= 0x7c00u  ? a > 0x7c00u ? 0x7fc00000u : 0x7f800000u
                 : a >= 0x400u ? (a << 13) + (112u << 23)
                               : kvl_emu_bits<uint32_t>((float)(int)a * 0x1p-24f);
    return kvl_emu_bits<float>(sign | u);
}
static inline float kvl_emu_from_bf16(unsigned short h)
{
    return kvl_emu_bits<float>((uint32_t)h << 16);
}

struct alignas(2) __half {
    unsigned short bits;
    __half() = default;
    __half(__half_raw r) : bits(r.x) {}
    __half(float f) : bits(kvl_emu_to_f16(f)) {}
    __half(double f) : bits(kvl_emu_to_f16(kvl_emu_odd(f))) {}
    __half(int i) : __half((double)i) {}
    operator float() const
    {
        return kvl_emu_from_f16(bits);
    }
    operator __half_raw() const
    {
        return { bits };
    }
};
struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(__nv_bfloat16_raw r) : bits(r.x) {}
    __nv_bfloat16(float f) : bits(kvl_emu_to_bf16(f)) {}
    __nv_bfloat16(double f) : bits(kvl_emu_to_bf16(kvl_emu_odd(f))) {}
    __nv_bfloat16(int i) : __nv_bfloat16((double)i) {}
    operator float() const
    {
        return kvl_emu_from_bf16(bits);
    }
    operator __nv_bfloat16_raw() const
    {
        return { bits };
    }
};
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;

/* a * b + c rounded once: the product is exact in double, the sum is rounded to odd. */
static inline float kvl_emu_fma_odd(float a, float b, float c)
{
    double p = (double)a * (double)b, q = (double)c, s = p + q;
    if (!(fabs(s) <= 1e300)) return (float)s;
    double t = s - p, err = (p - (s - t)) + (q - t);
    uint64_t u = kvl_emu_bits<uint64_t>(s);
    if (err != 0 && !(u & 1u)) s = kvl_emu_bits<double>((err > 0) == (s > 0) ? u + 1 : u - 1);
    return kvl_emu_odd(s);
}

#define KVL_EMU_HALF(H, V, tag)                                                                    \
    struct alignas(4) V {                                                                          \
        H x, y;                                                                                    \
        V() = default;                                                                             \
        V(H a, H b) : x(a), y(b) {}                                                                \
    };                                                                                             \
    static inline H __float2##tag(float f)                                                         \
    {                                                                                              \
        return H(f);                                                                               \
    }                                                                                              \
    static inline H __float2##tag##_rn(float f)                                                    \
    {                                                                                              \
        return H(f);                                                                               \
    }                                                                                              \
    static inline H __double2##tag(double f)                                                       \
    {                                                                                              \
        return H(f);                                                                               \
    }                                                                                              \
    static inline H __int2##tag##_rn(int i)                                                        \
    {                                                                                              \
        return H(i);                                                                               \
    }                                                                                              \
    static inline float __##tag##2float(H h)                                                       \
    {                                                                                              \
        return (float)h;                                                                           \
    }                                                                                              \
    static inline float __low2float(V v)                                                           \
    {                                                                                              \
        return (float)v.x;                                                                         \
    }                                                                                              \
    static inline float __high2float(V v)                                                          \
    {                                                                                              \
        return (float)v.y;                                                                         \
    }                                                                                              \
    static inline V __floats2##tag##2_rn(float a, float b)                                         \
    {                                                                                              \
        return V(H(a), H(b));                                                                      \
    }                                                                                              \
    static inline V __float22##tag##2_rn(float2 f)                                                 \
    {                                                                                              \
        return V(H(f.x), H(f.y));                                                                  \
    }                                                                                              \
    static inline V __float2##tag##2_rn(float f)                                                   \
    {                                                                                              \
        return V(H(f), H(f));                                                                      \
    }                                                                                              \
    static inline float2 __##tag##22float2(V v)                                                    \
    {                                                                                              \
        return { (float)v.x, (float)v.y };                                                         \
    }                                                                                              \
    static inline V __##tag##2##tag##2(H h)                                                        \
    {                                                                                              \
        return V(h, h);                                                                            \
    }                                                                                              \
    static inline V __halves2##tag##2(H a, H b)                                                    \
    {                                                                                              \
        return V(a, b);                                                                            \
    }                                                                                              \
    static inline unsigned short __##tag##_as_ushort(H h)                                          \
    {                                                                                              \
        return h.bits;                                                                             \
    }                                                                                              \
    static inline H __ushort_as_##tag(unsigned short u)                                            \
    {                                                                                              \
        H h;                                                                                       \
        h.bits = u;                                                                                \
        return h;                                                                                  \
    }                                                                                              \
    static inline H __low2##tag(V v)                                                               \
    {                                                                                              \
        return v.x;                                                                                \
    }                                                                                              \
    static inline H __high2##tag(V v)                                                              \
    {                                                                                              \
        return v.y;                                                                                \
    }                                                                                              \
    static inline bool __hisnan(H a)                                                               \
    {                                                                                              \
        return (float)a != (float)a;                                                               \
    }                                                                                              \
    static inline bool __hisinf(H a)                                                               \
    {                                                                                              \
        return isinf((float)a);                                                                    \
    }                                                                                              \
    static inline H __hneg(H a)                                                                    \
    {                                                                                              \
        a.bits ^= 0x8000;                                                                          \
        return a;                                                                                  \
    }                                                                                              \
    static inline H __habs(H a)                                                                    \
    {                                                                                              \
        a.bits &= 0x7fff;                                                                          \
        return a;                                                                                  \
    }                                                                                              \
    static inline H __hfma(H a, H b, H c)                                                          \
    {                                                                                              \
        return H(kvl_emu_fma_odd((float)a, (float)b, (float)c));                                   \
    }                                                                                              \
    static inline V __hfma2(V a, V b, V c)                                                         \
    {                                                                                              \
        return V(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));                                    \
    }                                                                                              \
    KVL_EMU_HALF_OP(H, V, add, (float)a + (float)b)                                                \
    KVL_EMU_HALF_OP(H, V, sub, (float)a - (float)b)                                                \
    KVL_EMU_HALF_OP(H, V, mul, (float)a *(float)b)                                                 \
    KVL_EMU_HALF_OP(H, V, max, fmaxf((float)a, (float)b))                                          \
    KVL_EMU_HALF_OP(H, V, min, fminf((float)a, (float)b))                                          \
    KVL_EMU_HALF_CMP(H, gt, >)                                                                     \
    KVL_EMU_HALF_CMP(H, ge, >=)                                                                    \
    KVL_EMU_HALF_CMP(H, lt, <)                                                                     \
    KVL_EMU_HALF_CMP(H, le, <=)                                                                    \
    KVL_EMU_HALF_CMP(H, eq, ==)                                                                    \
    KVL_EMU_HALF_CMP(H, ne, !=)                                                                    \
    KVL_EMU_HALF_OP(H, V, div, (float)a / (float)b)                                                \
    static inline H operator+(H a, H b)                                                            \
    {                                                                                              \
        return __hadd(a, b);                                                                       \
    }                                                                                              \
    static inline H operator-(H a, H b)                                                            \
    {                                                                                              \
        return __hsub(a, b);                                                                       \
    }                                                                                              \
    static inline H operator*(H a, H b)                                                            \
    {                                                                                              \
        return __hmul(a, b);                                                                       \
    }                                                                                              \
    static inline H operator/(H a, H b)                                                            \
    {                                                                                              \
        return __hdiv(a, b);                                                                       \
    }
/* Float holds sums and products of such numbers well enough that rounding twice is rounding once. */
#define KVL_EMU_HALF_OP(H, V, op, expr)                                                            \
    static inline H __h##op(H a, H b)                                                              \
    {                                                                                              \
        return H(expr);                                                                            \
    }                                                                                              \
    static inline V __h##op##2(V a, V b)                                                           \
    {                                                                                              \
        return V(__h##op(a.x, b.x), __h##op(a.y, b.y));                                            \
    }
#define KVL_EMU_HALF_CMP(H, op, sign)                                                              \
    static inline bool __h##op(H a, H b)                                                           \
    {                                                                                              \
        return (float)a sign(float) b;                                                             \
    }
KVL_EMU_HALF(__half, __half2, half)
KVL_EMU_HALF(__nv_bfloat16, __nv_bfloat162, bfloat16)
#undef KVL_EMU_HALF
#undef KVL_EMU_HALF_OP
#undef KVL_EMU_HALF_CMP
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;

static inline __half2 make_half2(__half a, __half b)
{
    return __half2(a, b);
}
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 a, __nv_bfloat16 b)
{
    return __nv_bfloat162(a, b);
}

#endif
