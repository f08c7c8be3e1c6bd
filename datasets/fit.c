/* A context of exactly so many tokens: plan with estimates, tokenise the whole, correct. */
#include "fit.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIT_TRIES = 24,     /* whole tokenisations at most */
    FIT_MISSES = 4,     /* pools in a row that have no answer */
    FIT_POOL = 48,      /* fresh sentences to choose the closing ones from */
    FIT_FRAGMENTS = 8,  /* of which so many may be cut after any word */
    FIT_SPAN = 1024,    /* tokens that closing sentences can take together */
    FIT_TAKE_BACK = 12, /* sentences that may be given up so that others close the length */
};

/* A piece of filler: bytes of the arena, a space first. */
struct fit_unit {
    size_t begin, len;
    int32_t n_tok;
};

struct fit_units {
    struct fit_unit *v;
    int32_t n, cap;
    int64_t n_tok; /* of all */
};

struct fit_state {
    const struct kvl_fit *fit;
    struct kvl_err *err;
    struct kvl_rng rng;
    struct kvl_prose prose; /* n > 0: the filler */
    size_t i_prose;         /* its next sentence */
    struct kvl_buf arena;
    struct fit_units base;   /* the filler, without its last sentences */
    struct fit_units pool;   /* candidates for these */
    struct fit_units ends;   /* sentences of the pool cut short */
    struct fit_units chosen; /* the last sentences */
    int32_t n_base;          /* sentences of `base` in use */
    int64_t room;            /* estimated tokens for filler */
    int32_t head_tok;
    int32_t *order; /* items by position */
};

/* ---- units --------------------------------------------------------------------------------- */

static int fit_fail_memory(struct fit_state *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->fit->length_tok);
}

static int fit_push(struct fit_state *s, struct fit_units *u, struct fit_unit unit)
{
    if (u->n == u->cap) {
        int32_t cap = KVL_MAX(64, u->cap * 2);
        struct fit_unit *v = kvl_alloc((size_t)cap, sizeof *v);
        if (!v) return fit_fail_memory(s);
        if (u->n) memcpy(v, u->v, (size_t)u->n * sizeof *v);
        kvl_free(u->v);
        u->v = v;
        u->cap = cap;
    }
    u->v[u->n++] = unit;
    u->n_tok += unit.n_tok;
    return KVL_OK;
}

static struct fit_unit fit_pop(struct fit_units *u)
{
    u->n_tok -= u->v[--u->n].n_tok;
    return u->v[u->n];
}

static void fit_clear(struct fit_units *u)
{
    u->n = 0;
    u->n_tok = 0;
}

static int fit_count_unit(struct fit_state *s, struct fit_unit *u)
{
    return kvl_fit_count(s->fit->tokenizer, s->arena.data + u->begin, u->len, &u->n_tok, s->err);
}

static int fit_draw(struct fit_state *s, struct fit_unit *out)
{
    *out = (struct fit_unit){ .begin = s->arena.len };
    int rc = kvl_buf_adds(&s->arena, " ");
    if (rc == KVL_OK)
        rc = s->prose.n ? kvl_prose_sentence(&s->prose, s->i_prose++, &s->arena)
                        : kvl_text_sentence(s->fit->text, &s->rng, &s->arena);
    if (rc != KVL_OK) return fit_fail_memory(s);
    out->len = s->arena.len - out->begin;
    return fit_count_unit(s, out);
}

/* ---- the filler ---------------------------------------------------------------------------- */

/* Sentences until the next one does not fit. */
static int fit_fill(struct fit_state *s)
{
    while (s->base.n_tok > s->room) fit_pop(&s->base);
    for (;;) {
        struct fit_unit u;
        KVL_TRY(fit_draw(s, &u));
        if (s->base.n_tok + u.n_tok > s->room) return KVL_OK;
        /* A tokenizer that makes nothing of a sentence would never fill the room. */
        if (u.n_tok < 1)
            return kvl_fail(s->err, KVL_EMODEL, "the tokenizer gives no token for \"%.*s\"",
                            (int)u.len, s->arena.data + u.begin);
        KVL_TRY(fit_push(s, &s->base, u));
    }
}

