/* Chat templates: a table of families, and prompts of them as text and as tokens.
 *
 * The strings are those of the published Jinja templates, for one system text and turns of the user.
 * BOS is the tokenizer's business.  What Jinja adds of its own when no system text is given (a sentence
 * about the model, dates) is left out. */
#include "kvl/chat.h"

#include "tokenizer_impl.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { CHAT_MOST_STOPS = 4 };

/* {s} system text, {q} text of the user, {e} the end-of-sequence token, {b} the one that begins a text. */
struct kvl_chat {
    const char *name;
    const char *plain, *with; /* the turn of the user, without and with a system text */
    const char *after;        /* behind it: up to where the answer begins */
    const char *open;         /* NULL, or more of it where an answer prefix follows */
    const char *gap;          /* white space before an answer */
    const char *next;         /* behind an answer: its end, the next turn of the user */
    const char *stop[CHAT_MOST_STOPS];
    bool trims;
};

#define VICUNA_SYSTEM                                                                              \
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives " \
    "helpful, detailed, and polite answers to the user's questions."

#define CHATML_USER   "<|im_start|>user\n{q}"
#define CHATML_SYSTEM "<|im_start|>system\n{s}<|im_end|>\n"
#define CHATML_AFTER  "<|im_end|>\n<|im_start|>assistant\n"

