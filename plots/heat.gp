# heat.gp - a grid of panels of coloured cells; for figures whose table has blocks of
#
#   x y value ...     x and y are numbers of categories, named by x_tick[] and y_tick[]
#
# The script sets what panels.gp reads.  The figure sets the palette, cbrange and heat_format, the
# format of the value in a cell ("" = none), heat_light, the value from which its text is white, and
# heat_unit, what the colour bar shows.

load home."/frame.gp"

unset grid
set colorbox user origin screen px(legend_x + 14), screen py(top+8+panel_h) \
    size screen px(10), screen (1.0*panel_h/height)
set cblabel heat_unit font ",10" offset -0.5,0
set cbtics 20 font ",9" scale 0.4 offset -0.6,0
set style fill solid 1.0 noborder
set xrange [0.5:(n_x_ticks < 1 ? 1 : n_x_ticks)+0.5]
set yrange [(n_y_ticks < 1 ? 1 : n_y_ticks)+0.5:0.5]
set xtics (); set ytics () offset 0.6,0
do for [i=1:n_x_ticks] { set xtics add (x_tick[i] i) }
do for [i=1:n_y_ticks] { set ytics add (y_tick[i] i) }
small = n_x_ticks > 8 || n_y_ticks > 11
if (n_x_ticks > 10) { set xtics rotate by 60 right }
do for [p=1:n_panels] {
    @kvl_place
    set title panel_title[p] font ",10" offset 0,-0.6
    if (col == 0) {
        set label 4 y_label at screen px(x0-72), screen py(y0+panel_h/2) center rotate by 90
    } else { unset label 4 }
    if (p + n_columns > n_panels) { set xlabel x_label offset 0,0.4 } else { unset xlabel }
    if (panel_note[p] ne "") {
        set label 3 panel_note[p] at graph 0.5,0.5 center textcolor rgb "#777777" front
    } else { unset label 3 }
    blocks = ""
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) { blocks = blocks.sprintf(" %d", k) }
    }
    at(k) = strlen(k) ? int(k) : 1
    plot for [k in blocks] data index (at(k)-1) \
             using 1:2:($1-0.48):($1+0.48):($2-0.48):($2+0.48):3 with boxxyerror lc palette, \
         for [k in (heat_format eq "" ? "" : blocks)] data index (at(k)-1) \
             using 1:2:(sprintf(heat_format, $3)):($3 < heat_light ? 0x222222 : 0xffffff) \
             with labels font (small ? ",7" : ",9") textcolor rgb variable, \
         n_y_ticks + 9 with dots
    unset label 1; unset label 2; unset label 5; unset colorbox
}
if (n_panels == 0) {
    unset tics; unset border
    set label 3 "No result to show: the log has none for this figure." at screen 0.5,0.5 center
    plot n_y_ticks + 9 with dots
}
unset multiplot
