/* Captures of lists, step by step. */
#include "capture.h"

#include <float.h>
#include <math.h>

void kvl_capture_destroy(struct kvl_capture *c)
{
    if (!c) return;
    kvl_free(c->kept);
    kvl_free(c->least);
    kvl_free(c->captured);
    kvl_free(c->probs);
    kvl_free(c->weight);
    kvl_free(c->score);
    kvl_free(c->list);
    kvl_free(c);
}

int kvl_capture_create(const struct kvl_shape *shape, int32_t max_tok, struct kvl_capture **out,
                       struct kvl_err *err)
{
    size_t layers = (size_t)shape->n_layers, tok = (size_t)max_tok;
    struct kvl_capture *c = kvl_alloc(1, sizeof *c);
    if (!c) return kvl_fail(err, KVL_ENOMEM, "out of memory for captures");
    c->n_layers = shape->n_layers;
    c->n_heads = shape->n_heads;
    c->max_tok = max_tok;
    c->kept = kvl_alloc(layers * layers, sizeof *c->kept);
    c->least = kvl_alloc(layers * layers, sizeof *c->least);
    c->captured = kvl_alloc(layers, sizeof *c->captured);
    c->probs = kvl_alloc((size_t)shape->n_heads * tok, sizeof *c->probs);
    c->weight = kvl_alloc(tok, sizeof *c->weight);
    c->score = kvl_alloc(tok, sizeof *c->score);
    c->list = kvl_alloc(layers * tok, sizeof *c->list);
    if (!c->kept || !c->least || !c->captured || !c->probs || !c->weight || !c->score || !c->list) {
        kvl_capture_destroy(c);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for captures of %d tokens", max_tok);
    }
    *out = c;
    return KVL_OK;
}

/* weight [n]: mean over heads; score [context_tok]: the largest of any. */
static void capture_reduce(const struct kvl_capture *c, int32_t n)
{
    for (int32_t t = 0; t < n; t++) {
        float most = 0.0f;
        double sum = 0.0;
        for (int32_t h = 0; h < c->n_heads; h++) {
            float w = c->probs[(size_t)h * (size_t)n + (size_t)t];
            most = fmaxf(most, w);
            sum += (double)w;
        }
        c->weight[t] = (float)(sum / c->n_heads);
        c->score[t] = most;
    }
}

/* C(l, m) of layer m for all l up to it, then what is least of them. */
static void capture_layer(struct kvl_capture *c, int32_t m, int32_t n)
{
    double tail = 0.0;
    for (int32_t t = c->context_tok; t < n; t++) tail += (double)c->weight[t];
    for (int32_t l = 0; l <= m; l++) {
        const int32_t *list = c->list + (size_t)l * (size_t)c->max_tok;
        c->captured[l] = tail;
        for (int32_t i = 0; i < c->k; i++) c->captured[l] += (double)c->weight[list[i]];
    }
    for (int32_t l = 0; l <= m; l++) {
        double *least = &c->least[(size_t)l * (size_t)c->n_layers + (size_t)m];
        *least = fmin(*least, c->captured[l] / fmax(c->captured[m], DBL_MIN));
    }
}

/* Layers come one after the other: the lists of those before are there. */
static int capture_tap(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    struct kvl_capture *c = user;
    int32_t n = r->pos + 1;
    KVL_TRY(kvl_session_full_attention(c->session, r->layer, r->q, n, c->probs, NULL, err));
    capture_reduce(c, n);
    int rc = kvl_ops_cpu.topk(
        &(struct kvl_topk_args){ .index = c->list + (size_t)r->layer * (size_t)c->max_tok,
                                 .x = c->score,
                                 .x_stride = (size_t)c->context_tok,
                                 .n_rows = 1,
                                 .n = c->context_tok,
                                 .k = c->k });
    if (rc != KVL_OK)
        return kvl_fail(err, rc, "the %d best of %d tokens: %s", c->k, c->context_tok,
                        kvl_status_name(rc));
    capture_layer(c, r->layer, n);
    return KVL_OK;
}

/* Begins at more than any share. */
static void capture_begin(struct kvl_capture *c)
{
    for (int32_t i = 0; i < c->n_layers * c->n_layers; i++) c->least[i] = DBL_MAX;
}

static void capture_end(struct kvl_capture *c)
{
    for (int32_t l = 0; l < c->n_layers; l++)
        for (int32_t m = l; m < c->n_layers; m++)
            c->kept[l * c->n_layers + m] += c->least[l * c->n_layers + m];
    c->n_contexts++;
}

int kvl_capture_context(struct kvl_capture *c, struct kvl_session *s, double share,
                        const int32_t *id, int32_t n, float *logits, struct kvl_err *err)
{
    int rc = KVL_OK;
    c->session = s;
    c->context_tok = kvl_session_len(s);
    c->k = KVL_MAX(1, (int32_t)(share * c->context_tok));
    if (c->context_tok < 1 || n < 1 || c->context_tok > c->max_tok - n)
        return kvl_fail(err, KVL_EINTERNAL, "%d tokens after %d, want at most %d", n,
                        c->context_tok, c->max_tok);
    capture_begin(c);
    kvl_session_tap(s, &(struct kvl_tap){ .user = c, .read = capture_tap });
    for (int32_t i = 0; i < n && rc == KVL_OK; i++, c->n_steps++)
        rc = kvl_session_decode(&s, 1, id + i, logits, err);
    kvl_session_tap(s, NULL);
    if (rc == KVL_OK) capture_end(c);
    return rc;
}
