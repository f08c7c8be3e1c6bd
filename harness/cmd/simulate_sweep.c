/* A whole sweep on other devices: its plan, with what a token and a prefill take there. */
#include "simulate.h"

#include "sweep_models.h"
#include "sweep_plan.h"
#include "text_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct simulated {
    struct kvl_simulate *a;
    struct kvl_sweep s;
    struct kvl_work *work;
    char **word; /* [n_cells], of its policy as kvl_costs knows it */
};

/* What it takes on one device. */
struct sweep_sum {
    double prefill_s, attach_s, decode_s, pass_s;
    double bytes;                    /* that decoding reads, weights included */
    double memory_bytes, host_bytes; /* the most of any cell */
    int64_t prefill_tok, decode_tok;
    size_t n_unknown; /* cells of methods that did not run where they were measured */
};

/* ---- what is measured ----------------------------------------------------------------------------------- */

static int sweep_word(const struct kvl_point *p, char **out, struct kvl_err *err)
{
    struct kvl_buf b = { 0 };
    const char *options = p->options ? p->options : "";
    bool own = p->own && !strstr(options, "prefill=");
    int rc = kvl_buf_printf(&b, "%s%s%s%s%s", p->policy->name, own || *options ? ":" : "",
                            own ? "prefill=own" : "", own && *options ? "," : "", options);
    if (rc != KVL_OK) return kvl_fail(err, rc, "out of memory for policies");
    *out = b.data;
    return KVL_OK;
}

/* Cells without a budget are measured with any. */
static int32_t cell_budget(const struct simulated *w, const struct kvl_cell *c)
{
    for (size_t i = 0; !c->budget_tok && i < w->work->n_cells; i++)
        if (w->work->cell[i].budget_tok) return w->work->cell[i].budget_tok;
    return c->budget_tok ? c->budget_tok : SIM_BUDGET;
}

/* Whether an earlier cell has measured the same. */
static bool cell_again(const struct simulated *w, size_t cell, bool budget_alone)
{
    int32_t budget = cell_budget(w, &w->work->cell[cell]);
    for (size_t i = 0; i < cell; i++)
        if (w->work->cell[i].planned && cell_budget(w, &w->work->cell[i]) == budget &&
            (budget_alone || strcmp(w->word[i], w->word[cell]) == 0))
            return true;
    return false;
}

/* All methods of one budget. */
static int sweep_measure(struct simulated *w, size_t first, int32_t least, int32_t most)
{
    struct bench_config *c = &w->a->bench.config;
    struct kvl_buf list = { 0 };
    int rc = KVL_OK;
    c->budget_tok = cell_budget(w, &w->work->cell[first]);
    for (size_t i = first; rc == KVL_OK && i < w->work->n_cells; i++) {
        const struct kvl_cell *cell = &w->work->cell[i];
        if (!cell->planned || cell_budget(w, cell) != c->budget_tok || cell_again(w, i, false))
            continue;
        if (strcmp(w->word[i], "full") == 0) continue; /* it is measured first, always */
        rc = kvl_buf_printf(&list, "%s;", w->word[i]);
    }
    c->policies = list.data ? list.data : "full";
    c->depths = kvl_simulate_depths(c->budget_tok, least, most);
    if (rc == KVL_OK) rc = kvl_costs_measure(&w->a->bench, &w->a->costs);
    c->policies = NULL;
    kvl_buf_free(&list);
    return rc;
}