/* Fresh candidates for the last sentences, and the same cut after every word. */
static int fit_draw_pool(struct fit_state *s)
{
    fit_clear(&s->pool);
    fit_clear(&s->ends);
    for (int32_t i = 0; i < FIT_POOL; i++) {
        struct fit_unit u;
        KVL_TRY(fit_draw(s, &u));
        KVL_TRY(fit_push(s, &s->pool, u));
        for (size_t cut = 1; !s->fit->whole && i < FIT_FRAGMENTS && cut < u.len; cut++) {
            struct fit_unit end = { .begin = u.begin, .len = cut };
            if (s->arena.data[u.begin + cut] != ' ') continue;
            KVL_TRY(fit_count_unit(s, &end));
            KVL_TRY(fit_push(s, &s->ends, end));
        }
    }
    return KVL_OK;
}

/* last[t]: the pool sentence added last to make a sum of t tokens, -1 = no sum; each is used once
 * (a sum is first made with the lowest possible last sentence, and what precedes it is lower). */
static void fit_sums(const struct fit_units *pool, int32_t last[FIT_SPAN + 1])
{
    for (int32_t t = 0; t <= FIT_SPAN; t++) last[t] = -1;
    last[0] = FIT_POOL; /* the empty sum */
    for (int32_t i = 0; i < pool->n; i++)
        for (int32_t t = FIT_SPAN; t >= pool->v[i].n_tok; t--)
            if (last[t] < 0 && last[t - pool->v[i].n_tok] >= 0) last[t] = i;
}

/* Takes the sentences of a sum; `end`, if any, comes last. */
static int fit_take(struct fit_state *s, const int32_t *last, int64_t sum,
                    const struct fit_unit *end)
{
    for (int64_t t = sum; t > 0; t -= s->pool.v[last[t]].n_tok)
        KVL_TRY(fit_push(s, &s->chosen, s->pool.v[last[t]]));
    return end ? fit_push(s, &s->chosen, *end) : KVL_OK;
}

/* Whether `missing` tokens can be made of whole sentences, or with the cut sentence `end`. */
static bool fit_closes(const int32_t *last, int64_t missing, const struct fit_unit *end)
{
    missing -= end ? end->n_tok : 0;
    return missing >= 0 && missing <= FIT_SPAN && last[missing] >= 0;
}

/* Chooses sentences that close the room exactly.  A few sentences are given up when that helps; a
 * sentence cut short, which would read worse, is the last resort.  KVL_OK with *found = false when
 * this pool has no answer. */
static int fit_close(struct fit_state *s, bool *found)
{
    int32_t last[FIT_SPAN + 1];
    KVL_TRY(fit_draw_pool(s));
    fit_sums(&s->pool, last);
    fit_clear(&s->chosen);
    *found = true;
    for (int32_t i_end = -1; i_end < s->ends.n; i_end++) {
        const struct fit_unit *end = i_end < 0 ? NULL : &s->ends.v[i_end];
        int64_t missing = s->room - s->base.n_tok;
        s->n_base = s->base.n;
        for (int32_t back = 0; back <= FIT_TAKE_BACK; back++) {
            if (fit_closes(last, missing, end))
                return fit_take(s, last, missing - (end ? end->n_tok : 0), end);
            if (s->n_base == 0) break;
            missing += s->base.v[--s->n_base].n_tok;
        }
    }
    *found = false;
    return KVL_OK;
}

/* ---- the context --------------------------------------------------------------------------- */

struct fit_text {
    struct kvl_buf *out;
    bool first, line; /* nothing yet after the intro; the last unit stands on its own line */
    int64_t n_tok;    /* estimate of what is there */
};

static int fit_emit(struct fit_text *t, const char *text, size_t len, bool line)
{
    if (!t->first) KVL_TRY(kvl_buf_adds(t->out, line || t->line ? "\n" : " "));
    t->first = false;
    t->line = line;
    return kvl_buf_add(t->out, text, len);
}

static int fit_emit_item(struct fit_text *t, struct kvl_fit_item *item)
{
    KVL_TRY(fit_emit(t, item->text, item->len, item->line));
    item->begin = t->out->len - item->len;
    t->n_tok += item->n_tok;
    return KVL_OK;
}

