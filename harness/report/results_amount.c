/* How much of their sweeps logs hold. */
#include "results_amount.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of one sweep and one model, whatever the shard. */
static bool run_kin(const json_t *a, const json_t *b)
{
    static const char *const key[] = { "sweep.name", "model.file" };
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (strcmp(kvl_json_text(a, key[i]), kvl_json_text(b, key[i])) != 0) return false;
    return true;
}

static bool run_same(const json_t *a, const json_t *b)
{
    return run_kin(a, b) &&
           !strcmp(kvl_json_text(a, "sweep.shard"), kvl_json_text(b, "sweep.shard"));
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

/* Shards that its sweep was parted into, as text. */
static const char *run_parts(const json_t *run)
{
    const char *shard = kvl_json_text(run, "sweep.shard"), *of = strchr(shard, '/');
    return of ? of : "/1";
}

/* Whether no later run says how much there is of what `same` compares. */
static bool run_last(const struct kvl_results *r, size_t run,
                     bool (*same)(const json_t *a, const json_t *b))
{
    const json_t *this = json_array_get(r->runs, run);
    for (size_t i = run + 1; i < json_array_size(r->runs); i++) {
        const json_t *later = json_array_get(r->runs, i);
        if (kvl_results_run_says(later) && same(this, later)) return false;
    }
    return true;
}

static const json_t *run_find(const struct kvl_results *r, const char *id)
{
    size_t i;
    json_t *run;
    json_array_foreach(r->runs, i, run) if (!strcmp(kvl_json_text(run, "run"), id)) return run;
    return NULL;
}

/* Cells of what `same` takes for that of `run` that an error stopped; -1: no memory. */
static int64_t run_stopped(const struct kvl_results *r, const json_t *run,
                           bool (*same)(const json_t *a, const json_t *b))
{
    json_t *cells = json_object(), *e;
    size_t i;
    int failed = cells ? 0 : -1;
    json_array_foreach(r->errors, i, e)
    {
        const json_t *its = run_find(r, kvl_json_text(e, "run"));
        const char *id = kvl_json_text(e, "cell");
        if (id[0] && its && same(its, run)) failed |= json_object_set_new(cells, id, json_true());
    }
    int64_t n = (int64_t)json_object_size(cells);
    json_decref(cells);
    return failed ? -1 : n;
}

/* Whether some run of its sweep and model says how much there is. */
static bool run_counted(const struct kvl_results *r, const json_t *run)
{
    size_t i;
    json_t *other;
    json_array_foreach(r->runs, i,
                       other) if (kvl_results_run_says(other) && run_kin(run, other)) return true;
    return false;
}

static bool run_has_cells(const struct kvl_results *r, const json_t *run)
{
    for (size_t i = 0; i < r->n_all; i++)
        if (r->result[i].is_cell && !strcmp(r->result[i].run, kvl_json_text(run, "run")))
            return true;
    return false;
}

/* What a run did itself. */
static void amount_done(const struct kvl_results *r, const json_t *run,
                        struct kvl_results_amount *n)
{
    const char *id = kvl_json_text(run, "run");
    uint64_t key = kvl_result_key(id);
    size_t i;
    json_t *speed;
    for (i = 0; i < r->n_all; i++)
        n->done +=
            r->result[i].is_cell && isnan(r->result[i].n_planned) && !strcmp(r->result[i].run, id);
    json_array_foreach(r->speeds, i, speed) n->done += !strcmp(kvl_json_text(speed, "run"), id);
    for (i = 0; i < r->n_samples; i++) n->answered += r->sample[i].run == key;
}

static void amount_run(const struct kvl_results *r, const json_t *run, struct kvl_results_amount *n)
{
    n->cells += run_count(run, "sweep.cells");
    n->done += run_count(run, "sweep.cells_before");
    n->answers += run_count(run, "sweep.answers");
    n->answered += run_count(run, "sweep.answers_before");
    amount_done(r, run, n);
}

static int amount_stopped(const struct kvl_results *r, const json_t *run,
                          bool (*same)(const json_t *a, const json_t *b),
                          struct kvl_results_amount *n, struct kvl_err *err)
{
    int64_t stopped = run_stopped(r, run, same);
    if (stopped < 0) return kvl_fail(err, KVL_ENOMEM, "no memory for the errors of the log");
    n->stopped += stopped;
    return KVL_OK;
}

int kvl_results_run_amount(const struct kvl_results *r, const json_t *run,
                           struct kvl_results_amount *n, struct kvl_err *err)
{
    amount_run(r, run, n);
    return amount_stopped(r, run, run_same, n, err);
}

/* Of one way to part the sweep of `run`: the newest run of each shard.  Whether these are all shards. */
static bool amount_of_parts(const struct kvl_results *r, const json_t *run,
                            struct kvl_results_amount *n)
{
    int64_t shards = 0;
    *n = (struct kvl_results_amount){ 0 };
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *other = json_array_get(r->runs, i);
        if (!kvl_results_run_says(other) || !run_kin(run, other) || !run_last(r, i, run_same) ||
            strcmp(run_parts(other), run_parts(run)) != 0)
            continue;
        amount_run(r, other, n);
        shards++;
    }
    return shards == atoll(run_parts(run) + 1);
}