static const struct kvl_chat chats[] = {
    { .name = "phi-4",
      .plain = "<|im_start|>user<|im_sep|>{q}",
      .with = "<|im_start|>system<|im_sep|>{s}<|im_end|><|im_start|>user<|im_sep|>{q}",
      .after = "<|im_end|><|im_start|>assistant<|im_sep|>",
      .gap = "",
      .next = "<|im_end|><|im_start|>user<|im_sep|>{q}",
      .stop = { "<|im_end|>" } },
    { .name = "chatml",
      .plain = CHATML_USER,
      .with = CHATML_SYSTEM CHATML_USER,
      .after = CHATML_AFTER,
      .gap = "",
      .next = "<|im_end|>\n" CHATML_USER,
      .stop = { "<|im_end|>", "<|endoftext|>" } },
    /* Qwen3 told not to think first: by name alone. */
    { .name = "chatml-no-think",
      .plain = CHATML_USER,
      .with = CHATML_SYSTEM CHATML_USER,
      .after = CHATML_AFTER "<think>\n\n</think>\n\n",
      .gap = "",
      .next = "<|im_end|>\n" CHATML_USER,
      .stop = { "<|im_end|>", "<|endoftext|>" } },
    { .name = "mistral-v7",
      .plain = "[INST] {q}",
      .with = "[SYSTEM_PROMPT] {s}[/SYSTEM_PROMPT][INST] {q}",
      .after = "[/INST]",
      .gap = " ",
      .next = "{e}[INST] {q}",
      .stop = { "</s>" } },
    { .name = "mistral-v7-tekken",
      .plain = "[INST]{q}",
      .with = "[SYSTEM_PROMPT]{s}[/SYSTEM_PROMPT][INST]{q}",
      .after = "[/INST]",
      .gap = "",
      .next = "{e}[INST]{q}",
      .stop = { "</s>" } },
    { .name = "mistral-v1",
      .plain = " [INST] {q}",
      .with = " [INST] {s}\n\n{q}",
      .after = " [/INST]",
      .gap = " ",
      .next = "{e} [INST] {q}",
      .stop = { "</s>" } },
    { .name = "mistral-v3-tekken",
      .plain = "[INST]{q}",
      .with = "[INST]{s}\n\n{q}",
      .after = "[/INST]",
      .gap = "",
      .next = "{e}[INST]{q}",
      .stop = { "</s>" } },
    { .name = "mistral-v3",
      .plain = "[INST] {q}",
      .with = "[INST] {s}\n\n{q}",
      .after = "[/INST]",
      .gap = " ",
      .next = "{e}[INST] {q}",
      .stop = { "</s>" } },
    { .name = "llama-2",
      .plain = "[INST] {q}",
      .with = "[INST] <<SYS>>\n{s}\n<</SYS>>\n\n{q}",
      .after = " [/INST]",
      .gap = " ",
      .next = " {e}{b}[INST] {q}",
      .stop = { "</s>" },
      .trims = true },
    { .name = "phi-4-mini",
      .plain = "<|user|>{q}",
      .with = "<|system|>{s}<|end|><|user|>{q}",
      .after = "<|end|><|assistant|>",
      .gap = "",
      .next = "<|end|><|user|>{q}",
      .stop = { "<|end|>", "<|endoftext|>" } },
    { .name = "phi-3",
      .plain = "<|user|>\n{q}",
      .with = "<|system|>\n{s}<|end|>\n<|user|>\n{q}",
      .after = "<|end|>\n<|assistant|>\n",
      .gap = "",
      .next = "<|end|>\n<|user|>\n{q}",
      .stop = { "<|end|>", "<|endoftext|>" } },
    { .name = "glm-4",
      .plain = "[gMASK]<sop><|user|>\n{q}",
      .with = "[gMASK]<sop><|system|>\n{s}<|user|>\n{q}",
      .after = "<|assistant|>",
      .gap = "\n", /* the model writes it itself */
      .next = "<|user|>\n{q}",
      .stop = { "<|user|>", "<|observation|>", "<|endoftext|>" } },
    /* {e}: StableLM's Zephyr has another end token than the first one. */
    { .name = "zephyr",
      .plain = "<|user|>\n{q}",
      .with = "<|system|>\n{s}{e}\n<|user|>\n{q}",
      .after = "{e}\n<|assistant|>\n",
      .gap = "",
      .next = "{e}\n<|user|>\n{q}",
      .stop = { "</s>", "<|endoftext|>" } },
    { .name = "gemma",
      .plain = "<start_of_turn>user\n{q}",
      .with = "<start_of_turn>user\n{s}\n\n{q}",
      .after = "<end_of_turn>\n<start_of_turn>model\n",
      .gap = "",
      .next = "<end_of_turn>\n<start_of_turn>user\n{q}",
      .stop = { "<end_of_turn>", "<eos>" },
      .trims = true },
    { .name = "vicuna",
      .plain = VICUNA_SYSTEM " USER: {q}",
      .with = "{s} USER: {q}",
      .after = " ASSISTANT:",
      .gap = " ",
      .next = "{e}USER: {q}",
      .stop = { "</s>" } },
    { .name = "llama-3",
      .plain = "<|start_header_id|>user<|end_header_id|>\n\n{q}",
      .with = "<|start_header_id|>system<|end_header_id|>\n\n{s}<|eot_id|>"
              "<|start_header_id|>user<|end_header_id|>\n\n{q}",
      .after = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
      .gap = "",
      .next = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n{q}",
      .stop = { "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>" },
      .trims = true },
    /* The model names a channel before it writes; an answer prefix stands in the one that is shown. */
    { .name = "gpt-oss",
      .plain = "<|start|>user<|message|>{q}",
      .with = "<|start|>system<|message|>{s}<|end|><|start|>user<|message|>{q}",
      .after = "<|end|><|start|>assistant",
      .open = "<|channel|>final<|message|>",
      .gap = "",
      .next = "<|end|><|start|>user<|message|>{q}",
      .stop = { "<|return|>", "<|call|>", "<|end|>" } },
};

enum { N_CHATS = sizeof chats / sizeof chats[0], CHAT_NEEDLES = 2 };

