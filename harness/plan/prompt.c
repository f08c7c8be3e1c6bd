/* Contexts and questions in a chat template. */
#include "prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- which template -------------------------------------------------------------------------- */

int kvl_prompt_names(struct kvl_buf *out)
{
    for (size_t i = 0; kvl_chat_at(i); i++)
        KVL_TRY(kvl_buf_printf(out, "%s%s", i ? ", " : "", kvl_chat_at(i)));
    return KVL_OK;
}

/* What else can be asked for, behind a message. */
static int prompt_unknown(const char *what, struct kvl_err *err)
{
    struct kvl_buf names = { 0 };
    int rc = kvl_prompt_names(&names);
    if (rc == KVL_OK)
        kvl_fail(err, KVL_EINVAL, "%s, want chat: none, or one of %s", what, names.data);
    kvl_buf_free(&names);
    return rc == KVL_OK ? KVL_EINVAL : kvl_fail(err, rc, "out of memory for a prompt");
}

/* *out = NULL: none. */
static int prompt_choose(const struct kvl_model *model, const char *name, struct kvl_chat **out,
                         struct kvl_err *err)
{
    const char *text = kvl_model_chat(model);
    const struct kvl_tokenizer *t = kvl_model_tokenizer(model);
    struct kvl_err why = { 0 };
    char what[768];
    *out = NULL;
    if (strcmp(name, "none") == 0) return KVL_OK;
    bool own = strcmp(name, "auto") == 0;
    if (own && (!text || !text[0])) return KVL_OK;
    int rc = kvl_chat_open(t, own ? NULL : name, out, &why);
    if (rc != KVL_EINVAL) return rc == KVL_OK ? rc : kvl_fail(err, rc, "%s", why.msg);
    snprintf(what, sizeof what, "%s%s%.600s", own ? kvl_model_path(model) : "", own ? ": " : "",
             why.msg);
    return prompt_unknown(what, err);
}

static int prompt_begin(struct kvl_prompt *p, const char *system, struct kvl_err *err)
{
    p->name = kvl_chat_name(p->chat);
    if (system) {
        p->system = strdup(system);
        if (!p->system) return kvl_fail(err, KVL_ENOMEM, "out of memory for a prompt");
    }
    return kvl_chat_begin(p->chat, system, &p->begin, err);
}

int kvl_prompt_open(const struct kvl_model *model, const char *chat, const char *system,
                    struct kvl_prompt *out, struct kvl_err *err)
{
    struct kvl_prompt p = { .tokenizer = kvl_model_tokenizer(model), .name = "none" };
    int rc = prompt_choose(model, chat, &p.chat, err);
    if (rc == KVL_OK && p.chat) rc = prompt_begin(&p, system, err);
    if (rc == KVL_OK)
        *out = p;
    else
        kvl_prompt_close(&p);
    return rc;
}

void kvl_prompt_close(struct kvl_prompt *p)
{
    kvl_chat_begin_free(&p->begin);
    kvl_chat_close(p->chat);
    free(p->system);
    *p = (struct kvl_prompt){ 0 };
}

/* ---- conversations --------------------------------------------------------------------------- */

/* Bytes of a question's text that the user asks; the rest is the answer prefix. */
static size_t asked_of(const struct kvl_question *q, const char *text)
{
    size_t len = strlen(text);
    return len - KVL_MIN(q->n_prefix, len);
}

static size_t prompt_asked(const struct kvl_question *q)
{
    return asked_of(q, q->text);
}

/* The answer prefix, without the white space that parts it from the question. */
static const char *prompt_prefix(const struct kvl_question *q)
{
    const char *s = q->text + prompt_asked(q);
    return s + kvl_chat_blanks(s, strlen(s));
}

