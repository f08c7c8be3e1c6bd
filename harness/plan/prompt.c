/* Contexts and questions in a chat template. */
#include "prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static const char prompt_blank[] = " \t\n\v\f\r";

/* ---- which template -------------------------------------------------------------------------- */

int kvl_prompt_names(struct kvl_buf *out)
{
    for (size_t i = 0; kvl_chat_at(i); i++)
        KVL_TRY(kvl_buf_printf(out, "%s%s", i ? ", " : "", kvl_chat_name(kvl_chat_at(i))));
    return KVL_OK;
}

static int prompt_unknown(const char *what, const char *name, struct kvl_err *err)
{
    struct kvl_buf names = { 0 };
    int rc = kvl_prompt_names(&names);
    if (rc == KVL_OK)
        kvl_fail(err, KVL_EINVAL, "%s%s, want chat: none, or one of %s", what, name, names.data);
    kvl_buf_free(&names);
    return rc == KVL_OK ? KVL_EINVAL : kvl_fail(err, rc, "out of memory for a prompt");
}

/* *out = NULL: none. */
static int prompt_choose(const struct kvl_model *model, const char *chat,
                         const struct kvl_chat **out, struct kvl_err *err)
{
    const char *text = kvl_model_chat(model);
    *out = NULL;
    if (strcmp(chat, "none") == 0) return KVL_OK;
    if (strcmp(chat, "auto") != 0) {
        *out = kvl_chat_find(chat);
        return *out ? KVL_OK : prompt_unknown("no chat template ", chat, err);
    }
    if (!text || !text[0]) return KVL_OK;
    *out = kvl_chat_recognise(text);
    return *out ? KVL_OK
                : prompt_unknown(kvl_model_path(model),
                                 ": its chat template is of no family that is known", err);
}

int kvl_prompt_open(const struct kvl_model *model, const char *chat, const char *system,
                    struct kvl_prompt *out, struct kvl_err *err)
{
    const struct kvl_chat *found;
    struct kvl_prompt p = { .tokenizer = kvl_model_tokenizer(model), .name = "none" };
    KVL_TRY(prompt_choose(model, chat, &found, err));
    if (found) {
        KVL_TRY(kvl_chat_open(found, p.tokenizer, system, &p.chat, err));
        p.name = kvl_chat_name(found);
        if (system && system[0]) p.system = XXH3_64bits(system, strlen(system));
    }
    *out = p;
    return KVL_OK;
}

void kvl_prompt_close(struct kvl_prompt *p)
{
    kvl_chat_close(&p->chat);
}

/* ---- contexts -------------------------------------------------------------------------------- */

const struct kvl_tokenizer *kvl_prompt_inside(const struct kvl_prompt *p)
{
    return p->chat.chat ? p->chat.inside : p->tokenizer;
}

int32_t kvl_prompt_room(const struct kvl_prompt *p, int32_t length_tok)
{
    return length_tok - p->chat.before.n;
}

int kvl_prompt_counts(const struct kvl_prompt *p, int32_t *length_tok, int32_t *before,
                      int32_t *after, struct kvl_err *err)
{
    struct kvl_tokens t = { 0 };
    if (!p->chat.chat) return KVL_OK;
    int rc = kvl_chat_after(&p->chat, "", 0, &t, err);
    *before = p->chat.before.n;
    *after = t.n;
    *length_tok -= *before;
    kvl_tokens_free(&t);
    return rc;
}

/* The template drops white space that a context begins with; evidence moves with the text. */
static int prompt_trim(const struct kvl_prompt *p, struct kvl_sample *s, struct kvl_err *err)
{
    size_t n = p->chat.trims ? strspn(s->context, prompt_blank) : 0;
    if (n == 0) return KVL_OK;
    memmove(s->context, s->context + n, strlen(s->context + n) + 1);
    for (int32_t i = 0; i < s->n_questions; i++)
        for (int32_t e = 0; e < s->question[i].n_evidence; e++)
            for (int32_t k = 0; k < s->question[i].evidence[e].n_spans; k++) {
                struct kvl_span *span = &s->question[i].evidence[e].span[k];
                span->begin -= KVL_MIN(n, span->begin);
                span->end -= KVL_MIN(n, span->end);
            }
    s->tokens.n = 0;
    return kvl_encode(p->chat.inside, s->context, strlen(s->context), KVL_ENCODE_BOS, &s->tokens,
                      err);
}

