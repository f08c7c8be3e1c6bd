/* The one place where UTF-8 is read and written. */
#include "kvl/utf8.h"

size_t kvl_utf8_len(const char *s, size_t len)
{
    const unsigned char *p = (const unsigned char *)s;
    if (len == 0) return 0;
    if (p[0] < 0x80) return 1;
    size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > len) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    /* Overlong forms, surrogates, beyond U+10FFFF. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f)) return 0;
    if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) return 0;
    return n;
}

uint32_t kvl_utf8_value(const char *s, size_t len)
{
    static const uint8_t lead[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    uint32_t c = (unsigned char)s[0] & lead[len];
    for (size_t i = 1; i < len; i++) c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

size_t kvl_utf8_put(uint32_t c, char out[4])
{
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(n == 1 ? c : (0xf00u >> n & 0xff) | c); /* n ones in front */
    return n;
}

size_t kvl_utf8_begun(const char *s, size_t len)
{
    for (size_t n = 1; n <= 3 && n <= len; n++) {
        unsigned char c = (unsigned char)s[len - n];
        if (kvl_utf8_inside((char)c)) continue;
        size_t want = c < 0xc2 || c > 0xf4 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        return want > n ? n : 0;
    }
    return 0;
}

size_t kvl_utf8_last(const char *s, size_t len)
{
    for (size_t n = 1; n <= 4 && n <= len; n++)
        if (kvl_utf8_len(s + len - n, n) == n) return n;
    return len > 0;
}

bool kvl_utf8_space(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t kvl_utf8_blank(const char *s, size_t len)
{
    size_t n = kvl_utf8_len(s, len);
    return n > 0 && kvl_utf8_space(kvl_utf8_value(s, n)) ? n : 0;
}

size_t kvl_utf8_blanks(const char *s, size_t len)
{
    size_t at = 0, n;
    while ((n = kvl_utf8_blank(s + at, len - at)) > 0) at += n;
    return at;
}

size_t kvl_utf8_trimmed(const char *s, size_t len)
{
    size_t n;
    while (len > 0 && (n = kvl_utf8_last(s, len)) > 0 && kvl_utf8_blank(s + len - n, n) > 0)
        len -= n;
    return len;
}
