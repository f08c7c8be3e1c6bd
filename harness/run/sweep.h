/* sweep.h - the order in which a sweep is run. */
#ifndef KVL_SWEEP_H
#define KVL_SWEEP_H

#include "runner.h"

/* Contexts of this shard that some cell still wants. */
int32_t kvl_runner_n_contexts(const struct kvl_runner *r);
/* All groups of this shard.  KVL_ESTOP when the stop flag was raised: what is complete is
 * committed. */
int kvl_runner_run(struct kvl_runner *r, struct kvl_err *err);

#endif
