/* What results get from each other: intervals of scores, and speed. */
#include "results_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_task(const struct kvl_result *a, const struct kvl_result *b)
{
    return strcmp(a->task, b->task) == 0 && strcmp(a->task_options, b->task_options) == 0;
}

/* Logs that do not tell the sums have the cell's own design effect, in its n_eff. */
static struct kvl_spread spread_of_score(const struct kvl_result *x, const json_t *score)
{
    double p = kvl_json_number(score, "p"), n_eff = kvl_json_number(score, "n_eff");
    struct kvl_spread s = { .n = x->n,
                            .n_contexts = x->n_contexts,
                            .between = kvl_json_number(score, "between"),
                            .simple = kvl_json_number(score, "simple") };
    if (!isnan(s.between) && !isnan(s.simple)) return s;
    bool told = p >= 0 && n_eff > 0;
    s.simple = told ? x->n * p * (1 - p) : 0;
    s.between = told ? (x->n_contexts - 1) / x->n_contexts * s.simple * x->n / n_eff : 0;
    return s;
}

/* The cells of a task of one model, of all policies, lengths and protocols. */
struct task_cells {
    const struct kvl_result *first;
    struct kvl_icc official, strict;
};

static struct task_cells *task_cells_of(struct task_cells *task, size_t *n,
                                        const struct kvl_result *x)
{
    for (size_t i = 0; i < *n; i++)
        if (kvl_result_set_cmp(task[i].first, x) == 0 && same_task(task[i].first, x))
            return &task[i];
    task[*n] = (struct task_cells){ .first = x };
    return &task[(*n)++];
}

static bool has_score(const struct kvl_result *x)
{
    return x->is_cell && !x->is_text && x->n > 0 && x->n_contexts > 0;
}

/* The interval of a score, by the correlation over its task; returns n_eff. */
static double score_interval(const struct kvl_result *x, const char *score,
                             const struct kvl_icc *icc, struct kvl_interval *v)
{
    struct kvl_spread s = spread_of_score(x, json_object_get(x->record, score));
    double n_eff = kvl_n_eff_of_icc(&s, kvl_icc_value(icc));
    if (!isnan(v->mean)) *v = kvl_wilson(v->mean, n_eff);
    return n_eff;
}

/* Gives scores the intervals that all cells of their task allow for. */
int kvl_results_intervals(struct kvl_results *r, struct kvl_err *err)
{
    size_t n = 0;
    struct task_cells *task = kvl_alloc(r->n_all + 1, sizeof *task);
    if (!task) return kvl_results_memory(err);
    for (size_t i = 0; i < r->n; i++) {
        const struct kvl_result *x = &r->result[i];
        if (!has_score(x)) continue;
        struct task_cells *t = task_cells_of(task, &n, x);
        struct kvl_spread official = spread_of_score(x, json_object_get(x->record, "official"));
        struct kvl_spread strict = spread_of_score(x, json_object_get(x->record, "strict"));
        kvl_icc_add(&t->official, &official);
        kvl_icc_add(&t->strict, &strict);
    }
    for (size_t i = 0; i < r->n_all; i++) {
        struct kvl_result *x = &r->result[i];
        if (!has_score(x)) continue;
        const struct task_cells *t = task_cells_of(task, &n, x);
        x->icc = kvl_icc_value(&t->official);
        x->n_eff = score_interval(x, "official", &t->official, &x->official);
        score_interval(x, "strict", &t->strict, &x->strict);
    }
    kvl_free(task);
    return KVL_OK;
}

static bool same_point(const struct kvl_result *a, const struct kvl_result *b)
{
    return a->length_tok == b->length_tok && strcmp(a->policy, b->policy) == 0 &&
           a->version == b->version && strcmp(a->budget, b->budget) == 0 &&
           strcmp(a->options, b->options) == 0 && strcmp(a->model, b->model) == 0 &&
           strcmp(a->model_hash, b->model_hash) == 0 && strcmp(a->kv_type, b->kv_type) == 0 &&
           strcmp(a->prefill_type, b->prefill_type) == 0 &&
           strcmp(a->decode_act, b->decode_act) == 0 && strcmp(a->prefill_kv, b->prefill_kv) == 0 &&
           strcmp(a->device, b->device) == 0 && strcmp(a->exec, b->exec) == 0 &&
           strcmp(a->prefill, b->prefill) == 0;
}

