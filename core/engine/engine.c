/* The engine: a model, a store and the workspace of one thread. */
#include "attend_host.h"
#include "local.h"

#include <math.h>
#include <string.h>

enum { ENGINE_CHUNK_MAX = 65536 };

/* A set comes from plans, which checked their own part of it; the sum over a sweep is checked here. */
static int engine_check_observers(const struct kvl_observer_set *set, struct kvl_err *err)
{
    if (set->window < 0)
        return kvl_fail(err, KVL_EINVAL, "observation window %d, want 0 or more", set->window);
    if (set->n_columns < 0 || set->n_columns > KVL_MAX_COLUMNS)
        return kvl_fail(err, KVL_EINVAL, "%d column sums to observe, want 0 to %d", set->n_columns,
                        KVL_MAX_COLUMNS);
    return KVL_OK;
}

/* Before sessions are created: each keeps what its engine asked for at that time. */
int kvl_engine_observe(struct kvl_engine *engine, const struct kvl_observer_set *set,
                       struct kvl_err *err)
{
    KVL_TRY(engine_check_observers(set, err));
    struct kvl_observer_set loaded = *set;
    KVL_TRY(kvl_engine_memory(engine, kvl_scorers_load(engine, &loaded, err), err));
    engine->desc.observers = loaded;
    return KVL_OK;
}

/* OpenBLAS is loaded when it is first needed. A prefill that asked for it must not fall back to another
 * product: its answers differ in their last bits. */
static int engine_check_blas(const struct kvl_engine_desc *d, struct kvl_err *err)
{
    if (d->prefill_type != KVL_PREFILL_BLAS) return KVL_OK;
    if (d->device && d->device->discrete)
        return kvl_fail(err, KVL_EINVAL,
                        "prefill_type blas is of the CPU, got device %s; want f32 or bf16 there",
                        d->device->name);
    if (!kvl_ops_blas())
        return kvl_fail(err, KVL_EINVAL, "prefill_type blas: %s, or prefill_type f32 or bf16",
                        kvl_ops_blas_error());
    return KVL_OK;
}

/* GPUs keep activations as floats: they would answer for something else. */
static int engine_check_act(const struct kvl_engine_desc *d, struct kvl_err *err)
{
    if (d->decode_act != KVL_DECODE_Q8 || !d->device || !d->device->discrete) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "decode_act q8 is of the CPU, got device %s; want q16 there",
                    d->device->name);
}

/* Before anything is allocated. What a model cannot do beyond its context is refused only where the user wants
 * to go beyond. */
static int engine_check(const struct kvl_engine_desc *d, struct kvl_err *err)
{
    if (d->chunk_tok < 0 || d->chunk_tok > ENGINE_CHUNK_MAX)
        return kvl_fail(err, KVL_EINVAL, "prefill chunk of %d tokens, want 1 to %d", d->chunk_tok,
                        ENGINE_CHUNK_MAX);
    /* Prefill attention on a GPU has registers for so many channels; a wider head would leave its
     * table of kernels. */
    int32_t dim = d->model->shape.head_dim, most = d->device ? d->device->max_head_dim : 0;
    if (most > 0 && dim > most)
        return kvl_fail(err, KVL_EMODEL,
                        "the model's heads have %d channels, device %s takes up to %d; use "
                        "--device cpu",
                        dim, d->device->name, most);
    if (d->allow_overlong && d->model->w.rope_dynamic)
        return kvl_fail(err, KVL_EMODEL,
                        "the model's rotation depends on the length beyond its context of %d "
                        "tokens (dynamic NTK), which is not supported; leave out --allow-overlong",
                        d->model->shape.n_ctx_train);
    if (d->allow_overlong && d->model->w.dual_chunks)
        return kvl_fail(
            err, KVL_EMODEL,
            "the model attends by dual chunks beyond %d tokens, which is not supported; "
            "leave out --allow-overlong",
            d->model->shape.n_ctx_train);
    if (d->allow_overlong && d->model->w.positions.data)
        return kvl_fail(err, KVL_EMODEL,
                        "the model learned %d positions and has none beyond; leave out "
                        "--allow-overlong",
                        d->model->shape.n_ctx_train);
    KVL_TRY(engine_check_blas(d, err));
    KVL_TRY(engine_check_act(d, err));
    return engine_check_observers(&d->observers, err);
}

/* ---- activations ------------------------------------------------------------------------------- */

enum { ENGINE_ROW_ARRAYS = 14 };

struct row_array {
    void *at;             /* of the pointer */
    enum kvl_place place; /* DEVICE: neither the engine nor a policy looks at it */
    size_t bytes;         /* of a row */
};

