/* kvlab analyze: what full attention looks like on the answers of tasks. */
#include "analysis.h"
#include "args.h"
#include "cmds.h"
#include "folders.h"
#include "log.h"
#include "progress.h"
#include "record_analysis.h"
#include "registry.h"
#include "results.h"
#include "stop.h"
#include "sweep_cmd.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANALYZE_KEY_OUT = 0x420, ANALYZE_KEY_DRY, ANALYZE_KEY_QUIET };

struct analyze_args {
    struct kvl_args base;
    struct kvl_sweep_args sweep;
    const char *what, *file, *out;
    bool quiet, dry_run;
};

static const struct argp_option analyze_options[] = {
    { "task", 't', "NAME[:OPTION=V,...]", 0,
      "whose answers are fed; perplexity: the last tokens of a text", 0 },
#define CONTEXT_FLAG(id, name, key, arg, help) { name, KVL_FLAG_##id, arg, 0, help, 0 },
#define ANALYZE_FLAG(id, name, key, arg, help) { name, KVL_FLAG_##id, arg, 0, help, 1 },
#include "settings.def"
    { "out", ANALYZE_KEY_OUT, "LOG", 0,
      "log that the records go to (default: none; of a FILE.yaml its own)", 2 },
    { "dry-run", ANALYZE_KEY_DRY, NULL, 0, "print what would be analysed; run nothing", 2 },
    { "quiet", ANALYZE_KEY_QUIET, NULL, 0, "no progress line, no tables", 2 },
    { 0 }
};

/* ---- arguments ------------------------------------------------------------------------------- */

