/* What is left of a sweep, and what it will take. */
#include "forecast.h"

#include <math.h>
#include <stdio.h>

/* ---- what is left ---------------------------------------------------------------------------- */

static int64_t forecast_answers(const struct kvl_runner *r, size_t cell, int32_t context)
{
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    int32_t questions = r->work->sweep->questions;
    int64_t n = p->text != NULL;
    for (int32_t q = 0; p->outcome && q < questions; q++)
        n += !p->outcome[context * questions + q].have;
    return n;
}

static void forecast_context(const struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                             struct kvl_forecast *f)
{
    const struct kvl_reading *reading = g->speed ? NULL : kvl_point_reading(g->task);
    int32_t tok = reading ? kvl_reading_before(reading, g->length) : g->length;
    if (kvl_state_shares(r->state, g, context)) f->prefill_tok += tok;
    for (size_t i = g->first; i < g->first + g->n; i++) {
        if (!kvl_state_wants(r->state, context, i)) continue;
        if (kvl_planned_own_prefill(r->work->cell[i].planned)) f->prefill_tok += tok;
        if (!g->speed) f->n_answers += forecast_answers(r, i, context);
    }
}

static void forecast_group(const struct kvl_runner *r, const struct kvl_group *g,
                           struct kvl_forecast *f)
{
    int32_t contexts = g->speed ? 1 : r->work->sweep->contexts;
    for (int32_t c = 0; c < contexts; c++) forecast_context(r, g, c, f);
    for (size_t i = g->first; i < g->first + g->n; i++) {
        const struct kvl_progress_cell *p = &r->state->cell[i];
        f->left[i] = !p->done && !p->failed;
        f->n_left += f->left[i];
        f->n_timed += f->left[i] && g->speed;
        f->n_failed += p->failed && !p->done;
    }
    f->n_cells += g->n;
}

/* ---- the whole ------------------------------------------------------------------------------- */

int kvl_forecast(struct kvl_runner *r, struct kvl_forecast *out, struct kvl_err *err)
{
    struct kvl_forecast f = { .left = kvl_alloc(r->work->n_cells, sizeof *f.left) };
    if (!f.left) return kvl_fail(err, KVL_ENOMEM, "out of memory for cells");
    for (size_t i = 0; i < r->work->n_groups; i++)
        if (r->work->group[i].mine) forecast_group(r, &r->work->group[i], &f);
    int rc = kvl_memory_plan(r, r->work->sweep->kv_type, &f.memory, err);
    if (rc == KVL_OK)
        *out = f;
    else
        kvl_forecast_free(&f);
    return rc;
}

static void amount_cell(const struct kvl_runner *r, size_t cell, struct kvl_run_amount *n)
{
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    const struct kvl_sweep *s = r->work->sweep;
    n->cells++;
    n->cells_before += p->done;
    for (int32_t c = 0; r->work->cell[cell].planned && c < s->contexts; c++) {
        n->answers += p->text != NULL;
        n->answers_before += p->text && !json_is_null(json_array_get(p->text, (size_t)c));
        for (int32_t q = 0; p->outcome && q < s->questions; q++) {
            const struct kvl_outcome *o = &p->outcome[c * s->questions + q];
            n->answers += !o->absent;
            n->answers_before += o->have && !o->absent;
        }
    }
}

struct kvl_run_amount kvl_forecast_amount(const struct kvl_runner *r)
{
    struct kvl_run_amount n = { 0 };
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        for (size_t c = g->first; g->mine && c < g->first + g->n; c++) amount_cell(r, c, &n);
    }
    return n;
}

void kvl_forecast_free(struct kvl_forecast *f)
{
    kvl_free(f->left);
    f->left = NULL;
}

static void forecast_print_left(const struct kvl_forecast *f, const char *log)
{
    printf("log: %s has %zu of them", log, f->n_cells - f->n_left);
    if (f->n_failed) printf(", %zu as failed", f->n_failed);
    if (f->n_left == 0) {
        puts("; nothing is left to do");
        return;
    }
    printf("; left: %zu cells, %lld tokens to prefill, %lld questions or texts to answer",
           f->n_left, (long long)f->prefill_tok, (long long)f->n_answers);
    if (f->n_timed) printf(", %zu cells to time", f->n_timed);
    putchar('\n');
}

static void forecast_print_memory(const struct kvl_forecast *f, const struct kvl_jobs *jobs,
                                  int64_t free_bytes, const char *what)
{
    const struct kvl_memory *m = &f->memory;
    if (m->length_tok == 0) return;
    printf("memory: about %.0f MiB", (double)kvl_memory_all(m) / 0x1p20);
    if (jobs->n > 1) printf(" in each of %d workers", jobs->n);
    printf(
        ": %.1f of keys and values for the longest context (%d tokens), %.1f of what policies own, "
        "%.1f of activations, %.1f of weights",
        (double)m->footprint.kv_bytes / 0x1p20, m->length_tok, (double)m->own_bytes / 0x1p20,
        (double)m->footprint.work_bytes / 0x1p20, (double)m->footprint.weight_bytes / 0x1p20);
    if (free_bytes > 0) printf("; %.1f GiB of %s are free", (double)free_bytes / 0x1p30, what);
    if (!kvl_memory_fits(m, free_bytes))
        printf(": too little, want at most %lld tokens",
               (long long)kvl_memory_fits_tok(m, free_bytes));
    putchar('\n');
}

void kvl_forecast_print(const struct kvl_forecast *f, const struct kvl_runner *r, const char *log,
                        int64_t free_bytes, const char *what)
{
    forecast_print_left(f, log);
    if (f->n_left > 0) forecast_print_memory(f, &r->jobs, free_bytes, what);
}

void kvl_forecast_print_time(const struct kvl_rates *rates, const struct kvl_runner *r,
                             const char *from)
{
    char time[32];
    struct kvl_rates_left left = kvl_rates_left(rates, r);
    kvl_progress_time(1e-9 * (left.ns / KVL_MAX(r->jobs.n, 1) + left.timed_ns), time, sizeof time);
    printf("time: about %s more, at the rates of %s\n", time, from);
}
