/* The order of a sweep, its commits and its records. */
#include "runner.h"

#include "args.h"
#include "rates.h"
#include "record_text.h"
#include "stats.h"
#include "worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what the parts share -------------------------------------------------------------------- */

int kvl_runner_check_stop(const struct kvl_runner *r, struct kvl_err *err)
{
    if (!*r->stop) return KVL_OK;
    return kvl_fail(err, KVL_ESTOP, "stopped by signal %d; start the same command again to go on",
                    *r->stop);
}

/* What rates promise is corrected by what the answers of this run took beside: making contexts, records,
 * the load of the machine. */
static int runner_left(struct kvl_runner *r, double flight_ns, struct kvl_err *err)
{
    struct kvl_progress *p = &r->progress;
    struct kvl_rates rates = { 0 };
    int rc = kvl_rates_read(&rates, r, err);
    if (rc == KVL_OK) {
        struct kvl_rates_left left = kvl_rates_left(&rates, r);
        double did = rates.ns - p->had_ns, factor = 1.0;
        if (did > 0.0 && p->spent_ns > 1e9) factor = fmin(fmax(p->spent_ns / did, 0.8), 5.0);
        double all = rates.ns + left.ns + left.timed_ns;
        double *now = left.ns > 0.0 ? &left.ns : &left.timed_ns;
        *now = fmax(*now - flight_ns / factor, 0.0);
        p->left_s = 1e-9 * (factor * left.ns / KVL_MAX(r->jobs.n, 1) + left.timed_ns);
        p->t_known = kvl_now_ns();
        p->part = rates.n > 0 && all > 0.0 ? 1.0 - (left.ns + left.timed_ns) / all : 0.0;
    }
    kvl_rates_free(&rates);
    return rc;
}

/* With many cells it is work to see what is left: so long between two times at least, in ns and in
 * times of what the first one took. */
enum { RUNNER_LEFT_NS = 1000000000, RUNNER_LEFT_TIMES = 20 };

int kvl_runner_show(struct kvl_runner *r, const char *what, double flight_ns, struct kvl_err *err)
{
    uint64_t now = kvl_now_ns();
    if (!kvl_progress_due(&r->progress)) return KVL_OK;
    if (now >= r->t_left) {
        KVL_TRY(runner_left(r, flight_ns, err));
        uint64_t end = kvl_now_ns(), took = RUNNER_LEFT_TIMES * (end - now);
        r->t_left = end + KVL_MAX(took, (uint64_t)RUNNER_LEFT_NS);
    }
    kvl_progress_show(&r->progress, what);
    return KVL_OK;
}

int kvl_runner_next(struct kvl_runner *r, size_t cell, struct kvl_err *err)
{
    const struct kvl_cell *c = &r->work->cell[cell];
    char what[96];
    snprintf(what, sizeof what, "%s %d %s", c->speed ? "speed" : c->task->task->name, c->length,
             c->policy->policy->name);
    kvl_progress_name(&r->progress, what);
    if (r->worker)
        KVL_TRY(kvl_worker_tell(r->worker, what, err));
    else
        KVL_TRY(kvl_runner_show(r, what, (double)(kvl_now_ns() - r->progress.t_spent), err));
    return kvl_runner_check_stop(r, err);
}

static int runner_append(struct kvl_runner *r, json_t *record, struct kvl_err *err)
{
    if (!record) return kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
    int rc = kvl_log_append(r->log, record, err);
    json_decref(record);
    return rc;
}

static int runner_announce(struct kvl_runner *r, struct kvl_err *err)
{
    if (r->announced) return KVL_OK;
    KVL_TRY(runner_append(r, kvl_record_run(kvl_log_run(r->log), r->info), err));
    r->announced = true;
    return KVL_OK;
}

int kvl_runner_append(struct kvl_runner *r, json_t *record, struct kvl_err *err)
{
    int rc = runner_announce(r, err);
    if (rc == KVL_OK) return runner_append(r, record, err);
    json_decref(record);
    return rc;
}

/* Who reads the log later sees which of its cells are of other code by the code of its newest run: what is
 * kept is marked even where this run adds nothing. */
static int runner_mark_kept(struct kvl_runner *r, struct kvl_err *err)
{
    if (kvl_state_n_kept(r->state) == 0) return KVL_OK;
    json_t *code = kvl_record_sources(r->work->sweep);
    bool known = code && json_equal(code, r->state->newest_sources);
    json_decref(code);
    return known ? KVL_OK : runner_announce(r, err);
}

/* A shard that gets nothing says so, or it would seem not to have run. */
static int runner_mark_empty(struct kvl_runner *r, struct kvl_err *err)
{
    const struct kvl_work *w = r->work;
    bool empty = w->shard.count > 1 && !r->state->newest_sources;
    for (size_t i = 0; i < w->n_groups; i++) empty = empty && !w->group[i].mine;
    return empty ? runner_announce(r, err) : KVL_OK;
}

