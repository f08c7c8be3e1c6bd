/* One context: a prefill that serves all protocols, policies, budgets and questions. */
#include "runner_context.h"

#include "crash_line.h"

#include <math.h>
#include <string.h>

/* ---- questions ------------------------------------------------------------------------------- */

static int question_prepare(struct kvl_context *c, int32_t i)
{
    struct kvl_context_question *q = &c->question[i];
    const struct kvl_prompt *prompt = kvl_group_prompt(c->r->work, c->g);
    const struct kvl_tokenizer *t = kvl_prompt_inside(prompt);
    struct kvl_tokens answer = { 0 };
    KVL_TRY(kvl_prompt_question(prompt, &c->sample, i, &q->tokens, c->err));
    if (q->tokens.n == 0)
        return kvl_fail(c->err, KVL_EINVAL, "%s: a question without tokens",
                        c->g->task->task->name);
    KVL_TRY(
        kvl_encode(t, q->q->answer, strlen(q->q->answer), KVL_ENCODE_CONTINUE, &answer, c->err));
    int rc = kvl_watch_create(&c->sample, q->q, &answer, &q->watch, c->err);
    kvl_tokens_free(&answer);
    return rc == KVL_OK ? kvl_prompt_joint(prompt, &c->sample, i, &q->joint, c->err) : rc;
}

/* The last token of a question behind the right answer to the one before it.  A template that cannot have turns is said where
 * turns are asked for. */
static int question_turn(struct kvl_context *c, int32_t i)
{
    struct kvl_tokens t = { 0 };
    struct kvl_err why = { 0 };
    int rc = kvl_prompt_turn(kvl_group_prompt(c->r->work, c->g), &c->sample, i - 1, &t, &why);
    c->question[i].turn_last = rc == KVL_OK && t.n > 0 ? t.id[t.n - 1] : -1;
    bool none = rc == KVL_OK && t.n == 0;
    kvl_tokens_free(&t);
    if (none) return kvl_fail(c->err, KVL_EINVAL, "question %d of a context has no tokens", i + 1);
    return rc == KVL_OK || rc == KVL_EINVAL ? KVL_OK : kvl_fail(c->err, rc, "%s", why.msg);
}

static int context_generate(struct kvl_context *c)
{
    struct kvl_runner *r = c->r;
    KVL_TRY(kvl_context_generate(r->work, c->g, c->index, &c->sample, c->err));
    c->question = kvl_alloc((size_t)c->sample.n_questions, sizeof *c->question);
    if (!c->question) return kvl_fail(c->err, KVL_ENOMEM, "out of memory for questions");
    bool turns = kvl_group_turns(r->work, c->g);
    for (int32_t i = 0; i < c->sample.n_questions; i++) {
        c->question[i].q = &c->sample.question[i];
        KVL_TRY(question_prepare(c, i));
        if (turns && i > 0) KVL_TRY(question_turn(c, i));
    }
    return KVL_OK;
}

/* ---- prefill --------------------------------------------------------------------------------- */

static int context_prefill(struct kvl_context *c)
{
    struct kvl_runner *r = c->r;
    const struct kvl_tokens *t = &c->sample.tokens;
    if (!kvl_state_shares(r->state, c->g, c->index)) return KVL_OK;
    KVL_TRY(
        kvl_prefill(r->engine, &r->snapshots, t->id, t->n, &c->session, &c->prefill_ns, c->err));
    if (isnan(c->prefill_ns)) return KVL_OK;
    r->stats.context_prefills++;
    r->stats.context_prefill_tok += t->n;
    return KVL_OK;
}

/* ---- the context ----------------------------------------------------------------------------- */

/* The samples of a protocol are one commit. */
static int context_cells(struct kvl_context *c)
{
    int rc = KVL_OK;
    kvl_engine_set_watch(c->r->engine, kvl_guard_policy);
    for (int32_t p = 0; p < KVL_N_PROTOCOLS && rc == KVL_OK; p++) {
        rc = kvl_cells_answer(c, (enum kvl_protocol)p);
        if (rc == KVL_OK) rc = kvl_log_commit(c->r->log, c->err);
    }
    /* Who ran when a device failed is the sweep's to know. */
    if (rc != KVL_EDEVICE) kvl_engine_set_watch(c->r->engine, NULL);
    return rc;
}

static void context_free(struct kvl_context *c)
{
    for (int32_t i = 0; c->question && i < c->sample.n_questions; i++) {
        kvl_session_destroy(c->question[i].prompt);
        kvl_session_destroy(c->question[i].reference);
        kvl_watch_free(&c->question[i].watch);
        kvl_tokens_free(&c->question[i].tokens);
    }
    kvl_session_destroy(c->session);
    kvl_session_destroy(c->reference);
    kvl_free(c->question);
    kvl_sample_free(&c->sample);
}

int kvl_runner_context(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                       struct kvl_err *err)
{
    if (!kvl_state_wants_any(r->state, g, context)) return KVL_OK;
    struct kvl_context c = { .r = r, .g = g, .index = context, .err = err };
    c.seed = kvl_context_seed(r->work->sweep, g->task, g->length, g->depth, context);
    int rc = context_generate(&c);
    if (rc == KVL_OK) rc = context_prefill(&c);
    bool made = rc == KVL_OK;
    if (made) rc = context_cells(&c);
    /* A context that could not be made, or whose answers the task did not score as it must. */
    if ((!made && rc != KVL_OK && !kvl_runner_ends(rc)) || rc == KVL_ETASK)
        rc = kvl_runner_group_failed(r, g, context, err);
    context_free(&c);
    return rc;
}
