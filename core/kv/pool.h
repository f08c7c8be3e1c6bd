/* pool.h - reference-counted blocks of one size; private to core/kv.
 *
 * Blocks are cut from slabs that come from mmap, so that memory of evicted tokens really goes back
 * to the system: a slab without a block in use is unmapped, but for a few kept in reserve.
 *
 * Where a device has memory of its own, a slab has two pieces: heads and positions in host memory, keys and
 * values in memory of the device.
 */
#ifndef KVL_POOL_H
#define KVL_POOL_H

#include "kvl/device.h"
#include "lane.h"

struct kvl_slab;

/* The first bytes of every block; what a lane stores comes after. */
struct kvl_block {
    int32_t refs; /* block-table entries of all sequences; 0 = free */
    int32_t seen; /* references counted by kvl_store_check */
    struct kvl_slab *slab;
    struct kvl_block *next_free;
    uint8_t *data; /* the parts: the block itself, or its piece on the device */
};
#define KVL_BLOCK_HEAD 64 /* bytes kept for it, so that parts stay aligned */

enum kvl_slab_state {
    KVL_SLAB_PARTIAL = 0, /* filled first, so that the others can empty */
    KVL_SLAB_EMPTY,
    KVL_SLAB_FULL,
    KVL_SLAB_STATES
};

struct kvl_pool {
    const struct kvl_device *device; /* NULL: blocks have one piece */
    enum kvl_place place;            /* of the second */
    const struct kvl_pool *other;  /* whose blocks count towards the same peak and limit, or NULL */
    size_t host_bytes, data_bytes; /* of the pieces of one block */
    size_t block_bytes, limit_bytes; /* both pieces; limit 0 = none */
    int32_t slab_blocks;             /* blocks of one slab */
    struct kvl_slab *slabs[KVL_SLAB_STATES];
    int32_t n_empty;          /* slabs in reserve */
    int64_t n_blocks, n_refs; /* blocks in use; references to them */
    size_t peak_bytes;        /* with those of the other */
};

void kvl_pool_init(struct kvl_pool *pool, const struct kvl_layout *layout,
                   const struct kvl_device *device, enum kvl_place place, size_t limit_bytes);
/* Of its blocks in use and those of the other. */
size_t kvl_pool_bytes(const struct kvl_pool *pool);
/* Every block must be free. */
void kvl_pool_close(struct kvl_pool *pool);
/* n blocks with one reference each, or KVL_ENOMEM and none.  Their bytes are undefined. */
int kvl_pool_take(struct kvl_pool *pool, int32_t n, uint8_t **out, struct kvl_err *err);
void kvl_block_ref(uint8_t *block);
/* Frees the block with its last reference. */
void kvl_block_unref(uint8_t *block);
/* What the slabs give a block, all its pieces. */
size_t kvl_block_bytes(uint8_t *block);
bool kvl_block_of(const struct kvl_pool *pool, uint8_t *block);
/* Blocks in use according to the slabs, and whether free lists agree: for kvl_store_check. */
int64_t kvl_pool_count(const struct kvl_pool *pool, bool *consistent);

static inline struct kvl_block *kvl_block_head(uint8_t *block)
{
    return (struct kvl_block *)(void *)block;
}

/* Where the parts of a block lie that is only read. */
static inline const uint8_t *kvl_block_parts(const uint8_t *block)
{
    return ((const struct kvl_block *)(const void *)block)->data;
}

/* The parts of b lie i blocks after those of `first`, in the same slab: slabs may lie side by side, but no copy
 * may leave the one where it began. */
static inline bool kvl_block_follows(const struct kvl_layout *l, const uint8_t *first,
                                     const uint8_t *b, int32_t i)
{
    const struct kvl_block *at = (const void *)first, *next = (const void *)b;
    return next->slab == at->slab && next->data == at->data + (size_t)i * l->data_bytes;
}

static inline bool kvl_block_shared(uint8_t *block)
{
    return kvl_block_head(block)->refs > 1;
}

#endif