int kvl_runner_cell_error(struct kvl_runner *r, size_t cell, int32_t context,
                          const struct kvl_err *why, struct kvl_err *err)
{
    const char *run = kvl_log_run(r->log);
    r->state->cell[cell].failed = true;
    r->stats.n_errors++;
    r->progress.n_errors++;
    r->progress.n_done++;
    return kvl_runner_append(r,
                             kvl_record_error(run, &r->work->cell[cell], context, -1, why->code,
                                              why->msg[0] ? why->msg : kvl_status_name(why->code)),
                             err);
}

int kvl_runner_stream(struct kvl_runner *r, const struct kvl_cell *cell, uint64_t seed,
                      const int32_t *id, int32_t n, struct kvl_session **out, double *ns,
                      struct kvl_err *err)
{
    struct kvl_session *s;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_create(r->engine, &s, err));
    int rc = kvl_session_attach(s, cell->planned, seed, KVL_EXEC_REAL, err);
    if (rc == KVL_OK && n > 0) rc = kvl_session_prefill(s, id, n, NULL, false, err);
    *ns = (double)(kvl_now_ns() - t0);
    if (rc != KVL_OK) {
        kvl_session_destroy(s);
        return rc;
    }
    kvl_session_reset_counters(s);
    r->stats.own_prefills++;
    *out = s;
    return KVL_OK;
}

bool kvl_runner_wants_any(const struct kvl_runner *r, const struct kvl_group *g, int32_t context)
{
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_runner_wants(r, context, i)) return true;
    return false;
}

int kvl_runner_group_failed(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                            struct kvl_err *err)
{
    struct kvl_err why = *err;
    kvl_err_clear(err);
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_runner_wants(r, context, i))
            KVL_TRY(kvl_runner_cell_error(r, i, context, &why, err));
    return kvl_log_commit(r->log, err);
}

bool kvl_runner_shares(const struct kvl_runner *r, const struct kvl_group *g, int32_t context)
{
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_runner_wants(r, context, i) &&
            (r->state->cell[i].quality || !kvl_planned_own_prefill(r->work->cell[i].planned)))
            return true;
    return false;
}

int64_t kvl_runner_shared_blocks(const struct kvl_session *s)
{
    struct kvl_seq_stats stats;
    kvl_seq_stats(kvl_session_seq(s), &stats);
    return stats.n_shared;
}

void kvl_runner_observe(const struct kvl_runner *r, const struct kvl_cell *cell,
                        const struct kvl_session *s, int64_t shared_blocks, struct kvl_outcome *o)
{
    const struct kvl_counters *n = kvl_session_counters(s);
    struct kvl_kv_bytes bytes;
    kvl_kv_measure(s, &r->units, kvl_planned_raw_keys(cell->planned), shared_blocks, &bytes);
    kvl_outcome_observe(o, n, &bytes);
}

/* ---- open, close ----------------------------------------------------------------------------- */

int kvl_runner_engine(struct kvl_runner *r, struct kvl_err *err)
{
    const struct kvl_sweep *s = r->work->sweep;
    struct kvl_engine_desc desc = {
        .model = r->work->model,
        .kv_type = s->kv_type,
        .prefill_type = s->prefill_type,
        .prefill_kv_host = s->prefill_kv_host,
        .raw_keys = r->work->raw_keys,
        .chunk_tok = s->chunk_tok,
        .max_tok = s->max_tok,
        .kv_limit_bytes = (size_t)s->kv_limit_mib << 20,
        .allow_overlong = r->allow_overlong,
    };
    KVL_TRY(kvl_device_open_gpu(s->device, s->gpus.first + r->gpu, &desc.device, err));
    KVL_TRY(kvl_engine_create(&desc, &r->engine, err));
    kvl_engine_set_stop(r->engine, r->stop);
    kvl_progress_watch(&r->progress, r->engine);
    KVL_TRY(kvl_ask_room_create(kvl_model_shape(r->work->model)->n_vocab, &r->room, err));
    return kvl_kv_units(kvl_engine_store(r->engine), &r->units, err);
}

static bool runner_on_gpu(const struct kvl_runner *r)
{
    return kvl_device_is_gpu(r->work->sweep->device);
}

int kvl_runner_open(struct kvl_runner *r, struct kvl_err *err)
{
    return runner_on_gpu(r) && r->jobs.apart ? KVL_OK : kvl_runner_engine(r, err);
}

void kvl_runner_close(struct kvl_runner *r)
{
    kvl_engine_destroy(r->engine);
    kvl_ask_room_free(&r->room);
    r->engine = NULL;
}

/* ---- run ------------------------------------------------------------------------------------- */

