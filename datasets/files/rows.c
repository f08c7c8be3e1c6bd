/* Rows of JSON files: fields, answers, scores, samples. */
#include "rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const kvl_rows_orders[] = { "auto", "file", "shuffled", NULL };
const char *const kvl_rows_controls[] = { "none", "no_context", NULL };
const char *const kvl_rows_truncates[] = { "middle", "end", "none", NULL };

static const char rows_pattern[] = "{context}{question}";

const char *kvl_rows_prompt(const struct kvl_rows_set *set)
{
    return set->prompt ? set->prompt : rows_pattern;
}

/* What stands before {context} in the prompt. */
size_t kvl_rows_head(const char *prompt)
{
    const char *at = strstr(prompt, "{context}");
    return at ? (size_t)(at - prompt) : strlen(prompt);
}

/* ---- fields -------------------------------------------------------------------------------------- */

static struct kvl_jtext row_path(struct kvl_jtext v, const char *path)
{
    char name[64];
    while (v.n > 0 && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        struct kvl_jtext item = { 0 };
        if (kvl_jtext_is_array(v) && n > 0 && strspn(name, "0123456789") == n)
            item = kvl_jtext_item(v, atoi(name));
        else
            item = kvl_jtext_member(v, name);
        v = item;
        path += n + (path[n] == '.');
    }
    return v;
}

struct kvl_jtext kvl_row_field(const struct kvl_row *r, const char *path)
{
    struct kvl_jtext v = { 0 };
    if (!path || !*path) return v;
    if (r->turn.n > 0) v = row_path(r->turn, path);
    return v.n > 0 ? v : row_path(r->row, path);
}

int kvl_row_text(const struct kvl_row *r, const char *path, struct kvl_buf *out)
{
    struct kvl_jtext v = kvl_row_field(r, path), item;
    const char *at = v.s;
    if (kvl_jtext_is_null(v)) return KVL_EINVAL;
    if (!kvl_jtext_is_array(v)) return kvl_jtext_add(v, out);
    /* a list as Python prints it */
    KVL_TRY(kvl_buf_adds(out, "["));
    for (int32_t i = 0; kvl_jtext_each(v, &at, &item); i++) {
        if (i) KVL_TRY(kvl_buf_adds(out, ", "));
        KVL_TRY(kvl_jtext_add(item, out));
    }
    return kvl_buf_adds(out, "]");
}

/* The last place of the first of the marks that is there; n: none is. */
static size_t row_last(const char *text, size_t n, const char *marks)
{
    for (const char *m = marks; *m;) {
        size_t len = strcspn(m, "|");
        for (size_t at = len <= n ? n - len + 1 : 0; at-- > 0;)
            if (memcmp(text + at, m, len) == 0) return at;
        m += len + (m[len] == '|');
    }
    return n;
}

/* Where the question begins in a text that has both. */
static size_t row_mark(const char *text, size_t n, const char *marks)
{
    size_t at = row_last(text, n, marks);
    if (at < n) return at;
    while (at > 0 && text[at - 1] != '\n') at--;
    return at;
}

/* {context} or {question} of a row that has both in one text. */
static int row_marked(const struct kvl_row *r, bool question, struct kvl_buf *out)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_row_text(r, r->kind->context, &text);
    size_t at = rc == KVL_OK ? row_mark(text.data, text.len, r->set->mark) : 0;
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "");
    if (rc == KVL_OK)
        rc = question ? kvl_buf_add(out, text.data + at, text.len - at)
                      : kvl_buf_add(out, text.data, at);
    kvl_buf_free(&text);
    return rc;
}

/* {OPTION_A} .. {OPTION_D}, {choices} */
static int row_choices(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    struct kvl_jtext v = kvl_row_field(r, r->kind->choices);
    if (strncmp(name, "OPTION_", 7) == 0) {
        struct kvl_jtext item = kvl_jtext_item(v, name[7] - 'A');
        return item.n > 0 ? kvl_jtext_add(item, out) : KVL_EINVAL;
    }
    int32_t n = kvl_jtext_items(v);
    if (n < 1 || n > 26) return KVL_EINVAL;
    for (int32_t i = 0; i < n; i++) {
        KVL_TRY(kvl_buf_printf(out, "%s%c. ", i ? "\n" : "", 'A' + i));
        KVL_TRY(kvl_jtext_add(kvl_jtext_item(v, i), out));
    }
    return KVL_OK;
}

