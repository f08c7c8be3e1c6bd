/* bank.h - lists of tokens that filter layers choose for the layers after them (OmniKV): scores of the context by
 * the weights of the last queries, and the context bank, from which the lists are loaded.
 *
 * What a load costs is counted, packed loads of whole lists.  With `offload` it is carried out, for a policy whose
 * context lies in the host tier: what the list before had not comes for all layers that read the list as one gather,
 * while the layers in between compute.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_BANK_H
#define KVL_BANK_H

#include "filter_roles.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which queries score a token t of the context, by the largest over the query heads of what they give it.  Lies in the
 * policy's options. */
struct kvl_bank_scores {
    bool logits; /* of the current query, without a window; else weights among the candidates */
    /* > 0: weights of the last so many, the current one too, added up; tokens of the context that are still among these
     * are no candidates.  0: the current one alone. */
    int32_t window;
    bool halve; /* a query weighs half of what the one after it does */
    /* From plan, tables.  A row of `rows` is a token of the context: the step of the last list that had it, then what
     * the window's queries gave.  `heads`: the weights of these, [window][n_heads][context_tok]. */
    int32_t rows, heads;
};
/* In plan.  layers [n_layers]: non-zero for those that may choose.  KVL_EPOLICY: there are no such scores. */
int kvl_plan_bank_scores(struct kvl_plan *plan, struct kvl_bank_scores *s, const uint8_t *layers);
/* In prefilled, of a layer that chooses: the last queries of the context. */
int kvl_bank_window(const struct kvl_pctx *ctx, const struct kvl_bank_scores *s, int32_t layer);
/* Tokens of the context that are no candidates at position `pos`, its last. */
int32_t kvl_bank_in_window(const struct kvl_pctx *ctx, const struct kvl_bank_scores *s,
                           int32_t pos);

/* Lies in the policy's state; zeroed: no list was loaded. */
struct kvl_bank {
    int64_t n_filtered, n_loads; /* lists that came, and that were loaded */
    int64_t n_listed, n_hits;    /* tokens of these; those that the list before had */
    double loaded_bytes;
    struct {
        int32_t tag, n; /* step + 1 and length of the list at hand, 0 = none */
    } list[KVL_FILTER_MAX_LAYERS];
};

/* A list in the making, of filter layer step->layer. */
struct kvl_bank_list {
    const struct kvl_step *step;
    const struct kvl_filter_role *role;
    const struct kvl_bank_scores *scores;
    float *row;       /* of token t of the context: row + t * (1 + window), from kvl_bank_open */
    float *score;     /* [context_tok], in scratch, likewise; who looks at it calls kvl_look_at */
    int32_t *item, n; /* in, out: tokens of the context, ascending */
    double
        overlap; /* the list at hand stays where more than this share of the union of both is in both; 1: never */
    bool offload;
};
/* In observe: rows of the table, counted as read where a window is, and room for scores. */
int kvl_bank_open(const struct kvl_pctx *ctx, struct kvl_bank_list *list);
/* Then: list->score by the weights that observe got.  With logits it is exp of the largest logit, but for a factor that
 * all tokens share: tokens far below the log-sum-exp of their head (103 by the definition, 87 on the CPU) get 0. */
int kvl_bank_score(const struct kvl_pctx *ctx, const struct kvl_bank_list *list,
                   const float *const *probs, const float *lse);
/* In observe: takes the list, or puts the best of the list at hand, no more than list->n, in its place. */
int kvl_bank_take(const struct kvl_pctx *ctx, struct kvl_bank *bank, struct kvl_bank_list *list);
/* bank_calls_per_tok, bank_bytes_per_tok, bank_skipped_share and bank_hit_share of n_steps steps, 1 or more. */
int kvl_bank_report(struct kvl_report *r, const struct kvl_bank *bank, int64_t n_steps);

#ifdef __cplusplus
}
#endif

#endif
