/* Methods at a few depths, and lines through them. */
#include "method_costs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes -------------------------------------------------------------------------------------- */

/* Of the models' configurations; n_vocab is of tables that bench's own models do not have. */
static const struct {
    struct bench_shape s;
    int32_t n_vocab;
} shapes[] = {
    { { "tiny", 4, 256, 8, 2, 32, 704 }, BENCH_VOCAB },
    { { "llama8b", 32, 4096, 32, 8, 128, 14336 }, 128256 },
    { { "llama70b", 80, 8192, 64, 8, 128, 28672 }, 128256 },
    { { "llama405b", 126, 16384, 128, 8, 128, 53248 }, 128256 },
};

/* Narrow enough for any computer; rows of whole blocks of every type of weights. */
enum { SMALL_EMBD = 64, SMALL_FF = 64 };

int kvl_sim_shape_find(const char *name, enum kvl_wtype weights, struct kvl_sim_shape *out,
                       struct bench_shape *small, struct kvl_err *err)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct bench_shape *s = &shapes[i].s;
        if (strcmp(s->name, name) != 0) continue;
        double d = s->n_embd, q = (double)s->n_heads * s->head_dim,
               kv = (double)s->n_kv_heads * s->head_dim;
        double products = s->n_layers * (2 * d * q + 2 * d * kv + 3 * d * s->n_ff),
               head = d * shapes[i].n_vocab;
        double bytes = (double)kvl_wtype_row_bytes(weights, 256) / 256;
        *out = (struct kvl_sim_shape){ .n_layers = s->n_layers,
                                       .n_embd = s->n_embd,
                                       .n_heads = s->n_heads,
                                       .n_kv_heads = s->n_kv_heads,
                                       .head_dim = s->head_dim,
                                       .products = products,
                                       .token_bytes = bytes * (products + head),
                                       .model_bytes = bytes * (products + 2 * head),
                                       .lanes = s->n_kv_heads };
        snprintf(out->name, sizeof out->name, "%s", s->name);
        *small = *s;
        small->n_embd = SMALL_EMBD;
        small->n_ff = SMALL_FF;
        small->n_heads = s->n_heads / s->n_kv_heads;
        small->n_kv_heads = 1;
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EINVAL,
                    "--shape: \"%.60s\": want tiny, llama8b, llama70b or llama405b", name);
}

int kvl_sim_shape_model(const struct bench *b, struct kvl_sim_shape *out, struct kvl_err *err)
{
    enum { MANY = 1 << 20 };
    const struct kvl_engine_desc desc = { .model = b->model, .kv_type = b->config.kv_type };
    struct kvl_footprint f;
    KVL_TRY(kvl_footprint(&desc, MANY, &f, err));
    if (!out->name[0]) {
        const struct kvl_shape *s = kvl_model_shape(b->model);
        *out = (struct kvl_sim_shape){ .n_layers = s->n_layers,
                                       .n_embd = s->n_embd,
                                       .n_heads = s->n_heads,
                                       .n_kv_heads = s->n_kv_heads,
                                       .head_dim = s->head_dim,
                                       .products = (double)kvl_model_layer_weights(b->model),
                                       .token_bytes = (double)kvl_model_token_bytes(b->model),
                                       .model_bytes = (double)kvl_model_bytes(b->model),
                                       .work_bytes = (double)f.work_bytes,
                                       .lanes = 1 };
        snprintf(out->name, sizeof out->name, "%s", kvl_model_name(b->model));
    }
    out->kv_tok_bytes = (double)f.kv_bytes / MANY * out->lanes;
    return KVL_OK;
}

/* ---- what is measured ------------------------------------------------------------------------------ */

static struct kvl_method_costs *costs_add(struct kvl_costs *c, const char *word, int32_t budget)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->method[i].budget_tok == budget && strcmp(c->method[i].word, word) == 0)
            return &c->method[i];
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        struct kvl_method_costs *grown = realloc(c->method, cap * sizeof *grown);
        if (!grown) return NULL;
        c->method = grown;
        c->cap = cap;
    }
    struct kvl_method_costs *m = &c->method[c->n];
    *m = (struct kvl_method_costs){ .word = strdup(word), .budget_tok = budget };
    if (m->word) c->n++;
    return m->word ? m : NULL;
}

