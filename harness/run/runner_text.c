/* Texts: one prefill as far as the mode says, then the rest token by token or chunk by chunk under each
 * policy and budget, with the text's own tokens whatever the model would say.
 *
 * A token is scored when its logits came from a step under the policy.  That is the same set for all
 * policies of a group: everything behind the first token that was not prefilled. */
#include "runner_context.h"

#include "guard.h"
#include "record_text.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>

struct text {
    struct kvl_runner *r;
    const struct kvl_group *g;
    const struct kvl_reading *how;
    int32_t index;
    uint64_t seed;
    struct kvl_sample sample;
    const int32_t *id;           /* [n], of the sample */
    int32_t n, before;           /* tokens; those read before the policy starts */
    struct kvl_session *session; /* the first `before` tokens, dense */
    double prefill_ns;           /* NaN: it came from a snapshot */
    float *logits;               /* [at a time][n_vocab] */
    double *nll;                 /* [n - before - 1] */
    struct kvl_err *err;
};

/* ---- the text -------------------------------------------------------------------------------- */

static int text_memory(struct text *t)
{
    size_t n_vocab = (size_t)kvl_model_shape(t->r->work->model)->n_vocab;
    int32_t rows = t->how->mode == KVL_READ_CHUNK ? t->how->chunk : 1;
    t->nll = kvl_alloc((size_t)(t->n - t->before - 1), sizeof *t->nll);
    t->logits = kvl_alloc((size_t)KVL_MIN(rows, t->n), n_vocab * sizeof *t->logits);
    if (t->nll && t->logits) return KVL_OK;
    return kvl_fail(t->err, KVL_ENOMEM, "out of memory for the logits of %d tokens", rows);
}

static int text_open(struct text *t)
{
    struct kvl_runner *r = t->r;
    KVL_TRY(kvl_context_generate(r->work, t->g, t->index, &t->sample, t->err));
    t->id = t->sample.tokens.id;
    t->n = t->sample.tokens.n;
    t->before = kvl_reading_before(t->how, t->n);
    KVL_TRY(text_memory(t));
    double cost = kvl_group_context_cost(r->work, t->g);
    if (!kvl_state_shares(r->state, t->g, t->index)) {
        kvl_progress_skip(&r->progress, KVL_WORK_PREFILL, cost);
        return KVL_OK;
    }
    KVL_TRY(kvl_prefill(r->engine, &r->snapshots, t->id, t->before, &t->session, &t->prefill_ns,
                        t->err));
    kvl_progress_did(&r->progress, KVL_WORK_PREFILL, cost);
    if (isnan(t->prefill_ns)) return KVL_OK;
    r->stats.context_prefills++;
    r->stats.context_prefill_tok += t->before;
    return KVL_OK;
}

