/* From an answer to its sample record. */
#include "runner_context.h"

#include "kvl/fpenv.h"

#include "crash_line.h"

#include <math.h>
#include <stdio.h>

static void outcome_measure(const struct kvl_cell_run *run, const struct kvl_ask *a,
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

static bool is_share(double v)
{
    return v >= 0.0 && v <= 1.0;
}

/* What tables and intervals rely on: a task may come from a plug-in. */
static int score_check(const struct kvl_task *task, const struct kvl_task_score *s,
                       struct kvl_err *err)
{
    if (!is_share(s->official) || !is_share(s->strict))
        return kvl_fail(err, KVL_ETASK, "task %s: scores of %g and %g, want each from 0 to 1",
                        task->name, s->official, s->strict);
    if (s->n_sub < 0 || s->n_sub > KVL_TASK_SUBS)
        return kvl_fail(err, KVL_ETASK, "task %s: %d parts of a score, want 0 to %d", task->name,
                        s->n_sub, KVL_TASK_SUBS);
    for (int32_t i = 0; i < s->n_sub; i++)
        if (!s->sub[i].name || !is_share(s->sub[i].value))
            return kvl_fail(err, KVL_ETASK,
                            "task %s: part %d of a score has no name or is %g, want 0 to 1",
                            task->name, i, s->sub[i].value);
    return KVL_OK;
}

static struct kvl_outcome outcome_failed(void)
{
    struct kvl_outcome o = kvl_outcome_none();
    o.failed = true;
    return o;
}

/* The cell is made of what the log says, as after a restart. */
static int sample_append(const struct kvl_cell_run *run, const struct kvl_answer *a)
{
    struct kvl_runner *r = run->c->r;
    struct kvl_outcome *outcome;
    struct kvl_quality_means *quality;
    KVL_TRY(kvl_state_own(r->state, run->index, &outcome, &quality, run->c->err));
    outcome += a->context * r->work->sweep->questions + a->question;
    json_t *record = kvl_record_sample(kvl_log_run(r->log), a);
    json_incref(record);
    int rc = kvl_runner_append(r, record, run->c->err);
    if (rc == KVL_OK) kvl_outcome_of(record, outcome);
    json_decref(record);
    kvl_progress_spent(&r->progress);
    return rc;
}

/* One of the answers: its text, its score, what was observed of its session. */
static int answer_read(const struct kvl_cell_run *run, const struct kvl_context_question *q,
                       const struct kvl_ask *a, struct kvl_buf *text, struct kvl_outcome *o)
{
    struct kvl_context *c = run->c;
    struct kvl_task_score score = { 0 };
    o->failed = false;
    outcome_measure(run, a, o);
    KVL_TRY(kvl_method_take(a->session, &o->method, c->err));
    KVL_TRY(kvl_decode(kvl_model_tokenizer(c->r->work->model), a->id, a->n_id, false, false, text,
                       c->err));
    kvl_guard_task(c->g->task->task->name);
    c->g->task->task->score(q->q, text->data, &score);
    kvl_guard_task(NULL);
    KVL_TRY(kvl_fp_kept(KVL_OK, KVL_ETASK, c->err));
    KVL_TRY(score_check(c->g->task->task, &score, c->err));
    outcome_score(&score, o);
    return KVL_OK;
}

/* Running means of what was observed, over answers that have it; NaN before the first. */
static void mean_add(double *mean, double v, int32_t *n)
{
    if (isnan(v)) return;
    *mean = *n == 0 ? v : *mean + (v - *mean) / (*n + 1);
    ++*n;
}

enum { SAMPLE_MEANS = KVL_OUTCOME_NUMBERS + KVL_TASK_SUBS + KVL_N_TIERS };

static size_t outcome_means(struct kvl_outcome *o, double *out[SAMPLE_MEANS])
{
    size_t n = KVL_OUTCOME_NUMBERS;
    kvl_outcome_numbers(o, out);
    for (int32_t i = 0; i < o->n_sub; i++) out[n++] = &o->sub[i].value;
    for (int i = 0; i < KVL_N_TIERS; i++) out[n++] = &o->tiers[i];
    return n;
}

/* The answers of a question as one: its score is their mean.  What the method says is of the first. */
static int answers_read(const struct kvl_cell_run *run, const struct kvl_context_question *q,
                        const struct kvl_ask *ask, int32_t n, struct kvl_answer *answer,
                        struct kvl_buf *text)
{
    int32_t count[SAMPLE_MEANS] = { 0 };
    KVL_TRY(answer_read(run, q, &ask[0], text, &answer->outcome));
    if (n == 1) return KVL_OK;
    double *to[SAMPLE_MEANS], *from[SAMPLE_MEANS];
    size_t n_means = outcome_means(&answer->outcome, to);
    for (size_t i = 0; i < n_means; i++) count[i] = !isnan(*to[i]);
    answer->answers = kvl_record_answers(NULL, &ask[0], text, &answer->outcome);
    for (int32_t k = 1; k < n; k++) {
        struct kvl_outcome one = outcome_failed();
        struct kvl_buf more = { 0 };
        int rc = kvl_buf_adds(&more, "");
        if (rc == KVL_OK) rc = answer_read(run, q, &ask[k], &more, &one);
        if (rc == KVL_OK && answer->answers)
            answer->answers = kvl_record_answers(answer->answers, &ask[k], &more, &one);
        if (rc == KVL_OK && !answer->answers)
            rc = kvl_fail(run->c->err, KVL_ENOMEM, "out of memory for answers");
        kvl_buf_free(&more);
        outcome_means(&one, from);
        for (size_t i = 0; i < n_means && rc == KVL_OK; i++) mean_add(to[i], *from[i], &count[i]);
        kvl_outcome_free(&one);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

int kvl_sample_append(const struct kvl_cell_run *run, int32_t question, const struct kvl_ask *ask,
                      int32_t n)
{
    struct kvl_context *c = run->c;
    struct kvl_runner *r = c->r;
    const struct kvl_context_question *q = &c->question[question];
    struct kvl_buf text = { 0 };
    struct kvl_answer answer = {
        .cell = run->cell,
        .q = q->q,
        .ask = ask,
        .n = n,
        .context = c->index,
        .text = kvl_point_text(r->work->sweep, run->cell->task, c->index),
        .question = question,
        .context_tok = c->sample.tokens.n,
        .question_tok = q->tokens.n,
        .seed = c->seed,
        .prompt = kvl_prompt_hash(&c->sample.tokens, &q->tokens),
        .joint = q->joint,
        .outcome = outcome_failed(),
    };
    uint64_t wall = 0;
    int rc = kvl_buf_adds(&text, "");
    if (rc == KVL_OK && ask->error.code == KVL_OK)
        rc = answers_read(run, q, ask, n, &answer, &text);
    for (int32_t k = 0; k < n; k++) wall += ask[k].wall_ns;
    answer.outcome.wall_ns = (double)(wall + run->parent_ns / (uint64_t)c->sample.n_questions);
    answer.outcome.prefill_ns = run->prefill_ns;
    answer.prediction = text.data;
    answer.prediction_len = text.len;
    if (rc == KVL_OK) rc = sample_append(run, &answer);
    r->stats.n_samples += rc == KVL_OK;
    r->progress.n_answers += rc == KVL_OK;
    r->stats.n_errors += rc == KVL_OK && answer.outcome.failed;
    r->progress.n_errors += rc == KVL_OK && answer.outcome.failed;
    kvl_outcome_free(&answer.outcome);
    json_decref(answer.answers);
    kvl_buf_free(&text);
    return rc;
}
