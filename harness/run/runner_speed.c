/* Speed cells: each alone, from a fork of one prefill, a fixed number of steps. */
#include "runner_context.h"

#include "crash_line.h"
#include "kv_held.h"

#include <math.h>
#include <stdio.h>

struct speed {
    struct kvl_runner *r;
    const struct kvl_group *g;
    struct kvl_sample sample;
    struct kvl_session *session; /* the context but its last token; NULL where no cell shares it */
    double prefill_ns;           /* NaN: it came from a snapshot */
    uint64_t *step_ns;           /* [steps] */
    struct kvl_err *err;
};

static int speed_prefill(struct speed *s)
{
    struct kvl_runner *r = s->r;
    KVL_TRY(kvl_context_generate(r->work, s->g, 0, &s->sample, s->err));
    s->step_ns = kvl_alloc((size_t)r->work->sweep->speed.steps, sizeof *s->step_ns);
    if (!s->step_ns) return kvl_fail(s->err, KVL_ENOMEM, "out of memory for times");
    if (!kvl_state_shares(r->state, s->g, 0)) return KVL_OK;
    KVL_TRY(kvl_prefill(r->engine, &r->snapshots, s->sample.tokens.id, s->sample.tokens.n - 1,
                        &s->session, &s->prefill_ns, s->err));
    kvl_progress_spent(&r->progress);
    r->timing = s->g;
    r->stats.speed_prefills += !isnan(s->prefill_ns);
    return KVL_OK;
}

/* One step from *id to the next token; an end token is a token like any other. */
static int speed_step(struct speed *s, struct kvl_session *session, int32_t *id, uint64_t *ns,
                      struct kvl_err *err)
{
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_decode(&session, 1, id, s->r->room.logits, err));
    *id = kvl_argmax(s->r->room.logits, kvl_model_shape(s->r->work->model)->n_vocab);
    *ns = kvl_now_ns() - t0;
    return KVL_OK;
}

/* What the steps moved since `before`. */
static void speed_traffic(const struct kvl_device *dev, const struct kvl_device_traffic *before,
                          struct kvl_timing *t)
{
    struct kvl_device_traffic *d = &t->traffic;
    t->gpu = dev->discrete;
    dev->traffic(d);
    dev->memory(&t->memory);
    d->h2d_bytes -= before->h2d_bytes;
    d->h2d_calls -= before->h2d_calls;
    d->d2h_bytes -= before->d2h_bytes;
    d->d2h_calls -= before->d2h_calls;
    d->d2d_bytes -= before->d2d_bytes;
    d->d2d_calls -= before->d2d_calls;
    d->n_launches -= before->n_launches;
    d->n_syncs -= before->n_syncs;
    d->n_graphs -= before->n_graphs;
}

static int speed_steps(struct speed *s, struct kvl_session *session, struct kvl_timing *t,
                       struct kvl_err *err)
{
    const struct kvl_speed *speed = &s->r->work->sweep->speed;
    int32_t id = s->sample.tokens.id[s->sample.tokens.n - 1];
    uint64_t ns;
    for (int32_t i = 0; i < speed->warmup; i++) {
        KVL_TRY(speed_step(s, session, &id, &ns, err));
        if (i == 0) t->first_ns = ns;
    }
    kvl_session_reset_counters(session);
    struct kvl_device_traffic before;
    const struct kvl_device *dev = kvl_engine_device(s->r->engine);
    dev->traffic(&before);
    for (int32_t i = 0; i < speed->steps; i++)
        KVL_TRY(speed_step(s, session, &id, &s->step_ns[i], err));
    speed_traffic(dev, &before, t);
    if (speed->warmup == 0) t->first_ns = s->step_ns[0];
    return KVL_OK;
}

