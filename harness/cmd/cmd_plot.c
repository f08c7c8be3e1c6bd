/* kvlab plot: a figure from logs. */
#include "args.h"
#include "cmds.h"
#include "data_home.h"
#include "outfile.h"
#include "plot.h"
#include "results_amount.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum {
    PLOT_LIST = 0x300,
    PLOT_FORMAT,
    PLOT_TASK,
    PLOT_PROTOCOL,
    PLOT_LENGTH,
    PLOT_BUDGET,
    PLOT_POLICY,
    PLOT_STRICT,
    PLOT_COLUMNS
};

struct plot_args {
    struct kvl_args base;
    char **word; /* figure, logs */
    size_t n_words;
    const char *out, *formats;
    struct kvl_plot_filter filter;
    bool list;
    int columns; /* of a page that the picture is for; 0 = not said */
};

static const struct argp_option plot_options[] = {
    { "list", PLOT_LIST, NULL, 0, "figures that there are", 0 },
    { "out", 'o', "DIR", 0, "folder for picture, table and script (default: .)", 0 },
    { "format", PLOT_FORMAT, "LIST", 0, "svg, png, pdf: one or more (default: svg,png)", 0 },
    { "columns", PLOT_COLUMNS, "N", 0,
      "for a paper: panels in 1 column (PDF 3.4 inches wide) or 2 (7 inches); methods: 4 in 2", 0 },
    { "task", PLOT_TASK, "NAME", 0, "only this task", 1 },
    { "protocol", PLOT_PROTOCOL, "NAME", 0, "only this protocol", 1 },
    { "length", PLOT_LENGTH, "N", 0, "only this context length, in tokens", 1 },
    { "budget", PLOT_BUDGET, "B", 0, "only this budget, as written in the sweep", 1 },
    { "policy", PLOT_POLICY, "LIST", 0, "only these policies", 1 },
    { "strict", PLOT_STRICT, NULL, 0, "the strict score instead of the official one", 1 },
    { 0 }
};

static int plot_length(struct plot_args *a, const char *text)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK || n < 1)
        return kvl_fail(a->base.err, KVL_EINVAL, "--length %s: want a number of tokens", text);
    a->filter.length_tok = (double)n;
    return KVL_OK;
}

static error_t plot_parse(int key, char *arg, struct argp_state *state)
{
    struct plot_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case PLOT_LIST: a->list = true; break;
    case 'o': a->out = arg; break;
    case PLOT_FORMAT: a->formats = arg; break;
    case PLOT_TASK: a->filter.task = arg; break;
    case PLOT_PROTOCOL: a->filter.protocol = arg; break;
    case PLOT_LENGTH: rc = plot_length(a, arg); break;
    case PLOT_BUDGET: a->filter.budget = arg; break;
    case PLOT_POLICY: a->filter.policies = arg; break;
    case PLOT_STRICT: a->filter.strict = true; break;
    case PLOT_COLUMNS:
        a->columns = strcmp(arg, "1") == 0 ? 1 : strcmp(arg, "2") == 0 ? 2 : 0;
        if (!a->columns) rc = kvl_fail(a->base.err, KVL_EINVAL, "--columns %s: want 1 or 2", arg);
        break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->word, &a->n_words); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp plot_argp = {
    .options = plot_options,
    .parser = plot_parse,
    .args_doc = "FIGURE LOG...\n--list",
    .doc = "Draws a figure from logs (files, folders of *.zst, patterns) with gnuplot.  Beside the "
           "picture stand its table (.dat) and its script (.gp), to be edited and run again."
};

static void plot_list(void)
{
    for (size_t i = 0; i < kvl_n_figures; i++)
        printf("  %-16s %s\n", kvl_figures[i].name, kvl_figures[i].help);
}

static int plot_figure(const char *name, const struct kvl_figure **out, struct kvl_err *err)
{
    const char **names = kvl_alloc(kvl_n_figures, sizeof *names);
    if (!names) return kvl_fail(err, KVL_ENOMEM, "no memory for the names of figures");
    *out = NULL;
    for (size_t i = 0; i < kvl_n_figures; i++) {
        names[i] = kvl_figures[i].name;
        if (strcmp(name, names[i]) == 0) *out = &kvl_figures[i];
    }
    const char *near = kvl_nearest(name, names, kvl_n_figures);
    kvl_free(names);
    if (*out) return KVL_OK;
    if (near)
        return kvl_fail(err, KVL_EINVAL, "%s: no such figure, did you mean \"%s\"?", name, near);
    return kvl_fail(err, KVL_EINVAL, "%s: no such figure, see kvlab plot --list", name);
}