/* The first row all of whose texts stand in a template. */
static const struct chat_sign {
    const char *needle[CHAT_NEEDLES], *name;
} chat_signs[] = {
    { { "<|im_start|>", "<|im_sep|>" }, "phi-4" },
    { { "<|im_start|>" }, "chatml" },
    { { "[INST] ", "[SYSTEM_PROMPT]" }, "mistral-v7" },
    { { "[INST]", "[SYSTEM_PROMPT]" }, "mistral-v7-tekken" },
    { { "' [INST] ' + system_message" }, "mistral-v1" },
    { { " [INST]", "[AVAILABLE_TOOLS]" }, "mistral-v1" },
    { { "\"[INST]\"", "[AVAILABLE_TOOLS]" }, "mistral-v3-tekken" },
    { { "[INST]", "[AVAILABLE_TOOLS]" }, "mistral-v3" },
    { { "[INST]" }, "llama-2" },
    { { "<|assistant|>", "'|>' + message['content'] + '<|end|>'" }, "phi-4-mini" },
    { { "<|assistant|>", "<|end|>" }, "phi-3" },
    { { "[gMASK]<sop>" }, "glm-4" },
    /* The line break as a character, and as Jinja spells it. */
    { { "<|user|>\n' + message['content'] + eos_token" }, "zephyr" },
    { { "<|user|>\\n' + message['content'] + eos_token" }, "zephyr" },
    { { "<start_of_turn>" }, "gemma" },
    { { "USER: ", "ASSISTANT: " }, "vicuna" },
    { { "<|start_header_id|>" }, "llama-3" },
    { { "<|start|>", "<|channel|>" }, "gpt-oss" },
};

const struct kvl_chat *kvl_chat_find(const char *name)
{
    for (size_t i = 0; i < N_CHATS; i++)
        if (strcmp(chats[i].name, name) == 0) return &chats[i];
    return NULL;
}

const struct kvl_chat *kvl_chat_recognise(const char *text)
{
    for (size_t i = 0; i < sizeof chat_signs / sizeof chat_signs[0]; i++) {
        const struct chat_sign *s = &chat_signs[i];
        bool all = true;
        for (size_t k = 0; k < CHAT_NEEDLES && s->needle[k]; k++)
            all = all && strstr(text, s->needle[k]);
        if (all) return kvl_chat_find(s->name);
    }
    return NULL;
}

const char *kvl_chat_name(const struct kvl_chat *chat)
{
    return chat->name;
}

