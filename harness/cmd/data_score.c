/* Predictions in the form of benchmarks' scripts. */
#include "data_score.h"

#include "jlines.h"
#include "rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_BUCKETS = 16 };

/* How a benchmark's scripts write predictions. */
static const struct score_form {
    const char *name;
    const struct kvl_rows_list *list;
    const char *prediction[3], *gold[3];
    const char *strip[2]; /* file names may begin with these, in this order ... */
    const char *tails[2]; /* ... and have these behind the task's name */
    const char *bucket;   /* means by this field, too */
} score_forms[] = {
    { "longbench", &kvl_rows_longbench, { "pred" }, { "answers" }, { "" }, { 0 }, NULL },
    { "longbench_v2",
      &kvl_rows_longbench_v2,
      { "response" },
      { "answer" },
      { "" },
      { 0 },
      "length" },
    { "infinitebench",
      &kvl_rows_infinitebench,
      { "prediction", "pred" },
      { "ground_truth", "label" },
      { "preds_" },
      { 0 },
      NULL },
    { "ruler", &kvl_rows_ruler, { "pred" }, { "outputs" }, { "" }, { 0 }, NULL },
    { "scbench",
      &kvl_rows_scbench,
      { "prediction", "pred" },
      { "ground_truth", "label" },
      { "prediction_", "scbench_" },
      { "_multi_turn", "_scdq" },
      "turn_idx" },
    { "kv_files", &kvl_rows_kv_files, { "model_answer" }, { "value" }, { "" }, { 0 }, NULL },
};
enum { SCORE_FORMS = sizeof score_forms / sizeof *score_forms };

const char *const kvl_score_forms[] = { "longbench", "longbench_v2", "infinitebench",
                                        "ruler",     "scbench",      "kv_files",
                                        NULL };

struct bucket {
    char name[32];
    double official, strict;
    int32_t n;
};

struct score {
    const struct score_form *form; /* or NULL */
    struct kvl_rows_kind kind;
    struct kvl_rows_set set;
    const char *prediction[3], *gold[3], *bucket;
    const char *path;
    struct bucket all, part[SCORE_BUCKETS];
    int32_t n_parts, n_left; /* rows whose part is none of these */
    bool typed;              /* official scores depend on how the answer is written */
    bool by_length;          /* LongBench-E: parts are ranges of `length` */
    struct kvl_err *err;
};

/* ---- which scorer ------------------------------------------------------------------------------ */

static const char *score_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether the name of a task may end here. */
static bool score_ends(const struct score_form *f, const char *rest, bool file)
{
    for (int i = 0; i < 2 && f->tails[i]; i++)
        if (strncmp(rest, f->tails[i], strlen(f->tails[i])) == 0) rest += strlen(f->tails[i]);
    return *rest == '\0' || (file && (*rest == '.' || *rest == '-'));
}

/* The task of a form by a name, or by the begin of a file's name: the longest that fits. */
static const struct kvl_rows_set *score_set(const struct score_form *f, const char *text, bool file)
{
    const struct kvl_rows_set *best = NULL;
    size_t longest = 0;
    for (int i = 0; i < 2 && f->strip[i]; i++)
        if (strncmp(text, f->strip[i], strlen(f->strip[i])) == 0) text += strlen(f->strip[i]);
    for (size_t i = 0; f->list->name[i]; i++) {
        size_t n = strlen(f->list->name[i]);
        if (strncmp(text, f->list->name[i], n) != 0 || n < longest) continue;
        if (!score_ends(f, text + n, file)) continue;
        best = &f->list->set[i];
        longest = n;
    }
    return best;
}

