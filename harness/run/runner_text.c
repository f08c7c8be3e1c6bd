/* Texts: one prefill as far as the mode says, then the rest token by token or chunk by chunk under each
 * policy and budget, with the text's own tokens whatever the model would say.
 *
 * A token is scored when its logits came from a step under the policy.  That is the same set for all
 * policies of a group: everything behind the first token that was not prefilled.
 *
 * Cells read side by side, with a session without a policy first, so that weights are read once for all and what the
 * policy makes of the next token can be compared with what full attention makes of it.  A batch holds as many cells as
 * memory lets it (as runner_cells.c); one that fails is read again cell by cell. */
#include "runner_context.h"

#include "crash_line.h"
#include "kv_held.h"
#include "record_text.h"
#include "stats.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TEXT_ROOM ((size_t)256 << 20)

/* A cell that reads the text. */
struct text_cell {
    size_t index;
    struct kvl_session *session;
    int64_t shared;   /* blocks: kvl_kv_measure */
    double *nll, *kl; /* [n_tok] */
    uint8_t *same;    /* [n_tok] */
    struct kvl_outcome observed;
    uint64_t wall_ns;
    struct kvl_err why; /* of a failure */
};

struct text {
    struct kvl_runner *r;
    const struct kvl_group *g;
    const struct kvl_reading *how;
    int32_t index;
    uint64_t seed;
    struct kvl_sample sample;
    const int32_t *id;        /* [n], of the sample */
    int32_t n, before, n_tok; /* tokens; those read before the policy starts; those scored */
    struct kvl_session
        *session; /* the first `before` tokens, dense; NULL: each cell reads them itself */
    struct kvl_session
        *reference;        /* the same in the runner's reference engine; NULL: it is `session` */
    double prefill_ns;     /* NaN: it came from a snapshot */
    int32_t rows, n_vocab; /* tokens at a time */
    float *dense, *logits; /* [rows][n_vocab], or [1 + most cells][n_vocab] token by token */
    struct text_cell cell[KVL_ASK_MAX];
    int32_t n_cells;
    struct kvl_err *err;
};

/* ---- the text -------------------------------------------------------------------------------- */

/* Token by token all sessions share one list of logits, the dense one first. */
static int text_memory(struct text *t)
{
    bool chunks = t->how->mode == KVL_READ_CHUNK;
    size_t row = (size_t)t->n_vocab * sizeof *t->logits;
    t->rows = chunks ? KVL_MIN(t->how->chunk, t->n) : 1;
    t->logits = kvl_alloc(chunks ? (size_t)t->rows : KVL_ASK_MAX + 1, row);
    t->dense = kvl_alloc((size_t)t->rows, row);
    if (t->logits && t->dense) return KVL_OK;
    return kvl_fail(t->err, KVL_ENOMEM, "out of memory for the logits of %d tokens", t->rows);
}

static int text_open(struct text *t)
{
    struct kvl_runner *r = t->r;
    KVL_TRY(kvl_context_generate(r->work, t->g, t->index, &t->sample, t->err));
    t->id = t->sample.tokens.id;
    t->n = t->sample.tokens.n;
    t->before = kvl_reading_before(t->how, t->n);
    t->n_tok = t->n - t->before - 1;
    t->n_vocab = kvl_model_shape(r->work->model)->n_vocab;
    KVL_TRY(text_memory(t));
    if (!kvl_state_shares(r->state, t->g, t->index)) return KVL_OK;
    KVL_TRY(kvl_prefill(r->engine, &r->snapshots, t->id, t->before, &t->session, &t->prefill_ns,
                        t->err));
    double ns;
    if (r->reference)
        KVL_TRY(
            kvl_prefill(r->reference, &r->snapshots, t->id, t->before, &t->reference, &ns, t->err));
    if (isnan(t->prefill_ns)) return KVL_OK;
    r->stats.context_prefills++;
    r->stats.context_prefill_tok += t->before;
    return KVL_OK;
}

