/* published.h - a table or figure of a paper: its numbers, the settings they were measured with, and how kvlab
 * measures the same.  One file each in harness/reproduce/, `<paper>.<figure>.yaml`:
 *
 *   paper: "Tang et al., Quest, ICML 2024"
 *   where: Table 1, 10K tokens
 *   title: passkey against budget
 *   source: stated                 # stated | picture (read off one) | secondary (told by another text)
 *   measure: accuracy              # see kvl_measures
 *   x: budget                      # budget | share (budget in % of the context) | length
 *   setup: {model: LongChat-7B-v1.5-32K, length: 10000 tokens, ...}   # the paper's, as texts
 *   data: "a folder of LongBench"  # what --data must name; absent: nothing
 *   series:                        # y stands at x, one by one; ~ = not published
 *     - {name: Quest, policy: quest, x: [32, 64], y: [65, 99]}
 *       # also: options (as they were given), task, protocol, budget (where x is the length): which cells
 *       # count, where not all do; small_budget in place of budget on the small scale
 *   expect: "One sentence on the shape."
 *   sweep: |                       # a sweep (or analysis) of the paper's settings; {data} is --data
 *   small: |                       # the same on a small model; minutes on two cores.  A real model (--scale real) gets other
 *                                  # tasks where several stand for a benchmark, and real text for perplexity
 *   small_x: [8, 16]               # what stands there for the paper's x; absent: the same
 *   figures: [top10_budget]        # figures of `kvlab plot` beside the chart
 *   analysis: true                 # the texts are for kvlab analyze
 *   note: "What the small run shows, or why a number is missing."
 *
 * Everything is checked when it is read: KVL_EINVAL with file, line and key.
 */
#ifndef KVL_PUBLISHED_H
#define KVL_PUBLISHED_H

#include "results.h"
#include "yamldoc.h"

#include <stdio.h>

enum { KVL_PUBLISHED_X = 16, KVL_PUBLISHED_SERIES = 16, KVL_PUBLISHED_SETUP = 24 };

enum kvl_scale { KVL_SCALE_PAPER, KVL_SCALE_SMALL, KVL_SCALE_REAL, KVL_N_SCALES };
extern const char *const kvl_scale_names[KVL_N_SCALES]; /* "paper", ... */

enum kvl_published_x { KVL_X_BUDGET, KVL_X_SHARE, KVL_X_LENGTH };

struct kvl_measure {
    const char *name, *label; /* label: with its unit, for axes */
    /* NaN: not measured.  `full`: the dense result of the same block, or NULL. */
    struct kvl_interval (*of)(const struct kvl_result *r, const struct kvl_result *full);
    bool pools; /* accuracies: several cells are one proportion, not a mean */
    int decimals;
};
extern const struct kvl_measure kvl_measures[];
extern const size_t kvl_n_measures;

struct kvl_published_series {
    const char *name, *policy, *options, *task, *protocol, *budget, *small_budget; /* NULL: any */
    size_t n;
    double x[KVL_PUBLISHED_X], y[KVL_PUBLISHED_X]; /* y NaN: not published */
};

struct kvl_published {
    char id[64]; /* "quest.table1" */
    const char *paper, *where, *title, *source, *data, *expect, *note, *sweep, *small;
    const struct kvl_measure *measure;
    enum kvl_published_x x;
    bool analysis;
    struct {
        const char *name, *text;
    } setup[KVL_PUBLISHED_SETUP];
    size_t n_setup;
    struct kvl_published_series series[KVL_PUBLISHED_SERIES];
    size_t n_series;
    double small_x[KVL_PUBLISHED_X];
    size_t n_small_x;
    const char *figure[8];
    size_t n_figures;
    struct kvl_buf text;
    struct kvl_yaml yaml; /* owns the strings */
};

/* The recipes of `folder`, sorted by id; freed by kvl_published_free. */
int kvl_published_load(const char *folder, struct kvl_published **out, size_t *n,
                       struct kvl_err *err);
void kvl_published_free(struct kvl_published *p, size_t n);

/* Whether the recipe wants --data at that scale. */
bool kvl_published_wants_data(const struct kvl_published *p, enum kvl_scale scale);
/* Writes the sweep or analysis of that scale; data NULL: {data} stays as it stands. */
void kvl_published_write(const struct kvl_published *p, enum kvl_scale scale, const char *data,
                         FILE *out);

/* The x of our run that stands for the i-th of a series. */
double kvl_published_our_x(const struct kvl_published *p, const struct kvl_published_series *s,
                           size_t i, bool small);
/* What the results say at point i of a series; NaN: nothing.  A mean over the cells that match, accuracies
 * pooled with their interval; other intervals are told where one cell matches. */
struct kvl_interval kvl_published_ours(const struct kvl_published *p,
                                       const struct kvl_published_series *s, size_t i, bool small,
                                       const struct kvl_results *r);

#endif
