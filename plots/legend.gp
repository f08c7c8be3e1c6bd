# legend.gp - room for a plot without axes that is nothing but the legend, beside the panels or below.
if (n_panels > 0) { unset label }
unset object
unset title; unset xlabel; unset ylabel; unset tics; unset border; unset grid; unset logscale
set lmargin at screen px(legend_x+4); set rmargin at screen 1
set tmargin at screen py(legend_y); set bmargin at screen 0
set xrange [0:1]; set yrange [0:1]
set key at graph 0, graph 1 left top Left reverse samplen 2.2 spacing 1.35 font ",10" noinvert
if (legend_columns > 1) { set key horizontal maxcols legend_columns }
if (n_panels == 0) {
    set label 3 "No result to show: the log has none for this figure." at screen 0.5,0.5 center
}
