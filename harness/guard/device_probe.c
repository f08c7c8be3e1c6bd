/* What a device is. */
#include "device_probe.h"

#include "child.h"

#include <stdio.h>

struct probe {
    const char *name;
    int32_t gpu;
};

static int device_probe_look(const void *user, void *out, struct kvl_err *err)
{
    const struct probe *p = user;
    struct kvl_probed *found = out;
    const struct kvl_device *dev;
    KVL_TRY(kvl_device_open_gpu(p->name, p->gpu, &dev, err));
    dev->info(&found->info);
    dev->memory(&found->memory);
    return KVL_OK;
}

int kvl_device_probe(const char *name, int32_t gpu, struct kvl_probed *out, struct kvl_err *err)
{
    char who[160];
    struct kvl_probed found = { 0 };
    const struct probe what = { name, gpu };
    snprintf(who, sizeof who,
             "device %s (want a driver that works: see kvlab doctor): the process that opened it",
             name);
    struct kvl_child apart = { .run = device_probe_look,
                               .user = &what,
                               .out = &found,
                               .bytes = sizeof found,
                               .died = KVL_EDEVICE,
                               .who = who };
    KVL_TRY(kvl_child_run(&apart, err));
    *out = found;
    return KVL_OK;
}
