/* Code points, and what Python's str knows of them: upper and lower case, words, digits.  The tables are
 * letter_tables.py's. */
#include "words.h"

#include "kvl/utf8.h"

#include "letter_tables.h"

#include <string.h>

#define NO_TEXT 0x110000u /* + the byte */

#define LETTER_ROW(table, c)                                                                       \
    letter_row(table[0], sizeof table / sizeof table[0], sizeof table[0] / sizeof table[0][0], (c))

/* The last of n rows that begins at or before c; NULL: none does. */
static const int32_t *letter_row(const int32_t *table, size_t n, size_t width, uint32_t c)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if ((uint32_t)table[mid * width] <= c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 ? table + (lo - 1) * width : NULL;
}

static bool letter_within(const int32_t *row, uint32_t c)
{
    return row && c <= (uint32_t)row[1];
}

static uint32_t letter_changed(const int32_t *row, uint32_t c)
{
    bool here = letter_within(row, c) && (c - (uint32_t)row[0]) % (uint32_t)row[2] == 0;
    return here ? (uint32_t)((int32_t)c + row[3]) : c;
}

uint32_t kvl_letter_lower(uint32_t c)
{
    if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
    if (c == 0x130) return 'i'; /* and the dot above it: kvl_text_lower */
    return letter_changed(LETTER_ROW(letter_lower, c), c);
}

bool kvl_letter_word(uint32_t c)
{
    return letter_within(LETTER_ROW(letter_word, c), c);
}

/* Digits come in tens. */
int kvl_letter_digit(uint32_t c)
{
    const int32_t *row = LETTER_ROW(letter_digit, c);
    return letter_within(row, c) ? (int)((c - (uint32_t)row[0]) % 10) : -1;
}

bool kvl_letter_ignorable(uint32_t c)
{
    return letter_within(LETTER_ROW(letter_ignorable, c), c);
}

bool kvl_letter_cased(uint32_t c)
{
    return letter_within(LETTER_ROW(letter_cased, c), c);
}

uint32_t kvl_letter_at(const char *s, size_t n, size_t *bytes)
{
    size_t len = kvl_utf8_len(s, n);
    *bytes = KVL_MAX(len, (size_t)1);
    return len > 0 ? kvl_utf8_value(s, len) : NO_TEXT + (unsigned char)*s;
}

int kvl_letter_add(struct kvl_buf *b, uint32_t c)
{
    char s[4] = { (char)(c - NO_TEXT) };
    return kvl_buf_add(b, s, c >= NO_TEXT ? 1 : kvl_utf8_put(c, s));
}

bool kvl_letter_space(uint32_t c)
{
    return kvl_utf8_space(c);
}

bool kvl_letter_punct(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
}

static int upper_add(uint32_t c, struct kvl_buf *out)
{
    const int32_t *more = LETTER_ROW(letter_upper_more, c);
    if (!more || (uint32_t)more[0] != c)
        return kvl_letter_add(out, letter_changed(LETTER_ROW(letter_upper, c), c));
    for (int i = 1; i < 4 && more[i]; i++) KVL_TRY(kvl_letter_add(out, (uint32_t)more[i]));
    return KVL_OK;
}

int kvl_text_upper(const char *text, struct kvl_buf *out)
{
    size_t len = strlen(text), bytes;
    KVL_TRY(kvl_buf_adds(out, ""));
    for (size_t at = 0; at < len; at += bytes)
        KVL_TRY(upper_add(kvl_letter_at(text + at, len - at, &bytes), out));
    return KVL_OK;
}