static void text_close(struct text *t)
{
    kvl_session_destroy(t->session);
    kvl_sample_free(&t->sample);
    kvl_free(t->logits);
    kvl_free(t->nll);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Runs the tokens at .. at + n - 1 and scores those that follow each of them. */
static int text_step(struct text *t, struct kvl_session *s, int32_t at, int32_t n,
                     struct kvl_err *err)
{
    int32_t n_vocab = kvl_model_shape(t->r->work->model)->n_vocab;
    if (t->how->mode == KVL_READ_CHUNK)
        KVL_TRY(kvl_session_extend_logits(s, t->id + at, n, t->logits, err));
    else
        KVL_TRY(kvl_session_decode(&s, 1, t->id + at, t->logits, err));
    for (int32_t i = 0; i < n; i++) {
        const float *row = t->logits + (size_t)i * (size_t)n_vocab;
        double nll = kvl_nll(row, n_vocab, t->id[at + i + 1]);
        if (!isfinite(nll))
            return kvl_fail(err, KVL_ENUMERIC, "the logits after token %d are not finite", at + i);
        t->nll[at + i - t->before] = nll;
    }
    return KVL_OK;
}

static int text_read(struct text *t, struct kvl_session *s, struct kvl_err *err)
{
    int32_t most = t->how->mode == KVL_READ_CHUNK ? t->how->chunk : 1, n;
    for (int32_t at = t->before; at < t->n - 1; at += n) {
        n = KVL_MIN(most, t->n - 1 - at);
        KVL_TRY(text_step(t, s, at, n, err));
    }
    return KVL_OK;
}

/* A fork of the shared prefill under the cell's policy. */
static int text_fork(struct text *t, const struct kvl_cell *cell, struct kvl_session **out,
                     struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(kvl_session_fork(t->session, &s, err));
    int rc = kvl_session_attach(s, cell->planned, t->seed, KVL_EXEC_REAL, err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

static int text_cell(struct text *t, const struct kvl_cell *cell, struct kvl_text_result *out,
                     struct kvl_err *err)
{
    struct kvl_session *s;
    uint64_t t0 = kvl_now_ns();
    out->observed.prefill_ns = t->prefill_ns;
    if (kvl_planned_own_prefill(cell->planned))
        KVL_TRY(kvl_runner_stream(t->r, cell, t->seed, t->id, t->before, &s,
                                  &out->observed.prefill_ns, err));
    else
        KVL_TRY(text_fork(t, cell, &s, err));
    int64_t shared = kvl_runner_shared_blocks(s);
    int rc = text_read(t, s, err);
    if (rc == KVL_OK) kvl_runner_observe(t->r, cell, s, shared, &out->observed);
    out->observed.wall_ns = (double)(kvl_now_ns() - t0);
    if (rc == KVL_OK) rc = kvl_method_take(s, &out->observed.method, err);
    kvl_session_destroy(s);
    return rc;
}

/* ---- records --------------------------------------------------------------------------------- */

/* A policy that fails is the text's result; a stop is the caller's. */
static int text_record(struct text *t, size_t index)
{
    struct kvl_runner *r = t->r;
    struct kvl_err why = { 0 };
    struct kvl_text_result out = { .cell = &r->work->cell[index],
                                   .context = t->index,
                                   .seed = t->seed,
                                   .text_tok = t->n,
                                   .first_tok = t->before + 1,
                                   .n_tok = t->n - t->before - 1,
                                   .nll = t->nll,
                                   .observed = kvl_outcome_none() };
    kvl_guard_policy(out.cell->policy->policy->name);
    int rc = text_cell(t, out.cell, &out, &why);
    if (rc != KVL_EDEVICE) kvl_guard_policy(NULL); /* the sweep is to know who ran */
    if (kvl_runner_ends(rc)) return kvl_fail(t->err, rc, "%s", why.msg);
    if (rc != KVL_OK) out.error = why.msg[0] ? why.msg : kvl_status_name(rc);
    json_t *record = kvl_record_nll(kvl_log_run(r->log), &out);
    json_incref(record);
    rc = kvl_runner_append(r, record, t->err);
    if (rc == KVL_OK) rc = kvl_state_text(r->state, record, t->err);
    json_decref(record);
    kvl_progress_spent(&r->progress);
    kvl_outcome_free(&out.observed);
    r->stats.n_samples += rc == KVL_OK;
    r->progress.n_answers += rc == KVL_OK;
    r->stats.n_errors += rc == KVL_OK && out.error;
    r->progress.n_errors += rc == KVL_OK && out.error;
    kvl_progress_did(&r->progress, KVL_WORK_ANSWER, kvl_cell_context_cost(r->work, out.cell));
    return rc;
}

static int text_cells(struct text *t)
{
    struct kvl_runner *r = t->r;
    for (size_t i = t->g->first; i < t->g->first + t->g->n; i++) {
        if (!kvl_state_wants(r->state, t->index, i)) continue;
        KVL_TRY(kvl_runner_next(r, i, t->err));
        KVL_TRY(text_record(t, i));
    }
    return kvl_log_commit(r->log, t->err);
}

int kvl_runner_text(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                    struct kvl_err *err)
{
    if (!kvl_state_wants_any(r->state, g, context)) return KVL_OK;
    struct text t = {
        .r = r, .g = g, .how = kvl_point_reading(g->task), .index = context, .err = err
    };
    t.seed = kvl_context_seed(r->work->sweep, g->task, g->length, g->depth, context);
    int rc = text_open(&t);
    if (rc == KVL_OK)
        rc = text_cells(&t);
    else if (!kvl_runner_ends(rc))
        rc = kvl_runner_group_failed(r, g, context, err);
    text_close(&t);
    return rc;
}
