/* bench_goals.h - what the developers' bench adds to the parts of `kvlab bench`: goals and their table, forecasts, other
 * programs' figures, a million tokens.
 */
#ifndef KVL_BENCH_GOALS_H
#define KVL_BENCH_GOALS_H

#include "bench.h"

#include <jansson.h>

struct bench_goals {
    struct bench bench;   /* first */
    json_t *from, *peers; /* lines that were read, and hold the strings of results */
};

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

/* bench_from.c: results of an earlier run, from its JSON lines, as if this one had measured them; threads and rounds of
 * the configuration grow by theirs.  KVL_EINVAL: no such lines, or of another machine, build, model, page type or
 * budget than those read before. */
int bench_from(struct bench_goals *g, const char *path);
/* bench_peers.c: lines of tests/bench/torch_attention.py and bench_cuda_attn, beside ours on a GPU. */
int bench_peers_read(struct bench_goals *g, const char *path);
/* bench_peer.c: llama-bench by turns with ours; bench_million.c; bench_gpu_host.c. */
int bench_peer(struct bench *b, const char *path);
int bench_million(struct bench *b, const char *path);
int bench_gpu_host(struct bench *b, int32_t n_tok);

/* bench_report.c: the table of goals, from the lines of this run, as Markdown; path NULL: to standard output. */
int bench_report(const struct bench *b, const char *path);
/* bench_figures.c: what that table stands on.  Threads are those of the configuration. */
void bench_figures(const struct bench *b, FILE *out);

#endif
