/* utf8.h - characters of a text. */
#ifndef KVL_UTF8_H
#define KVL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the valid UTF-8 character at s (1 to 4), 0 when the bytes there are not one; its value. */
size_t kvl_utf8_len(const char *s, size_t len);
uint32_t kvl_utf8_value(const char *s, size_t len);
/* Its length where it is white space, as Python's strip takes it, else 0. */
size_t kvl_utf8_blank(const char *s, size_t len);
/* Bytes of white space that s begins with; bytes of s without the white space that it ends with. */
size_t kvl_utf8_blanks(const char *s, size_t len);
size_t kvl_utf8_trimmed(const char *s, size_t len);

#endif
