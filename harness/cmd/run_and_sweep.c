/* From a configuration to a table. */
#include "run_and_sweep.h"

#include "calibrate.h"
#include "folders.h"
#include "forecast.h"
#include "plan_file.h"
#include "report.h"
#include "stop.h"
#include "sweep.h"
#include "sweep_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the log --------------------------------------------------------------------------------- */

/* Every process writes a file of its own: "x.jsonl.zst" is "x.shard-1-of-4.jsonl.zst" there. */
static int sweep_log_path(const struct kvl_sweep *s, const struct kvl_sweep_args *a,
                          struct kvl_shard shard, struct kvl_buf *out)
{
    static const char tail[] = ".jsonl.zst";
    size_t n = strlen(s->log), stem = n;
    if (n >= sizeof tail - 1 && strcmp(s->log + n - (sizeof tail - 1), tail) == 0)
        stem = n - (sizeof tail - 1);
    if (shard.count < 2 || a->log) return kvl_buf_adds(out, s->log);
    KVL_TRY(kvl_buf_add(out, s->log, stem));
    KVL_TRY(kvl_buf_printf(out, ".shard-%d-of-%d", shard.index, shard.count));
    return kvl_buf_adds(out, s->log + stem);
}

static void sweep_report_health(const char *path, const struct kvl_log_health *h)
{
    for (size_t i = 0; i < h->n_damage; i++)
        fprintf(stderr, "kvlab: %s: byte %llu: %s (%llu bytes)%s\n", path,
                (unsigned long long)h->damage[i].offset, h->damage[i].what,
                (unsigned long long)h->damage[i].bytes,
                h->damage[i].tail ? ", set aside; what it held runs again" : "");
}

/* ---- the run --------------------------------------------------------------------------------- */

struct sweep {
    struct kvl_sweep_args *a;
    struct kvl_sweep s;
    struct kvl_model *model;
    struct kvl_probed gpu;
    bool has_gpu;  /* the model runs there */
    bool no_table; /* one of all types follows */
    struct kvl_machine machine;
    struct kvl_work *work;
    struct kvl_state state;
    struct kvl_shard shard;
    struct kvl_snapshots snapshots;
    struct kvl_buf log_path;
    struct kvl_log *log;
    struct kvl_sweep_done *done;
    struct kvl_err *err;
};

static int sweep_plan(struct sweep *w)
{
    struct kvl_sweep_args *a = w->a;
    if (a->model.threads) w->s.threads = a->model.threads;
    if (w->s.threads) kvl_ops_set_threads(w->s.threads);
    w->has_gpu = kvl_device_is_gpu(w->s.device);
    /* Ids of timed cells have its name. */
    if (w->has_gpu && (!a->dry_run || w->s.speed.on))
        KVL_TRY(kvl_device_probe(w->s.device, w->s.gpus.first, &w->gpu, w->err));
    KVL_TRY(kvl_model_fits(w->s.model, w->s.device, w->err));
    KVL_TRY(kvl_model_open_told(w->s.model, w->s.windows_off, &w->model, w->err));
    kvl_machine_read(&w->machine);
    struct kvl_where where = { w->machine.host, kvl_ops_threads(),
                               w->has_gpu ? w->gpu.info.name : NULL };
    KVL_TRY(kvl_shard_parse(a->shard, &w->shard, w->err));
    KVL_TRY(kvl_work_create(&w->s, w->model, &where, a->model.allow_overlong, &w->work, w->err));
    w->work->only = a->only;
    return kvl_work_shard(w->work, w->shard, w->err);
}

/* Shards of one sweep must be of one plan. */
static int sweep_plan_file(const struct sweep *w)
{
    struct kvl_buf path = { 0 };
    if (w->shard.count < 2) return KVL_OK;
    const struct kvl_kv_name type = kvl_kv_name(w->s.kv_type);
    int rc = kvl_plan_file_name(w->s.log, w->s.models.n ? kvl_model_hash(w->model) : NULL,
                                w->s.kv_types.n ? type.text : NULL, &path);
    if (rc == KVL_OK)
        rc = kvl_plan_file_check(path.data, w->work, !w->a->dry_run, w->err);
    else
        kvl_fail(w->err, rc, "out of memory for the plan's path");
    kvl_buf_free(&path);
    if (rc == KVL_OK && !w->a->quiet && !w->a->dry_run)
        fprintf(stderr, "kvlab: shard %d/%d (%s)\n", w->shard.index, w->shard.count, w->shard.from);
    return rc;
}

