/* check_task.h - what every task promises (kvl/task.h, datasets/README.md), as functions that say what
 * is wrong, so that a test can also see them refuse tasks that are.
 *
 * Nothing here knows a task: a check asks its own description what applies to it.
 */
#ifndef KVL_TESTS_CHECK_TASK_H
#define KVL_TESTS_CHECK_TASK_H

#include "task_maker.h"

/* The tokenizer under which a task is checked; a request is as long in each of them. */
struct task_subject {
    const struct kvl_task *task;
    const char *tokenizer_name;
    const struct kvl_tokenizer *tokenizer;
};

/* KVL_OK, or the first promise that is broken, in *err. */
typedef int (*task_check)(const struct task_subject *s, struct kvl_err *err);

#define TASK_WRONG(err, ...) kvl_fail((err), KVL_ETASK, __VA_ARGS__)

enum { TASK_LENGTH = 2048, TASK_QUESTIONS = 8, TASK_SEEDS = 6 };

/* ---- one sample -------------------------------------------------------------------------------- */

struct task_ask {
    const char *options; /* NULL: the defaults */
    int32_t length, n_questions;
    double depth;
    uint64_t seed;
};

/* KVL_ETASK only for what the task's own options break. */
static inline int task_make(const struct task_subject *s, const struct task_ask *a,
                            struct kvl_sample *out, struct kvl_err *err)
{
    const struct kvl_task *t = s->task;
    void *opts = kvl_alloc(1, t->opts_size ? t->opts_size : 1);
    struct kvl_task_request req = { .tokenizer = s->tokenizer,
                                    .length_tok = a->length,
                                    .depth = a->depth,
                                    .n_questions = t->score ? a->n_questions : 0,
                                    .seed = a->seed,
                                    .opts = opts };
    assert_non_null(opts);
    int rc = kvl_opt_defaults(t->opts, opts, err);
    if (rc == KVL_OK && a->options) rc = kvl_opt_parse(t->opts, opts, a->options, err);
    rc = rc == KVL_OK ? t->generate(&req, out, err) : KVL_ETASK;
    kvl_free(opts);
    return rc;
}

static inline struct task_ask task_plain(uint64_t seed)
{
    return (
        struct task_ask){ .length = TASK_LENGTH, .n_questions = 1, .depth = -1.0, .seed = seed };
}

/* A request that every task meets. */
static inline int task_must(const struct task_subject *s, const struct task_ask *a,
                            struct kvl_sample *out, struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    *out = (struct kvl_sample){ 0 };
    if (task_make(s, a, out, &why) == KVL_OK) return KVL_OK;
    return TASK_WRONG(err, "%s: %d tokens, options \"%s\", seed %d are refused: %s",
                      s->tokenizer_name, a->length, a->options ? a->options : "", (int)a->seed,
                      why.msg);
}

/* ---- requests that are refused -------------------------------------------------------------------- */

/* One clear line: KVL_EINVAL, who it is, no line end; `value` stands in it (NULL: any).  What is out
 * of memory may be, too: an option at its bound. */
static inline int task_refuses(const struct task_subject *s, int rc, const struct kvl_err *why,
                               const char *value, struct kvl_err *err)
{
    size_t n = strlen(s->task->name);
    if (rc != KVL_EINVAL)
        return TASK_WRONG(err, "refused with \"%s\" (%s), want KVL_EINVAL", kvl_status_name(rc),
                          why->msg);
    if (strncmp(why->msg, s->task->name, n) != 0 || why->msg[n] != ':')
        return TASK_WRONG(err, "the message \"%s\" does not begin with the task's name", why->msg);
    if (strchr(why->msg, '\n'))
        return TASK_WRONG(err, "the message \"%s\" is not one line", why->msg);
    if (value && !strstr(why->msg, value))
        return TASK_WRONG(err, "the message \"%s\" does not say %s", why->msg, value);
    return KVL_OK;
}

