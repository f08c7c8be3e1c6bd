/* utf8.h - characters of a text: the one place where UTF-8 is read and written.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_UTF8_H
#define KVL_UTF8_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Length of the valid UTF-8 character at s (1 to 4), 0 when the bytes there are not one; its value. */
KVL_API size_t kvl_utf8_len(const char *s, size_t len);
KVL_API uint32_t kvl_utf8_value(const char *s, size_t len);
/* Writes the character of a value below 0x110000; its length. */
KVL_API size_t kvl_utf8_put(uint32_t c, char out[4]);
/* Whether a byte is inside a character, and not its first. */
static inline bool kvl_utf8_inside(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}
/* Bytes at the end of s that begin a character and do not finish it. */
size_t kvl_utf8_begun(const char *s, size_t len);
/* Length of the character that ends at s[len]; 1 where the bytes are none. */
size_t kvl_utf8_last(const char *s, size_t len);

/* White space as Python's strip takes it: a value; the length of such a character at s, else 0; bytes of it that s
 * begins with; bytes of s without what it ends with. */
bool kvl_utf8_space(uint32_t c);
size_t kvl_utf8_blank(const char *s, size_t len);
size_t kvl_utf8_blanks(const char *s, size_t len);
size_t kvl_utf8_trimmed(const char *s, size_t len);

#ifdef __cplusplus
}
#endif

#endif
