/* kvlab analyze: what full attention looks like on the answers of tasks. */
#include "args.h"
#include "cmds.h"
#include "folders.h"
#include "log.h"
#include "progress.h"
#include "record_analysis.h"
#include "registry.h"
#include "stop.h"
#include "sweep_cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ANALYZE_KEY_OUT = 0x420,
    ANALYZE_KEY_M,
    ANALYZE_KEY_LAG,
    ANALYZE_KEY_NEXT,
    ANALYZE_KEY_DENSE,
    ANALYZE_KEY_WAIT,
    ANALYZE_KEY_QUIET
};
enum { ANALYZE_MASS = 1, ANALYZE_SIMILARITY = 2, ANALYZE_DRIFT = 4, ANALYZE_ALL = 7 };

static const struct analyze_what {
    const char *name;
    unsigned bit;
} analyze_whats[] = {
    { "mass", ANALYZE_MASS },
    { "similarity", ANALYZE_SIMILARITY },
    { "drift", ANALYZE_DRIFT },
    { "all", ANALYZE_ALL },
};
enum { ANALYZE_WHATS = sizeof analyze_whats / sizeof analyze_whats[0] };

struct analyze_args {
    struct kvl_args base;
    struct kvl_sweep_args sweep;
    const char *what, *out;
    struct kvl_analysis_want want;
    struct kvl_analysis_info info; /* next, dense_layers (0 = not given), wait_layers (-1) */
    bool quiet;
};

/* Flags that are keys of a sweep. */
static const struct analyze_flag {
    int key;
    const char *name, *path;
} analyze_flags[] = {
    { 't', "--task", "tasks" },
    { 0x400, "--length", "lengths" },
    { 0x402, "--depth", "depths" },
    { 0x404, "--contexts", "contexts" },
    { 0x405, "--questions", "questions" },
    { 0x406, "--seed", "seed" },
};

static const struct argp_option analyze_options[] = {
    { "task", 't', "NAME[:OPTION=V,...]", 0,
      "whose answers are fed; perplexity: the last tokens of a text", 0 },
    { "length", 0x400, "N[,N...]", 0, "context length in tokens", 0 },
    { "depth", 0x402, "D[,D...]", 0, "spread (default), or 0 to 1", 0 },
    { "contexts", 0x404, "N", 0, "contexts (default 8)", 0 },
    { "questions", 0x405, "N", 0, "questions per context (default 1)", 0 },
    { "seed", 0x406, "N", 0, "default 1", 0 },
    { "tokens", ANALYZE_KEY_M, "M[,M...]", 0,
      "how many tokens of a layer are its important ones (default 64,256)", 1 },
    { "next", ANALYZE_KEY_NEXT, "N[,N...]", 0,
      "similarity: mean over so many layers, itself included (default 2,4)", 1 },
    { "dense-layers", ANALYZE_KEY_DENSE, "N", 0,
      "similarity: dense layers that filter layers may cost (default: a quarter, at least 2)", 1 },
    { "wait-layers", ANALYZE_KEY_WAIT, "N", 0,
      "similarity: dense layers behind a filter (default: 1 from 16 layers on)", 1 },
    { "lag", ANALYZE_KEY_LAG, "N", 0, "drift: up to so many steps (default 8)", 1 },
    { "out", ANALYZE_KEY_OUT, "LOG", 0, "log to append the records to (default: none)", 2 },
    { "quiet", ANALYZE_KEY_QUIET, NULL, 0, "no progress line, no tables", 2 },
    { 0 }
};

/* ---- arguments ------------------------------------------------------------------------------- */

static int analyze_number(const struct analyze_args *a, const char *flag, const char *text,
                          int32_t min, int32_t max, int32_t *out)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK || n < min || n > max)
        return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\", want %d to %d", flag, text, min, max);
    *out = (int32_t)n;
    return KVL_OK;
}

