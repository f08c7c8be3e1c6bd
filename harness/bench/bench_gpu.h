/* bench_gpu.h - what the parts of `kvlab bench --device cuda` share: memory to stream, a layer's products.
 *
 * Everything that is timed is given to the device and waited for (kvl_device.sync) inside its time.
 */
#ifndef KVL_BENCH_GPU_H
#define KVL_BENCH_GPU_H

#include "bench.h"

/* Memory of the device that is read for "stream", and a pinned buffer with its copy there. */
struct bench_gpu {
    struct bench *b;
    void *stream, *pinned, *copy;
    size_t stream_bytes, copy_bytes;
};

int bench_gpu_open(struct bench *b, struct bench_gpu *out);
void bench_gpu_close(struct bench_gpu *g);
/* Bytes per second, now: of one reading kernel; of a copy from pinned memory. */
int bench_gpu_stream(const struct bench_gpu *g, double *rate);
int bench_gpu_pinned(const struct bench_gpu *g, double *rate);
/* Streaming, copies and the products of a layer: lines of their own. */
int bench_gpu_machine(const struct bench_gpu *g);
int bench_gpu_products(const struct bench_gpu *g);

#endif
