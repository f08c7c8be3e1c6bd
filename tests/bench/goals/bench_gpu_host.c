/* --device cuda --prefill-host N: a context that does not fit the GPU, layer by layer, with its keys and
 * values in host memory (kvl_engine_desc.prefill_kv_host): what it takes in time and in memory of both. */
#include "bench_goals.h"

enum { HOST_CHUNK = 2048, HOST_QUICK_CHUNK = 32 };

/* Keys, values and positions of all layers, and the hidden states of all tokens. */
static double host_needs(const struct bench *b, int32_t n_tok)
{
    const struct kvl_shape *s = kvl_model_shape(b->model);
    double slot =
        (double)kvl_kv_slot_bytes(b->config.kv_type, s->head_dim, false) + sizeof(int32_t);
    return (double)n_tok * (slot * s->n_layers * s->n_kv_heads + (double)sizeof(float) * s->n_embd);
}

static int host_emit(struct bench *b, int32_t n_tok, const char *what, const char *unit,
                     double value)
{
    struct bench_line line = {
        .part = "gpu", .what = what, .unit = unit, .depth = n_tok, .value = { value, value, value }
    };
    bench_extra(&line, "weight_bytes", (double)kvl_model_token_bytes(b->model));
    return bench_emit(b, &line);
}

static int host_run(struct bench *b, int32_t n_tok, struct kvl_engine *engine)
{
    struct kvl_device_memory m;
    double seconds, n = n_tok;
    bench_say("prefill of %d tokens, layer by layer", n_tok);
    KVL_TRY(bench_prefill_time(b, engine, NULL, n_tok, &seconds));
    b->device->memory(&m);
    KVL_TRY(host_emit(b, n_tok, "prefill to the host", "tok/s", n / seconds));
    KVL_TRY(host_emit(b, n_tok, "prefill to the host, device memory", "MiB",
                      (double)(m.peak_bytes[KVL_PLACE_DEVICE] + m.peak_bytes[KVL_PLACE_SHARED] +
                               m.peak_bytes[KVL_PLACE_TABLE]) /
                          (1 << 20)));
    return host_emit(b, n_tok, "prefill to the host, host memory", "MiB",
                     (double)m.peak_bytes[KVL_PLACE_PINNED] / (1 << 20));
}

int bench_gpu_host(struct bench *b, int32_t n_tok)
{
    const struct bench_engine want = { .model = b->model,
                                       .kv_type = b->config.kv_type,
                                       .chunk_tok = b->config.quick ? HOST_QUICK_CHUNK : HOST_CHUNK,
                                       .bf16 = true,
                                       .prefill_kv_host = true };
    double needs = host_needs(b, n_tok), there = (double)bench_memory_free();
    struct kvl_engine *engine;
    if (there < needs)
        return bench_skip(b, "a prefill of %d tokens: %.1f GiB of host memory, want %.1f", n_tok,
                          there / (1 << 30), needs / (1 << 30));
    KVL_TRY(bench_engine_open(b, &want, &engine));
    int rc = host_run(b, n_tok, engine);
    kvl_engine_destroy(engine);
    return rc;
}
