# fig_filter_hit.gp - share of the evidence that is among the top tokens of each layer.
#
# The figure of OmniKV (2025), fig. 8: hit rate of a layer as a filter, per task.
# One should see: low in the first layers, high in those that retrieve; the same layers for different
# tasks.
kvl_wide(s) = 0
kvl_shift = 1.0
set xtics 1
set ytics 20
load home."/ranks.gp"
load home."/panels.gp"
