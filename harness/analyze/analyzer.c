/* Feeds the expected answers of tasks to full attention, and records what it looks like. */
#include "analyzer.h"

#include "folders.h"
#include "json.h"
#include "record_analysis.h"
#include "stop.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- one answer ------------------------------------------------------------------------------ */

/* Tokens that follow a context: those that are prefilled with it, then the steps. */
struct answer {
    struct kvl_tokens question, expected;
    struct kvl_watch watch;
};

static void answer_free(struct answer *x)
{
    kvl_tokens_free(&x->question);
    kvl_tokens_free(&x->expected);
    kvl_watch_free(&x->watch);
}

static int answer_read(struct kvl_analyzer *z, const struct kvl_sample *sample, int32_t i,
                       struct answer *x)
{
    const struct kvl_question *q = &sample->question[i];
    const struct kvl_prompt *prompt = kvl_group_prompt(z->work, z->group);
    const struct kvl_tokenizer *t = kvl_prompt_inside(prompt);
    KVL_TRY(kvl_prompt_question(prompt, sample, i, &x->question, z->err));
    KVL_TRY(kvl_encode(t, q->answer, strlen(q->answer), KVL_ENCODE_CONTINUE, &x->expected, z->err));
    if (x->question.n == 0 || x->expected.n == 0)
        return kvl_fail(z->err, KVL_EINVAL, "%s: a question or an answer without tokens",
                        z->group->task->task->name);
    return kvl_watch_create(sample, q, &x->expected, &x->watch, z->err);
}

/* The last token of the question makes the first of the answer; the last of the answer is not run. */
static int answer_steps(struct kvl_analyzer *z, struct kvl_session *s, const struct answer *x)
{
    const int32_t *question = x->question.id;
    int32_t n = x->question.n;
    if (n > 1) KVL_TRY(kvl_session_prefill(s, question, n - 1, NULL, false, z->err));
    kvl_analysis_answer(z->analysis);
    for (int32_t i = 0; i < x->expected.n; i++)
        KVL_TRY(kvl_analysis_decode(z->analysis, s, i ? x->expected.id[i - 1] : question[n - 1],
                                    &x->watch, i, z->logits, z->err));
    z->n_answers++;
    return KVL_OK;
}

static int analyze_question(struct kvl_analyzer *z, const struct kvl_session *context,
                            const struct kvl_sample *sample, int32_t question)
{
    struct answer x = { 0 };
    struct kvl_session *s = NULL;
    int rc = answer_read(z, sample, question, &x);
    if (rc == KVL_OK) rc = kvl_session_fork(context, &s, z->err);
    if (rc == KVL_OK) rc = answer_steps(z, s, &x);
    kvl_session_destroy(s);
    answer_free(&x);
    return rc;
}

/* ---- one context ----------------------------------------------------------------------------- */

/* Of a text the tokens behind what its mode prefills, one by one. */
static int analyze_text(struct kvl_analyzer *z, struct kvl_session *s,
                        const struct kvl_sample *sample, int32_t before)
{
    kvl_analysis_answer(z->analysis);
    for (int32_t at = before; at < sample->tokens.n - 1; at++)
        KVL_TRY(
            kvl_analysis_decode(z->analysis, s, sample->tokens.id[at], NULL, 0, z->logits, z->err));
    z->n_answers++;
    return KVL_OK;
}

static int analyze_sample(struct kvl_analyzer *z, const struct kvl_sample *sample)
{
    const struct kvl_reading *reading = kvl_point_reading(z->group->task);
    int32_t n = sample->tokens.n, before = reading ? kvl_reading_before(reading, n) : n;
    struct kvl_session *s;
    KVL_TRY(kvl_session_create(z->engine, &s, z->err));
    int rc = kvl_session_prefill(s, sample->tokens.id, before, NULL, false, z->err);
    if (rc == KVL_OK && reading) rc = analyze_text(z, s, sample, before);
    for (int32_t q = 0; q < sample->n_questions && rc == KVL_OK; q++)
        rc = analyze_question(z, s, sample, q);
    kvl_session_destroy(s);
    return rc;
}

