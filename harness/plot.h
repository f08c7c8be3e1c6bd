/* plot.h - figures: a table (.dat) and a script (.gp) from results, drawn by gnuplot.
 *
 * A figure is a row of kvl_figures and a file plots/fig_<name>.gp.  Its results become panels and
 * series: one series per policy and panel, one row per point.
 */
#ifndef KVL_PLOT_H
#define KVL_PLOT_H

#include "results.h"

/* What of the results goes into a figure; NULL or 0 = everything. */
struct kvl_plot_filter {
    const char *task, *protocol, *policies; /* policies: names separated by commas */
    const char *budget;
    double length_tok;
    bool strict; /* the strict score instead of the official one */
};

struct kvl_figure {
    const char *name, *title, *help;
    const char *x_label, *y_label;
    const char *columns; /* of the table, for its head */
    bool by_length;      /* x is the length, panels are budgets; else panels are blocks */
    bool percent;        /* y is a share, shown from 0 to 100 */
    double (*x)(const struct kvl_result *r);
    struct kvl_interval (*y)(const struct kvl_result *r, bool strict);
};
extern const struct kvl_figure kvl_figures[];
extern const size_t kvl_n_figures;

/* The table and the variables of the script, as texts.  KVL_EINVAL: more panels than a page takes. */
struct kvl_plot {
    struct kvl_buf table, script;
    size_t n_panels, n_series, n_points, n_failed; /* failed: samples of what is shown */
};
int kvl_plot_build(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, struct kvl_plot *out, struct kvl_err *err);
void kvl_plot_free(struct kvl_plot *p);

#endif
