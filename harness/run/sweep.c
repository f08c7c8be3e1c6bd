/* The order of a sweep: contexts, here or by workers, then what is timed. */
#include "sweep.h"

#include "commit.h"
#include "rates.h"
#include "worker.h"

/* Cells that their policy refuses: one error record each, once. */
static int sweep_refused(struct kvl_runner *r, struct kvl_err *err)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        for (size_t c = g->first; g->mine && c < g->first + g->n; c++)
            if (!r->work->cell[c].planned && !r->state->cell[c].failed)
                KVL_TRY(kvl_runner_cell_error(r, c, -1, r->work->cell[c].refused, err));
    }
    return kvl_log_commit(r->log, err);
}

static int sweep_group(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
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
            n += kvl_state_wants_any(r->state, g, c);
    }
    return n;
}

/* Cells of this shard, and those that are done. */
static void sweep_count(struct kvl_runner *r)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (!g->mine) continue;
        for (size_t c = g->first; c < g->first + g->n; c++)
            r->progress.n_done += r->state->cell[c].done || r->state->cell[c].failed;
        r->progress.n_cells += g->n;
    }
}

static int sweep_groups(struct kvl_runner *r, struct kvl_err *err)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (g->mine && !g->speed) KVL_TRY(sweep_group(r, g, err));
    }
    return KVL_OK;
}

static int sweep_all(struct kvl_runner *r, struct kvl_err *err)
{
    KVL_TRY(kvl_runner_mark(r, err));
    KVL_TRY(sweep_refused(r, err));
    KVL_TRY(r->jobs.apart ? kvl_runner_workers(r, false, err) : sweep_groups(r, err));
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
static int sweep_stopped(struct kvl_runner *r, struct kvl_err *err)
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
    sweep_count(r);
    struct kvl_rates had = { 0 };
    int rc = kvl_rates_read(&had, r, err);
    r->progress.had_ns = had.ns;
    kvl_rates_free(&had);
    kvl_progress_begin(&r->progress, r->progress.quiet);
    if (rc == KVL_OK) rc = sweep_all(r, err);
    kvl_progress_end(&r->progress);
    if (rc != KVL_ESTOP) return rc;
    kvl_err_clear(err);
    KVL_TRY(sweep_stopped(r, err));
    return kvl_runner_check_stop(r, err);
}
