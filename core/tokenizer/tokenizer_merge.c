/* Merges symbols into tokens: repeatedly the best adjacent pair, in n log n.
 *
 * Symbols form a doubly linked list over an array; candidate pairs wait in a heap.  A merge
 * changes the length of its left symbol, so a waiting pair is stale exactly when the lengths of its
 * two symbols no longer add up: symbols only grow or vanish. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

static int grow(void **p, size_t *cap, size_t need, size_t item)
{
    if (need <= *cap) return KVL_OK;
    size_t n = *cap ? *cap : 256, bytes;
    while (n < need) n *= 2;
    KVL_TRY(kvl_mul_size(n, item, &bytes));
    void *q = realloc(*p, bytes);
    if (!q) return KVL_ENOMEM;
    *p = q;
    *cap = n;
    return KVL_OK;
}

static int no_memory(struct tok_encode *e)
{
    return kvl_fail(e->err, KVL_ENOMEM, "no memory to tokenise %zu bytes", e->len);
}

/* ---- output -------------------------------------------------------------------------------- */

int kvl_tok_push(struct tok_encode *e, size_t raw, int32_t id)
{
    struct kvl_tokens *o = e->out;
    if (o->n == o->cap) {
        if (o->cap > INT32_MAX / 2)
            return kvl_fail(e->err, KVL_EINVAL, "more than %d tokens", INT32_MAX / 2);
        int32_t cap = o->cap ? o->cap * 2 : 256;
        int32_t *ids = realloc(o->id, (size_t)cap * sizeof *ids);
        if (!ids) return no_memory(e);
        o->id = ids;
        size_t *begin = realloc(o->begin, (size_t)cap * sizeof *begin);
        if (!begin) return no_memory(e);
        o->begin = begin;
        o->cap = cap;
    }
    o->id[o->n] = id;
    o->begin[o->n++] = raw;
    return KVL_OK;
}

int kvl_tok_fallback(struct tok_encode *e, const char *s, size_t len, size_t raw)
{
    const struct kvl_tokenizer *t = e->t;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)s[i];
        if (t->byte_id[byte] >= 0) continue;
        bool file_says = !t->bpe || t->added;
        return t->unk >= 0 && file_says ? kvl_tok_push(e, raw, t->unk) : KVL_OK;
    }
    for (size_t i = 0; i < len; i++)
        KVL_TRY(kvl_tok_push(e, KVL_MIN(raw + i, e->len), t->byte_id[(unsigned char)s[i]]));
    return KVL_OK;
}

int kvl_tok_symbol(struct tok_encode *e, size_t pos, size_t len, size_t raw, int32_t id)
{
    void *p = e->sym;
    if (grow(&p, &e->cap_sym, e->n_sym + 1, sizeof *e->sym) != KVL_OK) return no_memory(e);
    e->sym = p;
    int32_t i = (int32_t)e->n_sym++;
    e->sym[i] = (struct tok_sym){ .pos = (uint32_t)pos,
                                  .len = (uint32_t)len,
                                  .raw = (uint32_t)raw,
                                  .id = id,
                                  .prev = i - 1,
                                  .next = -1 };
    if (i > 0) e->sym[i - 1].next = i;
    return KVL_OK;
}

/* ---- the heap ------------------------------------------------------------------------------ */

static bool before(const struct tok_pair *a, const struct tok_pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* Four children to a node: half the levels of a binary heap, and one cache line for each level,
 * which is what a text of megabytes without a space spends its time on. */
enum { HEAP_WAYS = 4 };

static int heap_push(struct tok_encode *e, struct tok_pair x)
{
    void *p = e->heap;
    if (grow(&p, &e->cap_heap, e->n_heap + 1, sizeof *e->heap) != KVL_OK) return no_memory(e);
    e->heap = p;
    size_t i = e->n_heap++;
    while (i > 0 && before(&x, &e->heap[(i - 1) / HEAP_WAYS])) {
        e->heap[i] = e->heap[(i - 1) / HEAP_WAYS];
        i = (i - 1) / HEAP_WAYS;
    }
    e->heap[i] = x;
    return KVL_OK;
}

static struct tok_pair heap_pop(struct tok_encode *e)
{
    struct tok_pair top = e->heap[0], x = e->heap[--e->n_heap];
    size_t i = 0, n = e->n_heap;
    for (size_t child = 1; child < n; child = HEAP_WAYS * i + 1) {
        size_t best = child, end = KVL_MIN(child + HEAP_WAYS, n);
        for (size_t c = child + 1; c < end; c++)
            if (before(&e->heap[c], &e->heap[best])) best = c;
        if (!before(&e->heap[best], &x)) break;
        e->heap[i] = e->heap[best];
        i = best;
    }
    e->heap[i] = x;
    return top;
}

/* ---- merging ------------------------------------------------------------------------------- */

static int offer(struct tok_encode *e, kvl_tok_pair_fn pair, int32_t left)
{
    if (left < 0 || e->sym[left].next < 0) return KVL_OK;
    const struct tok_sym *l = &e->sym[left], *r = &e->sym[l->next];
    struct tok_pair x = { .left = (uint32_t)left, .len = l->len + r->len };
    return pair(e, l, r, &x.rank, &x.id) ? heap_push(e, x) : KVL_OK;
}

int kvl_tok_merge_all(struct tok_encode *e, kvl_tok_pair_fn pair)
{
    e->n_heap = 0;
    for (size_t i = 0; i + 1 < e->n_sym; i++) KVL_TRY(offer(e, pair, (int32_t)i));
    while (e->n_heap > 0) {
        struct tok_pair x = heap_pop(e);
        struct tok_sym *l = &e->sym[x.left];
        if (l->len == 0 || l->next < 0) continue;
        struct tok_sym *r = &e->sym[l->next];
        if (l->len + r->len != x.len) continue;
        l->len = x.len;
        l->id = x.id;
        l->next = r->next;
        r->len = 0;
        if (l->next >= 0) e->sym[l->next].prev = (int32_t)x.left;
        KVL_TRY(offer(e, pair, l->prev));
        KVL_TRY(offer(e, pair, (int32_t)x.left));
    }
    return KVL_OK;
}
