/* What all parts of a run share: the engine, the progress line, sessions. */
#include "runner.h"

#include "args.h"
#include "rates.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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
        KVL_TRY(r->tell(r->worker, what, err));
    else
        KVL_TRY(kvl_runner_show(r, what, (double)(kvl_now_ns() - r->progress.t_spent), err));
    return kvl_runner_check_stop(r, err);
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

static int runner_reference(struct kvl_runner *r, struct kvl_engine_desc desc, struct kvl_err *err)
{
    if (!kvl_work_compares(r->work)) return KVL_OK;
    desc.kv_type = kvl_kv_reference(desc.kv_type);
    KVL_TRY(kvl_engine_create(&desc, &r->reference, err));
    kvl_engine_set_stop(r->reference, r->stop);
    return KVL_OK;
}

int kvl_runner_engine(struct kvl_runner *r, struct kvl_err *err)
{
    const struct kvl_sweep *s = r->work->sweep;
    struct kvl_engine_desc desc = kvl_sweep_engine(s);
    desc.model = r->work->model;
    desc.raw_keys = r->work->raw_keys;
    desc.allow_overlong = r->allow_overlong;
    KVL_TRY(kvl_device_open_gpu(s->device, s->gpus.first + r->gpu, &desc.device, err));
    KVL_TRY(kvl_engine_create(&desc, &r->engine, err));
    kvl_engine_set_stop(r->engine, r->stop);
    kvl_progress_watch(&r->progress, r->engine);
    KVL_TRY(runner_reference(r, desc, err));
    KVL_TRY(kvl_ask_room_create(kvl_model_shape(r->work->model)->n_vocab, &r->room, err));
    r->room.stepped = kvl_progress_step;
    r->room.user = &r->progress;
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
    kvl_engine_destroy(r->reference);
    kvl_engine_destroy(r->engine);
    kvl_ask_room_free(&r->room);
    r->engine = r->reference = NULL;
}
