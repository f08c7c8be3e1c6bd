/* Predictions in the form of benchmarks' scripts. */
#include "data_score.h"

#include "rows.h"

#include <stdio.h>
#include <string.h>

enum { SCORE_BUCKETS = 16 };

/* How a benchmark's scripts write predictions. */
static const struct score_form {
    const char *name;
    const struct kvl_rows_list *list;
    const char *prediction[3], *gold[3];
    const char *strip;  /* file names begin with it */
    const char *bucket; /* means by this field, too */
} score_forms[] = {
    { "longbench", &kvl_rows_longbench, { "pred" }, { "answers" }, "", NULL },
    { "longbench_v2", &kvl_rows_longbench_v2, { "response" }, { "answer" }, "", "length" },
    { "infinitebench",
      &kvl_rows_infinitebench,
      { "prediction", "pred" },
      { "ground_truth", "label" },
      "preds_",
      NULL },
    { "ruler", &kvl_rows_ruler, { "pred" }, { "outputs" }, "", NULL },
    { "scbench",
      &kvl_rows_scbench,
      { "prediction", "pred" },
      { "ground_truth", "label" },
      "scbench_",
      "turn_idx" },
    { "kv_files", &kvl_rows_kv_files, { "model_answer" }, { "value" }, "", NULL },
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
    int32_t n_parts;
    struct kvl_err *err;
};

/* ---- which scorer ------------------------------------------------------------------------------ */

static const char *score_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The task of a form by a name, or by the begin of a file's name: the longest that fits. */
static const struct kvl_rows_set *score_set(const struct score_form *f, const char *text, bool file)
{
    const struct kvl_rows_set *best = NULL;
    size_t longest = 0, skip = strlen(f->strip);
    if (file && skip && strncmp(text, f->strip, skip) == 0) text += skip;
    for (size_t i = 0; f->list->name[i]; i++) {
        size_t n = strlen(f->list->name[i]);
        bool fits = strncmp(text, f->list->name[i], n) == 0 &&
                    (text[n] == '\0' || (file && (text[n] == '.' || text[n] == '-')));
        if (!fits || n < longest) continue;
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
    }
    /* What stands there is the answer, letters too. */
    s->set.flags &= KVL_ROWS_FIRST_LINE;
    if (ask->prediction) s->prediction[0] = ask->prediction;
    if (ask->gold) s->gold[0] = ask->gold;
    if (!s->prediction[0] || !s->gold[0])
        return kvl_fail(s->err, KVL_EINVAL, "want --as, or --prediction, --gold and --score");
    s->kind = (struct kvl_rows_kind){ .name = "score", .classes = "all_classes" };
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

static void score_add(struct score *s, struct kvl_jtext row, const struct kvl_answer_score *v)
{
    struct kvl_jtext by = s->bucket ? kvl_jtext_member(row, s->bucket) : (struct kvl_jtext){ 0 };
    struct bucket *b = NULL;
    char name[32];
    s->all.official += v->official;
    s->all.strict += v->strict;
    s->all.n++;
    if (by.n == 0) return;
    snprintf(name, sizeof name, "%.*s", (int)KVL_MIN(by.n, sizeof name - 1), by.s);
    for (int32_t i = 0; i < s->n_parts && !b; i++)
        if (strcmp(s->part[i].name, name) == 0) b = &s->part[i];
    if (!b && s->n_parts == SCORE_BUCKETS) return;
    if (!b) {
        b = &s->part[s->n_parts++];
        memcpy(b->name, name, sizeof name);
    }
    b->official += v->official;
    b->strict += v->strict;
    b->n++;
}

static int score_row(struct score *s, struct kvl_jtext v, int32_t line)
{
    const char *said = score_field(v, s->prediction), *gold = score_field(v, s->gold);
    struct kvl_buf text = { 0 }, answers = { 0 }, json = { 0 };
    struct kvl_answer_score scores = { 0 };
    int32_t n = 0;
    size_t wrong = kvl_jtext_not_utf8(v);
    if (wrong < v.n)
        return kvl_fail(s->err, KVL_EINVAL,
                        "line %d: byte %zu (0x%02x) is no UTF-8, want the file in UTF-8", line,
                        wrong + 1, (unsigned char)v.s[wrong]);
    if (!said || !gold)
        return kvl_fail(s->err, KVL_EINVAL, "line %d: field \"%s\" is missing", line,
                        said ? s->gold[0] : s->prediction[0]);
    s->kind.answers = gold;
    struct kvl_row row = { .kind = &s->kind, .set = &s->set, .row = v, .line = line };
    int rc = kvl_row_gold(&row, &answers, &n, s->err);
    if (rc == KVL_OK && kvl_jtext_add(kvl_jtext_member(v, said), &text) != KVL_OK) rc = KVL_ENOMEM;
    if (rc == KVL_OK && kvl_row_json(&row, &answers, n, &json) != KVL_OK) rc = KVL_ENOMEM;
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

static bool score_blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    return at == end;
}

static int score_rows(struct score *s, const struct kvl_plainfile *f)
{
    const char *at = f->data, *end = f->data + f->len, *wrong = at;
    struct kvl_jtext v;
    if (f->len >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) at += 3;
    if (kvl_jtext_value(at, end, &v, NULL) == KVL_OK && kvl_jtext_is_array(v)) {
        struct kvl_jtext all = v;
        const char *next = all.s;
        for (int32_t i = 1; kvl_jtext_each(all, &next, &v); i++) KVL_TRY(score_row(s, v, i));
        return KVL_OK;
    }
    for (int32_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        if (!score_blank(at, stop)) {
            if (kvl_jtext_value(at, stop, &v, &wrong) != KVL_OK || !score_blank(v.s + v.n, stop))
                return kvl_fail(s->err, KVL_EINVAL, "line %d: is not one JSON object", line);
            KVL_TRY(score_row(s, v, line));
        }
        at = stop + 1;
    }
    return KVL_OK;
}

static void score_print(const char *what, const struct bucket *b)
{
    printf("%s\t%d\t%.2f\t%.2f\n", what, b->n, 100.0 * b->official / b->n,
           100.0 * b->strict / b->n);
}

int kvl_score_file(const struct kvl_score_ask *ask, const char *path, struct kvl_err *err)
{
    struct score s = { .path = path, .err = err };
    struct kvl_plainfile file;
    KVL_TRY(score_begin(ask, &s));
    KVL_TRY(kvl_plainfile_open(path, &file, err));
    int rc = score_rows(&s, &file);
    if (rc == KVL_OK && s.all.n == 0) rc = kvl_fail(err, KVL_EINVAL, "has no predictions");
    if (rc != KVL_OK) kvl_fail_at(err, rc, "%s", path);
    if (rc == KVL_OK) score_print(path, &s.all);
    for (int32_t i = 0; rc == KVL_OK && i < s.n_parts; i++) {
        char what[64];
        snprintf(what, sizeof what, "  %s %s", s.bucket, s.part[i].name);
        score_print(what, &s.part[i]);
    }
    kvl_plainfile_close(&file);
    return rc;
}
