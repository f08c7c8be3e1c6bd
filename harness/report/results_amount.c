/* How much of their sweeps logs hold. */
#include "results_amount.h"

#include <math.h>
#include <string.h>

static bool run_same(const json_t *a, const json_t *b)
{
    static const char *const key[] = { "sweep.name", "sweep.shard", "model.file" };
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (strcmp(kvl_json_text(a, key[i]), kvl_json_text(b, key[i])) != 0) return false;
    return true;
}

static bool run_newest(const struct kvl_results *r, size_t run)
{
    const json_t *this = json_array_get(r->runs, run);
    for (size_t i = run + 1; i < json_array_size(r->runs); i++) {
        const json_t *later = json_array_get(r->runs, i);
        if (kvl_json_number(later, "sweep.cells") > 0 && run_same(this, later)) return false;
    }
    return true;
}

static int64_t run_count(const json_t *run, const char *name)
{
    double n = kvl_json_number(run, name);
    return isnan(n) ? 0 : (int64_t)n;
}

bool kvl_results_run_says(const json_t *run)
{
    return run_count(run, "sweep.cells") > 0 || kvl_json_text(run, "sweep.shard")[0];
}

static const json_t *run_find(const struct kvl_results *r, const char *id)
{
    size_t i;
    json_t *run;
    json_array_foreach(r->runs, i, run) if (!strcmp(kvl_json_text(run, "run"), id)) return run;
    return NULL;
}

/* Cells of the sweep, model and shard of `run`; -1: no memory. */
static int64_t run_stopped(const struct kvl_results *r, const json_t *run)
{
    json_t *cells = json_object(), *e;
    size_t i;
    int failed = cells ? 0 : -1;
    json_array_foreach(r->errors, i, e)
    {
        const json_t *its = run_find(r, kvl_json_text(e, "run"));
        const char *id = kvl_json_text(e, "cell");
        if (id[0] && its && run_same(its, run))
            failed |= json_object_set_new(cells, id, json_true());
    }
    int64_t n = (int64_t)json_object_size(cells);
    json_decref(cells);
    return failed ? -1 : n;
}

/* Whether some run of its sweep, model and shard says how much there is. */
static bool run_counted(const struct kvl_results *r, const json_t *run)
{
    size_t i;
    json_t *other;
    json_array_foreach(r->runs, i,
                       other) if (kvl_results_run_says(other) && run_same(run, other)) return true;
    return false;
}

static bool run_has_cells(const struct kvl_results *r, const json_t *run)
{
    for (size_t i = 0; i < r->n_all; i++)
        if (r->result[i].is_cell && !strcmp(r->result[i].run, kvl_json_text(run, "run")))
            return true;
    return false;
}

int kvl_results_run_amount(const struct kvl_results *r, const json_t *run,
                           struct kvl_results_amount *n, struct kvl_err *err)
{
    const char *id = kvl_json_text(run, "run");
    uint64_t key = kvl_result_key(id);
    n->cells += run_count(run, "sweep.cells");
    n->done += run_count(run, "sweep.cells_before");
    n->answers += run_count(run, "sweep.answers");
    n->answered += run_count(run, "sweep.answers_before");
    for (size_t i = 0; i < r->n_all; i++)
        n->done += r->result[i].is_cell && !strcmp(r->result[i].run, id);
    size_t i;
    json_t *speed;
    json_array_foreach(r->speeds, i, speed) n->done += !strcmp(kvl_json_text(speed, "run"), id);
    for (i = 0; i < r->n_samples; i++) n->answered += r->sample[i].run == key;
    int64_t stopped = run_stopped(r, run);
    if (stopped < 0) return kvl_fail(err, KVL_ENOMEM, "no memory for the errors of the log");
    n->stopped += stopped;
    return KVL_OK;
}

int kvl_results_amount(const struct kvl_results *r, struct kvl_results_amount *n,
                       struct kvl_err *err)
{
    *n = (struct kvl_results_amount){ 0 };
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *run = json_array_get(r->runs, i);
        if (kvl_results_run_says(run) && run_newest(r, i))
            KVL_TRY(kvl_results_run_amount(r, run, n, err));
        n->without += !run_counted(r, run) && run_has_cells(r, run);
    }
    return KVL_OK;
}

int kvl_results_partial(const struct kvl_results *r, const char *before, FILE *out,
                        struct kvl_err *err)
{
    struct kvl_results_amount n;
    if (r->some) return KVL_OK;
    KVL_TRY(kvl_results_amount(r, &n, err));
    if (n.done < n.cells)
        fprintf(out, "%snot complete: %lld of %lld cells; the same sweep goes on\n", before,
                (long long)n.done, (long long)n.cells);
    return KVL_OK;
}