static int sweep_costs(struct simulated *w)
{
    int32_t least = INT32_MAX, most = 0;
    for (size_t i = 0; i < w->work->n_cells; i++) {
        least = KVL_MIN(least, w->work->cell[i].length);
        most = KVL_MAX(most, w->work->cell[i].length);
        KVL_TRY(sweep_word(w->work->cell[i].policy, &w->word[i], w->a->base.err));
    }
    for (size_t i = 0; i < w->work->n_cells; i++)
        if (w->work->cell[i].planned && !cell_again(w, i, true))
            KVL_TRY(sweep_measure(w, i, least, most));
    return KVL_OK;
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

static void sum_cell(const struct simulated *w, size_t cell, const struct kvl_profile *p,
                     struct sweep_sum *sum)
{
    const struct kvl_simulate *a = w->a;
    const struct kvl_cell *c = &w->work->cell[cell];
    int32_t budget = cell_budget(w, c),
            contexts = c->speed ? 1 : kvl_point_contexts(&w->s, c->task);
    const struct kvl_method_costs *m = kvl_costs_find(&a->costs, w->word[cell], budget),
                                  *full = kvl_costs_find(&a->costs, "full", budget);
    if (!c->planned) return;
    if (!m || m->n == 0 || !full || full->n == 0) {
        sum->n_unknown++;
        return;
    }
    struct kvl_sim_token t = kvl_sim_token(&a->sim, m, p, a->split, c->length),
                         f = kvl_sim_token(&a->sim, full, p, a->split, c->length);
    struct kvl_cell_steps n = kvl_cell_steps(w->work, c);
    bool own =
        kvl_planned_own_prefill(c->planned); /* its attaching is its prefill, counted as one */
    sum->attach_s += own ? 0 : contexts * n.attaches * t.attach_s;
    sum->decode_s += contexts * n.steps * t.total_s;
    sum->decode_tok += (int64_t)(contexts * n.steps);
    sum->bytes += contexts * n.steps * (t.weight_bytes + t.kv_bytes + t.index_bytes);
    /* A pass decodes twice, and reads everything again for what it compares with. */
    sum->pass_s += contexts * n.passes * w->s.quality.steps * 4 * f.total_s;
    sum->memory_bytes = fmax(sum->memory_bytes, fmax(t.memory_bytes, f.prefill_bytes));
    sum->host_bytes = fmax(sum->host_bytes, t.host_bytes);
}

static struct sweep_sum sweep_sum(const struct simulated *w, const struct kvl_profile *p)
{
    struct sweep_sum sum = { 0 };
    for (size_t i = 0; i < w->work->n_groups; i++) {
        const struct kvl_group *g = &w->work->group[i];
        struct kvl_estimate e;
        kvl_group_estimate(w->work, g, &e);
        sum.prefill_tok += e.prefill_tok;
        sum.prefill_s += (double)e.prefill_tok / g->length *
                         kvl_sim_prefill(&w->a->sim, p, w->a->split, g->length);
    }
    for (size_t i = 0; i < w->work->n_cells; i++) sum_cell(w, i, p, &sum);
    return sum;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static void sweep_seconds(struct kvl_table *t, double s)
{
    if (s < 600)
        kvl_table_add(t, "%.3g s", s);
    else if (s < 36000)
        kvl_table_add(t, "%.3g min", s / 60);
    else
        kvl_table_add(t, "%.4g h", s / 3600);
}

static int sweep_print(const struct simulated *w)
{
    static const struct kvl_column columns[] = {
        { "device", true },  { "time", false },   { "prefill", false },
        { "attach", false }, { "decode", false }, { "passes", false },
        { "read", false },   { "memory", false }, { "host", false },
    };
    struct kvl_table t = { .column = columns, .n_columns = sizeof columns / sizeof columns[0] };
    struct sweep_sum sum = { 0 };
    for (size_t i = 0; i < w->a->n_profiles; i++) {
        const struct kvl_profile *p = &w->a->profile[i];
        sum = sweep_sum(w, p);
        kvl_table_add(&t, "%s", p->name);
        sweep_seconds(&t, sum.prefill_s + sum.attach_s + sum.decode_s + sum.pass_s);
        sweep_seconds(&t, sum.prefill_s);
        sweep_seconds(&t, sum.attach_s);
        sweep_seconds(&t, sum.decode_s);
        sweep_seconds(&t, sum.pass_s);
        kvl_table_bytes(&t, sum.bytes);
        kvl_table_add(&t, "%s%s", kvl_bytes_text(sum.memory_bytes).s,
                      sum.memory_bytes > p->memory_gib * 0x1p30 ? " (no)" : "");
        kvl_table_bytes(&t, sum.host_bytes > 0 ? sum.host_bytes : (double)NAN);
    }
    printf(
        "%s: %zu cells, %lld tokens to prefill, %lld to decode; predicted for one process on one "
        "device at a time, model %s\n",
        w->a->sweep, w->work->n_cells, (long long)sum.prefill_tok, (long long)sum.decode_tok,
        w->a->sim.shape.name);
    int rc = kvl_table_print(&t, 0, stdout, w->a->base.err);
    kvl_table_free(&t);
    if (sum.n_unknown)
        printf("left out: %zu cells of methods that did not run where they were measured\n",
               sum.n_unknown);
    return rc;
}

static int sweep_run(struct simulated *w, int (*open)(struct kvl_simulate *a),
                     int (*here)(struct kvl_simulate *a))
{
    struct kvl_simulate *a = w->a;
    struct kvl_model *model = NULL;
    const struct kvl_where where = { "simulated", 1, NULL };
    if (a->n_lengths || a->bench.config.policies || a->bench.config.budget_tok)
        return kvl_fail(a->base.err, KVL_EINVAL, "--lengths, --policies and --budget: %s says them",
                        a->sweep);
    KVL_TRY(kvl_sweep_load(a->sweep, NULL, a->bench.registry, NULL, 0, &w->s, a->base.err));
    if (kvl_sweep_n_parts(&w->s) > 1)
        return kvl_fail(a->base.err, KVL_EINVAL,
                        "%s: several models or kv types, want a sweep of one", a->sweep);
    if (!a->shape_name && !a->bench.config.model) a->bench.config.model = w->s.model;
    a->bench.config.kv_type = w->s.kv_type;
    KVL_TRY(open(a));
    KVL_TRY(kvl_model_open_told(w->s.model, w->s.windows_off, &model, a->base.err));
    int rc = kvl_work_create(&w->s, model, &where, true, &w->work, a->base.err);
    if (rc == KVL_OK && !(w->word = kvl_alloc(w->work->n_cells, sizeof *w->word)))
        rc = kvl_fail(a->base.err, KVL_ENOMEM, "out of memory for policies");
    if (rc == KVL_OK) rc = kvl_work_shard(w->work, (struct kvl_shard){ 0 }, a->base.err);
    if (rc == KVL_OK) rc = sweep_costs(w);
    if (rc == KVL_OK) rc = here(a);
    if (rc == KVL_OK) rc = sweep_print(w);
    for (size_t i = 0; w->word && i < w->work->n_cells; i++) free(w->word[i]);
    kvl_free(w->word);
    kvl_work_destroy(w->work);
    kvl_model_close(model);
    return rc;
}

int kvl_simulate_sweep(struct kvl_simulate *a, int (*open)(struct kvl_simulate *a),
                       int (*here)(struct kvl_simulate *a))
{
    struct simulated w = { .a = a };
    int rc = sweep_run(&w, open, here);
    kvl_sweep_free(&w.s);
    return rc;
}
