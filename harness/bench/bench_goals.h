/* bench_goals.h - goals of a bench run: rows of the table that `kvlab bench --report` writes. */
#ifndef KVL_BENCH_GOALS_H
#define KVL_BENCH_GOALS_H

#include "bench.h"

enum { BENCH_ANY_DEPTH = INT32_MAX };

struct bench_goal {
    const char *key, *title, *least, *aim; /* texts of the table */
    const char *what, *policies;           /* lines: policies "a,b", NULL = without one */
    int32_t depth_min, depth_max;          /* of the lines; -1, -1 = those without a depth */
    bool at_least, of_value;               /* higher is better; `value` instead of `ratio` */
    double bound[2], best[2];              /* one core, several; best 0 = no aim */
};

/* Of --device cuda, and what runs there. */
extern const struct bench_goal bench_gpu_goals[];
extern const size_t bench_n_gpu_goals;
extern const char bench_gpu_how[];

#endif
