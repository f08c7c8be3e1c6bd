/* Finds special tokens in a text: the longest first wherever it stands, then the leftmost; in a
 * tokenizer of a Hugging Face folder the leftmost first, then the longest.
 *
 * All occurrences are found in one pass over the text by narrowing a range of the sorted list byte
 * by byte; then the longest win.  Marking the bytes of the winners makes an overlap visible at one
 * of its two ends, because whatever was marked before is at least as long. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    struct kvl_str text;
    int32_t id;
};

static int by_text(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = memcmp(x->text.s, y->text.s, KVL_MIN(x->text.len, y->text.len));
    return c ? c : (x->text.len > y->text.len) - (x->text.len < y->text.len);
}

static bool is_special(uint8_t type)
{
    return type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN;
}

int kvl_tok_load_special(struct kvl_tokenizer *t, struct kvl_err *err)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += is_special(t->type[i]);
    struct entry *e = kvl_alloc((size_t)n, sizeof *e);
    t->special = kvl_alloc((size_t)n, sizeof *t->special);
    if (!e || !t->special) {
        kvl_free(e);
        return kvl_fail(err, KVL_ENOMEM, "no memory for %d special tokens", n);
    }
    for (int32_t i = 0; i < t->n; i++)
        if (is_special(t->type[i]))
            e[t->n_special++] = (struct entry){ kvl_tok_string(&t->text, i), i };
    qsort(e, (size_t)n, sizeof *e, by_text);
    for (int32_t i = 0; i < n; i++) t->special[i] = e[i].id;
    kvl_free(e);
    return KVL_OK;
}

/* ---- search -------------------------------------------------------------------------------- */

struct hits {
    struct tok_hit *hit;
    size_t n, cap;
};

static int add_hit(struct hits *h, struct tok_hit x)
{
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 64;
        struct tok_hit *p = realloc(h->hit, cap * sizeof *p);
        if (!p) return KVL_ENOMEM;
        h->hit = p;
        h->cap = cap;
    }
    h->hit[h->n++] = x;
    return KVL_OK;
}

/* The first entry of [lo, hi) whose byte `depth` is at least `byte`; all agree on the bytes before,
 * and an entry that ends there comes first. */
