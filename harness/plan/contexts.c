/* The contexts of a group: seeds, and what a task must have made. */
#include "crash_line.h"
#include "sweep_plan.h"

#include "kvl/fpenv.h"

#include <string.h>

uint64_t kvl_context_seed(const struct kvl_sweep *s, const struct kvl_point *task, int32_t length,
                          double depth, int32_t context)
{
    uint64_t seed = kvl_seed_str(s->seed, task->task->name);
    /* A text is the same one however it is read, a file wherever it lies. */
    if (task->source)
        seed = kvl_seed_mix(seed, task->data);
    else if (!kvl_point_reading(task))
        seed = kvl_seed_str(seed, task->key);
    seed = kvl_seed_mix(seed, (uint64_t)length);
    uint64_t place = depth < 0.0 ? UINT64_MAX : (uint64_t)(depth * 1e9 + 0.5);
    seed = kvl_seed_mix(seed, place);
    return kvl_seed_mix(seed, (uint64_t)context);
}

static bool context_has_spans(const struct kvl_question *q, size_t bytes)
{
    for (int32_t e = 0; e < q->n_evidence; e++)
        for (int32_t s = 0; s < q->evidence[e].n_spans; s++) {
            struct kvl_span span = q->evidence[e].span[s];
            if (span.begin >= span.end || span.end > bytes) return false;
        }
    return true;
}

const struct kvl_prompt *kvl_group_prompt(const struct kvl_work *w, const struct kvl_group *g)
{
    return g->speed || g->task->raw ? &w->raw : &w->asks;
}

enum { CONTEXT_MAX_NEW = 1 << 20 }; /* no answer is longer; sums with lengths stay in 32 bits */

/* What the rest relies on: a task may come from a plug-in. */
static int context_check(const struct kvl_task *task, const struct kvl_task_request *req,
                         int32_t wanted, const struct kvl_sample *s, struct kvl_err *err)
{
    bool whole = req->source ? s->tokens.n >= 1 && s->tokens.n <= req->length_tok
                             : s->tokens.n == req->length_tok;
    if (!s->context || !whole)
        return kvl_fail(err, KVL_ETASK, "task %s: made a context of %d tokens, want %d", task->name,
                        s->context ? s->tokens.n : 0, req->length_tok);
    if (s->n_questions != wanted)
        return kvl_fail(err, KVL_ETASK, "task %s: asks %d questions, want %d", task->name,
                        s->n_questions, wanted);
    for (int32_t i = 0; i < s->n_questions; i++) {
        const struct kvl_question *q = &s->question[i];
        if (!q->text || !q->answer || !q->gold || q->max_new_tok < 1)
            return kvl_fail(err, KVL_ETASK,
                            "task %s: question %d lacks its text, answer, gold or max_new_tok",
                            task->name, i);
        if (q->max_new_tok > CONTEXT_MAX_NEW)
            return kvl_fail(err, KVL_ETASK,
                            "task %s: question %d has a max_new_tok of %d, want at most %d",
                            task->name, i, q->max_new_tok, CONTEXT_MAX_NEW);
        if (q->n_prefix > strlen(q->text))
            return kvl_fail(err, KVL_ETASK,
                            "task %s: the answer prefix of question %d is longer than its text",
                            task->name, i);
        if (!context_has_spans(q, strlen(s->context)))
            return kvl_fail(err, KVL_ETASK,
                            "task %s: evidence of question %d is not inside the context",
                            task->name, i);
    }
    return KVL_OK;
}

int kvl_context_generate(const struct kvl_work *w, const struct kvl_group *g, int32_t context,
                         struct kvl_sample *out, struct kvl_err *err)
{
    const struct kvl_prompt *prompt = kvl_group_prompt(w, g);
    struct kvl_task_request req = {
        .tokenizer = kvl_prompt_inside(prompt),
        .length_tok = g->length,
        .depth = g->depth,
        .n_questions = g->speed ? 1 : w->sweep->questions,
        .seed = kvl_context_seed(w->sweep, g->task, g->length, g->depth, context),
        .index = context,
        .opts = g->task->opts,
        .source = g->task->source,
    };
    if (!req.source || !req.source->around)
        KVL_TRY(kvl_prompt_counts(prompt, &req.length_tok, &req.before_tok, &req.after_tok, err));
    if (req.length_tok < 1 || (req.before_tok > 0 && kvl_prompt_takes(prompt) >= g->length))
        return kvl_fail(err, KVL_EINVAL, "length %d: chat template %s takes %d tokens of it",
                        g->length, prompt->name, kvl_prompt_takes(prompt));
    int32_t wanted = g->speed ? 1 : kvl_point_questions(w->sweep, g->task, context);
    if (!g->task->task->score) wanted = 0;
    kvl_guard_task(g->task->task->name);
    int rc = g->task->task->generate(&req, out, err);
    kvl_guard_task(NULL);
    rc = kvl_fp_kept(rc, KVL_ETASK, err);
    if (rc == KVL_OK) rc = context_check(g->task->task, &req, wanted, out, err);
    if (rc == KVL_OK) rc = kvl_prompt_context(prompt, out, err);
    if (rc != KVL_OK) kvl_sample_free(out);
    return rc;
}
