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
        return kvl_jtext_is_null(item) ? KVL_EINVAL : kvl_jtext_add(item, out);
    }
    int32_t n = kvl_jtext_items(v);
    if (n < 1 || n > 26) return KVL_EINVAL;
    for (int32_t i = 0; i < n; i++) {
        struct kvl_jtext item = kvl_jtext_item(v, i);
        if (kvl_jtext_is_null(item)) return KVL_EINVAL;
        KVL_TRY(kvl_buf_printf(out, "%s%c. ", i ? "\n" : "", 'A' + i));
        KVL_TRY(kvl_jtext_add(item, out));
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

/* Whether what stands before the context is of the first question alone: the others have it with them. */
static bool rows_headed(const struct kvl_rows_set *set)
{
    const char *prompt = kvl_rows_prompt(set);
    return set->later && memchr(prompt, '{', kvl_rows_head(prompt));
}

static int rows_tails(const struct kvl_file_rows *r, int32_t first, const char *pattern,
                      struct kvl_file_prompt *p, struct kvl_err *err)
{
    bool evidence = !(r->set.flags & KVL_ROWS_NOWHERE) && !r->base.control;
    p->tail = kvl_alloc((size_t)p->n, sizeof *p->tail);
    if (evidence) p->evidence = kvl_alloc((size_t)p->n, sizeof *p->evidence);
    p->n_evidence = kvl_alloc((size_t)p->n, sizeof *p->n_evidence);
    p->n_prefix = kvl_alloc((size_t)p->n, sizeof *p->n_prefix);
    p->n_apart = kvl_alloc((size_t)p->n, sizeof *p->n_apart);
    if (!p->tail || (evidence && !p->evidence) || !p->n_evidence || !p->n_prefix || !p->n_apart)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for questions");
    for (int32_t i = 0; i < p->n; i++) {
        const struct kvl_row *row = &r->item[first + i];
        const char *own = i > 0 && rows_headed(&r->set) ? r->set.later : pattern;
        KVL_TRY(kvl_row_fill(row, own, strlen(own), &p->tail[i], err));
        p->n_apart[i] = strspn(own, " \n\t");
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

/* What stands behind the questions before it, of the same row. */
static int rows_turn(const struct kvl_file_rows *r, const struct kvl_row *row,
                     const struct kvl_buf *tail, size_t n_apart, struct kvl_question *q,
                     struct kvl_err *err)
{
    struct kvl_buf said = { 0 }, later = { 0 }, turn = { 0 };
    const char *pattern = r->set.later;
    int rc = kvl_buf_adds(&turn, tail->data + n_apart);
    q->turn = turn.data;
    if (!r->kind.turns || rc != KVL_OK)
        return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for a question");
    rc = pattern ? kvl_row_fill(row, pattern, strlen(pattern), &later, err)
                 : kvl_buf_adds(&later, tail->data);
    if (rc == KVL_OK && r->kind.typed) rc = kvl_row_said(row, &said);
    q->said = said.data;
    q->later = later.data;
    return rc == KVL_OK || rc == KVL_EINVAL ? rc
                                            : kvl_fail(err, rc, "out of memory for a question");
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
    int rc = kvl_row_json(row, &gold, n, &json, err);
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
    struct kvl_file_prompt p = { 0 };
    struct kvl_sample s = { 0 };
    int32_t first;
    if (!r)
        return kvl_fail(err, KVL_EINVAL, "reads its contexts from files, which are not open here");
    p.name = r->set.name;
    p.truncate = r->opts->truncate;
    p.as_cut = r->kind.around && p.truncate == KVL_ROWS_MIDDLE;
    p.odd_back = r->kind.odd_back;
    p.halves = r->kind.halves && p.truncate == KVL_ROWS_MIDDLE;
    if (req->n_questions < 1 || rows_part(r, req, &first, &p.n) != KVL_OK)
        return kvl_fail(err, KVL_EINVAL, "%s: context %d with %d questions: there is none",
                        r->kind.name, req->index, req->n_questions);
    p.depth = req->depth >= 0.0 ? req->depth : (first + 0.5) / r->n;
    int rc = rows_prompt(r, first, &p, err);
    if (rc == KVL_OK) rc = kvl_file_prompt_sample(req, &p, &s, err);
    for (int32_t i = 0; rc == KVL_OK && i < s.n_questions; i++)
        rc = rows_answer(r, &r->item[first + i], req, &s.question[i], err);
    for (int32_t i = 0; rc == KVL_OK && i < s.n_questions; i++)
        rc = rows_turn(r, &r->item[first + i], &p.tail[i], p.n_apart[i], &s.question[i], err);
    kvl_file_prompt_free(&p);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "%s", r->kind.name);
}
