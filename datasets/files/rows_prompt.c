/* From texts to a sample: tokens, the cut in the middle, where context and question part, evidence. */
#include "rows.h"
#include "words.h"

#include "kvl/utf8.h"

#include <ctype.h>
#include <string.h>

enum { CUT_TRIES = 8, PART_TRIES = 32, EVIDENCE_SPANS = 4 };

struct build {
    const struct kvl_task_request *req;
    struct kvl_file_prompt *p;
    struct kvl_buf joint;      /* context and the longest tail */
    struct kvl_tokens tokens;  /* of it, BOS first */
    int32_t longest;           /* tail */
    size_t cut_begin, cut_end; /* of the context as it was; equal where nothing is cut */
    struct kvl_err *err;
};

static int build_memory(const struct build *b)
{
    return kvl_fail(b->err, KVL_ENOMEM, "%s: out of memory for a prompt", b->p->name);
}

static int build_encode(struct build *b)
{
    const struct kvl_file_prompt *p = b->p;
    b->joint.len = 0;
    b->tokens.n = 0;
    if (kvl_buf_add(&b->joint, p->context.data, p->context.len) != KVL_OK ||
        kvl_buf_add(&b->joint, p->tail[b->longest].data, p->tail[b->longest].len) != KVL_OK)
        return build_memory(b);
    return kvl_encode(b->req->tokenizer, b->joint.data, b->joint.len, KVL_ENCODE_BOS, &b->tokens,
                      b->err);
}

/* ---- the cut ------------------------------------------------------------------------------------- */

/* Cuts bytes [from, to) of the first context out.  A letter that is cut apart becomes U+FFFD at its begin,
 * and one for every byte that is left of its end, as in the text that the scripts make of their tokens. */
static int cut_text(struct build *b, const struct kvl_buf *whole, size_t from, size_t to)
{
    static const char none[] = "\xef\xbf\xbd";
    struct kvl_buf *c = &b->p->context;
    size_t begun = kvl_utf8_begun(whole->data, from), rest = to;
    if (from == to) begun = 0;
    c->len = 0;
    int rc = kvl_buf_add(c, whole->data, from - begun);
    if (rc == KVL_OK && begun) rc = kvl_buf_add(c, none, 3);
    while (from != to && rest < whole->len && kvl_utf8_inside(whole->data[rest])) {
        rest++;
        if (rc == KVL_OK) rc = kvl_buf_add(c, none, 3);
    }
    if (rc == KVL_OK) rc = kvl_buf_add(c, whole->data + rest, whole->len - rest);
    b->cut_begin = from - begun;
    b->cut_end = rest;
    return rc == KVL_OK ? KVL_OK : build_memory(b);
}

