/* kvlab status: what of a log is done, for people and as a gate for scripts. */
#include "args.h"
#include "cmds.h"
#include "report.h"
#include "results_amount.h"
#include "results_left.h"
#include "stop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct status_args {
    struct kvl_args base;
    char **log;
    size_t n_logs;
    bool left;
};

static const struct argp_option status_options[] = {
    { "left", 'l', NULL, 0,
      "print the numbers of the shards that are left and nothing else, as a Slurm array takes "
      "them: 3,7-9",
      0 },
    { 0 }
};

static error_t status_parse(int key, char *arg, struct argp_state *state)
{
    struct status_args *a = state->input;
    (void)arg;
    if (key == 'l')
        a->left = true;
    else if (key == ARGP_KEY_ARGS)
        kvl_args_words(state, &a->log, &a->n_logs);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp status_argp = {
    .options = status_options,
    .parser = status_parse,
    .args_doc = "LOG...",
    .doc = "What is done of all, whether it is running, what was cut off and what failed in one or "
           "more logs.  What is left, its time and memory says sweep --dry-run.  Exit code 0: all "
           "is done; 75: work is "
           "left, of the shards that it names; 6: all has run, and some of it failed; 5: and a log "
           "is damaged."
};

static void status_runs(const struct kvl_results *r)
{
    const json_t *run = r->newest_run;
    printf("runs     %zu", json_array_size(r->runs));
    if (run)
        printf(", the newest from %s on %s, build %s", kvl_json_text(run, "t_start"),
               kvl_json_text(run, "machine.host"), kvl_json_text(run, "kvlab.git"));
    putchar('\n');
    const char *name = kvl_json_text(run, "sweep.name"), *file = kvl_json_text(run, "sweep.file");
    if (name[0] && file[0])
        printf("sweep    %s (%s)\n", name, file);
    else if (name[0])
        printf("sweep    %s\n", name);
}

static void status_cells(const struct kvl_results *r, const struct kvl_results_amount *all)
{
    size_t n = 0, stale = 0, failed = 0;
    for (size_t i = 0; i < r->n_all; i++) {
        const struct kvl_result *x = &r->result[i];
        n += x->is_cell && isnan(x->n_planned);
        stale += x->is_cell && x->stale;
        failed += x->is_cell && x->n_errors > 0;
    }
    if (all->cells)
        printf("cells    %lld of %lld done", (long long)all->done, (long long)all->cells);
    else
        printf("cells    %zu done", n);
    if (all->cells && all->without)
        printf(" (without those of %zu run%s of older logs, which do not say of how many)",
               all->without, all->without == 1 ? "" : "s");
    size_t begun = r->n_unfinished + r->n_partial;
    if (begun) printf(", %zu not finished", begun);
    if (r->n_stopped) printf(", %zu stopped by an error (sweep --retry)", r->n_stopped);
    if (failed) printf(", %zu with failed samples", failed);
    if (stale) printf(", %zu of other code than the newest run", stale);
    if (all->answers)
        printf("\nsamples  %lld of %lld", (long long)all->answered, (long long)all->answers);
    else
        printf("\nsamples  %zu", r->n_samples);
    if (r->n_failed_samples) printf(", %zu failed", r->n_failed_samples);
    printf("\nspeed    %zu records\n", r->n_speed);
}

static int status_state(const struct status_args *a, const struct kvl_results_amount *all,
                        struct kvl_err *err)
{
    struct kvl_log_paths paths;
    size_t busy = 0;
    KVL_TRY(kvl_log_paths(a->log, a->n_logs, &paths, err));
    for (size_t i = 0; i < paths.n; i++) busy += kvl_log_busy(paths.path[i]);
    kvl_log_paths_free(&paths);
    int64_t left = all->cells - all->done - all->stopped;
    if (busy)
        printf("state    running%s\n", a->n_logs > 1 ? " (some log is being written)" : "");
    else if (left > 0)
        printf("state    not running, %lld cells left: the same sweep goes on\n", (long long)left);
    else
        puts("state    not running");
    return KVL_OK;
}

static void status_log(const struct kvl_results *r)
{
    const struct kvl_log_health *h = &r->health;
    printf("log      %llu file%s, %llu bytes, %llu records in %llu groups, %s\n",
           (unsigned long long)h->n_files, h->n_files == 1 ? "" : "s", (unsigned long long)h->bytes,
           (unsigned long long)h->n_records, (unsigned long long)h->n_groups,
           h->n_damage || h->n_bad_lines ? "not whole:" : "whole");
    kvl_report_damage(h, stdout);
    kvl_report_errors(r, stdout);
}

/* Numbers of shards mean nothing where sweeps have other numbers of them. */
static int status_left(const struct kvl_results_left *left, bool alone, struct kvl_err *err)
{
    if (left->mixed && alone)
        return kvl_fail(err, KVL_EINVAL,
                        "--left: sweeps in other numbers of shards, want the logs of one");
    if (!left->shards || left->mixed || !left->number.text.len) return KVL_OK;
    if (alone)
        puts(left->number.text.data);
    else
        printf("left     shards %s of %lld\n", left->number.text.data, (long long)left->shards);
    return KVL_OK;
}

static int status_gate(const struct kvl_results *r, const struct kvl_results_left *left,
                       struct kvl_err *err)
{
    if (left->any && left->number.text.len && !left->mixed)
        return kvl_fail(err, KVL_STOP_AGAIN, "work is left: shards %s of %lld",
                        left->number.text.data, (long long)left->shards);
    if (left->any) return kvl_fail(err, KVL_STOP_AGAIN, "work is left: the same sweep goes on");
    if (left->n_failed)
        return kvl_fail(err, KVL_EPOLICY,
                        "all has run, %lld failures; sweep --retry runs them again",
                        (long long)left->n_failed);
    if (!kvl_log_health_ok(&r->health))
        return kvl_fail(err, KVL_ELOG, "all has run, and a log is damaged: kvlab log check");
    return KVL_OK;
}

static int status_print(const struct status_args *a, const struct kvl_results *r,
                        const struct kvl_results_left *left, struct kvl_err *err)
{
    struct kvl_results_amount all = { 0 };
    if (a->left) return status_left(left, true, err);
    KVL_TRY(kvl_results_amount(r, &all, err));
    status_runs(r);
    status_cells(r, &all);
    KVL_TRY(status_state(a, &all, err));
    KVL_TRY(status_left(left, false, err));
    status_log(r);
    return KVL_OK;
}

int cmd_status(int argc, char **argv, struct kvl_err *err)
{
    struct status_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&status_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    struct kvl_results r = { 0 };
    KVL_TRY(kvl_results_load(a.log, a.n_logs, &r, err));
    struct kvl_results_left left = { 0 };
    int rc = kvl_results_left(&r, &left, err);
    if (rc == KVL_OK) rc = status_print(&a, &r, &left, err);
    if (rc == KVL_OK) rc = status_gate(&r, &left, err);
    kvl_results_left_free(&left);
    kvl_results_free(&r);
    return rc;
}
