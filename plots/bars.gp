# bars.gp - a grid of panels of stacked bars; for figures whose table has blocks of
#
#   x y from to ...   a block per panel and piece; x is the number of a category, named by x_tick[]
#
# The script sets what panels.gp reads.  The figure sets bar_colours, one per piece.

panel_w = 330.0; panel_h = 250.0; left = 88.0; top = 78.0 + title_room; gap_x = 40.0; gap_y = 78.0 + title_room; bottom = 62.0
legend_x = left + n_columns*panel_w + (n_columns-1)*gap_x
px(x) = 1.0 * (x) / width
py(y) = 1 - 1.0 * (y) / height
# Names of the bars stand below the last row, upright.
longest = 0
do for [i=1:n_x_ticks] { longest = strlen(x_tick[i]) > longest ? strlen(x_tick[i]) : longest }
foot = 5.6 * longest
panel_h = panel_h - foot

set multiplot
set label 1 title at screen px(16), py(22) left font ",14"
set label 2 subtitle at screen px(16), py(42) left font ",10" textcolor rgb "#555555"
unset key
set xrange [0.3:(n_x_ticks < 1 ? 1 : n_x_ticks)+0.7]
set xtics () rotate by 90 right font ",9"
do for [i=1:n_x_ticks] { set xtics add (x_tick[i] i) }
do for [p=1:n_panels] {
    col = (p-1) % n_columns; row = (p-1) / n_columns
    x0 = left + col*(panel_w+gap_x); y0 = top + 14 + row*(panel_h+foot+gap_y)
    set lmargin at screen px(x0); set rmargin at screen px(x0+panel_w)
    set tmargin at screen py(y0+8); set bmargin at screen py(y0+8+panel_h)
    set title panel_title[p] font ",10" offset 0,-0.6
    if (col == 0) {
        set label 4 y_label at screen px(x0-72), screen py(y0+8+panel_h/2) center rotate by 90
    } else { unset label 4 }
    blocks = ""; high = 0
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) { blocks = blocks.sprintf(" %d", k) }
    }
    at(k) = strlen(k) ? int(k) : 1
    piece(k) = 1 + (at(k)-1) % words(bar_colours)
    # Each length has its own scale, which the subtitle says: the shares are what is compared.
    set yrange [0:*]
    plot for [k in blocks] data index (at(k)-1) using 1:4:($1-0.36):($1+0.36):3:4 \
             with boxxyerror lc rgb word(bar_colours, piece(k)), 0 with lines lw 0.5 lc rgb "#444444"
    unset label 1; unset label 2
}
unset label 3; unset label 4
unset title; unset xlabel; unset ylabel; unset tics; unset border; unset grid
set lmargin at screen px(legend_x+4); set rmargin at screen 1
set tmargin at screen py(top+14); set bmargin at screen 0
set xrange [0:1]; set yrange [0:1]
set key at graph 0, graph 1 left top Left reverse samplen 1.2 spacing 1.35 font ",10" noinvert
if (n_panels == 0) {
    set label 3 "No result to show: the log has none for this figure." at screen 0.5,0.5 center
    plot 2 with dots notitle
}
if (n_panels > 0) {
plot for [j=1:n_legend] NaN with boxes lc rgb word(bar_colours, j) title legend_name[j]
}
unset multiplot
