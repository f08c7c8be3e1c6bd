/* h2o_naive.h - H2O written down once more, naively and in double: scores of every query head, live
 * tokens of every kv head.  It knows weights and positions only; it never sees values, so that
 * agreeing with it means that values do not matter.
 */
#ifndef KVL_TESTS_H2O_NAIVE_H
#define KVL_TESTS_H2O_NAIVE_H

#include "golden/record.h"

enum { MAX_TOK = 64, MAX_HEADS = 4, N_PROMPT = 30 };

/* Weights of one query over the positions that it reads. */
typedef void (*weigh_fn)(int32_t head, int32_t query, const int32_t *pos, int32_t n, double *w);

struct rule {
    const char *options;
    int32_t budget, heavy, recent; /* as they must come out */
    int32_t every;
    double decay;
    enum kvl_reduce reduce;
    bool flexgen, once, per_query;
};

static struct {
    const struct rule *rule;
    int32_t n_heads, group, n_tok;
    double score[MAX_HEADS][MAX_TOK], dropped[MAX_HEADS];
    bool live[MAX_HEADS][MAX_TOK];
} naive;

static inline void naive_open(const struct rule *rule, int32_t n_heads, int32_t group)
{
    memset(&naive, 0, sizeof naive);
    naive.rule = rule;
    naive.n_heads = n_heads;
    naive.group = group;
}

static inline int32_t naive_live(int32_t kv_head, int32_t *pos)
{
    int32_t n = 0;
    for (int32_t i = 0; i < naive.n_tok; i++)
        if (naive.live[kv_head][i]) pos[n++] = i;
    return n;
}

/* The next token, in every query head. */
static inline void naive_query(weigh_fn weigh, double decay)
{
    int32_t pos[MAX_TOK], query = naive.n_tok++;
    double w[MAX_TOK];
    for (int32_t h = 0; h < naive.n_heads; h++) {
        naive.live[h / naive.group][query] = true;
        int32_t n = naive_live(h / naive.group, pos);
        weigh(h, query, pos, n, w);
        for (int32_t i = 0; i < n; i++)
            naive.score[h][pos[i]] = naive.score[h][pos[i]] * decay + w[i];
    }
}

static inline double naive_lane_score(int32_t kv_head, int32_t pos)
{
    const struct rule *r = naive.rule;
    double y = naive.score[kv_head * naive.group][pos];
    for (int32_t g = 1; g < naive.group; g++) {
        double x = naive.score[kv_head * naive.group + g][pos];
        if (r->reduce == KVL_REDUCE_MAX) y = fmax(y, x);
        if (r->reduce == KVL_REDUCE_MEAN) y += x;
    }
    return r->per_query ? y / (naive.n_tok - pos) : y;
}

static inline void naive_drop(int32_t kv_head, int32_t pos)
{
    naive.live[kv_head][pos] = false;
    for (int32_t h = kv_head * naive.group; h < (kv_head + 1) * naive.group; h++) {
        naive.dropped[h] += naive.score[h][pos];
        naive.score[h][pos] = 0;
    }
}

/* Drops the worst of those that are not recent, one by one, down to heavy + recent. */
static inline void naive_cut(int32_t kv_head, int32_t heavy, int32_t recent)
{
    int32_t pos[MAX_TOK], n = naive_live(kv_head, pos);
    while (n > heavy + recent) {
        int32_t worst = 0;
        for (int32_t i = 1; i < n - recent; i++)
            if (naive_lane_score(kv_head, pos[i]) <= naive_lane_score(kv_head, pos[worst]))
                worst = i;
        naive_drop(kv_head, pos[worst]);
        n = naive_live(kv_head, pos);
    }
}

static inline void naive_prompt(weigh_fn weigh, int32_t n)
{
    for (int32_t i = 0; i < n; i++) naive_query(weigh, 1);
    for (int32_t h = 0; h < naive.n_heads / naive.group; h++)
        naive_cut(h, naive.rule->heavy, naive.rule->recent);
}

static inline void naive_step(weigh_fn weigh)
{
    const struct rule *r = naive.rule;
    int32_t pos[MAX_TOK], shift = r->flexgen ? 1 : 0;
    naive_query(weigh, r->decay);
    for (int32_t h = 0; !r->once && h < naive.n_heads / naive.group; h++)
        if (naive_live(h, pos) >= r->heavy + r->recent + r->every)
            naive_cut(h, r->heavy - shift, r->recent + shift);
}

static const struct rule rules[] = {
    { "", 13, 6, 6, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "", 12, 5, 6, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "reduce=max", 13, 6, 6, 1, 1, KVL_REDUCE_MAX, 0, 0, 0 },
    { "reduce=first", 13, 6, 6, 1, 1, KVL_REDUCE_FIRST, 0, 0, 0 },
    { "variant=llama_recipes,heavy=4", 13, 4, 8, 1, 1, KVL_REDUCE_FIRST, 0, 0, 0 },
    { "heavy=0", 9, 0, 8, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "recent=0", 9, 8, 0, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "recent=1", 9, 7, 1, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "heavy=3,recent=2", 0, 3, 2, 1, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "decay=0.5", 13, 6, 6, 1, .5, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "decay=0,reduce=max", 13, 6, 6, 1, 0, KVL_REDUCE_MAX, 0, 0, 0 },
    { "every=4", 16, 6, 6, 4, 1, KVL_REDUCE_MEAN, 0, 0, 0 },
    { "every=3,decay=0.9,reduce=max", 16, 6, 7, 3, .9, KVL_REDUCE_MAX, 0, 0, 0 },
    { "variant=flexgen", 12, 6, 5, 1, 1, KVL_REDUCE_MEAN, 1, 0, 0 },
    { "variant=flexgen", 13, 6, 5, 1, 1, KVL_REDUCE_MEAN, 1, 0, 0 },
    { "variant=prefill_only", 24, 15, 8, 1, 1, KVL_REDUCE_MEAN, 0, 1, 0 },
    { "variant=prefill_only", 9, 4, 4, 1, 1, KVL_REDUCE_MEAN, 0, 1, 0 },
    { "variant=observed_attention", 12, 11, 0, 1, 1, KVL_REDUCE_MEAN, 0, 1, 1 },
};
enum { N_RULES = sizeof rules / sizeof rules[0] };

#endif
