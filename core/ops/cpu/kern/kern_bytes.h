/* kern_bytes.h - weights as bytes, 32 at a time, before `zero` is taken off: what kern_kblock.h and kern_math.h have as
 * 16-bit integers. */
#ifndef KVL_KERN_BYTES_H
#define KVL_KERN_BYTES_H

#include "kern_math.h"

/* Types whose bytes have a sign. */
VEC bool bytes_signed(enum kvl_wtype type)
{
    return type == KVL_W_IQ4_NL || type == KVL_W_IQ4_XS || type == KVL_W_MXFP4;
}

/* Half h of each of two blocks of 32 elements. */
VEC vz bytes_pair(const uint8_t *first, const uint8_t *last, enum kvl_wtype type, int32_t h)
{
    const bool fives = type == KVL_W_Q5_0 || type == KVL_W_Q5_1;
    const size_t at = block_has_least(type) ? 4 : type == KVL_W_MXFP4 ? 1 : 2;
    if (type == KVL_W_Q8_0) return vz_both(first + 2 + 16 * h, last + 2 + 16 * h);
    const size_t nibbles = at + (fives ? 4 : 0), bits = at + 2 * (size_t)h;
    vz w = vz_bits(vz_both(first + nibbles, last + nibbles), -4 * h, 15);
    if (type == KVL_W_MXFP4) return vz_table(w, block_mxfp4);
    if (type == KVL_W_IQ4_NL) return vz_table(w, block_iq4);
    return fives ? vz_or(w, vz_marks(first + bits, last + bits)) : w;
}

/* Two bits of 32: which of them is the g-th part of its half. */
VEC vz bytes_two(const uint8_t *q, int32_t g)
{
    return vz_bits(vz_load(q + g / 4 * 32), -(g % 4 * 2), 3);
}

/* Nibbles: of 32 bytes all low ones, or all high ones. */
VEC vz bytes_nibbles(const uint8_t *p, bool high)
{
    return vz_bits(vz_load(p), high ? -4 : 0, 15);
}

/* Elements 32 g .. 32 g + 31 of a block of 256. */
VEC vz bytes_part(const uint8_t *block, enum kvl_wtype type, int32_t g)
{
    const int32_t part = g % 4, half = g / 4;
    vz a;
    switch (type) {
    case KVL_W_Q2_K: return bytes_two(block + 16, g);
    case KVL_W_Q3_K: return vz_or(bytes_two(block + 32, g), vz_bits(vz_load(block), 2 - g, 4));
    case KVL_W_Q4_K: return bytes_nibbles(block + 16 + g / 2 * 32, g % 2);
    case KVL_W_Q5_K:
        a = bytes_nibbles(block + 48 + g / 2 * 32, g % 2);
        return vz_or(a, vz_bits(vz_load(block + 16), 4 - g, 16));
    case KVL_W_Q6_K:
        a = bytes_nibbles(block + half * 64 + part % 2 * 32, part / 2);
        return vz_or(a, vz_bits(vz_load(block + 128 + half * 32), 4 - 2 * part, 48));
    default:
        a = vz_both(block + 8 + g * 16, block + 8 + g * 16);
        return vz_table(vz_halves(a), block_iq4);
    }
}

#endif
