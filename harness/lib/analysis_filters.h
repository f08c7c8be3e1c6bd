/* analysis_filters.h - filter layers from what layers capture of each other. */
#ifndef KVL_ANALYSIS_FILTERS_H
#define KVL_ANALYSIS_FILTERS_H

#include "kvl/base.h"

/* Filter layers for OmniKV by its rule (methods/omnikv.c): of all sets that leave at most `dense` layers
 * dense - those before the first filter, the filters, and `wait` behind each - and serve a layer
 * each, the one of largest sum over layers of capture[filter][layer], dense layers counting 1; ties to the
 * lower layers.  capture [n][n], means.  filter [n]: non-zero where one is.  *sparse: mean capture
 * of the layers that read a list, NaN without any.  KVL_EINVAL: no set leaves so few layers dense. */
int kvl_filter_layers(const double *capture, int32_t n, int32_t dense, int32_t wait,
                      uint8_t *filter, double *sparse, struct kvl_err *err);

#endif