static int score_names(const struct score_form *f, const char *name, struct kvl_err *err)
{
    size_t n = 0;
    while (f->list->name[n]) n++;
    const char *near = kvl_nearest(name, f->list->name, n);
    return kvl_fail(err, KVL_EINVAL, "\"%s\" is no task of %s%s%s%s, want --name TASK", name,
                    f->name, near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

static int score_scorer(const char *name, struct score *s)
{
    size_t n = 0;
    while (kvl_scorer_names[n]) n++;
    for (size_t i = 0; i < n; i++)
        if (strcmp(kvl_scorer_names[i], name) == 0) {
            s->set.scorer = (enum kvl_scorer)i;
            return KVL_OK;
        }
    const char *near = kvl_nearest(name, kvl_scorer_names, n);
    return kvl_fail(s->err, KVL_EINVAL, "--score %s: there is no such scorer%s%s%s", name,
                    near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
}

/* LongBench-E by its name, or by the folder that the scripts write it to. */
static bool score_by_length(const struct score_form *f, const struct kvl_rows_set *set,
                            const char *path)
{
    size_t n = strlen(set->name);
    if (strcmp(f->name, "longbench") != 0) return false;
    return (n > 2 && strcmp(set->name + n - 2, "_e") == 0) || strstr(path, "_e/");
}

static int score_begin(const struct kvl_score_ask *ask, struct score *s)
{
    for (size_t i = 0; ask->as && i < SCORE_FORMS; i++)
        if (strcmp(score_forms[i].name, ask->as) == 0) s->form = &score_forms[i];
    s->set = (struct kvl_rows_set){ .name = "predictions", .scorer = KVL_SCORE_EXACT };
    if (s->form) {
        const char *text = ask->name ? ask->name : score_base(s->path);
        const struct kvl_rows_set *set = score_set(s->form, text, !ask->name);
        if (!set && strcmp(ask->as, "longbench_v2") == 0) set = s->form->list->set;
        if (!set && !ask->scorer) return score_names(s->form, text, s->err);
        if (set) s->set = *set;
        memcpy(s->prediction, s->form->prediction, sizeof s->prediction);
        memcpy(s->gold, s->form->gold, sizeof s->gold);
        s->bucket = s->form->bucket;
        s->by_length = score_by_length(s->form, &s->set, s->path);
        s->typed = s->form->list->kind->typed;
    }
    /* What stands there is the answer, letters too. */
    s->set.flags &= KVL_ROWS_FIRST_LINE;
    if (ask->prediction) s->prediction[0] = ask->prediction;
    if (ask->gold) s->gold[0] = ask->gold;
    if (!s->prediction[0] || !s->gold[0])
        return kvl_fail(s->err, KVL_EINVAL, "want --as, or --prediction, --gold and --score");
    s->kind =
        (struct kvl_rows_kind){ .name = "score", .classes = "all_classes", .typed = s->typed };
    if (!s->form) s->set.flags |= KVL_ROWS_USERS;
    return ask->scorer ? score_scorer(ask->scorer, s) : KVL_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------- */

static const char *score_field(struct kvl_jtext row, const char *const names[3])
{
    for (int i = 0; i < 3 && names[i]; i++)
        if (kvl_jtext_member(row, names[i]).n > 0) return names[i];
    return NULL;
}

/* The part of the file that a row belongs to; false: none. */
static bool score_part(const struct score *s, struct kvl_jtext row, char *name, size_t n)
{
    const char *field = s->by_length ? "length" : s->bucket;
    struct kvl_jtext by = field ? kvl_jtext_member(row, field) : (struct kvl_jtext){ 0 };
    if (by.n == 0) return false;
    if (s->by_length && (by.n > 9 || *by.s < '0' || *by.s > '9')) return false;
    int length = s->by_length ? atoi(by.s) : 0;
    if (s->by_length)
        snprintf(name, n, "%s", length < 4000 ? "0-4k" : length < 8000 ? "4-8k" : "8k+");
    else
        snprintf(name, n, "%.*s", (int)KVL_MIN(by.n, n - 1), by.s);
    return true;
}

static void score_add(struct score *s, struct kvl_jtext row, const struct kvl_answer_score *v)
{
    struct bucket *b = NULL;
    char name[32];
    s->all.official += v->official;
    s->all.strict += v->strict;
    s->all.n++;
    if (!score_part(s, row, name, sizeof name)) return;
    for (int32_t i = 0; i < s->n_parts && !b; i++)
        if (strcmp(s->part[i].name, name) == 0) b = &s->part[i];
    if (!b && s->n_parts == SCORE_BUCKETS) {
        s->n_left++;
        return;
    }
    if (!b) {
        b = &s->part[s->n_parts++];
        memcpy(b->name, name, sizeof name);
    }
    b->official += v->official;
    b->strict += v->strict;
    b->n++;
}

static int score_row(void *user, struct kvl_jtext v, int32_t line)
{
    struct score *s = user;
    const char *said = score_field(v, s->prediction), *gold = score_field(v, s->gold);
    struct kvl_buf text = { 0 }, answers = { 0 }, json = { 0 };
    struct kvl_answer_score scores = { 0 };
    int32_t n = 0;
    if (!said || !gold)
        return kvl_fail(s->err, KVL_EINVAL, "line %d: field \"%s\" is missing", line,
                        said ? s->gold[0] : s->prediction[0]);
    s->kind.answers = gold;
    struct kvl_row row = { .kind = &s->kind, .set = &s->set, .row = v, .line = line };
    int rc = kvl_row_gold(&row, &answers, &n, s->err);
    if (rc == KVL_OK && kvl_jtext_add(kvl_jtext_member(v, said), &text) != KVL_OK) rc = KVL_ENOMEM;
    if (rc == KVL_OK) rc = kvl_row_json(&row, &answers, n, &json, s->err);
    bool none = rc == KVL_OK && kvl_jtext_is_null(kvl_jtext_member(v, said));
    if (rc == KVL_OK) rc = kvl_row_misses(&row, json.data, s->err);
    if (rc == KVL_OK) rc = kvl_row_score(json.data, none ? "" : text.data, &scores, s->err);
    if (rc == KVL_OK) score_add(s, v, &scores);
    kvl_buf_free(&text);
    kvl_buf_free(&answers);
    kvl_buf_free(&json);
    if (rc == KVL_ENOMEM) return kvl_fail(s->err, rc, "out of memory for a prediction");
    return rc == KVL_OK || strstr(s->err->msg, "line ") ? rc
                                                        : kvl_fail_at(s->err, rc, "line %d", line);
}

static void score_print(const struct score *s, const char *what, const struct bucket *b)
{
    printf("%s\t%d\t%.2f\t%.2f%s%s\n", what, b->n, 100.0 * b->official / b->n,
           100.0 * b->strict / b->n, s->set.unofficial ? "\tnot official: " : "",
           s->set.unofficial ? s->set.unofficial : "");
}

/* Ranges of lengths as the scripts have them, others as they come. */
static void score_print_parts(const struct score *s)
{
    static const char *const ranges[] = { "0-4k", "4-8k", "8k+" };
    char what[64];
    for (int32_t k = 0; k < (s->by_length ? 3 : 1); k++)
        for (int32_t i = 0; i < s->n_parts; i++) {
            if (s->by_length && strcmp(s->part[i].name, ranges[k]) != 0) continue;
            snprintf(what, sizeof what, "  %s %s", s->by_length ? "length" : s->bucket,
                     s->part[i].name);
            score_print(s, what, &s->part[i]);
        }
    if (s->n_left) printf("  and %d rows of other parts\n", s->n_left);
}

int kvl_score_file(const struct kvl_score_ask *ask, const char *path, bool head,
                   struct kvl_err *err)
{
    struct score s = { .path = path, .err = err };
    struct kvl_plainfile file;
    KVL_TRY(score_begin(ask, &s));
    KVL_TRY(kvl_plainfile_open(path, &file, err));
    const struct kvl_jlines lines = { score_row, NULL, &s, err };
    int rc = kvl_jlines_each(file.data, file.len, &lines);
    if (rc == KVL_OK && s.all.n == 0) rc = kvl_fail(err, KVL_EINVAL, "has no predictions");
    if (rc != KVL_OK) kvl_fail_at(err, rc, "%s", path);
    if (rc == KVL_OK && head) puts("file\trows\tofficial\tstrict");
    if (rc == KVL_OK) score_print(&s, path, &s.all);
    if (rc == KVL_OK) score_print_parts(&s);
    kvl_plainfile_close(&file);
    return rc;
}
