/* twin.cuh - ranges of memory as memory.cu and twin.cu know them. */
#ifndef KVL_CUDA_TWIN_CUH
#define KVL_CUDA_TWIN_CUH

#include "runtime.cuh"

/* Grains first .. end - 1 of a range; none where both are equal. */
struct memory_grains {
    size_t first, end;
};

/* A range that kernels reach.  Of a mirror, and of SHARED and TABLE memory, base is host memory and device its twin. */
struct memory_range {
    uint8_t *base;
    size_t bytes;
    uint8_t *device;
    enum kvl_place place; /* HOST: a mirror */
    int32_t refs;         /* of a mirror */
    /* Of SHARED and TABLE memory: who has each grain, and between which grains all those lie that the host alone
     * has, that it does not have for good, and that it may write until the next settle. */
    uint8_t *grain;
    uint32_t *seen; /* of the emulation: what the host's side was like */
    struct memory_grains host, away, open;
};

/* The range that p lies in; NULL: none. */
struct memory_range *kvl_cuda_range(const void *p);
/* Up to the first error. */
int kvl_cuda_each_range(int (*visit)(struct memory_range *r));

/* Whole grains. */
size_t kvl_cuda_twin_bytes(size_t bytes);
/* SHARED memory is the host's at first, of a table both sides are zero; KVL_ENOMEM. */
int kvl_cuda_twin_open(struct memory_range *r);
void kvl_cuda_twin_close(struct memory_range *r);

#endif