/* What the user says: the context and the first question, or another question. */
static int add_user(const struct kvl_sample *s, const struct kvl_question *q, bool first,
                    struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, first ? s->context : ""));
    if (first) return kvl_buf_add(out, q->text, prompt_asked(q));
    if (q->turn) return kvl_buf_add(out, q->turn, asked_of(q, q->turn));
    /* White space that parts a question from what stands before it is no part of a turn of its own. */
    size_t len = prompt_asked(q), blank = kvl_chat_blanks(q->text, len);
    return kvl_buf_add(out, q->text + blank, len - blank);
}

/* What the model says; without a prefix, less the space that parts an answer from its question, which ends with none
 * then. */
static int add_answer(const struct kvl_question *q, bool whole, struct kvl_buf *out)
{
    const char *said = q->said ? q->said : q->answer;
    const char *prefix = prompt_prefix(q), *answer = whole ? said : "";
    size_t asked = prompt_asked(q);
    bool parted = !q->said && !*prefix && kvl_chat_trimmed(q->text, asked) == asked;
    KVL_TRY(kvl_buf_adds(out, prefix));
    return kvl_buf_adds(out, answer + (parted && *answer == ' '));
}

/* Questions `from` to `last` of a sample, each but the last answered, as turns whose texts are in `text`. */
static int prompt_turns(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t from,
                        int32_t last, struct kvl_chat_turn *turn, struct kvl_buf *text, size_t *out)
{
    size_t n = 0;
    if (p->system) {
        turn[n].role = "system";
        KVL_TRY(kvl_buf_adds(&text[n++], p->system));
    }
    for (int32_t i = from; i <= last; i++) {
        const struct kvl_question *q = &s->question[i];
        turn[n].role = "user";
        KVL_TRY(add_user(s, q, i == from, &text[n++]));
        if (i == last && !*prompt_prefix(q)) break;
        turn[n].role = "assistant";
        KVL_TRY(add_answer(q, i < last, &text[n++]));
    }
    for (size_t k = 0; k < n; k++) {
        turn[k].text = text[k].data;
        turn[k].len = text[k].len;
    }
    *out = n;
    return KVL_OK;
}

static bool begins(const struct kvl_buf *text, const struct kvl_buf *with)
{
    return text->len >= with->len && memcmp(text->data, with->data, with->len) == 0;
}

/* A conversation.  An answer that is begun is the model's turn, as far as it goes; where the template takes no such
 * turn, or writes what stands before it otherwise, the answer stands where the model would begin it. */
static int prompt_say(const struct kvl_prompt *p, const struct kvl_chat_turn *turn, size_t n,
                      struct kvl_chat_text *out, struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    const struct kvl_chat_turn *last = &turn[n - 1];
    if (strcmp(last->role, "user") == 0) return kvl_chat_render(p->chat, turn, n, out, err);
    int rc = kvl_chat_render(p->chat, turn, n, out, &why);
    if (rc == KVL_OK && begins(&out->text, &p->begin.text)) return KVL_OK;
    if (rc != KVL_OK && rc != KVL_EINVAL) return kvl_fail(err, rc, "%s", why.msg);
    KVL_TRY(kvl_chat_render(p->chat, turn, n - 1, out, err));
    return kvl_chat_say(out, last->text, last->len, err);
}

static int prompt_render(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t from,
                         int32_t last, struct kvl_chat_text *out, struct kvl_err *err)
{
    size_t most = 2 * (size_t)(last - from) + 3, n = 0;
    struct kvl_chat_turn *turn = kvl_alloc(most, sizeof *turn);
    struct kvl_buf *text = kvl_alloc(most, sizeof *text);
    int rc = turn && text ? prompt_turns(p, s, from, last, turn, text, &n) : KVL_ENOMEM;
    rc = rc == KVL_OK ? prompt_say(p, turn, n, out, err)
                      : kvl_fail(err, rc, "out of memory for a prompt");
    for (size_t k = 0; text && k < most; k++) kvl_buf_free(&text[k]);
    kvl_free(text);
    kvl_free(turn);
    return rc;
}

/* ---- contexts -------------------------------------------------------------------------------- */

const struct kvl_tokenizer *kvl_prompt_inside(const struct kvl_prompt *p)
{
    return p->chat ? p->begin.inside : p->tokenizer;
}

