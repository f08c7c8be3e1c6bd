/* One context: a prefill that serves all protocols, policies, budgets and questions. */
#include "runner.h"

#include "guard.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A question of the context, tokenised. */
struct context_question {
    const struct kvl_question *q;
    struct kvl_tokens tokens;
    struct kvl_watch watch;
    bool joint;
    struct kvl_session *prompt; /* the context and this question but its last token; or NULL */
};

struct context {
    struct kvl_runner *r;
    const struct kvl_group *g;
    int32_t index;
    uint64_t seed;
    struct kvl_sample sample;
    struct context_question *question;
    struct kvl_session *session; /* the prefilled context; NULL where no cell starts from it */
    double prefill_ns;           /* NaN: it came from a snapshot */
    struct kvl_err *err;
};

/* ---- questions ------------------------------------------------------------------------------- */

/* Separate tokenisation at the border between context and question may differ from that of the joint
 * text; the record says so. */
static int question_joint(const struct context *c, struct context_question *q)
{
    const struct kvl_tokenizer *t = kvl_model_tokenizer(c->r->work->model);
    const struct kvl_tokens *context = &c->sample.tokens;
    struct kvl_buf text = { 0 };
    struct kvl_tokens joint = { 0 };
    int rc = kvl_buf_adds(&text, c->sample.context);
    if (rc == KVL_OK) rc = kvl_buf_adds(&text, q->q->text);
    if (rc == KVL_OK) rc = kvl_encode(t, text.data, text.len, KVL_ENCODE_BOS, &joint, c->err);
    q->joint =
        rc == KVL_OK && joint.n == context->n + q->tokens.n &&
        memcmp(joint.id, context->id, (size_t)context->n * sizeof *joint.id) == 0 &&
        memcmp(joint.id + context->n, q->tokens.id, (size_t)q->tokens.n * sizeof *joint.id) == 0;
    kvl_buf_free(&text);
    kvl_tokens_free(&joint);
    return rc;
}

static int question_prepare(struct context *c, struct context_question *q)
{
    const struct kvl_tokenizer *t = kvl_model_tokenizer(c->r->work->model);
    struct kvl_tokens answer = { 0 };
    KVL_TRY(kvl_encode(t, q->q->text, strlen(q->q->text), KVL_ENCODE_CONTINUE, &q->tokens, c->err));
    if (q->tokens.n == 0)
        return kvl_fail(c->err, KVL_EINVAL, "%s: a question without tokens",
                        c->g->task->task->name);
    KVL_TRY(
        kvl_encode(t, q->q->answer, strlen(q->q->answer), KVL_ENCODE_CONTINUE, &answer, c->err));
    int rc = kvl_watch_create(&c->sample, q->q, &answer, &q->watch, c->err);
    kvl_tokens_free(&answer);
    return rc == KVL_OK ? question_joint(c, q) : rc;
}

static int context_generate(struct context *c)
{
    struct kvl_runner *r = c->r;
    KVL_TRY(kvl_context_generate(r->work, c->g, c->index, &c->sample, c->err));
    c->question = kvl_alloc((size_t)c->sample.n_questions, sizeof *c->question);
    if (!c->question) return kvl_fail(c->err, KVL_ENOMEM, "out of memory for questions");
    for (int32_t i = 0; i < c->sample.n_questions; i++) {
        c->question[i].q = &c->sample.question[i];
        KVL_TRY(question_prepare(c, &c->question[i]));
    }
    return KVL_OK;
}

/* ---- prefill --------------------------------------------------------------------------------- */

static int context_prefill(struct context *c)
{
    struct kvl_runner *r = c->r;
    const struct kvl_tokens *t = &c->sample.tokens;
    r->progress.done += kvl_group_context_cost(c->g);
    if (!kvl_runner_shares(r, c->g, c->index)) return KVL_OK;
    KVL_TRY(
        kvl_prefill(r->engine, &r->snapshots, t->id, t->n, &c->session, &c->prefill_ns, c->err));
    if (isnan(c->prefill_ns)) return KVL_OK;
    r->stats.context_prefills++;
    r->stats.context_prefill_tok += t->n;
    return KVL_OK;
}