/* "64,256": ascending numbers, `room` at most. */
static int analyze_numbers(const struct analyze_args *a, const char *flag, const char *text,
                           int32_t room, int32_t *out, int32_t *n)
{
    char word[32];
    *n = 0;
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), p);
        if (*n == room)
            return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\" has more than %d numbers", flag,
                            text, room);
        KVL_TRY(analyze_number(a, flag, word, 1, 1 << 24, &out[*n]));
        if (*n > 0 && out[*n] <= out[*n - 1])
            return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\", want ascending numbers", flag,
                            text);
        ++*n;
        p += len;
        if (!*p) return KVL_OK;
    }
}

static int analyze_flag(struct analyze_args *a, int key, const char *text)
{
    for (size_t i = 0; i < sizeof analyze_flags / sizeof analyze_flags[0]; i++) {
        const struct analyze_flag *f = &analyze_flags[i];
        if (f->key != key) continue;
        if (key == 't') return kvl_sweep_override(&a->sweep, f->path, f->name, text, true);
        return kvl_sweep_override_words(&a->sweep, f->path, f->name, text);
    }
    return ARGP_ERR_UNKNOWN;
}

static int analyze_word(struct analyze_args *a, const char *word)
{
    if (a->what)
        return kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": one analysis at a time, or all", word);
    a->what = word;
    return KVL_OK;
}

