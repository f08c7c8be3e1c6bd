/* What a GPU gives at most, and one layer's products against the vendor's library alone. */
#include "bench_gpu.h"

#include "kvl/rng.h"

#include <stdlib.h>
#include <string.h>

enum { GPU_STREAM_BYTES = 1 << 30, GPU_COPY_BYTES = 256 << 20, GPU_QUICK = 64, GPU_MATRICES = 7 };
static const double GPU_WINDOW_S = 0.02;

/* ---- memory ---------------------------------------------------------------------------------------- */

int bench_gpu_open(struct bench *b, struct bench_gpu *out)
{
    const struct kvl_device *dev = b->device;
    struct bench_gpu g = { .b = b };
    size_t part = b->config.quick ? GPU_QUICK : 1;
    g.stream_bytes = GPU_STREAM_BYTES / part;
    g.copy_bytes = GPU_COPY_BYTES / part;
    g.stream = dev->alloc(KVL_PLACE_DEVICE, g.stream_bytes, 1);
    g.pinned = dev->alloc(KVL_PLACE_PINNED, g.copy_bytes, 1);
    g.copy = dev->alloc(KVL_PLACE_DEVICE, g.copy_bytes, 1);
    *out = g;
    if (g.stream && g.pinned && g.copy) return KVL_OK;
    bench_gpu_close(out);
    return kvl_fail(b->err, KVL_ENOMEM, "no memory on the device for %zu bytes to read",
                    g.stream_bytes);
}

void bench_gpu_close(struct bench_gpu *g)
{
    if (!g->b) return;
    g->b->device->free(KVL_PLACE_DEVICE, g->stream);
    g->b->device->free(KVL_PLACE_PINNED, g->pinned);
    g->b->device->free(KVL_PLACE_DEVICE, g->copy);
    *g = (struct bench_gpu){ 0 };
}

/* ---- rates ------------------------------------------------------------------------------------------ */

/* One side of a ratio: gives work to the device once. */
struct gpu_side {
    const struct bench_gpu *g;
    int (*run)(const struct gpu_side *s);
    const void *data;
    double work; /* bytes or operations */
};

static int gpu_checked(const struct bench_gpu *g, int rc)
{
    const struct kvl_device *dev = g->b->device;
    const char *why = dev->error();
    if (rc == KVL_OK) return rc;
    if (*why) return kvl_fail(g->b->err, rc, "%s", why);
    return kvl_fail(g->b->err, rc, "device %s: %s", dev->name, kvl_status_name(rc));
}

/* Work per second, waiting included, over enough runs that the wait is little. */
static int gpu_rate(const struct gpu_side *s, double *rate)
{
    const struct kvl_device *dev = s->g->b->device;
    double spent = 0;
    int64_t n = 0;
    KVL_TRY(gpu_checked(s->g, s->run(s)));
    KVL_TRY(gpu_checked(s->g, dev->sync()));
    uint64_t t0 = kvl_now_ns();
    for (int64_t times = 1; spent < GPU_WINDOW_S; times *= 2) {
        for (int64_t i = 0; i < times; i++) KVL_TRY(gpu_checked(s->g, s->run(s)));
        KVL_TRY(gpu_checked(s->g, dev->sync()));
        n += times;
        spent = 1e-9 * (double)(kvl_now_ns() - t0);
    }
    *rate = s->work * (double)n / spent;
    return bench_stopped(s->g->b);
}

static int gpu_run_stream(const struct gpu_side *s)
{
    return s->g->b->device->peak_read(s->g->stream, s->g->stream_bytes);
}

static int gpu_run_pinned(const struct gpu_side *s)
{
    return s->g->b->device->copy(s->g->copy, s->g->pinned, s->g->copy_bytes, KVL_STREAM_COPY);
}

int bench_gpu_stream(const struct bench_gpu *g, double *rate)
{
    return gpu_rate(&(struct gpu_side){ g, gpu_run_stream, NULL, (double)g->stream_bytes }, rate);
}

int bench_gpu_pinned(const struct bench_gpu *g, double *rate)
{
    return gpu_rate(&(struct gpu_side){ g, gpu_run_pinned, NULL, (double)g->copy_bytes }, rate);
}

int bench_gpu_machine(const struct bench_gpu *g)
{
    struct bench *b = g->b;
    struct kvl_device_info info;
    double stream[BENCH_MAX_ROUNDS], pinned[BENCH_MAX_ROUNDS], sheet[BENCH_MAX_ROUNDS];
    int32_t n = b->config.rounds;
    b->device->info(&info);
    for (int32_t r = 0; r < n; r++) {
        KVL_TRY(bench_gpu_stream(g, &stream[r]));
        KVL_TRY(bench_gpu_pinned(g, &pinned[r]));
        stream[r] *= 1e-9;
        pinned[r] *= 1e-9;
        sheet[r] = info.memory_gbs;
    }
    struct bench_line line = { .part = "gpu", .what = "stream read", .unit = "GB/s", .depth = -1 };
    if (info.memory_gbs > 0) {
        line.against = "data sheet";
        line.ratio = bench_ratio(stream, sheet, n);
    }
    line.value = bench_spread(stream, n);
    KVL_TRY(bench_emit(b, &line));
    line = (struct bench_line){ .part = "gpu",
                                .what = "pinned copy to the device",
                                .unit = "GB/s",
                                .depth = -1,
                                .value = bench_spread(pinned, n) };
    return bench_emit(b, &line);
}

/* ---- products of a layer ------------------------------------------------------------------------------ */

struct gpu_layer {
    const struct kvl_device *dev;
    struct kvl_weight w[GPU_MATRICES]; /* BF16, on the device */
    float *x, *y;                      /* [rows][widest] */
    uint16_t *x16;
    int32_t rows;
    double flops; /* per row */
};