static int row_name(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    const struct kvl_rows_kind *k = r->kind;
    int rc = k->field ? k->field(r, name, out) : KVL_EINVAL;
    if (rc != KVL_EINVAL) return rc;
    if (r->set->mark && strcmp(name, "context") == 0) return row_marked(r, false, out);
    if (r->set->mark && strcmp(name, "question") == 0) return row_marked(r, true, out);
    if (strcmp(name, "context") == 0) return kvl_row_text(r, k->context, out);
    if (strcmp(name, "question") == 0) return kvl_row_text(r, k->question, out);
    if (k->choices && (strcmp(name, "choices") == 0 || strncmp(name, "OPTION_", 7) == 0))
        return row_choices(r, name, out);
    return kvl_row_text(r, name, out);
}

int kvl_row_fill(const struct kvl_row *r, const char *pattern, size_t n, struct kvl_buf *out,
                 struct kvl_err *err)
{
    char name[64];
    int rc = kvl_buf_adds(out, "");
    for (size_t i = 0; i < n && rc == KVL_OK; i++) {
        const char *end = pattern[i] == '{' ? memchr(pattern + i, '}', n - i) : NULL;
        if (!end || (size_t)(end - pattern) - i > sizeof name) {
            rc = kvl_buf_add(out, pattern + i, 1);
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)(end - pattern - (ptrdiff_t)i - 1),
                 pattern + i + 1);
        rc = row_name(r, name, out);
        if (rc == KVL_EINVAL)
            return kvl_fail(err, rc, "line %d: field \"%s\" is missing, the prompt wants it",
                            r->line,
                            strcmp(name, "question") == 0 && r->kind->question ? r->kind->question
                            : strcmp(name, "context") == 0 && r->kind->context ? r->kind->context
                                                                               : name);
        i = (size_t)(end - pattern);
    }
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "out of memory for a prompt");
}

/* ---- answers --------------------------------------------------------------------------------------- */

int kvl_row_answers(struct kvl_jtext v, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext item;
    const char *at = v.s;
    if (kvl_jtext_is_null(v) || kvl_jtext_is_object(v)) return KVL_EINVAL;
    if (!kvl_jtext_is_array(v)) {
        ++*n;
        KVL_TRY(kvl_jtext_add(v, out));
        return kvl_buf_add(out, "", 1);
    }
    while (kvl_jtext_each(v, &at, &item)) KVL_TRY(kvl_row_answers(item, out, n));
    return KVL_OK;
}

/* The option that is the answer, then its letter; or both as they are. */
static int row_letter(const struct kvl_row *r, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext options = kvl_row_field(r, r->kind->choices);
    KVL_TRY(kvl_row_answers(kvl_row_field(r, r->kind->answers), out, n));
    if (*n != 1) return *n == 2 ? KVL_OK : KVL_EINVAL;
    for (int32_t i = 0; i < kvl_jtext_items(options); i++) {
        struct kvl_buf option = { 0 };
        int rc = kvl_jtext_add(kvl_jtext_item(options, i), &option);
        bool same = rc == KVL_OK && strcmp(option.data, out->data) == 0;
        kvl_buf_free(&option);
        KVL_TRY(rc);
        if (!same) continue;
        char letter[2] = { (char)('A' + i), '\0' };
        ++*n;
        return kvl_buf_add(out, letter, 2);
    }
    bool letter = strlen(out->data) == 1 && out->data[0] >= 'A' && out->data[0] <= 'Z';
    return letter ? KVL_OK : KVL_EINVAL;
}

