/* The record of a cell: what its samples add up to. */
#include "record.h"

#include "config_prompt.h"
#include "record_parts.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int kvl_record_column_create(const struct kvl_sweep *s, const struct kvl_point *task,
                             int32_t questions, struct kvl_record_column *out)
{
    size_t n = (size_t)s->contexts * (size_t)questions;
    *out = (struct kvl_record_column){ .value = kvl_alloc(n, sizeof(double)),
                                       .context = kvl_alloc(n, sizeof(int64_t)),
                                       .text = kvl_alloc((size_t)s->contexts, sizeof(int32_t)) };
    if (!out->value || !out->context || !out->text) return KVL_ENOMEM;
    for (int32_t i = 0; i < s->contexts; i++) out->text[i] = kvl_point_text(s, task, i);
    return KVL_OK;
}

void kvl_record_column_free(struct kvl_record_column *c)
{
    kvl_free(c->value);
    kvl_free(c->context);
    kvl_free(c->text);
}

/* The member at `off` of every outcome that has a score and a number there. */
static void column_fill(struct kvl_record_column *c, const struct kvl_sweep *s,
                        const struct kvl_outcome *outcome, size_t off)
{
    size_t n = (size_t)s->contexts * (size_t)s->questions;
    c->n = 0;
    for (size_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, (const char *)&outcome[i] + off, sizeof v);
        if (outcome[i].failed || !isfinite(v)) continue;
        c->value[c->n] = v;
        c->context[c->n++] = c->text[i / (size_t)s->questions];
    }
}

static double column_sum(const struct kvl_record_column *c)
{
    double sum = 0.0;
    for (size_t i = 0; i < c->n; i++) sum += c->value[i];
    return sum;
}

static double column_mean(const struct kvl_record_column *c)
{
    return c->n ? column_sum(c) / (double)c->n : (double)NAN;
}

static size_t column_contexts(const struct kvl_record_column *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += i == 0 || c->context[i] != c->context[i - 1];
    return n;
}

