#include "cpu.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

/* Queries packed at a time, slots of one item. */
enum { WINDOW_QUERIES = 256, WINDOW_SLOTS = 128 };

struct window {
    const struct kvl_attn_window_args *a;
    const struct kvl_kern *kern;
    int threads;
    size_t head_floats; /* packed queries of one head */
    size_t thread_floats;
    const float *lse;
    float *packed, *scratch;
};

/* An attention without values gives the log-sum-exp of every query. */
static int window_lse(const struct kvl_attn_window_args *a, float *lse)
{
    struct kvl_attn_prefill_args p = { .lse = lse,
                                       .q = a->q,
                                       .lanes = a->lanes,
                                       .n = a->n_window,
                                       .n_heads = a->n_heads,
                                       .n_kv_heads = a->n_kv_heads,
                                       .head_dim = a->head_dim,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .bf16 = a->bf16 };
    return kvl_cpu_attn_prefill(&p);
}

static void window_queries(const struct window *w, int32_t w0, int32_t n_w)
{
    const struct kvl_attn_window_args *a = w->a;
    int32_t group = a->n_heads / a->n_kv_heads;
    int32_t n_tiles = (a->n_slots + WINDOW_SLOTS - 1) / WINDOW_SLOTS;
#pragma omp parallel num_threads(w->threads) if (w->threads > 1)
    {
#pragma omp for schedule(static)
        for (int32_t h = 0; h < a->n_heads; h++)
            w->kern->window_pack(w->packed + (size_t)h * w->head_floats, a, h, w0, n_w);
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < n_tiles * a->n_kv_heads; i++) {
            struct kvl_window_item it = { .a = a, .lse = w->lse, .w0 = w0, .n_w = n_w };
            it.kv_head = i / n_tiles;
            it.slot0 = i % n_tiles * WINDOW_SLOTS;
            it.n = KVL_MIN(WINDOW_SLOTS, a->n_slots - it.slot0);
            it.q_stride = w->head_floats;
            it.q = w->packed + (size_t)(it.kv_head * group) * w->head_floats;
            it.scratch = w->scratch + (size_t)omp_get_thread_num() * w->thread_floats;
            w->kern->window_item(&it);
        }
    }
}

static int window_run(struct window *w)
{
    const struct kvl_attn_window_args *a = w->a;
    int32_t nr = w->kern->nr, n_w = KVL_MIN(WINDOW_QUERIES / nr * nr, a->n_window);
    w->threads = kvl_team((double)a->n_window * a->n_heads * a->n_slots * a->head_dim / 40);
    w->head_floats = (size_t)((n_w + nr - 1) / nr * nr) * (size_t)a->head_dim;
    w->thread_floats = w->kern->window_scratch(a->head_dim);
    size_t packed = ((size_t)a->n_heads * w->head_floats + 15) / 16 * 16;
    w->packed =
        kvl_cpu_scratch((packed + w->thread_floats * (size_t)w->threads) * sizeof *w->packed);
    if (!w->packed) return KVL_ENOMEM;
    w->scratch = w->packed + packed;
    memset(a->mass, 0, (size_t)a->n_heads * (size_t)a->n_slots * sizeof *a->mass);
    for (int32_t w0 = 0; w0 < a->n_window; w0 += n_w)
        window_queries(w, w0, KVL_MIN(n_w, a->n_window - w0));
    return KVL_OK;
}

int kvl_cpu_attn_window(const struct kvl_attn_window_args *a)
{
    struct window w = { .a = a, .kern = kvl_kern(), .lse = a->lse };
    if (a->lse) return window_run(&w);
    /* The pass that finds it uses the scratch itself: the results need a place of their own. */
    float *lse = kvl_alloc((size_t)a->n_window * (size_t)a->n_heads, sizeof *lse);
    if (!lse) return KVL_ENOMEM;
    w.lse = lse;
    int status = window_lse(a, lse);
    if (status == KVL_OK) status = window_run(&w);
    kvl_free(lse);
    return status;
}
