/* plot_layout.h - which results a figure shows, and in which panel. */
#ifndef KVL_PLOT_LAYOUT_H
#define KVL_PLOT_LAYOUT_H

#include "plot.h"

enum { KVL_PLOT_MAX_PANELS = 24 };

/* Results in the order of the figure; panel p shows x[begin[p] .. begin[p + 1]), the points of one
 * policy next to each other.  A result may be in several panels. */
struct kvl_plot_layout {
    const struct kvl_result **x;
    size_t n, cap;
    size_t begin[KVL_PLOT_MAX_PANELS + 1];
    size_t n_panels;
    size_t n_columns; /* of the panels, in their order */
    size_t n_models;
};

/* Panels of blocks as a table: a row per task, a column per protocol and length.  Where that is too wide, a row per task
 * and protocol. */
struct kvl_plot_grid {
    size_t n_columns, n;               /* n_columns x rows */
    size_t panel[KVL_PLOT_MAX_PANELS]; /* [n], row by row: 1 + the panel; 0: there is none */
};
/* n 0: what is there does not fit a grid of so many panels. */
void kvl_plot_grid(const struct kvl_plot_layout *l, struct kvl_plot_grid *out);

/* KVL_EINVAL when there are too many panels; message: how to choose. */
int kvl_plot_layout(const struct kvl_results *r, const struct kvl_figure *figure,
                    const struct kvl_plot_filter *filter, struct kvl_plot_layout *out,
                    struct kvl_err *err);
/* Only what the filter wants, in the order of a table; no panels. */
int kvl_plot_shown(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, struct kvl_plot_layout *out,
                   struct kvl_err *err);
/* What intervals are, how many questions, what failed, into the subtitle. */
void kvl_plot_subtitle(const struct kvl_plot_layout *l, const struct kvl_results *r, bool speed,
                       const char *bars, struct kvl_chart *c);
int kvl_plot_too_many(const struct kvl_figure *figure, struct kvl_err *err);
/* Whether `name` is one of the names in a list separated by commas. */
bool kvl_plot_in_list(const char *list, const char *name);
void kvl_plot_layout_free(struct kvl_plot_layout *l);

/* The processor that a speed was measured on, or the GPU; the host where no run says so. */
const char *kvl_plot_machine(const struct kvl_results *r, const char *host);

#endif
