#include "model/host.h"

#include <stdlib.h>

struct kvl_arena_chunk {
    struct kvl_arena_chunk *next;
    size_t used, cap;
    _Alignas(64) unsigned char data[];
};

enum { ARENA_MIN = 64 << 10 };

static struct kvl_arena_chunk *arena_chunk(size_t cap)
{
    struct kvl_arena_chunk *c = aligned_alloc(64, (sizeof *c + cap + 63) / 64 * 64);
    if (c) *c = (struct kvl_arena_chunk){ .cap = cap };
    return c;
}

void *kvl_arena_get(struct kvl_arena *a, size_t n, size_t item)
{
    size_t bytes;
    if (kvl_mul_size(n, item, &bytes) != KVL_OK || bytes > SIZE_MAX / 4) return NULL;
    bytes = (bytes + 63) / 64 * 64;
    if (!a->head || a->head->cap - a->head->used < bytes) {
        size_t cap = KVL_MAX(bytes, KVL_MAX(a->total, (size_t)ARENA_MIN));
        struct kvl_arena_chunk *c = arena_chunk(cap);
        if (!c) return NULL;
        c->next = a->head;
        a->head = c;
        a->total += cap;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += bytes;
    return p;
}

/* Several chunks become one of their total size, so that a steady state allocates nothing. */
void kvl_arena_reset(struct kvl_arena *a)
{
    if (!a->head) return;
    if (!a->head->next) {
        a->head->used = 0;
        return;
    }
    size_t total = a->total;
    kvl_arena_free(a);
    a->head = arena_chunk(total);
    a->total = a->head ? total : 0;
}

void kvl_arena_free(struct kvl_arena *a)
{
    while (a->head) {
        struct kvl_arena_chunk *next = a->head->next;
        free(a->head);
        a->head = next;
    }
    a->total = 0;
}
