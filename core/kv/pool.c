#include "pool.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>

#define POOL_SLAB_BYTES     ((size_t)2 << 20) /* a huge page of x86-64 and arm64 */
#define POOL_SLAB_MIN       8                 /* blocks, however large */
#define POOL_RESERVE        1 /* empty slab that stays mapped: a token may come and go */
#define POOL_SLAB_MAX_BYTES ((size_t)1 << 30)
/* On a device, where allocating takes long. */
#define POOL_DEVICE_BYTES  ((size_t)32 << 20)
#define POOL_DEVICE_BLOCKS ((size_t)4096)

static_assert(sizeof(struct kvl_block) <= KVL_BLOCK_HEAD, "the head of a block fits its place");

struct kvl_slab {
    struct kvl_pool *pool;
    uint8_t *base, *data;    /* data: on the device */
    struct kvl_block *free;  /* blocks given back */
    int32_t n_used, n_fresh; /* in use; handed out at least once */
    enum kvl_slab_state state;
    struct kvl_slab *prev, *next;
};

/* Whole huge pages, or the tail of a slab would lie in small ones. */
static size_t slab_bytes(const struct kvl_pool *pool)
{
    size_t n = (size_t)pool->slab_blocks * pool->host_bytes;
    return (n + POOL_SLAB_BYTES - 1) / POOL_SLAB_BYTES * POOL_SLAB_BYTES;
}

/* Attention streams through blocks all over the store: in pages of 4 KiB it spends more time on page
 * tables than on keys.  Where the system has no huge pages to give, ordinary ones serve. */
static void *slab_map(size_t n)
{
    /* mmap aligns to small pages: more is mapped, and both ends are given back. */
    size_t room = n + POOL_SLAB_BYTES;
    uint8_t *all = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    size_t head = (POOL_SLAB_BYTES - (uintptr_t)all % POOL_SLAB_BYTES) % POOL_SLAB_BYTES;
    if (head > 0) munmap(all, head);
    munmap(all + head + n, room - head - n);
    (void)madvise(all + head, n, MADV_HUGEPAGE);
    return all + head;
}

/* Slabs are in a list by what they have left, so that taking a block looks at one of them only. */
static void slab_unlink(struct kvl_pool *pool, struct kvl_slab *slab)
{
    if (slab->prev)
        slab->prev->next = slab->next;
    else
        pool->slabs[slab->state] = slab->next;
    if (slab->next) slab->next->prev = slab->prev;
    pool->n_empty -= slab->state == KVL_SLAB_EMPTY;
}

static void slab_link(struct kvl_pool *pool, struct kvl_slab *slab, enum kvl_slab_state state)
{
    slab->state = state;
    slab->prev = NULL;
    slab->next = pool->slabs[state];
    if (slab->next) slab->next->prev = slab;
    pool->slabs[state] = slab;
    pool->n_empty += state == KVL_SLAB_EMPTY;
}

static void slab_free(struct kvl_pool *pool, struct kvl_slab *slab)
{
    if (slab->base) munmap(slab->base, slab_bytes(pool));
    if (slab->data) pool->device->free(pool->place, slab->data);
    kvl_free(slab);
}

static struct kvl_slab *slab_create(struct kvl_pool *pool)
{
    struct kvl_slab *slab = kvl_alloc(1, sizeof *slab);
    if (!slab) return NULL;
    slab->base = slab_map(slab_bytes(pool));
    if (slab->base && pool->device)
        slab->data = pool->device->alloc(pool->place, (size_t)pool->slab_blocks, pool->data_bytes);
    if (!slab->base || (pool->device && !slab->data)) {
        slab_free(pool, slab);
        return NULL;
    }
    slab->pool = pool;
    slab_link(pool, slab, KVL_SLAB_EMPTY);
    return slab;
}

/* The place of a slab in its list goes with it. */
static void slab_destroy(struct kvl_pool *pool, struct kvl_slab *slab)
{
    slab_unlink(pool, slab);
    slab_free(pool, slab);
}