/* Cells that their policy refuses: one error record each, once. */
static int runner_refused(struct kvl_runner *r, struct kvl_err *err)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        for (size_t c = g->first; g->mine && c < g->first + g->n; c++)
            if (!r->work->cell[c].planned && !r->state->cell[c].failed)
                KVL_TRY(kvl_runner_cell_error(r, c, -1, &r->work->cell[c].refused, err));
    }
    return kvl_log_commit(r->log, err);
}

/* Cells whose samples are all there without a record: cut off between two commits, or by a change of
 * what else the sweep holds. */
static int runner_aggregate(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    for (size_t c = g->first; c < g->first + g->n; c++) {
        struct kvl_progress_cell *p = &r->state->cell[c];
        if (p->done || p->failed || !kvl_state_complete(r->state, c)) continue;
        const struct kvl_cell *cell = &r->work->cell[c];
        const char *run = kvl_log_run(r->log);
        KVL_TRY(kvl_runner_append(
            r,
            p->text ? kvl_record_perplexity(run, cell, p->text)
                    : kvl_record_cell(run, r->work->sweep, cell, p->outcome, p->quality),
            err));
        p->done = true;
        r->progress.n_done++;
    }
    return KVL_OK;
}

int kvl_runner_finish(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    KVL_TRY(runner_aggregate(r, g, err));
    return kvl_log_commit(r->log, err);
}

int kvl_runner_answer(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                      struct kvl_err *err)
{
    char what[96];
    snprintf(what, sizeof what, "%s %d", g->speed ? "speed" : g->task->task->name, g->length);
    kvl_progress_name(&r->progress, what);
    KVL_TRY(kvl_engine_observe(r->engine, &g->observers, err));
    if (g->speed) return kvl_runner_speed(r, g, err);
    return kvl_point_reading(g->task) ? kvl_runner_text(r, g, context, err)
                                      : kvl_runner_context(r, g, context, err);
}

static int runner_group(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    for (int32_t context = 0; context < r->work->sweep->contexts; context++) {
        KVL_TRY(kvl_runner_check_stop(r, err));
        KVL_TRY(kvl_runner_answer(r, g, context, err));
        if (context + 1 < r->work->sweep->contexts) KVL_TRY(kvl_runner_so_far(r, g, false, err));
    }
    return kvl_runner_finish(r, g, err);
}

int32_t kvl_runner_n_contexts(const struct kvl_runner *r)
{
    int32_t n = 0;
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        for (int32_t c = 0; g->mine && !g->speed && c < r->work->sweep->contexts; c++)
            n += kvl_runner_wants_any(r, g, c);
    }
    return n;
}

/* Cells of this shard, and those that are done. */
static void runner_count(struct kvl_runner *r)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (!g->mine) continue;
        for (size_t c = g->first; c < g->first + g->n; c++)
            r->progress.n_done += r->state->cell[c].done || r->state->cell[c].failed;
        r->progress.n_cells += g->n;
    }
}

static int runner_groups(struct kvl_runner *r, struct kvl_err *err)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (g->mine && !g->speed) KVL_TRY(runner_group(r, g, err));
    }
    return KVL_OK;
}

static int runner_all(struct kvl_runner *r, struct kvl_err *err)
{
    KVL_TRY(runner_mark_kept(r, err));
    KVL_TRY(runner_mark_empty(r, err));
    KVL_TRY(runner_refused(r, err));
    KVL_TRY(r->jobs.apart ? kvl_runner_workers(r, false, err) : runner_groups(r, err));
    /* Times are taken when nothing else is left to do. */
    if (r->jobs.all_apart) return kvl_runner_workers(r, true, err);
    r->progress.t_spent = kvl_now_ns();
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (g->mine && g->speed) KVL_TRY(kvl_runner_answer(r, g, 0, err));
    }
    return KVL_OK;
}

/* Cut off: whole samples that wait for their commit are kept, and what there is can be looked at. */
static int runner_stopped(struct kvl_runner *r, struct kvl_err *err)
{
    KVL_TRY(kvl_log_commit(r->log, err));
    for (size_t i = 0; i < r->work->n_groups; i++)
        if (r->work->group[i].mine) KVL_TRY(kvl_runner_so_far(r, &r->work->group[i], true, err));
    return KVL_OK;
}

int kvl_runner_run(struct kvl_runner *r, struct kvl_err *err)
{
    r->t_begun = kvl_now_ns();
    r->t_so_far = r->t_begun + KVL_SO_FAR_NS;
    r->state->retry = false; /* what fails from here on is a result of this run */
    runner_count(r);
    struct kvl_rates had = { 0 };
    int rc = kvl_rates_read(&had, r, err);
    r->progress.had_ns = had.ns;
    kvl_rates_free(&had);
    kvl_progress_begin(&r->progress, r->progress.quiet);
    if (rc == KVL_OK) rc = runner_all(r, err);
    kvl_progress_end(&r->progress);
    if (rc != KVL_ESTOP) return rc;
    kvl_err_clear(err);
    KVL_TRY(runner_stopped(r, err));
    return kvl_runner_check_stop(r, err);
}
