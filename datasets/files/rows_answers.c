/* Answers of rows: what they are, what of the row the log keeps, what a prediction is worth. */
#include "rows.h"

#include <string.h>

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

/* Numbers that other readers do not have: more than 18 digits, NaN, infinities, large powers. */
static bool keep_odd(struct kvl_jtext v)
{
    bool in = false;
    size_t digits = 0;
    for (size_t i = 0; i < v.n; i++) {
        char c = v.s[i];
        if (in && c == '\\') i++;
        if (c == '"') in = !in;
        digits = !in && c >= '0' && c <= '9' ? digits + 1 : 0;
        if (digits > 18 || (!in && (c == 'N' || c == 'I' || c == 'e' || c == 'E') && i > 0 &&
                            strchr("[,: -0123456789", v.s[i - 1])))
            return true;
    }
    return false;
}

/* Values as they are; those with odd numbers as {"json": text}. */
static int row_keep(const struct kvl_row *r, struct kvl_buf *out)
{
    for (size_t i = 0; i < sizeof r->kind->keep / sizeof *r->kind->keep; i++) {
        struct kvl_jtext v = kvl_row_field(r, r->kind->keep[i]);
        if (v.n == 0) continue;
        KVL_TRY(kvl_buf_printf(out, ",\"%s\":", r->kind->keep[i]));
        bool odd = keep_odd(v);
        if (odd) KVL_TRY(kvl_buf_adds(out, "{\"json\":"));
        KVL_TRY(odd ? kvl_jtext_quote(v.s, v.n, out) : kvl_buf_add(out, v.s, v.n));
        if (odd) KVL_TRY(kvl_buf_adds(out, "}"));
    }
    return KVL_OK;
}

/* The first value that is no list; n = 0: none. */
static struct kvl_jtext row_leaf(struct kvl_jtext v)
{
    while (kvl_jtext_is_array(v)) v = kvl_jtext_item(v, 0);
    return v;
}

/* A text as Python's repr writes it. */
static int said_quoted(struct kvl_jtext v, struct kvl_buf *out)
{
    static const char from[] = "\\\n\r\t", to[] = "\\nrt";
    struct kvl_buf text = { 0 };
    int rc = kvl_jtext_add(v, &text);
    char mark = rc == KVL_OK && strchr(text.data, '\'') && !strchr(text.data, '"') ? '"' : '\'';
    if (rc == KVL_OK) rc = kvl_buf_add(out, &mark, 1);
    for (const char *c = text.data; rc == KVL_OK && *c; c++) {
        const char *known = strchr(from, *c);
        if (known || *c == mark)
            rc = kvl_buf_printf(out, "\\%c", known ? to[known - from] : mark);
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            rc = kvl_buf_printf(out, "\\x%02x", (unsigned char)*c);
        else
            rc = kvl_buf_add(out, c, 1);
    }
    if (rc == KVL_OK) rc = kvl_buf_add(out, &mark, 1);
    kvl_buf_free(&text);
    return rc;
}

int kvl_row_said(const struct kvl_row *r, struct kvl_buf *out)
{
    struct kvl_jtext v = kvl_row_field(r, r->kind->answers), item;
    const char *at = v.s;
    if (!kvl_jtext_is_array(v)) return kvl_jtext_add(v, out);
    KVL_TRY(kvl_buf_adds(out, "["));
    for (int32_t i = 0; kvl_jtext_each(v, &at, &item); i++) {
        if (i) KVL_TRY(kvl_buf_adds(out, ", "));
        KVL_TRY(kvl_jtext_is_string(item) ? said_quoted(item, out) : kvl_jtext_add(item, out));
    }
    return kvl_buf_adds(out, "]");
}