/* One list for allocating, freeing and counting, so that an array more is one row more. What hooks are given
 * lies in TABLE memory, which the host may see; all else stays on the device.  `gate` and `up` are as wide as
 * all experts of a token, whose rows lie one after the other there (experts.c). */
static void row_arrays(struct kvl_engine *e, struct row_array out[ENGINE_ROW_ARRAYS])
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t embd = (size_t)sh->n_embd * sizeof(float);
    size_t q = (size_t)sh->n_heads * (size_t)sh->head_dim * sizeof(float);
    size_t kv = (size_t)sh->n_kv_heads * (size_t)sh->head_dim * sizeof(float);
    size_t experts = (size_t)KVL_MAX(e->model->w.hparams.n_experts_used, 1);
    size_t ff = (size_t)e->model->w.hparams.n_ff * experts * sizeof(float);
    bool routes = e->model->w.hparams.n_experts > 0;
    const struct row_array all[ENGINE_ROW_ARRAYS] = {
        { &e->x, KVL_PLACE_DEVICE, embd },
        { &e->tmp, KVL_PLACE_DEVICE, embd },
        { &e->gate, KVL_PLACE_DEVICE, ff },
        { &e->up, KVL_PLACE_DEVICE, ff },
        { &e->routed, KVL_PLACE_DEVICE, routes ? experts * embd : sizeof(float) },
        { &e->xn, KVL_PLACE_TABLE, embd },
        { &e->x_prev, KVL_PLACE_TABLE, embd },
        { &e->q, KVL_PLACE_TABLE, q },
        { &e->q_raw, KVL_PLACE_TABLE, q },
        { &e->att, KVL_PLACE_TABLE, q },
        { &e->k, KVL_PLACE_TABLE, kv },
        { &e->k_raw, KVL_PLACE_TABLE, kv },
        { &e->v, KVL_PLACE_TABLE, kv },
        { &e->given, KVL_PLACE_DEVICE, 2 * sizeof *e->given },
    };
    memcpy(out, all, sizeof all);
}

/* For forecasts, which have a model and no engine yet. */
size_t kvl_engine_row_bytes(const struct kvl_model *model)
{
    struct kvl_engine e = { .model = model };
    struct row_array array[ENGINE_ROW_ARRAYS];
    size_t bytes = sizeof *e.row;
    row_arrays(&e, array);
    for (int i = 0; i < ENGINE_ROW_ARRAYS; i++) bytes += array[i].bytes;
    return bytes;
}

/* Pointers of other types through memcpy: `at` is a float ** or an int32_t **. */
static void row_array_free(const struct kvl_engine *e, const struct row_array *a)
{
    void *p;
    memcpy(&p, a->at, sizeof p);
    e->dev->free(a->place, p);
}

static int row_array_alloc(const struct kvl_engine *e, const struct row_array *a, int32_t n)
{
    void *p = e->dev->alloc(a->place, (size_t)n, a->bytes);
    memcpy(a->at, &p, sizeof p);
    return p ? KVL_OK : KVL_ENOMEM;
}

/* Activations of n rows; what was there is lost. */
static int engine_rows(struct kvl_engine *e, int32_t n)
{
    struct row_array array[ENGINE_ROW_ARRAYS];
    if (n <= e->cap_rows) return KVL_OK;
    row_arrays(e, array);
    /* Counts as no room until all of it is there: after a failure half way the arrays are of two
     * sizes, and the next call makes them all anew. */
    e->cap_rows = 0;
    for (int i = 0; i < ENGINE_ROW_ARRAYS; i++) {
        row_array_free(e, &array[i]);
        KVL_TRY(row_array_alloc(e, &array[i], n));
    }
    kvl_free(e->row);
    kvl_free(e->id);
    e->row = kvl_alloc((size_t)n, sizeof *e->row);
    /* One allocation for id, pos and `both`, which is as long as the two together. */
    e->id = kvl_alloc((size_t)n, 4 * sizeof *e->id);
    if (!e->row || !e->id) return KVL_ENOMEM;
    e->pos = e->id + n;
    e->both = e->pos + n;
    e->cap_rows = n;
    return KVL_OK;
}

/* Grows and never shrinks: a decoded token after a long prefill allocates nothing. */
int kvl_engine_reserve(struct kvl_engine *e, int32_t n_rows, struct kvl_err *err)
{
    if (engine_rows(e, n_rows) == KVL_OK) return KVL_OK;
    return kvl_fail(err, KVL_ENOMEM, "out of memory for the activations of %d tokens", n_rows);
}