/* question_in_prefill: the context with the question but its last token, once for all policies. */
static int question_prompt(struct context *c, struct context_question *q)
{
    if (q->prompt) return KVL_OK;
    struct kvl_session *s;
    KVL_TRY(kvl_session_fork(c->session, &s, c->err));
    int rc = KVL_OK;
    if (q->tokens.n > 1)
        rc = kvl_session_prefill(s, q->tokens.id, q->tokens.n - 1, NULL, false, c->err);
    if (rc == KVL_OK)
        q->prompt = s;
    else
        kvl_session_destroy(s);
    return rc;
}

/* ---- one cell -------------------------------------------------------------------------------- */

/* A cell's answers from this context. */
struct cell_run {
    struct context *c;
    size_t index; /* of the cell */
    const struct kvl_cell *cell;
    bool own;                   /* the policy reads the context itself */
    struct kvl_session *parent; /* attached context; NULL for a question in the shared prefill */
    int64_t parent_shared;
    uint64_t parent_ns; /* attaching it */
    double prefill_ns;  /* of this cell's context; NaN: not known */
    struct kvl_ask ask[KVL_ASK_MAX];
    int32_t question[KVL_ASK_MAX];
    int32_t n;
};

static int cell_attach(struct cell_run *run, const struct kvl_session *from, uint64_t seed,
                       struct kvl_session **out, struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(kvl_session_fork(from, &s, err));
    int rc = kvl_session_attach(s, run->cell->planned, seed, KVL_EXEC_REAL, err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

/* The session of one question, up to the tokens that are decoded. */
static int cell_session(struct cell_run *run, struct context_question *q, int32_t question,
                        struct kvl_ask *a)
{
    struct context *c = run->c;
    if (run->cell->protocol == KVL_QUESTION_IN_PREFILL && !run->own) {
        KVL_TRY(question_prompt(c, q));
        uint64_t seed = kvl_seed_mix(c->seed, (uint64_t)question);
        KVL_TRY(cell_attach(run, q->prompt, seed, &a->session, &a->error));
        a->shared_blocks = kvl_runner_shared_blocks(a->session);
        return KVL_OK;
    }
    a->shared_blocks = run->parent_shared;
    KVL_TRY(kvl_session_fork(run->parent, &a->session, &a->error));
    if (run->cell->protocol == KVL_QUESTION_AS_DECODE || q->tokens.n == 1) return KVL_OK;
    return kvl_session_extend(a->session, q->tokens.id, q->tokens.n - 1, &a->error);
}

/* Failures of a policy are the sample's; a stop and failures outside of it are the caller's. */
static int cell_open(struct cell_run *run, int32_t question, struct kvl_ask *a)
{
    struct context *c = run->c;
    struct context_question *q = &c->question[question];
    bool as_decode = run->cell->protocol == KVL_QUESTION_AS_DECODE;
    uint64_t t0 = kvl_now_ns();
    *a = (struct kvl_ask){
        .feed = as_decode ? q->tokens.id : q->tokens.id + q->tokens.n - 1,
        .n_feed = as_decode ? q->tokens.n : 1,
        .max_new = q->q->max_new_tok,
        .watch = &q->watch,
    };
    KVL_TRY(kvl_ask_begin(a, kvl_model_shape(c->r->work->model), c->err));
    int rc = cell_session(run, q, question, a);
    if (rc != KVL_OK && a->error.code == KVL_OK) {
        a->error = *c->err; /* the prompt of a question: it ends this sample alone */
        kvl_err_clear(c->err);
    }
    a->wall_ns = kvl_now_ns() - t0;
    if (a->error.code == KVL_ESTOP) return kvl_fail(c->err, KVL_ESTOP, "%s", a->error.msg);
    return KVL_OK;
}

/* Again and alone, after a batch failed: an answer does not depend on its batch, so this shows whose
 * failure it was. */
static int cell_decode_alone(struct cell_run *run, int32_t i)
{
    struct context *c = run->c;
    const struct kvl_model *model = c->r->work->model;
    struct kvl_ask *a = &run->ask[i];
    kvl_ask_free(a);
    KVL_TRY(cell_open(run, run->question[i], a));
    if (a->error.code != KVL_OK) return KVL_OK;
    int rc = kvl_ask_decode(&a, 1, kvl_model_tokenizer(model), kvl_model_shape(model)->n_vocab,
                            c->r->logits, &a->error);
    return rc == KVL_ESTOP ? kvl_fail(c->err, KVL_ESTOP, "%s", a->error.msg) : KVL_OK;
}

static int cell_decode(struct cell_run *run)
{
    struct context *c = run->c;
    const struct kvl_model *model = c->r->work->model;
    struct kvl_ask *batch[KVL_ASK_MAX];
    struct kvl_err why = { 0 };
    int32_t n = 0;
    for (int32_t i = 0; i < run->n; i++)
        if (run->ask[i].error.code == KVL_OK) batch[n++] = &run->ask[i];
    if (n == 0) return KVL_OK;
    int rc = kvl_ask_decode(batch, n, kvl_model_tokenizer(model), kvl_model_shape(model)->n_vocab,
                            c->r->logits, &why);
    if (rc == KVL_OK) return KVL_OK;
    if (rc == KVL_ESTOP) return kvl_fail(c->err, rc, "%s", why.msg);
    for (int32_t i = 0; i < run->n; i++)
        if (run->ask[i].error.code == KVL_OK) KVL_TRY(cell_decode_alone(run, i));
    return KVL_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static void outcome_measure(const struct cell_run *run, const struct kvl_ask *a,
                            struct kvl_outcome *o)
{
    kvl_runner_observe(run->c->r, run->cell, a->session, a->shared_blocks, o);
    o->recall = a->recall.n_steps > 0 ? (double)a->recall.n_hit / a->recall.n_steps : (double)NAN;
}

static void outcome_score(const struct kvl_task_score *score, struct kvl_outcome *o)
{
    o->official = score->official;
    o->strict = score->strict;
    o->n_sub = score->n_sub;
    for (int32_t i = 0; i < score->n_sub; i++) {
        snprintf(o->sub[i].name, sizeof o->sub[i].name, "%s", score->sub[i].name);
        o->sub[i].value = score->sub[i].value;
    }
}

static struct kvl_outcome outcome_failed(void)
{
    double none = (double)NAN;
    return (struct kvl_outcome){ .have = true,
                                 .failed = true,
                                 .official = none,
                                 .strict = none,
                                 .recall = none,
                                 .attended_tok = none,
                                 .dense_tok = none,
                                 .kv_read = none,
                                 .index_read = none,
                                 .kv_logical = none,
                                 .kv_physical = none,
                                 .kv_own = none,
                                 .meta = none };
}

/* The cell is made of what the log says, as after a restart. */
static int sample_append(const struct cell_run *run, const struct kvl_answer *a)
{
    struct kvl_runner *r = run->c->r;
    struct kvl_outcome *outcome =
        r->state->cell[run->index].outcome + a->context * r->work->sweep->questions + a->question;
    json_t *record = kvl_record_sample(kvl_log_run(r->log), a);
    json_incref(record);
    int rc = kvl_runner_append(r, record, run->c->err);
    if (rc == KVL_OK) kvl_outcome_of(record, outcome);
    json_decref(record);
    return rc;
}

static int sample_record(struct cell_run *run, int32_t question, const struct kvl_ask *a)
{
    struct context *c = run->c;
    struct kvl_runner *r = c->r;
    const struct context_question *q = &c->question[question];
    struct kvl_buf text = { 0 };
    struct kvl_answer answer = {
        .cell = run->cell,
        .q = q->q,
        .ask = a,
        .context = c->index,
        .question = question,
        .context_tok = c->sample.tokens.n,
        .question_tok = q->tokens.n,
        .seed = c->seed,
        .joint = q->joint,
        .outcome = outcome_failed(),
    };
    int rc = kvl_buf_adds(&text, "");
    if (rc == KVL_OK && a->error.code == KVL_OK) {
        struct kvl_task_score score = { 0 };
        answer.outcome.failed = false;
        outcome_measure(run, a, &answer.outcome);
        rc = kvl_method_take(a->session, &answer.outcome.method, c->err);
        if (rc == KVL_OK)
            rc = kvl_decode(kvl_model_tokenizer(r->work->model), a->id, a->n_id, false, false,
                            &text, c->err);
        if (rc == KVL_OK) c->g->task->task->score(q->q, text.data, &score);
        outcome_score(&score, &answer.outcome);
    }
    answer.outcome.wall_ns =
        (double)(a->wall_ns + run->parent_ns / (uint64_t)c->sample.n_questions);
    answer.outcome.prefill_ns = run->prefill_ns;
    answer.prediction = text.data;
    answer.prediction_len = text.len;
    if (rc == KVL_OK) rc = sample_append(run, &answer);
    r->stats.n_samples += rc == KVL_OK;
    r->progress.n_answers += rc == KVL_OK;
    r->stats.n_errors += rc == KVL_OK && answer.outcome.failed;
    r->progress.n_errors += rc == KVL_OK && answer.outcome.failed;
    kvl_outcome_free(&answer.outcome);
    kvl_buf_free(&text);
    return rc;
}

/* ---- a cell on this context ------------------------------------------------------------------ */

static bool sample_missing(const struct context *c, size_t cell, int32_t question)
{
    const struct kvl_progress_cell *p = &c->r->state->cell[cell];
    return !p->outcome[c->index * c->r->work->sweep->questions + question].have;
}

/* The next questions without a sample, at most a batch. */
static void cell_take(struct cell_run *run, int32_t *next)
{
    run->n = 0;
    for (; *next < run->c->sample.n_questions && run->n < KVL_ASK_MAX; ++*next)
        if (sample_missing(run->c, run->index, *next)) run->question[run->n++] = *next;
}

/* A policy that fails on the context fails for all its questions. */
static int cell_parent(struct cell_run *run, struct kvl_err *why)
{
    struct context *c = run->c;
    int rc = KVL_OK;
    run->prefill_ns = c->prefill_ns;
    if (run->own) {
        /* A question in its prefill is one that it reads behind the context: the same run. */
        rc = kvl_runner_stream(c->r, run->cell, c->seed, c->sample.tokens.id, c->sample.tokens.n,
                               &run->parent, &run->prefill_ns, why);
    } else if (run->cell->protocol != KVL_QUESTION_IN_PREFILL) {
        uint64_t t0 = kvl_now_ns();
        rc = cell_attach(run, c->session, c->seed, &run->parent, why);
        run->parent_ns = kvl_now_ns() - t0;
        if (rc == KVL_OK) run->parent_shared = kvl_runner_shared_blocks(run->parent);
    }
    return rc == KVL_ESTOP ? kvl_fail(c->err, rc, "%s", why->msg) : KVL_OK;
}

static int cell_batch(struct cell_run *run, const struct kvl_err *why)
{
    int rc = KVL_OK;
    int32_t opened = 0;
    for (; opened < run->n && rc == KVL_OK; opened++) {
        if (why->code == KVL_OK)
            rc = cell_open(run, run->question[opened], &run->ask[opened]);
        else
            run->ask[opened] = (struct kvl_ask){ .error = *why };
    }
    if (rc == KVL_OK) rc = cell_decode(run);
    for (int32_t i = 0; i < run->n && rc == KVL_OK; i++)
        rc = sample_record(run, run->question[i], &run->ask[i]);
    for (int32_t i = 0; i < opened; i++) kvl_ask_free(&run->ask[i]);
    return rc;
}

/* A reference pass: the question once more, tapped, beside a dense session. */
static int cell_quality(struct cell_run *run, int32_t question, const struct kvl_err *why)
{
    struct context *c = run->c;
    struct context_question *q = &c->question[question];
    struct kvl_ask a = { .error = *why };
    struct kvl_session *dense = NULL;
    int rc = why->code == KVL_OK ? cell_open(run, question, &a) : KVL_OK;
    if (rc == KVL_OK) rc = question_prompt(c, q);
    if (rc == KVL_OK) rc = kvl_session_fork(q->prompt, &dense, c->err);
    struct kvl_quality_run pass = { .policy = a.session,
                                    .dense = dense,
                                    .feed = a.feed,
                                    .n_feed = a.n_feed,
                                    .max_new = a.max_new };
    if (rc == KVL_OK)
        rc = kvl_runner_quality(c->r, run->index, c->index, question, &pass, &a.error, c->err);
    kvl_session_destroy(dense);
    kvl_ask_free(&a);
    return rc;
}

/* Pending records of a cell are whole: a cut-off context is answered again for this cell. */
static int context_cell(struct context *c, size_t index)
{
    struct cell_run run = { .c = c, .index = index, .cell = &c->r->work->cell[index] };
    run.own = kvl_planned_own_prefill(run.cell->planned);
    struct kvl_err why = { 0 };
    kvl_guard_policy(run.cell->policy->policy->name);
    int rc = cell_parent(&run, &why);
    int32_t next = 0;
    while (rc == KVL_OK && next < c->sample.n_questions) {
        cell_take(&run, &next);
        if (run.n > 0) rc = cell_batch(&run, &why);
    }
    for (int32_t q = 0; rc == KVL_OK && q < c->r->work->sweep->quality.questions; q++)
        if (kvl_runner_wants_quality(c->r, index, c->index, q)) rc = cell_quality(&run, q, &why);
    kvl_session_destroy(run.parent);
    kvl_guard_policy(NULL);
    c->r->progress.done += kvl_cell_context_cost(c->r->work, run.cell);
    return rc;
}

/* ---- the context ----------------------------------------------------------------------------- */

bool kvl_runner_wants(const struct kvl_runner *r, int32_t context, size_t cell)
{
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    const struct kvl_sweep *s = r->work->sweep;
    if (!r->work->cell[cell].planned || p->done || p->failed) return false;
    if (p->text) return json_is_null(json_array_get(p->text, (size_t)context));
    for (int32_t q = 0; p->outcome && q < s->questions; q++)
        if (!p->outcome[context * s->questions + q].have) return true;
    for (int32_t q = 0; q < s->quality.questions; q++)
        if (kvl_runner_wants_quality(r, cell, context, q)) return true;
    return !p->outcome;
}

static int context_cells(struct context *c)
{
    struct kvl_runner *r = c->r;
    for (int32_t p = 0; p < KVL_N_PROTOCOLS; p++) {
        for (size_t i = c->g->first; i < c->g->first + c->g->n; i++) {
            const struct kvl_cell *cell = &r->work->cell[i];
            if ((int32_t)cell->protocol != p || !kvl_runner_wants(r, c->index, i)) continue;
            KVL_TRY(kvl_runner_next(r, i, c->err));
            KVL_TRY(context_cell(c, i));
        }
        KVL_TRY(kvl_log_commit(r->log, c->err));
    }
    return KVL_OK;
}

static void context_free(struct context *c)
{
    for (int32_t i = 0; c->question && i < c->sample.n_questions; i++) {
        kvl_session_destroy(c->question[i].prompt);
        kvl_watch_free(&c->question[i].watch);
        kvl_tokens_free(&c->question[i].tokens);
    }
    kvl_session_destroy(c->session);
    kvl_free(c->question);
    kvl_sample_free(&c->sample);
}

int kvl_runner_context(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                       struct kvl_err *err)
{
    if (!kvl_runner_wants_any(r, g, context)) return KVL_OK;
    struct context c = { .r = r, .g = g, .index = context, .err = err };
    c.seed = kvl_context_seed(r->work->sweep, g->task, g->length, g->depth, context);
    int rc = context_generate(&c);
    if (rc == KVL_OK) rc = context_prefill(&c);
    if (rc == KVL_OK)
        rc = context_cells(&c);
    else if (rc != KVL_ESTOP)
        rc = kvl_runner_group_failed(r, g, context, err);
    context_free(&c);
    return rc;
}
