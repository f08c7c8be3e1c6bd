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

/* Members of a line, and where the sample has them: "row.x" of the file's row, "=json" a constant,
 * "@gold" the answers, "@id" what tells rows apart.  `sets`: the tasks that have it, parted by '|', NULL: all. */
struct as_field {
    const char *name, *path;
    const char *
        none; /* JSON where the row has null or nothing; NULL: the member is left out where there is nothing */
    const char *sets;
};

#define REPOS "repoqa|repoqa_and_kv"

/* In the order of the names. */
static const struct as_form {
    const char *file; /* %s: the task of the benchmark */
    struct as_field field[9];
} as_forms[] = {
    { "%s.jsonl",
      { { "pred", "prediction", NULL, NULL },
        { "answers", "row.answers", NULL, NULL },
        { "all_classes", "row.all_classes", "null", NULL },
        { "length", "row.length", NULL, NULL },
        { 0 } } },
    { "preds_%s.jsonl",
      { { "id", "@id", NULL, NULL },
        { "prediction", "prediction", NULL, NULL },
        { "ground_truth", "@gold", NULL, NULL },
        { 0 } } },
    { "%s.jsonl",
      { { "index", "@id", NULL, NULL },
        { "pred", "prediction", NULL, NULL },
        { "input", "=\"\"", NULL, NULL },
        { "outputs", "row.outputs", NULL, NULL },
        { "others", "row.others", "{}", NULL },
        { "truncation", "=-1", NULL, NULL },
        { "length", "row.length", "-1", NULL },
        { 0 } } },
    { "prediction_scbench_%s.jsonl",
      { { "id", "@id", NULL, NULL },
        { "turn_idx", "row.turn", NULL, NULL },
        { "prediction", "prediction", NULL, NULL },
        { "ground_truth", "@gold", NULL, NULL },
        { "task", "row.task", NULL, "summary_with_needles|repoqa_and_kv" },
        { "lang", "row.lang", NULL, REPOS },
        { "repo", "row.repo", NULL, REPOS },
        { "func_name", "row.name", NULL, REPOS },
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

/* Whether `name` is one of those parted by '|'. */
static bool as_among(const char *names, const char *name)
{
    size_t n = strlen(name);
    if (n == 0) return false;
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += n)
        if ((at == names || at[-1] == '|') && (!at[n] || at[n] == '|')) return true;
    return false;
}

/* As the benchmark's runner writes it: choices as the option and its letter, else what the file has, in a list where the
 * runner makes one. */
static json_t *as_gold(const json_t *row)
{
    json_t *answer = json_object_get(row, "answer");
    if (as_among("choice|code_debug", kvl_json_text(row, "scorer")))
        return json_incref(json_object_get(row, "gold"));
    bool listed = strcmp(kvl_json_text(row, "form"), "list") == 0;
    bool number = json_is_object(answer); /* a number that JSON readers do not have */
    if (!answer || !listed || json_is_array(answer) || number) return json_incref(answer);
    return json_pack("[O]", answer);
}

/* What the row has, else its place in the file. */
static json_t *as_id(const json_t *row)
{
    json_t *id = json_object_get(row, "id");
    if (id && !json_is_null(id)) return json_incref(id);
    return json_integer(json_integer_value(json_object_get(row, "line")) - 1);
}

static json_t *as_value(const struct as_field *f, const json_t *record)
{
    const json_t *row = json_object_get(record, "row");
    if (*f->path == '=') return json_loads(f->path + 1, JSON_DECODE_ANY, NULL);
    if (strcmp(f->path, "@gold") == 0) return as_gold(row);
    if (strcmp(f->path, "@id") == 0) return as_id(row);
    json_t *v = kvl_json_value(record, f->path);
    if (f->none && (!v || json_is_null(v))) return json_loads(f->none, JSON_DECODE_ANY, NULL);
    return json_incref(v);
}

static json_t *as_line(const struct as_form *form, const json_t *record)
{
    json_t *line = json_object();
    const char *set = kvl_json_text(record, "row.set");
    for (const struct as_field *f = form->field; line && f->name; f++) {
        json_t *v = f->sets && !as_among(f->sets, set) ? NULL : as_value(f, record);
        if (v && json_object_set_new(line, f->name, v) != 0) {
            json_decref(line);
            return NULL;
        }
    }
    return line;
}

/* A value; {"json": text} is that text, where it is one value, in one line. */
static bool as_put(const json_t *v, FILE *out)
{
    const char *text = json_string_value(json_object_get(v, "json"));
    json_t *value = text && json_object_size(v) == 1
                        ? json_loads(text, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL)
                        : NULL;
    bool one = value != NULL;
    json_decref(value);
    for (const char *c = text; one && *c; c++)
        if (fputc((unsigned char)*c < 0x20 ? ' ' : *c, out) == EOF) return false;
    if (one) return true;
    return json_dumpf(v, out, JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY) == 0;
}

static bool as_put_line(json_t *line, FILE *out)
{
    const char *name, *before = "{";
    json_t *v;
    bool ok = true;
    json_object_foreach(line, name, v)
    {
        ok = ok && fprintf(out, "%s\"%s\": ", before, name) > 0 && as_put(v, out);
        before = ", ";
    }
    return ok && fputs("}\n", out) != EOF;
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

/* SCBench's files end with its mode, LongBench-E's are called as LongBench's and lie in a folder of their own. */
static int as_file(int form, const char *set, const char *protocol, struct kvl_buf *out)
{
    const char *file = as_forms[form].file, *mark = strstr(file, "%s"), *tail = "";
    size_t n = strlen(set);
    char name[128];
    bool even =
        strcmp(kvl_export_forms[form], "longbench") == 0 && n > 2 && strcmp(set + n - 2, "_e") == 0;
    if (strcmp(kvl_export_forms[form], "scbench") == 0 && strcmp(protocol, "multi_turn") == 0)
        tail = "_multi_turn";
    if (strcmp(kvl_export_forms[form], "scbench") == 0 &&
        strcmp(protocol, "question_after_compress") == 0)
        tail = "_scdq";
    snprintf(name, sizeof name, "%.*s", (int)(even ? n - 2 : n), set);
    KVL_TRY(kvl_buf_printf(out, "%s/%.*s", even ? "_e" : "", (int)(mark - file), file));
    KVL_TRY(kvl_show_file(out, even ? name : set));
    return kvl_buf_printf(out, "%s%s", tail, mark + 2);
}

/* "quest-256-4096-question_in_prefill-chat=chatml": what tells the cells of a log apart, as a folder. */
static int as_path(const struct as_export *e, const json_t *extra, const json_t *record,
                   struct kvl_buf *out)
{
    static const char *const parts[] = { "label", "budget", "length_tok", "protocol" };
    const char *set = kvl_json_text(record, "row.set");
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
    return as_file(e->form, set, kvl_json_text(extra, "protocol"), out);
}

static int as_write(struct as_export *e, const char *path, json_t *line, struct kvl_err *err)
{
    bool first = !json_object_get(e->begun, path);
    if (first) KVL_TRY(kvl_make_folders(path, err));
    FILE *out = fopen(path, first ? "w" : "a");
    if (!out) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", path, strerror(errno));
    bool failed = json_object_set_new(e->begun, path, json_true()) != 0;
    failed |= !as_put_line(line, out);
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