/* ---- the device ---------------------------------------------------------------------------------- */

static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* "Out of memory" on a GPU is asked about more than any other error: the message says what was wanted, what
 * there is and who has it. */
static int memory_table(struct kvl_engine *e, int rc, struct kvl_err *err)
{
    struct row_array array[ENGINE_ROW_ARRAYS];
    struct kvl_device_memory m;
    const struct kvl_shape *sh = &e->model->shape;
    /* A copy, since kvl_fail writes over the message that its new one begins with. */
    struct kvl_err old = *err;
    size_t row = 0, kv = (size_t)sh->n_layers * (size_t)sh->n_kv_heads *
                         kvl_kv_slot_bytes(e->desc.kv_type, sh->head_dim, e->desc.raw_keys);
    row_arrays(e, array);
    for (int i = 0; i < ENGINE_ROW_ARRAYS; i++) row += array[i].bytes;
    e->dev->memory(&m);
    kvl_err_clear(err);
    return kvl_fail(
        err, rc,
        "%s; wanted: weights %.1f MiB, keys and values %.4f MiB for a token, activations "
        "%.1f MiB for a chunk of %d; there is: %.1f MiB, %.1f of them free, %.1f taken by "
        "this program",
        old.msg, mib(e->model->bytes), mib(kv), mib(row * (size_t)e->desc.chunk_tok),
        e->desc.chunk_tok, mib(m.total_bytes), mib(m.free_bytes),
        mib(m.place_bytes[KVL_PLACE_SHARED] + m.place_bytes[KVL_PLACE_TABLE] +
            m.place_bytes[KVL_PLACE_DEVICE]));
}

/* Every call that may allocate on the device returns through this. */
int kvl_engine_memory(struct kvl_engine *e, int rc, struct kvl_err *err)
{
    if (rc != KVL_ENOMEM || !e->dev->discrete) return rc;
    const char *end = e->dev->error();
    if (*end) { /* nothing is to be had of a device that is lost */
        kvl_err_clear(err);
        return kvl_fail(err, KVL_EDEVICE, "%s", end);
    }
    return err ? memory_table(e, rc, err) : rc;
}

/* What was mirrored is remembered one by one, since a failure half way must free as much and no more. */
static int engine_mirror_range(struct kvl_engine *e, const void *p, size_t bytes,
                               struct kvl_err *err)
{
    int rc = e->dev->mirror(p, bytes);
    KVL_TRY(kvl_engine_failed(e, "copy of the weights on the device", rc, err));
    e->mirror[e->n_mirrors++] = p;
    return KVL_OK;
}

/* The tensors, and the frequencies of RoPE, which are in no file. */
static int engine_mirror(struct kvl_engine *e, struct kvl_err *err)
{
    const struct kvl_weights *w = &e->model->w;
    struct kvl_gguf_range *range = NULL;
    size_t n = 0;
    int rc = kvl_gguf_ranges(e->model->file, &range, &n);
    /* One more than the file has ranges: the frequencies. */
    e->mirror = kvl_alloc(n + 1, sizeof *e->mirror);
    if (rc != KVL_OK || !e->mirror) rc = kvl_fail(err, KVL_ENOMEM, "out of memory for an engine");
    for (size_t i = 0; i < n && rc == KVL_OK; i++)
        rc = engine_mirror_range(e, range[i].data, range[i].bytes, err);
    if (rc == KVL_OK) rc = engine_mirror_range(e, w->freq, w->n_freqs * sizeof *w->freq, err);
    kvl_free(range);
    return rc;
}

/* ---- life ----------------------------------------------------------------------------------------- */

/* Whatever fails leaves an engine that kvl_engine_destroy can free. */
static int engine_fill(struct kvl_engine *e, struct kvl_err *err)
{
    const struct kvl_shape *sh = &e->model->shape;
    const struct kvl_weights *w = &e->model->w;
    int32_t most = e->desc.max_tok > 0 ? e->desc.max_tok : sh->n_ctx_train;
    e->scale = w->scale;
    e->cap = w->cap;
    /* Once for all sessions, not by the length of each: keys are stored as they were turned, so
     * that the factors of LongRoPE cannot change while a context grows, and forks share keys. */
    e->rope_long = w->n_ctx_short > 0 && most > w->n_ctx_short;
    e->lanes = kvl_alloc((size_t)sh->n_kv_heads, sizeof *e->lanes);
    if (e->dev->attends_host) e->hosted = kvl_hosted_create();
    if (!e->lanes || (e->dev->attends_host && !e->hosted))
        return kvl_fail(err, KVL_ENOMEM, "out of memory for an engine");
    struct kvl_store_desc d = { .n_layers = sh->n_layers,
                                .n_kv_heads = sh->n_kv_heads,
                                .head_dim = sh->head_dim,
                                .block_tok = e->desc.block_tok,
                                .type = e->desc.kv_type,
                                .raw_keys = e->desc.raw_keys,
                                .limit_bytes = e->desc.kv_limit_bytes,
                                .device = e->dev };
    KVL_TRY(kvl_store_create(&d, &e->store, err));
    KVL_TRY(kvl_sinks_create(e, err));
    KVL_TRY(kvl_scorers_load(e, &e->desc.observers, err));
    return e->dev->discrete ? engine_mirror(e, err) : KVL_OK;
}