static void sweep_report_stale(const struct sweep *w)
{
    size_t n = kvl_state_n_stale(&w->state), kept = kvl_state_n_kept(&w->state);
    const char *code = w->state.stale_code[0] ? w->state.stale_code : "unknown";
    if (kept > 0)
        fprintf(stderr,
                "kvlab: %s: %zu cell%s answered by other code (build %s) %s kept; tables mark them "
                "with a star\n",
                w->log_path.data, kept, kept == 1 ? "" : "s", code, kept == 1 ? "is" : "are");
    if (n > kept)
        fprintf(stderr, "kvlab: %s: %zu cell%s answered by other code (build %s) run%s again%s\n",
                w->log_path.data, n - kept, n - kept == 1 ? "" : "s", code,
                n - kept == 1 ? "s" : "", w->a->accept_stale ? "" : "; --accept-stale keeps them");
}

/* Where keys and values lie: how much of that is free (0 = not known), its name, and what else would help
 * when it is too little. */
struct sweep_room {
    int64_t free_bytes;
    const char *what, *instead;
};

static struct sweep_room sweep_room(const struct sweep *w)
{
    int64_t device = (int64_t)w->gpu.memory.free_bytes - (int64_t)kvl_model_bytes(w->model);
    if (!w->has_gpu || w->s.prefill_kv_host)
        return (struct sweep_room){ kvl_memory_free_bytes(), "memory", "" };
    if (w->gpu.memory.free_bytes == 0) return (struct sweep_room){ 0, "GPU memory", "" };
    return (struct sweep_room){ KVL_MAX(device, 1), "GPU memory", ", or --prefill-kv host" };
}

/* What cannot run is refused before it starts, not killed by the system hours later. */
static int sweep_check_memory(struct sweep *w)
{
    struct kvl_runner r = { .work = w->work, .state = &w->state };
    struct kvl_memory memory;
    struct sweep_room room = sweep_room(w);
    KVL_TRY(kvl_memory_plan(&r, w->s.kv_type, &memory, w->err));
    const char *type = kvl_memory_smaller(&r, room.free_bytes);
    return kvl_memory_check(&memory, &w->s, room.free_bytes, room.what, type ? type : room.instead,
                            w->err);
}

static int sweep_state(struct sweep *w)
{
    KVL_TRY(kvl_state_create(w->work, w->a->accept_stale, w->a->retry, &w->state, w->err));
    if (sweep_log_path(&w->s, w->a, w->shard, &w->log_path) != KVL_OK)
        return kvl_fail(w->err, KVL_ENOMEM, "out of memory for the log's path");
    return KVL_OK;
}

static int sweep_open_log(struct sweep *w)
{
    struct kvl_log_health health = { 0 };
    /* Without a log all is wanted, and a sweep that is refused leaves none. */
    if (access(w->log_path.data, F_OK) != 0) KVL_TRY(sweep_check_memory(w));
    KVL_TRY(kvl_make_folders(w->log_path.data, w->err));
    int rc = kvl_log_open(w->log_path.data, kvl_state_read, &w->state, &health, &w->log, w->err);
    if (rc == KVL_OK) sweep_report_health(w->log_path.data, &health);
    kvl_log_health_free(&health);
    if (rc == KVL_OK) sweep_report_stale(w);
    return rc;
}

static void sweep_print_stats(const struct kvl_runner *r)
{
    const struct kvl_run_stats *s = &r->stats;
    printf("prefilled %lld contexts (%lld tokens) for %lld samples, %lld contexts for %lld timed "
           "runs; %lld errors\n",
           (long long)s->context_prefills, (long long)s->context_prefill_tok,
           (long long)s->n_samples, (long long)s->speed_prefills, (long long)s->n_speed,
           (long long)s->n_errors);
    if (s->own_prefills)
        printf("%lld contexts were read by the policies themselves\n", (long long)s->own_prefills);
    if (s->n_quality) printf("%lld reference passes\n", (long long)s->n_quality);
    if (r->snapshots.dir)
        printf("snapshots: %lld loaded, %lld saved\n", (long long)r->snapshots.n_loaded,
               (long long)r->snapshots.n_saved);
}