struct costs_run {
    struct bench *b;
    struct kvl_costs *costs;
};

static int costs_row(void *user, const struct bench_method_at *at,
                     const struct bench_method_cost *cost)
{
    struct costs_run *r = user;
    struct kvl_method_costs *m = costs_add(r->costs, at->word, r->b->config.budget_tok);
    if (!m) return kvl_fail(r->b->err, KVL_ENOMEM, "out of memory for costs");
    if (m->n == KVL_COSTS_DEPTHS || (m->n && m->depth[m->n - 1] >= at->depth)) return KVL_OK;
    m->depth[m->n] = at->depth;
    m->at[m->n++] = *cost;
    return KVL_OK;
}

static int costs_left_out(void *user, const struct bench_method_at *at, const char *why)
{
    struct costs_run *r = user;
    struct kvl_method_costs *m = costs_add(r->costs, at->word, r->b->config.budget_tok);
    if (!m) return KVL_ENOMEM;
    snprintf(m->why, sizeof m->why, "%s", why);
    return KVL_OK;
}

/* All times of a token. */
static void cost_scale(struct bench_method_cost *c, double by)
{
    double *ms[] = { &c->meta_ms,  &c->select_ms, &c->attend_ms,    &c->evict_ms,
                     &c->fetch_ms, &c->busy_ms,   &c->token_ms.mid, &c->full_ms };
    for (size_t i = 0; i < sizeof ms / sizeof ms[0]; i++) *ms[i] *= by;
}

/* A machine is now faster, now slower: every method's times as if full attention, which took turns with it, had taken
 * what it took in the middle of all of them. */
static int costs_level(struct bench *b, struct kvl_costs *costs, int32_t depth)
{
    double *full = kvl_alloc(costs->n + 1, sizeof *full);
    int32_t n = 0;
    if (!full) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for costs");
    for (int pass = 0; pass < 2; pass++) {
        double mid = n ? bench_spread(full, n).mid : 0;
        for (size_t i = 0; i < costs->n; i++) {
            struct kvl_method_costs *m = &costs->method[i];
            struct bench_method_cost *c = m->n ? &m->at[m->n - 1] : NULL;
            if (!c || m->depth[m->n - 1] != depth || m->budget_tok != b->config.budget_tok)
                continue;
            if (pass == 0)
                full[n++] = c->full_ms;
            else
                cost_scale(c, mid / c->full_ms);
        }
    }
    kvl_free(full);
    return KVL_OK;
}

int kvl_costs_measure(struct bench *b, struct kvl_costs *costs)
{
    struct costs_run run = { b, costs };
    const struct bench_method_sink sink = { costs_row, costs_left_out, &run };
    for (int32_t i = 0; i < b->config.depths.n; i++) {
        bench_say("every method at %d tokens, budget %d", b->config.depths.v[i],
                  b->config.budget_tok);
        KVL_TRY(bench_methods_at(b, b->config.threads.v[0], b->config.depths.v[i], &sink));
        KVL_TRY(costs_level(b, costs, b->config.depths.v[i]));
    }
    return KVL_OK;
}

const struct kvl_method_costs *kvl_costs_find(const struct kvl_costs *c, const char *word,
                                              int32_t budget_tok)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->method[i].budget_tok == budget_tok && strcmp(c->method[i].word, word) == 0)
            return &c->method[i];
    return NULL;
}

void kvl_costs_free(struct kvl_costs *c)
{
    for (size_t i = 0; i < c->n; i++) free(c->method[i].word);
    free(c->method);
    *c = (struct kvl_costs){ 0 };
}

/* ---- lines ---------------------------------------------------------------------------------------- */

/* Counts differ from step to step by what a step adds, and of random keys by what a method finds among them: a fiftieth
 * of growth over the last line is none.  Times are noisier. */
static const double counts_still = 1.02, times_still = 1.2;

/* Where a number of doubles lies in bench_method_cost. */
#define COST_OF(m, i, field) (*(const double *)((const char *)&(m)->at[i] + (field)))

