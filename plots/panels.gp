# panels.gp - a grid of panels with one legend beside or below them; for figures whose table has blocks of
#
#   x y lo hi ...        one block per panel and series, separated by two empty lines
#
# The script sets   n_panels, n_columns, panel_title[], panel_note[]
#                   n_series, series_name[], series_panel[], series_points[]    (one per block)
#                   n_legend, legend_name[]
#                   title, subtitle, foot, x_label, y_label, x_min, x_max, y_min, y_max
#                   where everything stands: see frame.gp, and legend_columns
# The figure may set legend_tail[], what stands behind the names in the legend.
# The figure sets   kvl_wide(name): a level across the panel; kvl_shift: see below; its axes.
#
# Markers of several series at one x are shifted sideways, by 5 % at most, so that their intervals
# can be told apart; the table has the exact values.

load home."/frame.gp"

shift(s) = n_legend < 2 ? 1 : kvl_shift**((legend_rank(s) - (n_legend+1)/2.0) * 6.0 / n_legend)
legend_rank(s) = int(sum [kvl_j=1:n_legend] (legend_name[kvl_j] eq s ? kvl_j : 0))
line_width(s) = kvl_is_bound(s) ? 1.2 : 1.6
# Points that meet, at 100 % for instance, lie in each other: the earlier in the legend the larger.
point_size(s) = kvl_wide(s) ? 0 : n_legend < 2 ? 0.9 : 1.25 - 0.6*(legend_rank(s)-1)/(n_legend-1)

set xrange [x_min:x_max]
set yrange [y_min:y_max]
do for [p=1:n_panels] {
    @kvl_place
    if (panel_title[p] eq "") { continue } # a task that has no result there
    set title panel_title[p] font ",10" offset 0,-0.6
    # A panel without a neighbour to the left, or below, has the label of its axis.
    if (col == 0 || panel_title[p-1] eq "") {
        set label 4 y_label at screen px(x0-72), screen py(y0+panel_h/2) center rotate by 90
    } else { unset label 4 }
    below = p + n_columns
    if (below > n_panels || panel_title[below] eq "") { set xlabel x_label offset 0,0.4 } else { unset xlabel }
    if (panel_note[p] ne "") {
        set label 3 panel_note[p] at graph 0.5,0.5 center textcolor rgb "#777777" front
    } else { unset label 3 }
    # full has no budget: its level is a line across, its interval a band.
    levels = ""; curves = ""
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) {
            if (kvl_wide(series_name[k])) { levels = levels.sprintf(" %d", k) } \
            else { curves = curves.sprintf(" %d", k) }
        }
    }
    # An empty list is parsed once all the same, with k = "".
    at(k) = strlen(k) ? int(k) : 1
    name(k) = series_name[at(k)]
    plot for [k in levels] data index (at(k)-1) using 1:3:4 with filledcurves \
             fc rgb "#000000" fs transparent solid 0.05, \
         for [k in levels] data index (at(k)-1) using 1:2 with lines \
             lw line_width(name(k)) lc rgb kvl_colour(name(k)), \
         for [k in curves] data index (at(k)-1) using ($1*shift(name(k))):2 with lines \
             lw line_width(name(k)) dt kvl_dash(name(k)) lc rgb kvl_colour(name(k)), \
         for [k in curves] data index (at(k)-1) using ($1*shift(name(k))):3:(0):($4-$3) with vectors \
             nohead lw 0.8 lc rgb kvl_colour(name(k)), \
         for [k in curves] data index (at(k)-1) using ($1*shift(name(k))):2 with points \
             pt kvl_marker(name(k)) ps point_size(name(k)) lw 0.8 lc rgb kvl_colour(name(k)), \
         2*y_max with dots
    unset label 1; unset label 2; unset label 5
}

load home."/legend.gp"
if (n_legend == 0) { plot 2 with dots }
if (n_legend > 0) {
plot for [j=1:n_legend] NaN with linespoints lw line_width(legend_name[j]) \
    dt kvl_dash(legend_name[j]) pt kvl_marker(legend_name[j]) ps point_size(legend_name[j]) \
    lc rgb kvl_colour(legend_name[j]) \
    title legend_name[j].(exists("legend_tail") ? legend_tail[j] : "")
}
unset multiplot