int kvl_row_gold(const struct kvl_row *r, struct kvl_buf *out, int32_t *n, struct kvl_err *err)
{
    int rc = r->kind->gold ? r->kind->gold(r, out, n)
             : r->set->flags & KVL_ROWS_LETTER
                 ? row_letter(r, out, n)
                 : kvl_row_answers(kvl_row_field(r, r->kind->answers), out, n);
    if (rc == KVL_ENOMEM) return kvl_fail(err, rc, "out of memory for answers");
    if (rc != KVL_OK || *n == 0)
        return kvl_fail(err, KVL_EINVAL,
                        "line %d: field \"%s\" has no answer, want a text, a number or a list of "
                        "them%s",
                        r->line, r->kind->answers ? r->kind->answers : "answer",
                        r->set->flags & KVL_ROWS_LETTER ? ", one of the options" : "");
    return KVL_OK;
}

struct kvl_rows_part kvl_row_part(const struct kvl_row *r)
{
    const struct kvl_rows_set *set = r->set;
    struct kvl_jtext task = kvl_row_field(r, "task");
    if (!set->parts) return (struct kvl_rows_part){ set->name, set->max_new, set->scorer };
    for (const struct kvl_rows_part *p = set->parts; p->task; p++)
        if (task.n == strlen(p->task) + 2 && memcmp(task.s + 1, p->task, task.n - 2) == 0)
            return *p;
    return (struct kvl_rows_part){ 0 };
}

static int quote_list(const char *v, int32_t n, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, "["));
    for (int32_t i = 0; i < n; i++, v += strlen(v) + 1) {
        if (i) KVL_TRY(kvl_buf_adds(out, ","));
        KVL_TRY(kvl_jtext_quote(v, strlen(v), out));
    }
    return kvl_buf_adds(out, "]");
}

/* Of a list that is parted by commas. */
static int quote_parted(const char *v, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, "["));
    while (*v) {
        size_t n = strcspn(v, ",");
        KVL_TRY(kvl_jtext_quote(v, n, out));
        v += n;
        if (*v) KVL_TRY(kvl_buf_adds(out, ","));
        v += *v == ',';
    }
    return kvl_buf_adds(out, "]");
}

static int row_keep(const struct kvl_row *r, struct kvl_buf *out)
{
    for (size_t i = 0; i < sizeof r->kind->keep / sizeof *r->kind->keep; i++) {
        struct kvl_jtext v = kvl_row_field(r, r->kind->keep[i]);
        if (v.n == 0) continue;
        KVL_TRY(kvl_buf_printf(out, ",\"%s\":", r->kind->keep[i]));
        KVL_TRY(kvl_buf_add(out, v.s, v.n));
    }
    return KVL_OK;
}

/* {"set":..,"line":..,"turn":..,"scorer":..,"gold":[..],"classes":[..], "fields":{...}} */
int kvl_row_json(const struct kvl_row *r, const struct kvl_buf *gold, int32_t n,
                 struct kvl_buf *out)
{
    struct kvl_jtext id = kvl_row_field(r, r->kind->id);
    struct kvl_jtext cls = kvl_row_field(r, r->kind->classes);
    enum kvl_scorer scorer = kvl_row_part(r).scorer;
    bool classes = scorer == KVL_SCORE_CLASSIFICATION || r->set->classes;
    KVL_TRY(kvl_buf_printf(out, "{\"set\":\"%s\",\"line\":%d,\"turn\":%d,\"scorer\":\"%s\"",
                           r->set->name, r->line, r->i_turn, kvl_scorer_names[scorer]));
    if (r->set->flags & KVL_ROWS_FIRST_LINE) KVL_TRY(kvl_buf_adds(out, ",\"first_line\":true"));
    if (id.n > 0) KVL_TRY(kvl_buf_adds(out, ",\"id\":"));
    if (id.n > 0) KVL_TRY(kvl_buf_add(out, id.s, id.n));
    KVL_TRY(kvl_buf_adds(out, ",\"gold\":"));
    KVL_TRY(quote_list(gold->data, n, out));
    if (classes) KVL_TRY(kvl_buf_adds(out, ",\"classes\":"));
    if (classes && kvl_jtext_is_array(cls))
        KVL_TRY(kvl_buf_add(out, cls.s, cls.n));
    else if (classes)
        KVL_TRY(quote_parted(r->set->classes ? r->set->classes : "", out));
    if (scorer == KVL_SCORE_BABILONG) {
        struct kvl_buf text = { 0 };
        int rc = kvl_row_text(r, r->kind->question, &text);
        if (rc == KVL_OK) rc = kvl_buf_adds(out, ",\"question\":");
        if (rc == KVL_OK) rc = kvl_jtext_quote(text.data, text.len, out);
        kvl_buf_free(&text);
        KVL_TRY(rc);
    }
    KVL_TRY(row_keep(r, out));
    return kvl_buf_adds(out, "}");
}

