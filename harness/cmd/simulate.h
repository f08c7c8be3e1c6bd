/* simulate.h - what the parts of `kvlab simulate` share. */
#ifndef KVL_SIMULATE_H
#define KVL_SIMULATE_H

#include "args.h"
#include "token_time.h"
#include "yamldoc.h"

enum {
    SIM_LENGTHS = 16,
    SIM_PROFILES = 16,
    SIM_ROUNDS = 3,
    SIM_BUDGET = 2048,
    SIM_DEPTH = 8192,  /* the deepest that is measured, or four budgets */
    SIM_OWN_TOK = 2048 /* of a shape, contexts that a method reads itself: its layers may be many */
};

struct kvl_simulate {
    struct kvl_args base;
    struct bench bench;
    const char *sweep, *shape_name, *profiles;
    struct kvl_profile profile[SIM_PROFILES];
    size_t n_profiles;
    int32_t length[SIM_LENGTHS];
    size_t n_lengths;
    struct kvl_split split;
    struct bench_shape small; /* that runs in place of a shape */
    struct kvl_sim sim;
    struct kvl_costs costs;
};

/* Where to measure for lengths from `least` to `most`: them, or what lies below. */
struct bench_list kvl_simulate_depths(int32_t budget_tok, int32_t least, int32_t most);
/* This machine, with the threads that methods are measured with: its stream, its float operations, how near to them a
 * prefill of the model comes. */
int kvl_here_measure(struct bench *b, struct kvl_sim *sim);
/* The table of a token under every method, on every profile at every length. */
int kvl_simulate_methods(struct kvl_simulate *a);
/* A whole sweep; `open` opens the model that it names, `here` measures this machine. */
int kvl_simulate_sweep(struct kvl_simulate *a, int (*open)(struct kvl_simulate *a),
                       int (*here)(struct kvl_simulate *a));

#endif