static double line_between(const struct kvl_method_costs *m, size_t field, double n_tok)
{
    int32_t i = 1;
    if (m->n == 1 || n_tok <= m->depth[0]) return COST_OF(m, 0, field);
    while (i < m->n - 1 && n_tok > m->depth[i]) i++;
    double x0 = m->depth[i - 1], x1 = m->depth[i], y0 = COST_OF(m, i - 1, field),
           y1 = COST_OF(m, i, field);
    return y0 + (y1 - y0) * (n_tok - x0) / (x1 - x0);
}

/* Beyond the last depth of `last` + 1. */
static double line_beyond(const struct kvl_method_costs *m, size_t field, double n_tok,
                          int32_t last, double still)
{
    if (last < 1) return COST_OF(m, last, field);
    double y0 = COST_OF(m, last - 1, field), y1 = COST_OF(m, last, field);
    double slope = (y1 - y0) / (m->depth[last] - m->depth[last - 1]);
    return y1 > still * y0 ? y1 + slope * (n_tok - m->depth[last]) : y1;
}

static double count_at(const struct kvl_method_costs *m, size_t field, double n_tok)
{
    if (n_tok <= m->depth[m->n - 1]) return line_between(m, field, n_tok);
    return line_beyond(m, field, n_tok, m->n - 1, counts_still);
}

/* From the first depth to the last, where its bytes grow: the most bytes are the least noisy. */
static double time_at(const struct kvl_method_costs *m, size_t field, size_t bytes, double n_tok)
{
    int32_t last = m->n - 1;
    if (n_tok <= m->depth[last]) return line_between(m, field, n_tok);
    double t0 = COST_OF(m, 0, field), t1 = COST_OF(m, last, field);
    double b0 = bytes ? COST_OF(m, 0, bytes) : 0, b1 = bytes ? COST_OF(m, last, bytes) : 0;
    if (bytes && b1 > counts_still * b0) {
        double rate = t1 > t0 ? (t1 - t0) / (b1 - b0) : t1 / b1;
        return t1 + rate * (count_at(m, bytes, n_tok) - b1);
    }
    double slope = (t1 - t0) / KVL_MAX(m->depth[last] - m->depth[0], 1);
    return t1 > times_still * t0 ? t1 + slope * (n_tok - m->depth[last]) : t1;
}

#define FIELD(name) offsetof(struct bench_method_cost, name)

struct bench_method_cost kvl_costs_at(const struct kvl_method_costs *m, double n_tok)
{
    static const size_t counts[] = { FIELD(kv_bytes),     FIELD(index_bytes), FIELD(fetch_bytes),
                                     FIELD(attended_tok), FIELD(dense_tok),   FIELD(table_bytes),
                                     FIELD(device_bytes), FIELD(host_bytes),  FIELD(full_bytes) };
    static const struct {
        size_t time, bytes;
    } times[] = { { FIELD(meta_ms), 0 },
                  { FIELD(select_ms), FIELD(index_bytes) },
                  { FIELD(attend_ms), FIELD(kv_bytes) },
                  { FIELD(evict_ms), 0 },
                  { FIELD(fetch_ms), FIELD(fetch_bytes) } };
    struct bench_method_cost c = m->at[m->n - 1];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        *(double *)((char *)&c + counts[i]) = count_at(m, counts[i], n_tok);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        *(double *)((char *)&c + times[i].time) = time_at(m, times[i].time, times[i].bytes, n_tok);
    c.attach_ms = n_tok <= m->depth[m->n - 1]
                      ? line_between(m, FIELD(attach_ms), n_tok)
                      : line_beyond(m, FIELD(attach_ms), n_tok, m->n - 1, 1.0);
    return c;
}

double kvl_costs_bend(const struct kvl_method_costs *m)
{
    static const size_t fields[] = { FIELD(kv_bytes), FIELD(index_bytes) };
    double most = 0;
    int32_t last = m->n - 1;
    for (size_t i = 0; last >= 2 && i < 2; i++) {
        double was = COST_OF(m, last, fields[i]),
               said = line_beyond(m, fields[i], m->depth[last], last - 1, counts_still);
        if (was > 0) most = fmax(most, fabs(said - was) / was);
    }
    return most;
}