/* ---- filters -------------------------------------------------------------------------------- */

/* A name that a filter may ask for, borrowed from the result; "" = none. */
typedef const char *plot_name_fn(const struct kvl_result *x);

static const char *name_task(const struct kvl_result *x)
{
    return x->task;
}

static const char *name_protocol(const struct kvl_result *x)
{
    return x->is_cell ? x->protocol : "";
}

static const char *name_policy(const struct kvl_result *x)
{
    return x->policy;
}

static const char *name_label(const struct kvl_result *x)
{
    return x->label;
}

static const char *name_budget(const struct kvl_result *x)
{
    return x->budget;
}

/* Adds each name once; a log has few. */
static size_t names_add(const struct kvl_results *r, plot_name_fn *name, const char **names,
                        size_t n)
{
    for (size_t i = 0; i < r->n; i++) {
        const char *word = name(&r->result[i]);
        bool known = word[0] == '\0';
        for (size_t j = 0; j < n && !known; j++) known = strcmp(names[j], word) == 0;
        if (!known) names[n++] = word;
    }
    return n;
}

static int plot_unknown(const char *option, const char *word, const char *const *names, size_t n,
                        struct kvl_err *err)
{
    const char *near = kvl_nearest(word, names, n);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "%s %s: nothing of that in the log, did you mean \"%s\"?",
                        option, word, near);
    char list[200] = "";
    size_t used = 0;
    for (size_t i = 0; i < n && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", names[i]);
    return kvl_fail(err, KVL_EINVAL, "%s %s: nothing of that in the log, it has %s", option, word,
                    list);
}

/* Every word of `list`, separated by `separators`, must be one of the names. */
static int plot_words(const char *option, const char *list, const char *separators,
                      const char *const *names, size_t n, struct kvl_err *err)
{
    for (const char *p = list; *p;) {
        char word[128];
        size_t len = strcspn(p, separators);
        bool known = false;
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), p);
        for (size_t i = 0; i < n && !known; i++) known = strcmp(names[i], word) == 0;
        if (!known) return plot_unknown(option, word, names, n, err);
        p += len + (p[len] != '\0');
    }
    return KVL_OK;
}

static int plot_filter_length(const struct kvl_results *r, double want, struct kvl_err *err)
{
    double below = 0, above = 0;
    for (size_t i = 0; i < r->n; i++) {
        double have = r->result[i].length_tok;
        if (have == want) return KVL_OK;
        if (have < want && have > below) below = have;
        if (have > want && (above == 0 || have < above)) above = have;
    }
    double near = above == 0 || (below > 0 && want - below < above - want) ? below : above;
    return kvl_fail(err, KVL_EINVAL,
                    "--length %.0f: nothing of that in the log, the nearest is %.0f", want, near);
}

/* A filter that nothing can pass is a slip of the pen; an empty log is none. */
static int plot_filter(const struct kvl_results *r, const struct kvl_plot_filter *f,
                       struct kvl_err *err)
{
    if (r->n == 0) return KVL_OK;
    const struct {
        const char *option, *list, *separators;
        plot_name_fn *name, *other;
    } filters[] = {
        { "--task", f->task, "", name_task, NULL },
        { "--protocol", f->protocol, "", name_protocol, NULL },
        { "--budget", f->budget, "", name_budget, NULL },
        { "--policy", f->policies, ",", name_policy, name_label },
    };
    const char **names = kvl_alloc(2 * r->n, sizeof *names);
    int rc = names ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for the names of results");
    for (size_t i = 0; i < sizeof filters / sizeof filters[0] && rc == KVL_OK; i++) {
        if (!filters[i].list) continue;
        size_t n = names_add(r, filters[i].name, names, 0);
        if (filters[i].other) n = names_add(r, filters[i].other, names, n);
        rc = plot_words(filters[i].option, filters[i].list, filters[i].separators, names, n, err);
    }
    if (rc == KVL_OK && f->length_tok > 0) rc = plot_filter_length(r, f->length_tok, err);
    kvl_free(names);
    return rc;
}

/* ---- files --------------------------------------------------------------------------------- */