/* What cannot be met leaves *out as it was. */
static inline int task_must_refuse(const struct task_subject *s, const struct task_ask *a,
                                   const char *value, struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct kvl_sample out = { .n_questions = 77 };
    int rc = task_make(s, a, &out, &why);
    if (rc == KVL_OK) {
        kvl_sample_free(&out);
        return TASK_WRONG(err, "%d tokens, depth %g, %d questions are accepted, want KVL_EINVAL",
                          a->length, a->depth, a->n_questions);
    }
    if (out.n_questions != 77 || out.context || out.question || out.tokens.id)
        return TASK_WRONG(err, "a refused request of %d tokens writes its sample", a->length);
    return task_refuses(s, rc, &why, value, err);
}

static inline int check_task_too_short(const struct task_subject *s, struct kvl_err *err)
{
    static const int32_t lengths[] = { -5, 0, 1, 2, 5, 10 };
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char value[16];
        struct task_ask a = task_plain(1);
        a.length = lengths[i];
        snprintf(value, sizeof value, "%d", lengths[i]);
        KVL_TRY(task_must_refuse(s, &a, value, err));
    }
    return KVL_OK;
}

static inline int check_task_bad_requests(const struct task_subject *s, struct kvl_err *err)
{
    static const int32_t questions[] = { -1, 0, 100000 };
    if (!s->task->score) return KVL_OK;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        char value[16];
        struct task_ask a = task_plain(1);
        a.n_questions = questions[i];
        snprintf(value, sizeof value, "%d", questions[i]);
        KVL_TRY(task_must_refuse(s, &a, value, err));
    }
    struct task_ask deep = task_plain(1);
    deep.depth = 1.01;
    KVL_TRY(task_must_refuse(s, &deep, "1.01", err));
    deep.depth = (double)NAN;
    return task_must_refuse(s, &deep, "nan", err);
}

/* ---- description ---------------------------------------------------------------------------------- */

static inline int task_check_row(const struct task_subject *s, const struct kvl_opt *o,
                                 struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    char value[64];
    void *opts = kvl_alloc(1, s->task->opts_size);
    int rc = KVL_OK;
    assert_non_null(opts);
    bool number = o->type == KVL_OPT_INT || o->type == KVL_OPT_FLOAT;
    if (!o->help || !o->help[0])
        rc = TASK_WRONG(err, "option %s has no help", o->name);
    else if (number && !(o->min < o->max))
        rc = TASK_WRONG(err, "option %s: %g to %g is no range", o->name, o->min, o->max);
    for (int32_t side = 0; number && rc == KVL_OK && side < 2; side++) {
        snprintf(value, sizeof value, "%.15g", side ? o->max + 1.0 : o->min - 1.0);
        if (strcmp(value, "-1") != 0 &&
            kvl_opt_set(s->task->opts, opts, o->name, value, &why) == KVL_OK)
            rc = TASK_WRONG(err, "option %s takes %s, which is out of its range", o->name, value);
    }
    kvl_free(opts);
    return rc;
}

/* Defaults are valid, and what is written of them means the same. */
static inline int task_check_defaults(const struct task_subject *s, void *a, void *b,
                                      struct kvl_err *err)
{
    const struct kvl_task *t = s->task;
    struct kvl_err why = { 0 };
    struct kvl_buf one = { 0 }, two = { 0 };
    int rc = KVL_OK;
    if (kvl_opt_defaults(t->opts, a, &why) != KVL_OK || kvl_opt_print(t->opts, a, &one) != KVL_OK ||
        kvl_opt_defaults(t->opts, b, &why) != KVL_OK ||
        kvl_opt_parse(t->opts, b, one.data ? one.data : "", &why) != KVL_OK ||
        kvl_opt_print(t->opts, b, &two) != KVL_OK)
        rc = TASK_WRONG(err, "its defaults are not valid: %s", why.msg);
    else if (one.data && strcmp(one.data, two.data) != 0)
        rc = TASK_WRONG(err, "its defaults are written as %s, which means %s", one.data, two.data);
    if (rc == KVL_OK && t->chance && !(t->chance(a) >= 0.0 && t->chance(a) <= 1.0))
        rc = TASK_WRONG(err, "a chance of %g, want 0 to 1", t->chance(a));
    kvl_buf_free(&one);
    kvl_buf_free(&two);
    return rc;
}

