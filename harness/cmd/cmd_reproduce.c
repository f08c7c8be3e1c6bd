/* kvlab reproduce: tables and figures of papers, theirs beside ours. */
#include "args.h"
#include "cmds.h"
#include "data_home.h"
#include "folders.h"
#include "outfile.h"
#include "published.h"
#include "reproduce_page.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
    REPRODUCE_ALL = 256,
    REPRODUCE_SCALE,
    REPRODUCE_DATA,
    REPRODUCE_OUT,
    REPRODUCE_DRY,
    REPRODUCE_SET,
    REPRODUCE_CONTEXTS,
    REPRODUCE_PATH = 1500
};

enum { REPRODUCE_SETS = 16 };

struct reproduce {
    struct kvl_args base;
    const char *set[REPRODUCE_SETS], *contexts; /* NULL: the recipe's */
    size_t n_sets;
    char **name;
    size_t n_names;
    bool all, dry;
    enum kvl_scale scale; /* KVL_N_SCALES: not asked for */
    const char *model, *data, *out;
    struct kvl_published *recipe;
    size_t n;
    size_t n_failed;
};

static const struct argp_option reproduce_options[] = {
    { "all", REPRODUCE_ALL, NULL, 0, "every recipe", 0 },
    { "scale", REPRODUCE_SCALE, "SCALE", 0,
      "paper: the paper's lengths and budgets (default with --model); small: minutes on two cores, "
      "the shape only (default without); real: the same on a real model of half a billion "
      "parameters, asked what such models can answer",
      0 },
    { "model", 'm', "FILE", 0, "the model; without one, the one that ships", 0 },
    { "data", REPRODUCE_DATA, "PATH", 0, "benchmark files, where a recipe asks for them", 0 },
    { "out", REPRODUCE_OUT, "DIR", 0, "logs, pictures and index.html (default out/reproduce)", 0 },
    { "contexts", REPRODUCE_CONTEXTS, "N", 0, "so many contexts per cell: a cheap trial", 0 },
    { "set", REPRODUCE_SET, "KEY=VALUE", 0,
      "a value that replaces the recipe's, as YAML (repeatable); not for analyses", 0 },
    { "dry-run", REPRODUCE_DRY, NULL, 0,
      "what is left to run of the sweeps: cells, memory, time; analyses are left out", 0 },
    { 0 }
};

static enum kvl_scale reproduce_scale(const char *name)
{
    enum kvl_scale s = 0;
    while (s < KVL_N_SCALES && strcmp(kvl_scale_names[s], name) != 0) s++;
    return s;
}

