/* tier_impl.h - the inside of a tier; tier.c and tier_fetch.c only. */
#ifndef KVL_TIER_IMPL_H
#define KVL_TIER_IMPL_H

#include "store.h"
#include "tier.h"

enum {
    TIER_ABSENT = -1,      /* on the host alone */
    TIER_WANTED = -2,      /* will come with the next fetch */
    TIER_STAGED = 1 << 30, /* staging place 0; below it are those of the cache */
    TIER_GATHER = 1 << 20, /* moves of one gather at most: 32 MiB of them */
    TIER_SEND =
        1
        << 20 /* bytes that do not wait for more, at first: a gather takes some 7 us beside them */
};

struct tier_place {
    int32_t unit, n_slots;
    bool ahead;    /* came by a guess that no request has confirmed */
    int64_t stamp; /* of its last request, or of the guess */
    int64_t uses;  /* requests since it came */
};

/* Rows of places: place i has slots i * unit_tok and up of these blocks; on the CPU there are none. */
struct tier_rows {
    struct tier_place *place;
    uint8_t **block;
    int32_t n, cap, n_blocks, cap_blocks;
};

struct kvl_tier_lane {
    bool on, ahead;     /* ahead: the request under way is a guess */
    int32_t first, end; /* host positions, in whole units */
    int32_t *place;     /* [cap_units]: of a unit's copy, or TIER_ABSENT, TIER_WANTED */
    float *score;       /* [cap_units], where units have scores */
    int32_t cap_units;
    struct tier_rows cache, stage;
    int32_t *wanted;
    int32_t n_wanted, cap_wanted;
    int32_t n_ahead; /* units of guesses that wait */
    int32_t guess;   /* the token that guessed, -1: none since the last request */
    int64_t clock;   /* requests so far */
    /* The view: blocks of cache, stage, then those of positions on the device.  Slots of a sequence below
     * `first` are at shift[0] + slot, from `end` on at shift[1] + slot. */
    uint8_t **table;
    int32_t n_table, cap_table;
    /* On a device: where its blocks have their parts, and the first n_sent of these as they were sent there. */
    const uint8_t **links, **sent;
    int32_t cap_links, cap_sent, n_sent;
    int32_t shift[2];
    int32_t host_low, host_end; /* blocks that are the host's, where nothing else tells */
};

static inline struct kvl_tier_lane *tier_lane(const struct kvl_tier *t, int32_t layer,
                                              int32_t kv_head)
{
    return &t->lanes[layer * t->n_kv_heads + kv_head];
}

/* A key and a value, which is what attention reads.  That a store has keys in two forms may be for others
 * that share it: no count depends on it. */
static inline int64_t tier_slot_bytes(const struct kvl_tier *t)
{
    const struct kvl_layout *l = &t->store->layout;
    return (int64_t)(l->row_bytes[KVL_PART_K] + l->row_bytes[KVL_PART_V]);
}

/* Room to give n blocks back. */
int kvl_tier_spare(struct kvl_tier *t, int32_t n);
/* One block of a place, on a device; NULL: no memory. */
uint8_t *kvl_tier_block(struct kvl_tier *t);
/* Room for the places of units below n, without a copy on the device. */
int kvl_tier_units(const struct kvl_tier *t, struct kvl_tier_lane *a, int32_t n);
/* The view of a lane, with a copy on the device. */
int kvl_tier_show(struct kvl_tier *t, const struct kvl_seq *seq, int32_t lane);

#endif
