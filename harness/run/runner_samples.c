/* From an answer to its sample record. */
#include "runner_context.h"

#include "guard.h"

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
                                 .window_tok = none,
                                 .kv_read = none,
                                 .index_read = none,
                                 .kv_logical = none,
                                 .kv_physical = none,
                                 .kv_own = none,
                                 .meta = none };
}

/* The cell is made of what the log says, as after a restart. */
static int sample_append(const struct kvl_cell_run *run, const struct kvl_answer *a)
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

int kvl_sample_append(const struct kvl_cell_run *run, int32_t question, const struct kvl_ask *a)
{
    struct kvl_context *c = run->c;
    struct kvl_runner *r = c->r;
    const struct kvl_context_question *q = &c->question[question];
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
        kvl_guard_task(c->g->task->task->name);
        if (rc == KVL_OK) c->g->task->task->score(q->q, text.data, &score);
        kvl_guard_task(NULL);
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
