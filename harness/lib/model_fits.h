/* model_fits.h - whether the weights of a model fit, before they are read. */
#ifndef KVL_MODEL_FITS_H
#define KVL_MODEL_FITS_H

#include "kvl/base.h"

/* KVL_ENOMEM: they do not fit into free_bytes (0 = not known); the message names the weight type that would.  Files
 * that cannot be opened are left to whoever opens them. */
int kvl_model_room(const char *path, int64_t free_bytes, struct kvl_err *err);

#endif
