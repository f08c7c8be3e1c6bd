/* memory.h - what a sweep has to hold, before any of it runs (kvl_footprint).
 *
 * A process of a sweep holds at least one context whole: what a prefill that policies share leaves, or what
 * a policy that reads the context itself and drops nothing has read.  The arithmetic is that of the store:
 * whole blocks, positions and padding included.  Beside it comes what the answers of a batch own: copies of
 * what evictions left, contexts that policies read themselves, tables.
 */
#ifndef KVL_MEMORY_H
#define KVL_MEMORY_H

#include "runner.h"

struct kvl_memory {
    int32_t length_tok;             /* of the longest context that must be held whole; 0 = none */
    bool on_device;                 /* keys and values do not lie where mapped weights do */
    struct kvl_footprint footprint; /* of it; keys and values at most the sweep's kv_limit_mib */
    size_t cell_bytes;              /* of what one cell owns, the largest */
    size_t cell_grows;              /* of these, with the length of the context */
    size_t own_bytes; /* of what those own that are answered together, cell_bytes included */
};

/* What the answers of a batch may own, before it decodes: they come on top of a context of so many bytes. */
size_t kvl_memory_room(size_t context_bytes);

/* Of the contexts that the log lacks, with keys and values of this type; reads work and state of the runner.
 * KVL_ENOMEM; KVL_EINVAL: the model has no such keys. */
int kvl_memory_plan(const struct kvl_runner *r, enum kvl_kv_type type, struct kvl_memory *out,
                    struct kvl_err *err);
/* Of a process at most, weights included. */
int64_t kvl_memory_all(const struct kvl_memory *m);
/* Tokens of a context whose keys and values fit into so many bytes, beside the activations. */
int64_t kvl_memory_fits_tok(const struct kvl_memory *m, int64_t free_bytes);
bool kvl_memory_fits(const struct kvl_memory *m, int64_t free_bytes);
/* The first type with fewer bytes in which they do, as the end of a sentence; NULL: none. */
const char *kvl_memory_smaller(const struct kvl_runner *r, int64_t free_bytes);
/* KVL_ENOMEM: they do not fit into what is free (0 = not known).  `what` names that memory, `instead` what
 * else would help. */
int kvl_memory_check(const struct kvl_memory *m, const struct kvl_sweep *s, int64_t free_bytes,
                     const char *what, const char *instead, struct kvl_err *err);

#endif