/* The first token that begins at or behind byte `at`. */
static int32_t token_at(const struct kvl_tokens *t, size_t at)
{
    int32_t lo = 0, hi = t->n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (t->begin[mid] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The most tokens of context and question; what makes its contexts has counted itself. */
static int32_t build_room(const struct build *b)
{
    bool cut = b->p->truncate != KVL_ROWS_NONE;
    return b->req->length_tok - (cut ? b->req->after_tok : 0);
}

/* Bytes that a tokenizer which puts a space before a text takes off a text that begins with token `id`. */
static int first_space(const struct build *b, int32_t id, size_t *n)
{
    struct kvl_buf first = { 0 }, inside = { 0 };
    int rc = kvl_decode(b->req->tokenizer, &id, 1, true, true, &first, b->err);
    if (rc == KVL_OK) rc = kvl_decode(b->req->tokenizer, &id, 1, true, false, &inside, b->err);
    *n = inside.len - KVL_MIN(first.len, inside.len);
    kvl_buf_free(&first);
    kvl_buf_free(&inside);
    return rc;
}

/* The context loses what its prompt has too much: the tokens between the first and the last half, or the
 * end of the context; what follows the context stays. */
static int cut_once(struct build *b, const struct kvl_tokens *t, const struct kvl_buf *whole,
                    int32_t less)
{
    int32_t length = build_room(b) - less;
    int32_t all = length + b->req->before_tok + b->req->after_tok; /* with the template's */
    int32_t behind = t->n - token_at(t, whole->len);               /* tokens of the tail */
    int32_t before = token_at(t, b->p->begin);
    int32_t front = b->p->truncate == KVL_ROWS_END ? length - behind : all / 2 - b->req->before_tok;
    /* What is around the context stays, whatever the halves are. */
    front = KVL_MAX(KVL_MIN(front, length - behind), before);
    int32_t half = (all + b->p->odd_back) / 2 - b->req->after_tok;
    int32_t back = b->p->truncate == KVL_ROWS_END ? behind : KVL_MIN(half, length - front);
    if (front + behind > length)
        return kvl_fail(b->err, KVL_EINVAL,
                        "%s: a length of %d tokens, of which %d are needed for what is around the "
                        "context: want more",
                        b->p->name, b->req->length_tok, behind + before);
    back = KVL_MAX(back, behind);
    size_t to = back > 0 ? t->begin[t->n - back] : whole->len, space = 0;
    if (b->p->halves && back > behind) KVL_TRY(first_space(b, t->id[t->n - back], &space));
    return cut_text(b, whole, t->begin[front], KVL_MIN(to + space, whole->len));
}

/* What is left is tokenised again and may then be a few tokens too long, which the scripts let be. */
static bool cut_fits(const struct build *b)
{
    if (b->tokens.n <= build_room(b)) return true;
    return b->p->as_cut && token_at(&b->tokens, b->p->context.len) <= b->req->length_tok;
}

static int build_cut(struct build *b)
{
    struct kvl_buf whole = { 0 };
    struct kvl_tokens all = b->tokens;
    int32_t less = 0, tries = 0, rc;
    if (b->tokens.n <= build_room(b)) return KVL_OK;
    if (b->p->truncate == KVL_ROWS_NONE)
        return kvl_fail(b->err, KVL_EINVAL,
                        "%s: a prompt of %d tokens with truncate=none, want a length of at least "
                        "that",
                        b->p->name, b->tokens.n);
    b->tokens = (struct kvl_tokens){ 0 };
    rc = kvl_buf_add(&whole, b->p->context.data, b->p->context.len);
    if (rc != KVL_OK) build_memory(b);
    while (rc == KVL_OK) {
        rc = cut_once(b, &all, &whole, less);
        if (rc == KVL_OK) rc = build_encode(b);
        if (rc != KVL_OK || cut_fits(b)) break;
        less += b->tokens.n - build_room(b);
        if (++tries == CUT_TRIES)
            rc = kvl_fail(b->err, KVL_EINVAL, "%s: cannot be cut to %d tokens", b->p->name,
                          b->req->length_tok);
    }
    kvl_tokens_free(&all);
    kvl_buf_free(&whole);
    return rc;
}

/* ---- where context and question part --------------------------------------------------------------- */

/* Whether the text from a token on has, by itself, the tokens that it has in the whole. */
static int part_joins(const struct build *b, int32_t token, bool *out)
{
    const struct kvl_tokens *t = &b->tokens;
    struct kvl_tokens rest = { 0 };
    size_t at = t->begin[token];
    *out = false;
    if (kvl_utf8_inside(b->joint.data[at])) return KVL_OK;
    KVL_TRY(kvl_encode(b->req->tokenizer, b->joint.data + at, b->joint.len - at,
                       KVL_ENCODE_CONTINUE, &rest, b->err));
    *out = rest.n == t->n - token &&
           memcmp(rest.id, t->id + token, (size_t)rest.n * sizeof *rest.id) == 0;
    kvl_tokens_free(&rest);
    return KVL_OK;
}

/* The first token of the question: the first one behind the context at which the prompt can be parted
 * without changing its tokens, as long as all questions begin alike; else the last one before. */
static int part_find(struct build *b, int32_t *out)
{
    const struct kvl_file_prompt *p = b->p;
    const struct kvl_tokens *t = &b->tokens;
    int32_t end = token_at(t, p->context.len);
    bool joins = false;
    for (int32_t i = end; !joins && i < t->n && i < end + PART_TRIES; i++) {
        if (t->begin[i] > p->context.len + p->common) break;
        KVL_TRY(part_joins(b, i, &joins));
        *out = i;
    }
    for (int32_t i = end - 1; !joins && i > 1 && i > end - PART_TRIES; i--) {
        KVL_TRY(part_joins(b, i, &joins));
        *out = i;
    }
    return joins ? KVL_OK
                 : kvl_fail(b->err, KVL_EINVAL,
                            "%s: context and question have no border between tokens", p->name);
}

static int part_context(const struct build *b, int32_t token, struct kvl_sample *s)
{
    size_t n = b->tokens.begin[token];
    s->context = kvl_alloc(n + 1, 1);
    s->tokens.id = kvl_alloc((size_t)token, sizeof *s->tokens.id);
    s->tokens.begin = kvl_alloc((size_t)token, sizeof *s->tokens.begin);
    if (!s->context || !s->tokens.id || !s->tokens.begin) return build_memory(b);
    memcpy(s->context, b->joint.data, n);
    memcpy(s->tokens.id, b->tokens.id, (size_t)token * sizeof *s->tokens.id);
    memcpy(s->tokens.begin, b->tokens.begin, (size_t)token * sizeof *s->tokens.begin);
    s->tokens.n = s->tokens.cap = token;
    return KVL_OK;
}

/* What of context and tail i is not the sample's context. */
static int part_question(const struct build *b, int32_t i, size_t at, struct kvl_question *q)
{
    const struct kvl_file_prompt *p = b->p;
    struct kvl_buf text = { 0 };
    size_t in_tail = at > p->context.len ? at - p->context.len : 0;
    int rc = kvl_buf_adds(&text, "");
    if (rc == KVL_OK && at < p->context.len)
        rc = kvl_buf_add(&text, p->context.data + at, p->context.len - at);
    if (rc == KVL_OK && p->tail[i].len > in_tail)
        rc = kvl_buf_add(&text, p->tail[i].data + in_tail, p->tail[i].len - in_tail);
    q->text = text.data;
    if (p->n_prefix) q->n_prefix = KVL_MIN(p->n_prefix[i], text.len);
    return rc == KVL_OK ? KVL_OK : build_memory(b);
}

/* ---- evidence --------------------------------------------------------------------------------------- */

/* The next place at or behind `at` where a word stands by itself; n: there is none. */
static size_t evidence_next(const char *s, size_t n, size_t at, const char *word)
{
    size_t len = strlen(word);
    for (; len > 0 && at + len <= n; at++) {
        const char *found = memmem(s + at, n - at, word, len);
        if (!found) return n;
        at = (size_t)(found - s);
        bool before = at > 0 && isalnum((unsigned char)s[at - 1]) && isalnum((unsigned char)*word);
        bool behind = at + len < n && isalnum((unsigned char)s[at + len]) &&
                      isalnum((unsigned char)word[len - 1]);
        if (!before && !behind) return at;
    }
    return n;
}

/* Of one answer every place, of several the first of each. */
static void evidence_find(const struct kvl_file_prompt *p, int32_t i, size_t end,
                          struct kvl_question *q)
{
    struct kvl_evidence *e = &q->evidence[0];
    const char *word = p->evidence[i].data;
    int32_t n = p->n_evidence[i];
    e->kind = n > 1 ? KVL_EVIDENCE_ALL : KVL_EVIDENCE_ANY;
    for (int32_t k = 0; k < n; k++, word += strlen(word) + 1) {
        size_t at = p->begin;
        while (e->n_spans < EVIDENCE_SPANS &&
               (at = evidence_next(p->context.data, end, at, word)) < end) {
            e->span[e->n_spans++] = (struct kvl_span){ at, at + strlen(word) };
            at += strlen(word);
            if (n > 1) break;
        }
    }
    q->n_evidence = e->n_spans > 0;
}

/* Whether some answer stood in the context, all of them before the cut. */
static bool evidence_was(const struct kvl_file_prompt *p, int32_t i, const struct kvl_buf *context)
{
    const char *word = p->evidence[i].data;
    for (int32_t k = 0; k < p->n_evidence[i]; k++, word += strlen(word) + 1)
        if (evidence_next(context->data, context->len, p->begin, word) < context->len) return true;
    return false;
}

static double evidence_depth(const struct kvl_tokens *t, const struct kvl_question *q)
{
    if (q->n_evidence == 0) return 0.0;
    int32_t i = token_at(t, q->evidence[0].span[0].begin + 1);
    return (double)(i > 0 ? i - 1 : 0) / t->n;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static int build_sample(struct build *b, const bool *was, struct kvl_sample *s)
{
    const struct kvl_file_prompt *p = b->p;
    int32_t token = 0;
    KVL_TRY(part_find(b, &token));
    KVL_TRY(part_context(b, token, s));
    s->question = kvl_alloc((size_t)p->n, sizeof *s->question);
    if (!s->question) return build_memory(b);
    s->n_questions = p->n;
    size_t at = b->tokens.begin[token], end = KVL_MIN(at, p->context.len);
    for (int32_t i = 0; i < p->n; i++) {
        struct kvl_question *q = &s->question[i];
        KVL_TRY(part_question(b, i, at, q));
        if (p->evidence) evidence_find(p, i, end, q);
        if (p->evidence && was[i] && q->n_evidence == 0) q->flags |= KVL_EVIDENCE_LOST;
        q->depth = evidence_depth(&s->tokens, q);
    }
    return KVL_OK;
}

int kvl_file_prompt_sample(const struct kvl_task_request *req, struct kvl_file_prompt *p,
                           struct kvl_sample *out, struct kvl_err *err)
{
    struct build b = { .req = req, .p = p, .err = err };
    struct kvl_sample s = { 0 };
    bool *was = kvl_alloc((size_t)p->n, sizeof *was);
    if (!was) return build_memory(&b);
    for (int32_t i = 0; i < p->n; i++) {
        if (p->tail[i].len > p->tail[b.longest].len) b.longest = i;
        if (p->evidence) was[i] = evidence_was(p, i, &p->context);
    }
    int rc = build_encode(&b);
    if (rc == KVL_OK) rc = build_cut(&b);
    if (rc == KVL_OK) rc = build_sample(&b, was, &s);
    kvl_free(was);
    kvl_buf_free(&b.joint);
    kvl_tokens_free(&b.tokens);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc;
}

void kvl_file_prompt_free(struct kvl_file_prompt *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        if (p->tail) kvl_buf_free(&p->tail[i]);
        if (p->evidence) kvl_buf_free(&p->evidence[i]);
    }
    kvl_free(p->tail);
    kvl_free(p->evidence);
    kvl_free(p->n_evidence);
    kvl_free(p->n_prefix);
    kvl_free(p->n_apart);
    kvl_buf_free(&p->context);
    *p = (struct kvl_file_prompt){ 0 };
}
