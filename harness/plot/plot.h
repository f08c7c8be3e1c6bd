/* plot.h - figures: a table (.dat) and a script (.gp) from results, drawn by gnuplot.
 *
 * A figure is a row of kvl_figures and a file plots/fig_<name>.gp.  Its `build` fills a chart: panels
 * of series of points; the chart becomes the table, and the variables that the script sets before it
 * loads fig_<name>.gp.
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

/* ---- charts ---------------------------------------------------------------------------------- */

/* A row of the table.  lo and hi: interval of a line, ends of a piece of a bar. */
struct kvl_chart_point {
    double x, y, lo, hi;
    double budget_tok, n, n_errors; /* 0 where there are none */
};

enum { KVL_CHART_LABEL = 128 };

struct kvl_chart {
    struct kvl_buf table;                                    /* text */
    struct kvl_buf panel_title, panel_note;                  /* arrays of the script */
    struct kvl_buf series_name, series_panel, series_points; /* likewise */
    struct kvl_buf x_tick, y_tick; /* names of the categories at 1, 2 ...; may be empty */
    struct kvl_buf legend;         /* struct kvl_chart_entry */
    size_t tail;                   /* letters that the script puts behind its names */
    struct kvl_buf subtitle;       /* text */
    struct kvl_buf foot;           /* text below the panels; may be empty */
    size_t n_panels, n_series, n_points, n_x_ticks, n_y_ticks;
    size_t title_lines; /* of the longest panel title */
    size_t n_failed;    /* samples of what is shown that have no score */
    size_t n_columns;   /* of the grid of panels; 0 = as square as can be; asked for, first */
    size_t panel_w, panel_h, left,
        gap_x;           /* pixels; 0 = the usual ones; panel_w and gap_x before panels */
    size_t title_letter; /* likewise, of panel titles */
    size_t names_h;      /* pixels, of upright names below each panel */
    bool legend_below;   /* below the panels, else beside them */
    size_t panel_points, serie_points; /* of the panel and series being made */
    char label[KVL_CHART_LABEL];       /* of that series */
    int rank;
    double x_min, x_max, y_min, y_max; /* of all finite points; NaN when there are none */
    double y_low;                      /* the least above zero, for logarithmic axes */
    bool has_star;                     /* a label has one: the subtitle says what it means */
    const char *lack; /* why the last panel has no value, static; NULL: not known */
    bool no_memory;
};

/* A panel; its series follow.  The note stands in a panel that has no point. */
void kvl_chart_panel(struct kvl_chart *c, const char *title);
void kvl_chart_panel_end(struct kvl_chart *c, const char *note);
/* A place in the grid of panels that stays empty. */
void kvl_chart_blank(struct kvl_chart *c);
/* A series; its points follow.  rank orders the legend, then the label does. */
void kvl_chart_series(struct kvl_chart *c, const char *label, int rank);
void kvl_chart_series_end(struct kvl_chart *c);
/* Points whose x or y is not finite are left out; returns whether it was taken. */
bool kvl_chart_point(struct kvl_chart *c, const struct kvl_chart_point *p);
/* The next category of the axis. */
void kvl_chart_x_tick(struct kvl_chart *c, const char *name);
void kvl_chart_y_tick(struct kvl_chart *c, const char *name);

/* ---- figures --------------------------------------------------------------------------------- */

enum kvl_axis {
    KVL_AXIS_LOG,     /* logarithmic, with room at both ends */
    KVL_AXIS_ZERO,    /* from zero */
    KVL_AXIS_PERCENT, /* a share, 0 to 100 */
    KVL_AXIS_LINEAR,  /* from the least to the largest */
};

struct kvl_figure {
    const char *name, *title, *help;
    const char *x_label, *y_label;
    const char *columns; /* of the table, for its head */
    const char *note;    /* below the title: what points and bars are */
    enum kvl_axis x_axis, y_axis;
    size_t tail;    /* per panel, letters that the script puts behind names in the legend */
    bool bar;       /* a colour bar stands where others have a legend */
    bool texts;     /* of texts; else of questions */
    bool by_length; /* x is the length, panels are budgets; else panels are blocks (lines) */
    /* Lines over results: what x and y are; NaN = no point. */
    double (*x)(const struct kvl_result *r);
    struct kvl_interval (*y)(const struct kvl_result *r, bool strict);
    /* Why a panel of x [n] has no value; NULL: nothing of its own. */
    const char *(*lack)(const struct kvl_results *r, const struct kvl_result *const *x, size_t n);
    int (*build)(const struct kvl_figure *f, const struct kvl_results *r,
                 const struct kvl_plot_filter *want, struct kvl_chart *out, struct kvl_err *err);
};
extern const struct kvl_figure kvl_figures[];
extern const size_t kvl_n_figures;

/* Builders.  KVL_EINVAL: more panels than a page takes. */
typedef int kvl_chart_build(const struct kvl_figure *f, const struct kvl_results *r,
                            const struct kvl_plot_filter *want, struct kvl_chart *out,
                            struct kvl_err *err);
kvl_chart_build kvl_chart_lines;      /* x and y of results, a series per policy */
kvl_chart_build kvl_chart_methods;    /* accuracy at each budget, a row per policy */
kvl_chart_build kvl_chart_depths;     /* accuracy over length and depth, a panel per policy */
kvl_chart_build kvl_chart_perplexity; /* running perplexity of texts, a line per policy */
kvl_chart_build kvl_chart_trade;      /* bytes saved by fewer tokens, fewer bits, or both */
kvl_chart_build kvl_chart_mass;       /* analyses: tokens that hold the attention, per layer */
kvl_chart_build kvl_chart_alike;      /* analyses: attention caught by a layer's tokens */
kvl_chart_build kvl_chart_hits;       /* analyses: evidence among them */
kvl_chart_build kvl_chart_capture;    /* analyses: layer by layer */
kvl_chart_build kvl_chart_drift;      /* analyses: important tokens some steps later */
kvl_chart_build kvl_chart_breakdown;  /* parts of a decode step, stacked, a bar per policy */

/* The table and the variables of the script, as texts.  columns: panels beside each other, with the
 * legend below them; 0 = as the figure likes. */
struct kvl_plot {
    struct kvl_buf table, script;
    size_t n_points, n_failed;
    const char *lack; /* why there is no point, static; NULL: not known */
};
int kvl_plot_build(const struct kvl_results *r, const struct kvl_figure *figure,
                   const struct kvl_plot_filter *filter, size_t columns, struct kvl_plot *out,
                   struct kvl_err *err);
void kvl_plot_free(struct kvl_plot *p);

#endif