static bool sweep_cell_failed(const struct sweep *w, size_t cell)
{
    const struct kvl_progress_cell *p = &w->state.cell[cell];
    size_t n = (size_t)w->s.contexts * (size_t)w->s.questions;
    bool failed = p->failed;
    for (size_t i = 0; p->outcome && i < n; i++)
        failed = failed || (p->outcome[i].have && p->outcome[i].failed && !p->outcome[i].absent);
    for (size_t i = 0; i < json_array_size(p->text); i++)
        failed = failed || json_is_string(json_object_get(json_array_get(p->text, i), "error"));
    return failed;
}

/* Cells without a result or with samples without one, from this run or an earlier one. */
static size_t sweep_n_failed(const struct sweep *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->work->n_cells; i++) n += sweep_cell_failed(w, i);
    return n;
}

enum { SWEEP_BLOCKS = 2 }; /* tables that are printed in full at the end */

/* What a table shows: cells of any of its types of keys and values. */
struct sweep_kept {
    struct kvl_sweep s; /* borrowed, with a type of its own */
    struct kvl_work *work;
    struct kvl_state state;
};
struct sweep_keep {
    struct sweep_kept type[KVL_KV_AXIS];
    int32_t n;
};

static bool sweep_keep(const char *cell, const void *user)
{
    const struct sweep_keep *k = user;
    for (int32_t i = 0; i < k->n; i++)
        if (kvl_state_has(&k->type[i].state, cell)) return true;
    return false;
}

/* The cells that this model has with a type: what is shown need not be of this run. */
static int sweep_keep_add(const struct sweep *w, enum kvl_kv_type type, struct sweep_keep *k)
{
    struct sweep_kept *to = &k->type[k->n++];
    struct kvl_where where = { w->machine.host, kvl_ops_threads(),
                               w->has_gpu ? w->gpu.info.name : NULL };
    struct kvl_err why = { 0 };
    to->s = w->s;
    to->s.kv_type = type;
    /* A type that the model cannot have has no cells. */
    int rc = kvl_work_create(&to->s, w->model, &where, w->a->model.allow_overlong, &to->work, &why);
    if (rc != KVL_OK) return rc == KVL_ENOMEM ? kvl_fail(w->err, rc, "%s", why.msg) : KVL_OK;
    to->work->only = w->a->only;
    KVL_TRY(kvl_work_shard(to->work, w->shard, w->err));
    return kvl_state_create(to->work, w->a->accept_stale, w->a->retry, &to->state, w->err);
}

static void sweep_keep_free(struct sweep_keep *k)
{
    for (int32_t i = 0; k && i < k->n; i++) {
        kvl_state_free(&k->type[i].state);
        kvl_work_destroy(k->type[i].work);
    }
    kvl_free(k);
}

static int sweep_results(const struct sweep *w, struct sweep_keep *k, struct kvl_results *out)
{
    char *words[] = { w->log_path.data };
    for (int32_t i = 0; i < KVL_MAX(w->s.kv_types.n, 1); i++)
        KVL_TRY(sweep_keep_add(w, w->s.kv_types.n ? w->s.kv_types.v[i] : w->s.kv_type, k));
    return kvl_results_load_some(words, 1, sweep_keep, k, out, w->err);
}

/* The table of this sweep: its log may hold those of others, too. */
static int sweep_table(const struct sweep *w)
{
    struct kvl_results results;
    struct sweep_keep *keep = kvl_alloc(1, sizeof *keep);
    if (!keep) return kvl_fail(w->err, KVL_ENOMEM, "out of memory for a table");
    int read = sweep_results(w, keep, &results);
    sweep_keep_free(keep);
    KVL_TRY(read);
    bool small = kvl_report_blocks(&results) <= SWEEP_BLOCKS;
    int rc = small ? kvl_report_print(&results, stdout, w->err)
                   : kvl_report_summary(&results, KVL_TABLE_TEXT, stdout, w->err);
    kvl_results_free(&results);
    if (rc == KVL_OK && !small)
        printf("\nEvery length, protocol and task apart: kvlab report %s\n", w->log_path.data);
    return rc;
}

static int sweep_finish(const struct sweep *w, const struct kvl_runner *r)
{
    const struct kvl_run_stats *stats = &r->stats;
    size_t failed = sweep_n_failed(w);
    *w->done = (struct kvl_sweep_done){ stats->n_samples, stats->n_speed, stats->n_errors, failed };
    if (w->a->stats) sweep_print_stats(r);
    if (!w->a->quiet) {
        if (!w->no_table) KVL_TRY(sweep_table(w));
        printf("\n%lld samples and %lld timed runs in this run, %lld errors; log: %s\n",
               (long long)stats->n_samples, (long long)stats->n_speed, (long long)stats->n_errors,
               w->log_path.data);
    }
    return KVL_OK;
}