static error_t reproduce_parse(int key, char *arg, struct argp_state *state)
{
    struct reproduce *a = state->input;
    switch (key) {
    case 'm': a->model = arg; break;
    case REPRODUCE_DRY: a->dry = true; break;
    case REPRODUCE_CONTEXTS: a->contexts = arg; break;
    case REPRODUCE_SET:
        if (a->n_sets == REPRODUCE_SETS)
            return kvl_args_fail(&a->base, kvl_fail(a->base.err, KVL_EINVAL,
                                                    "--set: want at most %d", REPRODUCE_SETS));
        a->set[a->n_sets++] = arg;
        break;
    case REPRODUCE_ALL: a->all = true; break;
    case REPRODUCE_DATA: a->data = arg; break;
    case REPRODUCE_OUT: a->out = arg; break;
    case REPRODUCE_SCALE:
        a->scale = reproduce_scale(arg);
        if (a->scale == KVL_N_SCALES)
            return kvl_args_fail(&a->base, kvl_fail(a->base.err, KVL_EINVAL,
                                                    "--scale %s: want paper, small or real", arg));
        break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->name, &a->n_names); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp reproduce_argp = {
    .options = reproduce_options,
    .parser = reproduce_parse,
    .args_doc = "[NAME...]",
    .doc =
        "Runs a paper's table or figure and shows its numbers beside ours: a table here, a chart "
        "and every "
        "setting in DIR/index.html.  Run it again and it goes on where it was.  Without a name it "
        "lists what "
        "there is; a name may be a paper alone (quest).  Recipes are files of harness/reproduce/."
};

/* ---- which ----------------------------------------------------------------------------------- */

static bool reproduce_chosen(const struct reproduce *a, const struct kvl_published *p)
{
    for (size_t i = 0; i < a->n_names; i++) {
        size_t len = strlen(a->name[i]);
        if (!strcmp(p->id, a->name[i])) return true;
        if (!strncmp(p->id, a->name[i], len) && p->id[len] == '.') return true; /* a paper */
    }
    return a->all;
}

static int reproduce_check(const struct reproduce *a, struct kvl_err *err)
{
    const char **ids = kvl_alloc(a->n + 1, sizeof *ids);
    int rc = ids ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory");
    for (size_t i = 0; ids && i < a->n; i++) ids[i] = a->recipe[i].id;
    for (size_t k = 0; rc == KVL_OK && k < a->n_names; k++) {
        bool known = false;
        size_t len = strlen(a->name[k]);
        for (size_t i = 0; i < a->n; i++)
            known |= !strncmp(ids[i], a->name[k], len) && (ids[i][len] == '.' || !ids[i][len]);
        if (known) continue;
        const char *near = kvl_nearest(a->name[k], ids, a->n);
        rc = kvl_fail(err, KVL_EINVAL, "%s: no such recipe%s%s%s, see kvlab reproduce", a->name[k],
                      near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    kvl_free(ids);
    return rc;
}

static int reproduce_list(const struct reproduce *a)
{
    const char *paper = "";
    for (size_t i = 0; i < a->n; i++) {
        const struct kvl_published *p = &a->recipe[i];
        if (strcmp(paper, p->paper) != 0) printf("%s%s\n", i ? "\n" : "", paper = p->paper);
        printf("  %-26s %s: %s%s%s\n", p->id, p->where, p->title, p->data ? "; --data: " : "",
               p->data ? p->data : "");
    }
    return KVL_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* Another command of this program; its output goes where ours does. */
static int reproduce_spawn(const char *const *argv, struct kvl_err *err)
{
    pid_t child;
    int status = 0;
    fflush(stdout);
    int error =
        posix_spawn(&child, "/proc/self/exe", NULL, NULL, (char *const *)(uintptr_t)argv, environ);
    if (error) return kvl_fail(err, KVL_EIO, "cannot start kvlab %s: %s", argv[1], strerror(error));
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return kvl_fail(err, KVL_EIO, "kvlab %s: %s", argv[1], strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return KVL_OK;
    if (WIFSIGNALED(status) || WEXITSTATUS(status) > 128)
        return kvl_fail(err, KVL_ESTOP, "stopped by a signal");
    return kvl_fail(err, KVL_EINVAL, "kvlab %s ended with exit code %d", argv[1],
                    WEXITSTATUS(status));
}

/* The recipe's text with {data} written out, into DIR/<id>.yaml.  The page knows the scale by the sweep's name. */
static int reproduce_text(const struct reproduce *a, const struct kvl_published *p,
                          const char *path, struct kvl_err *err)
{
    struct kvl_outfile o;
    KVL_TRY(kvl_outfile_open(&o, path, err));
    fprintf(o.f, "name: %s %s\n", p->id, kvl_scale_names[a->scale]);
    kvl_published_write(p, a->scale, a->data ? a->data : "", o.f);
    return kvl_outfile_close(&o, KVL_OK, err);
}

static int reproduce_run(const struct reproduce *a, const struct kvl_published *p,
                         struct kvl_err *err)
{
    char yaml[REPRODUCE_PATH], log[REPRODUCE_PATH], folder[REPRODUCE_PATH];
    snprintf(yaml, sizeof yaml, "%s/%s.yaml", a->out, p->id);
    snprintf(log, sizeof log, "%s/%s.jsonl.zst", a->out, p->id);
    snprintf(folder, sizeof folder, "%s/%s", a->out, p->id);
    if (kvl_published_wants_data(p, a->scale) && !a->data)
        return kvl_fail(err, KVL_EINVAL, "wants --data: %s", p->data);
    if (p->analysis && (a->n_sets || a->contexts))
        return kvl_fail(err, KVL_EINVAL, "is an analysis, want no --set and no --contexts");
    KVL_TRY(reproduce_text(a, p, yaml, err));
    if (a->dry && p->analysis) return KVL_OK;
    const char *sweep[12 + 2 * REPRODUCE_SETS] = { "kvlab", p->analysis ? "analyze" : "sweep",
                                                   yaml,    p->analysis ? "--out" : "--log",
                                                   log,     "--model",
                                                   a->model };
    char contexts[64];
    size_t n = 7;
    for (size_t i = 0; i < a->n_sets; i++) {
        sweep[n++] = "--set";
        sweep[n++] = a->set[i];
    }
    if (a->contexts) {
        snprintf(contexts, sizeof contexts, "contexts=%s", a->contexts);
        sweep[n++] = "--set";
        sweep[n++] = contexts;
    }
    if (a->dry) sweep[n++] = "--dry-run";
    if (a->all || a->n_names > 1) sweep[n++] = "--quiet"; /* many: no context of each for times */
    KVL_TRY(reproduce_spawn(sweep, err));
    for (size_t i = 0; !a->dry && i < p->n_figures; i++) {
        const char *plot[] = { "kvlab", "plot", p->figure[i], log, "--out", folder, NULL };
        KVL_TRY(reproduce_spawn(plot, err));
    }
    return KVL_OK;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* Of the run, not of this call. */
static enum kvl_scale scale_of(const struct kvl_results *r)
{
    const char *name = strrchr(kvl_json_text(r->newest_run, "sweep.name"), ' ');
    enum kvl_scale s = name ? reproduce_scale(name + 1) : KVL_N_SCALES;
    return s == KVL_N_SCALES ? KVL_SCALE_PAPER : s;
}

/* A page of everything that the folder has logs of, those of earlier calls too. */
static int reproduce_page(const struct reproduce *a, struct kvl_err *err)
{
    char path[REPRODUCE_PATH], log[REPRODUCE_PATH], *words[] = { log };
    struct kvl_results *results = kvl_alloc(a->n + 1, sizeof *results);
    struct kvl_reproduced *done = kvl_alloc(a->n + 1, sizeof *done);
    size_t n = 0;
    int rc = results && done ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory");
    for (size_t i = 0; rc == KVL_OK && i < a->n; i++) {
        snprintf(log, sizeof log, "%s/%s.jsonl.zst", a->out, a->recipe[i].id);
        if (access(log, R_OK) != 0) continue;
        rc = kvl_results_load(words, 1, &results[n], err);
        if (rc != KVL_OK) break;
        done[n] = (struct kvl_reproduced){ &a->recipe[i], &results[n], scale_of(&results[n]) };
        n++;
        if (reproduce_chosen(a, &a->recipe[i]))
            rc = kvl_reproduced_print(&done[n - 1], stdout, err);
    }
    snprintf(path, sizeof path, "%s/index.html", a->out);
    struct kvl_outfile o = { 0 };
    if (rc == KVL_OK) rc = kvl_outfile_open(&o, path, err);
    if (rc == KVL_OK) rc = kvl_outfile_close(&o, kvl_reproduced_page(done, n, o.f, err), err);
    if (rc == KVL_OK) printf("%s\n", path);
    for (size_t i = 0; i < n; i++) kvl_results_free(&results[i]);
    kvl_free(results);
    kvl_free(done);
    return rc;
}

/* One that does not run does not stop the others. */
static int reproduce_all(struct reproduce *a, struct kvl_err *err)
{
    char marker[REPRODUCE_PATH];
    snprintf(marker, sizeof marker, "%s/index.html", a->out);
    KVL_TRY(kvl_make_folders(marker, err));
    for (size_t i = 0; i < a->n; i++) {
        struct kvl_err one = { 0 };
        if (!reproduce_chosen(a, &a->recipe[i])) continue;
        int rc = reproduce_run(a, &a->recipe[i], &one);
        if (rc == KVL_ESTOP) return kvl_fail(err, rc, "%s", one.msg);
        if (rc == KVL_OK) continue;
        fprintf(stderr, "kvlab: %s: %s\n", a->recipe[i].id, one.msg);
        a->n_failed++;
    }
    if (!a->dry) KVL_TRY(reproduce_page(a, err));
    if (!a->n_failed) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "%zu recipe%s did not run, see above", a->n_failed,
                    a->n_failed == 1 ? "" : "s");
}

int cmd_reproduce(int argc, char **argv, struct kvl_err *err)
{
    struct reproduce a = { .out = "out/reproduce", .scale = KVL_N_SCALES };
    char folder[1200], model[1300], home[1200];
    bool done;
    KVL_TRY(kvl_args_parse(&reproduce_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    KVL_TRY(kvl_home("harness/reproduce", "quest.table1-10k.yaml", folder, sizeof folder, err));
    KVL_TRY(kvl_published_load(folder, &a.recipe, &a.n, err));
    int rc = reproduce_check(&a, err);
    if (rc == KVL_OK && !a.n_names && !a.all) {
        rc = reproduce_list(&a);
    } else if (rc == KVL_OK) {
        if (a.scale == KVL_N_SCALES) a.scale = a.model ? KVL_SCALE_PAPER : KVL_SCALE_SMALL;
        if (!a.model && a.scale != KVL_SCALE_SMALL)
            rc =
                kvl_fail(err, KVL_EINVAL, "--scale %s wants --model: the model that ships is small",
                         kvl_scale_names[a.scale]);
        if (!a.model && rc == KVL_OK) {
            rc = kvl_home("datasets/model", "kvlab-small.gguf", home, sizeof home, err);
            snprintf(model, sizeof model, "%s/kvlab-small.gguf", home);
            a.model = model;
        }
        if (rc == KVL_OK) rc = reproduce_all(&a, err);
    }
    kvl_published_free(a.recipe, a.n);
    return rc;
}