int kvl_prompt_context(const struct kvl_prompt *p, struct kvl_sample *s, struct kvl_err *err)
{
    const struct kvl_tokens *before = &p->chat.before;
    int32_t n = before->n;
    if (!p->chat.chat) return KVL_OK;
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

/* Bytes of the question that the user asks; the rest is the answer prefix. */
static size_t prompt_asked(const struct kvl_prompt *p, const struct kvl_question *q)
{
    size_t n = strlen(q->text) - KVL_MIN(q->n_prefix, strlen(q->text));
    while (p->chat.trims && n > 0 && strchr(prompt_blank, q->text[n - 1])) n--;
    return n;
}

int kvl_prompt_question(const struct kvl_prompt *p, const struct kvl_question *q,
                        struct kvl_tokens *out, struct kvl_err *err)
{
    size_t len = strlen(q->text), n_prefix = KVL_MIN(q->n_prefix, len);
    if (!p->chat.chat) return kvl_encode(p->tokenizer, q->text, len, KVL_ENCODE_CONTINUE, out, err);
    KVL_TRY(kvl_encode(p->chat.inside, q->text, prompt_asked(p, q), KVL_ENCODE_CONTINUE, out, err));
    return kvl_chat_after(&p->chat, q->text + len - n_prefix, n_prefix, out, err);
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

int kvl_prompt_turn(const struct kvl_prompt *p, const struct kvl_question *q,
                    const struct kvl_question *next, struct kvl_tokens *out, struct kvl_err *err)
{
    size_t len = strlen(next->text), n_prefix = KVL_MIN(next->n_prefix, len);
    const char *said = q->said ? q->said : q->answer;
    if (!p->chat.chat) return turn_plain(p, said, next->later ? next->later : next->text, out, err);
    KVL_TRY(kvl_chat_next(&p->chat, said, q->n_prefix > 0, next->text, prompt_asked(p, next), out,
                          err));
    return kvl_chat_after(&p->chat, next->text + len - n_prefix, n_prefix, out, err);
}

/* Of a question by itself; `counted`: but for what the length has. */
static int tail_question(const struct kvl_prompt *p, const struct kvl_question *q, bool counted,
                         struct kvl_tokens *out, struct kvl_err *err)
{
    if (!counted) return kvl_prompt_question(p, q, out, err);
    return p->chat.chat ? kvl_chat_after(&p->chat, "", 0, out, err) : KVL_OK;
}

int kvl_prompt_tail(const struct kvl_prompt *p, const struct kvl_sample *s, bool counted,
                    bool turns, int32_t *out, struct kvl_err *err)
{
    struct kvl_tokens t = { 0 };
    int32_t most = 0;
    int rc = KVL_OK;
    for (int32_t i = 0; rc == KVL_OK && i < s->n_questions; i++) {
        const struct kvl_question *q = &s->question[i];
        if (!turns) t.n = 0;
        rc = turns && i > 0 ? kvl_prompt_turn(p, q - 1, q, &t, err)
                            : tail_question(p, q, counted, &t, err);
        most = KVL_MAX(most, t.n + q->max_new_tok);
    }
    kvl_tokens_free(&t);
    if (rc == KVL_OK) *out = most;
    return rc;
}

int kvl_prompt_joint(const struct kvl_prompt *p, const struct kvl_sample *s,
                     const struct kvl_question *q, bool *out, struct kvl_err *err)
{
    const struct kvl_tokenizer *t = kvl_prompt_inside(p);
    size_t asked = p->chat.chat ? prompt_asked(p, q) : strlen(q->text);
    struct kvl_buf text = { 0 };
    struct kvl_tokens joint = { 0 }, parts = { 0 };
    int rc = kvl_buf_adds(&text, s->context);
    if (rc == KVL_OK) rc = kvl_buf_add(&text, q->text, asked);
    if (rc != KVL_OK) kvl_fail(err, rc, "out of memory for a prompt");
    if (rc == KVL_OK) rc = kvl_encode(t, text.data, text.len, KVL_ENCODE_BOS, &joint, err);
    if (rc == KVL_OK) rc = kvl_encode(t, q->text, asked, KVL_ENCODE_CONTINUE, &parts, err);
    if (rc == KVL_OK) {
        const int32_t *id = s->tokens.id + p->chat.before.n;
        int32_t n = s->tokens.n - p->chat.before.n;
        *out = joint.n == n + parts.n && memcmp(joint.id, id, (size_t)n * sizeof *id) == 0 &&
               (parts.n == 0 || memcmp(joint.id + n, parts.id, (size_t)parts.n * sizeof *id) == 0);
    }
    kvl_buf_free(&text);
    kvl_tokens_free(&joint);
    kvl_tokens_free(&parts);
    return rc;
}

bool kvl_prompt_ends(const struct kvl_prompt *p, int32_t id)
{
    return kvl_tokenizer_ends(p->tokenizer, id) || kvl_chat_stops(&p->chat, id);
}

/* ---- names ----------------------------------------------------------------------------------- */

int kvl_prompt_key(const struct kvl_prompt *p, struct kvl_buf *out)
{
    if (!p->chat.chat) return KVL_OK;
    KVL_TRY(kvl_buf_printf(out, ";chat=%s", p->name));
    return p->system ? kvl_buf_printf(out, ";system=%016llx", (unsigned long long)p->system)
                     : KVL_OK;
}

uint64_t kvl_prompt_hash(const struct kvl_tokens *context, const struct kvl_tokens *question)
{
    size_t bytes = (size_t)question->n * sizeof *question->id;
    uint64_t h = XXH3_64bits(context->id, (size_t)context->n * sizeof *context->id);
    return question->n ? XXH3_64bits_withSeed(question->id, bytes, h) : h;
}
