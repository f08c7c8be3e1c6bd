/* Shares of a sweep, and what it will cost. */
#include "sweep_plan.h"

#include "cell_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* An answer takes about so many decode steps; only ratios of costs matter. */
enum { PLAN_ANSWER_TOK = 12, PLAN_DECODE_COST = 8 };

/* ---- cost ------------------------------------------------------------------------------------ */

int32_t kvl_reading_before(const struct kvl_reading *r, int32_t length_tok)
{
    if (r->mode == KVL_READ_PREFILL) return length_tok - r->tokens - 1;
    return r->mode == KVL_READ_CHUNK ? r->chunk : 1;
}

/* Tokens of a group's contexts that one prefill reads for all its cells. */
static int32_t plan_prefill_tok(const struct kvl_group *g)
{
    const struct kvl_reading *r = g->speed ? NULL : kvl_point_reading(g->task);
    return r ? kvl_reading_before(r, g->length) : g->length;
}

void kvl_group_estimate(const struct kvl_work *w, const struct kvl_group *g,
                        struct kvl_estimate *out)
{
    const struct kvl_sweep *s = w->sweep;
    int64_t cells = 0, own = 0;
    for (size_t i = g->first; i < g->first + g->n; i++) {
        const struct kvl_planned *p = w->cell[i].planned;
        cells += p != NULL;
        own += p && kvl_planned_own_prefill(p);
    }
    /* One prefill for all, and one for each that reads the context itself. */
    int64_t prefills = (own < cells || cells == 0) + own;
    int32_t contexts = kvl_point_contexts(s, g->task);
    *out = (struct kvl_estimate){ .prefill_tok =
                                      prefills * plan_prefill_tok(g) * (g->speed ? 1 : contexts) };
    if (!g->speed && kvl_point_reading(g->task))
        out->n_text_tok = cells * s->contexts * (g->length - plan_prefill_tok(g) - 1);
    else if (g->speed)
        out->n_speed_tok = cells * (s->speed.warmup + s->speed.steps);
    else
        for (int32_t c = 0; c < contexts; c++)
            out->n_samples += cells * kvl_point_questions(s, g->task, c);
    if (out->n_samples) out->n_quality = cells * contexts * s->quality.questions;
}

/* A token that sees so many others multiplies as often for its attention as by the weights: 2 x heads x
 * head_dim products in a layer for each of them. */
static double plan_even_tok(const struct kvl_work *w)
{
    const struct kvl_shape *s = kvl_model_shape(w->model);
    return (double)kvl_model_layer_weights(w->model) /
           (2.0 * s->n_layers * s->n_heads * s->head_dim);
}

double kvl_prefill_cost(const struct kvl_work *w, int32_t n_tok)
{
    double n = n_tok;
    return n * (1.0 + n / 2.0 / plan_even_tok(w));
}

/* Whether any cell starts from the prefill that the group shares. */
static bool plan_shares(const struct kvl_work *w, const struct kvl_group *g)
{
    for (size_t i = g->first; i < g->first + g->n; i++) {
        const struct kvl_planned *p = w->cell[i].planned;
        if (p && (!kvl_planned_own_prefill(p) || w->sweep->quality.questions > 0)) return true;
    }
    return false;
}

double kvl_group_context_cost(const struct kvl_work *w, const struct kvl_group *g)
{
    return plan_shares(w, g) ? kvl_prefill_cost(w, plan_prefill_tok(g)) : 0.0;
}

/* Steps of two sessions and full attention again. */
double kvl_cell_pass_cost(const struct kvl_work *w, const struct kvl_cell *c)
{
    return 4.0 * PLAN_DECODE_COST * (1.0 + c->length / plan_even_tok(w)) * w->sweep->quality.steps;
}

struct kvl_cell_steps kvl_cell_steps(const struct kvl_work *w, const struct kvl_cell *c)
{
    const struct kvl_sweep *s = w->sweep;
    const struct kvl_reading *r = kvl_point_reading(c->task);
    bool own = c->planned && kvl_planned_own_prefill(c->planned);
    if (r && !c->speed)
        return (struct kvl_cell_steps){ .steps = c->length - kvl_reading_before(r, c->length),
                                        .attaches = 1 };
    if (c->speed)
        return (struct kvl_cell_steps){ .steps = s->speed.warmup + s->speed.steps, .attaches = 1 };
    return (struct kvl_cell_steps){
        .steps = PLAN_ANSWER_TOK * s->questions,
        .attaches = c->protocol == KVL_QUESTION_IN_PREFILL && !own ? s->questions : 1,
        .passes = s->quality.questions,
    };
}

