/* The record of a cell: what its samples add up to. */
#include "record.h"

#include "record_parts.h"
#include "settings.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The outcomes of a cell, and what they add up to. */
struct cell_sum {
    const struct kvl_sweep *s;
    const struct kvl_cell *c;
    const struct kvl_outcome *outcome; /* [all] */
    size_t all, n, n_contexts, n_errors;
    struct kvl_record_column col; /* what was asked for last */
};

/* The member at `off` of every outcome that has a score and a number there. */
static const struct kvl_record_column *cell_column(struct cell_sum *x, size_t off)
{
    struct kvl_record_column *c = &x->col;
    c->n = 0;
    for (size_t i = 0; i < x->all; i++) {
        double v;
        memcpy(&v, (const char *)&x->outcome[i] + off, sizeof v);
        if (x->outcome[i].failed || !isfinite(v)) continue;
        c->value[c->n] = v;
        c->context[c->n++] = c->text[i / (size_t)x->s->questions];
    }
    return c;
}

static double column_sum(const struct kvl_record_column *c)
{
    double sum = 0.0;
    for (size_t i = 0; i < c->n; i++) sum += c->value[i];
    return sum;
}

static double column_mean(const struct kvl_record_column *c)
{
    return c->n ? column_sum(c) / (double)c->n : KVL_NAN;
}

static size_t column_contexts(const struct kvl_record_column *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += i == 0 || c->context[i] != c->context[i - 1];
    return n;
}

static json_t *cell_score(struct cell_sum *x, size_t off)
{
    const struct kvl_record_column *c = cell_column(x, off);
    double n_eff = 0.0;
    struct kvl_spread s;
    if (kvl_n_eff(c->value, c->context, c->n, &n_eff) != KVL_OK ||
        kvl_spread_of(c->value, c->context, c->n, &s) != KVL_OK)
        return NULL;
    struct kvl_interval w = kvl_wilson(column_mean(c), n_eff);
    if (c->n == 0) w = (struct kvl_interval){ (double)NAN, (double)NAN, (double)NAN };
    return json_pack("{s:f, s:o, s:o, s:o, s:f, s:o, s:o}", "k", column_sum(c), "p",
                     kvl_record_real(column_mean(c)), "lo", kvl_record_real(w.lo), "hi",
                     kvl_record_real(w.hi), "n_eff", n_eff, "between", kvl_record_real(s.between),
                     "simple", kvl_record_real(s.simple));
}

static json_t *cell_interval(struct cell_sum *x, size_t off)
{
    return kvl_record_interval(cell_column(x, off), KVL_RANGE_SHARE, x->c->id);
}

/* Stage -> its score over all samples; null where the task has none. */
static json_t *cell_subs(struct cell_sum *x)
{
    const struct kvl_outcome *o = x->outcome;
    while (o < x->outcome + x->all && o->n_sub == 0) o++;
    if (o == x->outcome + x->all) return json_null();
    json_t *r = json_object();
    for (int32_t i = 0; i < o->n_sub; i++) {
        size_t off = offsetof(struct kvl_outcome, sub) + (size_t)i * sizeof o->sub[0] +
                     offsetof(struct kvl_outcome_sub, value);
        kvl_record_put(&r, o->sub[i].name, "object", cell_score(x, off));
    }
    return r;
}

/* Evidence attended (at every answer step that needs it: recall 1) or not, answer right or not. */
static json_t *cell_evidence(const struct cell_sum *x)
{
    static const char *const names[] = { "attended_right", "attended_wrong", "missed_right",
                                         "missed_wrong", "unknown" };
    json_int_t count[5] = { 0 }, lost = 0, weak = 0;
    for (size_t i = 0; i < x->all; i++) {
        const struct kvl_outcome *o = &x->outcome[i];
        if (o->failed || !isfinite(o->official)) continue;
        int wrong = o->official < 0.5, missed = o->recall < 1.0;
        count[isfinite(o->recall) ? 2 * missed + wrong : 4]++;
        lost += o->lost;
        weak += o->weak;
    }
    json_t *r = json_object();
    for (size_t i = 0; i < 5; i++) kvl_record_put(&r, names[i], "integer", json_integer(count[i]));
    /* Of those, whose evidence was cut off before any policy read it, and whose evidence is weak. */
    if (lost) kvl_record_put(&r, "lost", "integer", json_integer(lost));
    if (weak) kvl_record_put(&r, "weak", "integer", json_integer(weak));
    return r;
}