/* Operators by two names: `ops` may return before the device has computed, `now` waits.  Results that hooks see lie in
 * memory that both sides reach; what is late is read back by the host, hence pinned. */
int kvl_engine_create(const struct kvl_engine_desc *desc, struct kvl_engine **out,
                      struct kvl_err *err)
{
    KVL_TRY(engine_check(desc, err));
    struct kvl_engine *e = kvl_alloc(1, sizeof *e);
    if (!e) return kvl_fail(err, KVL_ENOMEM, "out of memory for an engine");
    e->desc = *desc;
    if (e->desc.chunk_tok == 0) e->desc.chunk_tok = KVL_ENGINE_CHUNK;
    e->model = desc->model;
    e->dev = desc->device ? desc->device : kvl_device_cpu();
    /* Operators that a caller brings must wait by themselves, so they serve under both names;
     * async.c takes equal names as a sign that no hook may run ahead. */
    e->ops = desc->ops ? desc->ops : e->dev->ops;
    e->now = desc->ops ? desc->ops : e->dev->ops_now;
    e->results.dev = e->scratch.dev = e->late.dev = e->dev;
    e->results.place = e->scratch.place = KVL_PLACE_SHARED;
    e->late.place = KVL_PLACE_PINNED;
    /* A host that writes to results says so first (kvl_engine_host), so new pieces are not its
     * own. */
    e->results.ahead = true;
    int rc = engine_fill(e, err);
    if (rc != KVL_OK) {
        rc = kvl_engine_memory(e, rc, err);
        kvl_engine_destroy(e);
        return rc;
    }
    *out = e;
    return KVL_OK;
}

void kvl_engine_destroy(struct kvl_engine *e)
{
    if (!e) return;
    struct row_array array[ENGINE_ROW_ARRAYS];
    row_arrays(e, array);
    for (int i = 0; i < ENGINE_ROW_ARRAYS; i++) row_array_free(e, &array[i]);
    for (int32_t i = 0; i < e->n_mirrors; i++) e->dev->unmirror(e->mirror[i]);
    e->dev->free(KVL_PLACE_TABLE, e->sinks);
    e->dev->free(KVL_PLACE_TABLE, e->nothing);
    kvl_scorers_free(e);
    kvl_free(e->mirror);
    kvl_hosted_destroy(e);
    kvl_free(e->row);
    kvl_free(e->id);
    kvl_free(e->lanes);
    kvl_free(e->job);
    kvl_free(e->job_src);
    kvl_free(e->merge);
    kvl_arena_free(&e->step);
    kvl_arena_free(&e->results);
    kvl_arena_free(&e->scratch);
    kvl_arena_free(&e->late);
    kvl_arena_free(&e->late_lists);
    /* Sessions borrow the engine and go before it: the store asserts that no sequence is left. */
    kvl_store_destroy(e->store);
    kvl_free(e);
}

struct kvl_store *kvl_engine_store(struct kvl_engine *e)
{
    return e->store;
}
const struct kvl_device *kvl_engine_device(const struct kvl_engine *e)
{
    return e->dev;
}
const struct kvl_model *kvl_engine_model(const struct kvl_engine *e)
{
    return e->model;
}

void kvl_engine_set_stop(struct kvl_engine *e, const volatile int *stop)
{
    e->stop = stop;
}

void kvl_engine_set_tick(struct kvl_engine *e, kvl_tick *run, void *user)
{
    e->tick.run = run;
    e->tick.user = user;
}

void kvl_engine_set_watch(struct kvl_engine *e, void (*run)(const char *policy))
{
    /* The listener that goes hears that no hook runs any more; the new one starts from there. */
    kvl_watch_policy(e, NULL);
    e->watch = run;
}