static int sweep_strict(const struct sweep *w, const struct kvl_sweep_done *done, size_t models)
{
    if (!w->a->strict || (done->n_failed == 0 && done->n_errors == 0 && models == 0)) return KVL_OK;
    if (models > 0)
        return kvl_fail(w->err, KVL_EPOLICY,
                        "%zu models or types of keys and values failed, %zu cells have failures, "
                        "%lld errors in this run "
                        "(--strict)",
                        models, done->n_failed, (long long)done->n_errors);
    return kvl_fail(w->err, KVL_EPOLICY,
                    "%s: %zu cells have failures, %lld errors in this run (--strict)",
                    w->log_path.data, done->n_failed, (long long)done->n_errors);
}

static bool sweep_has_plugin(const struct kvl_work *work)
{
    for (size_t i = 0; i < work->n_cells; i++)
        if (work->cell[i].planned && (work->cell[i].policy->foreign || work->cell[i].task->foreign))
            return true;
    return false;
}

/* 0: not known, and then said elsewhere. */
static int64_t sweep_worker_bytes(struct sweep *w)
{
    struct kvl_runner r = { .work = w->work, .state = &w->state };
    struct kvl_memory m;
    if (kvl_memory_plan(&r, w->s.kv_type, &m, NULL) != KVL_OK) return 0;
    return kvl_memory_all(&m) - (int64_t)m.footprint.weight_bytes;
}

/* For so many contexts that are left to answer. */
static struct kvl_jobs sweep_jobs(struct sweep *w, int32_t n_contexts)
{
    struct kvl_jobs_ask ask = { .asked = w->a->jobs,
                                .threads = kvl_ops_threads(),
                                .n_contexts = n_contexts,
                                .weight_bytes = (int64_t)kvl_model_token_bytes(w->model),
                                .kv_bytes = sweep_worker_bytes(w),
                                .free_bytes = kvl_memory_free_bytes(),
                                .n_gpus = w->has_gpu ? w->s.gpus.n : 0,
                                .plugin = sweep_has_plugin(w->work),
                                .limit = w->a->cell_limit || w->a->cell_memory_bytes };
    if (w->has_gpu) { /* each has the weights, too */
        ask.kv_bytes += (int64_t)kvl_model_bytes(w->model);
        ask.free_bytes = (int64_t)w->gpu.memory.free_bytes;
    }
    struct kvl_jobs jobs = kvl_jobs_choose(&ask);
    if (jobs.left_out)
        fprintf(stderr,
                "kvlab: %d workers of %.1f GiB of %skeys, values and tables each, %.1f GiB of "
                "memory are free: "
                "%d workers\n",
                jobs.n + jobs.left_out, (double)ask.kv_bytes / 0x1p30,
                w->has_gpu ? "weights, " : "", (double)ask.free_bytes / 0x1p30, jobs.n);
    return jobs;
}

/* Above the cells of --dry-run. */
static void sweep_print_jobs(const struct sweep *w, const struct kvl_jobs *jobs)
{
    if (!jobs->apart) return;
    printf("%d worker%s with %d thread%s each", jobs->n, jobs->n > 1 ? "s" : "", jobs->threads,
           jobs->threads > 1 ? "s" : "");
    if (w->s.kv_limit_mib) printf(", each with a kv_limit_mib of %d", w->s.kv_limit_mib);
    putchar('\n');
}

static struct kvl_run_info sweep_info(const struct sweep *w)
{
    return (struct kvl_run_info){ .argc = w->a->argc,
                                  .argv = w->a->argv,
                                  .work = w->work,
                                  .machine = &w->machine,
                                  .threads = kvl_ops_threads(),
                                  .chunk_tok = w->s.chunk_tok,
                                  .gpu = w->has_gpu ? &w->gpu : NULL };
}

/* Where rates come from: `n_log` of them were in the log. */
static const char *sweep_rates_from(const struct kvl_rates *rates, size_t n_log, bool known,
                                    bool whole)
{
    if (known) return "the answers in the log";
    if (whole) return "a context of each task";
    return rates->n > n_log ? "contexts of some tasks"
                            : "the answers in the log, which lacks some policies";
}

