/* fit.h - a context of exactly so many tokens, under any tokenizer.
 *
 * A context is an intro line, then units, then a line end.  Units are the items of a task and filler
 * sentences; one space joins them, or a line end where an item stands on lines of its own:
 *
 *     intro \n sentence sentence item sentence item sentence \n
 *
 * Items go to the gap between sentences that is nearest to the token position they ask for.  The
 * length is met exactly by the choice of the last sentences: token counts of parts are only
 * estimates, so the whole context is tokenised, and what it misses is corrected, a bounded number of
 * times.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_FIT_H
#define KVL_FIT_H

#include "kvl/task.h"
#include "prose.h"
#include "text.h"

/* Room for the end of an answer beyond its own tokens: a full stop, an end mark. */
#define KVL_FIT_END_TOK 2
/* White space that a strict scorer skips. */
#define KVL_FIT_BLANK " \t\n\v\f\r"

struct kvl_fit_item {
    const char *text; /* borrowed */
    size_t len;
    int32_t
        n_tok;    /* its tokens with what joins it, as estimated by the caller; 0 = to be counted */
    bool line;    /* stands on lines of its own */
    int64_t at;   /* wanted position of its begin, in tokens from the start of the context */
    size_t begin; /* out: its first byte in the context */
};

struct kvl_fit {
    const struct kvl_tokenizer *tokenizer;
    int32_t length_tok;          /* BOS and the last line end included */
    uint64_t seed;               /* of the filler */
    const struct kvl_text *text; /* its language */
    const char *prose;           /* "" or a text file that it is taken from instead */
    const char *intro;           /* without a line end */
    bool whole; /* filler is whole sentences; otherwise the last one may be cut if needed */
    struct kvl_fit_item *item;
    int32_t n_items;
};

/* Fills the context and its tokens, and makes room for the questions.  KVL_EINVAL when the items do
 * not fit, or when no filler was found that closes the length exactly; then `out` is as it was. */
KVL_API int kvl_fit_sample(const struct kvl_fit *fit, int32_t n_questions, struct kvl_sample *out,
                           struct kvl_err *err);

/* What every task asks of a request: a length, a depth of at most 1, at least one question. */
KVL_API int kvl_fit_check(const struct kvl_task_request *req, struct kvl_err *err);

/* The token position that the depth of a request stands for (depth >= 0).  An integer, so that what
 * follows does not depend on how a compiler rounds. */
KVL_API int64_t kvl_fit_position(const struct kvl_task_request *req);

/* Tokens of a text that continues another one. */
KVL_API int kvl_fit_count(const struct kvl_tokenizer *t, const char *text, size_t len, int32_t *n,
                          struct kvl_err *err);

/* Where the first span of the first evidence begins, in tokens / length. */
KVL_API double kvl_fit_depth(const struct kvl_tokens *context, const struct kvl_question *q);

/* One random number of each of n equal parts of 0..m-1, ascending; n <= m. */
KVL_API void kvl_fit_strata(struct kvl_rng *rng, int32_t m, int32_t *out, int32_t n);

#endif
