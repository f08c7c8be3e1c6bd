/* Ridge regressions over what enters layers. */
#include "fit_inputs.h"

#include <math.h>
#include <string.h>

enum { FIT_LEARN = 0, FIT_HOLD, FIT_PARTS };

/* Sums over the tokens of a layer, in double. */
struct fit_sums {
    double *x, *xx; /* [n_embd]; upper triangle, row by row */
    double *y, *yy; /* [n_kv_heads] */
    double *xy;     /* [n_kv_heads][n_embd] */
};

struct kvl_input_fit {
    struct kvl_engine *engine;
    const struct kvl_shape *shape;
    int64_t n[FIT_PARTS];             /* tokens */
    struct fit_sums *sums[FIT_PARTS]; /* [n_layers] */
    double *memory;
    float *map; /* [n_layers][n_kv_heads][n_embd + 1], biases behind */
    /* of the text at hand */
    int part;
    float *score;           /* [n_layers][n_kv_heads][n_tok] */
    int32_t *n_seen, n_tok; /* [n_layers] */
};

/* ---- memory ------------------------------------------------------------------------------------------ */

static size_t fit_triangle(const struct kvl_input_fit *f)
{
    size_t d = (size_t)f->shape->n_embd;
    return d * (d + 1) / 2;
}

static size_t fit_layer(const struct kvl_input_fit *f)
{
    size_t d = (size_t)f->shape->n_embd, heads = (size_t)f->shape->n_kv_heads;
    return d + fit_triangle(f) + heads * (2 + d);
}

static void fit_lay(const struct kvl_input_fit *f, double *at, struct fit_sums *s)
{
    size_t d = (size_t)f->shape->n_embd, heads = (size_t)f->shape->n_kv_heads;
    s->x = at;
    s->xx = s->x + d;
    s->y = s->xx + fit_triangle(f);
    s->yy = s->y + heads;
    s->xy = s->yy + heads;
}

int kvl_input_fit_create(struct kvl_engine *engine, struct kvl_input_fit **out, struct kvl_err *err)
{
    struct kvl_input_fit *f = kvl_alloc(1, sizeof *f);
    if (!f) return kvl_fail(err, KVL_ENOMEM, "out of memory for a regression");
    f->engine = engine;
    f->shape = kvl_model_shape(kvl_engine_model(engine));
    size_t layers = (size_t)f->shape->n_layers, each = fit_layer(f);
    f->memory = kvl_alloc(FIT_PARTS * layers * each, sizeof *f->memory);
    f->map = kvl_alloc(layers * (size_t)f->shape->n_kv_heads * ((size_t)f->shape->n_embd + 1),
                       sizeof *f->map);
    f->n_seen = kvl_alloc(layers, sizeof *f->n_seen);
    for (int p = 0; p < FIT_PARTS; p++) f->sums[p] = kvl_alloc(layers, sizeof **f->sums);
    if (!f->memory || !f->map || !f->n_seen || !f->sums[0] || !f->sums[1]) {
        kvl_input_fit_destroy(f);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for regressions of %zu layers", layers);
    }
    for (size_t i = 0; i < FIT_PARTS * layers; i++)
        fit_lay(f, f->memory + i * each, &f->sums[i / layers][i % layers]);
    *out = f;
    return KVL_OK;
}

void kvl_input_fit_destroy(struct kvl_input_fit *f)
{
    if (!f) return;
    for (int p = 0; p < FIT_PARTS; p++) kvl_free(f->sums[p]);
    kvl_free(f->memory);
    kvl_free(f->map);
    kvl_free(f->n_seen);
    kvl_free(f->score);
    kvl_free(f);
}

/* ---- a text -------------------------------------------------------------------------------------------- */

/* What is to be learned: the scores of the policy's hook. */
static int fit_tap(void *user, const struct kvl_tap_score *s, struct kvl_err *err)
{
    struct kvl_input_fit *f = user;
    if (s->n_lists != f->shape->n_kv_heads || s->n != f->n_tok || s->unit_tok != 1)
        return kvl_fail(err, KVL_EINTERNAL, "scores of %d lists of %d tokens, want %d of %d",
                        s->n_lists, s->n, f->shape->n_kv_heads, f->n_tok);
    size_t all = (size_t)s->n_lists * (size_t)s->n;
    memcpy(f->score + (size_t)s->layer * all, s->score, all * sizeof *s->score);
    return KVL_OK;
}