/* At the rates that the log has, or else such as are taken now.  A plug-in might take this process along. */
static int sweep_print_time(struct sweep *w, const struct kvl_runner *r)
{
    struct kvl_rates rates = { 0 };
    struct kvl_err why = { 0 };
    bool plugin = sweep_has_plugin(w->work), whole = false;
    int rc = kvl_rates_read(&rates, r, w->err);
    if (rc != KVL_OK) {
        kvl_rates_free(&rates);
        return rc;
    }
    bool known = kvl_rates_know(&rates, r);
    size_t n_log = rates.n;
    if (!known && !plugin && !w->a->quiet) {
        fprintf(stderr,
                "kvlab: the log has no answers of all policies yet: one context of each task "
                "is run for its times, %d s at most\n",
                KVL_CALIBRATE_S);
        rc = kvl_calibrate(r, &rates, &whole, &why);
    }
    if (rc == KVL_ESTOP)
        kvl_fail(w->err, rc, "%s", why.msg);
    else if (rates.n > 0)
        kvl_forecast_print_time(&rates, r, sweep_rates_from(&rates, n_log, known, whole));
    else
        printf("time: unknown, %s\n",
               plugin        ? "the log has no answers yet and plug-ins are not tried here"
               : w->a->quiet ? "the log has no answers yet and --quiet runs none"
               : why.msg[0]  ? why.msg
                             : "no answer could be timed so soon");
    if (rc != KVL_OK && rc != KVL_ESTOP && rates.n > 0) fprintf(stderr, "kvlab: %s\n", why.msg);
    kvl_rates_free(&rates);
    return rc == KVL_ESTOP ? rc : KVL_OK;
}

/* What the log has is only read: no lock, no folder. */
static int sweep_dry_run(struct sweep *w)
{
    const struct kvl_run_info info = sweep_info(w);
    struct kvl_runner r = {
        .work = w->work, .state = &w->state, .info = &info, .stop = kvl_stop_flag()
    };
    struct kvl_forecast forecast;
    struct sweep_room room = sweep_room(w);
    KVL_TRY(sweep_state(w));
    if (access(w->log_path.data, F_OK) == 0)
        KVL_TRY(kvl_log_read(w->log_path.data, kvl_state_read, &w->state, NULL, w->err));
    r.jobs = sweep_jobs(w, INT32_MAX);
    KVL_TRY(kvl_forecast(&r, &forecast, w->err));
    sweep_print_jobs(w, &r.jobs);
    kvl_work_print(w->work, forecast.left, w->a->cells);
    kvl_forecast_print(&forecast, &r, w->log_path.data, room.free_bytes, room.what);
    bool left = forecast.n_left > 0;
    kvl_forecast_free(&forecast);
    if (!left) return KVL_OK;
    r.allow_overlong = w->a->model.allow_overlong;
    fflush(stdout);
    kvl_stop_install();
    return sweep_print_time(w, &r);
}

/* libgomp's threads do not survive a fork: once there are any, workers would wait for them for ever. */
static struct kvl_jobs sweep_jobs_alone(struct kvl_jobs jobs)
{
    if (!jobs.apart || kvl_machine_threads() <= 1) return jobs;
    fprintf(stderr, "kvlab: something (a plug-in?) has started threads: no workers, as --jobs 1\n");
    return (struct kvl_jobs){ .n = 1, .threads = kvl_ops_threads() };
}

static int sweep_run(struct sweep *w)
{
    struct kvl_store_desc store = { .type = w->s.kv_type,
                                    .block_tok = 16,
                                    .raw_keys = w->work->raw_keys };
    struct kvl_run_info info = sweep_info(w);
    info.store = &store;
    struct kvl_runner r = {
        .work = w->work, .state = &w->state, .log = w->log, .info = &info, .stop = kvl_stop_flag()
    };
    r.allow_overlong = w->a->model.allow_overlong;
    r.progress.quiet = w->a->quiet;
    r.snapshots = w->snapshots;
    r.jobs = sweep_jobs_alone(sweep_jobs(w, kvl_runner_n_contexts(&r)));
    info.jobs = r.jobs;
    info.amount = kvl_forecast_amount(&r);
    int rc = kvl_runner_open(&r, w->err);
    if (rc == KVL_OK && r.engine) info.store = kvl_store_desc(kvl_engine_store(r.engine));
    if (rc == KVL_OK) rc = kvl_runner_run(&r, w->err);
    kvl_runner_close(&r);
    int closed = kvl_log_close(w->log, rc == KVL_OK ? w->err : NULL);
    w->log = NULL;
    if (rc == KVL_OK) rc = closed;
    return rc == KVL_OK ? sweep_finish(w, &r) : rc;
}