static int fit_emit_unit(const struct fit_state *s, struct fit_text *t, const struct fit_unit *u)
{
    t->n_tok += u->n_tok;
    return fit_emit(t, s->arena.data + u->begin + 1, u->len - 1, false);
}

static int fit_write(const struct fit_state *s, struct kvl_buf *out)
{
    const struct kvl_fit *fit = s->fit;
    struct fit_text t = { .out = out, .first = true, .n_tok = s->head_tok };
    out->len = 0;
    KVL_TRY(kvl_buf_adds(out, fit->intro));
    KVL_TRY(kvl_buf_adds(out, "\n"));
    int32_t i_item = 0, n_units = s->n_base + s->chosen.n;
    for (int32_t i = 0; i < n_units; i++) {
        const struct fit_unit *u = i < s->n_base ? &s->base.v[i] : &s->chosen.v[i - s->n_base];
        for (; i_item < fit->n_items; i_item++) {
            struct kvl_fit_item *item = &fit->item[s->order[i_item]];
            if (llabs(t.n_tok + u->n_tok - item->at) < llabs(t.n_tok - item->at)) break;
            KVL_TRY(fit_emit_item(&t, item));
        }
        KVL_TRY(fit_emit_unit(s, &t, u));
    }
    for (; i_item < fit->n_items; i_item++)
        KVL_TRY(fit_emit_item(&t, &fit->item[s->order[i_item]]));
    return t.first ? KVL_OK : kvl_buf_adds(out, "\n");
}

/* Tokens of the context; *missing is how many more there should be. */
static int fit_measure(const struct fit_state *s, const struct kvl_buf *context,
                       struct kvl_tokens *tokens, int64_t *missing)
{
    tokens->n = 0;
    KVL_TRY(
        kvl_encode(s->fit->tokenizer, context->data, context->len, KVL_ENCODE_BOS, tokens, s->err));
    /* An end mark that some files ask for does not belong between context and question. */
    if (tokens->n && tokens->begin[tokens->n - 1] == context->len) tokens->n--;
    *missing = (int64_t)s->fit->length_tok - tokens->n;
    return KVL_OK;
}

static int fit_fail_short(const struct fit_state *s)
{
    return kvl_fail(s->err, KVL_EINVAL,
                    "length %d is too short: the text without filler takes about %lld tokens",
                    s->fit->length_tok, (long long)s->fit->length_tok - s->room);
}

static int fit_search(struct fit_state *s, struct kvl_buf *context, struct kvl_tokens *tokens)
{
    for (int32_t tries = 0, misses = 0; tries < FIT_TRIES && misses < FIT_MISSES; tries++) {
        bool found;
        int64_t missing;
        if (s->room < 0) return fit_fail_short(s);
        KVL_TRY(fit_fill(s));
        KVL_TRY(fit_close(s, &found));
        misses = found ? 0 : misses + 1;
        if (!found) continue;
        if (fit_write(s, context) != KVL_OK) return fit_fail_memory(s);
        KVL_TRY(fit_measure(s, context, tokens, &missing));
        if (missing == 0) return KVL_OK;
        s->room += missing;
    }
    return kvl_fail(s->err, KVL_EINVAL,
                    "length %d cannot be met exactly: no filler of %lld tokens was found for this "
                    "tokenizer, want another length",
                    s->fit->length_tok, (long long)s->room);
}

/* Insertion sort: equal positions keep the order of the items. */
static int fit_sort_items(struct fit_state *s)
{
    const struct kvl_fit *fit = s->fit;
    s->order = kvl_alloc((size_t)fit->n_items, sizeof *s->order);
    if (!s->order) return fit_fail_memory(s);
    for (int32_t i = 0; i < fit->n_items; i++) {
        int32_t j = i;
        for (; j > 0 && fit->item[s->order[j - 1]].at > fit->item[i].at; j--)
            s->order[j] = s->order[j - 1];
        s->order[j] = i;
    }
    return KVL_OK;
}

