/* Predictions in the form that benchmarks' own scripts score. */
#include "export.h"

#include "export_parts.h"
#include "folders.h"
#include "json.h"
#include "log.h"
#include "show.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

const char *const kvl_export_forms[] = { "longbench", "infinitebench", "ruler", "scbench", NULL };

/* Members of a line, and where the sample has them: "row.x" of the file's row, "=text" a constant text,
 * "@gold" the answers. */
struct as_field {
    const char *name, *path;
};

/* In the order of the names. */
static const struct as_form {
    const char *file; /* %s: the task of the benchmark */
    struct as_field field[8];
} as_forms[] = {
    { "%s.jsonl",
      { { "pred", "prediction" },
        { "answers", "row.answers" },
        { "all_classes", "row.all_classes" },
        { "length", "row.length" },
        { 0 } } },
    { "preds_%s.jsonl",
      { { "id", "row.id" }, { "prediction", "prediction" }, { "ground_truth", "@gold" }, { 0 } } },
    { "%s.jsonl",
      { { "index", "row.index" },
        { "pred", "prediction" },
        { "input", "=" },
        { "outputs", "row.outputs" },
        { "others", "row.others" },
        { "length", "row.length" },
        { 0 } } },
    { "prediction_scbench_%s.jsonl",
      { { "id", "row.id" },
        { "turn_idx", "row.turn" },
        { "prediction", "prediction" },
        { "ground_truth", "@gold" },
        { "task", "row.task" },
        { "lang", "row.lang" },
        { "repo", "row.repo" },
        { 0 } } },
};

struct as_export {
    const struct kvl_results *r;
    json_t *extra; /* cell id -> model, task, label, budget, length */
    int form;
    const char *out; /* folder */
    json_t *begun;   /* paths that this run has begun */
    size_t n_seen, n_written;
};

/* Choices have the option and its letter; a list of one answer is the answer; else as the file has it. */
static json_t *as_gold(const json_t *row)
{
    json_t *options = json_object_get(row, "options"), *answer = json_object_get(row, "answer");
    if (json_array_size(options) > 0) return json_incref(json_object_get(row, "gold"));
    if (json_is_array(answer) && json_array_size(answer) == 1) answer = json_array_get(answer, 0);
    return json_incref(answer);
}

static json_t *as_line(const struct as_form *form, const json_t *record)
{
    json_t *line = json_object();
    for (const struct as_field *f = form->field; line && f->name; f++) {
        const json_t *row = json_object_get(record, "row");
        json_t *v = *f->path == '='   ? json_string(f->path + 1)
                    : *f->path == '@' ? as_gold(row)
                                      : json_incref(kvl_json_value(record, f->path));
        bool wanted = v || strcmp(f->name, "all_classes") == 0 || strcmp(f->name, "others") == 0;
        if (wanted && json_object_set_new(line, f->name, v ? v : json_null()) != 0) {
            json_decref(line);
            return NULL;
        }
    }
    return line;
}

/* Leaves what a file name may have. */
static void as_name(char *s)
{
    for (; *s; s++)
        if (!isalnum((unsigned char)*s) && !strchr("-_.=+%", *s)) *s = '_';
}

/* "-name" where the cell has it: another template or sampling is another set of answers.  A long one is cut, and
 * a hash of all of it tells it apart. */
static int as_part(const json_t *extra, const char *name, struct kvl_buf *out)
{
    const char *v = kvl_json_text(extra, name);
    if (!*v) return KVL_OK;
    KVL_TRY(kvl_buf_printf(out, "-%s=%.40s", name, v));
    return strlen(v) > 40 ? kvl_buf_printf(out, "-%08x", (unsigned)kvl_result_key(v)) : KVL_OK;
}

