/* The invariants of the store, recounted from scratch. */
#include "seal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_STEP = 256 }; /* blocks whose places are asked for at a time */

/* This file shares no code with what it checks but the reading of a table. */
static int32_t check_lanes(const struct kvl_store *store)
{
    return store->desc.n_layers * store->desc.n_kv_heads;
}

static int check_broken(struct kvl_err *err, int32_t lane, const char *what, int64_t got,
                        int64_t want)
{
    return kvl_fail(err, KVL_EINTERNAL, "KV store: lane %d: %s is %lld, want %lld", lane, what,
                    (long long)got, (long long)want);
}

/* Ranks ascend, name every slot once and tell its position. */
static int check_ranks(const struct kvl_layout *l, const struct kvl_table *t, int32_t lane,
                       struct kvl_err *err)
{
    int64_t slot_sum = 0;
    int32_t last = -1;
    for (int32_t r = 0; r < t->n_slots; r++) {
        int32_t slot = kvl_rank_slot(t, r);
        if (slot < 0 || slot >= t->n_slots) return check_broken(err, lane, "slot", slot, r);
        int32_t pos = kvl_table_pos(l, t, slot);
        if (pos <= last) return check_broken(err, lane, "a position", pos, (int64_t)last + 1);
        if (!t->sorted && t->rank_pos[r] != pos)
            return check_broken(err, lane, "an indexed position", t->rank_pos[r], pos);
        last = pos;
        slot_sum += slot;
    }
    /* Positions ascend strictly, so no slot comes twice; the sum is a second opinion. */
    int64_t want = (int64_t)t->n_slots * (t->n_slots - 1) / 2;
    if (slot_sum != want) return check_broken(err, lane, "the sum of slots", slot_sum, want);
    return last == t->max_pos ? KVL_OK
                              : check_broken(err, lane, "the largest position", t->max_pos, last);
}

/* Calls for every table entry of every sequence. */
static void check_visit(const struct kvl_store *store,
                        void (*visit)(struct kvl_block *block, int64_t *sum), int64_t *sum)
{
    for (const struct kvl_seq *seq = store->seqs; seq; seq = seq->next)
        for (int32_t i = 0; i < check_lanes(store); i++) {
            const struct kvl_table *t = &seq->tables[i];
            int32_t n_blocks = kvl_blocks_for(&store->layout, t->n_slots);
            for (int32_t b = 0; b < n_blocks; b++) visit(kvl_block_head(t->blocks[b]), sum);
        }
}

static void visit_count(struct kvl_block *block, int64_t *n_entries)
{
    block->seen++;
    ++*n_entries;
}

/* The first visit of a block judges it and wipes its count. */
static void visit_judge(struct kvl_block *block, int64_t *n_good)
{
    if (block->seen == 0) return;
    *n_good += block->seen == block->refs;
    block->seen = 0;
}

static int check_refs(const struct kvl_store *store, struct kvl_err *err)
{
    int64_t n_entries = 0, n_good = 0;
    check_visit(store, visit_count, &n_entries);
    check_visit(store, visit_judge, &n_good);
    int64_t n_refs = store->pool.n_refs + store->host.n_refs + store->sealed.n_refs;
    int64_t n_blocks = store->pool.n_blocks + store->host.n_blocks + store->sealed.n_blocks;
    if (n_entries != n_refs)
        return check_broken(err, -1, "the number of references", n_refs, n_entries);
    if (n_good != n_blocks)
        return check_broken(err, -1, "blocks with as many references as entries", n_good, n_blocks);
    return KVL_OK;
}

/* The count of blocks in use is kept by hand in take and unref; the slabs know better. */
static int check_pool(const struct kvl_pool *p, struct kvl_err *err)
{
    bool consistent;
    int64_t n_used = kvl_pool_count(p, &consistent);
    if (!consistent) return check_broken(err, -1, "agreement of slabs and free lists", 0, 1);
    if (n_used != p->n_blocks)
        return check_broken(err, -1, "the number of blocks in use", p->n_blocks, n_used);
    size_t bytes = (size_t)p->n_blocks * p->block_bytes;
    if (p->other && p->other->limit_bytes) bytes = kvl_pool_bytes(p);
    if (p->limit_bytes && bytes > p->limit_bytes)
        return check_broken(err, -1, "bytes in use", (int64_t)bytes, (int64_t)p->limit_bytes);
    return KVL_OK;
}

/* What the device knows of a table is what the table says. */
static int check_links(const struct kvl_seq *seq, int32_t lane, struct kvl_err *err)
{
    const struct kvl_store *store = seq->store;
    const struct kvl_table *t = &seq->tables[lane];
    int32_t n = kvl_blocks_for(&store->layout, t->n_slots);
    if (!store->device || n == 0) return KVL_OK;
    const uint8_t *const *there = kvl_links_view(seq, lane), *some[CHECK_STEP];
    for (int32_t b = 0; b < n; b += CHECK_STEP) {
        size_t m = (size_t)KVL_MIN(CHECK_STEP, n - b);
        int rc = store->device->copy(some, there + b, m * sizeof *some, KVL_STREAM_MAIN);
        if (rc != KVL_OK) return kvl_device_fail(store, rc, err);
        for (size_t i = 0; i < m; i++)
            if (some[i] != kvl_block_head(t->blocks[b + (int32_t)i])->data)
                return check_broken(err, lane, "a block that the device has elsewhere",
                                    b + (int64_t)i, -1);
    }
    return KVL_OK;
}

/* The first blocks are sealed, as many as the lane's length says, and no others. */
static int check_sealed(const struct kvl_store *store, const struct kvl_table *t, int32_t lane,
                        struct kvl_err *err)
{
    int32_t want = kvl_sealed_of(store, t->n_slots);
    if (t->n_sealed != want)
        return check_broken(err, lane, "the number of sealed blocks", t->n_sealed, want);
    for (int32_t b = 0; b < kvl_blocks_for(&store->layout, t->n_slots); b++)
        if (kvl_block_of(&store->sealed, t->blocks[b]) != (b < want))
            return check_broken(err, lane, "a block of the wrong size", b, -1);
    return KVL_OK;
}

/* Marks of one eviction must not reach the next. */
static int check_scratch(const struct kvl_store *store, struct kvl_err *err)
{
    const struct kvl_scratch *s = &store->scratch;
    for (int32_t i = 0; i < s->cap_slots; i++)
        if (s->dead[i]) return check_broken(err, -1, "a mark of an evicted slot", s->dead[i], 0);
    return KVL_OK;
}

int kvl_store_check(const struct kvl_store *store, struct kvl_err *err)
{
    int64_t n_seqs = 0;
    for (const struct kvl_seq *seq = store->seqs; seq; seq = seq->next, n_seqs++)
        for (int32_t i = 0; i < check_lanes(store); i++) {
            KVL_TRY(check_ranks(&store->layout, &seq->tables[i], i, err));
            KVL_TRY(check_links(seq, i, err));
            KVL_TRY(check_sealed(store, &seq->tables[i], i, err));
        }
    if (n_seqs != store->n_seqs)
        return check_broken(err, -1, "the number of sequences", store->n_seqs, n_seqs);
    KVL_TRY(check_scratch(store, err));
    KVL_TRY(check_refs(store, err));
    KVL_TRY(check_pool(&store->pool, err));
    KVL_TRY(check_pool(&store->host, err));
    if (store->layout.sealed) KVL_TRY(check_pool(&store->sealed, err));
    return check_pool(&store->places, err);
}