/* How the scripts see the answers: as a list or by themselves, as texts or as numbers. */
static int row_form(const struct kvl_row *r, struct kvl_buf *out)
{
    struct kvl_jtext v = kvl_row_field(r, r->kind->answers);
    bool list = kvl_jtext_is_array(v) || r->set->flags & (KVL_ROWS_LETTER | KVL_ROWS_LISTED);
    if (!r->kind->typed) return KVL_OK;
    KVL_TRY(kvl_buf_printf(out, ",\"form\":\"%s\"", list ? "list" : "text"));
    return kvl_jtext_is_string(row_leaf(v)) ? KVL_OK : kvl_buf_adds(out, ",\"numeric\":true");
}

static int row_classes(const struct kvl_row *r, enum kvl_scorer scorer, struct kvl_buf *out)
{
    struct kvl_jtext cls = kvl_row_field(r, r->kind->classes), item;
    const char *at = cls.s;
    if (scorer != KVL_SCORE_CLASSIFICATION && !r->set->classes) return KVL_OK;
    KVL_TRY(kvl_buf_adds(out, ",\"classes\":"));
    if (!kvl_jtext_is_array(cls)) return quote_parted(r->set->classes ? r->set->classes : "", out);
    while (kvl_jtext_each(cls, &at, &item))
        if (!kvl_jtext_is_string(item)) return KVL_EINVAL;
    return kvl_buf_add(out, cls.s, cls.n);
}

static int row_asked(const struct kvl_row *r, struct kvl_buf *out)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_row_text(r, r->kind->question, &text);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, ",\"question\":");
    if (rc == KVL_OK) rc = kvl_jtext_quote(text.data, text.len, out);
    kvl_buf_free(&text);
    return rc;
}

static int row_head(const struct kvl_row *r, enum kvl_scorer scorer, const struct kvl_buf *gold,
                    int32_t n, struct kvl_buf *out)
{
    struct kvl_jtext id = kvl_row_field(r, r->kind->id);
    KVL_TRY(kvl_buf_printf(out, "{\"set\":\"%s\",\"line\":%d,\"turn\":%d,\"scorer\":\"%s\"",
                           r->set->name, r->line, r->i_turn, kvl_scorer_names[scorer]));
    if (r->set->flags & KVL_ROWS_FIRST_LINE) KVL_TRY(kvl_buf_adds(out, ",\"first_line\":true"));
    KVL_TRY(row_form(r, out));
    if (id.n > 0 && !keep_odd(id)) {
        KVL_TRY(kvl_buf_adds(out, ",\"id\":"));
        KVL_TRY(kvl_buf_add(out, id.s, id.n));
    }
    KVL_TRY(kvl_buf_adds(out, ",\"gold\":"));
    return quote_list(gold->data, n, out);
}

/* {"set":..,"line":..,"turn":..,"scorer":..,"gold":[..],"classes":[..], "fields":{...}} */
int kvl_row_json(const struct kvl_row *r, const struct kvl_buf *gold, int32_t n,
                 struct kvl_buf *out, struct kvl_err *err)
{
    enum kvl_scorer scorer = kvl_row_part(r).scorer;
    const char *field = r->kind->classes;
    int rc = row_head(r, scorer, gold, n, out);
    if (rc == KVL_OK) rc = row_classes(r, scorer, out);
    if (rc == KVL_OK && scorer == KVL_SCORE_BABILONG) {
        field = r->kind->question;
        rc = row_asked(r, out);
    }
    if (rc == KVL_EINVAL)
        return kvl_fail(err, rc, "line %d: field \"%s\" is missing, or no text", r->line,
                        field ? field : "classes");
    if (rc == KVL_OK) rc = row_keep(r, out);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "}");
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for answers");
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
    struct kvl_jtext form = kvl_jtext_member(row, "form");
    gold.form = form.n == 0 ? KVL_GOLD_ANY : form.s[1] == 'l' ? KVL_GOLD_LIST : KVL_GOLD_TEXT;
    gold.numeric = kvl_jtext_member(row, "numeric").n > 0;
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