static int plot_write(const char *folder, const char *name, const char *suffix,
                      const struct kvl_buf *text, struct kvl_err *err)
{
    char path[1400];
    snprintf(path, sizeof path, "%s/%s%s", folder, name, suffix);
    struct kvl_outfile o;
    KVL_TRY(kvl_outfile_open(&o, path, err));
    fwrite(text->data, 1, text->len, o.f);
    return kvl_outfile_close(&o, KVL_OK, err);
}

/* Creates the folder with those above it. */
static int plot_folder(const char *folder, struct kvl_err *err)
{
    char path[1024];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path)
        return kvl_fail(err, KVL_EINVAL, "--out: a name of %zu bytes, at most 1023",
                        strlen(folder));
    for (char *p = path + 1;; p++) {
        if (*p && *p != '/') continue;
        char c = *p;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", path, strerror(errno));
        *p = c;
        if (!c) return KVL_OK;
    }
}

/* `to` as seen from the folder `from`, both absolute and real: a script goes where its folder goes. */
static void plot_relative(const char *from, const char *to, char *out, size_t room)
{
    size_t same = 0, len = 0;
    for (size_t i = 0; from[i] == to[i] || (!from[i] && to[i] == '/') || (!to[i] && from[i] == '/');
         i++) {
        if ((!from[i] || from[i] == '/') && (!to[i] || to[i] == '/')) same = i;
        if (!from[i] || !to[i]) break;
    }
    out[0] = '\0';
    for (const char *p = from + same; *p; p++)
        if (*p == '/' && p[1]) len += (size_t)snprintf(out + len, room - len, "../");
    snprintf(out + len, room - len, "%s", to[same] == '/' ? to + same + 1 : to + same);
    if (!out[0]) snprintf(out, room, ".");
}

/* ---- gnuplot ------------------------------------------------------------------------------- */

/* Runs gnuplot on `script` in `folder`; its messages go to `log`. */
static int plot_spawn(const char *folder, const char *script, const char *format, int log,
                      int *status)
{
    char set[64];
    snprintf(set, sizeof set, "format='%s'", format);
    const char *const argv[] = { "gnuplot", "-e", set, script, NULL };
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error) return error;
    pid_t pid;
    error = posix_spawn_file_actions_addchdir_np(&actions, folder);
    if (!error) error = posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
    if (!error)
        error =
            posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (error) return error;
    while (waitpid(pid, status, 0) < 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* The last line of what gnuplot said: its error. */
static int plot_complain(const char *figure, const char *log, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    const char *line = "no message";
    if (kvl_read_file(log, 1 << 20, &text, NULL) == KVL_OK && text.len) {
        while (text.len && strchr(" \n", text.data[text.len - 1])) text.data[--text.len] = '\0';
        const char *feed = strrchr(text.data, '\n');
        line = feed ? feed + 1 : text.data;
    }
    kvl_fail(err, KVL_EIO, "gnuplot could not draw %s: %s", figure, line);
    kvl_buf_free(&text);
    return KVL_EIO;
}

static int plot_draw(const char *folder, const char *name, const char *format, struct kvl_err *err)
{
    char script[128], picture[1400];
    int status = 0, fd = -1;
    snprintf(script, sizeof script, "%s.gp", name);
    snprintf(picture, sizeof picture, "%s/%s.%s", folder, name, format);
    char *log = kvl_outfile_temp(picture, 0600, &fd);
    if (!log)
        return kvl_fail(err, KVL_EIO, "%s: no file for gnuplot's messages: %s", folder,
                        strerror(errno));
    int error = plot_spawn(folder, script, format, fd, &status);
    close(fd);
    int rc = KVL_OK;
    bool missing = error == ENOENT || (!error && WIFEXITED(status) && WEXITSTATUS(status) == 127);
    if (missing)
        rc = kvl_fail(err, KVL_EIO,
                      "gnuplot is not installed; on Debian or Ubuntu: apt-get install "
                      "gnuplot-nox (the table and the script are in %s)",
                      folder);
    else if (error)
        rc = kvl_fail(err, KVL_EIO, "cannot start gnuplot: %s", strerror(error));
    else if (status != 0 || access(picture, R_OK) != 0)
        rc = plot_complain(name, log, err);
    else
        puts(picture);
    unlink(log);
    free(log);
    return rc;
}

/* ---- the command --------------------------------------------------------------------------- */

static int plot_script(const struct plot_args *a, const struct kvl_figure *f,
                       const struct kvl_plot *plot, struct kvl_buf *out, struct kvl_err *err)
{
    char absolute[1200], home[4096];
    KVL_TRY(kvl_home("plots", "style.gp", absolute, sizeof absolute, err));
    char *folder = realpath(a->out, NULL);
    plot_relative(folder ? folder : "", absolute, home, sizeof home);
    free(folder);
    int rc = kvl_buf_printf(out,
                            "# %s; drawn again by: gnuplot %s.gp, or gnuplot -e \"format='svg'\" "
                            "%s.gp\nif (!exists('format')) format = 'png'\n"
                            "data = '%s.dat'\nout = '%s.'.format\nhome = '%s'\npage_columns = %d\n",
                            f->title, f->name, f->name, f->name, f->name, home, a->columns);
    if (rc == KVL_OK) rc = kvl_buf_add(out, plot->script.data, plot->script.len);
    if (rc == KVL_OK)
        rc = kvl_buf_printf(out, "load home.'/style.gp'\nload home.'/fig_%s.gp'\n", f->name);
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "no memory for a figure");
}