static json_t *cell_score(const struct kvl_record_column *c)
{
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

json_t *kvl_record_interval(const struct kvl_record_column *c, struct kvl_range range,
                            const char *id)
{
    struct kvl_interval b;
    uint64_t seed = kvl_point_number(id);
    if (kvl_mean_interval(c->value, c->context, c->n, range, seed, &b) != KVL_OK) return NULL;
    return json_pack("{s:o, s:o, s:o}", "mean", kvl_record_real(b.mean), "lo",
                     kvl_record_real(b.lo), "hi", kvl_record_real(b.hi));
}

/* Stage -> its score over all samples; null where the task has none. */
static json_t *cell_subs(const struct kvl_sweep *s, const struct kvl_outcome *outcome,
                         struct kvl_record_column *col)
{
    size_t n = (size_t)s->contexts * (size_t)s->questions, first = 0;
    while (first < n && outcome[first].n_sub == 0) first++;
    if (first == n) return json_null();
    json_t *subs = json_object();
    for (int32_t i = 0; i < outcome[first].n_sub; i++) {
        size_t off = offsetof(struct kvl_outcome, sub) + (size_t)i * sizeof outcome->sub[0] +
                     offsetof(struct kvl_outcome_sub, value);
        column_fill(col, s, outcome, off);
        if (json_object_set_new(subs, outcome[first].sub[i].name, cell_score(col)) != 0) {
            json_decref(subs);
            return NULL;
        }
    }
    return subs;
}

/* Evidence attended (at every answer step that needs it: recall 1) or not, answer right or not. */
static json_t *cell_evidence(const struct kvl_sweep *s, const struct kvl_outcome *outcome)
{
    static const char *const names[] = { "attended_right", "attended_wrong", "missed_right",
                                         "missed_wrong", "unknown" };
    json_int_t count[5] = { 0 }, lost = 0, weak = 0;
    for (size_t i = 0; i < (size_t)s->contexts * (size_t)s->questions; i++) {
        const struct kvl_outcome *o = &outcome[i];
        if (o->failed || !isfinite(o->official)) continue;
        int wrong = o->official < 0.5, missed = o->recall < 1.0;
        count[isfinite(o->recall) ? 2 * missed + wrong : 4]++;
        lost += o->lost;
        weak += o->weak;
    }
    json_t *cells = json_object();
    for (size_t i = 0; i < 5; i++)
        if (json_object_set_new(cells, names[i], json_integer(count[i])) != 0) {
            json_decref(cells);
            return NULL;
        }
    /* Of those, whose evidence was cut off before any policy read it, and whose evidence is weak. */
    if ((lost && json_object_set_new(cells, "lost", json_integer(lost)) != 0) ||
        (weak && json_object_set_new(cells, "weak", json_integer(weak)) != 0)) {
        json_decref(cells);
        return NULL;
    }
    return cells;
}

static const struct {
    const char *field;
    size_t off;
} cell_means[] = {
    { "attended_tok", offsetof(struct kvl_outcome, attended_tok) },
    { "dense_tok", offsetof(struct kvl_outcome, dense_tok) },
    { "kv_read_bytes_per_tok", offsetof(struct kvl_outcome, kv_read) },
    { "index_read_bytes_per_tok", offsetof(struct kvl_outcome, index_read) },
    { "kv_logical_bytes", offsetof(struct kvl_outcome, kv_logical) },
    { "kv_physical_bytes", offsetof(struct kvl_outcome, kv_physical) },
    { "kv_own_bytes", offsetof(struct kvl_outcome, kv_own) },
    { "meta_bytes", offsetof(struct kvl_outcome, meta) },
};

/* Means over the samples with a score, of those without a host tier too. */
static json_t *cell_tiers(const struct kvl_sweep *s, const struct kvl_outcome *outcome,
                          struct kvl_record_column *col)
{
    double tiers[KVL_N_TIERS];
    for (size_t i = 0; i < KVL_N_TIERS; i++) {
        column_fill(col, s, outcome, offsetof(struct kvl_outcome, tiers) + i * sizeof *tiers);
        tiers[i] = column_mean(col);
    }
    return kvl_record_tiers(tiers);
}

/* Of the contexts that were prefilled, each counted once. */
static double cell_prefill(const struct kvl_sweep *s, const struct kvl_outcome *outcome)
{
    double ns = 0.0, tok = 0.0;
    for (int32_t i = 0; i < s->contexts; i++) {
        double v = outcome[(size_t)i * (size_t)s->questions].prefill_ns;
        if (!(v > 0.0)) continue;
        ns += v;
        tok += outcome[(size_t)i * (size_t)s->questions].context_tok;
    }
    return ns > 0.0 ? tok / (ns * 1e-9) : (double)NAN;
}

static json_t *cell_numbers(const struct kvl_sweep *s, const struct kvl_cell *c,
                            const struct kvl_outcome *outcome, struct kvl_record_column *col)
{
    size_t n = 0;
    for (size_t i = 0; i < (size_t)s->contexts * (size_t)s->questions; i++) n += !outcome[i].absent;
    column_fill(col, s, outcome, offsetof(struct kvl_outcome, official));
    json_t *r = json_pack("{s:I, s:I, s:I, s:o}", "n", (json_int_t)col->n, "n_contexts",
                          (json_int_t)column_contexts(col), "n_errors", (json_int_t)(n - col->n),
                          "official", cell_score(col));
    column_fill(col, s, outcome, offsetof(struct kvl_outcome, strict));
    r = kvl_record_add(r, json_pack("{s:o}", "strict", cell_score(col)));
    r = kvl_record_add(r, json_pack("{s:o, s:o}", "sub", cell_subs(s, outcome, col), "evidence",
                                    cell_evidence(s, outcome)));
    column_fill(col, s, outcome, offsetof(struct kvl_outcome, recall));
    r = kvl_record_add(
        r, json_pack("{s:o}", "recall", kvl_record_interval(col, KVL_RANGE_SHARE, c->id)));
    for (size_t i = 0; i < sizeof cell_means / sizeof cell_means[0]; i++) {
        column_fill(col, s, outcome, cell_means[i].off);
        r = kvl_record_add(
            r, json_pack("{s:o}", cell_means[i].field, kvl_record_real(column_mean(col))));
    }
    r = kvl_record_add(r, json_pack("{s:o}", "tiers", cell_tiers(s, outcome, col)));
    column_fill(col, s, outcome, offsetof(struct kvl_outcome, wall_ns));
    return kvl_record_add(r, json_pack("{s:o, s:o, s:o, s:f, s:o}", "chance",
                                       kvl_record_real(c->chance), "prefill_tok_per_s",
                                       kvl_record_real(cell_prefill(s, outcome)),
                                       "decode_tok_per_s", json_null(), "wall_s",
                                       column_sum(col) * 1e-9, "t_end", kvl_record_now()));
}

/* What the method said of itself, over the answers that have a score. */
static json_t *cell_method(const struct kvl_sweep *s, const struct kvl_outcome *outcome)
{
    struct kvl_method_sum all = { 0 };
    for (size_t i = 0; i < (size_t)s->contexts * (size_t)s->questions; i++)
        if (!outcome[i].failed) kvl_method_add(&all, &outcome[i].method);
    return kvl_record_method_sum(&all);
}

/* Why the benchmark's script gives another number; NULL: it does not. */
static const char *cell_unofficial(const struct kvl_point *task)
{
    return task->task->unofficial ? task->task->unofficial(task->opts) : NULL;
}

json_t *kvl_record_cell(const char *run, const struct kvl_sweep *s, const struct kvl_cell *c,
                        const struct kvl_outcome *outcome, const struct kvl_quality_means *quality)
{
    struct kvl_record_column col;
    json_t *r = kvl_record_add(kvl_record_start("cell", run), kvl_record_point(c));
    bool raw = !c->chat || strcmp(c->chat, "none") == 0;
    struct kvl_buf sampling = { 0 };
    if (kvl_sampling_print(&s->sampling, &sampling) != KVL_OK) {
        json_decref(r);
        return NULL;
    }
    r = kvl_record_add(r, json_pack("{s:o, s:s, s:s, s:o, s:s?}", "depth",
                                    c->depth < 0.0 ? json_null() : json_real(c->depth), "protocol",
                                    kvl_protocol_name(c->protocol), "chat", raw ? "none" : c->chat,
                                    "system", kvl_record_path_text(raw ? NULL : s->system),
                                    "sampling", sampling.data));
    kvl_buf_free(&sampling);
    json_t *numbers = NULL;
    if (kvl_record_column_create(s, c->task, s->questions, &col) == KVL_OK)
        numbers = cell_numbers(s, c, outcome, &col);
    kvl_record_column_free(&col);
    r = kvl_record_add(kvl_record_add(r, numbers), cell_method(s, outcome));
    r = kvl_record_add(r, json_pack("{s:s?}", "not_official", cell_unofficial(c->task)));
    return kvl_record_add(r, json_pack("{s:o}", "quality", kvl_record_quality_cell(s, c, quality)));
}

json_t *kvl_record_partial(const char *run, const struct kvl_cell *c, int64_t planned,
                           json_t *so_far)
{
    return kvl_record_add(kvl_record_start("partial", run),
                          json_pack("{s:s, s:I, s:o}", "cell", c->id, "n_planned",
                                    (json_int_t)planned, "so_far", so_far));
}