/* ---- scores ---------------------------------------------------------------------------------------- */

/* Texts of a JSON list; the pointers are kvl_free's. */
static int score_list(struct kvl_jtext v, struct kvl_buf *text, const char ***out, int32_t *n)
{
    int32_t items = KVL_MAX(kvl_jtext_items(v), 0);
    struct kvl_jtext item;
    const char *at = v.s;
    *out = kvl_alloc((size_t)items + 1, sizeof **out);
    if (!*out) return KVL_ENOMEM;
    for (*n = 0; *n < items && kvl_jtext_each(v, &at, &item); ++*n) {
        KVL_TRY(kvl_jtext_add(item, text));
        KVL_TRY(kvl_buf_add(text, "", 1));
    }
    const char *s = text->data;
    for (int32_t i = 0; i < *n; i++, s += strlen(s) + 1) (*out)[i] = s;
    return KVL_OK;
}

static enum kvl_scorer score_kind(struct kvl_jtext row)
{
    struct kvl_jtext v = kvl_jtext_member(row, "scorer");
    for (int32_t i = 0; kvl_scorer_names[i]; i++)
        if (v.n == strlen(kvl_scorer_names[i]) + 2 &&
            memcmp(v.s + 1, kvl_scorer_names[i], v.n - 2) == 0)
            return (enum kvl_scorer)i;
    return KVL_SCORE_EXACT;
}

/* Behind line ends the first line. */
static int score_line(const char *prediction, struct kvl_buf *out)
{
    prediction += strspn(prediction, "\n");
    KVL_TRY(kvl_buf_adds(out, ""));
    return kvl_buf_add(out, prediction, strcspn(prediction, "\n"));
}

int kvl_row_score(const char *json, const char *prediction, struct kvl_answer_score *out,
                  struct kvl_err *err)
{
    struct kvl_jtext row = { json, strlen(json) };
    struct kvl_buf answers = { 0 }, classes = { 0 }, line = { 0 }, question = { 0 };
    const char **answer = NULL, **cls = NULL;
    struct kvl_gold gold = { 0 };
    int rc = score_list(kvl_jtext_member(row, "gold"), &answers, &answer, &gold.n);
    if (rc == KVL_OK)
        rc = score_list(kvl_jtext_member(row, "classes"), &classes, &cls, &gold.n_cls);
    gold.answer = answer;
    gold.cls = cls;
    if (rc == KVL_OK && kvl_jtext_member(row, "first_line").n > 0)
        rc = score_line(prediction, &line);
    struct kvl_jtext asked = kvl_jtext_member(row, "question");
    if (rc == KVL_OK && asked.n > 0) rc = kvl_jtext_add(asked, &question);
    gold.question = question.data;
    if (rc == KVL_OK)
        rc = kvl_score_answer(score_kind(row), &gold, line.data ? line.data : prediction, out, err);
    kvl_free(answer);
    kvl_free(cls);
    kvl_buf_free(&answers);
    kvl_buf_free(&classes);
    kvl_buf_free(&line);
    kvl_buf_free(&question);
    return rc;
}

int kvl_row_misses(const struct kvl_row *r, const char *json, struct kvl_err *err)
{
    static const char nonsense[] = "\xee\x80\x80\xee\x80\x81"; /* two characters that nobody uses */
    struct kvl_answer_score s;
    if (!(r->set->flags & KVL_ROWS_USERS)) return KVL_OK;
    KVL_TRY(kvl_row_score(json, nonsense, &s, err));
    if (!(s.official > 0) && !(s.strict > 0)) return KVL_OK;
    return kvl_fail(
        err, KVL_EINVAL,
        "line %d: field \"%s\" has an answer that any text is right for (an empty one?), "
        "want texts that a wrong answer has not",
        r->line, r->kind->answers ? r->kind->answers : "answer");
}

