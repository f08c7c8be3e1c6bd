/* tier.h - the device side of a sequence whose lanes live in the host tier; core/kv, core/policy and core/engine only.
 *
 * Vocabulary
 *   unit     unit_tok positions that travel together; they begin at origin and go on without a gap
 *   host     units older than keep_last that do not begin in keep_first: their blocks, in the store,
 *            are the host's copy
 *   place    room for one unit on the device.  Cache places stay, as many as cache_tok has units;
 *            staging places are given back once the attention of their layer has run
 *   request  what one step reads of one lane: its host units
 *
 * Attention never gets the blocks of the host: its view of a lane (kvl_tier_view) has the blocks of
 * the places and those of positions that are on the device, and kvl_tier_map says in which slot of that
 * view a position is.  Attention where blocks lie makes no requests, and gets kvl_tier_host_view.
 *
 * The way of a lane and step: age -> begin -> want, want ... -> fetch -> map, view -> send, await ->
 * [attention] -> settle.  Guesses do guess, want and fetch, then send.
 *
 * On a GPU blocks that hold nothing but host units move to pinned memory when they age (of lanes whose
 * slots are in order; others stay, which costs memory, not results), and their room on the device is given back.
 * Places lie on the device; what fetches bring, of however many lanes, is sent as one gather on the copy
 * stream, and attention awaits it.
 * Kernels reach pinned memory as well, slowly: what reads a whole lane needs nothing of this.
 * Tables, places, replacement and counts stay on the host: they depend on the selection alone.
 *
 * On the CPU both tiers are the same memory.  All of the above is decided and counted there, too, but places have no
 * blocks and nothing is copied: attention reads the sequence's own, and there is no map and no view.
 */
#ifndef KVL_TIER_H
#define KVL_TIER_H

#include "lane.h"

enum kvl_tier_order { KVL_TIER_LRU = 0, KVL_TIER_LFU, KVL_TIER_SCORE };

struct kvl_tier_desc {
    int32_t keep_first, keep_last, origin, unit_tok, cache_tok;
    enum kvl_tier_order order;
    const uint8_t *layers; /* [n_layers] or NULL = all; borrowed during create */
};

/* Counted since create or since the owner set them to 0; copied with the tier. */
struct kvl_tier_count {
    int64_t h2d_bytes, d2h_bytes;
    int64_t hits, misses; /* units of requests */
    /* Bytes fetched ahead; those that the lane's next request did not name. */
    int64_t ahead_bytes, wrong_bytes;
};

struct kvl_tier {
    struct kvl_store *store;
    struct kvl_tier_desc desc; /* layers is NULL */
    bool complete;             /* the context is there, and guesses make sense */
    int32_t limit;             /* positions from here on stay on the device; INT32_MAX at first */
    int32_t n_lanes, n_kv_heads;
    struct kvl_tier_lane *lanes; /* [n_layers * n_kv_heads] */
    int32_t n_blocks;            /* of all places, and those to spare */
    uint8_t **spare;
    int32_t n_spare, cap_spare;
    int32_t *victims; /* places, while units are fetched */
    int32_t n_victims, cap_victims;
    bool ordered;               /* they are a heap; else all of them leave */
    struct kvl_kv_move *gather; /* on a device: what fetches bring, and is not sent yet */
    int32_t n_gather, cap_gather, n_gather_slots;
    int32_t n_sends;               /* since MAIN waited for them */
    bool copying;                  /* MAIN does not wait for what was sent yet */
    int64_t n_places, peak_places; /* with those of staging; the owner resets the peak */
    struct kvl_tier_count count;
};

int kvl_tier_create(struct kvl_store *store, const struct kvl_tier_desc *desc,
                    struct kvl_tier **out, struct kvl_err *err);
/* An equal tier with places of its own, filled the same; no request of `from` may be under way. */
int kvl_tier_fork(const struct kvl_tier *from, struct kvl_tier **out);
void kvl_tier_destroy(struct kvl_tier *t);
bool kvl_tier_has(const struct kvl_tier *t, int32_t layer);
/* Before anything aged: the layers that go, of those that went so far.  layers [n_layers]. */
void kvl_tier_layers(struct kvl_tier *t, const uint8_t *layers);

/* The layer has positions below n_pos: those that are too old now go to the host. */
int kvl_tier_age(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer, int32_t n_pos);
/* Blocks that hold more than host units are on the device, wherever a prefill left them. */
int kvl_tier_bring(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer);
/* A new request of a lane. */
void kvl_tier_begin(struct kvl_tier *t, int32_t layer, int32_t kv_head);
/* A guess at its next one, by the token at `pos`.  False: that of an earlier token waits, and this one would
 * be in its way. */
bool kvl_tier_guess(struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t pos);
/* It reads positions first .. first + n - 1; those on the device cost nothing. */
int kvl_tier_want(struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t first, int32_t n);
/* Brings what is missing, in the order in which it was wanted: to free places of the cache, to those
 * of units that this request does not name, then to staging.  *n_units: how many came.  Once there is much of it, it is
 * sent while the next lanes are looked at; of what comes then, twice as much. */
int kvl_tier_fetch(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer, int32_t kv_head,
                   int32_t *n_units);
/* What fetches brought since goes to the copy stream, before anything of it ages.  Nothing on the CPU, where
 * it is there. */
int kvl_tier_send(struct kvl_tier *t);
/* What MAIN is given from now on runs after what was sent. */
int kvl_tier_await(struct kvl_tier *t);
/* KVL_TIER_SCORE: the unit of least score goes first; 0 until said. */
int kvl_tier_scores(struct kvl_tier *t, int32_t layer, int32_t kv_head, const float *score,
                    int32_t n);

/* Runs of the view that hold positions pos .. pos + n - 1, which lie in slots slot .. slot + n - 1 of
 * the sequence and belong to the request, after the m of `out`: the new m.  At most
 * n / unit_tok + 3 are added. */
int32_t kvl_tier_map(const struct kvl_tier *t, int32_t layer, int32_t kv_head, int32_t pos,
                     int32_t slot, int32_t n, struct kvl_run *out, int32_t m);
/* Blocks as the last request left them.  Valid until the next call for the lane. */
struct kvl_lane kvl_tier_view(const struct kvl_tier *t, int32_t layer, int32_t kv_head);
/* For attention where blocks lie, in place of a request: the lane with its own slots, and of its blocks those
 * that kvl_tier_host_block was asked for and said yes to.  Host memory; positions may not be asked for.  Valid
 * until the next call for the lane. */
int kvl_tier_host_view(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                       int32_t kv_head, struct kvl_lane *out);
/* The host holds all of block b, which is in the view now. */
bool kvl_tier_host_block(struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                         int32_t kv_head, int32_t b);
/* Attention of the layer has run: staging places are given back. */
void kvl_tier_settle(struct kvl_tier *t, int32_t layer);

/* Live slots of a lane that are in the host tier. */
int32_t kvl_tier_host_slots(const struct kvl_tier *t, const struct kvl_seq *seq, int32_t layer,
                            int32_t kv_head);
/* Bytes of one place. */
size_t kvl_tier_place_bytes(const struct kvl_tier *t);

#endif