/* All runs of a sweep: a cell that several did, being of shards parted otherwise, is one result. */
static void amount_of_runs(const struct kvl_results *r, const json_t *run,
                           struct kvl_results_amount *n)
{
    *n = (struct kvl_results_amount){ 0 };
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *other = json_array_get(r->runs, i);
        if (kvl_results_run_says(other) && run_kin(run, other) &&
            run_find(r, kvl_json_text(other, "run")) == other)
            amount_done(r, other, n);
    }
}

/* The sweep and model of `run`.  Parted in several ways, one of which all shards are there tells how much there is, else
 * the one that tells the most; what others did is done, too. */
static int amount_add(const struct kvl_results *r, const json_t *run, struct kvl_results_amount *n,
                      bool *out, struct kvl_err *err)
{
    struct kvl_results_amount most = { 0 }, x;
    bool several = false, whole = false;
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *other = json_array_get(r->runs, i);
        if (!kvl_results_run_says(other) || !run_kin(run, other)) continue;
        several |= strcmp(run_parts(run), run_parts(other)) != 0;
        bool all = amount_of_parts(r, other, &x);
        bool more = x.cells > most.cells || (x.cells == most.cells && x.done > most.done);
        if (all > whole || (all == whole && more)) most = x;
        whole |= all;
    }
    if (several) {
        amount_of_runs(r, run, &x);
        if (!whole) most.cells = KVL_MAX(most.cells, x.done);
        if (!whole) most.answers = KVL_MAX(most.answers, x.answered);
        most.done = KVL_MIN(KVL_MAX(most.done, x.done), most.cells);
        most.answered = KVL_MIN(KVL_MAX(most.answered, x.answered), most.answers);
    }
    *out = whole;
    n->cells += most.cells;
    n->done += most.done;
    n->answers += most.answers;
    n->answered += most.answered;
    return amount_stopped(r, run, run_kin, n, err);
}

int kvl_results_all_done(const struct kvl_results *r, const json_t *run, bool *done,
                         struct kvl_err *err)
{
    struct kvl_results_amount n = { 0 };
    KVL_TRY(amount_add(r, run, &n, done, err));
    *done &= n.done + n.stopped >= n.cells;
    return KVL_OK;
}

int kvl_results_amount(const struct kvl_results *r, struct kvl_results_amount *n,
                       struct kvl_err *err)
{
    bool whole;
    *n = (struct kvl_results_amount){ 0 };
    for (size_t i = 0; i < json_array_size(r->runs); i++) {
        const json_t *run = json_array_get(r->runs, i);
        if (kvl_results_run_says(run) && run_last(r, i, run_kin))
            KVL_TRY(amount_add(r, run, n, &whole, err));
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
