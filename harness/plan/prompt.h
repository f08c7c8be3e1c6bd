/* prompt.h - what stands around a context and its question: the chat template of a model, or nothing.
 *
 * The prompt is in two parts, as a sweep runs it: the context, with what the template has before it, and
 * the question, with what the template has behind it and the answer prefix.  A context has as many tokens
 * as it was asked for, the template's included.
 *
 * Thread-safe: yes, once opened.
 */
#ifndef KVL_PROMPT_H
#define KVL_PROMPT_H

#include "kvl/chat.h"
#include "kvl/model.h"
#include "kvl/task.h"

struct kvl_prompt {
    const struct kvl_tokenizer *tokenizer; /* of the model */
    const char *name;                      /* of the template; "none" */
    struct kvl_chat *chat;                 /* NULL: none */
    struct kvl_chat_begin begin;
    char *system; /* NULL: none is given, and the template may have its own */
};

/* `chat`: "auto" (that of the file, none where it has none), "none" or a name; system NULL: none, "": an empty one.
 * KVL_EINVAL: the template of the file cannot be run. */
int kvl_prompt_open(const struct kvl_model *model, const char *chat, const char *system,
                    struct kvl_prompt *out, struct kvl_err *err);
void kvl_prompt_close(struct kvl_prompt *p);
/* "chatml, llama-3, ...": what `chat` may be beside auto and none. */
int kvl_prompt_names(struct kvl_buf *out);

/* What a task is to make contexts with, and of how many tokens for one of `length_tok`. */
const struct kvl_tokenizer *kvl_prompt_inside(const struct kvl_prompt *p);
int32_t kvl_prompt_room(const struct kvl_prompt *p, int32_t length_tok);
/* Tokens of the template before a context and behind a question; *length_tok becomes what is left of it for the
 * context. */
int kvl_prompt_counts(const struct kvl_prompt *p, int32_t *length_tok, int32_t *before,
                      int32_t *after, struct kvl_err *err);
/* Tokens of a context that the template takes. */
int32_t kvl_prompt_takes(const struct kvl_prompt *p);
/* Puts the template before a context that was made so; its evidence stays where it is in the text. */
int kvl_prompt_context(const struct kvl_prompt *p, struct kvl_sample *s, struct kvl_err *err);
/* Tokens of what follows the context where question i is asked, appended. */
int kvl_prompt_question(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                        struct kvl_tokens *out, struct kvl_err *err);
/* Tokens of what follows the prompt of question i, asked behind those before it, where its right answer and
 * the next question come next, appended: in a chat template the answer ends its turn, and the next question is
 * another turn of the user.  KVL_EINVAL: the template then writes earlier turns otherwise. */
int kvl_prompt_turn(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i,
                    struct kvl_tokens *out, struct kvl_err *err);
/* The most tokens that follow the context: a question and its answer, or all of them as `turns`.  `counted`: the
 * context's length is the most that it and a question may have, less the template. */
int kvl_prompt_tail(const struct kvl_prompt *p, const struct kvl_sample *s, bool counted,
                    bool turns, int32_t *out, struct kvl_err *err);
/* Whether context and question, tokenised as one text, have the same tokens. */
int kvl_prompt_joint(const struct kvl_prompt *p, const struct kvl_sample *s, int32_t i, bool *out,
                     struct kvl_err *err);
/* Tokens of a prompt of one text, which is what the user says. */
int kvl_prompt_whole(const struct kvl_prompt *p, const char *text, struct kvl_tokens *out,
                     struct kvl_err *err);
/* Whether a token ends an answer. */
bool kvl_prompt_ends(const struct kvl_prompt *p, int32_t id);
/* What of a cell's key is the prompt's: nothing where there is no template. */
int kvl_prompt_key(const struct kvl_prompt *p, struct kvl_buf *out);
/* Hash of the tokens of a prompt. */
uint64_t kvl_prompt_hash(const struct kvl_tokens *context, const struct kvl_tokens *question);

#endif