static inline int check_task_description(const struct task_subject *s, struct kvl_err *err)
{
    const struct kvl_task *t = s->task;
    const char *const text[] = { t->name, t->title, t->paper, t->help };
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (!text[i] || !text[i][0] || strchr(text[i], '\n'))
            return TASK_WRONG(err, "name, title, paper and help must be one line each");
    if (t->version < 1) return TASK_WRONG(err, "version %u, want 1 or more", t->version);
    size_t size = t->opts_size ? t->opts_size : 1;
    void *a = kvl_alloc(1, size), *b = kvl_alloc(1, size);
    assert_true(a && b);
    int rc = task_check_defaults(s, a, b, err);
    kvl_free(a);
    kvl_free(b);
    for (const struct kvl_opt *o = t->opts; rc == KVL_OK && o && o->name; o++)
        rc = task_check_row(s, o, err);
    return rc;
}

/* ---- the same request, the same bytes ---------------------------------------------------------- */

static inline bool task_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Field by field: what lies between them is not defined. */
static inline bool task_same_evidence(const struct kvl_question *a, const struct kvl_question *b)
{
    bool same = a->n_evidence == b->n_evidence;
    for (int32_t i = 0; same && i < a->n_evidence; i++) {
        const struct kvl_evidence *x = &a->evidence[i], *y = &b->evidence[i];
        same = x->kind == y->kind && x->n_spans == y->n_spans && strcmp(x->after, y->after) == 0;
        for (int32_t k = 0; same && k < x->n_spans; k++)
            same = x->span[k].begin == y->span[k].begin && x->span[k].end == y->span[k].end;
    }
    return same;
}

static inline bool task_same_question(const struct kvl_question *a, const struct kvl_question *b)
{
    return task_same_text(a->text, b->text) && task_same_text(a->answer, b->answer) &&
           task_same_text(a->gold, b->gold) && a->max_new_tok == b->max_new_tok &&
           memcmp(&a->depth, &b->depth, sizeof a->depth) == 0 && task_same_evidence(a, b);
}

static inline bool task_same_sample(const struct kvl_sample *a, const struct kvl_sample *b)
{
    bool same = task_same_text(a->context, b->context) && a->tokens.n == b->tokens.n &&
                a->n_questions == b->n_questions;
    for (int32_t i = 0; same && i < a->tokens.n; i++)
        same = a->tokens.id[i] == b->tokens.id[i] && a->tokens.begin[i] == b->tokens.begin[i];
    for (int32_t i = 0; same && i < a->n_questions; i++)
        same = task_same_question(&a->question[i], &b->question[i]);
    return same;
}

/* Another request runs between the two: nothing is kept from one to the next. */
static inline int check_task_pure(const struct task_subject *s, struct kvl_err *err)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct task_ask a = task_plain(seed), b = task_plain(seed + 100);
        struct kvl_sample one, other = { 0 }, again = { 0 };
        a.depth = seed == 3 ? 0.5 : -1.0;
        int rc = task_must(s, &a, &one, err);
        if (rc == KVL_OK) rc = task_must(s, &b, &other, err);
        if (rc == KVL_OK) rc = task_must(s, &a, &again, err);
        if (rc == KVL_OK && !task_same_sample(&one, &again))
            rc = TASK_WRONG(err, "seed %d makes two different samples", (int)seed);
        if (rc == KVL_OK && strcmp(one.context, other.context) == 0)
            rc = TASK_WRONG(err, "seeds %d and %d make the same context", (int)seed,
                            (int)seed + 100);
        kvl_sample_free(&one);
        kvl_sample_free(&other);
        kvl_sample_free(&again);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

/* ---- lengths and tokens ------------------------------------------------------------------------- */

