/* Reads of a GPU. */
#include "gpu_time.h"

#include <math.h>

static const double best_share = 0.95; /* of the stream, by a kernel with loads enough under way */

double kvl_gpu_stream(const struct kvl_profile *p)
{
    return p->memory_gbs * 1e9 * KVL_GPU_STREAM;
}

/* under_way: bytes of a multiprocessor; per16: instructions of a thread for a load of 16 bytes. */
static double gpu_read(const struct kvl_profile *p, double bytes, double under_way, double per16)
{
    double need = kvl_gpu_stream(p) * KVL_GPU_LATENCY / p->multiprocessors;
    double memory = bytes / (kvl_gpu_stream(p) * best_share * fmin(1, under_way / need));
    double issue = bytes / 16 * per16 / (128.0 * p->multiprocessors * p->ghz * 1e9);
    /* Close to each other they do not hide behind each other completely. */
    return KVL_GPU_KERNEL + pow(pow(memory, 4) + pow(issue, 4), 0.25);
}

/* 24 warps of 8 loads, 14 instructions for eight bf16 elements. */
double kvl_gpu_weights(const struct kvl_profile *p, double bytes)
{
    return gpu_read(p, bytes, 24 * 32 * 8 * 16, 30) + 3 * KVL_GPU_KERNEL;
}

/* decode_fast: two blocks of 8 warps, which are two to three steps of 4 KiB ahead; 600 instructions for 8 of them a
 * lane.  What the last block merges takes three reads one after the other. */
double kvl_gpu_attention(const struct kvl_profile *p, double bytes)
{
    return gpu_read(p, bytes, 2 * 8 * 2.5 * 4096, 75) + 3 * KVL_GPU_LATENCY;
}

double kvl_gpu_tables(const struct kvl_profile *p, double bytes)
{
    return bytes / (kvl_gpu_stream(p) * KVL_GPU_TABLES);
}