static int plot_formats(const struct plot_args *a, const char *folder, const char *name,
                        struct kvl_err *err)
{
    for (const char *p = a->formats; *p;) {
        char one[8];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, ","), p);
        KVL_TRY(plot_draw(folder, name, one, err));
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return KVL_OK;
}

static int plot_files(const struct plot_args *a, const struct kvl_figure *f,
                      const struct kvl_plot *plot, struct kvl_err *err)
{
    struct kvl_buf script = { 0 };
    int rc = plot_folder(a->out, err);
    if (rc == KVL_OK) rc = plot_script(a, f, plot, &script, err);
    if (rc == KVL_OK) rc = plot_write(a->out, f->name, ".dat", &plot->table, err);
    if (rc == KVL_OK) rc = plot_write(a->out, f->name, ".gp", &script, err);
    if (rc == KVL_OK) rc = plot_formats(a, a->out, f->name, err);
    kvl_buf_free(&script);
    return rc;
}

static int plot_make(const struct plot_args *a, const struct kvl_figure *f, struct kvl_err *err)
{
    struct kvl_results r = { 0 };
    struct kvl_plot plot = { 0 };
    KVL_TRY(kvl_results_load(a->word + 1, a->n_words - 1, &r, err));
    int rc = kvl_results_partial(&r, "kvlab: the log is ", stderr, err);
    if (rc == KVL_OK) rc = plot_filter(&r, &a->filter, err);
    if (rc == KVL_OK) rc = kvl_plot_build(&r, f, &a->filter, (size_t)a->columns, &plot, err);
    kvl_results_free(&r);
    if (rc == KVL_OK) rc = plot_files(a, f, &plot, err);
    if (rc == KVL_OK && !plot.n_points)
        fprintf(stderr,
                "kvlab: %s: no value to show (%zu sample%s failed)%s%s; the figure says so\n",
                f->name, plot.n_failed, plot.n_failed == 1 ? "" : "s", plot.lack ? ": " : "",
                plot.lack ? plot.lack : "");
    kvl_plot_free(&plot);
    return rc;
}

static bool plot_formats_known(const char *list)
{
    bool known = *list;
    for (const char *p = list; *p && known;) {
        size_t n = strcspn(p, ",");
        known = n == 3 && (!strncmp(p, "svg", 3) || !strncmp(p, "png", 3) || !strncmp(p, "pdf", 3));
        p += n + (p[n] == ',');
    }
    return known && list[strlen(list) - 1] != ',';
}

int cmd_plot(int argc, char **argv, struct kvl_err *err)
{
    struct plot_args a = { .out = ".", .formats = "svg,png" };
    const struct kvl_figure *f = NULL;
    bool done;
    KVL_TRY(kvl_args_parse(&plot_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (a.list) {
        plot_list();
        return KVL_OK;
    }
    if (!plot_formats_known(a.formats))
        return kvl_fail(err, KVL_EINVAL, "--format %s: want svg, png, pdf or a list of them",
                        a.formats);
    if (a.n_words < 2)
        return kvl_fail(err, KVL_EINVAL,
                        "plot wants a figure and logs: kvlab plot FIGURE LOG...; "
                        "see kvlab plot --list");
    KVL_TRY(plot_figure(a.word[0], &f, err));
    return plot_make(&a, f, err);
}