static int analyze_context(struct kvl_analyzer *z, int32_t context)
{
    struct kvl_sample sample = { 0 };
    char what[64];
    snprintf(what, sizeof what, "%s %d", z->group->task->task->name, z->group->length);
    kvl_progress_name(&z->progress, what);
    kvl_progress_show(&z->progress, what);
    KVL_TRY(kvl_context_generate(z->work, z->group, context, &sample, z->err));
    int rc = analyze_sample(z, &sample);
    kvl_sample_free(&sample);
    z->did += kvl_prefill_cost(z->work, z->group->length);
    kvl_progress_part(&z->progress, z->did / z->to_do);
    return rc;
}

/* ---- one length of a task -------------------------------------------------------------------- */

/* Tokens of the longest context with its question and answer. */
static int analyze_room(struct kvl_analyzer *z, int32_t *room)
{
    *room = z->group->length;
    for (int32_t c = 0; c < kvl_point_contexts(z->s, z->group->task); c++) {
        struct kvl_sample sample = { 0 };
        int rc = kvl_context_generate(z->work, z->group, c, &sample, z->err);
        for (int32_t q = 0; q < sample.n_questions && rc == KVL_OK; q++) {
            struct answer x = { 0 };
            rc = answer_read(z, &sample, q, &x);
            *room = KVL_MAX(*room, sample.tokens.n + x.question.n + x.expected.n);
            answer_free(&x);
        }
        kvl_sample_free(&sample);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

/* What of the sweep's analyses has these bits. */
static struct kvl_analysis_want analyze_want(const struct kvl_analyzer *z, unsigned what)
{
    const struct kvl_analyze *from = &z->s->analyze;
    struct kvl_analysis_want want = { .mass = what & KVL_ANALYZE_MASS,
                                      .similarity = what & KVL_ANALYZE_SIMILARITY,
                                      .drift = what & KVL_ANALYZE_DRIFT,
                                      .n_m = from->tokens.n,
                                      .lag = from->lag };
    static_assert(sizeof want.m == sizeof from->tokens.v, "as many numbers");
    memcpy(want.m, from->tokens.v, sizeof want.m);
    return want;
}

static struct kvl_analysis_info analyze_info(const struct kvl_analyzer *z, unsigned what)
{
    const struct kvl_analyze *from = &z->s->analyze;
    struct kvl_analysis_info info = { .work = z->work,
                                      .group = z->group,
                                      .what = kvl_analyze_name(what),
                                      .n_next = from->next.n,
                                      .dense_layers = from->dense_layers,
                                      .wait_layers = from->wait_layers,
                                      .n_answers = z->n_answers };
    static_assert(sizeof info.next == sizeof from->next.v, "as many numbers");
    memcpy(info.next, from->next.v, sizeof info.next);
    return info;
}

static int analyze_announce(struct kvl_analyzer *z)
{
    struct kvl_run_info info = { .argc = z->argc,
                                 .argv = z->argv,
                                 .work = z->work,
                                 .machine = z->machine,
                                 .store = kvl_store_desc(kvl_engine_store(z->engine)),
                                 .threads = kvl_ops_threads(),
                                 .chunk_tok = z->s->chunk_tok,
                                 .jobs = { .n = 1, .threads = kvl_ops_threads() } };
    json_t *run = kvl_record_run(kvl_log_run(z->log), &info);
    int rc = run ? kvl_log_append(z->log, run, z->err)
                 : kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
    json_decref(run);
    z->announced = true;
    return rc;
}

static int analyze_append(struct kvl_analyzer *z, json_t *record)
{
    if (!record) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
    int rc = KVL_OK;
    if (z->show) rc = z->show(record, z->err);
    if (rc == KVL_OK && z->log && !z->announced) rc = analyze_announce(z);
    if (rc == KVL_OK && z->log) rc = kvl_log_append(z->log, record, z->err);
    json_decref(record);
    return rc;
}

static int analyze_records(struct kvl_analyzer *z, uint64_t t0)
{
    kvl_progress_end(&z->progress);
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1) {
        if (!(z->s->analyze.what & bit)) continue;
        struct kvl_analysis view = *z->analysis;
        struct kvl_analysis_info info = analyze_info(z, bit);
        view.want = analyze_want(z, bit);
        info.wall_s = (double)(kvl_now_ns() - t0) * 1e-9;
        const char *run = z->log ? kvl_log_run(z->log) : "";
        KVL_TRY(analyze_append(z, kvl_record_analysis(run, &view, &info, z->err)));
    }
    return z->log ? kvl_log_commit(z->log, z->err) : KVL_OK;
}

/* ---- what the log has already ------------------------------------------------------------------ */

static int analyze_read(json_t *record, void *user, struct kvl_err *err)
{
    struct kvl_analyzer *z = user;
    if (strcmp(kvl_json_text(record, "kind"), "analysis") != 0) return KVL_OK;
    return json_object_set(z->done, kvl_json_text(record, "cell"), record) == 0
               ? KVL_OK
               : kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
}

/* The analysis of the group at hand, borrowed; NULL: not there. */
static json_t *analyze_done(const struct kvl_analyzer *z, unsigned bit)
{
    struct kvl_analysis_want want = analyze_want(z, bit);
    struct kvl_analysis_info info = analyze_info(z, bit);
    char id[KVL_CELL_ID];
    if (!z->done || kvl_analysis_id(&want, &info, id) != KVL_OK) return NULL;
    return json_object_get(z->done, id);
}

static bool analyze_group_done(const struct kvl_analyzer *z)
{
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1)
        if ((z->s->analyze.what & bit) && !analyze_done(z, bit)) return false;
    return true;
}

