# fig_evict_or_quantise.gp - what it costs to keep fewer tokens, to store them in fewer bits, or to do both, at equal bytes.
#
# Not in a paper in this form.  x: how many times fewer bytes than full attention in f16, held by a sequence or read by a
# token, both counted; the title of a panel has those of 1x.  Colours are types of keys and values, markers policies;
# the line of full attention in f16 goes across, that of all other types ("full, fewer bits") is thin and dashed.
# One should see: of equal bytes, the way that stands highest (accuracy) or lowest (KL, perplexity) loses least.
#
# The table has blocks as panels.gp reads them; y_tick[p] is what panel p shows.
load home."/frame.gp"

kv_at(s) = strstrt(s, ", kv ")
kv_rest(s) = kv_at(s) ? s[kv_at(s)+5:strlen(s)]." " : "f16 "
kv_of(s) = s eq "full, fewer bits" ? "" : kv_rest(s)[1:strstrt(kv_rest(s), " ")-1]
kv_known = "f16 #000000 q8_0 #0072b2 q8_0/q4_0 #009e73 q4_0+hadamard #d55e00 q4_0 #8c510a fp8_e4m3 #cc79a7 \
    turboquant4 #e69f00 turboquant3 #7b3294 q8_0+hadamard #56b4e9 f32 #777777 bf16 #444444 kivi4 #e31a8c kivi2 #7a1f2b"
kv_row(s) = int(sum [kvl_i=1:words(kv_known)/2] (word(kv_known, 2*kvl_i-1) eq s ? kvl_i : 0))
kv_colour(s) = s eq "full, fewer bits" ? "#888888" : kv_row(kv_of(s)) ? word(kv_known, 2*kv_row(kv_of(s))) \
    : word(kvl_colours, 1 + kvl_hash(kv_of(s)) % words(kvl_colours))
kv_marker(s) = s eq "full, fewer bits" ? 0 : kvl_marker_of(kvl_base(s))
kv_dash(s) = s eq "full, fewer bits" ? 2 : 1
kv_width(s) = s eq "full, fewer bits" ? 0.8 : kvl_base(s) eq "full" ? 1.0 : 1.4
# Markers of one x are moved apart by type, by 3 % at most.
kv_shift(s) = s eq "full, fewer bits" ? 1 : 1.008**(kv_row(kv_of(s)) % 8 - 3.5)

set logscale x 2
set xrange [x_min:x_max]
set format x "%.0f"
set xtics ("1x" 1, "2x" 2, "4x" 4, "8x" 8, "16x" 16, "32x" 32, "64x" 64, "128x" 128)
set grid x y lc rgb "#dddddd"
set errorbars 0
set tics font ",9"
do for [p=1:n_panels] {
    @kvl_place
    if (panel_title[p] eq "") { continue }
    set title panel_title[p] font ",9" offset 0,-0.6
    set label 4 y_tick[p] at screen px(x0-56), screen py(y0+panel_h/2) center rotate by 90 font ",9"
    below = p + n_columns
    if (below > n_panels || panel_title[below] eq "") { set xlabel x_label offset 0,0.4 font ",9" } else { unset xlabel }
    if (panel_note[p] ne "") {
        set label 3 panel_note[p] at graph 0.5,0.5 center textcolor rgb "#777777" front
    } else { unset label 3 }
    if (strstrt(y_tick[p], "%")) {
        unset logscale y; set yrange [-3:104]; set ytics 20; set format y "%.0f"
    } else {
        set yrange [*:*]; set ytics autofreq
        if (strstrt(y_tick[p], "KL")) { set logscale y; set format y "%.0e" } else { unset logscale y; set format y "%.4g" }
    }
    blocks = ""; level = ""
    do for [k=1:n_series] {
        if (series_panel[k] == p && series_points[k] > 0) {
            if (series_points[k] == 2 && kvl_base(series_name[k]) eq "full" && kv_of(series_name[k]) eq "f16") \
                { level = level.sprintf(" %d", k) } else { blocks = blocks.sprintf(" %d", k) }
        }
    }
    # An empty list is drawn once all the same, with k = "".
    at(k) = strlen(k) ? int(k) : 1
    ok(k) = strlen(k) ? 1 : NaN
    name(k) = series_name[at(k)]
    plot for [k in level] data index (at(k)-1) using 1:(ok(k)*$3):(ok(k)*$4) with filledcurves \
             fc rgb "#000000" fs transparent solid 0.06, \
         for [k in level] data index (at(k)-1) using 1:(ok(k)*$2) with lines lw 1.0 lc rgb "#000000", \
         for [k in blocks] data index (at(k)-1) using (ok(k)*$1*kv_shift(name(k))):2 with lines \
             lw kv_width(name(k)) dt kv_dash(name(k)) lc rgb kv_colour(name(k)), \
         for [k in blocks] data index (at(k)-1) using (ok(k)*$1*kv_shift(name(k))):2:3:4 with yerrorbars \
             pt 0 ps 0 lw 0.7 lc rgb kv_colour(name(k)), \
         for [k in blocks] data index (at(k)-1) using (ok(k)*$1*kv_shift(name(k))):2 with points \
             pt kv_marker(name(k)) ps kv_marker(name(k)) ? 0.9 : 0 lw 0.8 lc rgb kv_colour(name(k)), \
         NaN notitle
    unset label 1; unset label 2; unset label 5
}

load home."/legend.gp"
if (n_legend == 0) { plot 2 with dots }
if (n_legend > 0) {
plot for [j=1:n_legend] NaN with linespoints lw kv_width(legend_name[j]) dt kv_dash(legend_name[j]) \
    pt kv_marker(legend_name[j]) ps kv_marker(legend_name[j]) ? 0.9 : 0 lc rgb kv_colour(legend_name[j]) \
    title legend_name[j]
}
unset multiplot
