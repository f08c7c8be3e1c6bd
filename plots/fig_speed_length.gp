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
set logscale x 2
set logscale y 10
set format x "%.0f"
set ytics ()
digits = y_max / y_min < 12 ? "1 1.5 2 3 4 5 7" : "1 2 5"
set for [decade=-3:6] for [digit in digits] ytics add \
    (sprintf("%g", digit*10**decade) digit*10.0**decade)
load home."/panels.gp"
