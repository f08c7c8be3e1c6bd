/* context_prefill.h - the dense prefill of a context, or its snapshot where there is one.
 *
 * A folder of snapshots holds one file per prefill, <hash of the key>.kvs (kvl_snapshot_key).  What is
 * there is loaded, bit-identical to the prefill; what is not there, or damaged, is prefilled and saved.
 *
 * Thread-safe: no; several processes may share a folder.
 */
#ifndef KVL_CONTEXT_PREFILL_H
#define KVL_CONTEXT_PREFILL_H

#include "kvl/model.h"

struct kvl_snapshots {
    const char *dir; /* NULL: none; borrowed */
    int64_t n_loaded, n_saved;
    bool full;           /* one could not be written: no other is tried */
    int64_t limit_bytes; /* of the folder: what was used longest ago gives way; 0: none */
};
/* Makes the folder.  KVL_EINVAL: there is something else of that name; KVL_EIO. */
int kvl_snapshots_open(struct kvl_snapshots *s, const char *dir, struct kvl_err *err);

/* A session that holds n >= 0 tokens.  *ns: what the prefill took; NaN for one that was loaded.  A
 * snapshot that cannot be read or written is one line on stderr, no error. */
int kvl_prefill(struct kvl_engine *engine, struct kvl_snapshots *s, const int32_t *id, int32_t n,
                struct kvl_session **out, double *ns, struct kvl_err *err);

#endif