/* Whether answers can be compared with was seen when the file was read. */
void kvl_rows_score(const struct kvl_question *q, const char *prediction,
                    struct kvl_task_score *out)
{
    struct kvl_answer_score s = { 0 };
    *out = (struct kvl_task_score){ 0 };
    if (!q->row || kvl_row_score(q->row, prediction, &s, NULL) != KVL_OK) return;
    out->official = s.official;
    out->strict = s.strict;
}

/* ---- samples ---------------------------------------------------------------------------------------------- */

/* The items of a request: its part of a group. */
static int rows_part(const struct kvl_file_rows *r, const struct kvl_task_request *req,
                     int32_t *first, int32_t *n)
{
    int32_t left = req->index, at = 0;
    for (int32_t g = 0; g < r->base.n_groups; at += r->size[g++]) {
        int32_t parts = (r->size[g] + req->n_questions - 1) / req->n_questions;
        if (left < parts) {
            *first = at + left * req->n_questions;
            *n = KVL_MIN(r->size[g] - left * req->n_questions, req->n_questions);
            return KVL_OK;
        }
        left -= parts;
    }
    return KVL_EINVAL;
}

/* Bytes at the begin of all tails that are alike: of several, what no field is in. */
static size_t rows_common(const char *tail_pattern, const struct kvl_file_prompt *p)
{
    if (p->n == 1) return p->tail[0].len;
    size_t n = strcspn(tail_pattern, "{");
    for (int32_t i = 0; i < p->n; i++) n = KVL_MIN(n, p->tail[i].len);
    return n;
}

/* What the benchmark says, else the answers. */
static int rows_evidence(const struct kvl_row *row, struct kvl_buf *out, int32_t *n,
                         struct kvl_err *err)
{
    if (row->kind->proof) {
        int rc = row->kind->proof(row, out, n);
        return rc == KVL_OK ? rc : kvl_fail(err, rc, "line %d: evidence", row->line);
    }
    struct kvl_jtext v = kvl_row_field(row, row->kind->evidence);
    if (v.n == 0 && row->kind->evidence) return KVL_OK;
    if (v.n == 0) return kvl_row_gold(row, out, n, err);
    if (kvl_row_answers(v, out, n) == KVL_OK) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "line %d: field \"%s\" is no text or list of texts", row->line,
                    row->kind->evidence);
}