/* The context under the cell's policy, up to its last token. */
static int speed_session(struct speed *s, const struct kvl_cell *cell, struct kvl_timing *t,
                         struct kvl_session **out, struct kvl_err *err)
{
    const struct kvl_tokens *tokens = &s->sample.tokens;
    struct kvl_session *session;
    uint64_t seed = kvl_context_seed(s->r->work->sweep, s->g->task, s->g->length, s->g->depth, 0);
    if (kvl_planned_own_prefill(cell->planned))
        return kvl_runner_stream(s->r, cell, seed, tokens->id, tokens->n - 1, out, &t->prefill_ns,
                                 err);
    KVL_TRY(kvl_session_fork(s->session, &session, err));
    int rc = kvl_session_attach(session, cell->planned, seed, KVL_EXEC_REAL, err);
    t->attach_ns = kvl_session_counters(session)->attach_ns;
    t->replay_ns = kvl_session_counters(session)->replay_ns;
    t->prefill_ns = s->prefill_ns;
    if (rc == KVL_OK)
        *out = session;
    else
        kvl_session_destroy(session);
    return rc;
}

static int speed_measure(struct speed *s, const struct kvl_cell *cell, struct kvl_timing *t,
                         struct kvl_err *err)
{
    struct kvl_session *session;
    KVL_TRY(speed_session(s, cell, t, &session, err));
    int64_t shared = kvl_runner_shared_blocks(session);
    int rc = speed_steps(s, session, t, err);
    if (rc == KVL_OK)
        rc = kvl_kv_held(session, kvl_store_desc(kvl_engine_store(s->r->engine)), err);
    if (rc == KVL_OK) {
        t->count = *kvl_session_counters(session);
        kvl_kv_measure(session, &s->r->units, kvl_planned_raw_keys(cell->planned), shared,
                       &t->bytes);
        rc = kvl_method_take(session, &t->method, err);
    }
    kvl_session_destroy(session);
    return rc;
}

static int speed_cell(struct speed *s, size_t index)
{
    struct kvl_runner *r = s->r;
    const struct kvl_sweep *sweep = r->work->sweep;
    const struct kvl_cell *cell = &r->work->cell[index];
    struct kvl_timing t = {
        .step_ns = s->step_ns,
        .n_steps = sweep->speed.steps,
        .threads = r->info->threads,
        .host = r->info->machine->host,
        .weight_bytes_per_tok = (int64_t)kvl_model_token_bytes(r->work->model),
    };
    struct kvl_err why = { 0 };
    kvl_guard_policy(cell->policy->policy->name);
    int rc = speed_measure(s, cell, &t, &why);
    if (rc != KVL_EDEVICE) kvl_guard_policy(NULL); /* the sweep is to know who ran */
    if (kvl_runner_ends(rc)) return kvl_fail(s->err, rc, "%s", why.msg);
    if (rc != KVL_OK) return kvl_runner_cell_error(r, index, 0, &why, s->err);
    json_t *record = kvl_record_speed(kvl_log_run(r->log), cell, sweep, &t);
    kvl_method_free(&t.method);
    json_incref(record);
    rc = kvl_runner_append(r, record, s->err);
    bool repeated;
    if (rc == KVL_OK) rc = kvl_state_add(r->state, record, &repeated, s->err);
    json_decref(record);
    KVL_TRY(rc);
    kvl_progress_spent(&r->progress);
    r->progress.n_done++;
    r->stats.n_speed++;
    return KVL_OK;
}

static int speed_cells(struct speed *s)
{
    for (size_t i = s->g->first; i < s->g->first + s->g->n; i++) {
        if (!kvl_state_wants(s->r->state, 0, i)) continue;
        KVL_TRY(kvl_runner_next(s->r, i, s->err));
        KVL_TRY(speed_cell(s, i));
        KVL_TRY(kvl_log_commit(s->r->log, s->err));
    }
    return KVL_OK;
}

int kvl_runner_speed(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    if (!kvl_state_wants_any(r->state, g, 0)) return KVL_OK;
    struct speed s = { .r = r, .g = g, .err = err };
    int rc = speed_prefill(&s);
    if (rc == KVL_OK)
        rc = speed_cells(&s);
    else if (!kvl_runner_ends(rc))
        rc = kvl_runner_group_failed(r, g, 0, err);
    r->timing = NULL;
    kvl_session_destroy(s.session);
    kvl_sample_free(&s.sample);
    kvl_free(s.step_ns);
    return rc;
}