/* Estimates of what is not filler. */
static int fit_plan(struct fit_state *s)
{
    const struct kvl_fit *fit = s->fit;
    struct kvl_tokens head = { 0 };
    int rc =
        kvl_encode(fit->tokenizer, fit->intro, strlen(fit->intro), KVL_ENCODE_BOS, &head, s->err);
    s->head_tok = head.n + 1; /* the line end */
    kvl_tokens_free(&head);
    KVL_TRY(rc);
    s->room = (int64_t)fit->length_tok - s->head_tok - 1;
    for (int32_t i = 0; i < fit->n_items; i++) {
        struct kvl_fit_item *item = &fit->item[i];
        if (item->n_tok == 0)
            KVL_TRY(kvl_fit_count(fit->tokenizer, item->text, item->len, &item->n_tok, s->err));
        s->room -= item->n_tok;
    }
    return fit_sort_items(s);
}

/* A text is begun at any of its sentences. */
static int fit_open(struct fit_state *s)
{
    kvl_rng_seed(&s->rng, s->fit->seed);
    if (!s->fit->prose || !s->fit->prose[0]) return KVL_OK;
    KVL_TRY(kvl_prose_open(s->fit->prose, &s->prose, s->err));
    s->i_prose = kvl_rng_below(&s->rng, (uint32_t)s->prose.n);
    return KVL_OK;
}

static void fit_free(struct fit_state *s)
{
    kvl_prose_close(&s->prose);
    kvl_buf_free(&s->arena);
    kvl_free(s->base.v);
    kvl_free(s->pool.v);
    kvl_free(s->ends.v);
    kvl_free(s->chosen.v);
    kvl_free(s->order);
}

int kvl_fit_sample(const struct kvl_fit *fit, int32_t n_questions, struct kvl_sample *out,
                   struct kvl_err *err)
{
    struct fit_state s = { .fit = fit, .err = err };
    struct kvl_sample sample = { .n_questions = n_questions };
    struct kvl_buf context = { 0 };
    int rc = fit_open(&s);
    if (rc == KVL_OK) rc = fit_plan(&s);
    if (rc == KVL_OK) rc = fit_search(&s, &context, &sample.tokens);
    sample.context = context.data;
    if (rc == KVL_OK) {
        sample.question = kvl_alloc((size_t)n_questions, sizeof *sample.question);
        if (!sample.question) rc = fit_fail_memory(&s);
    }
    fit_free(&s);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc;
}

/* ---- helpers of tasks ---------------------------------------------------------------------- */

int kvl_fit_check(const struct kvl_task_request *req, struct kvl_err *err)
{
    if (req->length_tok < 1)
        return kvl_fail(err, KVL_EINVAL, "length %d is not a number of tokens, want at least 1",
                        req->length_tok);
    if (!(req->depth <= 1.0))
        return kvl_fail(err, KVL_EINVAL,
                        "depth %g is outside the context, want 0 to 1 (or less than 0: spread)",
                        req->depth);
    if (req->n_questions < 1)
        return kvl_fail(err, KVL_EINVAL, "%d questions per context, want at least 1",
                        req->n_questions);
    return KVL_OK;
}

int64_t kvl_fit_position(const struct kvl_task_request *req)
{
    return llround(req->depth * req->length_tok);
}

int kvl_fit_count(const struct kvl_tokenizer *t, const char *text, size_t len, int32_t *n,
                  struct kvl_err *err)
{
    struct kvl_tokens tokens = { 0 };
    int rc = kvl_encode(t, text, len, KVL_ENCODE_CONTINUE, &tokens, err);
    if (rc == KVL_OK) *n = tokens.n;
    kvl_tokens_free(&tokens);
    return rc;
}

double kvl_fit_depth(const struct kvl_tokens *context, const struct kvl_question *q)
{
    size_t byte = q->evidence[0].span[0].begin;
    int32_t lo = 0, hi = context->n; /* the last token that begins at or before the byte */
    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;
        if (context->begin[mid] <= byte)
            lo = mid;
        else
            hi = mid;
    }
    return (double)lo / context->n;
}

void kvl_fit_strata(struct kvl_rng *rng, int32_t m, int32_t *out, int32_t n)
{
    assert(n <= m);
    for (int64_t i = 0; i < n; i++) {
        int64_t begin = i * m / n, end = (i + 1) * m / n;
        out[i] = (int32_t)(begin + kvl_rng_below(rng, (uint32_t)(end - begin)));
    }
}