static int gpu_run_ours(const struct gpu_side *s)
{
    const struct gpu_layer *l = s->data;
    for (int i = 0; i < GPU_MATRICES; i++)
        KVL_TRY(l->dev->ops->gemm(&(struct kvl_gemm_args){
            .y = l->y, .x = l->x, .w = &l->w[i], .n = l->rows, .bf16 = true }));
    return KVL_OK;
}

static int gpu_run_theirs(const struct gpu_side *s)
{
    const struct gpu_layer *l = s->data;
    for (int i = 0; i < GPU_MATRICES; i++)
        KVL_TRY(
            l->dev->peak_gemm(l->y, l->x16, l->w[i].data, l->rows, l->w[i].n_rows, l->w[i].n_cols));
    return KVL_OK;
}

/* bf16 numbers of either sign between 2^-4 and 2^-3; n of them on the device, NULL: no memory. */
static uint16_t *gpu_halves(const struct kvl_device *dev, size_t n, uint64_t seed)
{
    uint16_t *host = kvl_alloc(n, sizeof *host), *to = NULL;
    for (size_t i = 0; host && i < n; i++)
        host[i] = (uint16_t)((kvl_seed_mix(seed, i) & 0x807f) | 0x3d80);
    if (host) to = dev->alloc(KVL_PLACE_DEVICE, n, sizeof *to);
    if (to && dev->copy(to, host, n * sizeof *host, KVL_STREAM_MAIN) != KVL_OK) {
        dev->free(KVL_PLACE_DEVICE, to);
        to = NULL;
    }
    kvl_free(host);
    return to;
}

static int gpu_layer_open(struct gpu_layer *l, const struct bench_shape *s, int32_t most_rows)
{
    int32_t d = s->n_embd, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const int32_t size[GPU_MATRICES][2] = { { q, d },       { kv, d },      { kv, d },     { d, q },
                                            { s->n_ff, d }, { s->n_ff, d }, { d, s->n_ff } };
    size_t widest = (size_t)most_rows * (size_t)KVL_MAX(KVL_MAX(s->n_ff, q), d);
    l->x = l->dev->alloc(KVL_PLACE_DEVICE, widest, sizeof *l->x);
    l->y = l->dev->alloc(KVL_PLACE_DEVICE, widest, sizeof *l->y);
    l->x16 = gpu_halves(l->dev, widest, 1);
    if (!l->x || !l->y || !l->x16) return KVL_ENOMEM;
    KVL_TRY(l->dev->ops->random_fill(&(struct kvl_random_fill_args){ l->x, widest, 1 }));
    for (int i = 0; i < GPU_MATRICES; i++) {
        size_t n = (size_t)size[i][0] * (size_t)size[i][1];
        l->w[i] = (struct kvl_weight){ .data = gpu_halves(l->dev, n, (uint64_t)i + 2),
                                       .type = KVL_W_BF16,
                                       .n_rows = size[i][0],
                                       .n_cols = size[i][1],
                                       .row_bytes = (size_t)size[i][1] * sizeof(uint16_t) };
        if (!l->w[i].data) return KVL_ENOMEM;
        l->flops += 2.0 * (double)n;
    }
    return KVL_OK;
}

static void gpu_layer_close(struct gpu_layer *l)
{
    for (int i = 0; i < GPU_MATRICES; i++)
        l->dev->free(KVL_PLACE_DEVICE, (void *)(uintptr_t)l->w[i].data);
    l->dev->free(KVL_PLACE_DEVICE, l->x);
    l->dev->free(KVL_PLACE_DEVICE, l->y);
    l->dev->free(KVL_PLACE_DEVICE, l->x16);
}

static int gpu_products_of(const struct bench_gpu *g, const struct gpu_layer *l, const char *what)
{
    double ours[BENCH_MAX_ROUNDS], theirs[BENCH_MAX_ROUNDS], work = l->flops * l->rows;
    int32_t n = g->b->config.rounds;
    for (int32_t r = 0; r < n; r++) {
        KVL_TRY(gpu_rate(&(struct gpu_side){ g, gpu_run_ours, l, 1e-12 * work }, &ours[r]));
        KVL_TRY(gpu_rate(&(struct gpu_side){ g, gpu_run_theirs, l, 1e-12 * work }, &theirs[r]));
    }
    struct bench_line line = { .part = "gpu",
                               .what = what,
                               .unit = "TFLOP/s",
                               .depth = -1,
                               .against = "cuBLAS alone",
                               .ratio = bench_ratio(ours, theirs, n) };
    line.value = bench_spread(ours, n);
    return bench_emit(g->b, &line);
}

int bench_gpu_products(const struct bench_gpu *g)
{
    static const struct products {
        int32_t rows;
        const char *what;
    } usual[] = { { 512, "projections of 512, bf16" }, { 4096, "projections of 4096, bf16" } },
      quick[] = { { 64, "projections of 64, bf16" } };
    const struct products *of = g->b->config.quick ? quick : usual;
    size_t n = g->b->config.quick ? 1 : 2;
    struct gpu_layer l = { .dev = g->b->device };
    const struct bench_shape *shape = g->b->config.shape;
    if (!shape) KVL_TRY(bench_shape_find("llama8b", &shape, g->b->err));
    int rc = gpu_checked(g, gpu_layer_open(&l, shape, of[n - 1].rows));
    for (size_t i = 0; rc == KVL_OK && i < n; i++) {
        l.rows = of[i].rows;
        rc = gpu_products_of(g, &l, of[i].what);
    }
    gpu_layer_close(&l);
    return rc;
}
