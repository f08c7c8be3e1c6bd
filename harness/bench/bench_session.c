/* Sessions to measure on: filled, not prefilled; measured on forks, so that a depth stays what it
 * is. */
#include "bench.h"

#include "kvl/rng.h"
#include "stop.h"

#include <string.h>
#include <time.h>

static const double SESSION_WINDOW_S = 0.1;

int bench_engine_open(struct bench *b, const struct bench_engine *want, struct kvl_engine **out)
{
    struct kvl_engine_desc desc = { .model = want->model,
                                    .device = b->device,
                                    .kv_type = want->kv_type,
                                    .raw_keys = want->raw_keys,
                                    .observers = want->observers,
                                    .prefill_type = want->bf16 ? KVL_PREFILL_BF16 : KVL_PREFILL_F32,
                                    .decode_act = want->q8 ? KVL_DECODE_Q8 : b->config.decode_act,
                                    .prefill_kv_host = want->prefill_kv_host,
                                    .chunk_tok = want->chunk_tok,
                                    .allow_overlong = true };
    KVL_TRY(kvl_engine_create(&desc, out, b->err));
    kvl_engine_set_stop(*out, kvl_stop_flag());
    return KVL_OK;
}

int bench_text_read(struct bench *b)
{
    enum { TEXT_MOST = 64 << 20 };
    if (!b->config.text) return KVL_OK;
    KVL_TRY(kvl_read_file(b->config.text, TEXT_MOST, &b->text, b->err));
    if (b->text.len > 0) return KVL_OK;
    return kvl_fail(b->err, KVL_EINVAL, "--text: %s: no text in it", b->config.text);
}

int bench_text_open(struct bench *b)
{
    if (!b->config.text) return KVL_OK;
    return kvl_encode(kvl_model_tokenizer(b->model), b->text.data, b->text.len, KVL_ENCODE_BOS,
                      &b->context, b->err);
}

int bench_read_context(struct bench *b, struct kvl_session *s, int32_t first, int32_t n)
{
    struct kvl_rng rng;
    uint32_t n_vocab = (uint32_t)kvl_model_shape(b->model)->n_vocab;
    int32_t *id = kvl_alloc((size_t)n, sizeof *id);
    if (!id) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for %d tokens", n);
    kvl_rng_seed(&rng, 1);
    for (int32_t i = 0; i < n; i++)
        id[i] = b->context.n > 0 ? b->context.id[(first + i) % b->context.n]
                                 : (int32_t)kvl_rng_below(&rng, n_vocab);
    int rc = kvl_session_prefill(s, id, n, NULL, true, b->err);
    kvl_free(id);
    return rc;
}

/* The session of depth i from that of depth i - 1. */
static int depths_next(struct bench *b, struct bench_depths *d, int32_t i)
{
    int32_t before = i > 0 ? d->depth.v[i - 1] : 0;
    if (i == 0)
        KVL_TRY(kvl_session_create(d->engine, &d->at[0], b->err));
    else
        KVL_TRY(kvl_session_fork(d->at[i - 1], &d->at[i], b->err));
    int32_t n = d->depth.v[i] - before;
    if (n <= 0) return KVL_OK;
    if (b->context.n > 0) return bench_read_context(b, d->at[i], before, n);
    return kvl_session_fill(d->at[i], n, (uint64_t)i + 1, b->err);
}

int bench_depths_open(struct bench *b, const struct bench_engine *want,
                      const struct bench_list *depth, struct bench_depths *out)
{
    struct bench_depths d = { .depth = *depth };
    int rc = bench_engine_open(b, want, &d.engine);
    d.logits = kvl_alloc((size_t)kvl_model_shape(want->model)->n_vocab, sizeof *d.logits);
    if (rc == KVL_OK && !d.logits) rc = kvl_fail(b->err, KVL_ENOMEM, "out of memory for logits");
    for (int32_t i = 0; rc == KVL_OK && i < depth->n; i++) rc = depths_next(b, &d, i);
    if (rc == KVL_OK)
        *out = d;
    else
        bench_depths_close(&d);
    return rc;
}