static int fit_scores(struct kvl_input_fit *f, const struct kvl_planned *planned, const int32_t *id,
                      struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(kvl_engine_observe(f->engine, kvl_planned_observers(planned), err));
    KVL_TRY(kvl_session_create(f->engine, &s, err));
    int rc = kvl_session_prefill(s, id, f->n_tok, NULL, true, err);
    kvl_session_tap(s, &(struct kvl_tap){ .user = f, .score = fit_tap });
    if (rc == KVL_OK) rc = kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, err);
    kvl_session_destroy(s);
    return rc;
}

/* The engine's memory of this scorer is a pointer back. */
static int fit_load(const struct kvl_input_scorer *scorer, const struct kvl_shape *shape,
                    void *memory, struct kvl_err *err)
{
    (void)shape;
    (void)err;
    memcpy(memory, &scorer->from, sizeof scorer->from);
    return KVL_OK;
}

static void fit_add(struct kvl_input_fit *f, struct fit_sums *s, const float *x, int32_t n,
                    const float *score)
{
    size_t d = (size_t)f->shape->n_embd;
    for (size_t h = 0; h < (size_t)f->shape->n_kv_heads; h++, score += f->n_tok)
        for (size_t i = 0; i < (size_t)n; i++) {
            double y = (double)score[i];
            s->y[h] += y;
            s->yy[h] += y * y;
            for (size_t c = 0; c < d; c++) s->xy[h * d + c] += y * (double)x[i * d + c];
        }
}

/* Tokens of a layer come in order.  The scores that the engine keeps mean nothing. */
static int fit_look(const struct kvl_pctx *ctx, const void *memory, int32_t layer, const float *x,
                    int32_t n, float *score)
{
    struct kvl_input_fit *f;
    memcpy(&f, memory, sizeof f);
    size_t heads = (size_t)f->shape->n_kv_heads, at = (size_t)f->n_seen[layer];
    struct fit_sums *s = &f->sums[f->part][layer];
    fit_add(f, s, x, n, f->score + (size_t)layer * heads * (size_t)f->n_tok + at);
    f->n_seen[layer] += n;
    memset(score, 0, heads * (size_t)n * sizeof *score);
    return ctx->ops->moments(&(struct kvl_moments_args){
        .sum = s->x, .product = s->xx, .x = x, .n = n, .n_heads = 1, .dim = f->shape->n_embd });
}

static int fit_inputs(struct kvl_input_fit *f, const int32_t *id, struct kvl_err *err)
{
    const struct kvl_input_scorer scorer = {
        .looks = true, .bytes = sizeof f, .from = f, .load = fit_load, .score = fit_look
    };
    const struct kvl_observer_set set = { .n_columns = 1,
                                          .column = { { KVL_OBS_INPUTS, scorer.key } },
                                          .scorer = { &scorer } };
    struct kvl_session *s;
    KVL_TRY(kvl_engine_observe(f->engine, &set, err));
    KVL_TRY(kvl_session_create(f->engine, &s, err));
    memset(f->n_seen, 0, (size_t)f->shape->n_layers * sizeof *f->n_seen);
    int rc = kvl_session_prefill(s, id, f->n_tok, NULL, true, err);
    kvl_session_destroy(s);
    return rc;
}

/* Scores first: inputs then need not be kept, which are as large as the model is wide. */
int kvl_input_fit_text(struct kvl_input_fit *f, const struct kvl_planned *planned,
                       const int32_t *id, int32_t n, bool held_out, struct kvl_err *err)
{
    kvl_free(f->score);
    f->part = held_out ? FIT_HOLD : FIT_LEARN;
    f->n_tok = n;
    f->score = kvl_alloc((size_t)f->shape->n_layers * (size_t)f->shape->n_kv_heads * (size_t)n,
                         sizeof *f->score);
    if (!f->score) return kvl_fail(err, KVL_ENOMEM, "out of memory for scores of %d tokens", n);
    KVL_TRY(fit_scores(f, planned, id, err));
    KVL_TRY(fit_inputs(f, id, err));
    f->n[f->part] += n;
    return KVL_OK;
}

/* ---- the regression -------------------------------------------------------------------------------------- */

/* a [d][d], the lower triangle: L with L L^T = a in its place (Cholesky); false: a is not positive. */
static bool fit_factor(double *a, size_t d)
{
    for (size_t r = 0; r < d; r++)
        for (size_t c = 0; c <= r; c++) {
            double sum = a[r * d + c];
            for (size_t k = 0; k < c; k++) sum -= a[r * d + k] * a[c * d + k];
            if (r == c && !(sum > 0)) return false;
            a[r * d + c] = r == c ? sqrt(sum) : sum / a[c * d + c];
        }
    return true;
}

