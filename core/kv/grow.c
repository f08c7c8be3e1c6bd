/* Tables and room to work in that grow. */
#include "store.h"

#include <string.h>

/* By half of itself, so that n appends copy O(n) entries in all; a few at the least, so that small tables do
 * not grow with every token. */
int kvl_grow(void **data, int32_t *cap, int32_t n, int32_t need, size_t item, struct kvl_err *err)
{
    if (need <= *cap) return KVL_OK;
    int64_t want = KVL_MAX((int64_t)need, (int64_t)*cap + *cap / 2 + 16);
    want = KVL_MIN(want, INT32_MAX);
    void *more = kvl_alloc((size_t)want, item);
    if (!more)
        return kvl_fail(err, KVL_ENOMEM, "KV store: no memory for a table of %lld entries",
                        (long long)want);
    if (n > 0) memcpy(more, *data, (size_t)n * item);
    kvl_free(*data);
    *data = more;
    *cap = (int32_t)want;
    return KVL_OK;
}

int kvl_scratch_blocks(struct kvl_scratch *s, int32_t n, struct kvl_err *err)
{
    void *blocks = s->blocks;
    int rc = kvl_grow(&blocks, &s->cap_blocks, 0, KVL_MAX(n, 1), sizeof *s->blocks, err);
    s->blocks = blocks;
    return rc;
}

/* Nothing is kept of the old contents: `dead` is all zero between calls, and ranks are written anew by each. */
int kvl_scratch_slots(struct kvl_scratch *s, int32_t n, struct kvl_err *err)
{
    if (n <= s->cap_slots) return KVL_OK;
    size_t cap = (size_t)n + (size_t)n / 2 + 64;
    int32_t *ranks = kvl_alloc(cap, 2 * sizeof *ranks);
    uint8_t *dead = kvl_alloc(cap, sizeof *dead);
    if (!ranks || !dead || cap > INT32_MAX) {
        kvl_free(ranks);
        kvl_free(dead);
        return kvl_fail(err, KVL_ENOMEM, "KV store: no memory to work on %d slots", n);
    }
    kvl_free(s->ranks);
    kvl_free(s->dead);
    s->ranks = ranks;
    s->dead = dead;
    s->cap_slots = (int32_t)cap;
    return KVL_OK;
}
