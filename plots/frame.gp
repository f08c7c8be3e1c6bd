# frame.gp - what every figure begins with: title, subtitle, foot, and where panels stand.
#
# The script sets   width height, left top, panel_w panel_h, gap_x gap_y, legend_x legend_y, foot_y   in
# pixels from the upper left corner, and the texts; kvl_place is evaluated for each panel p.
px(x) = 1.0 * (x) / width
py(y) = 1 - 1.0 * (y) / height

set multiplot
set label 1 title at screen px(16), py(22) left font ",14"
set label 2 subtitle at screen px(16), py(42) left font ",10" textcolor rgb "#555555"
set label 5 foot at screen px(16), py(foot_y + 8) left font ",10" textcolor rgb "#555555"
unset key
kvl_place = 'col = (p-1) % n_columns; row = (p-1) / n_columns;' \
    .'x0 = left + col*(panel_w+gap_x); y0 = top + 8 + row*(panel_h+gap_y);' \
    .'set lmargin at screen px(x0); set rmargin at screen px(x0+panel_w);' \
    .'set tmargin at screen py(y0); set bmargin at screen py(y0+panel_h)'