/* Adds the answer prefix of the row's field, else finds the one that the text has. */
static int rows_prefix(const struct kvl_row *row, struct kvl_buf *tail, size_t *n,
                       struct kvl_err *err)
{
    struct kvl_jtext v = kvl_row_field(row, row->kind->prefix);
    size_t asked = tail->len;
    if (!kvl_jtext_is_null(v) && kvl_jtext_add(v, tail) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for a prompt");
    if (tail->len == asked && row->set->opens)
        asked = row_last(tail->data, tail->len, row->set->opens);
    *n = tail->len - asked;
    return KVL_OK;
}

static int rows_tails(const struct kvl_file_rows *r, int32_t first, const char *pattern,
                      struct kvl_file_prompt *p, struct kvl_err *err)
{
    bool evidence = !(r->set.flags & KVL_ROWS_NOWHERE) && !r->base.control;
    p->tail = kvl_alloc((size_t)p->n, sizeof *p->tail);
    if (evidence) p->evidence = kvl_alloc((size_t)p->n, sizeof *p->evidence);
    p->n_evidence = kvl_alloc((size_t)p->n, sizeof *p->n_evidence);
    p->n_prefix = kvl_alloc((size_t)p->n, sizeof *p->n_prefix);
    if (!p->tail || (evidence && !p->evidence) || !p->n_evidence || !p->n_prefix)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for questions");
    for (int32_t i = 0; i < p->n; i++) {
        const struct kvl_row *row = &r->item[first + i];
        KVL_TRY(kvl_row_fill(row, pattern, strlen(pattern), &p->tail[i], err));
        KVL_TRY(rows_prefix(row, &p->tail[i], &p->n_prefix[i], err));
        if (evidence) KVL_TRY(rows_evidence(row, &p->evidence[i], &p->n_evidence[i], err));
        if (evidence && r->set.flags & KVL_ROWS_LETTER) p->n_evidence[i] = 1; /* not the letter */
    }
    p->common = rows_common(pattern, p);
    return KVL_OK;
}

static int rows_prompt(const struct kvl_file_rows *r, int32_t first, struct kvl_file_prompt *p,
                       struct kvl_err *err)
{
    const char *prompt = kvl_rows_prompt(&r->set);
    size_t head = kvl_rows_head(prompt);
    const char *behind = prompt + head + (prompt[head] ? strlen("{context}") : 0);
    struct kvl_row deep = r->item[first], *row = &deep;
    deep.depth = p->depth;
    KVL_TRY(kvl_row_fill(row, prompt, head, &p->context, err));
    p->begin = p->context.len;
    if (prompt[head] && !r->base.control)
        KVL_TRY(kvl_row_fill(row, "{context}", strlen("{context}"), &p->context, err));
    return rows_tails(r, first, behind, p, err);
}

static int rows_count(const struct kvl_task_request *req, const char *text, int32_t *n,
                      struct kvl_err *err)
{
    struct kvl_tokens t = { 0 };
    int rc = kvl_encode(req->tokenizer, text, strlen(text), KVL_ENCODE_CONTINUE, &t, err);
    *n = t.n;
    kvl_tokens_free(&t);
    return rc;
}

/* What a perfect model would say, what it is compared with, and how many tokens it may have. */
static int rows_answer(const struct kvl_file_rows *r, const struct kvl_row *row,
                       const struct kvl_task_request *req, struct kvl_question *q,
                       struct kvl_err *err)
{
    struct kvl_buf gold = { 0 }, json = { 0 }, answer = { 0 }, first = { 0 };
    int32_t n = 0, tok = 0;
    size_t len = strlen(q->text);
    KVL_TRY(kvl_row_gold(row, &gold, &n, err));
    int rc = kvl_row_json(row, &gold, n, &json);
    bool joined = len > 0 && strchr(" \n\t", q->text[len - 1]);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, "%s%s", joined ? "" : " ", gold.data);
    if (rc == KVL_OK) rc = kvl_buf_adds(&first, gold.data);
    kvl_buf_free(&gold);
    q->row = json.data;
    q->answer = answer.data;
    q->gold = first.data;
    if (rc != KVL_OK) return kvl_fail(err, rc, "out of memory for answers");
    KVL_TRY(rows_count(req, q->answer, &tok, err));
    int32_t max_new = kvl_row_part(row).max_new;
    q->max_new_tok = r->opts->max_new > 0 ? r->opts->max_new : max_new ? max_new : tok + 2;
    bool told = r->kind.evidence || r->kind.proof || r->set.flags & KVL_ROWS_EXACT;
    if (q->n_evidence > 0 && !told) q->flags |= KVL_EVIDENCE_WEAK;
    return KVL_OK;
}

int kvl_rows_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                      struct kvl_err *err)
{
    const struct kvl_file_rows *r = (const struct kvl_file_rows *)req->source;
    struct kvl_file_prompt p = { .truncate = r ? r->opts->truncate : 0 };
    struct kvl_sample s = { 0 };
    int32_t first;
    if (!r)
        return kvl_fail(err, KVL_EINVAL, "reads its contexts from files, which are not open here");
    p.name = r->set.name;
    if (req->n_questions < 1 || rows_part(r, req, &first, &p.n) != KVL_OK)
        return kvl_fail(err, KVL_EINVAL, "%s: context %d with %d questions: there is none",
                        r->kind.name, req->index, req->n_questions);
    p.depth = req->depth >= 0.0 ? req->depth : (first + 0.5) / r->n;
    int rc = rows_prompt(r, first, &p, err);
    if (rc == KVL_OK) rc = kvl_file_prompt_sample(req, &p, &s, err);
    for (int32_t i = 0; rc == KVL_OK && i < s.n_questions; i++)
        rc = rows_answer(r, &r->item[first + i], req, &s.question[i], err);
    kvl_file_prompt_free(&p);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "%s", r->kind.name);
}
