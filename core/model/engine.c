/* The engine: a model, a store and the workspace of one thread. */
#include "model/host.h"

#include <math.h>

enum { ENGINE_CHUNK = 512, ENGINE_CHUNK_MAX = 65536 };

static int engine_check_observers(const struct kvl_observer_set *set, struct kvl_err *err)
{
    if (set->window < 0)
        return kvl_fail(err, KVL_EINVAL, "observation window %d, want 0 or more", set->window);
    if (set->n_columns < 0 || set->n_columns > KVL_MAX_COLUMNS)
        return kvl_fail(err, KVL_EINVAL, "%d column sums to observe, want 0 to %d", set->n_columns,
                        KVL_MAX_COLUMNS);
    return KVL_OK;
}

int kvl_engine_observe(struct kvl_engine *engine, const struct kvl_observer_set *set,
                       struct kvl_err *err)
{
    KVL_TRY(engine_check_observers(set, err));
    engine->desc.observers = *set;
    return KVL_OK;
}

static int engine_check(const struct kvl_engine_desc *d, struct kvl_err *err)
{
    if (d->chunk_tok < 0 || d->chunk_tok > ENGINE_CHUNK_MAX)
        return kvl_fail(err, KVL_EINVAL, "prefill chunk of %d tokens, want 1 to %d", d->chunk_tok,
                        ENGINE_CHUNK_MAX);
    return engine_check_observers(&d->observers, err);
}

/* Activations of n rows; what was there is lost. */
static int engine_rows(struct kvl_engine *e, int32_t n)
{
    if (n <= e->cap_rows) return KVL_OK;
    const struct kvl_shape *sh = &e->model->shape;
    size_t rows = (size_t)n, embd = (size_t)sh->n_embd;
    size_t q = (size_t)sh->n_heads * (size_t)sh->head_dim;
    size_t kv = (size_t)sh->n_kv_heads * (size_t)sh->head_dim;
    size_t ff = (size_t)e->model->w.hparams.n_ff;
    struct {
        float **to;
        size_t width;
    } bufs[] = { { &e->x, embd },  { &e->xn, embd }, { &e->tmp, embd },    { &e->q, q },
                 { &e->q_raw, q }, { &e->att, q },   { &e->k, kv },        { &e->k_raw, kv },
                 { &e->v, kv },    { &e->gate, ff }, { &e->x_prev, embd }, { &e->up, ff } };
    e->cap_rows = 0;
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) {
        kvl_free(*bufs[i].to);
        *bufs[i].to = kvl_alloc(rows * bufs[i].width, sizeof(float));
        if (!*bufs[i].to) return KVL_ENOMEM;
    }
    kvl_free(e->id);
    kvl_free(e->pos);
    kvl_free(e->row);
    e->id = kvl_alloc(rows, sizeof *e->id);
    e->pos = kvl_alloc(rows, sizeof *e->pos);
    e->row = kvl_alloc(rows, sizeof *e->row);
    if (!e->id || !e->pos || !e->row) return KVL_ENOMEM;
    e->cap_rows = n;
    return KVL_OK;
}

int kvl_engine_reserve(struct kvl_engine *e, int32_t n_rows, struct kvl_err *err)
{
    if (engine_rows(e, n_rows) == KVL_OK) return KVL_OK;
    return kvl_fail(err, KVL_ENOMEM, "out of memory for the activations of %d tokens", n_rows);
}

static int engine_fill(struct kvl_engine *e, struct kvl_err *err)
{
    const struct kvl_shape *sh = &e->model->shape;
    e->scale = 1.0f / sqrtf((float)sh->head_dim);
    e->lanes = kvl_alloc((size_t)sh->n_kv_heads, sizeof *e->lanes);
    if (!e->lanes) return kvl_fail(err, KVL_ENOMEM, "out of memory for an engine");
    struct kvl_store_desc d = { .n_layers = sh->n_layers,
                                .n_kv_heads = sh->n_kv_heads,
                                .head_dim = sh->head_dim,
                                .block_tok = e->desc.block_tok,
                                .type = e->desc.kv_type,
                                .raw_keys = e->desc.raw_keys,
                                .limit_bytes = e->desc.kv_limit_bytes };
    return kvl_store_create(&d, &e->store, err);
}

int kvl_engine_create(const struct kvl_engine_desc *desc, struct kvl_engine **out,
                      struct kvl_err *err)
{
    KVL_TRY(engine_check(desc, err));
    struct kvl_engine *e = kvl_alloc(1, sizeof *e);
    if (!e) return kvl_fail(err, KVL_ENOMEM, "out of memory for an engine");
    e->desc = *desc;
    if (e->desc.chunk_tok == 0) e->desc.chunk_tok = ENGINE_CHUNK;
    e->model = desc->model;
    e->ops = desc->ops ? desc->ops : &kvl_ops_cpu;
    int rc = engine_fill(e, err);
    if (rc != KVL_OK) {
        kvl_engine_destroy(e);
        return rc;
    }
    *out = e;
    return KVL_OK;
}

void kvl_engine_destroy(struct kvl_engine *e)
{
    if (!e) return;
    float *bufs[] = { e->x,   e->xn, e->x_prev, e->tmp, e->q,    e->q_raw,
                      e->att, e->k,  e->k_raw,  e->v,   e->gate, e->up };
    for (size_t i = 0; i < sizeof bufs / sizeof bufs[0]; i++) kvl_free(bufs[i]);
    kvl_free(e->id);
    kvl_free(e->pos);
    kvl_free(e->row);
    kvl_free(e->lanes);
    kvl_free(e->job);
    kvl_free(e->job_src);
    kvl_free(e->merge);
    kvl_arena_free(&e->step);
    kvl_arena_free(&e->scratch);
    kvl_store_destroy(e->store);
    kvl_free(e);
}

struct kvl_store *kvl_engine_store(struct kvl_engine *e)
{
    return e->store;
}
const struct kvl_model *kvl_engine_model(const struct kvl_engine *e)
{
    return e->model;
}

void kvl_engine_set_stop(struct kvl_engine *e, const volatile int *stop)
{
    e->stop = stop;
}

void kvl_engine_set_watch(struct kvl_engine *e, void (*run)(const char *policy))
{
    kvl_watch_policy(e, NULL);
    e->watch = run;
}

/* Sessions of a batch lie together by policy: few hooks change the name. */
void kvl_watch_policy(struct kvl_engine *e, const char *policy)
{
    if (!e->watch || e->watched == policy) return;
    e->watched = policy;
    e->watch(policy);
}