/* The tokens are those of the text, and the text comes back from them. */
static inline int task_check_tokens(const struct task_subject *s, const struct kvl_sample *x,
                                    int32_t length, struct kvl_err *err)
{
    struct kvl_tokens again = { 0 };
    struct kvl_buf text = { 0 };
    int rc = KVL_OK;
    if (!x->context || x->tokens.n != length)
        return TASK_WRONG(err, "a context of %d tokens, want %d", x->context ? x->tokens.n : 0,
                          length);
    assert_int_equal(
        kvl_encode(s->tokenizer, x->context, strlen(x->context), KVL_ENCODE_BOS, &again, NULL),
        KVL_OK);
    assert_int_equal(kvl_decode(s->tokenizer, x->tokens.id, x->tokens.n, false, true, &text, NULL),
                     KVL_OK);
    /* A text that is read token by token may begin and end inside of a word. */
    if (s->task->score && again.n != length)
        rc = TASK_WRONG(err, "a context of %d tokens, want %d", again.n, length);
    for (int32_t i = 0; s->task->score && rc == KVL_OK && i < length; i++)
        if (again.id[i] != x->tokens.id[i] || again.begin[i] != x->tokens.begin[i])
            rc = TASK_WRONG(err, "token %d is not that of the context's text", i);
    if (rc == KVL_OK && s->task->score && strcmp(text.data, x->context) != 0)
        rc = TASK_WRONG(err, "the tokens do not spell the context");
    kvl_tokens_free(&again);
    kvl_buf_free(&text);
    return rc;
}

/* Exactly as long as asked for; from the shortest length that a task takes on, every one. */
static inline int check_task_lengths(const struct task_subject *s, struct kvl_err *err)
{
    static const int32_t lengths[] = { 200, 333, 512, 777, 1024, 1500, 2047, 2048, 3001, 8192 };
    bool taken = false;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct task_ask a = task_plain(7 + i);
        struct kvl_sample x = { 0 };
        struct kvl_err why = { 0 };
        a.length = lengths[i];
        int rc = task_make(s, &a, &x, &why);
        if (rc == KVL_OK) {
            taken = true;
            rc = task_check_tokens(s, &x, a.length, err);
            kvl_sample_free(&x);
        } else if (taken || a.length >= TASK_LENGTH) {
            rc = TASK_WRONG(err, "%d tokens are refused, less are not: %s", a.length, why.msg);
        } else {
            rc = task_refuses(s, rc, &why, NULL, err);
        }
        KVL_TRY(rc);
    }
    return KVL_OK;
}

/* ---- questions ----------------------------------------------------------------------------------- */

/* The context, the question and the answer are tokenised one by one: it must not matter. */
static inline int task_check_joint(const struct task_subject *s, const struct kvl_sample *x,
                                   const struct kvl_question *q, struct kvl_err *err)
{
    struct kvl_tokens all = { 0 }, parts = { 0 };
    struct kvl_buf text = { 0 };
    int rc = KVL_OK;
    assert_int_equal(kvl_buf_printf(&text, "%s%s%s", x->context, q->text, q->answer), KVL_OK);
    kvl_encode(s->tokenizer, text.data, text.len, KVL_ENCODE_BOS, &all, NULL);
    kvl_encode(s->tokenizer, q->text, strlen(q->text), KVL_ENCODE_CONTINUE, &parts, NULL);
    kvl_encode(s->tokenizer, q->answer, strlen(q->answer), KVL_ENCODE_CONTINUE, &parts, NULL);
    if (all.n != x->tokens.n + parts.n ||
        memcmp(all.id, x->tokens.id, (size_t)x->tokens.n * sizeof *all.id) != 0 ||
        memcmp(all.id + x->tokens.n, parts.id, (size_t)parts.n * sizeof *all.id) != 0)
        rc = TASK_WRONG(err, "\"...%s\" and \"%s\" have other tokens together than one by one",
                        q->text, q->answer);
    kvl_tokens_free(&all);
    kvl_tokens_free(&parts);
    kvl_buf_free(&text);
    return rc;
}

