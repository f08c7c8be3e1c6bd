# fig_methods.gp - every method at the same budgets: a row per method, best first, a panel per task.
#
# The form of the tables that papers compare methods with, as dots: SnapKV (2024), table 1, and Quest
# (2024), fig. 8, over LongBench.  Rows are ordered by how far a method stands above the mean of all, over
# everything shown.
# One should see: oracle near the top, close to full's line at every budget; random near the bottom; a
# larger budget further right in every row.  Methods that read all of the context have open dots: what
# they save is elsewhere, in the prefill or in what is fetched.
kvl_ramp = "#7ad151 #22a884 #2a788e #414487 #440154"
load home."/frame.gp"
unset grid
set grid xtics lt 1 lw 0.6 lc rgb "#e2e2e2"
set xrange [x_min:x_max]
set yrange [(n_y_ticks < 1 ? 1 : n_y_ticks)+0.5:0.5]
set xtics 50 font ",9"
# Text as high as the rows are.
row_h = panel_h / (n_y_ticks < 1 ? 1 : n_y_ticks)
row_font = sprintf(",%.1f", 0.62*row_h < 7 ? 7 : 0.62*row_h > 10 ? 10 : 0.62*row_h)
rank(s) = int(sum [kvl_j=1:n_legend] (legend_name[kvl_j] eq s ? kvl_j : 0))
is_level(s) = s eq "full"
legend_dash(s) = is_level(s) ? 2 : 1
legend_mark(s) = is_level(s) ? 0 : 7
is_budget(s) = s[1:7] eq "budget "
n_budgets = n_legend < 1 ? 0 : int(sum [kvl_j=1:n_legend] (is_budget(legend_name[kvl_j]) ? 1 : 0))
# Budgets from the first to the last of the ramp, and one below the other in their row.
place(s) = is_budget(s) ? rank(s) - (n_legend - n_budgets) : 0
shade(s) = is_budget(s) ? word(kvl_ramp, n_budgets < 2 ? 3 : 1 + int(4.0*(place(s)-1)/(n_budgets-1))) : "#000000"
offset(s) = n_budgets < 2 || !is_budget(s) ? 0 : 0.56*((place(s)-1.0)/(n_budgets-1) - 0.5)

do for [p=1:n_panels] {
    @kvl_place
    set title panel_title[p] font ",8" offset 0,-0.6
    if (p + n_columns > n_panels) { set xlabel x_label offset 0,0.4 font ",9" } else { unset xlabel }
    if (panel_note[p] ne "") {
        set label 3 panel_note[p] at graph 0.5,0.5 center textcolor rgb "#777777" front
    } else { unset label 3 }
    set ytics () font row_font scale 0
    if (col > 0) { unset ytics }
    do for [i=1:n_y_ticks] {
        if (i % 2 == 0) {
            set object i rectangle from graph 0, first i-0.5 to graph 1, first i+0.5 behind \
                fillcolor rgb "#f4f4f4" fillstyle solid noborder
        }
        if (col == 0) {
            set ytics add (y_tick[i] i) offset -1.6,0
            set label 100+i "" at screen px(x0-13), first i point pt kvl_marker(y_tick[i]) ps 0.85 \
                lw 1.2 lc rgb kvl_colour(y_tick[i])
        } else { unset label 100+i }
    }
    lines = ""; dots = ""
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) {
            if (series_name[k] eq "full") { lines = lines.sprintf(" %d", k) } \
            else { dots = dots.sprintf(" %d", k) }
        }
    }
    at(k) = strlen(k) ? int(k) : 1
    name(k) = series_name[at(k)]
    plot for [k in lines] data index (at(k)-1) using 1:2 with lines lw 1.0 dt 2 lc rgb "#000000", \
         for [k in dots] data index (at(k)-1) using 1:($2+offset(name(k))):3:4 with xerrorbars \
             ps 0 lw 0.7 lc rgb shade(name(k)), \
         for [k in dots] data index (at(k)-1) \
             using 1:($2+offset(name(k))):($5 > 0 && $6 > 1.1*$5 ? 6 : 7) with points \
             pt variable ps 0.55 lw 1.2 lc rgb shade(name(k)), \
         n_y_ticks + 9 with dots
    unset label 1; unset label 2; unset label 5
}

load home."/legend.gp"
if (n_legend == 0) { plot 2 with dots }
if (n_legend > 0) {
plot for [j=1:n_legend] NaN with linespoints lw 0.8 \
    dt legend_dash(legend_name[j]) pt legend_mark(legend_name[j]) ps 0.8 \
    lc rgb shade(legend_name[j]) title legend_name[j]
}
unset multiplot