/* "quest-256-4096-question_in_prefill-chat=chatml": what tells the cells of a log apart, as a folder. */
static int as_path(const struct as_export *e, const json_t *extra, const json_t *record,
                   struct kvl_buf *out)
{
    static const char *const parts[] = { "label", "budget", "length_tok", "protocol" };
    const char *set = kvl_json_text(record, "row.set");
    const char *file = as_forms[e->form].file, *mark = strstr(file, "%s");
    KVL_TRY(kvl_buf_printf(out, "%s/", e->out));
    KVL_TRY(kvl_show_file(out, kvl_json_text(extra, "model")));
    KVL_TRY(kvl_buf_adds(out, "/"));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const json_t *v = json_object_get(extra, parts[i]);
        size_t from = out->len;
        if (json_is_integer(v))
            KVL_TRY(kvl_buf_printf(out, "-%" JSON_INTEGER_FORMAT, json_integer_value(v)));
        else if (strcmp(kvl_json_text(extra, parts[i]), "-") != 0)
            KVL_TRY(kvl_buf_printf(out, "%s%s", i ? "-" : "", kvl_json_text(extra, parts[i])));
        as_name(out->data + from);
    }
    size_t from = out->len;
    KVL_TRY(as_part(extra, "chat", out));
    KVL_TRY(as_part(extra, "system", out));
    KVL_TRY(as_part(extra, "sampling", out));
    as_name(out->data + from);
    if (strstr(kvl_json_text(extra, "task_options"), "control=no_context"))
        KVL_TRY(kvl_buf_adds(out, "-no_context"));
    KVL_TRY(kvl_buf_printf(out, "/%.*s", (int)(mark - file), file));
    KVL_TRY(kvl_show_file(out, set));
    return kvl_buf_adds(out, mark + 2);
}

static int as_write(struct as_export *e, const char *path, const json_t *line, struct kvl_err *err)
{
    bool first = !json_object_get(e->begun, path);
    if (first) KVL_TRY(kvl_make_folders(path, err));
    FILE *out = fopen(path, first ? "w" : "a");
    if (!out) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", path, strerror(errno));
    bool failed = json_object_set_new(e->begun, path, json_true()) != 0;
    failed |= json_dumpf(line, out, JSON_REAL_PRECISION(15)) != 0;
    failed |= fputc('\n', out) == EOF;
    failed |= fclose(out) != 0;
    e->n_written++;
    return failed ? kvl_fail(err, KVL_EIO, "%s: cannot write: %s", path, strerror(errno)) : KVL_OK;
}

static int as_sample(json_t *record, void *user, struct kvl_err *err)
{
    struct as_export *e = user;
    const char *kind = kvl_json_text(record, "kind"), *id = kvl_json_text(record, "cell");
    if (strcmp(kind, "nll") != 0 && strcmp(kind, "sample") != 0) return KVL_OK;
    struct kvl_result_sample s = {
        .cell = kvl_result_key(id),
        .context = json_integer_value(json_object_get(record, "context")),
        .question = json_integer_value(json_object_get(record, "question")),
        .order = e->n_seen++,
    };
    const json_t *extra = json_object_get(e->extra, id);
    if (!json_object_get(record, "row") || !kvl_result_sample_kept(e->r, &s) ||
        strcmp(kvl_json_text(extra, "task"), kvl_export_forms[e->form]) != 0)
        return KVL_OK;
    struct kvl_buf path = { 0 };
    json_t *line = as_line(&as_forms[e->form], record);
    int rc = line ? as_path(e, extra, record, &path) : KVL_ENOMEM;
    if (rc == KVL_OK) rc = as_write(e, path.data, line, err);
    json_decref(line);
    kvl_buf_free(&path);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "no memory to export predictions") : rc;
}

int kvl_export_as(const struct kvl_results *r, char *const *words, size_t n_words, int form,
                  const char *out, struct kvl_err *err)
{
    struct kvl_log_paths paths = { 0 };
    for (size_t i = 0; i < n_words; i++)
        if (strcmp(words[i], "-") == 0)
            return kvl_fail(err, KVL_EINVAL, "--as reads the log twice, want a file instead of -");
    KVL_TRY(kvl_log_paths(words, n_words, &paths, err));
    struct as_export e = {
        .r = r, .extra = json_object(), .begun = json_object(), .form = form, .out = out
    };
    int rc = e.begun && kvl_export_cell_extras(r, e.extra) == 0
                 ? KVL_OK
                 : kvl_fail(err, KVL_ENOMEM, "no memory to export predictions");
    if (rc == KVL_OK)
        rc = kvl_log_each((const char *const *)paths.path, paths.n, as_sample, &e, NULL, err);
    if (rc == KVL_OK && e.n_written == 0)
        rc = kvl_fail(err, KVL_EINVAL, "no answers of the task %s in the log",
                      kvl_export_forms[form]);
    const char *path;
    json_t *v;
    if (rc == KVL_OK) json_object_foreach(e.begun, path, v) puts(path);
    json_decref(e.extra);
    json_decref(e.begun);
    kvl_log_paths_free(&paths);
    return rc;
}