/* Who sets `max_new` may leave no room for an end. */
static inline int task_check_question(const struct task_subject *s, const struct task_ask *a,
                                      const struct kvl_sample *x, const struct kvl_question *q,
                                      struct kvl_err *err)
{
    struct kvl_tokens answer = { 0 };
    if (!q->text || !q->text[0] || !q->answer || !q->answer[0] || !q->gold || !q->gold[0])
        return TASK_WRONG(err, "a question without text, answer or gold");
    if (q->n_prefix > strlen(q->text))
        return TASK_WRONG(err, "an answer prefix of %zu bytes of \"%s\"", q->n_prefix, q->text);
    kvl_encode(s->tokenizer, q->answer, strlen(q->answer), KVL_ENCODE_CONTINUE, &answer, NULL);
    int32_t n = answer.n + (a->options ? 0 : 1);
    kvl_tokens_free(&answer);
    if (q->max_new_tok < n)
        return TASK_WRONG(err, "max_new_tok %d, want at least %d for \"%s\"", q->max_new_tok, n,
                          q->answer);
    return task_check_joint(s, x, q, err);
}

static inline int task_check_unique(const struct kvl_sample *x, struct kvl_err *err)
{
    for (int32_t i = 0; i < x->n_questions; i++)
        for (int32_t j = 0; j < i; j++)
            if (strcmp(x->question[i].text, x->question[j].text) == 0)
                return TASK_WRONG(err, "questions %d and %d are the same: %s", j, i,
                                  x->question[i].text);
    return KVL_OK;
}

/* ---- evidence -------------------------------------------------------------------------------------- */

/* A span, and the tokens that a policy has to keep for it.  What is read last is (of) the answer; what
 * leads there may be worked out. */
static inline int task_check_span(const struct task_subject *s, const struct kvl_sample *x,
                                  const struct kvl_question *q, struct kvl_span span,
                                  bool last_group, struct kvl_err *err)
{
    char part[256];
    struct kvl_buf kept = { 0 };
    size_t bytes = strlen(x->context), n = span.end - span.begin;
    if (span.begin >= span.end || span.end > bytes || n >= sizeof part)
        return TASK_WRONG(err, "evidence of bytes %zu to %zu of a context of %zu", span.begin,
                          span.end, bytes);
    snprintf(part, sizeof part, "%.*s", (int)n, x->context + span.begin);
    int32_t first = x->tokens.n - 1, last = first;
    while (first > 0 && x->tokens.begin[first] > span.begin) first--;
    while (last > first && x->tokens.begin[last] >= span.end) last--;
    assert_int_equal(
        kvl_decode(s->tokenizer, x->tokens.id + first, last - first + 1, false, false, &kept, NULL),
        KVL_OK);
    bool there = kept.data && strstr(kept.data, part);
    kvl_buf_free(&kept);
    if (!there) return TASK_WRONG(err, "the tokens of the evidence \"%s\" do not spell it", part);
    if (!last_group || strstr(q->text, part) || strstr(q->answer, part)) return KVL_OK;
    if (q->flags & KVL_EVIDENCE_WEAK) return KVL_OK; /* of an answer that the whole context makes */
    for (const char *g = q->gold; *g;) { /* a statement that tells a part of the answer */
        size_t len = strcspn(g, ",");
        char gold[256];
        snprintf(gold, sizeof gold, "%.*s", (int)KVL_MIN(len, sizeof gold - 1), g);
        if (strstr(part, gold)) return KVL_OK;
        g += len;
        g += strspn(g, ", ");
    }
    return TASK_WRONG(err, "the evidence \"%s\" has nothing of the question or the answer \"%s\"",
                      part, q->answer);
}