void bench_depths_close(struct bench_depths *d)
{
    for (int32_t i = d->depth.n; i-- > 0;) kvl_session_destroy(d->at[i]);
    kvl_engine_destroy(d->engine);
    kvl_free(d->logits);
    *d = (struct bench_depths){ 0 };
}

/* A device may still be busy with what it was given: that counts. */
static int session_wait(struct bench *b)
{
    int rc = b->device ? b->device->sync() : KVL_OK;
    return rc == KVL_OK ? rc : kvl_fail(b->err, rc, "%s", b->device->error());
}

/* Of the host for the device, since the process began. */
static int64_t session_waits(const struct bench *b)
{
    struct kvl_device_traffic t = { 0 };
    if (b->device) b->device->traffic(&t);
    return t.n_syncs;
}

static double session_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int decode_window(struct bench *b, struct kvl_session *s, float *logits, int32_t n_steps,
                         double least_s, struct bench_window *out)
{
    int32_t id = 5, n_vocab = kvl_model_shape(b->model)->n_vocab;
    KVL_TRY(kvl_session_decode(&s, 1, &id, logits, b->err));
    kvl_session_reset_counters(s);
    KVL_TRY(session_wait(b));
    struct bench_window w = { 0 };
    uint64_t t0 = kvl_now_ns();
    double spent = 0, cpu = session_cpu_s();
    int64_t waits = 0;
    for (; w.n < n_steps || spent < least_s; w.n++) {
        id = kvl_argmax(logits, n_vocab);
        waits -= session_waits(b);
        KVL_TRY(kvl_session_decode(&s, 1, &id, logits, b->err));
        waits += session_waits(b);
        KVL_TRY(session_wait(b));
        spent = 1e-9 * (double)(kvl_now_ns() - t0);
    }
    w.count = *kvl_session_counters(s);
    w.token_s = spent / w.n;
    w.cpu_s = (session_cpu_s() - cpu) / w.n;
    w.waits = (double)waits / w.n;
    *out = w;
    return bench_stopped(b);
}

static int decode_fork(struct bench *b, const struct kvl_session *s, float *logits, int32_t n_steps,
                       double least_s, struct bench_window *out)
{
    struct kvl_session *fork;
    KVL_TRY(kvl_session_fork(s, &fork, b->err));
    int rc = decode_window(b, fork, logits, n_steps, least_s, out);
    kvl_session_destroy(fork);
    return rc;
}

int bench_decode(struct bench *b, const struct kvl_session *s, float *logits, int32_t n_steps,
                 struct bench_window *out)
{
    if (b->config.quick) return decode_fork(b, s, logits, 1, SESSION_WINDOW_S / 10, out);
    return decode_fork(b, s, logits, n_steps, SESSION_WINDOW_S, out);
}

int bench_decode_steps(struct bench *b, const struct kvl_session *s, float *logits, int32_t n_steps,
                       struct bench_window *out)
{
    return decode_fork(b, s, logits, n_steps, 0, out);
}

int bench_prefill_time(struct bench *b, struct kvl_engine *engine, const struct kvl_session *s,
                       int32_t n, double *seconds)
{
    struct kvl_session *fork;
    struct kvl_rng rng;
    uint32_t n_vocab = (uint32_t)kvl_model_shape(kvl_engine_model(engine))->n_vocab;
    int32_t *id = kvl_alloc((size_t)n, sizeof *id);
    if (!id) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for %d tokens", n);
    kvl_rng_seed(&rng, 1);
    for (int32_t i = 0; i < n; i++) id[i] = (int32_t)kvl_rng_below(&rng, n_vocab);
    int rc = s ? kvl_session_fork(s, &fork, b->err) : kvl_session_create(engine, &fork, b->err);
    if (rc == KVL_OK) {
        (void)session_wait(b); /* for the fork; what failed is told by the next call */
        uint64_t t0 = kvl_now_ns();
        rc = kvl_session_prefill(fork, id, n, NULL, true, b->err);
        if (rc == KVL_OK) rc = session_wait(b);
        *seconds = 1e-9 * (double)(kvl_now_ns() - t0);
        kvl_session_destroy(fork);
    }
    kvl_free(id);
    return rc;
}
