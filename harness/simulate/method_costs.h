/* method_costs.h - what a token costs under a method at any depth, from what the engine counts and times at a few.
 *
 * The engine runs every method on real stores of keys and values at ascending depths.  Between them counts are taken
 * along straight lines; beyond the deepest, what grew goes on as it grew last, and what did not stays.  Time of a part
 * beyond the deepest grows with the part's bytes where these grow.
 *
 * A model that no file holds is a *shape*: the engine runs its layers and its heads' size with one kv head and narrow
 * projections, and what it counts is taken as often as the shape has kv heads.
 */
#ifndef KVL_METHOD_COSTS_H
#define KVL_METHOD_COSTS_H

#include "bench.h"

enum { KVL_COSTS_DEPTHS = 3 };

/* A model as simulations see it. */
struct kvl_sim_shape {
    char name[64];
    int32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim;
    double products;     /* a token takes, beside its attention */
    double token_bytes;  /* of the weights that a token reads */
    double model_bytes;  /* of all */
    double kv_tok_bytes; /* keys and values of a token in all layers, as the store holds them */
    double work_bytes;   /* activations of a prefill's chunk */
    double lanes;        /* as often as it was counted: kv heads of the shape over those that ran */
};

/* "llama8b", "llama70b", "llama405b" or "tiny": the shape, and in `small` what runs in its place.  KVL_EINVAL: no such
 * shape. */
int kvl_sim_shape_find(const char *name, enum kvl_wtype weights, struct kvl_sim_shape *out,
                       struct bench_shape *small, struct kvl_err *err);
/* Of the model of `b`, or, where `out` came from kvl_sim_shape_find, what the store takes for it. */
int kvl_sim_shape_model(const struct bench *b, struct kvl_sim_shape *out, struct kvl_err *err);

struct kvl_method_costs {
    char *word; /* of the policy with its options */
    int32_t budget_tok;
    int32_t n, depth[KVL_COSTS_DEPTHS];
    struct bench_method_cost at[KVL_COSTS_DEPTHS];
    char why[200]; /* n == 0: why it did not run */
};

struct kvl_costs {
    struct kvl_method_costs *method; /* full attention first, for each budget */
    size_t n, cap;
};
/* Runs the methods of b->config (policies, budget_tok) at its depths, as many as KVL_COSTS_DEPTHS, and adds them. */
int kvl_costs_measure(struct bench *b, struct kvl_costs *costs);
const struct kvl_method_costs *kvl_costs_find(const struct kvl_costs *c, const char *word,
                                              int32_t budget_tok);
void kvl_costs_free(struct kvl_costs *c);

/* A token at a depth, as it was counted: lanes of a shape are still to be taken. */
struct bench_method_cost kvl_costs_at(const struct kvl_method_costs *m, double n_tok);
/* How far the line from the depths before the deepest misses what was counted there: the larger of keys and values and
 * index, as a share; 0 with fewer depths. */
double kvl_costs_bend(const struct kvl_method_costs *m);

#endif