static error_t analyze_parse(int key, char *arg, struct argp_state *state)
{
    struct analyze_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT:
        a->sweep.args = a->sweep.model.args = &a->base;
        state->child_inputs[0] = &a->sweep.model;
        break;
    case ANALYZE_KEY_OUT: a->out = arg; break;
    case ANALYZE_KEY_QUIET: a->quiet = true; break;
    case ANALYZE_KEY_M:
        rc = analyze_numbers(a, "--tokens", arg, KVL_ANALYSIS_M, a->want.m, &a->want.n_m);
        break;
    case ANALYZE_KEY_NEXT:
        rc = analyze_numbers(a, "--next", arg, KVL_ANALYSIS_NEXT, a->info.next, &a->info.n_next);
        break;
    case ANALYZE_KEY_LAG:
        rc = analyze_number(a, "--lag", arg, 1, KVL_ANALYSIS_LAG, &a->want.lag);
        break;
    case ANALYZE_KEY_DENSE:
        rc = analyze_number(a, "--dense-layers", arg, 1, 4096, &a->info.dense_layers);
        break;
    case ANALYZE_KEY_WAIT:
        rc = analyze_number(a, "--wait-layers", arg, 0, 4096, &a->info.wait_layers);
        break;
    case ARGP_KEY_ARG: rc = analyze_word(a, arg); break;
    default:
        rc = analyze_flag(a, key, arg);
        if (rc == ARGP_ERR_UNKNOWN) return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child analyze_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
static const struct argp analyze_argp = {
    .options = analyze_options,
    .parser = analyze_parse,
    .args_doc = "mass|similarity|drift|all",
    .doc = "What full attention looks like while the expected answers of a task are fed.\v"
           "mass: tokens that hold 90, 95, 99 % of the attention, per layer and head.  similarity: "
           "attention of a layer that falls on the important tokens of another, evidence among "
           "them, and filter layers for omnikv.  drift: important tokens that still are so some "
           "steps later.  Important: the --tokens largest weights of a layer, the current token "
           "aside; of its query heads the largest weight counts, in the log the mean, too.",
    .children = analyze_children,
};

/* ---- one answer ------------------------------------------------------------------------------ */

struct analyze {
    struct analyze_args *a;
    unsigned what;
    struct kvl_sweep s;
    struct kvl_model *model;
    struct kvl_machine machine;
    struct kvl_work *work;
    struct kvl_engine *engine;
    struct kvl_log *log;
    bool announced;
    struct kvl_analysis *analysis; /* of the group at hand */
    const struct kvl_group *group;
    int64_t n_answers;
    float *logits;
    struct kvl_progress progress;
    struct kvl_err *err;
};

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

static int answer_read(struct analyze *z, const struct kvl_sample *sample,
                       const struct kvl_question *q, struct answer *x)
{
    const struct kvl_tokenizer *t = kvl_model_tokenizer(z->model);
    KVL_TRY(kvl_encode(t, q->text, strlen(q->text), KVL_ENCODE_CONTINUE, &x->question, z->err));
    KVL_TRY(kvl_encode(t, q->answer, strlen(q->answer), KVL_ENCODE_CONTINUE, &x->expected, z->err));
    if (x->question.n == 0 || x->expected.n == 0)
        return kvl_fail(z->err, KVL_EINVAL, "%s: a question or an answer without tokens",
                        z->group->task->task->name);
    return kvl_watch_create(sample, q, &x->expected, &x->watch, z->err);
}

/* The last token of the question makes the first of the answer; the last of the answer is not run. */
static int answer_steps(struct analyze *z, struct kvl_session *s, const struct answer *x)
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

static int analyze_question(struct analyze *z, const struct kvl_session *context,
                            const struct kvl_sample *sample, int32_t question)
{
    struct answer x = { 0 };
    struct kvl_session *s = NULL;
    int rc = answer_read(z, sample, &sample->question[question], &x);
    if (rc == KVL_OK) rc = kvl_session_fork(context, &s, z->err);
    if (rc == KVL_OK) rc = answer_steps(z, s, &x);
    kvl_session_destroy(s);
    answer_free(&x);
    return rc;
}

/* ---- one context ----------------------------------------------------------------------------- */

/* Of a text the tokens behind what its mode prefills, one by one. */
static int analyze_text(struct analyze *z, struct kvl_session *s, const struct kvl_sample *sample,
                        int32_t before)
{
    kvl_analysis_answer(z->analysis);
    for (int32_t at = before; at < sample->tokens.n - 1; at++)
        KVL_TRY(
            kvl_analysis_decode(z->analysis, s, sample->tokens.id[at], NULL, 0, z->logits, z->err));
    z->n_answers++;
    return KVL_OK;
}

static int analyze_sample(struct analyze *z, const struct kvl_sample *sample)
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

static int analyze_context(struct analyze *z, int32_t context)
{
    struct kvl_sample sample = { 0 };
    char what[64];
    snprintf(what, sizeof what, "%s %d", z->group->task->task->name, z->group->length);
    kvl_progress_show(&z->progress, what);
    KVL_TRY(kvl_context_generate(z->work, z->group, context, &sample, z->err));
    int rc = analyze_sample(z, &sample);
    kvl_sample_free(&sample);
    z->progress.done += kvl_group_context_cost(z->group);
    return rc;
}

/* ---- one length of a task -------------------------------------------------------------------- */

/* Tokens of the longest context with its question and answer. */
static int analyze_room(struct analyze *z, int32_t *room)
{
    *room = z->group->length;
    for (int32_t c = 0; c < z->s.contexts; c++) {
        struct kvl_sample sample = { 0 };
        int rc = kvl_context_generate(z->work, z->group, c, &sample, z->err);
        for (int32_t q = 0; q < sample.n_questions && rc == KVL_OK; q++) {
            struct answer x = { 0 };
            rc = answer_read(z, &sample, &sample.question[q], &x);
            *room = KVL_MAX(*room, sample.tokens.n + x.question.n + x.expected.n);
            answer_free(&x);
        }
        kvl_sample_free(&sample);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

static int analyze_append(struct analyze *z, json_t *record)
{
    if (!record) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
    int rc = KVL_OK;
    if (!z->a->quiet) rc = kvl_report_analysis(record, stdout, z->err);
    if (rc == KVL_OK && z->log && !z->announced) {
        struct kvl_run_info info = { .argc = z->a->sweep.argc,
                                     .argv = z->a->sweep.argv,
                                     .work = z->work,
                                     .machine = &z->machine,
                                     .store = kvl_store_desc(kvl_engine_store(z->engine)),
                                     .threads = kvl_ops_threads(),
                                     .chunk_tok = z->s.chunk_tok };
        json_t *run = kvl_record_run(kvl_log_run(z->log), &info);
        rc = run ? kvl_log_append(z->log, run, z->err)
                 : kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
        json_decref(run);
        z->announced = true;
    }
    if (rc == KVL_OK && z->log) rc = kvl_log_append(z->log, record, z->err);
    json_decref(record);
    return rc;
}

static int analyze_records(struct analyze *z, uint64_t t0)
{
    struct kvl_analysis_info info = z->a->info;
    info.work = z->work;
    info.group = z->group;
    info.n_answers = z->n_answers;
    info.wall_s = (double)(kvl_now_ns() - t0) * 1e-9;
    kvl_progress_end(&z->progress);
    for (size_t i = 0; i < ANALYZE_WHATS; i++) {
        unsigned bit = analyze_whats[i].bit;
        if (bit == ANALYZE_ALL || !(z->what & bit)) continue;
        struct kvl_analysis view = *z->analysis;
        view.want.mass = bit == ANALYZE_MASS;
        view.want.similarity = bit == ANALYZE_SIMILARITY;
        view.want.drift = bit == ANALYZE_DRIFT;
        info.what = analyze_whats[i].name;
        const char *run = z->log ? kvl_log_run(z->log) : "";
        KVL_TRY(analyze_append(z, kvl_record_analysis(run, &view, &info, z->err)));
    }
    return z->log ? kvl_log_commit(z->log, z->err) : KVL_OK;
}

static int analyze_group(struct analyze *z, const struct kvl_group *g)
{
    uint64_t t0 = kvl_now_ns();
    int32_t room;
    z->group = g;
    z->n_answers = 0;
    KVL_TRY(analyze_room(z, &room));
    KVL_TRY(
        kvl_analysis_create(&z->a->want, kvl_model_shape(z->model), room, &z->analysis, z->err));
    int rc = KVL_OK;
    for (int32_t c = 0; c < z->s.contexts && rc == KVL_OK; c++) rc = analyze_context(z, c);
    if (rc == KVL_OK) rc = analyze_records(z, t0);
    kvl_analysis_destroy(z->analysis);
    z->progress.n_done++;
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int analyze_check(struct analyze *z)
{
    struct analyze_args *a = z->a;
    const char *names[ANALYZE_WHATS];
    if (!a->what)
        return kvl_fail(z->err, KVL_EINVAL, "no analysis, want mass, similarity, drift or all");
    for (size_t i = 0; i < ANALYZE_WHATS; i++) {
        names[i] = analyze_whats[i].name;
        if (strcmp(a->what, names[i]) == 0) z->what = analyze_whats[i].bit;
    }
    const char *near = kvl_nearest(a->what, names, ANALYZE_WHATS);
    if (!z->what && near)
        return kvl_fail(z->err, KVL_EINVAL, "%s: no such analysis, did you mean \"%s\"?", a->what,
                        near);
    if (!z->what)
        return kvl_fail(z->err, KVL_EINVAL,
                        "%s: no such analysis, want mass, similarity, drift or all", a->what);
    a->want.mass = z->what & ANALYZE_MASS;
    a->want.similarity = z->what & ANALYZE_SIMILARITY;
    a->want.drift = z->what & ANALYZE_DRIFT;
    return KVL_OK;
}

/* A sweep of full attention: its contexts are those of any sweep of the same seed. */
static int analyze_plan(struct analyze *z)
{
    struct kvl_sweep_args *a = &z->a->sweep;
    KVL_TRY(kvl_sweep_override(a, "policies", "--policy", "full", true));
    if (a->model.model) KVL_TRY(kvl_sweep_override(a, "model", "--model", a->model.model, true));
    if (a->model.kv_type)
        KVL_TRY(kvl_sweep_override(a, "kv_type", "--kv-type", a->model.kv_type, true));
    KVL_TRY(kvl_sweep_load(NULL, "analyze", a->model.registry, a->override, a->n_overrides, &z->s,
                           z->err));
    KVL_TRY(kvl_model_args_open(&a->model, &z->model, z->err));
    kvl_machine_read(&z->machine);
    struct kvl_where where = { z->machine.host, kvl_ops_threads() };
    return kvl_work_create(&z->s, z->model, &where, a->model.allow_overlong, &z->work, z->err);
}

/* What the filter layers of `similarity` may cost, as omnikv has it. */
static int analyze_filters(struct analyze *z)
{
    struct kvl_analysis_info *info = &z->a->info;
    int32_t n = kvl_model_shape(z->model)->n_layers;
    if (info->wait_layers < 0) info->wait_layers = n >= 16;
    int32_t least = KVL_MAX(2, info->wait_layers + 1);
    if (info->dense_layers == 0) info->dense_layers = KVL_MIN(n - 1, KVL_MAX(least, n / 4));
    if (!(z->what & ANALYZE_SIMILARITY) ||
        (info->dense_layers > info->wait_layers && info->dense_layers < n))
        return KVL_OK;
    return kvl_fail(z->err, KVL_EINVAL,
                    "--dense-layers: %d with %d waiting behind each filter; the model has %d "
                    "layers, want %d to %d",
                    info->dense_layers, info->wait_layers, n, info->wait_layers + 1, n - 1);
}

static int analyze_engine(struct analyze *z)
{
    struct kvl_engine_desc desc = { .model = z->model,
                                    .kv_type = z->s.kv_type,
                                    .chunk_tok = z->s.chunk_tok,
                                    .allow_overlong = z->a->sweep.model.allow_overlong };
    z->logits = kvl_alloc((size_t)kvl_model_shape(z->model)->n_vocab, sizeof *z->logits);
    if (!z->logits) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for logits");
    KVL_TRY(kvl_engine_create(&desc, &z->engine, z->err));
    kvl_engine_set_stop(z->engine, kvl_stop_flag());
    kvl_stop_install();
    return KVL_OK;
}

static int analyze_run(struct analyze *z)
{
    KVL_TRY(analyze_check(z));
    KVL_TRY(analyze_plan(z));
    KVL_TRY(analyze_filters(z));
    KVL_TRY(analyze_engine(z));
    if (z->a->out) {
        KVL_TRY(kvl_make_folders(z->a->out, z->err));
        KVL_TRY(kvl_log_open(z->a->out, NULL, NULL, NULL, &z->log, z->err));
    }
    for (size_t i = 0; i < z->work->n_groups; i++)
        z->progress.total += z->s.contexts * kvl_group_context_cost(&z->work->group[i]);
    z->progress.n_cells = z->work->n_groups;
    kvl_progress_begin(&z->progress, z->a->quiet);
    int rc = KVL_OK;
    for (size_t i = 0; i < z->work->n_groups && rc == KVL_OK; i++)
        rc = analyze_group(z, &z->work->group[i]);
    kvl_progress_end(&z->progress);
    return rc;
}

int cmd_analyze(int argc, char **argv, struct kvl_err *err)
{
    struct analyze_args *a = kvl_alloc(1, sizeof *a);
    struct analyze z = { .a = a, .err = err };
    bool done;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    a->want = (struct kvl_analysis_want){ .m = { 64, 256 }, .n_m = 2, .lag = 8 };
    a->info = (struct kvl_analysis_info){ .next = { 2, 4 }, .n_next = 2, .wait_layers = -1 };
    int rc = kvl_sweep_args_keep(&a->sweep, argc, argv, err);
    if (rc == KVL_OK) rc = kvl_registry_create(&a->sweep.model.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&analyze_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done) rc = analyze_run(&z);
    int closed = kvl_log_close(z.log, rc == KVL_OK ? err : NULL);
    if (rc == KVL_OK) rc = closed;
    kvl_engine_destroy(z.engine);
    kvl_work_destroy(z.work);
    kvl_model_close(z.model);
    kvl_sweep_free(&z.s);
    kvl_free(z.logits);
    kvl_sweep_args_free(&a->sweep);
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