int32_t kvl_prompt_room(const struct kvl_prompt *p, int32_t length_tok)
{
    return length_tok - p->begin.before.n;
}

int32_t kvl_prompt_takes(const struct kvl_prompt *p)
{
    return p->begin.n_tok;
}

/* White space that a context ends with goes where the template drops it and nothing is asked behind it. */
static size_t prompt_end(const struct kvl_sample *s, bool trims)
{
    size_t len = strlen(s->context);
    for (int32_t i = 0; trims && i < s->n_questions; i++) {
        size_t asked = prompt_asked(&s->question[i]);
        trims = kvl_chat_blanks(s->question[i].text, asked) == asked;
    }
    return trims ? kvl_chat_trimmed(s->context, len) : len;
}

/* The template drops white space around a context; evidence moves with the text. */
static int prompt_trim(const struct kvl_prompt *p, struct kvl_sample *s, struct kvl_err *err)
{
    bool left, right;
    kvl_chat_trims(p->chat, &left, &right);
    size_t len = strlen(s->context), end = prompt_end(s, right && s->n_questions > 0);
    size_t n = left ? kvl_chat_blanks(s->context, end) : 0;
    if (n == 0 && end == len) return KVL_OK;
    s->context[end] = '\0';
    memmove(s->context, s->context + n, end - n + 1);
    for (int32_t i = 0; i < s->n_questions; i++)
        for (int32_t e = 0; e < s->question[i].n_evidence; e++)
            for (int32_t k = 0; k < s->question[i].evidence[e].n_spans; k++) {
                struct kvl_span *span = &s->question[i].evidence[e].span[k];
                span->begin -= KVL_MIN(n, span->begin);
                span->end -= KVL_MIN(n, span->end);
            }
    s->tokens.n = 0;
    return kvl_encode(p->begin.inside, s->context, strlen(s->context), KVL_ENCODE_BOS, &s->tokens,
                      err);
}

int kvl_prompt_context(const struct kvl_prompt *p, struct kvl_sample *s, struct kvl_err *err)
{
    const struct kvl_tokens *before = &p->begin.before;
    int32_t n = before->n;
    if (!p->chat) return KVL_OK;
    KVL_TRY(prompt_trim(p, s, err));
    int32_t inside = s->tokens.n, all = n + inside;
    int32_t *id = realloc(s->tokens.id, (size_t)all * sizeof *id);
    if (id) s->tokens.id = id;
    size_t *begin = realloc(s->tokens.begin, (size_t)all * sizeof *begin);
    if (begin) s->tokens.begin = begin;
    if (!id || !begin) return kvl_fail(err, KVL_ENOMEM, "out of memory for a prompt");
    memmove(id + n, id, (size_t)inside * sizeof *id);
    memmove(begin + n, begin, (size_t)inside * sizeof *begin);
    if (n > 0) {
        memcpy(id, before->id, (size_t)n * sizeof *id);
        memset(begin, 0, (size_t)n * sizeof *begin);
    }
    s->tokens.n = s->tokens.cap = all;
    for (int32_t i = 0; i < s->n_questions; i++) /* NaN stays */
        s->question[i].depth = (s->question[i].depth * inside + n) / all;
    return KVL_OK;
}

/* ---- questions ------------------------------------------------------------------------------- */

/* Where the context ends in a prompt; it must stand there as it was tokenised. */
static int prompt_context_end(const struct kvl_prompt *p, const struct kvl_sample *s,
                              const struct kvl_chat_text *x, size_t *out, struct kvl_err *err)
{
    const struct kvl_buf *before = &p->begin.text;
    size_t len = strlen(s->context), end = before->len + len;
    if (x->text.len < end || !begins(&x->text, before) ||
        memcmp(x->text.data + before->len, s->context, len) != 0)
        return kvl_fail(err, KVL_EINVAL,
                        "chat template %s: with this text it writes another prompt than with "
                        "others, want chat: none",
                        p->name);
    *out = end;
    return KVL_OK;
}

