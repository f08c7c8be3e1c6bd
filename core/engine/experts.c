/* Experts of an MLP: the router's choice for every token, then the rows of each expert at once.
 *
 * A decoded token reads the weights of its own experts alone.  Rows are sorted by expert, so that a prefill
 * multiplies each matrix once; a row never depends on the others (gemm and gemv promise it).
 *
 * Shazeer et al. 2017, with the softmax before the choice as in Mixtral and Qwen 3. */
#include "layer.h"

#include <math.h>

/* What the router chose; in the step arena.  Chosen j of token i is entry i * k + j, which takes row `row[]` of
 * e->routed; rows first[x] .. first[x + 1] - 1 are of expert x. */
struct routing {
    int32_t k, n_experts;
    int32_t *row;   /* [n * k] of an entry */
    int32_t *token; /* [n * k] of a row */
    int32_t *first; /* [n_experts + 1] */
    int32_t *id;    /* [n * k] expert of an entry */
    float *weight;  /* [n * k] of an entry */
};

static int routing_alloc(struct kvl_engine *e, int32_t n, struct routing *r)
{
    const struct kvl_hparams *h = &e->model->w.hparams;
    size_t all = (size_t)n * (size_t)h->n_experts_used;
    *r = (struct routing){
        .k = h->n_experts_used,
        .n_experts = h->n_experts,
        .row = kvl_arena_get(&e->step, all, sizeof *r->row),
        .token = kvl_arena_get(&e->step, all, sizeof *r->token),
        .first = kvl_arena_get(&e->step, (size_t)h->n_experts + 1, sizeof *r->first),
        .id = kvl_arena_get(&e->step, all, sizeof *r->id),
        .weight = kvl_arena_get(&e->step, all, sizeof *r->weight),
    };
    return r->row && r->token && r->first && r->id && r->weight ? KVL_OK : KVL_ENOMEM;
}

/* The k largest logits, ties to the lower number; their softmax, over all experts or over themselves. */
static void route_token(const struct kvl_weights *w, float *logit, int32_t *id, float *weight)
{
    int32_t n = w->hparams.n_experts, k = w->hparams.n_experts_used;
    double sum = 0, top = 0;
    /* k passes and no sort: k is a few of at most some hundred, and ties need no rule of their
     * own. */
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t x = 0; x < n; x++) {
            bool taken = false;
            for (int32_t i = 0; i < j; i++) taken |= id[i] == x;
            if (!taken && (best < 0 || logit[x] > logit[best])) best = x;
        }
        id[j] = best;
    }
    top = (double)logit[id[0]];
    for (int32_t x = 0; x < n && !w->experts_norm; x++) sum += exp((double)logit[x] - top);
    for (int32_t j = 0; j < k && w->experts_norm; j++) sum += exp((double)logit[id[j]] - top);
    for (int32_t j = 0; j < k; j++) weight[j] = (float)(exp((double)logit[id[j]] - top) / sum);
}

/* Rows by expert, those of an expert in the order of their tokens. */
static void routing_sort(struct routing *r, int32_t n)
{
    int32_t at = 0;
    for (int32_t x = 0; x < r->n_experts; x++) {
        r->first[x] = at;
        for (int32_t i = 0; i < n * r->k; i++) {
            if (r->id[i] != x) continue;
            r->row[i] = at;
            r->token[at++] = i / r->k;
        }
    }
    r->first[r->n_experts] = at;
}

static int route(const struct kvl_forward *f, const struct kvl_layer_weights *w, struct routing *r)
{
    struct kvl_engine *e = f->e;
    size_t n = (size_t)w->router.n_rows;
    float *logit = kvl_arena_get(&e->results, (size_t)f->n * n, sizeof *logit);
    if (!logit || routing_alloc(e, f->n, r) != KVL_OK)
        return kvl_fail(f->err, KVL_ENOMEM, "out of memory for the experts of %d tokens", f->n);
    const struct kvl_product p = { logit, &w->router, .bias = w->router_bias };
    KVL_TRY(kvl_linear(f, e->xn, &p, 1));
    KVL_TRY(kvl_engine_wait(e, f->err));
    for (int32_t i = 0; i < f->n; i++)
        route_token(&e->model->w, logit + (size_t)i * n, r->id + i * r->k, r->weight + i * r->k);
    routing_sort(r, f->n);
    return KVL_OK;
}