/* Decode reads weights and what the policy reads; attaching reads the context, once per question
 * where the question is part of the prefill. */
double kvl_cell_context_cost(const struct kvl_work *w, const struct kvl_cell *c)
{
    int32_t read = c->budget_tok ? KVL_MIN(c->budget_tok, c->length) : c->length;
    bool own = c->planned && kvl_planned_own_prefill(c->planned);
    double even = plan_even_tok(w);
    double step = PLAN_DECODE_COST * (1.0 + read / even), attach = 0.02 * c->length;
    struct kvl_cell_steps n = kvl_cell_steps(w, c);
    if (own && (c->speed || !kvl_point_reading(c->task)))
        attach = KVL_MIN(c->length * (1.0 + read / even), kvl_prefill_cost(w, c->length));
    return attach * n.attaches + step * n.steps + kvl_cell_pass_cost(w, c) * n.passes;
}

static double plan_group_cost(const struct kvl_work *w, const struct kvl_group *g)
{
    double cost = 0.0;
    int32_t contexts = g->speed ? 1 : kvl_point_contexts(w->sweep, g->task);
    for (size_t i = g->first; i < g->first + g->n; i++)
        cost += kvl_cell_context_cost(w, &w->cell[i]);
    return contexts * (cost + kvl_group_context_cost(w, g));
}

/* ---- shares ---------------------------------------------------------------------------------- */

struct shard_item {
    double cost;
    size_t group;
};

static int shard_order(const void *a, const void *b)
{
    const struct shard_item *x = a, *y = b;
    if (x->cost > y->cost || x->cost < y->cost) return x->cost > y->cost ? -1 : 1;
    return x->group < y->group ? -1 : 1;
}

static size_t shard_least(const double *load, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (load[i] < load[best]) best = i;
    return best;
}

static bool shard_wanted(const struct kvl_work *w, const struct kvl_group *g)
{
    return w->only == KVL_ONLY_ALL || g->speed == (w->only == KVL_ONLY_SPEED);
}

int kvl_work_shard(struct kvl_work *w, struct kvl_shard shard, struct kvl_err *err)
{
    size_t n = 0, shards = (size_t)KVL_MAX(shard.count, 1);
    w->shard = shard;
    struct shard_item *item = kvl_alloc(w->n_groups, sizeof *item);
    double *load = kvl_alloc(shards, sizeof *load);
    int rc = item && load ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for shards");
    for (size_t i = 0; rc == KVL_OK && i < w->n_groups; i++) {
        struct kvl_group *g = &w->group[i];
        g->shard = -1;
        g->mine = false;
        if (shard_wanted(w, g)) item[n++] = (struct shard_item){ plan_group_cost(w, g), i };
    }
    if (rc == KVL_OK && n) qsort(item, n, sizeof *item, shard_order);
    for (size_t i = 0; i < n; i++) {
        struct kvl_group *g = &w->group[item[i].group];
        size_t to = shard_least(load, shards);
        load[to] += item[i].cost;
        g->shard = (int32_t)to;
        g->mine = to == (size_t)shard.index;
    }
    kvl_free(item);
    kvl_free(load);
    return rc;
}

/* Where a timed cell runs is no part of the plan: shards of one sweep have several machines. */
static int plan_add(const struct kvl_work *w, const struct kvl_cell *c, struct kvl_buf *b)
{
    static const struct kvl_where anywhere = { .host = "", .threads = 0, .gpu = NULL };
    size_t at = b->len;
    KVL_TRY(kvl_cell_key(w, &anywhere, c, b));
    char *code = strstr(b->data + at, ";code=");
    if (code) b->len = (size_t)(code - b->data);
    return KVL_OK;
}

