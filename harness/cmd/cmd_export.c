/* kvlab export: flat tables of a log. */
#include "args.h"
#include "cmds.h"
#include "export.h"
#include "results_amount.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXPORT_KIND = 0x300, EXPORT_FORMAT, EXPORT_AS };
enum { KIND_CELL, KIND_SAMPLE, KIND_SPEED, KIND_CURVE, KIND_QUALITY, KIND_ANALYSIS };

struct export_args {
    struct kvl_args base;
    char **log;
    size_t n_logs;
    int kind, format, form; /* form: of kvl_export_forms, -1 = none */
    const char *out;
};

static const struct argp_option export_options[] = {
    { "kind", EXPORT_KIND, "KIND", 0,
      "rows: cell (default), sample, speed, curve (perplexity), quality or analysis", 0 },
    { "format", EXPORT_FORMAT, "FORMAT", 0, "csv (default), tsv or jsonl", 0 },
    { "as", EXPORT_AS, "BENCHMARK", 0,
      "predictions as the scripts of longbench, infinitebench, ruler or scbench score them; --out "
      "is a "
      "folder",
      0 },
    { "out", 'o', "FILE", 0, "default: standard output", 0 },
    { 0 }
};

/* The index of `word` in `names`. */
static int export_choice(struct export_args *a, const char *option, const char *word,
                         const char *const *names, int *out)
{
    char list[120] = "";
    size_t used = 0;
    for (int i = 0; names[i]; i++) {
        if (strcmp(word, names[i]) == 0) {
            *out = i;
            return KVL_OK;
        }
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0         ? ""
                                 : names[i + 1] ? ", "
                                                : " or ",
                                 names[i]);
    }
    return kvl_fail(a->base.err, KVL_EINVAL, "--%s %s: want %s", option, word, list);
}

static error_t export_parse(int key, char *arg, struct argp_state *state)
{
    static const char *const kinds[] = { "cell",    "sample",   "speed", "curve",
                                         "quality", "analysis", NULL };
    static const char *const formats[] = { "csv", "tsv", "jsonl", NULL };
    struct export_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case EXPORT_KIND: rc = export_choice(a, "kind", arg, kinds, &a->kind); break;
    case EXPORT_FORMAT: rc = export_choice(a, "format", arg, formats, &a->format); break;
    case EXPORT_AS: rc = export_choice(a, "as", arg, kvl_export_forms, &a->form); break;
    case 'o': a->out = arg; break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->log, &a->n_logs); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp export_argp = {
    .options = export_options,
    .parser = export_parse,
    .args_doc = "LOG...",
    .doc = "One row per cell, sample or speed record (curve: per point of a running perplexity; "
           "quality: per step, layer, query head and number of top tokens of a reference pass) of "
           "the logs (files, folders of *.zst, patterns).  Of records with the same id the latest "
           "is taken."
};

static int export_write(const struct export_args *a, const struct kvl_results *r, FILE *out,
                        struct kvl_err *err)
{
    enum kvl_export_format format = (enum kvl_export_format)a->format;
    if (a->kind == KIND_CELL) return kvl_export_cells(r, format, out, err);
    if (a->kind == KIND_SPEED) return kvl_export_speeds(r, format, out, err);
    if (a->kind == KIND_ANALYSIS) return kvl_export_analyses(r, format, out, err);
    if (a->kind == KIND_CURVE) return kvl_export_curves(r, format, out, err);
    if (a->kind == KIND_QUALITY) return kvl_export_quality(r, a->log, a->n_logs, format, out, err);
    return kvl_export_samples(r, a->log, a->n_logs, format, out, err);
}

/* A table that is cut off is worse than none, but a device or a pipe is not ours to remove. */
static void export_remove(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode)) unlink(path);
}

static int export_file(const struct export_args *a, const struct kvl_results *r,
                       struct kvl_err *err)
{
    FILE *out = fopen(a->out, "w");
    if (!out) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", a->out, strerror(errno));
    int rc = export_write(a, r, out, err);
    bool failed = ferror(out) != 0;
    failed |= fclose(out) != 0;
    if (rc == KVL_OK && failed)
        rc = kvl_fail(err, KVL_EIO, "%s: cannot write: %s", a->out, strerror(errno));
    if (rc != KVL_OK) export_remove(a->out);
    return rc;
}

int cmd_export(int argc, char **argv, struct kvl_err *err)
{
    struct export_args a = { .kind = KIND_CELL, .form = -1 };
    bool done;
    KVL_TRY(kvl_args_parse(&export_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (a.form >= 0 && !a.out)
        return kvl_fail(err, KVL_EINVAL, "--as: want --out FOLDER for the predictions");
    struct kvl_results r = { 0 };
    KVL_TRY(kvl_results_load(a.log, a.n_logs, &r, err));
    int rc = kvl_results_partial(&r, "kvlab: the log is ", stderr, err);
    if (rc == KVL_OK)
        rc = a.form >= 0 ? kvl_export_as(&r, a.log, a.n_logs, a.form, a.out, err)
             : a.out     ? export_file(&a, &r, err)
                         : export_write(&a, &r, stdout, err);
    kvl_results_free(&r);
    return rc;
}
