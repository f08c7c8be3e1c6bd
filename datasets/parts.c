/* Answers of several parts: texts, evidence, scores. */
#include "parts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    PARTS_GROUPS = sizeof((struct kvl_question *)0)->evidence / sizeof(struct kvl_evidence),
    PARTS_SPANS = sizeof((struct kvl_evidence *)0)->span / sizeof *((struct kvl_evidence *)0)->span,
};
static_assert(KVL_PARTS <= PARTS_GROUPS * PARTS_SPANS, "evidence holds all parts");

/* ---- the answer ---------------------------------------------------------------------------- */

static int parts_write(const struct kvl_part *part, int32_t n, const char *quote,
                       struct kvl_buf *answer, struct kvl_buf *gold)
{
    for (int32_t i = 0; i < n; i++) {
        KVL_TRY(kvl_buf_printf(answer, "%s %s%s%s", i > 0 ? "," : "", quote, part[i].text, quote));
        KVL_TRY(kvl_buf_printf(gold, "%s%s", i > 0 ? ", " : "", part[i].text));
    }
    return KVL_OK;
}

int kvl_parts_say(const struct kvl_task_request *req, const struct kvl_part *part, int32_t n,
                  const char *quote, int32_t max_new, struct kvl_question *q, struct kvl_err *err)
{
    struct kvl_buf answer = { 0 }, gold = { 0 };
    int32_t n_tok;
    int rc = parts_write(part, n, quote, &answer, &gold);
    q->answer = answer.data;
    q->gold = gold.data;
    if (rc != KVL_OK) return kvl_fail(err, rc, "an answer of %d parts: out of memory", n);
    KVL_TRY(kvl_fit_count(req->tokenizer, answer.data, answer.len, &n_tok, err));
    if (max_new != KVL_AUTO && max_new < n_tok)
        return kvl_fail(err, KVL_EINVAL,
                        "max_new %d cuts the answer \"%s\", want at least %d or auto", max_new,
                        answer.data, n_tok);
    q->max_new_tok = max_new == KVL_AUTO ? n_tok + KVL_FIT_END_TOK : max_new;
    return KVL_OK;
}

/* ---- evidence ------------------------------------------------------------------------------ */

/* What tells in a generated text that a part was said: all of it, or what fits. */
static const char *parts_mark(const char *text)
{
    const char *dash = strrchr(text, '-');
    size_t size = sizeof((struct kvl_evidence *)0)->after;
    return strlen(text) >= size && dash ? dash + 1 : text; /* the last digits of a uuid */
}

void kvl_parts_evidence(const struct kvl_part *part, int32_t n, struct kvl_question *q)
{
    int32_t n_groups = KVL_MIN(n, PARTS_GROUPS);
    assert(n <= KVL_PARTS);
    q->n_evidence = n_groups;
    for (int32_t i = 0; i < n; i++) {
        struct kvl_evidence *e = &q->evidence[i * n_groups / n];
        if (e->n_spans == 0 && i > 0)
            snprintf(e->after, sizeof e->after, "%s", parts_mark(part[i - 1].text));
        e->kind = KVL_EVIDENCE_ALL;
        e->span[e->n_spans++] = part[i].span;
    }
}

/* ---- scores -------------------------------------------------------------------------------- */

struct parts_piece {
    const char *text;
    size_t len;
};

/* Not the C library's: its letters depend on the locale. */
static char parts_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool parts_contains(const char *text, struct parts_piece p)
{
    for (const char *s = text; *s; s++) {
        size_t i = 0;
        while (i < p.len && parts_lower(s[i]) == parts_lower(p.text[i])) i++;
        if (i == p.len) return true;
    }
    return false;
}

/* The next part of a gold text. */
static bool parts_next(const char **s, struct parts_piece *out)
{
    *s += strspn(*s, ", ");
    *out = (struct parts_piece){ *s, strcspn(*s, ",") };
    *s += out->len;
    return out->len > 0;
}

double kvl_parts_official(const char *gold, const char *prediction)
{
    int32_t n = 0, right = 0;
    struct parts_piece p;
    for (const char *s = gold; parts_next(&s, &p); n++) right += parts_contains(prediction, p);
    return n ? (double)right / n : 0.0;
}

static bool parts_and(const char *s, const char *end)
{
    return end - s > 4 && (memcmp(s, "and ", 4) == 0 || memcmp(s, "and\t", 4) == 0);
}

static bool parts_blank(char c)
{
    return c && strchr(KVL_FIT_BLANK, c);
}

/* The next part of a prediction that ends at `end`, without quotes around it. */
static bool parts_said(const char **s, const char *end, struct parts_piece *out)
{
    const char *p = *s;
    while (p < end && (parts_blank(*p) || *p == ',')) p++;
    if (parts_and(p, end)) p += 4;
    while (p < end && (parts_blank(*p) || *p == '"')) p++;
    const char *last = p;
    while (last < end && *last != ',' && !(parts_blank(*last) && parts_and(last + 1, end))) last++;
    *s = last;
    while (last > p && (parts_blank(last[-1]) || last[-1] == '"')) last--;
    *out = (struct parts_piece){ p, (size_t)(last - p) };
    return out->len > 0;
}

/* Takes the part out of those that are still expected; -1 = it is none of them. */
static int32_t parts_take(const char *gold, struct parts_piece said, uint64_t *taken)
{
    struct parts_piece p;
    for (int32_t i = 0; parts_next(&gold, &p); i++) {
        uint64_t bit = (uint64_t)1 << i;
        if ((*taken & bit) || p.len != said.len || memcmp(p.text, said.text, p.len) != 0) continue;
        *taken |= bit;
        return i;
    }
    return -1;
}

bool kvl_parts_strict(const char *gold, const char *prediction, bool ordered)
{
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK), *end = s + strcspn(s, ".\n");
    struct parts_piece p;
    uint64_t taken = 0;
    int32_t n = 0, n_said = 0;
    while (parts_said(&s, end, &p)) {
        int32_t i = parts_take(gold, p, &taken);
        if (i < 0 || (ordered && i != n_said)) return false;
        n_said++;
    }
    for (const char *g = gold; parts_next(&g, &p);) n++;
    return n > 0 && n_said == n;
}