/* Means over the samples with a score, of those without a host tier too. */
static json_t *cell_observed(struct cell_sum *x)
{
    struct kvl_outcome mean = { 0 };
#define OBSERVED(member, ...)                                                                      \
    mean.member = column_mean(cell_column(x, offsetof(struct kvl_outcome, member)));
#define TIER(member, ...)                                                                          \
    mean.tiers[KVL_TIER_##member] =                                                                \
        column_mean(cell_column(x, offsetof(struct kvl_outcome, tiers[KVL_TIER_##member])));
#include "fields.def"
    return kvl_record_observed(&mean, KVL_OF_CELL);
}

/* Of the contexts that were prefilled, each counted once. */
static double cell_prefill(const struct cell_sum *x)
{
    double ns = 0.0, tok = 0.0;
    for (size_t i = 0; i < x->all; i += (size_t)x->s->questions) {
        if (!(x->outcome[i].prefill_ns > 0.0)) continue;
        ns += x->outcome[i].prefill_ns;
        tok += x->outcome[i].context_tok;
    }
    return kvl_record_per(tok, ns * 1e-9);
}

static double cell_wall(struct cell_sum *x)
{
    return column_sum(cell_column(x, offsetof(struct kvl_outcome, wall_ns)));
}

/* What the method said of itself, over the answers that have a score. */
static json_t *cell_method(const struct cell_sum *x)
{
    struct kvl_method_sum all = { 0 };
    for (size_t i = 0; i < x->all; i++)
        if (!x->outcome[i].failed) kvl_method_add(&all, &x->outcome[i].method);
    return kvl_record_method_sum(&all);
}

/* NULL: no memory. */
static json_t *cell_sampling(const struct kvl_sweep *s)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_sampling_print(&s->sampling, &text);
    json_t *v = rc == KVL_OK ? kvl_record_path_text(text.data) : NULL;
    kvl_buf_free(&text);
    return v;
}

/* Why the benchmark's script gives another number; NULL: it does not. */
static const char *cell_unofficial(const struct kvl_point *task)
{
    return task->task->unofficial ? task->task->unofficial(task->opts) : NULL;
}

static void cell_count(struct cell_sum *x)
{
    const struct kvl_record_column *scored = cell_column(x, offsetof(struct kvl_outcome, official));
    x->n = scored->n;
    x->n_contexts = column_contexts(scored);
    for (size_t i = 0; i < x->all; i++) x->n_errors += !x->outcome[i].absent;
    x->n_errors -= x->n;
}

json_t *kvl_record_cell(const char *run, const struct kvl_sweep *s, const struct kvl_cell *c,
                        const struct kvl_outcome *outcome, const struct kvl_quality_means *quality)
{
    struct cell_sum sum = { .s = s, .c = c, .outcome = outcome };
    bool raw = !c->chat || strcmp(c->chat, "none") == 0;
    json_t *r = NULL;
    sum.all = (size_t)s->contexts * (size_t)s->questions;
    if (kvl_record_column_create(s, c->task, s->questions, &sum.col) == KVL_OK) {
        r = kvl_record_start("cell", run);
        cell_count(&sum);
#define CELL KVL_PUT
#include "fields.def"
    }
    kvl_record_column_free(&sum.col);
    return r;
}

json_t *kvl_record_partial(const char *run, const struct kvl_cell *c, int64_t planned,
                           json_t *so_far)
{
    json_t *r = kvl_record_start("partial", run);
#define PARTIAL KVL_PUT
#include "fields.def"
    return r;
}
