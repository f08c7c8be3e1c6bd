/* profile.h - a device as numbers: what its data sheet says, or what was measured of this machine.
 *
 * harness/profiles/NAME.yaml has some; a path names any other.  Bandwidths are in GB/s (10^9), memory in GiB.
 */
#ifndef KVL_PROFILE_H
#define KVL_PROFILE_H

#include "kvl/base.h"

struct kvl_profile {
    char name[64];
    bool gpu, here; /* here: this machine, where times were measured */
    double memory_gib, memory_gbs;
    double tflops;            /* multiply-adds count twice: of a GPU in bf16, of a CPU in float */
    double bus_gbs;           /* from the host's memory; of a CPU nothing is fetched over it */
    double link_gbs, link_us; /* to another device, one way; the least time of a message */
    double ghz,
        mma_share; /* of GPUs: mma_share of tflops by instructions of one warp, the rest wants more of them */
    int32_t multiprocessors, cores;
};

/* "h100": harness/profiles/h100.yaml; "x/y.yaml": that file.  KVL_EINVAL with file, line and key, or with the names
 * that there are. */
int kvl_profile_read(const char *word, struct kvl_profile *out, struct kvl_err *err);

#endif
