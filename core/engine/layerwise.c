/* A context layer by layer (KTransformers): all of its chunks go through a layer before the next one begins, so
 * that a device holds the keys and values of one layer; then they move to pinned memory.
 *
 * In between the hidden states of all tokens wait in pinned memory, n_embd floats each.  Two pieces of
 * device memory take turns: while a chunk is computed in one, the result of the chunk before leaves the
 * other and the next chunk comes, on the stream of copies.  A row sees the same keys in the same
 * arithmetic as when chunks go through all layers one after the other: results are the same bit for bit. */
#include "forward.h"

#include "place.h"

struct layerwise {
    const struct kvl_prefill *p;
    struct kvl_session *s;
    struct kvl_engine *e;
    struct kvl_err *err;
    int32_t first, n_chunks; /* position of the first token */
    int64_t seen;            /* tokens that observers saw before */
    float *hidden;           /* [n][n_embd]; NULL: one chunk, which stays where it is */
    float *x[2]; /* of the chunk with an even number, of the others; 0 is the engine's own */
};

static int layerwise_open(struct layerwise *w)
{
    size_t n_embd = (size_t)w->e->model->shape.n_embd, bytes = n_embd * sizeof *w->hidden;
    w->x[0] = w->x[1] = w->e->x;
    KVL_TRY(kvl_seq_reserve(w->s->seq, w->first + w->p->n, w->err));
    if (w->n_chunks == 1) return KVL_OK;
    w->hidden = w->e->dev->alloc(KVL_PLACE_PINNED, (size_t)w->p->n, bytes);
    if (!w->hidden)
        return kvl_fail(w->err, KVL_ENOMEM,
                        "out of host memory for the hidden states of %d tokens, %zu bytes each",
                        w->p->n, bytes);
    w->x[1] = w->e->dev->alloc(KVL_PLACE_DEVICE, (size_t)w->p->chunk, bytes);
    if (w->x[1]) return KVL_OK;
    return kvl_fail(w->err, KVL_ENOMEM, "out of memory for the activations of %d tokens",
                    w->p->chunk);
}

static void layerwise_close(struct layerwise *w)
{
    w->e->x = w->x[0];
    if (w->x[1] != w->x[0]) w->e->dev->free(KVL_PLACE_DEVICE, w->x[1]);
    w->e->dev->free(KVL_PLACE_PINNED, w->hidden);
}

/* Chunk i, counted through all layers, to its place in host memory or from there. */
static int chunk_copy(const struct layerwise *w, int64_t i, bool back)
{
    size_t n_embd = (size_t)w->e->model->shape.n_embd;
    int32_t at = (int32_t)(i % w->n_chunks) * w->p->chunk, n = KVL_MIN(w->p->chunk, w->p->n - at);
    float *host = w->hidden + (size_t)at * n_embd, *there = w->x[i % 2];
    return w->e->dev->copy(back ? host : there, back ? there : host,
                           (size_t)n * n_embd * sizeof *host, KVL_STREAM_COPY);
}

/* Before chunk i is given to the device: it is there once what COPY was given so far has run; then the one before
 * leaves, for which COPY waits until MAIN has computed it, and the next one takes its room. */
static int chunk_swap(const struct layerwise *w, int64_t i)
{
    const struct kvl_device *dev = w->e->dev;
    int64_t n = w->n_chunks, last = n * (w->e->model->shape.n_layers - 1);
    w->e->x = w->x[i % 2];
    if (!w->hidden) return KVL_OK;
    w->e->pending = true;
    KVL_TRY(dev->order(KVL_STREAM_COPY, KVL_STREAM_MAIN));
    KVL_TRY(dev->order(KVL_STREAM_MAIN, KVL_STREAM_COPY));
    if (i > 0 && i - 1 < last) KVL_TRY(chunk_copy(w, i - 1, true));
    return i + 1 >= n && i + 1 < last + n ? chunk_copy(w, i + 1, false) : KVL_OK;
}

/* The loops of a prefill turned around: all chunks through one layer before the next layer begins, so that one layer's
 * keys and values are on the device at a time.  Between layers the hidden states of a chunk wait on the host, and the
 * sequence must look to the layer as if only the chunks before this one were there. */
static int chunk_run(struct layerwise *w, int32_t layer, int32_t chunk)
{
    struct kvl_session *s = w->s;
    const struct kvl_prefill *p = w->p;
    int32_t at = chunk * p->chunk, n_layers = w->e->model->shape.n_layers;
    struct kvl_forward f = {
        .e = w->e, .mode = KVL_PREFILL, .n = KVL_MIN(p->chunk, p->n - at), .err = w->err
    };
    int rc = chunk_swap(w, (int64_t)layer * w->n_chunks + chunk);
    KVL_TRY(kvl_engine_failed(w->e, "hidden states", rc, w->err));
    s->n_pos = w->first + at;
    if (p->observes) s->obs->n_seen = w->seen + at;
    kvl_rows_set(s, p->id + at, f.n);
    KVL_TRY(kvl_forward_give(&f));
    if (layer == 0) KVL_TRY(kvl_forward_embed(&f));
    KVL_TRY(kvl_forward_layers(&f, layer, layer + 1));
    return layer < n_layers - 1 ? KVL_OK : kvl_prefill_logits(p, &f, at);
}

static int layerwise_run(struct layerwise *w)
{
    for (int32_t l = 0; l < w->e->model->shape.n_layers; l++) {
        for (int32_t c = 0; c < w->n_chunks; c++) KVL_TRY(chunk_run(w, l, c));
        if (kvl_window_of(w->e, l) == 0) KVL_TRY(kvl_seq_to_host(w->s->seq, l, w->err));
    }
    w->s->n_pos = w->first + w->p->n;
    return KVL_OK;
}

int kvl_prefill_layerwise(struct kvl_session *s, const struct kvl_prefill *p, struct kvl_err *err)
{
    struct layerwise w = { .p = p,
                           .s = s,
                           .e = s->engine,
                           .err = err,
                           .first = s->n_pos,
                           .n_chunks = (p->n - 1) / p->chunk + 1,
                           .seen = s->obs ? s->obs->n_seen : 0 };
    int rc = layerwise_open(&w);
    if (rc == KVL_OK) rc = layerwise_run(&w);
    layerwise_close(&w);
    return rc;
}