static void text_close(struct text *t)
{
    kvl_session_destroy(t->session);
    kvl_session_destroy(t->reference);
    kvl_sample_free(&t->sample);
    kvl_free(t->logits);
    kvl_free(t->dense);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Scores the token that follows each of at .. at + n - 1, of which `row` and `dense` (NULL: not known) are the logits. */
static int text_score(const struct text *t, struct text_cell *c, int32_t at, int32_t n,
                      const float *row, const float *dense, struct kvl_err *err)
{
    for (int32_t i = 0; i < n; i++, row += t->n_vocab) {
        int32_t k = at + i - t->before;
        c->nll[k] = kvl_nll(row, t->n_vocab, t->id[at + i + 1]);
        if (!isfinite(c->nll[k]))
            return kvl_fail(err, KVL_ENUMERIC, "the logits after token %d are not finite", at + i);
        if (!dense) continue;
        c->kl[k] = kvl_quality_kl(dense, row, t->n_vocab);
        c->same[k] = kvl_argmax(row, t->n_vocab) == kvl_argmax(dense, t->n_vocab);
        dense += t->n_vocab;
    }
    return KVL_OK;
}

/* One token in all sessions: the dense one first, where there is one. */
static int text_token(struct text *t, struct kvl_session *dense, int32_t at, struct kvl_err *err)
{
    struct kvl_session *all[KVL_ASK_MAX + 1];
    int32_t id[KVL_ASK_MAX + 1], n = 0, first = dense != NULL;
    int32_t apart = dense && t->reference; /* sessions of two engines do not decode together */
    int64_t read[KVL_ASK_MAX + 1];
    if (dense) all[n++] = dense;
    for (int32_t i = 0; i < t->n_cells; i++) all[n++] = t->cell[i].session;
    for (int32_t i = 0; i < n; i++) {
        id[i] = t->id[at];
        read[i] = kvl_ask_bytes_read(all[i]);
    }
    if (apart) KVL_TRY(kvl_session_decode(all, 1, id, t->logits, err));
    uint64_t t0 = kvl_now_ns();
    float *logits = t->logits + (size_t)apart * (size_t)t->n_vocab;
    KVL_TRY(kvl_session_decode(all + apart, n - apart, id + apart, logits, err));
    uint64_t ns = kvl_now_ns() - t0;
    double share[KVL_ASK_MAX + 1];
    kvl_ask_shares(all + apart, n - apart, read + apart, t->r->work->model, share + apart);
    for (int32_t i = 0; i < t->n_cells; i++) {
        const float *row = t->logits + (size_t)(first + i) * (size_t)t->n_vocab;
        t->cell[i].wall_ns += (uint64_t)((double)ns * share[first + i]);
        KVL_TRY(text_score(t, &t->cell[i], at, 1, row, dense ? t->logits : NULL, err));
    }
    return KVL_OK;
}

static int text_chunk(struct text *t, struct kvl_session *dense, int32_t at, int32_t n,
                      struct kvl_err *err)
{
    if (dense) KVL_TRY(kvl_session_extend_logits(dense, t->id + at, n, t->dense, err));
    for (int32_t i = 0; i < t->n_cells; i++) {
        struct text_cell *c = &t->cell[i];
        uint64_t t0 = kvl_now_ns();
        KVL_TRY(kvl_session_extend_logits(c->session, t->id + at, n, t->logits, err));
        c->wall_ns += kvl_now_ns() - t0;
        KVL_TRY(text_score(t, c, at, n, t->logits, dense ? t->dense : NULL, err));
    }
    return KVL_OK;
}

static int text_read(struct text *t, struct kvl_err *err)
{
    struct kvl_session *dense = NULL;
    const struct kvl_session *full = t->reference ? t->reference : t->session;
    int rc = full ? kvl_session_fork(full, &dense, err) : KVL_OK;
    for (int32_t at = t->before, n; rc == KVL_OK && at < t->n - 1; at += n) {
        n = KVL_MIN(t->rows, t->n - 1 - at);
        rc = t->how->mode == KVL_READ_CHUNK ? text_chunk(t, dense, at, n, err)
                                            : text_token(t, dense, at, err);
        if (rc == KVL_OK) rc = kvl_runner_check_stop(t->r, err);
    }
    kvl_session_destroy(dense);
    return rc;
}

/* ---- cells ------------------------------------------------------------------------------------ */

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

static void text_cell_free(struct text_cell *c)
{
    kvl_session_destroy(c->session);
    kvl_free(c->nll);
    kvl_free(c->kl);
    kvl_free(c->same);
    kvl_outcome_free(&c->observed);
    *c = (struct text_cell){ 0 };
}

/* A cell at the end of the batch. */
static int text_begin(struct text *t, size_t index, struct kvl_err *err)
{
    const struct kvl_cell *cell = &t->r->work->cell[index];
    struct text_cell *c = &t->cell[t->n_cells];
    size_t n = (size_t)t->n_tok;
    uint64_t t0 = kvl_now_ns();
    *c = (struct text_cell){ .index = index, .observed = kvl_outcome_none() };
    c->observed.prefill_ns = t->prefill_ns;
    c->nll = kvl_alloc(n, sizeof *c->nll);
    c->kl = kvl_alloc(n, sizeof *c->kl);
    c->same = kvl_alloc(n, sizeof *c->same);
    if (!c->nll || !c->kl || !c->same)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for the scores of %d tokens", t->n_tok);
    if (kvl_planned_own_prefill(cell->planned))
        KVL_TRY(kvl_runner_stream(t->r, cell, t->seed, t->id, t->before, &c->session,
                                  &c->observed.prefill_ns, err));
    else
        KVL_TRY(text_fork(t, cell, &c->session, err));
    c->shared = kvl_runner_shared_blocks(c->session);
    c->wall_ns = kvl_now_ns() - t0;
    t->n_cells++;
    return KVL_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

/* A policy that fails is the text's result. */
static int text_record(struct text *t, struct text_cell *c, bool compared)
{
    struct kvl_runner *r = t->r;
    struct kvl_text_result out = { .cell = &r->work->cell[c->index],
                                   .context = t->index,
                                   .seed = t->seed,
                                   .text_tok = t->n,
                                   .first_tok = t->before + 1,
                                   .n_tok = t->n_tok,
                                   .nll = c->nll,
                                   .kl = compared ? c->kl : NULL,
                                   .same = compared ? c->same : NULL,
                                   .observed = c->observed };
    if (c->why.code != KVL_OK)
        out.error = c->why.msg[0] ? c->why.msg : kvl_status_name(c->why.code);
    out.observed.wall_ns = (double)c->wall_ns;
    json_t *record = kvl_record_nll(kvl_log_run(r->log), &out);
    json_incref(record);
    int rc = kvl_runner_append(r, record, t->err);
    if (rc == KVL_OK) rc = kvl_state_text(r->state, record, t->err);
    json_decref(record);
    kvl_progress_spent(&r->progress);
    r->stats.n_samples += rc == KVL_OK;
    r->progress.n_answers += rc == KVL_OK;
    r->stats.n_errors += rc == KVL_OK && out.error;
    r->progress.n_errors += rc == KVL_OK && out.error;
    return rc;
}

/* What was observed, and the records; the batch is empty then. */
static int text_end(struct text *t)
{
    int rc = KVL_OK;
    for (int32_t i = 0; i < t->n_cells; i++) {
        struct text_cell *c = &t->cell[i];
        if (rc == KVL_OK && c->why.code == KVL_OK)
            (void)kvl_kv_held(c->session, kvl_store_desc(kvl_engine_store(t->r->engine)), &c->why);
        if (rc == KVL_OK && c->why.code == KVL_OK) {
            kvl_runner_observe(t->r, &t->r->work->cell[c->index], c->session, c->shared,
                               &c->observed);
            kvl_method_take(c->session, &c->observed.method, &c->why);
        }
        if (rc == KVL_OK) rc = text_record(t, c, t->session != NULL);
        text_cell_free(c);
    }
    t->n_cells = 0;
    return rc == KVL_OK ? kvl_log_commit(t->r->log, t->err) : rc;
}

/* A cell alone, so that its failure is its own. */
static int text_alone(struct text *t, size_t index)
{
    struct kvl_err why = { 0 };
    assert(t->n_cells == 0);
    kvl_guard_policy(t->r->work->cell[index].policy->policy->name);
    int rc = text_begin(t, index, &why);
    t->n_cells = 1;
    if (rc == KVL_OK) rc = text_read(t, &why);
    if (rc != KVL_EDEVICE) kvl_guard_policy(NULL); /* the sweep is to know who ran */
    if (kvl_runner_ends(rc)) return kvl_fail(t->err, rc, "%s", why.msg);
    if (rc != KVL_OK) t->cell[0].why = why;
    return text_end(t);
}

/* Reads what is in the batch. */
static int text_flush(struct text *t)
{
    struct kvl_err why = { 0 };
    size_t index[KVL_ASK_MAX];
    int32_t n = t->n_cells;
    if (n == 0) return KVL_OK;
    kvl_engine_set_watch(t->r->engine, kvl_guard_policy);
    int rc = text_read(t, &why);
    if (rc != KVL_EDEVICE) kvl_engine_set_watch(t->r->engine, NULL);
    if (kvl_runner_ends(rc)) return kvl_fail(t->err, rc, "%s", why.msg);
    if (rc == KVL_OK) return text_end(t);
    for (int32_t i = 0; i < n; i++) {
        index[i] = t->cell[i].index;
        text_cell_free(&t->cell[i]);
    }
    t->n_cells = 0;
    for (int32_t i = 0; i < n; i++) KVL_TRY(text_alone(t, index[i]));
    return KVL_OK;
}

static size_t text_store(const struct text *t)
{
    struct kvl_store_stats s;
    kvl_store_stats(kvl_engine_store(t->r->engine), &s);
    return s.bytes;
}

/* Puts a cell into the batch; one that has no room there is read alone. */
static int text_add(struct text *t, size_t index)
{
    struct kvl_err why = { 0 };
    kvl_guard_policy(t->r->work->cell[index].policy->policy->name);
    int rc = text_begin(t, index, &why);
    if (rc != KVL_EDEVICE) kvl_guard_policy(NULL);
    if (rc == KVL_OK) return rc;
    text_cell_free(&t->cell[t->n_cells]);
    if (kvl_runner_ends(rc)) return kvl_fail(t->err, rc, "%s", why.msg);
    KVL_TRY(text_flush(t));
    return text_alone(t, index);
}

static int text_cells(struct text *t)
{
    struct kvl_runner *r = t->r;
    struct kvl_seq_stats context = { 0 };
    size_t before = text_store(t);
    if (t->session) kvl_seq_stats(kvl_session_seq(t->session), &context);
    size_t room = KVL_MAX(TEXT_ROOM, context.physical_bytes);
    for (size_t i = t->g->first; i < t->g->first + t->g->n; i++) {
        if (!kvl_state_wants(r->state, t->index, i)) continue;
        KVL_TRY(kvl_runner_next(r, i, t->err));
        KVL_TRY(text_add(t, i));
        if (t->n_cells < r->work->sweep->batch && text_store(t) < before + room) continue;
        KVL_TRY(text_flush(t));
    }
    return text_flush(t);
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
    for (int32_t i = 0; i < t.n_cells; i++) text_cell_free(&t.cell[i]);
    text_close(&t);
    return rc;
}