static int analyze_show_done(struct kvl_analyzer *z)
{
    kvl_progress_end(&z->progress);
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL && z->show; bit <<= 1)
        if (z->s->analyze.what & bit) KVL_TRY(z->show(analyze_done(z, bit), z->err));
    return KVL_OK;
}

static int analyze_group_run(struct kvl_analyzer *z)
{
    uint64_t t0 = kvl_now_ns();
    struct kvl_analysis_want want = analyze_want(z, z->s->analyze.what);
    int32_t room;
    KVL_TRY(analyze_room(z, &room));
    KVL_TRY(kvl_analysis_create(&want, kvl_model_shape(z->model), room, &z->analysis, z->err));
    int rc = KVL_OK;
    int32_t contexts = kvl_point_contexts(z->s, z->group->task);
    for (int32_t c = 0; c < contexts && rc == KVL_OK; c++) rc = analyze_context(z, c);
    if (rc == KVL_OK) rc = analyze_records(z, t0);
    kvl_analysis_destroy(z->analysis);
    return rc;
}

static int analyze_group(struct kvl_analyzer *z, const struct kvl_group *g)
{
    z->group = g;
    z->n_answers = 0;
    int rc = analyze_group_done(z) ? analyze_show_done(z) : analyze_group_run(z);
    z->progress.n_done++;
    return rc;
}

/* ---- all lengths ----------------------------------------------------------------------------- */

static int analyze_open_log(struct kvl_analyzer *z)
{
    if (!z->log_path) return KVL_OK;
    z->done = json_object();
    if (!z->done) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for the log");
    KVL_TRY(kvl_make_folders(z->log_path, z->err));
    return kvl_log_open(z->log_path, analyze_read, z, NULL, &z->log, z->err);
}

static int analyze_engine(struct kvl_analyzer *z)
{
    struct kvl_engine_desc desc = kvl_sweep_engine(z->s);
    desc.model = z->model;
    desc.device = z->device;
    desc.allow_overlong = z->allow_overlong;
    z->logits = kvl_alloc((size_t)kvl_model_shape(z->model)->n_vocab, sizeof *z->logits);
    if (!z->logits) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for logits");
    KVL_TRY(kvl_engine_create(&desc, &z->engine, z->err));
    kvl_engine_set_stop(z->engine, kvl_stop_flag());
    kvl_progress_watch(&z->progress, z->engine);
    kvl_stop_install();
    return KVL_OK;
}

int kvl_analyzer_run(struct kvl_analyzer *z)
{
    KVL_TRY(analyze_engine(z));
    KVL_TRY(analyze_open_log(z));
    for (size_t i = 0; i < z->work->n_groups; i++)
        z->to_do += kvl_point_contexts(z->s, z->work->group[i].task) *
                    kvl_prefill_cost(z->work, z->work->group[i].length);
    z->progress.n_cells = z->work->n_groups;
    kvl_progress_begin(&z->progress, !z->show);
    int rc = KVL_OK;
    for (size_t i = 0; i < z->work->n_groups && rc == KVL_OK; i++)
        rc = analyze_group(z, &z->work->group[i]);
    kvl_progress_end(&z->progress);
    return rc;
}

int kvl_analyzer_close(struct kvl_analyzer *z, struct kvl_err *err)
{
    int rc = kvl_log_close(z->log, err);
    kvl_engine_destroy(z->engine);
    json_decref(z->done);
    kvl_free(z->logits);
    return rc;
}