/* b = the solution of L L^T w = b. */
static void fit_substitute(const double *a, size_t d, double *b)
{
    for (size_t r = 0; r < d; r++) {
        for (size_t c = 0; c < r; c++) b[r] -= a[r * d + c] * b[c];
        b[r] /= a[r * d + r];
    }
    for (size_t r = d; r-- > 0;) {
        for (size_t c = r + 1; c < d; c++) b[r] -= a[c * d + r] * b[c];
        b[r] /= a[r * d + r];
    }
}

/* The covariance of the inputs times their number, and 1 on its diagonal: the penalty of scikit-learn's Ridge(). */
static void fit_centred(const struct kvl_input_fit *f, const struct fit_sums *s, double *a)
{
    size_t d = (size_t)f->shape->n_embd;
    const double *xx = s->xx;
    double n = (double)f->n[FIT_LEARN];
    for (size_t c = 0; c < d; c++)
        for (size_t r = c; r < d; r++)
            a[r * d + c] = *xx++ - s->x[r] * s->x[c] / n + (r == c ? 1.0 : 0.0);
}

static int fit_solve_layer(struct kvl_input_fit *f, int32_t layer, double *a, double *b,
                           struct kvl_err *err)
{
    size_t d = (size_t)f->shape->n_embd, heads = (size_t)f->shape->n_kv_heads;
    const struct fit_sums *s = &f->sums[FIT_LEARN][layer];
    float *map = f->map + (size_t)layer * heads * (d + 1), *bias = map + heads * d;
    double n = (double)f->n[FIT_LEARN];
    fit_centred(f, s, a);
    if (!fit_factor(a, d))
        return kvl_fail(err, KVL_ENUMERIC, "inputs of layer %d have no covariance", layer);
    for (size_t h = 0; h < heads; h++) {
        double offset = s->y[h] / n;
        for (size_t c = 0; c < d; c++) b[c] = s->xy[h * d + c] - s->x[c] * s->y[h] / n;
        fit_substitute(a, d, b);
        for (size_t c = 0; c < d; c++) {
            map[h * d + c] = (float)b[c];
            offset -= b[c] * s->x[c] / n;
        }
        bias[h] = (float)offset;
    }
    return KVL_OK;
}

int kvl_input_fit_solve(struct kvl_input_fit *f, struct kvl_err *err)
{
    size_t d = (size_t)f->shape->n_embd;
    if (f->n[FIT_LEARN] == 0)
        return kvl_fail(err, KVL_EINVAL, "no texts to learn from; want 1 or more");
    double *a = kvl_alloc(d * (d + 1), sizeof *a);
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory for a regression of width %zu", d);
    int rc = KVL_OK;
    for (int32_t l = 0; l < f->shape->n_layers && rc == KVL_OK; l++)
        rc = fit_solve_layer(f, l, a, a + d * d, err);
    kvl_free(a);
    return rc;
}

const float *kvl_input_fit_map(const struct kvl_input_fit *f, int32_t layer)
{
    size_t d = (size_t)f->shape->n_embd, heads = (size_t)f->shape->n_kv_heads;
    return f->map + (size_t)layer * heads * (d + 1);
}

/* The sum of the squares of y - w x - bias, from sums alone. */
static double fit_left(const struct kvl_input_fit *f, const struct fit_sums *s, size_t h,
                       const float *w, double bias)
{
    size_t d = (size_t)f->shape->n_embd;
    const double *xx = s->xx, *xy = s->xy + h * d;
    double left = s->yy[h] - 2 * bias * s->y[h] + bias * bias * (double)f->n[FIT_HOLD];
    for (size_t r = 0; r < d; r++) {
        double wr = (double)w[r];
        left += 2 * wr * (bias * s->x[r] - xy[r]);
        for (size_t c = r; c < d; c++) left += (c > r ? 2 : 1) * wr * (double)w[c] * *xx++;
    }
    return left;
}

double kvl_input_fit_explains(const struct kvl_input_fit *f, int32_t layer)
{
    size_t d = (size_t)f->shape->n_embd, heads = (size_t)f->shape->n_kv_heads;
    const struct fit_sums *s = &f->sums[FIT_HOLD][layer];
    const float *map = kvl_input_fit_map(f, layer);
    double n = (double)f->n[FIT_HOLD], sum = 0;
    if (n < 1) return NAN;
    for (size_t h = 0; h < heads; h++) {
        double all = s->yy[h] - s->y[h] * s->y[h] / n;
        sum += 1 - fit_left(f, s, h, map + h * d, (double)map[heads * d + h]) / all;
    }
    return sum / (double)heads;
}