/* A sweep that every policy refuses has nothing to run: an error, not an empty table. */
static int sweep_check_refused(const struct sweep *w)
{
    for (size_t i = 0; i < w->work->n_cells; i++)
        if (w->work->cell[i].planned) return KVL_OK;
    const struct kvl_err *why = w->work->cell[0].refused;
    return kvl_fail(w->err, why->code, "every cell is refused: %s", why->msg);
}

/* The sweep of one model. */
static int sweep_model(struct sweep *w)
{
    struct kvl_sweep_args *a = w->a;
    KVL_TRY(sweep_plan(w));
    KVL_TRY(sweep_plan_file(w));
    if (a->dry_run) return sweep_dry_run(w);
    KVL_TRY(sweep_check_refused(w));
    KVL_TRY(kvl_snapshots_open(&w->snapshots, a->snapshots, w->err));
    w->snapshots.limit_bytes = a->snapshots_limit;
    kvl_stop_install();
    KVL_TRY(sweep_state(w));
    KVL_TRY(sweep_open_log(w));
    KVL_TRY(sweep_check_memory(w));
    return sweep_run(w);
}

/* In a process of its own. */
static int sweep_of(void *user, const struct kvl_sweep_part *part, struct kvl_sweep_done *done,
                    struct kvl_err *err)
{
    struct sweep *w = user;
    char *model = strdup(part->model);
    if (!model) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    const struct kvl_sweep_part_name name = kvl_sweep_part_name(&w->s, part);
    free(w->s.model);
    w->s.model = model;
    w->s.kv_type = part->kv_type;
    w->no_table = !part->last_type;
    w->err = err;
    w->done = done;
    if (w->a->dry_run || (w->no_table && !w->a->quiet)) printf("%s\n", name.text);
    int rc = sweep_model(w);
    (void)kvl_log_close(w->log, NULL);
    return rc;
}

static int sweep_models(struct sweep *w)
{
    size_t failed;
    struct kvl_buf path = { 0 };
    struct kvl_shard shard;
    KVL_TRY(kvl_shard_parse(w->a->shard, &shard, w->err));
    if (sweep_log_path(&w->s, w->a, shard, &path) != KVL_OK)
        return kvl_fail(w->err, KVL_ENOMEM, "out of memory for the log's path");
    struct kvl_sweep_models m = {
        .sweep = &w->s, .log = w->a->dry_run ? NULL : path.data, .run = sweep_of, .user = w
    };
    struct kvl_sweep_done sum;
    int rc = kvl_sweep_models(&m, &sum, &failed, w->err);
    if (rc == KVL_OK && !w->a->quiet && !w->a->dry_run)
        printf("\n%zu %s, %zu failed; every table: kvlab report %s\n", kvl_sweep_n_parts(&w->s),
               !w->s.kv_types.n ? "models"
               : w->s.models.n  ? "models and types of keys and values"
                                : "types of keys and values",
               failed, path.data);
    kvl_buf_free(&path);
    return rc == KVL_OK ? sweep_strict(w, &sum, failed) : rc;
}

static int sweep_all(struct sweep *w, const char *file, const char *name)
{
    struct kvl_sweep_args *a = w->a;
    struct kvl_sweep_done done = { 0 };
    KVL_TRY(kvl_sweep_flags(a));
    KVL_TRY(
        kvl_sweep_load(file, name, a->model.registry, a->override, a->n_overrides, &w->s, w->err));
    w->s.cell_limit_s = a->cell_limit ? a->cell_limit_s : KVL_CELL_LIMIT_S;
    w->s.cell_memory_bytes = a->cell_memory_bytes;
    if (kvl_sweep_n_parts(&w->s) > 1) return sweep_models(w);
    w->done = &done;
    KVL_TRY(sweep_model(w));
    return sweep_strict(w, &done, 0);
}

int kvl_sweep_command(struct kvl_sweep_args *a, const char *file, const char *name,
                      struct kvl_err *err)
{
    struct sweep w = { .a = a, .err = err };
    kvl_stop_goes_on();
    int rc = sweep_all(&w, file, name);
    (void)kvl_log_close(w.log, NULL);
    kvl_state_free(&w.state);
    kvl_work_destroy(w.work);
    kvl_model_close(w.model);
    kvl_sweep_free(&w.s);
    kvl_buf_free(&w.log_path);
    return rc;
}
