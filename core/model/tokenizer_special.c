/* Finds special tokens in a text: the longest first wherever it stands, then the leftmost.
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

/* Every special token that begins at text[begin]. */
static int hits_at(const struct kvl_tokenizer *t, const char *text, size_t len, size_t begin,
                   bool control, struct hits *h)
{
    int32_t lo = 0, hi = t->n_special;
    for (size_t depth = 0; begin + depth < len && lo < hi; depth++) {
        int byte = (unsigned char)text[begin + depth];
        lo = lower(t, lo, hi, depth, byte);
        hi = lower(t, lo, hi, depth, byte + 1);
        if (lo == hi) break;
        int32_t id = t->special[lo];
        if (kvl_tok_string(&t->text, id).len != depth + 1) continue;
        if (control || t->type[id] == TOK_USER)
            KVL_TRY(add_hit(h, (struct tok_hit){ begin, depth + 1, id }));
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

int kvl_tok_special_hits(const struct kvl_tokenizer *t, const char *text, size_t len, bool control,
                         struct tok_hit **hit, size_t *n, struct kvl_err *err)
{
    struct hits h = { 0 };
    bool starts[256] = { false };
    int rc = KVL_OK;
    for (int32_t i = 0; i < t->n_special; i++)
        if (control || t->type[t->special[i]] == TOK_USER)
            starts[(unsigned char)kvl_tok_string(&t->text, t->special[i]).s[0]] = true;
    for (size_t i = 0; rc == KVL_OK && i < len; i++)
        if (starts[(unsigned char)text[i]]) rc = hits_at(t, text, len, i, control, &h);
    if (rc == KVL_OK && h.n > 0) rc = drop_overlaps(&h, len);
    if (rc != KVL_OK) {
        free(h.hit);
        return kvl_fail(err, rc, "no memory to tokenise %zu bytes", len);
    }
    *hit = h.hit;
    *n = h.n;
    return KVL_OK;
}