int kvl_prompt_question(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                        struct kvl_tokens *out, struct kvl_err *err)
{
    const struct kvl_question *q = &s->question[i];
    struct kvl_chat_text x = { 0 };
    size_t from;
    if (!p->chat)
        return kvl_encode(p->tokenizer, q->text, strlen(q->text), KVL_ENCODE_CONTINUE, out, err);
    int rc = prompt_render(p, s, i, i, &x, err);
    if (rc == KVL_OK) rc = prompt_context_end(p, s, &x, &from, err);
    if (rc == KVL_OK) rc = kvl_chat_encode(p->chat, &x, from, out, err);
    kvl_chat_text_free(&x);
    return rc;
}

/* Tokens of what one prompt of turns has behind another. */
static int prompt_more(const struct kvl_prompt *p, const struct kvl_chat_text *had,
                       const struct kvl_chat_text *all, struct kvl_tokens *out, struct kvl_err *err)
{
    size_t n = had->text.len;
    if (all->text.len <= n || !begins(&all->text, &had->text))
        return kvl_fail(err, KVL_EINVAL,
                        "multi_turn: chat template %s writes earlier turns otherwise once another "
                        "one follows, want "
                        "another protocol or template",
                        p->name);
    return kvl_chat_encode(p->chat, all, n, out, err);
}

/* Answer and question as one text. */
static int turn_plain(const struct kvl_prompt *p, const char *said, const char *later,
                      struct kvl_tokens *out, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_buf_printf(&text, "%s%s", said, later);
    rc = rc == KVL_OK ? kvl_encode(p->tokenizer, text.data, text.len, KVL_ENCODE_CONTINUE, out, err)
                      : kvl_fail(err, rc, "out of memory for a turn");
    kvl_buf_free(&text);
    return rc;
}

int kvl_prompt_turn(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                    struct kvl_tokens *out, struct kvl_err *err)
{
    const struct kvl_question *q = &s->question[i], *next = q + 1;
    if (!p->chat)
        return turn_plain(p, q->said ? q->said : q->answer, next->later ? next->later : next->text,
                          out, err);
    struct kvl_chat_text had = { 0 }, all = { 0 };
    int rc = prompt_render(p, s, 0, i, &had, err);
    if (rc == KVL_OK) rc = prompt_render(p, s, 0, i + 1, &all, err);
    if (rc == KVL_OK) rc = prompt_more(p, &had, &all, out, err);
    kvl_chat_text_free(&had);
    kvl_chat_text_free(&all);
    return rc;
}

/* What the template has behind what the user says. */
static int prompt_behind(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                         struct kvl_tokens *out, struct kvl_err *err)
{
    struct kvl_chat_text x = { 0 };
    int rc = prompt_render(p, s, i, i, &x, err);
    const char *said = rc == KVL_OK ? memrchr(x.mark.data, KVL_CHAT_FIRST, x.mark.len) : NULL;
    size_t from = said ? (size_t)(said - x.mark.data) + 1 : 0;
    if (rc == KVL_OK) rc = kvl_chat_encode(p->chat, &x, from, out, err);
    kvl_chat_text_free(&x);
    return rc;
}

/* Of a question by itself; `counted`: but for what the length has. */
static int tail_question(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                         bool counted, struct kvl_tokens *out, struct kvl_err *err)
{
    if (!counted) return kvl_prompt_question(p, s, i, out, err);
    return p->chat ? prompt_behind(p, s, i, out, err) : KVL_OK;
}

int kvl_prompt_counts(const struct kvl_prompt *p, int32_t *length_tok, int32_t *before,
                      int32_t *after, struct kvl_err *err)
{
    char context[] = "x", said[] = "";
    struct kvl_question q = { .text = said };
    const struct kvl_sample s = { .context = context, .question = &q, .n_questions = 1 };
    struct kvl_tokens t = { 0 };
    if (!p->chat) return KVL_OK;
    int rc = prompt_behind(p, &s, 0, &t, err);
    *before = p->begin.before.n;
    *after = t.n;
    *length_tok -= *before;
    kvl_tokens_free(&t);
    return rc;
}

