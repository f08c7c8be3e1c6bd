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

static double held_block(const struct kvl_store_desc *d, enum kvl_kv_type type)
{
    size_t slot = kvl_kv_slot_bytes(type, d->head_dim, d->raw_keys) + sizeof(int32_t);
    size_t bytes = HELD_HEAD + (size_t)d->block_tok * slot;
    return (double)((bytes + HELD_PIECE - 1) / HELD_PIECE * HELD_PIECE);
}

/* Blocks that a lane of n_blocks has sealed: all but the one that grows and those that the type wants open. */
static int64_t held_sealed(const struct kvl_store_desc *d, int64_t n_blocks)
{
    int32_t open = KVL_MAX(kvl_kv_facts(kvl_kv_keys(d->type))->open_tok,
                           kvl_kv_facts(kvl_kv_values(d->type))->open_tok);
    if (open == 0) return 0;
    return KVL_MAX(0, n_blocks - 1 - (open + d->block_tok - 1) / d->block_tok);
}

int kvl_kv_held(const struct kvl_session *s, const struct kvl_store_desc *desc, struct kvl_err *err)
{
    const struct kvl_counters *n = kvl_session_counters(s);
    const struct kvl_seq *seq = kvl_session_seq(s);
    const struct kvl_kv_name type = kvl_kv_name(desc->type);
    struct kvl_seq_stats stats;
    const enum kvl_kv_type open = kvl_kv_open(desc->type);
    int64_t n_slots = 0, n_blocks = 0, n_sealed = 0;
    char what[96];
    for (int32_t l = 0; l < desc->n_layers; l++)
        for (int32_t h = 0; h < desc->n_kv_heads; h++) {
            int32_t len = kvl_seq_len(seq, l, h);
            n_slots += len;
            int64_t blocks = (len + desc->block_tok - 1) / desc->block_tok;
            n_blocks += blocks;
            n_sealed += held_sealed(desc, blocks);
        }
    kvl_seq_stats(seq, &stats);
    snprintf(what, sizeof what, "%s: keys and values read", type.text);
    KVL_TRY(kvl_kv_near(what, (double)n->kv_walked_bytes, (double)n->kv_read_bytes, err));
    double slot = (double)kvl_kv_slot_bytes(desc->type, desc->head_dim, desc->raw_keys);
    snprintf(what, sizeof what, "%s: keys and values held", type.text);
    double open_slot = (double)kvl_kv_slot_bytes(open, desc->head_dim, desc->raw_keys);
    double n_in = (double)(n_sealed * desc->block_tok), n_out = (double)n_slots - n_in;
    KVL_TRY(kvl_kv_near(what, (double)stats.logical_bytes, n_out * open_slot + n_in * slot, err));
    snprintf(what, sizeof what, "%s: blocks held", type.text);
    /* On a GPU a block is two pieces, each padded. */
    double pieces = desc->device && desc->device->discrete ? HELD_PIECE * (double)n_blocks : 0;
    double blocks = (double)(n_blocks - n_sealed) * held_block(desc, open) +
                    (double)n_sealed * held_block(desc, desc->type);
    if ((double)stats.physical_bytes <= blocks + pieces && pieces > 0) return KVL_OK;
    return kvl_kv_near(what, (double)stats.physical_bytes, blocks, err);
}
