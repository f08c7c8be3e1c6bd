/* place.h - blocks that lie in pinned memory of the host instead of the device's: core/kv, core/policy and core/engine only.
 *
 * Kernels reach both, pinned memory over the bus.  New blocks are the device's; what is written to a block is
 * written where it lies.  All does nothing where blocks have one piece (the CPU).
 *
 * Errors: KVL_ENOMEM, what moved before stays where it is now; KVL_EDEVICE. */
#ifndef KVL_KV_PLACE_H
#define KVL_KV_PLACE_H

#include "lane.h"

/* Room for n slots in the tables of all lanes, 8 bytes of the device for a block of each: those that grow need
 * more. */
int kvl_seq_reserve(struct kvl_seq *seq, int32_t n_slots, struct kvl_err *err);
/* The full blocks of a layer's lanes move to pinned memory; their room on the device is given back, for which it
 * waits. */
int kvl_seq_to_host(struct kvl_seq *seq, int32_t layer, struct kvl_err *err);
/* Blocks of a layer that lie in pinned memory move to the device. */
int kvl_seq_to_device(struct kvl_seq *seq, int32_t layer, struct kvl_err *err);
/* Slots of a layer, summed over its lanes, that lie in pinned memory. */
int64_t kvl_seq_host_slots(const struct kvl_seq *seq, int32_t layer);

#endif
