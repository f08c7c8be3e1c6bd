/* Canonical composition (NFC) by libutf8proc, with the way back to where each byte came from.
 *
 * Nearly all text is composed already.  A text that is not is composed segment by segment: a segment
 * is a character and the marks and Hangul parts behind it, which composition never leaves. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

#ifdef KVL_UTF8PROC

#include <utf8proc.h>

bool kvl_tok_nfc_works(void)
{
    return true;
}

/* Below U+0300, whose first byte is 0xcc, everything is composed. */
static bool is_simple(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] >= 0xcc) return false;
    return true;
}

/* The composed bytes (free), or a negative number. */
static utf8proc_ssize_t compose(const char *s, size_t len, utf8proc_uint8_t **out)
{
    return utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, out,
                        UTF8PROC_STABLE | UTF8PROC_COMPOSE);
}

/* May join what stands before it. */
static bool joins(const char *s, size_t len)
{
    utf8proc_int32_t c = (utf8proc_int32_t)kvl_utf8_value(s, len);
    utf8proc_category_t cat = utf8proc_category(c);
    return cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_MC ||
           cat == UTF8PROC_CATEGORY_ME || (c >= 0x1160 && c <= 0x11ff);
}

/* Bytes that are not UTF-8 are segments of their own. */
static size_t segment(const char *s, size_t len)
{
    size_t n = kvl_utf8_len(s, len), next;
    if (n == 0) return 1;
    while ((next = kvl_utf8_len(s + n, len - n)) > 0 && joins(s + n, next)) n += next;
    return n;
}

/* Where the bytes of the composed text came from. */
struct nfc_map {
    size_t *at;
    size_t cap;
};

static int map_grow(struct nfc_map *m, size_t n)
{
    if (n <= m->cap) return KVL_OK;
    size_t cap = KVL_MAX(2 * m->cap, n);
    size_t *p = realloc(m->at, cap * sizeof *p);
    if (!p) return KVL_ENOMEM;
    *m = (struct nfc_map){ p, cap };
    return KVL_OK;
}

/* Appends a composed segment; its bytes come from `from`, or one by one where nothing changed. */
static int add_segment(const char *s, size_t len, size_t from, struct kvl_buf *out,
                       struct nfc_map *map)
{
    utf8proc_uint8_t *new = NULL;
    bool plain = is_simple(s, len) || kvl_utf8_len(s, len) == 0;
    utf8proc_ssize_t n = plain ? -1 : compose(s, len, &new);
    bool same = n < 0 || ((size_t)n == len && memcmp(new, s, len) == 0);
    size_t before = out->len;
    int rc = kvl_buf_add(out, same ? s : (const char *)new, same ? len : (size_t)n);
    if (rc == KVL_OK) rc = map_grow(map, out->len + 1);
    for (size_t i = before; rc == KVL_OK && i < out->len; i++)
        map->at[i] = from + (same ? i - before : 0);
    free(new);
    return rc;
}

int kvl_tok_nfc(const char *text, size_t len, struct kvl_buf *out, size_t **at, bool *changed)
{
    utf8proc_uint8_t *whole = NULL;
    struct nfc_map map = { NULL, 0 };
    *changed = false;
    if (is_simple(text, len)) return KVL_OK;
    utf8proc_ssize_t n = compose(text, len, &whole);
    bool same = n >= 0 && (size_t)n == len && memcmp(whole, text, len) == 0;
    free(whole);
    if (same) return KVL_OK;
    int rc = map_grow(&map, len + 1);
    for (size_t i = 0, k; rc == KVL_OK && i < len; i += k) {
        k = segment(text + i, len - i);
        rc = add_segment(text + i, k, i, out, &map);
    }
    if (rc == KVL_OK) map.at[out->len] = len;
    *at = map.at;
    *changed = true;
    return rc;
}

#else

bool kvl_tok_nfc_works(void)
{
    return false;
}

int kvl_tok_nfc(const char *text, size_t len, struct kvl_buf *out, size_t **at, bool *changed)
{
    (void)text, (void)len, (void)out, (void)at;
    *changed = false;
    return KVL_OK;
}

#endif
