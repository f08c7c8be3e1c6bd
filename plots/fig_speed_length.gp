# fig_speed_length.gp - decoding speed against context length, at one budget.
#
# The figure of OmniKV (2025), fig. 4, and of KTransformers' tutorial on long contexts (2024): decoding
# speed over context length, beside dense attention.
# One should see: full falling with slope -1 once reading the KV takes longer than reading the
# weights, flat before; methods that read a budget stay flat, and leave full where its line bends;
# methods with an index (metadata of every page) fall as well, later.  Bars: slowest and fastest of
# the repeats.
kvl_wide(s) = 0
kvl_shift = 1.0
load home."/tokens.gp"
set logscale y 10
set ytics ()
digits = y_max / y_min < 12 ? "1 1.5 2 3 4 5 7" : "1 2 5"
set for [decade=-3:6] for [digit in digits] ytics add \
    (sprintf("%g", digit*10**decade) digit*10.0**decade)
# Behind the names: how many times as fast as full at its longest length, one number per panel.
array last_x[n_series > 0 ? n_series : 1]
array last_y[n_series > 0 ? n_series : 1]
do for [k=1:n_series] {
    if (series_points[k] > 0) {
        stats data index (k-1) every ::(series_points[k]-1) using 1:2 nooutput name "kvl_last"
        last_x[k] = kvl_last_max_x; last_y[k] = kvl_last_max_y
    } else { last_x[k] = 0; last_y[k] = 0 }
}
array legend_tail[n_legend > 0 ? n_legend : 1]
do for [j=1:n_legend] {
    tail = ""
    do for [p=1:n_panels] {
        own = 0; dense = 0; own_x = -1; dense_x = -2
        do for [k=1:n_series] {
            if (series_panel[k] == p && series_name[k] eq "full") { dense = last_y[k]; dense_x = last_x[k] }
            if (series_panel[k] == p && series_name[k] eq legend_name[j]) { own = last_y[k]; own_x = last_x[k] }
        }
        if (own > 0 && dense > 0 && own_x == dense_x) {
            tail = tail.sprintf("%s%.1f", tail eq "" ? "  × " : " / ", own/dense)
        }
    }
    legend_tail[j] = tail
}
load home."/panels.gp"