/* Puts the slab into the list that its count asks for; unmaps it where the reserve is full. */
static void slab_settle(struct kvl_pool *pool, struct kvl_slab *slab)
{
    enum kvl_slab_state state = slab->n_used == 0                   ? KVL_SLAB_EMPTY
                                : slab->n_used == pool->slab_blocks ? KVL_SLAB_FULL
                                                                    : KVL_SLAB_PARTIAL;
    if (state == slab->state) return;
    if (state == KVL_SLAB_EMPTY && pool->n_empty >= POOL_RESERVE) {
        slab_destroy(pool, slab);
        return;
    }
    slab_unlink(pool, slab);
    slab_link(pool, slab, state);
    if (state == KVL_SLAB_EMPTY) { /* handed out in address order again */
        slab->free = NULL;
        slab->n_fresh = 0;
    }
}

/* Memory of a device is scarce: no slab is larger than the limit. */
static int32_t pool_slab_blocks(const struct kvl_pool *pool)
{
    size_t n = POOL_SLAB_BYTES / pool->host_bytes;
    if (pool->device) {
        n = KVL_MIN(POOL_DEVICE_BLOCKS, POOL_DEVICE_BYTES / pool->data_bytes);
        if (pool->limit_bytes) n = KVL_MIN(n, pool->limit_bytes / pool->block_bytes);
    }
    return (int32_t)KVL_MAX(n, (size_t)POOL_SLAB_MIN);
}

void kvl_pool_init(struct kvl_pool *pool, const struct kvl_layout *layout,
                   const struct kvl_device *device, enum kvl_place place, size_t limit_bytes)
{
    assert(layout->host_bytes % 64 == 0 && layout->data_bytes % 64 == 0);
    assert(layout->bytes <= POOL_SLAB_MAX_BYTES / POOL_SLAB_MIN);
    assert((layout->data_bytes > 0) == (device != NULL));
    *pool = (struct kvl_pool){ .device = device,
                               .place = place,
                               .host_bytes = layout->host_bytes,
                               .data_bytes = layout->data_bytes,
                               .block_bytes = layout->bytes,
                               .limit_bytes = limit_bytes };
    pool->slab_blocks = pool_slab_blocks(pool);
}

void kvl_pool_close(struct kvl_pool *pool)
{
    assert(pool->n_blocks == 0 && pool->n_refs == 0);
    while (pool->slabs[KVL_SLAB_EMPTY]) slab_destroy(pool, pool->slabs[KVL_SLAB_EMPTY]);
}

/* Heads of a slab and their parts lie in the same order, so the number of a block is its place in
 * both. */
static uint8_t *block_data(const struct kvl_pool *pool, const struct kvl_slab *slab,
                           struct kvl_block *block)
{
    uint8_t *host = (uint8_t *)block;
    if (!pool->device) return host;
    return slab->data + (size_t)(host - slab->base) / pool->host_bytes * pool->data_bytes;
}

/* From slabs that are partly used first: empty ones can go back to the system. */
static uint8_t *pool_take_one(struct kvl_pool *pool)
{
    struct kvl_slab *slab = pool->slabs[KVL_SLAB_PARTIAL];
    if (!slab) slab = pool->slabs[KVL_SLAB_EMPTY];
    if (!slab) slab = slab_create(pool);
    if (!slab) return NULL;
    struct kvl_block *block = slab->free;
    if (block)
        slab->free = block->next_free;
    else
        block = kvl_block_head(slab->base + (size_t)slab->n_fresh++ * pool->host_bytes);
    /* The head is written only now: a slab that was just mapped has no pages until its blocks are
     * used. */
    *block = (struct kvl_block){ .refs = 1, .slab = slab, .data = block_data(pool, slab, block) };
    slab->n_used++;
    slab_settle(pool, slab);
    pool->n_blocks++;
    pool->n_refs++;
    return (uint8_t *)block;
}

size_t kvl_pool_bytes(const struct kvl_pool *pool)
{
    size_t bytes = (size_t)pool->n_blocks * pool->block_bytes;
    return bytes + (pool->other ? (size_t)pool->other->n_blocks * pool->other->block_bytes : 0);
}

