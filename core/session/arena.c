#include "session_impl.h"

#include <stdlib.h>

struct kvl_arena_chunk {
    struct kvl_arena_chunk *next;
    size_t used, cap;
    unsigned char *data;
};

enum { ARENA_MIN = 64 << 10 };

static bool arena_of_device(const struct kvl_arena *a)
{
    return a->dev && a->dev->discrete;
}

static struct kvl_arena_chunk *arena_chunk(const struct kvl_arena *a, size_t cap)
{
    struct kvl_arena_chunk *c = malloc(sizeof *c);
    if (!c) return NULL;
    *c = (struct kvl_arena_chunk){ .cap = cap };
    c->data = arena_of_device(a) ? a->dev->alloc(a->place, cap, 1)
                                 : aligned_alloc(64, (cap + 63) / 64 * 64);
    if (c->data) return c;
    free(c);
    return NULL;
}

void *kvl_arena_get(struct kvl_arena *a, size_t n, size_t item)
{
    size_t bytes;
    if (kvl_mul_size(n, item, &bytes) != KVL_OK || bytes > SIZE_MAX / 4) return NULL;
    bytes = (bytes + 63) / 64 * 64;
    if (!a->head || a->head->cap - a->head->used < bytes) {
        size_t cap = KVL_MAX(bytes, KVL_MAX(a->total, a->first ? a->first : (size_t)ARENA_MIN));
        struct kvl_arena_chunk *c = arena_chunk(a, cap);
        if (!c) return NULL;
        c->next = a->head;
        a->head = c;
        a->total += cap;
    }
    void *p = a->head->data + a->head->used;
    a->head->used += bytes;
    a->used += bytes;
    if (arena_of_device(a) && a->dev->fresh) a->dev->fresh(p, bytes, a->ahead);
    return p;
}

/* Several chunks become one of their total size, so that a steady state allocates nothing. */
void kvl_arena_reset(struct kvl_arena *a)
{
    a->used = 0;
    if (!a->head) return;
    if (!a->head->next) {
        a->head->used = 0;
        return;
    }
    size_t total = a->total;
    kvl_arena_free(a);
    a->head = arena_chunk(a, total);
    a->total = a->head ? total : 0;
}

void kvl_arena_free(struct kvl_arena *a)
{
    while (a->head) {
        struct kvl_arena_chunk *next = a->head->next;
        if (arena_of_device(a))
            a->dev->free(a->place, a->head->data);
        else
            free(a->head->data);
        free(a->head);
        a->head = next;
    }
    a->total = 0;
    a->used = 0;
}