static int32_t lower(const struct kvl_tokenizer *t, int32_t lo, int32_t hi, size_t depth, int byte)
{
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        struct kvl_str s = kvl_tok_string(&t->text, t->special[mid]);
        if (s.len <= depth || (unsigned char)s.s[depth] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Which of the special tokens are looked for. */
struct wanted {
    bool control, later;
    const uint8_t *mark; /* of the text; NULL: all 0 */
};

static bool is_wanted(const struct kvl_tokenizer *t, int32_t id, struct wanted w)
{
    bool later = t->flags && (t->flags[id] & TOK_LATER);
    bool added = !t->added || (t->flags[id] & TOK_ADDED);
    return added && later == w.later && (w.control || t->type[id] == TOK_USER);
}

static bool is_template(struct wanted w, size_t begin, size_t len)
{
    for (size_t i = 0; w.mark && i < len; i++)
        if (w.mark[begin + i]) return false;
    return true;
}

/* SentencePiece's mark is a space, also where a text spells it: a GGUF file has added tokens with spaces. */
static bool is_mark(const struct kvl_tokenizer *t, const char *s, size_t len)
{
    return !t->bpe && !t->added && len >= 3 && memcmp(s, "\xe2\x96\x81", 3) == 0;
}

/* Every special token that begins at text[begin]. */
static int hits_at(const struct kvl_tokenizer *t, const char *text, size_t len, size_t begin,
                   struct wanted w, struct hits *h)
{
    int32_t lo = 0, hi = t->n_special;
    size_t at = begin;
    for (size_t depth = 0; at < len && lo < hi; depth++) {
        int byte = (unsigned char)text[at];
        bool mark = is_mark(t, text + at, len - at);
        if (mark) byte = ' ';
        at += mark ? 3 : 1;
        lo = lower(t, lo, hi, depth, byte);
        hi = lower(t, lo, hi, depth, byte + 1);
        if (lo == hi) break;
        int32_t id = t->special[lo];
        if (kvl_tok_string(&t->text, id).len != depth + 1) continue;
        if (is_wanted(t, id, w) && (t->type[id] == TOK_USER || is_template(w, begin, at - begin)))
            KVL_TRY(add_hit(h, (struct tok_hit){ begin, at - begin, id }));
    }
    return KVL_OK;
}

static int by_length(const void *a, const void *b)
{
    const struct tok_hit *x = a, *y = b;
    if (x->len != y->len) return x->len < y->len ? 1 : -1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int by_begin(const void *a, const void *b)
{
    const struct tok_hit *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static int drop_overlaps(struct hits *h, size_t len)
{
    uint8_t *taken = kvl_alloc(len, 1);
    size_t kept = 0;
    if (!taken) return KVL_ENOMEM;
    qsort(h->hit, h->n, sizeof *h->hit, by_length);
    for (size_t i = 0; i < h->n; i++) {
        struct tok_hit x = h->hit[i];
        if (taken[x.begin] || taken[x.begin + x.len - 1]) continue;
        memset(taken + x.begin, 1, x.len);
        h->hit[kept++] = x;
    }
    h->n = kept;
    qsort(h->hit, h->n, sizeof *h->hit, by_begin);
    kvl_free(taken);
    return KVL_OK;
}

/* ---- which hits count ---------------------------------------------------------------------- */

/* Length of the character that ends at s[len]. */
static size_t last_char(const char *s, size_t len)
{
    for (size_t n = 1; n <= 4 && n <= len; n++)
        if (kvl_utf8_len(s + len - n, n) == n) return n;
    return len > 0;
}

static bool is_space(const char *s, size_t len)
{
    uint32_t c = kvl_utf8_value(s, len);
    if (len == 1 && (unsigned char)*s >= 0x80) return false; /* a byte that is not UTF-8 */
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Gives a hit the white space that its token takes; before `done` and from `len` on stand others. */
static void widen(const struct kvl_tokenizer *t, const char *text, size_t len, size_t done,
                  struct tok_hit *x)
{
    uint8_t flags = t->flags ? t->flags[x->id] : 0;
    size_t end = x->begin + x->len, n;
    if (flags & TOK_LSTRIP)
        while (x->begin > done && (n = last_char(text, x->begin)) > 0 &&
               is_space(text + x->begin - n, n))
            x->begin -= n;
    if (flags & TOK_RSTRIP)
        while ((n = kvl_utf8_len(text + end, len - end)) > 0 && is_space(text + end, n)) end += n;
    x->len = end - x->begin;
}

/* Of hits in ascending order, the shorter before the longer, keeps the leftmost, then the longest. */
static void keep_leftmost(const struct kvl_tokenizer *t, const char *text, size_t len,
                          struct hits *h)
{
    size_t kept = 0, done = 0;
    for (size_t i = 0; i < h->n; i++) {
        struct tok_hit x = h->hit[i];
        if (i + 1 < h->n && h->hit[i + 1].begin == x.begin) continue;
        if (x.begin < done) continue;
        widen(t, text, len, done, &x);
        done = x.begin + x.len;
        h->hit[kept++] = x;
    }
    h->n = kept;
}

static int keep_longest(const struct kvl_tokenizer *t, const char *text, size_t len, struct hits *h)
{
    KVL_TRY(drop_overlaps(h, len));
    for (size_t i = 0; i < h->n; i++)
        widen(t, text, i + 1 < h->n ? h->hit[i + 1].begin : len, 0, &h->hit[i]);
    return KVL_OK;
}

int kvl_tok_special_hits(const struct kvl_tokenizer *t, const char *text, const uint8_t *mark,
                         size_t len, bool control, bool later, struct tok_hit **hit, size_t *n,
                         struct kvl_err *err)
{
    struct hits h = { 0 };
    struct wanted w = { control, later, mark };
    bool starts[256] = { false };
    int rc = KVL_OK;
    for (int32_t i = 0; i < t->n_special; i++)
        if (is_wanted(t, t->special[i], w))
            starts[(unsigned char)kvl_tok_string(&t->text, t->special[i]).s[0]] = true;
    starts[0xe2] = starts[0xe2] || (starts[' '] && !t->bpe && !t->added);
    for (size_t i = 0; rc == KVL_OK && i < len; i++)
        if (starts[(unsigned char)text[i]]) rc = hits_at(t, text, len, i, w, &h);
    if (rc == KVL_OK && h.n > 0 && t->added)
        keep_leftmost(t, text, len, &h);
    else if (rc == KVL_OK && h.n > 0)
        rc = keep_longest(t, text, len, &h);
    if (rc != KVL_OK) {
        free(h.hit);
        return kvl_fail(err, rc, "no memory to tokenise %zu bytes", len);
    }
    *hit = h.hit;
    *n = h.n;
    return KVL_OK;
}
