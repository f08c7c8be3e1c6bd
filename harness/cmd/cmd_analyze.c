/* kvlab analyze: what full attention looks like on the answers of tasks. */
#include "analyzer.h"
#include "args.h"
#include "cmds.h"
#include "registry.h"
#include "report.h"
#include "run_and_sweep.h"
#include "stop.h"

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

/* ---- the whole ------------------------------------------------------------------------------- */

struct analyze {
    struct analyze_args *a;
    struct kvl_sweep s;
    struct kvl_model *model;
    struct kvl_machine machine;
    struct kvl_work *work;
    struct kvl_analyzer run;
    struct kvl_err *err;
};

static int analyze_show(const json_t *record, struct kvl_err *err)
{
    return kvl_report_analysis(record, stdout, err);
}

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
    if (z->s.kv_types.n)
        return kvl_fail(z->err, KVL_EINVAL,
                        "kv_type: %d of them, analyze takes one: --kv-type TYPE", z->s.kv_types.n);
    z->s.speed.on = false;
    if (a->model.threads) z->s.threads = a->model.threads;
    if (z->s.threads) kvl_ops_set_threads(z->s.threads);
    KVL_TRY(kvl_device_open_gpu(z->s.device, z->s.gpus.first, &z->run.device, z->err));
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
                    "--dense-layers: %d with %d waiting after each filter; the model has %d "
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

static int analyze_run(struct analyze *z)
{
    KVL_TRY(analyze_check(z));
    KVL_TRY(analyze_plan(z));
    KVL_TRY(analyze_filters(z));
    if (z->a->dry_run) {
        analyze_print(z);
        return KVL_OK;
    }
    z->run = (struct kvl_analyzer){ .s = &z->s,
                                    .work = z->work,
                                    .model = z->model,
                                    .device = z->run.device,
                                    .machine = &z->machine,
                                    .log_path = z->a->out    ? z->a->out
                                                : z->a->file ? z->s.log
                                                             : NULL,
                                    .allow_overlong = z->a->sweep.model.allow_overlong,
                                    .argc = z->a->sweep.argc,
                                    .argv = z->a->sweep.argv,
                                    .show = z->a->quiet ? NULL : analyze_show,
                                    .err = z->err };
    return kvl_analyzer_run(&z->run);
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
    int closed = kvl_analyzer_close(&z.run, rc == KVL_OK ? err : NULL);
    if (rc == KVL_OK) rc = closed;
    kvl_work_destroy(z.work);
    kvl_model_close(z.model);
    kvl_sweep_free(&z.s);
    kvl_sweep_args_free(&a->sweep);
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