/* A name with a suffix is a sweep file's, one without an analysis'. */
static int analyze_word(struct analyze_args *a, const char *word)
{
    bool file = strchr(word, '.') || strchr(word, '/');
    if (file ? a->file != NULL : a->what != NULL)
        return kvl_fail(
            a->base.err, KVL_EINVAL,
            file ? "\"%s\": one file at a time" : "\"%s\": one analysis at a time, or all", word);
    *(file ? &a->file : &a->what) = word;
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
    case ANALYZE_KEY_DRY: a->dry_run = true; break;
    case ARGP_KEY_ARG: rc = analyze_word(a, arg); break;
    case 't': rc = kvl_sweep_override(&a->sweep, "tasks", "--task", arg, true); break;
    default:
        rc = kvl_sweep_flag(&a->sweep, key, arg);
        if (rc == ARGP_ERR_UNKNOWN) return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child analyze_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
static const struct argp analyze_argp = {
    .options = analyze_options,
    .parser = analyze_parse,
    .args_doc = "mass|similarity|drift|all\nFILE.yaml",
    .doc = "What full attention looks like while the expected answers of a task are fed.\v"
           "mass: tokens that hold 90, 95, 99 % of the attention, per layer and head.  similarity: "
           "attention of a layer that falls on the important tokens of another, evidence among "
           "them, and filter layers for omnikv.  drift: important tokens that still are so some "
           "steps later.  Important: the --tokens largest weights of a layer, the current token "
           "aside; of its query heads the largest weight counts, in the log the mean, too.  "
           "FILE.yaml: a "
           "sweep with a map `analyze` (harness/plan/config.h); what its log has already is not "
           "run again.",
    .children = analyze_children,
};

/* ---- one answer ------------------------------------------------------------------------------ */

struct analyze {
    struct analyze_args *a;
    struct kvl_sweep s;
    const struct kvl_device *device;
    struct kvl_model *model;
    struct kvl_machine machine;
    struct kvl_work *work;
    struct kvl_engine *engine;
    struct kvl_log *log;
    json_t *done; /* of the log: id -> analysis of this build */
    bool announced;
    struct kvl_analysis *analysis; /* of the group at hand */
    const struct kvl_group *group;
    int64_t n_answers;
    float *logits;
    struct kvl_progress progress;
    double did, to_do; /* units of prefill */
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

static int answer_read(struct analyze *z, const struct kvl_sample *sample, int32_t i,
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
    int rc = answer_read(z, sample, question, &x);
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
static int analyze_room(struct analyze *z, int32_t *room)
{
    *room = z->group->length;
    for (int32_t c = 0; c < kvl_point_contexts(&z->s, z->group->task); c++) {
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
static struct kvl_analysis_want analyze_want(const struct analyze *z, unsigned what)
{
    const struct kvl_analyze *from = &z->s.analyze;
    struct kvl_analysis_want want = { .mass = what & KVL_ANALYZE_MASS,
                                      .similarity = what & KVL_ANALYZE_SIMILARITY,
                                      .drift = what & KVL_ANALYZE_DRIFT,
                                      .n_m = from->tokens.n,
                                      .lag = from->lag };
    static_assert(sizeof want.m == sizeof from->tokens.v, "as many numbers");
    memcpy(want.m, from->tokens.v, sizeof want.m);
    return want;
}

static struct kvl_analysis_info analyze_info(const struct analyze *z, unsigned what)
{
    const struct kvl_analyze *from = &z->s.analyze;
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

static int analyze_announce(struct analyze *z)
{
    struct kvl_run_info info = { .argc = z->a->sweep.argc,
                                 .argv = z->a->sweep.argv,
                                 .work = z->work,
                                 .machine = &z->machine,
                                 .store = kvl_store_desc(kvl_engine_store(z->engine)),
                                 .threads = kvl_ops_threads(),
                                 .chunk_tok = z->s.chunk_tok,
                                 .jobs = { .n = 1, .threads = kvl_ops_threads() } };
    json_t *run = kvl_record_run(kvl_log_run(z->log), &info);
    int rc = run ? kvl_log_append(z->log, run, z->err)
                 : kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
    json_decref(run);
    z->announced = true;
    return rc;
}

static int analyze_append(struct analyze *z, json_t *record)
{
    if (!record) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for a record");
    int rc = KVL_OK;
    if (!z->a->quiet) rc = kvl_report_analysis(record, stdout, z->err);
    if (rc == KVL_OK && z->log && !z->announced) rc = analyze_announce(z);
    if (rc == KVL_OK && z->log) rc = kvl_log_append(z->log, record, z->err);
    json_decref(record);
    return rc;
}

static int analyze_records(struct analyze *z, uint64_t t0)
{
    kvl_progress_end(&z->progress);
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1) {
        if (!(z->s.analyze.what & bit)) continue;
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
    struct analyze *z = user;
    if (strcmp(kvl_json_text(record, "kind"), "analysis") != 0) return KVL_OK;
    return json_object_set(z->done, kvl_json_text(record, "cell"), record) == 0
               ? KVL_OK
               : kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
}

/* The analysis of the group at hand, borrowed; NULL: not there. */
static json_t *analyze_done(const struct analyze *z, unsigned bit)
{
    struct kvl_analysis_want want = analyze_want(z, bit);
    struct kvl_analysis_info info = analyze_info(z, bit);
    char id[KVL_CELL_ID];
    if (!z->done || kvl_analysis_id(&want, &info, id) != KVL_OK) return NULL;
    return json_object_get(z->done, id);
}

static bool analyze_group_done(const struct analyze *z)
{
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1)
        if ((z->s.analyze.what & bit) && !analyze_done(z, bit)) return false;
    return true;
}

static int analyze_show_done(struct analyze *z)
{
    kvl_progress_end(&z->progress);
    for (unsigned bit = 1; bit < KVL_ANALYZE_ALL && !z->a->quiet; bit <<= 1)
        if (z->s.analyze.what & bit)
            KVL_TRY(kvl_report_analysis(analyze_done(z, bit), stdout, z->err));
    return KVL_OK;
}

static int analyze_group_run(struct analyze *z)
{
    uint64_t t0 = kvl_now_ns();
    struct kvl_analysis_want want = analyze_want(z, z->s.analyze.what);
    int32_t room;
    KVL_TRY(analyze_room(z, &room));
    KVL_TRY(kvl_analysis_create(&want, kvl_model_shape(z->model), room, &z->analysis, z->err));
    int rc = KVL_OK;
    int32_t contexts = kvl_point_contexts(&z->s, z->group->task);
    for (int32_t c = 0; c < contexts && rc == KVL_OK; c++) rc = analyze_context(z, c);
    if (rc == KVL_OK) rc = analyze_records(z, t0);
    kvl_analysis_destroy(z->analysis);
    return rc;
}

static int analyze_group(struct analyze *z, const struct kvl_group *g)
{
    z->group = g;
    z->n_answers = 0;
    int rc = analyze_group_done(z) ? analyze_show_done(z) : analyze_group_run(z);
    z->progress.n_done++;
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* A word goes before what the file says. */
static int analyze_check(struct analyze *z)
{
    struct analyze_args *a = z->a;
    const char *near;
    if (!a->what && a->file) return KVL_OK;
    if (!a->what)
        return kvl_fail(z->err, KVL_EINVAL, "no analysis, want mass, similarity, drift or all");
    if (kvl_analyze_find(a->what, &near))
        return kvl_sweep_override(&a->sweep, "analyze.what", "analyze", a->what, true);
    if (near)
        return kvl_fail(z->err, KVL_EINVAL, "%s: no such analysis, did you mean \"%s\"?", a->what,
                        near);
    return kvl_fail(z->err, KVL_EINVAL, "%s: no such analysis, want mass, similarity, drift or all",
                    a->what);
}

/* A sweep of full attention: its contexts are those of any sweep of the same seed. */
static int analyze_plan(struct analyze *z)
{
    struct kvl_sweep_args *a = &z->a->sweep;
    KVL_TRY(kvl_sweep_override(a, "policies", "--policy", "full", true));
    KVL_TRY(kvl_sweep_model_flags(a));
    KVL_TRY(kvl_sweep_load(z->a->file, "analyze", a->model.registry, a->override, a->n_overrides,
                           &z->s, z->err));
    if (z->s.models.n)
        return kvl_fail(z->err, KVL_EINVAL, "models: %zu of them, analyze takes one: --model FILE",
                        z->s.models.n);
    z->s.speed.on = false;
    if (a->model.threads) z->s.threads = a->model.threads;
    if (z->s.threads) kvl_ops_set_threads(z->s.threads);
    KVL_TRY(kvl_device_open_gpu(z->s.device, z->s.gpus.first, &z->device, z->err));
    KVL_TRY(kvl_model_fits(z->s.model, z->s.device, z->err));
    KVL_TRY(kvl_model_open_told(z->s.model, z->s.windows_off, &z->model, z->err));
    kvl_machine_read(&z->machine);
    struct kvl_where where = { z->machine.host, kvl_ops_threads(), NULL };
    return kvl_work_create(&z->s, z->model, &where, a->model.allow_overlong, &z->work, z->err);
}

/* What the filter layers of `similarity` may cost, as omnikv has it. */
static int analyze_filters(struct analyze *z)
{
    struct kvl_analyze *a = &z->s.analyze;
    int32_t n = kvl_model_shape(z->model)->n_layers;
    if (a->wait_layers < 0) a->wait_layers = n >= 16;
    int32_t least = KVL_MAX(2, a->wait_layers + 1);
    if (a->dense_layers == 0) a->dense_layers = KVL_MIN(n - 1, KVL_MAX(least, n / 4));
    if (!(a->what & KVL_ANALYZE_SIMILARITY) ||
        (a->dense_layers > a->wait_layers && a->dense_layers < n))
        return KVL_OK;
    return kvl_fail(z->err, KVL_EINVAL,
                    "--dense-layers: %d with %d waiting behind each filter; the model has %d "
                    "layers, want %d to %d",
                    a->dense_layers, a->wait_layers, n, a->wait_layers + 1, n - 1);
}

static void analyze_print(const struct analyze *z)
{
    for (size_t i = 0; i < z->work->n_groups; i++) {
        const struct kvl_group *g = &z->work->group[i];
        for (unsigned bit = 1; bit < KVL_ANALYZE_ALL; bit <<= 1)
            if (z->s.analyze.what & bit)
                printf("  %-10s  %-16s  %d tokens, %d contexts\n", kvl_analyze_name(bit),
                       g->task->task->name, g->length, kvl_point_contexts(&z->s, g->task));
    }
}

static int analyze_open_log(struct analyze *z)
{
    const char *path = z->a->out ? z->a->out : z->a->file ? z->s.log : NULL;
    if (!path) return KVL_OK;
    z->done = json_object();
    if (!z->done) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for the log");
    KVL_TRY(kvl_make_folders(path, z->err));
    return kvl_log_open(path, analyze_read, z, NULL, &z->log, z->err);
}

static int analyze_engine(struct analyze *z)
{
    struct kvl_engine_desc desc = { .model = z->model,
                                    .device = z->device,
                                    .kv_type = z->s.kv_type,
                                    .prefill_type = z->s.prefill_type,
                                    .prefill_kv_host = z->s.prefill_kv_host,
                                    .chunk_tok = z->s.chunk_tok,
                                    .max_tok = z->s.max_tok,
                                    .allow_overlong = z->a->sweep.model.allow_overlong };
    z->logits = kvl_alloc((size_t)kvl_model_shape(z->model)->n_vocab, sizeof *z->logits);
    if (!z->logits) return kvl_fail(z->err, KVL_ENOMEM, "out of memory for logits");
    KVL_TRY(kvl_engine_create(&desc, &z->engine, z->err));
    kvl_engine_set_stop(z->engine, kvl_stop_flag());
    kvl_progress_watch(&z->progress, z->engine);
    kvl_stop_install();
    return KVL_OK;
}

static int analyze_run(struct analyze *z)
{
    KVL_TRY(analyze_check(z));
    KVL_TRY(analyze_plan(z));
    KVL_TRY(analyze_filters(z));
    if (z->a->dry_run) {
        analyze_print(z);
        return KVL_OK;
    }
    KVL_TRY(analyze_engine(z));
    KVL_TRY(analyze_open_log(z));
    for (size_t i = 0; i < z->work->n_groups; i++)
        z->to_do += kvl_point_contexts(&z->s, z->work->group[i].task) *
                    kvl_prefill_cost(z->work, z->work->group[i].length);
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
    int rc = kvl_sweep_args_keep(&a->sweep, argc, argv, err);
    if (rc == KVL_OK) rc = kvl_registry_create(&a->sweep.model.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&analyze_argp, argc, argv, a, &done, err);
    kvl_stop_goes_on();
    if (rc == KVL_OK && !done) rc = analyze_run(&z);
    int closed = kvl_log_close(z.log, rc == KVL_OK ? err : NULL);
    if (rc == KVL_OK) rc = closed;
    kvl_engine_destroy(z.engine);
    kvl_work_destroy(z.work);
    kvl_model_close(z.model);
    kvl_sweep_free(&z.s);
    json_decref(z.done);
    kvl_free(z.logits);
    kvl_sweep_args_free(&a->sweep);
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