const struct kvl_chat *kvl_chat_at(size_t i)
{
    return i < N_CHATS ? &chats[i] : NULL;
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* A text without white space around it, where the template drops that. */
static struct kvl_str chat_said(const struct kvl_chat *chat, const char *text, size_t len)
{
    struct kvl_str s = { text, len };
    while (chat->trims && s.len && isspace((unsigned char)s.s[s.len - 1])) s.len--;
    while (chat->trims && s.len && isspace((unsigned char)s.s[0])) s.s++, s.len--;
    return s;
}

/* An answer prefix begins where the template's gap ends. */
static struct kvl_str chat_prefix(const char *text, size_t len)
{
    while (len && isspace((unsigned char)*text)) text++, len--;
    return (struct kvl_str){ text, len };
}

/* Length of the literal text at p: up to a field or the end. */
static size_t chat_literal(const char *p)
{
    size_t n = 0;
    while (p[n] && !(p[n] == '{' && p[n + 1] && p[n + 2] == '}')) n++;
    return n;
}

enum { CHAT_FIELD = 3 }; /* bytes of "{q}" */

/* ---- text ------------------------------------------------------------------------------------ */

static int render(const char *form, const char *eos, struct kvl_str system, struct kvl_str user,
                  struct kvl_buf *out)
{
    for (const char *p = form; *p;) {
        size_t n = chat_literal(p);
        KVL_TRY(kvl_buf_add(out, p, n));
        p += n;
        if (!*p) break;
        struct kvl_str s = p[1] == 's' ? system : user;
        if (p[1] == 'e')
            KVL_TRY(kvl_buf_adds(out, eos));
        else
            KVL_TRY(kvl_buf_add(out, s.s, s.len));
        p += CHAT_FIELD;
    }
    return KVL_OK;
}

int kvl_chat_render(const struct kvl_chat *chat, const char *eos, const char *system,
                    const char *user, const char *answer, struct kvl_buf *out)
{
    struct kvl_str none = { "", 0 }, s = system ? chat_said(chat, system, strlen(system)) : none;
    struct kvl_str q = chat_said(chat, user, strlen(user));
    struct kvl_str a = answer ? chat_prefix(answer, strlen(answer)) : none;
    KVL_TRY(render(s.len ? chat->with : chat->plain, eos, s, q, out));
    KVL_TRY(render(chat->after, eos, none, none, out));
    if (a.len == 0) return KVL_OK;
    if (chat->open) KVL_TRY(kvl_buf_adds(out, chat->open));
    KVL_TRY(kvl_buf_adds(out, chat->gap));
    return kvl_buf_add(out, a.s, a.len);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A part of the prompt, behind a gap of the template. */
static int chat_part(const struct kvl_chat_use *u, const char *gap, struct kvl_str s,
                     uint32_t flags, struct kvl_tokens *out, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_buf_adds(&text, gap);
    if (rc == KVL_OK) rc = kvl_buf_add(&text, s.s, s.len);
    if (rc == KVL_OK)
        rc = kvl_encode(u->inside, text.data, text.len, flags | KVL_ENCODE_CONTINUE, out, err);
    else
        kvl_fail(err, rc, "no memory for %zu bytes of a prompt", s.len);
    kvl_buf_free(&text);
    return rc;
}

/* Text of the template, in which control tokens are tokens. */
static int chat_control(const struct kvl_chat_use *u, const char *gap, struct kvl_str s,
                        struct kvl_tokens *out, struct kvl_err *err)
{
    return chat_part(u, gap, s, KVL_ENCODE_SPECIAL, out, err);
}

/* A token of the tokenizer; -1: it has none. */
static int chat_token(const struct kvl_chat_use *u, int32_t id, struct kvl_tokens *out,
                      struct kvl_err *err)
{
    if (id < 0) return KVL_OK;
    return chat_control(u, "", kvl_tok_string(&u->inside->text, id), out, err);
}

/* Up to {q}, or the end of the form.  *gap: what stands before the first part of it; then, before the
 * user's text. */
static int chat_form(const struct kvl_chat_use *u, const char *form, struct kvl_str system,
                     const char **gap, struct kvl_tokens *out, struct kvl_err *err)
{
    const struct kvl_tokenizer *t = u->inside;
    for (const char *p = form;;) {
        size_t n = chat_literal(p);
        bool text = p[n] && (p[n + 1] == 's' || p[n + 1] == 'q');
        bool cut = text && n > 0 && p[n - 1] == ' ';
        /* The last space belongs to the text behind it. */
        if (n > cut) {
            KVL_TRY(chat_control(u, *gap, (struct kvl_str){ p, n - cut }, out, err));
            *gap = "";
        }
        if (cut) *gap = " ";
        p += n;
        if (!*p || p[1] == 'q') return KVL_OK;
        KVL_TRY(p[1] == 's' ? chat_part(u, *gap, system, 0, out, err)
                            : chat_token(u, p[1] == 'e' ? t->eos : t->bos, out, err));
        *gap = "";
        p += CHAT_FIELD;
    }
}

/* Whether a vocabulary that puts a space before a text has one before the template: not before a
 * token that is no text, and not twice. */
static int chat_first_gap(const struct kvl_tokenizer *t, const char *form, const char **gap,
                          struct kvl_err *err)
{
    struct tok_hit *hit;
    size_t n;
    *gap = "";
    if (t->bpe || !t->add_space || form[0] == ' ') return KVL_OK;
    KVL_TRY(kvl_tok_special_hits(t, form, strlen(form), true, false, &hit, &n, err));
    if (n == 0 || hit[0].begin > 0) *gap = " ";
    free(hit);
    return KVL_OK;
}

/* BOS where the file wants it, then the template up to the user's text. */
static int chat_before(struct kvl_chat_use *u, const struct kvl_tokenizer *t, struct kvl_str system,
                       struct kvl_err *err)
{
    const char *form = system.len ? u->chat->with : u->chat->plain, *gap;
    if (t->add_bos && t->bos >= 0) {
        KVL_TRY(kvl_encode(t, "", 0, KVL_ENCODE_BOS, &u->before, err));
        u->before.n = 1; /* no EOS */
    }
    KVL_TRY(chat_first_gap(t, form, &gap, err));
    KVL_TRY(chat_form(u, form, system, &gap, &u->before, err));
    u->inside->lead_space = *gap != '\0';
    for (int32_t i = 0; i < u->before.n; i++) u->before.begin[i] = 0;
    return KVL_OK;
}

static void chat_add_stops(struct kvl_chat_use *u, const struct kvl_tokenizer *t)
{
    for (size_t i = 0; i < CHAT_MOST_STOPS && u->chat->stop[i]; i++) {
        int32_t id = kvl_tok_find(t, u->chat->stop[i], strlen(u->chat->stop[i]));
        if (id >= 0) u->stop[u->n_stop++] = id;
    }
}

int kvl_chat_open(const struct kvl_chat *chat, const struct kvl_tokenizer *t, const char *system,
                  struct kvl_chat_use *out, struct kvl_err *err)
{
    struct kvl_chat_use u = { .chat = chat, .trims = chat->trims };
    struct kvl_str s = chat_said(chat, system ? system : "", system ? strlen(system) : 0);
    u.inside = kvl_alloc(1, sizeof *u.inside);
    if (!u.inside) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    *u.inside = *t; /* what it points to stays t's */
    u.inside->add_bos = u.inside->add_eos = u.inside->add_space = false;
    int rc = chat_before(&u, t, s, err);
    if (rc != KVL_OK) {
        kvl_chat_close(&u);
        return rc;
    }
    chat_add_stops(&u, t);
    *out = u;
    return KVL_OK;
}

void kvl_chat_close(struct kvl_chat_use *u)
{
    kvl_free(u->inside);
    kvl_tokens_free(&u->before);
    *u = (struct kvl_chat_use){ 0 };
}

int kvl_chat_after(const struct kvl_chat_use *u, const char *answer, size_t len,
                   struct kvl_tokens *out, struct kvl_err *err)
{
    const struct kvl_chat *c = u->chat;
    const struct kvl_str none = { "", 0 }, prefix = chat_prefix(answer, len);
    const char *gap = "";
    KVL_TRY(chat_form(u, c->after, none, &gap, out, err));
    if (prefix.len == 0) return KVL_OK;
    if (c->open)
        KVL_TRY(chat_control(u, "", (struct kvl_str){ c->open, strlen(c->open) }, out, err));
    return chat_part(u, c->gap, prefix, 0, out, err);
}

int kvl_chat_next(const struct kvl_chat_use *u, const char *answer, bool goes_on, const char *user,
                  size_t len, struct kvl_tokens *out, struct kvl_err *err)
{
    const struct kvl_chat *c = u->chat;
    const struct kvl_str none = { "", 0 };
    struct kvl_str said = { answer, strlen(answer) };
    const char *gap = "";
    if (!goes_on) said = chat_prefix(said.s, said.len);
    while (c->trims && said.len && isspace((unsigned char)said.s[said.len - 1])) said.len--;
    if (!goes_on && c->open)
        KVL_TRY(chat_control(u, "", (struct kvl_str){ c->open, strlen(c->open) }, out, err));
    KVL_TRY(chat_part(u, goes_on ? "" : c->gap, said, 0, out, err));
    KVL_TRY(chat_form(u, c->next, none, &gap, out, err));
    return chat_part(u, gap, chat_prefix(user, len), 0, out, err);
}

bool kvl_chat_stops(const struct kvl_chat_use *u, int32_t id)
{
    for (int32_t i = 0; i < u->n_stop; i++)
        if (u->stop[i] == id) return true;
    return false;
}