int kvl_work_plan(const struct kvl_work *w, char out[KVL_PLAN_HASH], struct kvl_err *err)
{
    uint64_t hash = (uint64_t)KVL_MAX(w->shard.count, 1);
    struct kvl_buf b = { 0 };
    int rc = KVL_OK;
    for (size_t i = 0; i < w->n_groups && rc == KVL_OK; i++) {
        const struct kvl_group *g = &w->group[i];
        b.len = 0;
        rc = kvl_buf_printf(&b, "%d", g->shard);
        for (size_t c = g->first; c < g->first + g->n && rc == KVL_OK; c++)
            rc = plan_add(w, &w->cell[c], &b);
        hash = XXH3_64bits_withSeed(b.data, b.len, hash);
    }
    kvl_buf_free(&b);
    if (rc != KVL_OK) return kvl_fail(err, rc, "out of memory for the plan");
    snprintf(out, KVL_PLAN_HASH, "%016llx", (unsigned long long)hash);
    return KVL_OK;
}

/* ---- --dry-run ------------------------------------------------------------------------------- */

enum { PLAN_SHOWN = 40 }; /* more cells than that hide the lines below them */

static void plan_print_cell(const struct kvl_cell *c)
{
    printf("  %s  %-24s %-16s %6s  ", c->id, c->speed ? "speed" : kvl_protocol_name(c->protocol),
           c->policy->policy->name, c->budget);
    if (c->planned)
        printf("%s%s\n", kvl_planned_own_prefill(c->planned) ? "own prefill  " : "",
               kvl_planned_options(c->planned));
    else
        printf("refused: %s\n", c->refused->msg);
}

static void plan_print_group(const struct kvl_work *w, const struct kvl_group *g, const bool *left,
                             bool cells)
{
    struct kvl_estimate e;
    size_t n_left = 0;
    for (size_t i = g->first; i < g->first + g->n; i++) n_left += left[i];
    if (n_left == 0) return;
    kvl_group_estimate(w, g, &e);
    printf("%s%s length %d", g->speed ? "speed " : "", g->task->task->name, g->length);
    if (g->depth >= 0.0) printf(" depth %g", g->depth);
    printf(": %zu cells, %lld tokens to prefill, ", g->n, (long long)e.prefill_tok);
    if (g->speed)
        printf("%lld to decode", (long long)e.n_speed_tok);
    else if (e.n_text_tok)
        printf("%lld to predict", (long long)e.n_text_tok);
    else
        printf("%lld questions to answer", (long long)e.n_samples);
    if (n_left < g->n) printf("; left: %zu cells", n_left);
    putchar('\n');
    for (size_t i = g->first; cells && i < g->first + g->n; i++)
        if (left[i]) plan_print_cell(&w->cell[i]);
}

void kvl_work_print(const struct kvl_work *w, const bool *left, bool cells)
{
    struct kvl_estimate sum = { 0 };
    size_t n_groups = 0, n_cells = 0, n_left = 0;
    for (size_t i = 0; i < w->n_cells; i++) n_left += left[i];
    bool shown = cells || n_left <= PLAN_SHOWN;
    for (size_t i = 0; i < w->n_groups; i++) {
        struct kvl_estimate e;
        if (!w->group[i].mine) continue;
        plan_print_group(w, &w->group[i], left, shown);
        kvl_group_estimate(w, &w->group[i], &e);
        sum.prefill_tok += e.prefill_tok;
        sum.n_samples += e.n_samples;
        sum.n_quality += e.n_quality;
        sum.n_text_tok += e.n_text_tok;
        sum.n_speed_tok += e.n_speed_tok;
        n_groups++;
        n_cells += w->group[i].n;
    }
    if (!shown) printf("%zu cells one by one: --cells\n", n_left);
    printf("%zu cells in %zu groups: %lld tokens to prefill, %lld questions to answer, %lld timed "
           "steps",
           n_cells, n_groups, (long long)sum.prefill_tok, (long long)sum.n_samples,
           (long long)sum.n_speed_tok);
    if (sum.n_text_tok) printf(", %lld tokens of texts to predict", (long long)sum.n_text_tok);
    if (sum.n_quality) printf(", %lld reference passes", (long long)sum.n_quality);
    putchar('\n');
}
