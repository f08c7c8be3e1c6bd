/* kern_kblock.h - blocks of 256 weights: their scales, and 32 elements as integers.
 *
 * y = factor * scale * (q - zero) - less_factor * less, with a scale and a less for each 16 elements
 * (or 32): what the definitions of wtype_block.h say, many elements at a time. */
#ifndef KVL_KERN_KBLOCK_H
#define KVL_KERN_KBLOCK_H

#include "wtype.h"

/* Scales, and what is taken off, of each 16 elements or of each 32 (the first word alone): a byte each. */
struct kblock {
    uint64_t scale[2], less[2];
};

/* What a type has. */
VEC bool kblock_by32(enum kvl_wtype type)
{
    return type == KVL_W_Q4_K || type == KVL_W_Q5_K || type == KVL_W_IQ4_XS;
}
VEC bool kblock_has_less(enum kvl_wtype type)
{
    return type == KVL_W_Q4_K || type == KVL_W_Q5_K || type == KVL_W_Q2_K;
}
/* The integer that stands for 0. */
VEC int16_t kblock_zero(enum kvl_wtype type)
{
    return type == KVL_W_Q6_K ? 32 : type == KVL_W_Q3_K ? 4 : 0;
}
/* Where the factor of the scales lies; that of what is taken off comes next. */
VEC const uint8_t *kblock_factor(const uint8_t *block, enum kvl_wtype type)
{
    if (type == KVL_W_Q2_K) return block + 80;
    if (type == KVL_W_Q3_K) return block + 108;
    return type == KVL_W_Q6_K ? block + 208 : block;
}

VEC uint64_t kblock_u64(const uint8_t *p)
{
    uint64_t w;
    memcpy(&w, p, sizeof w);
    return w;
}

/* Of 12 bytes: eight scales of six bits, and eight numbers to take off. */
VEC struct kblock kblock_sixes(const uint8_t *p)
{
    const uint64_t low4 = 0x0f0f0f0f, low6 = 0x3f3f3f3f, top2 = 0x30303030;
    uint64_t ab = kblock_u64(p), a = ab & 0xffffffff, b = ab >> 32, c = kblock_u64(p + 4) >> 32;
    uint64_t scale = (c & low4) | (a >> 2 & top2), less = (c >> 4 & low4) | (b >> 2 & top2);
    return (struct kblock){ .scale = { (a & low6) | scale << 32 },
                            .less = { (b & low6) | less << 32 } };
}

/* Bytes of which `zero` becomes 0; they and it are below 128. */
VEC uint64_t kblock_signed(uint64_t bytes, uint64_t zero)
{
    const uint64_t ones = 0x0101010101010101, tops = 0x80 * ones;
    return ((bytes | tops) - zero * ones) ^ tops;
}

/* Q3_K: the low four bits of sixteen, eight bytes; then two bits of each. */
VEC struct kblock kblock_threes(const uint8_t *p)
{
    const uint64_t low4 = 0x0f0f0f0f0f0f0f0f, top2 = 0x30303030;
    uint64_t low = kblock_u64(p), two = kblock_u64(p + 4) >> 32;
    uint64_t first = (low & low4) | (two << 4 & top2) | (two << 2 & top2) << 32;
    uint64_t last = (low >> 4 & low4) | (two & top2) | (two >> 2 & top2) << 32;
    return (struct kblock){ .scale = { kblock_signed(first, 32), kblock_signed(last, 32) } };
}

/* IQ4_XS: two bits of eight scales, four bits of each; every step halves what lies together. */
VEC struct kblock kblock_iq4(const uint8_t *p)
{
    uint64_t word = kblock_u64(p), two = word >> 16 & 0xffff, low = word >> 32;
    two = (two | two << 24) & 0x000000ff000000ff;
    two = (two | two << 12) & 0x000f000f000f000f;
    two = (two | two << 6) & 0x0303030303030303;
    low = (low | low << 16) & 0x0000ffff0000ffff;
    low = (low | low << 8) & 0x00ff00ff00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0f;
    return (struct kblock){ .scale = { kblock_signed(low | two << 4, 32) } };
}

VEC struct kblock kblock_scales(const uint8_t *block, enum kvl_wtype type)
{
    const uint64_t low4 = 0x0f0f0f0f0f0f0f0f;
    if (type == KVL_W_Q3_K) return kblock_threes(block + 96);
    if (type == KVL_W_IQ4_XS) return kblock_iq4(block);
    if (kblock_by32(type)) return kblock_sixes(block + 4);
    const uint8_t *at = type == KVL_W_Q6_K ? block + 192 : block;
    uint64_t a = kblock_u64(at), b = kblock_u64(at + 8);
    if (type == KVL_W_Q6_K) return (struct kblock){ .scale = { a, b } };
    return (struct kblock){ .scale = { a & low4, b & low4 },
                            .less = { a >> 4 & low4, b >> 4 & low4 } };
}

/* Two bits of 32: which of them is the g-th part of its half. */
VEC vk kblock_two(const uint8_t *q, int32_t g)
{
    return vk_and(vk_shift(vk_bytes(q + g / 4 * 32), -(g % 4 * 2)), 3);
}

/* Nibbles: of 32 bytes all low ones, or all high ones. */
VEC vk kblock_nibbles(const uint8_t *p, bool high)
{
    vk b = vk_bytes(p);
    return high ? vk_shift(b, -4) : vk_and(b, 15);
}

/* Elements 32 g .. 32 g + 31 of a block, before `zero` is taken off. */
VEC vk kblock_ints(const uint8_t *block, enum kvl_wtype type, int32_t g)
{
    static const int8_t iq4[16] = { -127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113 };
    const int32_t part = g % 4, half = g / 4;
    switch (type) {
    case KVL_W_Q2_K: return kblock_two(block + 16, g);
    case KVL_W_Q3_K: return vk_with(kblock_two(block + 32, g), vk_shift(vk_bytes(block), 2 - g), 4);
    case KVL_W_Q4_K: return kblock_nibbles(block + 16 + g / 2 * 32, g % 2);
    case KVL_W_Q5_K:
        return vk_with(kblock_nibbles(block + 48 + g / 2 * 32, g % 2),
                       vk_shift(vk_bytes(block + 16), 4 - g), 16);
    case KVL_W_Q6_K:
        return vk_with(kblock_nibbles(block + half * 64 + part % 2 * 32, part / 2),
                       vk_shift(vk_bytes(block + 128 + half * 32), 4 - 2 * part), 48);
    default: return vk_table(block + 8 + g * 16, iq4);
    }
}

#endif
