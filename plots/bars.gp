# bars.gp - a grid of panels of stacked bars; for figures whose table has blocks of
#
#   x y from to - - label   a block per panel and piece; x is the number of a category, named by x_tick[];
#                           a label above zero stands over the piece
#
# The script sets what panels.gp reads.  The figure sets bar_colours, one per piece.

load home."/frame.gp"
# Names of the bars stand below each panel, upright; the frame has room for them.
set xrange [0.3:(n_x_ticks < 1 ? 1 : n_x_ticks)+0.7]
set xtics () rotate by 90 right font ",9"
do for [i=1:n_x_ticks] { set xtics add (x_tick[i] i) }
do for [p=1:n_panels] {
    @kvl_place
    set title panel_title[p] font ",10" offset 0,-0.6
    if (col == 0) {
        set label 4 y_label at screen px(x0-72), screen py(y0+panel_h/2) center rotate by 90
    } else { unset label 4 }
    blocks = ""; high = 0
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) { blocks = blocks.sprintf(" %d", k) }
    }
    at(k) = strlen(k) ? int(k) : 1
    piece(k) = 1 + (at(k)-1) % words(bar_colours)
    # Each length has its own scale, which the subtitle says: the shares are what is compared.
    set yrange [0:*]; set offsets 0, 0, graph 0.12, 0
    plot for [k in blocks] data index (at(k)-1) using 1:4:($1-0.36):($1+0.36):3:4 \
             with boxxyerror lc rgb word(bar_colours, piece(k)), \
         for [k in blocks] data index (at(k)-1) using 1:4:($7 > 0 ? sprintf($7 < 9.95 ? "×%.1f" : "×%.0f", $7) : "") \
             with labels offset 0,0.5 font ",8", 0 with lines lw 0.5 lc rgb "#444444"
    unset label 1; unset label 2; unset label 5
}
load home."/legend.gp"
if (n_panels == 0) { plot 2 with dots notitle }
if (n_panels > 0) {
plot for [j=1:n_legend] NaN with boxes lc rgb word(bar_colours, j) title legend_name[j]
}
unset multiplot
