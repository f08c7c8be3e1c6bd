/* record_text.h - records of texts: nll (one text under one policy), perplexity (a cell of them).
 *
 * Builders return a new reference, or NULL when memory is short.
 */
#ifndef KVL_RECORD_TEXT_H
#define KVL_RECORD_TEXT_H

#include "record.h"

/* One text read under one policy; pointers are borrowed. */
struct kvl_text_result {
    const struct kvl_cell *cell;
    int32_t context;
    uint64_t seed;
    int32_t text_tok;  /* of the text, BOS included */
    int32_t first_tok; /* position of the first token that was predicted under the policy */
    int32_t n_tok;     /* predicted tokens */
    const double *nll; /* [n_tok], nats */
    /* [n_tok]: KL of full attention's next token to the policy's, nats, and whether the best one is the same; NULL: not
     * known */
    const double *kl;
    const uint8_t *same;
    const char *error;           /* NULL: none.  Otherwise nothing below was observed */
    struct kvl_outcome observed; /* attended tokens, bytes and times of it */
};

json_t *kvl_record_nll(const char *run, const struct kvl_text_result *t);
/* `texts` [contexts]: the cell's nll records, complete. */
json_t *kvl_record_perplexity(const char *run, const struct kvl_cell *c, const json_t *texts);

/* The token counts at which running means are recorded: 1, 2, 3, 4, 6, 8, 12 ..., and n itself.
 * The mark behind `mark` (0 = before the first); 0 when that was n. */
int32_t kvl_curve_mark(int32_t mark, int32_t n);

#endif