/* Pinned memory has no limit, and does not count towards that of the device. */
static bool pool_passes(const struct kvl_pool *pool, int32_t n)
{
    size_t bytes = (size_t)(pool->n_blocks + n) * pool->block_bytes;
    if (pool->other && pool->other->limit_bytes)
        bytes += (size_t)pool->other->n_blocks * pool->other->block_bytes;
    return n > 0 && pool->limit_bytes && bytes > pool->limit_bytes;
}

/* All of them or none: an eviction or an append that got half of its blocks could not go on. */
int kvl_pool_take(struct kvl_pool *pool, int32_t n, uint8_t **out, struct kvl_err *err)
{
    assert(n >= 0);
    if (pool_passes(pool, n))
        return kvl_fail(err, KVL_ENOMEM,
                        "KV store: %d more blocks of %zu bytes pass the limit of %zu bytes "
                        "(%lld blocks in use)",
                        n, pool->block_bytes, pool->limit_bytes, (long long)pool->n_blocks);
    for (int32_t i = 0; i < n; i++) {
        out[i] = pool_take_one(pool);
        if (out[i]) continue;
        while (i-- > 0) kvl_block_unref(out[i]);
        return kvl_fail(
            err, KVL_ENOMEM,
            "KV store: no %smemory for %d more blocks of %zu bytes (%lld blocks in use)",
            pool->place == KVL_PLACE_PINNED ? "pinned host " : "", n, pool->block_bytes,
            (long long)pool->n_blocks);
    }
    /* Blocks on the device and those moved to the host are one cache, with one peak. */
    pool->peak_bytes = KVL_MAX(pool->peak_bytes, kvl_pool_bytes(pool));
    return KVL_OK;
}

void kvl_block_ref(uint8_t *block)
{
    assert(kvl_block_head(block)->refs > 0);
    kvl_block_head(block)->refs++;
    kvl_block_head(block)->slab->pool->n_refs++;
}

void kvl_block_unref(uint8_t *host)
{
    struct kvl_block *block = kvl_block_head(host);
    struct kvl_slab *slab = block->slab;
    struct kvl_pool *pool = slab->pool;
    assert(block->refs > 0);
    pool->n_refs--;
    if (--block->refs > 0) return;
#ifndef NDEBUG
    /* All ones is a NaN in every element type and no position: a stale view shows. */
    memset(host + KVL_BLOCK_HEAD, 0xff, pool->host_bytes - KVL_BLOCK_HEAD);
    if (pool->device)
        (void)pool->device->fill(block->data, 0xff, pool->data_bytes, KVL_STREAM_MAIN);
#endif
    block->next_free = slab->free;
    slab->free = block;
    slab->n_used--;
    pool->n_blocks--;
    slab_settle(pool, slab);
}

/* A block does not know where it lies, its slab does. */
bool kvl_block_of(const struct kvl_pool *pool, uint8_t *block)
{
    return kvl_block_head(block)->slab->pool == pool;
}

size_t kvl_block_bytes(uint8_t *block)
{
    const struct kvl_pool *pool = kvl_block_head(block)->slab->pool;
    return pool->host_bytes + pool->data_bytes;
}

static bool slab_consistent(const struct kvl_pool *pool, const struct kvl_slab *slab)
{
    int32_t n_free = 0;
    for (const struct kvl_block *b = slab->free; b; b = b->next_free, n_free++)
        if (b->refs != 0 || b->slab != slab || n_free > slab->n_fresh) return false;
    return slab->n_used == slab->n_fresh - n_free && slab->n_fresh <= pool->slab_blocks &&
           (slab->state == KVL_SLAB_EMPTY) == (slab->n_used == 0) &&
           (slab->state == KVL_SLAB_FULL) == (slab->n_used == pool->slab_blocks);
}

int64_t kvl_pool_count(const struct kvl_pool *pool, bool *consistent)
{
    int64_t n = 0;
    *consistent = pool->n_empty <= POOL_RESERVE;
    for (int state = 0; state < KVL_SLAB_STATES; state++)
        for (const struct kvl_slab *s = pool->slabs[state]; s; s = s->next) {
            n += s->n_used;
            *consistent = *consistent && (int)s->state == state && slab_consistent(pool, s);
        }
    return n;
}
