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
extern const char bench_gpu_bits[]; /* what is bit for bit the CPU's */

/* bench_forecast.c: what a goal should come to on a GPU of this name, by arithmetic; on an H100, where nothing is known
 * of it.  NaN: no such goal. */
double bench_forecast(const char *key, const char *device);
/* All goals on the GPUs that it knows, as Markdown. */
void bench_forecast_table(FILE *out);

#endif