/* Every part of the gold text stands in the evidence. */
static inline int task_check_gold(const struct kvl_sample *x, const struct kvl_question *q,
                                  struct kvl_err *err)
{
    struct kvl_buf all = { 0 };
    int rc = KVL_OK;
    if (q->flags & KVL_EVIDENCE_WEAK) return KVL_OK;
    for (int32_t e = 0; e < q->n_evidence; e++)
        for (int32_t k = 0; k < q->evidence[e].n_spans; k++) {
            struct kvl_span span = q->evidence[e].span[k];
            kvl_buf_add(&all, x->context + span.begin, span.end - span.begin);
            kvl_buf_adds(&all, "\n");
        }
    for (const char *g = q->gold; *g && rc == KVL_OK;) {
        size_t len = strcspn(g, ",");
        char gold[256];
        snprintf(gold, sizeof gold, "%.*s", (int)KVL_MIN(len, sizeof gold - 1), g);
        if (!all.data || !strstr(all.data, gold))
            rc = TASK_WRONG(err, "\"%s\" of the answer is in no evidence", gold);
        g += len;
        g += strspn(g, ", ");
    }
    kvl_buf_free(&all);
    return rc;
}

/* The depth that is recorded is where the evidence begins. */
static inline int task_check_depth(const struct kvl_sample *x, const struct kvl_question *q,
                                   struct kvl_err *err)
{
    if (q->n_evidence == 0)
        return isnan(q->depth) ? KVL_OK
                               : TASK_WRONG(err, "depth %g without evidence, want NaN", q->depth);
    int32_t token = x->tokens.n - 1;
    while (token > 0 && x->tokens.begin[token] > q->evidence[0].span[0].begin) token--;
    double depth = (double)token / x->tokens.n;
    if (!(fabs(q->depth - depth) < 1e-9))
        return TASK_WRONG(err, "depth %g, but its evidence begins at %g", q->depth, depth);
    return KVL_OK;
}

static inline int task_check_evidence(const struct task_subject *s, const struct kvl_sample *x,
                                      const struct kvl_question *q, struct kvl_err *err)
{
    int32_t groups = sizeof q->evidence / sizeof *q->evidence;
    int32_t spans = sizeof q->evidence[0].span / sizeof *q->evidence[0].span;
    if (q->n_evidence < 0 || q->n_evidence > groups)
        return TASK_WRONG(err, "%d groups of evidence, want 0 to %d", q->n_evidence, groups);
    for (int32_t e = 0; e < q->n_evidence; e++) {
        const struct kvl_evidence *v = &q->evidence[e];
        if (v->n_spans < 1 || v->n_spans > spans)
            return TASK_WRONG(err, "%d spans of evidence, want 1 to %d", v->n_spans, spans);
        if (v->kind != KVL_EVIDENCE_ALL && v->kind != KVL_EVIDENCE_ANY)
            return TASK_WRONG(err, "evidence of kind %d does not exist", (int)v->kind);
        if (!strstr(q->answer, v->after))
            return TASK_WRONG(err, "evidence is needed after \"%s\", which \"%s\" does not have",
                              v->after, q->answer);
        for (int32_t k = 0; k < v->n_spans; k++)
            KVL_TRY(task_check_span(s, x, q, v->span[k], e + 1 == q->n_evidence, err));
    }
    if (q->n_evidence > 0) KVL_TRY(task_check_gold(x, q, err));
    return task_check_depth(x, q, err);
}

static inline int task_check_sample(const struct task_subject *s, const struct task_ask *a,
                                    const struct kvl_sample *x, struct kvl_err *err)
{
    int32_t wanted = s->task->score ? a->n_questions : 0;
    KVL_TRY(task_check_tokens(s, x, a->length, err));
    if (x->n_questions != wanted)
        return TASK_WRONG(err, "%d questions, want %d", x->n_questions, wanted);
    for (int32_t i = 0; i < x->n_questions; i++) {
        KVL_TRY(task_check_question(s, a, x, &x->question[i], err));
        KVL_TRY(task_check_evidence(s, x, &x->question[i], err));
    }
    return task_check_unique(x, err);
}

