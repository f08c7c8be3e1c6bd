/* Counted bytes against claimed ones. */
#include "kv_held.h"

#include <math.h>
#include <stdio.h>

int kvl_kv_near(const char *what, double counted, double claimed, struct kvl_err *err)
{
    if (fabs(counted - claimed) <= KVL_KV_OFF * claimed) return KVL_OK;
    return kvl_fail(err, KVL_EINTERNAL,
                    "%s: counted %.0f bytes, claimed %.0f, want at most %g %% off", what, counted,
                    claimed, 100 * KVL_KV_OFF);
}

enum {
    HELD_HEAD = 64,
    HELD_PIECE = 64
}; /* what a block has beside rows and positions; it is whole pieces */

static double held_block(const struct kvl_store_desc *d)
{
    size_t slot = kvl_kv_slot_bytes(d->type, d->head_dim, d->raw_keys) + sizeof(int32_t);
    size_t bytes = HELD_HEAD + (size_t)d->block_tok * slot;
    return (double)((bytes + HELD_PIECE - 1) / HELD_PIECE * HELD_PIECE);
}

int kvl_kv_held(const struct kvl_session *s, const struct kvl_store_desc *desc, struct kvl_err *err)
{
    const struct kvl_counters *n = kvl_session_counters(s);
    const struct kvl_seq *seq = kvl_session_seq(s);
    const struct kvl_kv_name type = kvl_kv_name(desc->type);
    struct kvl_seq_stats stats;
    int64_t n_slots = 0, n_blocks = 0;
    char what[96];
    for (int32_t l = 0; l < desc->n_layers; l++)
        for (int32_t h = 0; h < desc->n_kv_heads; h++) {
            int32_t len = kvl_seq_len(seq, l, h);
            n_slots += len;
            n_blocks += (len + desc->block_tok - 1) / desc->block_tok;
        }
    kvl_seq_stats(seq, &stats);
    snprintf(what, sizeof what, "%s: keys and values read", type.text);
    KVL_TRY(kvl_kv_near(what, (double)n->kv_walked_bytes, (double)n->kv_read_bytes, err));
    double slot = (double)kvl_kv_slot_bytes(desc->type, desc->head_dim, desc->raw_keys);
    snprintf(what, sizeof what, "%s: keys and values held", type.text);
    KVL_TRY(kvl_kv_near(what, (double)stats.logical_bytes, (double)n_slots * slot, err));
    snprintf(what, sizeof what, "%s: blocks held", type.text);
    /* On a GPU a block is two pieces, each padded. */
    double pieces = desc->device && desc->device->discrete ? HELD_PIECE * (double)n_blocks : 0;
    double blocks = (double)n_blocks * held_block(desc);
    if ((double)stats.physical_bytes <= blocks + pieces && pieces > 0) return KVL_OK;
    return kvl_kv_near(what, (double)stats.physical_bytes, blocks, err);
}