static int number_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median, least and most of n > 0 values, which get sorted. */
static struct kvl_interval spread_of(double *v, size_t n)
{
    qsort(v, n, sizeof *v, number_order);
    return (struct kvl_interval){ (v[(n - 1) / 2] + v[n / 2]) / 2, v[0], v[n - 1] };
}

/* The machine and threads whose speed a point gets: its own, else those of the latest record. */
static const struct kvl_result *join_setup(const struct kvl_result *x,
                                           const struct kvl_result *speed, size_t n_speed)
{
    const struct kvl_result *latest = x;
    for (size_t i = 0; i < n_speed; i++) {
        if (!same_point(x, &speed[i])) continue;
        if (kvl_result_setup_cmp(x, &speed[i]) == 0) return x;
        latest = &speed[i];
    }
    return latest;
}

/* Gives the point the repeats of its speed, and marks them as used.  Speed hardly depends on the
 * task: that of another one stands in for a task that was not timed.  Waits are of the same records. */
static void join_speed(struct kvl_result *x, const struct kvl_result *speed, size_t n_speed,
                       bool *used, double *v)
{
    const struct kvl_result *setup = join_setup(x, speed, n_speed);
    size_t n = 0;
    x->host = setup->host;
    x->threads = setup->threads;
    x->gpu = setup->gpu;
    x->driver = setup->driver;
    int any_task = 0;
    for (; any_task < 2; any_task++) {
        for (size_t i = 0; i < n_speed; i++) {
            if (!same_point(x, &speed[i]) || kvl_result_setup_cmp(x, &speed[i])) continue;
            if (!any_task && !same_task(x, &speed[i])) continue;
            used[i] = true;
            x->stale |= speed[i].stale;
            if (!isnan(speed[i].decode.mean)) v[n++] = speed[i].decode.mean;
        }
        if (n > 0) break;
    }
    if (n) x->decode = spread_of(v, n);
    x->n_speed = n;
    for (size_t i = n = 0; i < n_speed; i++)
        if (same_point(x, &speed[i]) && !kvl_result_setup_cmp(x, &speed[i]) &&
            same_task(x, &speed[i]) && !isnan(speed[i].attention_ns))
            v[n++] = speed[i].attention_ns;
    if (n) x->attention_ns = spread_of(v, n).mean;
    for (size_t i = n = 0; i < n_speed; i++)
        if (same_point(x, &speed[i]) && !kvl_result_setup_cmp(x, &speed[i]) &&
            (any_task || same_task(x, &speed[i])) && !isnan(speed[i].waits))
            v[n++] = speed[i].waits;
    if (n) x->waits = spread_of(v, n).mean;
}

void kvl_results_join(struct kvl_results *r, const struct kvl_result *speed, size_t n_speed,
                      bool *used, double *v)
{
    size_t n_outdone = kvl_results_outdone(r);
    for (size_t i = 0; i < r->n_all; i++)
        if (r->result[i].outdone) join_speed(&r->result[i], speed, n_speed, used, v);
    memset(used, 0, n_speed * sizeof *used); /* what is not shown is no place for a speed */
    for (size_t i = 0; i < r->n_all; i++)
        if (!r->result[i].outdone) join_speed(&r->result[i], speed, n_speed, used, v);
    for (size_t i = 0; i < n_speed; i++) {
        if (used[i]) continue; /* its point has no cell: it stands for itself */
        r->result[r->n_all] = speed[i];
        json_incref(speed[i].record);
        join_speed(&r->result[r->n_all++], speed, n_speed, used, v);
    }
    r->n = r->n_all - n_outdone;
}