static inline int check_task_evidence(const struct task_subject *s, struct kvl_err *err)
{
    for (uint64_t seed = 1; seed <= TASK_SEEDS; seed++) {
        struct task_ask a = task_plain(seed);
        struct kvl_sample x;
        a.depth = seed % 2 ? -1.0 : (double)seed / TASK_SEEDS;
        a.length += (int32_t)seed * 37;
        int rc = task_must(s, &a, &x, err);
        if (rc == KVL_OK) rc = task_check_sample(s, &a, &x, err);
        kvl_sample_free(&x);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

/* The first question's item lies where the request wants it: at the nearest place that there is. */
static inline int check_task_depth(const struct task_subject *s, struct kvl_err *err)
{
    static const double depths[] = { 0.0, 0.25, 0.5, 0.75, 1.0 };
    for (size_t i = 0; s->task->score && i < sizeof depths / sizeof *depths; i++) {
        struct task_ask a = task_plain(11 + i);
        struct kvl_sample x;
        a.length = 2 * TASK_LENGTH;
        a.depth = depths[i];
        int rc = task_must(s, &a, &x, err);
        double depth = rc == KVL_OK ? x.question[0].depth : 0.0;
        bool none = rc == KVL_OK && x.question[0].n_evidence == 0;
        if (rc == KVL_OK && !none && !(fabs(depth - a.depth) < 0.06))
            rc = TASK_WRONG(err, "depth %g is asked for, the evidence lies at %g", a.depth, depth);
        kvl_sample_free(&x);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

/* ---- many questions, other options ------------------------------------------------------------------ */

/* One request with one option set: the sample keeps every promise, or it is refused clearly. */
static inline int task_try_option(const struct task_subject *s, const char *option,
                                  int32_t n_questions, int32_t length, struct kvl_err *err)
{
    struct task_ask a = task_plain(21);
    struct kvl_sample x = { 0 };
    struct kvl_err why = { 0 };
    a.options = option;
    a.n_questions = n_questions;
    a.length = length;
    int rc = task_make(s, &a, &x, &why);
    if (rc != KVL_OK) {
        rc = task_refuses(s, rc, &why, NULL, err);
    } else {
        rc = task_check_sample(s, &a, &x, err);
        kvl_sample_free(&x);
    }
    return rc == KVL_OK
               ? rc
               : kvl_fail_at(err, rc, "%s, %d questions, %d tokens", option, n_questions, length);
}

static inline int task_try(const struct task_subject *s, const char *name, const char *value,
                           struct kvl_err *err)
{
    char option[256];
    snprintf(option, sizeof option, "%s=%s", name, value);
    KVL_TRY(task_try_option(s, option, 1, TASK_LENGTH, err));
    return task_try_option(s, option, TASK_QUESTIONS, 4 * TASK_LENGTH, err);
}

static inline int task_try_row(const struct task_subject *s, const struct kvl_opt *o,
                               struct kvl_err *err)
{
    char value[64];
    for (size_t i = 0; o->choices && o->choices[i]; i++)
        KVL_TRY(task_try(s, o->name, o->choices[i], err));
    if (o->type == KVL_OPT_BOOL) {
        KVL_TRY(task_try(s, o->name, "true", err));
        return task_try(s, o->name, "false", err);
    }
    if (o->type != KVL_OPT_INT && o->type != KVL_OPT_FLOAT) return KVL_OK;
    const double at[] = { o->min, o->max, (o->min + o->max) / 2.0, TASK_QUESTIONS };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        if (at[i] < o->min || at[i] > o->max) continue;
        snprintf(value, sizeof value, "%.15g", o->type == KVL_OPT_INT ? floor(at[i]) : at[i]);
        KVL_TRY(task_try(s, o->name, value, err));
    }
    return KVL_OK;
}

static inline int check_task_options(const struct task_subject *s, struct kvl_err *err)
{
    KVL_TRY(task_try_option(s, "", TASK_QUESTIONS, 4 * TASK_LENGTH, err));
    for (const struct kvl_opt *o = s->task->opts; o && o->name; o++)
        KVL_TRY(task_try_row(s, o, err));
    return KVL_OK;
}

/* ---- scores ----------------------------------------------------------------------------------------- */

/* Writes all of its result, the same one for the same prediction. */
static inline int task_score(const struct task_subject *s, const struct kvl_question *q,
                             const char *prediction, struct kvl_task_score *out,
                             struct kvl_err *err)
{
    struct kvl_task_score again = { .official = -8.0, .strict = -8.0, .n_sub = -8 };
    *out = (struct kvl_task_score){ .official = -7.0, .strict = -7.0, .n_sub = -7 };
    s->task->score(q, prediction, out);
    s->task->score(q, prediction, &again);
    bool ok = out->official >= 0.0 && out->official <= 1.0 && out->strict >= 0.0 &&
              out->strict <= 1.0 && out->n_sub >= 0 && out->n_sub <= KVL_TASK_SUBS;
    bool same = !(out->official < again.official || out->official > again.official ||
                  out->strict < again.strict || out->strict > again.strict) &&
                out->n_sub == again.n_sub;
    for (int32_t i = 0; ok && i < out->n_sub; i++)
        ok = out->sub[i].name && out->sub[i].name[0] && out->sub[i].value >= 0.0 &&
             out->sub[i].value <= 1.0;
    if (!ok)
        return TASK_WRONG(err,
                          "the scorer says %g, %g and %d sub-scores of \"%s\", want 0 to 1 each",
                          out->official, out->strict, out->n_sub, prediction);
    return same ? KVL_OK : TASK_WRONG(err, "the scorer says two things of \"%s\"", prediction);
}

static inline int task_must_score(const struct task_subject *s, const struct kvl_question *q,
                                  const char *prediction, bool right, struct kvl_err *err)
{
    struct kvl_task_score score;
    KVL_TRY(task_score(s, q, prediction, &score, err));
    bool full = score.official >= 1.0 && score.strict >= 1.0;
    bool none = score.official < 1.0 && score.strict < 1.0;
    if (right ? full : none) return KVL_OK;
    return TASK_WRONG(err, "%s answer \"%s\" scores %g and %g (gold \"%s\")",
                      right ? "the right" : "a wrong", prediction, score.official, score.strict,
                      q->gold);
}

/* The answer scores, nothing else does: nothing, noise, the answers of other contexts. */
static inline int check_task_scores(const struct task_subject *s, struct kvl_err *err)
{
    static const char *const noise[] = { "", " ", "\n", " -", "qqq zzz.", "\xff\xfe" };
    struct kvl_sample x[TASK_SEEDS] = { 0 };
    int rc = KVL_OK;
    if (!s->task->score) return KVL_OK;
    for (int32_t i = 0; i < TASK_SEEDS && rc == KVL_OK; i++) {
        struct task_ask a = task_plain(31 + (uint64_t)i);
        rc = task_must(s, &a, &x[i], err);
    }
    for (int32_t i = 0; i < TASK_SEEDS && rc == KVL_OK; i++) {
        const struct kvl_question *q = &x[i].question[0];
        rc = task_must_score(s, q, q->answer, true, err);
        for (size_t k = 0; k < sizeof noise / sizeof *noise && rc == KVL_OK; k++)
            rc = task_must_score(s, q, noise[k], false, err);
        for (int32_t k = 0; k < TASK_SEEDS && rc == KVL_OK; k++)
            if (strcmp(x[k].question[0].gold, q->gold) != 0)
                rc = task_must_score(s, q, x[k].question[0].answer, false, err);
    }
    for (int32_t i = 0; i < TASK_SEEDS; i++) kvl_sample_free(&x[i]);
    return rc;
}

/* ---- all ------------------------------------------------------------------------------------------- */

static const struct task_promise {
    const char *name;
    task_check check;
} task_promises[] = {
    { "description is complete", check_task_description },
    { "same request, same bytes", check_task_pure },
    { "lengths are exact", check_task_lengths },
    { "too short is one clear line", check_task_too_short },
    { "bad requests are refused", check_task_bad_requests },
    { "evidence and questions", check_task_evidence },
    { "depth", check_task_depth },
    { "options at their bounds", check_task_options },
    { "scores", check_task_scores },
};
enum { N_TASK_PROMISES = sizeof task_promises / sizeof *task_promises };

#endif