int kvl_prompt_tail(const struct kvl_prompt *p, const struct kvl_sample *s, bool counted,
                    bool turns, int32_t *out, struct kvl_err *err)
{
    struct kvl_tokens t = { 0 };
    int32_t most = 0;
    int rc = KVL_OK;
    for (int32_t i = 0; rc == KVL_OK && i < s->n_questions; i++) {
        if (!turns) t.n = 0;
        rc = turns && i > 0 ? kvl_prompt_turn(p, s, i - 1, &t, err)
                            : tail_question(p, s, i, counted, &t, err);
        most = KVL_MAX(most, t.n + s->question[i].max_new_tok);
    }
    kvl_tokens_free(&t);
    if (rc == KVL_OK) *out = most;
    return rc;
}

/* All of it as one text. */
static int prompt_as_one(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                         struct kvl_tokens *out, struct kvl_err *err)
{
    struct kvl_chat_text x = { 0 };
    int rc;
    if (p->chat) {
        rc = prompt_render(p, s, i, i, &x, err);
        if (rc == KVL_OK) rc = kvl_chat_encode(p->chat, &x, 0, out, err);
    } else {
        rc = kvl_buf_adds(&x.text, s->context);
        if (rc == KVL_OK) rc = kvl_buf_adds(&x.text, s->question[i].text);
        rc = rc == KVL_OK
                 ? kvl_encode(p->tokenizer, x.text.data, x.text.len, KVL_ENCODE_BOS, out, err)
                 : kvl_fail(err, rc, "out of memory for a prompt");
    }
    kvl_chat_text_free(&x);
    return rc;
}

int kvl_prompt_joint(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i, bool *out,
                     struct kvl_err *err)
{
    struct kvl_tokens joint = { 0 }, parts = { 0 };
    int rc = prompt_as_one(p, s, i, &joint, err);
    if (rc == KVL_OK) rc = kvl_prompt_question(p, s, i, &parts, err);
    if (rc == KVL_OK) {
        int32_t n = s->tokens.n;
        *out = joint.n == n + parts.n &&
               memcmp(joint.id, s->tokens.id, (size_t)n * sizeof *joint.id) == 0 &&
               (parts.n == 0 ||
                memcmp(joint.id + n, parts.id, (size_t)parts.n * sizeof *parts.id) == 0);
    }
    kvl_tokens_free(&joint);
    kvl_tokens_free(&parts);
    return rc;
}

int kvl_prompt_whole(const struct kvl_prompt *p, const char *text, struct kvl_tokens *out,
                     struct kvl_err *err)
{
    char said[] = "";
    struct kvl_question q = { .text = said };
    const struct kvl_sample s = { .context = (char *)(uintptr_t)text,
                                  .question = &q,
                                  .n_questions = 1 };
    return prompt_as_one(p, &s, 0, out, err);
}

bool kvl_prompt_ends(const struct kvl_prompt *p, int32_t id)
{
    return kvl_tokenizer_ends(p->tokenizer, id) || (p->chat && kvl_chat_stops(p->chat, id));
}

/* ---- names ----------------------------------------------------------------------------------- */

int kvl_prompt_key(const struct kvl_prompt *p, struct kvl_buf *out)
{
    if (!p->chat) return KVL_OK;
    KVL_TRY(kvl_buf_printf(out, ";chat=%s", p->name));
    if (!p->system) return KVL_OK;
    return kvl_buf_printf(out, ";system=%016llx",
                          (unsigned long long)XXH3_64bits(p->system, strlen(p->system)));
}

uint64_t kvl_prompt_hash(const struct kvl_tokens *context, const struct kvl_tokens *question)
{
    size_t bytes = (size_t)question->n * sizeof *question->id;
    uint64_t h = XXH3_64bits(context->id, (size_t)context->n * sizeof *context->id);
    return question->n ? XXH3_64bits_withSeed(question->id, bytes, h) : h;
}
