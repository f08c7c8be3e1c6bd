/* inspect_model.h - what a model is, what it takes and whether it runs, for people. */
#ifndef KVL_INSPECT_MODEL_H
#define KVL_INSPECT_MODEL_H

#include "kvl/base.h"

/* Lines on standard output; nothing of the weights is read.  all: every key and tensor follows.  A file that is a
 * model but cannot run is told, not refused. */
int kvl_inspect_model(const char *path, bool all, struct kvl_err *err);

#endif
