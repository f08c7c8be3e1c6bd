/* Chat templates: prompts of them as text and as tokens. */
#include "chat_impl.h"

#include "jinja.h"
#include "tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHAT_MOST = 1 << 20 }; /* bytes of a template */

struct kvl_chat {
    const struct kvl_tokenizer *t;
    struct kvl_jinja *jinja;
    char name[32];
    bool own, trims_left, trims_right;
    int32_t stop; /* what stands behind an answer; -1: no token */
};

void kvl_chat_text_free(struct kvl_chat_text *x)
{
    kvl_buf_free(&x->text);
    kvl_buf_free(&x->mark);
}

const char *kvl_chat_name(const struct kvl_chat *c)
{
    return c->name;
}

void kvl_chat_trims(const struct kvl_chat *c, bool *left, bool *right)
{
    *left = c->trims_left;
    *right = c->trims_right;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The text of a token as a variable of the template.  A file that has no such token leaves it undefined. */
static void chat_token(const struct kvl_chat *c, struct kvl_jinja_run *r, const char *name,
                       int32_t id)
{
    struct kvl_str s = { "", 0 };
    if (id >= 0) s = kvl_tok_string(&c->t->text, id);
    if (id >= 0 || !c->own) jin_set(r, name, jin_text(r, s.s, s.len, KVL_CHAT_TEMPLATE));
}

static enum kvl_chat_mark chat_mark(const struct kvl_chat_turn *turn, size_t n, size_t i)
{
    if (strcmp(turn[i].role, "system") == 0) return KVL_CHAT_SYSTEM;
    if (strcmp(turn[i].role, "user") != 0) return i + 1 == n ? KVL_CHAT_LAST : KVL_CHAT_TURN;
    for (size_t k = 0; k < i; k++)
        if (strcmp(turn[k].role, "user") == 0) return KVL_CHAT_TURN;
    return KVL_CHAT_FIRST;
}

/* What transformers gives a template: no tools, no documents. */
static void chat_variables(const struct kvl_chat *c, struct kvl_jinja_run *r,
                           const struct kvl_chat_turn *turn, size_t n, bool ask)
{
    struct jin_val messages = jin_list(r), none = { .type = JIN_NONE };
    for (size_t i = 0; i < n; i++) {
        struct jin_val m = jin_dict(r);
        jin_put(r, m, "role", jin_text(r, turn[i].role, strlen(turn[i].role), KVL_CHAT_TEMPLATE));
        jin_put(r, m, "content",
                jin_text(r, turn[i].text, turn[i].len, (uint8_t)chat_mark(turn, n, i)));
        jin_push(r, messages, m);
    }
    jin_set(r, "messages", messages);
    jin_set(r, "add_generation_prompt", (struct jin_val){ JIN_BOOL, { .b = ask } });
    jin_set(r, "tools", none);
    jin_set(r, "documents", none);
    chat_token(c, r, "bos_token", c->t->bos);
    chat_token(c, r, "eos_token", c->t->eos);
    if (c->t->unk >= 0) chat_token(c, r, "unk_token", c->t->unk);
}

/* Up to the end of the last turn, which is gone on with. */
static int chat_cut(const struct kvl_chat *c, struct kvl_chat_text *out, struct kvl_err *err)
{
    const char *end = memrchr(out->mark.data, KVL_CHAT_LAST, out->mark.len);
    if (!end)
        return kvl_fail(err, KVL_EINVAL,
                        "chat template %s: an answer that is begun does not stand in it", c->name);
    out->text.len = out->mark.len = (size_t)(end - out->mark.data) + 1;
    out->text.data[out->text.len] = '\0';
    return KVL_OK;
}

int kvl_chat_render(const struct kvl_chat *c, const struct kvl_chat_turn *turn, size_t n,
                    struct kvl_chat_text *out, struct kvl_err *err)
{
    struct kvl_jinja_run *r;
    size_t bytes = 0;
    bool ask = strcmp(turn[n - 1].role, "assistant") != 0;
    for (size_t i = 0; i < n; i++) bytes += turn[i].len;
    out->text.len = out->mark.len = 0;
    if (kvl_buf_adds(&out->text, "") != KVL_OK || kvl_buf_adds(&out->mark, "") != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for a prompt");
    KVL_TRY(kvl_jinja_open(c->jinja, bytes, &r, err));
    chat_variables(c, r, turn, n, ask);
    int rc = kvl_jinja_render(r, &out->text, &out->mark);
    kvl_jinja_close(r);
    if (rc != KVL_OK) return kvl_fail_at(err, rc, "chat template %s", c->name);
    return ask ? KVL_OK : chat_cut(c, out, err);
}

int kvl_chat_say(struct kvl_chat_text *x, const char *text, size_t len, struct kvl_err *err)
{
    char mark = KVL_CHAT_LAST;
    int rc = kvl_buf_add(&x->text, text, len);
    for (size_t i = 0; rc == KVL_OK && i < len; i++) rc = kvl_buf_add(&x->mark, &mark, 1);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "no memory for a prompt");
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Whether the template itself writes BOS first. */
static bool chat_has_bos(const struct kvl_chat *c, const struct kvl_chat_text *x)
{
    if (c->t->bos < 0) return false;
    struct kvl_str s = kvl_tok_string(&c->t->text, c->t->bos);
    if (x->text.len < s.len || memcmp(x->text.data, s.s, s.len) != 0) return false;
    for (size_t i = 0; i < s.len; i++)
        if (x->mark.data[i] != KVL_CHAT_TEMPLATE) return false;
    return s.len > 0;
}

static int chat_bos(const struct kvl_chat *c, const struct kvl_chat_text *x, struct kvl_tokens *out,
                    struct kvl_err *err)
{
    int32_t n = out->n;
    if (!c->t->add_bos || c->t->bos < 0 || chat_has_bos(c, x)) return KVL_OK;
    KVL_TRY(kvl_encode(c->t, "", 0, KVL_ENCODE_BOS, out, err));
    out->n = n + 1; /* no EOS */
    return KVL_OK;
}

int kvl_chat_encode(const struct kvl_chat *c, const struct kvl_chat_text *x, size_t from,
                    struct kvl_tokens *out, struct kvl_err *err)
{
    if (from == 0) KVL_TRY(chat_bos(c, x, out, err));
    return kvl_encode_marked(c->t, x->text.data + from, (const uint8_t *)x->mark.data + from,
                             x->text.len - from,
                             KVL_ENCODE_SPECIAL | (from > 0 ? KVL_ENCODE_CONTINUE : 0), out, err);
}

/* The last control token of a text of the template: texts before and behind it never merge. */
static int chat_last_control(const struct kvl_chat *c, const struct kvl_chat_text *x,
                             struct tok_hit *out, struct kvl_err *err)
{
    struct tok_hit *hit;
    size_t n;
    *out = (struct tok_hit){ .id = -1 };
    KVL_TRY(kvl_tok_special_hits(c->t, x->text.data, (const uint8_t *)x->mark.data, x->text.len,
                                 true, false, &hit, &n, err));
    for (size_t i = 0; i < n; i++)
        if (c->t->type[hit[i].id] != TOK_USER) *out = hit[i];
    free(hit);
    return KVL_OK;
}

/* ---- before the first turn of the user ------------------------------------------------------- */

static size_t chat_turns(const char *system, const char *user, struct kvl_chat_turn turn[2])
{
    size_t n = 0;
    if (system) turn[n++] = (struct kvl_chat_turn){ "system", system, strlen(system) };
    turn[n++] = (struct kvl_chat_turn){ "user", user, strlen(user) };
    return n;
}

/* Cuts a prompt before what the user says first; that is `want` and stands there once. */
static int chat_cut_user(const struct kvl_chat *c, struct kvl_chat_text *x, const char *want,
                         struct kvl_err *err)
{
    const char *mark = x->mark.data, *first = memchr(mark, KVL_CHAT_FIRST, x->mark.len);
    const char *last = first ? memrchr(mark, KVL_CHAT_FIRST, x->mark.len) : NULL;
    size_t n = first ? (size_t)(last - first) + 1 : 0, at = first ? (size_t)(first - mark) : 0;
    if (n != strlen(want) || memcmp(x->text.data + at, want, n) != 0)
        return kvl_fail(
            err, KVL_EINVAL,
            "chat template %s: it does not show what the user says as it is, want chat: "
            "none or another template",
            c->name);
    x->text.len = x->mark.len = at;
    return KVL_OK;
}

/* The tokenizer that a text in the user's turn needs: the template's text behind the last control token is
 * tokenised with it. */
static int begin_inside(const struct kvl_chat *c, struct kvl_chat_begin *b, size_t cut,
                        int32_t dropped, struct kvl_err *err)
{
    size_t len = b->text.len - cut;
    b->inside = kvl_alloc(1, sizeof *b->inside);
    b->lead = kvl_alloc(len + 1, 1);
    if (!b->inside || !b->lead) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    memcpy(b->lead, b->text.data + cut, len);
    *b->inside = *c->t; /* what it points to stays the tokenizer's */
    b->inside->add_bos = b->inside->add_eos = false;
    b->inside->lead = b->lead;
    b->inside->lead_len = len;
    b->inside->lead_drops = dropped;
    return KVL_OK;
}

/* `x`: the prompt up to the user's text. */
static int begin_parts(const struct kvl_chat *c, struct kvl_chat_text *x, struct kvl_chat_begin *b,
                       struct kvl_err *err)
{
    struct tok_hit last;
    KVL_TRY(chat_last_control(c, x, &last, err));
    size_t cut = last.id >= 0 ? last.begin : 0;
    if (kvl_buf_adds(&b->text, "") != KVL_OK ||
        kvl_buf_add(&b->text, x->text.data, x->text.len) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    if (last.id >= 0) {
        x->text.len = x->mark.len = last.begin + last.len;
        KVL_TRY(kvl_chat_encode(c, x, 0, &b->before, err));
    } else {
        KVL_TRY(chat_bos(c, x, &b->before, err));
    }
    for (int32_t i = 0; i < b->before.n; i++) b->before.begin[i] = 0;
    KVL_TRY(begin_inside(c, b, cut, last.id >= 0, err));
    struct kvl_tokens led = { 0 };
    int rc = kvl_encode(b->inside, "", 0, 0, &led, err);
    b->n_tok = b->before.n + led.n;
    kvl_tokens_free(&led);
    return rc;
}

int kvl_chat_begin(const struct kvl_chat *c, const char *system, struct kvl_chat_begin *out,
                   struct kvl_err *err)
{
    struct kvl_chat_turn turn[2];
    struct kvl_chat_text x = { 0 };
    struct kvl_chat_begin b = { 0 };
    int rc = kvl_chat_render(c, turn, chat_turns(system, "x", turn), &x, err);
    if (rc == KVL_OK) rc = chat_cut_user(c, &x, "x", err);
    if (rc == KVL_OK) rc = begin_parts(c, &x, &b, err);
    kvl_chat_text_free(&x);
    if (rc == KVL_OK)
        *out = b;
    else
        kvl_chat_begin_free(&b);
    return rc;
}

void kvl_chat_begin_free(struct kvl_chat_begin *b)
{
    kvl_tokens_free(&b->before);
    kvl_free(b->inside);
    kvl_free(b->lead);
    kvl_buf_free(&b->text);
    *b = (struct kvl_chat_begin){ 0 };
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Tries it: whether it drops white space around what the user says. */
static int chat_try(struct kvl_chat *c, struct kvl_err *err)
{
    static const char padded[] = " \n x \n ", left[] = "x \n ", right[] = " \n x";
    struct kvl_chat_turn turn[2];
    struct kvl_chat_text x = { 0 };
    int rc = kvl_chat_render(c, turn, chat_turns(NULL, padded, turn), &x, err);
    if (rc == KVL_OK) {
        const char *mark = x.mark.data, *first = memchr(mark, KVL_CHAT_FIRST, x.mark.len);
        const char *last = first ? memrchr(mark, KVL_CHAT_FIRST, x.mark.len) : NULL;
        c->trims_left = first && x.text.data[first - mark] == 'x';
        c->trims_right = last && x.text.data[last - mark] == 'x';
        rc = chat_cut_user(c, &x,
                           c->trims_left    ? c->trims_right ? "x" : left
                           : c->trims_right ? right
                                            : padded,
                           err);
    }
    kvl_chat_text_free(&x);
    return rc;
}

/* The first token of the template behind an answer; none where it takes no such turns. */
static int chat_find_stop(struct kvl_chat *c, struct kvl_err *err)
{
    static const struct kvl_chat_turn turn[] = { { "user", "x", 1 },
                                                 { "assistant", "y", 1 },
                                                 { "user", "z", 1 } };
    struct kvl_chat_text x = { 0 };
    struct kvl_err ignored = { 0 };
    struct tok_hit *hit = NULL;
    size_t n = 0;
    int rc = KVL_OK;
    c->stop = -1;
    if (kvl_chat_render(c, turn, 3, &x, &ignored) == KVL_OK) {
        const char *mark = x.mark.data, *answer = memchr(mark, KVL_CHAT_TURN, x.mark.len);
        size_t at = answer ? (size_t)(answer - mark) : x.mark.len;
        rc = kvl_tok_special_hits(c->t, x.text.data, (const uint8_t *)mark, x.text.len, true, false,
                                  &hit, &n, err);
        for (size_t i = 0; rc == KVL_OK && i < n && c->stop < 0; i++)
            if (hit[i].begin > at && c->t->type[hit[i].id] != TOK_USER) c->stop = hit[i].id;
    }
    free(hit);
    kvl_chat_text_free(&x);
    return rc;
}

int kvl_chat_of(const struct kvl_tokenizer *t, const char *text, const char *name,
                struct kvl_chat **out, struct kvl_err *err)
{
    size_t len = strlen(text);
    if (len > CHAT_MOST) return kvl_fail(err, KVL_EINVAL, "a chat template of %zu bytes", len);
    struct kvl_chat *c = kvl_alloc(1, sizeof *c);
    if (!c) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    c->t = t;
    c->own = !name;
    if (name)
        snprintf(c->name, sizeof c->name, "%s", name);
    else
        snprintf(c->name, sizeof c->name, "own-%08x", (unsigned)(XXH3_64bits(text, len) >> 32));
    int rc = kvl_jinja_parse(text, len, &c->jinja, err);
    if (rc == KVL_EMODEL) rc = kvl_fail_at(err, KVL_EINVAL, "chat template %s", c->name);
    if (rc == KVL_OK) rc = chat_try(c, err);
    if (rc == KVL_OK) rc = chat_find_stop(c, err);
    if (rc == KVL_OK)
        *out = c;
    else
        kvl_chat_close(c);
    return rc;
}

int kvl_chat_open(const struct kvl_tokenizer *t, const char *name, struct kvl_chat **out,
                  struct kvl_err *err)
{
    const char *text = name ? kvl_chat_source(name) : t->chat_template;
    if (!text) return kvl_fail(err, KVL_EINVAL, "no chat template %s", name ? name : "in the file");
    return kvl_chat_of(t, text, name, out, err);
}

void kvl_chat_close(struct kvl_chat *c)
{
    if (!c) return;
    kvl_jinja_free(c->jinja);
    kvl_free(c);
}

bool kvl_chat_stops(const struct kvl_chat *c, int32_t id)
{
    return id >= 0 && id == c->stop;
}

size_t kvl_chat_blanks(const char *s, size_t len)
{
    return kvl_utf8_blanks(s, len);
}

size_t kvl_chat_trimmed(const char *s, size_t len)
{
    return kvl_utf8_trimmed(s, len);
}
