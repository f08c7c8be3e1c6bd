/* kvl/chat.h - chat templates: what an instruct model was trained to see around a question.
 *
 * A model's file says how in Jinja, and that text is run (core/jinja).  For models without one there are templates
 * of the known families by name.
 *
 * What a template writes and what a conversation says are told apart byte by byte: where the template spells a
 * control token it is that token, where the user, the system text or an answer does it is text.  Everything else is
 * tokenised together, as the model's own tokenizer does.
 *
 * Thread-safe: yes, once opened.
 */
#ifndef KVL_CHAT_H
#define KVL_CHAT_H

#include "kvl/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_chat;

/* Names of the templates that come with kvlab; NULL behind the last. */
const char *kvl_chat_at(size_t i);

struct kvl_chat_turn {
    const char *role; /* "system", "user", "assistant" */
    const char *text;
    size_t len;
};

/* Who wrote a byte of a prompt. */
enum kvl_chat_mark {
    KVL_CHAT_TEMPLATE = 0,
    KVL_CHAT_SYSTEM,
    KVL_CHAT_FIRST, /* the first turn of the user */
    KVL_CHAT_TURN,
    KVL_CHAT_LAST, /* the answer that the prompt ends with */
};

/* { 0 } is an empty one; free with kvl_chat_text_free. */
struct kvl_chat_text {
    struct kvl_buf text, mark; /* as long as one another */
};
void kvl_chat_text_free(struct kvl_chat_text *x);

/* The template of a name, or that of the tokenizer's file where `name` is NULL; its name is then "own-" and a hash of
 * its text.  `t` must outlive it.  KVL_EINVAL: it cannot be run, or does not show what the user says as it is. */
int kvl_chat_open(const struct kvl_tokenizer *t, const char *name, struct kvl_chat **out,
                  struct kvl_err *err);
/* The same with its text given. */
int kvl_chat_of(const struct kvl_tokenizer *t, const char *text, const char *name,
                struct kvl_chat **out, struct kvl_err *err);
void kvl_chat_close(struct kvl_chat *c);
const char *kvl_chat_name(const struct kvl_chat *c);
/* Whether it drops white space before and behind what the user says. */
void kvl_chat_trims(const struct kvl_chat *c, bool *left, bool *right);

/* The prompt of n turns.  Behind a turn of the user the model is to begin its answer; an answer as the last turn is
 * to be gone on with. */
int kvl_chat_render(const struct kvl_chat *c, const struct kvl_chat_turn *turn, size_t n,
                    struct kvl_chat_text *out, struct kvl_err *err);

/* Appends the begin of an answer to a prompt in which the model is to begin one. */
int kvl_chat_say(struct kvl_chat_text *x, const char *text, size_t len, struct kvl_err *err);

/* Appends the tokens of a prompt from byte `from` on; at 0 BOS comes first where the file asks for it and the template
 * has not written it. */
int kvl_chat_encode(const struct kvl_chat *c, const struct kvl_chat_text *x, size_t from,
                    struct kvl_tokens *out, struct kvl_err *err);

/* A prompt up to where the first turn of the user is said, for texts that are tokenised before it is known what
 * follows them. */
struct kvl_chat_begin {
    struct kvl_tokens before; /* BOS included; each begins at 0 */
    /* Tokenises text that stands there (KVL_ENCODE_BOS adds nothing), with what the template has between the last
     * token of `before` and it, or text that goes on (KVL_ENCODE_CONTINUE). */
    struct kvl_tokenizer *inside;
    struct kvl_buf text; /* all that stands before it */
    int32_t n_tok;       /* tokens of it, by itself */
    char *lead;
};
int kvl_chat_begin(const struct kvl_chat *c, const char *system, struct kvl_chat_begin *out,
                   struct kvl_err *err);
void kvl_chat_begin_free(struct kvl_chat_begin *b);

/* Whether a token ends an answer: what stands behind an answer in the template, beside what the file says. */
bool kvl_chat_stops(const struct kvl_chat *c, int32_t id);

/* White space as a template's strip takes it: bytes of it that s begins with; bytes of s without what it ends
 * with. */
size_t kvl_chat_blanks(const char *s, size_t len);
size_t kvl_chat_trimmed(const char *s, size_t len);

#ifdef __cplusplus
}
#endif

#endif