/* The inputs of all rows: copies of the rows of e->xn. */
static int gather(const struct kvl_forward *f, const struct routing *r)
{
    struct kvl_engine *e = f->e;
    int32_t dim = e->model->shape.n_embd;
    const struct kvl_weight rows = { .data = e->xn,
                                     .type = KVL_W_F32,
                                     .n_rows = f->n,
                                     .n_cols = dim,
                                     .row_bytes = (size_t)dim * sizeof *e->xn };
    return kvl_given(f, "rows of experts",
                     e->ops->embed(&(struct kvl_embed_args){
                         .y = e->routed, .w = &rows, .id = r->token, .n = f->n * r->k }));
}

static const float *bias_of(const float *bias, int32_t expert, int32_t n)
{
    return bias ? bias + (size_t)expert * (size_t)n : NULL;
}

/* e->gate of the rows of an expert: gate and up, activated. */
static int expert_wide(const struct kvl_forward *f, const struct kvl_layer_weights *w,
                       const struct routing *r, int32_t x)
{
    struct kvl_engine *e = f->e;
    int32_t n_ff = e->model->w.hparams.n_ff;
    size_t first = (size_t)r->first[x], ff = (size_t)n_ff;
    struct kvl_forward part = *f;
    struct kvl_weight gate = kvl_weight_rows(&w->ffn_gate, x * n_ff, n_ff);
    struct kvl_weight up = kvl_weight_rows(&w->ffn_up, x * n_ff, n_ff);
    const struct kvl_product wide = { .y = e->gate + first * ff,
                                      .w = &gate,
                                      .bias = bias_of(w->ffn_gate_bias, x, n_ff),
                                      .up = &up,
                                      .up_bias = bias_of(w->ffn_up_bias, x, n_ff),
                                      .side = e->up + first * ff };
    part.n = r->first[x + 1] - r->first[x];
    if (part.n == 0) return KVL_OK;
    return kvl_linear(&part, e->routed + first * (size_t)e->model->shape.n_embd, &wide, 1);
}

static int expert_down(const struct kvl_forward *f, const struct kvl_layer_weights *w,
                       const struct routing *r, int32_t x)
{
    struct kvl_engine *e = f->e;
    int32_t n_embd = e->model->shape.n_embd;
    size_t first = (size_t)r->first[x];
    float *out = e->routed + first * (size_t)n_embd;
    struct kvl_forward part = *f;
    struct kvl_weight down = kvl_weight_rows(&w->ffn_down, x * n_embd, n_embd);
    part.n = r->first[x + 1] - r->first[x];
    if (part.n == 0) return KVL_OK;
    const struct kvl_product p = { out, &down, .bias = bias_of(w->ffn_down_bias, x, n_embd) };
    return kvl_linear(&part, e->gate + first * (size_t)w->ffn_down.n_cols, &p, 1);
}

/* Rows are sorted by expert before, so that each expert's matrices are read once for all tokens that chose it, and no
 * product is computed whose weight is zero. */
int kvl_layer_experts(const struct kvl_forward *f, const struct kvl_layer_weights *w, float *y)
{
    struct kvl_engine *e = f->e;
    struct routing r;
    KVL_TRY(route(f, w, &r));
    KVL_TRY(gather(f, &r));
    int32_t n = f->n * r.k;
    for (int32_t x = 0; x < r.n_experts; x++) KVL_TRY(expert_wide(f, w, &r, x));
    for (int32_t x = 0; x < r.n_experts; x++) KVL_TRY(expert_down(f, w, &r, x));
    return kvl_given(
        f, "experts",
        e->ops->mix_rows(&(struct kvl_mix_rows_args){ .y = y,
                                                      .x = e->routed,
                                                      .row = r.row,
                                                      .weight = r.weight,
                                                      .n = f->n,
                                                      .k = r.k,
                                                      .n_x = n,
                                                      .dim = e->model->shape.n_embd }));
}
