/* device_probe.h - what a device is, found out by a process that ends with the answer.
 *
 * A process that has opened a GPU cannot fork others that use it, and a sweep's workers are forks.
 */
#ifndef KVL_DEVICE_PROBE_H
#define KVL_DEVICE_PROBE_H

#include "kvl/device.h"

struct kvl_probed {
    struct kvl_device_info info;
    struct kvl_device_memory memory;
};

/* As kvl_device_open_gpu; KVL_EDEVICE also when the process dies. */
int kvl_device_probe(const char *name, int32_t gpu, struct kvl_probed *out, struct kvl_err *err);

#endif
