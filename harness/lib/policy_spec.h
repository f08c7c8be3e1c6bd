/* policy_spec.h - "quest:budget=256,page=16": a policy, its options and a budget in one word.
 *
 * A policy that wraps another one names it: "adakv(snapkv)"; options of the inner one stand inside the
 * parentheses, "adakv(snapkv:window=16):floor_alpha=0.2", or behind them with its name,
 * "adakv(snapkv):snapkv.window=16,floor_alpha=0.2".  Without parentheses it wraps its usual one. */
#ifndef KVL_POLICY_SPEC_H
#define KVL_POLICY_SPEC_H

#include "registry.h"

struct kvl_policy_spec {
    const struct kvl_policy *policy;
    struct kvl_buf options; /* "a=1,b=2" as given, without the budget */
    struct kvl_buf budget;  /* as given; data NULL = none */
    bool own;               /* prefill=own */
};

/* Characters of the first word of a comma list of policies or tasks with options, "quest:page=16,top=2,snapkv".
 * A piece "name=value" belongs to the word before it, any other begins the next word: names have no "=", and
 * values no comma. */
size_t kvl_list_word(const char *text);

/* Characters of `text` up to the first of `stop` that stands outside parentheses. */
size_t kvl_outside(const char *text, const char *stop);

/* A policy and its options in one text, those of an inner one with its name before them: "snapkv.window=16,
 * floor_alpha=0.2".  Checks the names alone.  KVL_EINVAL. */
int kvl_policy_word_parse(const struct kvl_registry *r, const char *text,
                          const struct kvl_policy **policy, struct kvl_buf *options,
                          struct kvl_err *err);

/* Finds the policy, takes budget and prefill out of the options and checks the rest against the
 * policy's table.  KVL_EINVAL. */
int kvl_policy_spec_parse(const struct kvl_registry *r, const char *text,
                          struct kvl_policy_spec *out, struct kvl_err *err);
void kvl_policy_spec_free(struct kvl_policy_spec *s);

/* Takes `name` out of the options "a=1,b=2": `value` is what it was given (data NULL = nothing),
 * `rest` the others.  KVL_EINVAL: it stands twice. */
int kvl_options_take(const char *options, const char *name, struct kvl_buf *rest,
                     struct kvl_buf *value, struct kvl_err *err);

/* "own" or "shared".  NULL: shared, but own for a policy that is a way to prefill
 * (KVL_PREFILL_OWN), of which shared is refused.  policy NULL: any other. */
int kvl_prefill_parse(const struct kvl_policy *policy, const char *text, bool *own,
                      struct kvl_err *err);

/* Tokens per lane of a budget text: "256", or "25%" of `context_tok`, rounded down, at least 1. */
int kvl_budget_parse(const char *text, int32_t context_tok, int32_t *out, struct kvl_err *err);

/* Whether a policy has no use for a budget: a bound, or what only moves positions; neither evicts nor
 * selects. */
bool kvl_policy_ignores_budget(const struct kvl_policy *policy);

/* Options "a=1,b=2" set one by one over the defaults; the explicit ones in table order, as the
 * canonical text.  KVL_EINVAL names what is wrong. */
int kvl_options_canonical(const struct kvl_opt *table, size_t opts_size, const char *options,
                          struct kvl_buf *out, struct kvl_err *err);

#endif
