/* cuda_bench.h - what the programs bench_cuda_* share: their GPU, how long a call takes, and which share of a
 * yardstick's rate in the same round that is. */
#ifndef KVL_CUDA_BENCH_H
#define KVL_CUDA_BENCH_H

#include "kvl/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_ROUNDS = 99 };

struct cuda_bench {
    const char *program;
    const struct kvl_device *dev;
    int rounds;
    const char *text; /* only lines that contain it are measured */
};

static inline void need(int rc, const struct cuda_bench *b, const char *what)
{
    if (rc == KVL_OK) return;
    fprintf(stderr, "%s: %s: %s %s\n", b->program, what, kvl_status_name(rc), b->dev->error());
    exit(1);
}

static inline void *some(const struct cuda_bench *b, void *p, size_t bytes)
{
    if (p) return p;
    fprintf(stderr, "%s: no memory for %zu bytes\n", b->program, bytes);
    exit(1);
}

static inline void *on_device(const struct cuda_bench *b, size_t bytes)
{
    return some(b, b->dev->alloc(KVL_PLACE_DEVICE, bytes, 1), bytes);
}

/* Arguments: rounds, text.  0, or the exit status of a program that cannot go on, which said why. */
static inline int cuda_bench_open(struct cuda_bench *b, const char *program, int argc, char **argv,
                                  int rounds)
{
    struct kvl_err err = { 0 };
    struct kvl_device_info info;
    *b = (struct cuda_bench){ .program = program,
                              .rounds = argc > 1 ? atoi(argv[1]) : rounds,
                              .text = argc > 2 ? argv[2] : "" };
    if (b->rounds < 1 || b->rounds > MAX_ROUNDS) {
        fprintf(stderr, "%s: rounds must be 1 to %d\n", program, MAX_ROUNDS);
        return 2;
    }
    if (kvl_device_open("cuda", &b->dev, &err) != KVL_OK) {
        fprintf(stderr, "%s: %s\n", program, err.msg);
        return 1;
    }
    b->dev->info(&info);
    printf("%s, %s\n", info.name, info.driver);
    return 0;
}

/* A call, which may go through its data in turns, and its bytes or operations. */
struct cuda_call {
    int (*run)(const struct kvl_device *dev, const void *args, int turn);
    const void *args;
    double work;
};

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a call: as many as 20 ms hold. */
static inline double seconds(const struct cuda_bench *b, const struct cuda_call *c)
{
    int n = 0, batch = 1;
    double start, spent = 0;
    need(b->dev->sync(), b, "sync");
    start = now();
    while (spent < 0.02) {
        for (int i = 0; i < batch; i++) need(c->run(b->dev, c->args, n + i), b, "a call");
        need(b->dev->sync(), b, "sync");
        n += batch;
        batch *= 2;
        spent = now() - start;
    }
    return spent / n;
}

static inline int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians; the smallest and largest share. */
struct cuda_share {
    double time, share, share_lo, share_hi;
};

static inline struct cuda_share cuda_measure(const struct cuda_bench *b, const struct cuda_call *c,
                                             const struct cuda_call *yardstick)
{
    double time[MAX_ROUNDS], share[MAX_ROUNDS];
    size_t n = (size_t)b->rounds;
    (void)seconds(b, c); /* warm-up */
    (void)seconds(b, yardstick);
    for (size_t i = 0; i < n; i++) {
        double rate = yardstick->work / seconds(b, yardstick);
        time[i] = seconds(b, c);
        share[i] = c->work / time[i] / rate;
    }
    qsort(time, n, sizeof *time, compare);
    qsort(share, n, sizeof *share, compare);
    return (struct cuda_share){ time[n / 2], share[n / 2], share[0], share[n - 1] };
}

#endif
