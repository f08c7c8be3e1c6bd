/* kvl/chat.h - chat templates: what an instruct model was trained to see around a question.
 *
 * A template is known by the name of its family.  Which one a file has is read from the text of its
 * Jinja template, of which no more is run: kvl_chat_recognise looks for what only that family has.
 *
 * A prompt is tokenised in parts.  What stands before and behind the user's text is the template's:
 * there, text that spells a control token is that token.  The user's text, the system text and the
 * answer prefix are text, whatever they spell.  Where the template has a space before such a text, the
 * space is tokenised with it, as the model saw it.
 *
 *     before: BOS, system turn, begin of the user's turn | user's text | after: end of that turn,
 *     begin of the answer | answer prefix | answer | next: end of it, begin of the user's turn | ...
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

/* NULL: there is none of that name. */
const struct kvl_chat *kvl_chat_find(const char *name);
/* The family of the template text of a file; NULL: of none that is known here. */
const struct kvl_chat *kvl_chat_recognise(const char *text);
const char *kvl_chat_name(const struct kvl_chat *chat);
/* All of them, in the order in which they are looked for; NULL behind the last. */
const struct kvl_chat *kvl_chat_at(size_t i);

/* The prompt as text, with `eos` where the template has that token; system NULL: none.  Appended. */
int kvl_chat_render(const struct kvl_chat *chat, const char *eos, const char *system,
                    const char *user, const char *answer, struct kvl_buf *out);

enum { KVL_CHAT_STOPS = 8 };

/* A template for one tokenizer and one system text. */
struct kvl_chat_use {
    const struct kvl_chat *chat;
    /* Tokenises text of the user: from its begin (KVL_ENCODE_BOS adds nothing), or going on
     * (KVL_ENCODE_CONTINUE). */
    struct kvl_tokenizer *inside;
    struct kvl_tokens before;     /* BOS included; they begin where the user's text does */
    int32_t stop[KVL_CHAT_STOPS]; /* [n_stop] end an answer, beside what the file says */
    int32_t n_stop;
    bool trims; /* the template drops white space around what is said */
};

/* `t` must outlive the result; system NULL or "": none. */
int kvl_chat_open(const struct kvl_chat *chat, const struct kvl_tokenizer *t, const char *system,
                  struct kvl_chat_use *out, struct kvl_err *err);
void kvl_chat_close(struct kvl_chat_use *u);
/* Appends what stands behind the user's text, and an answer prefix [len]; its leading white space is
 * the template's to choose. */
int kvl_chat_after(const struct kvl_chat_use *u, const char *answer, size_t len,
                   struct kvl_tokens *out, struct kvl_err *err);
/* Appends what stands behind a prompt whose answer is given: `answer`, its end, and the next turn of the user
 * with `user` [len] less white space before it, which parts texts that stand in no turns.  `goes_on`: the answer
 * follows a prefix that the prompt has already.  kvl_chat_after comes next. */
int kvl_chat_next(const struct kvl_chat_use *u, const char *answer, bool goes_on, const char *user,
                  size_t len, struct kvl_tokens *out, struct kvl_err *err);
bool kvl_chat_stops(const struct kvl_chat_use *u, int32_t id);

#ifdef __cplusplus
}
#endif

#endif
