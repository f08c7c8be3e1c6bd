# fig_layers_alike.gp - how much attention of the next layers falls on the tokens that a layer chose.
#
# The figure of OmniKV (2025), fig. 1a: over the layer that chooses, the attention of the n layers
# from it on (itself included) that its top tokens hold, mean over layers and steps.
# One should see: low in the first layers (high where neighbours rest on the first token), a plateau
# where layers share what they attend to: there filter layers are worth having.  With no plateau
# above its surroundings, OmniKV has nothing to share.
kvl_wide(s) = 0
kvl_shift = 1.0
set xtics 1
set ytics 20
load home."/ranks.gp"
# "top 64, 2 layers": the colour says how many tokens, the dash over how many layers.
alike_top(s) = s[1:strstrt(s, ",")-1]
alike_rank(s, part) = int(sum [kvl_i=1:legend_rank(s)] (part == 1 \
    ? (kvl_i == 1 || alike_top(legend_name[kvl_i]) ne alike_top(legend_name[kvl_i-1])) \
    : (alike_top(legend_name[kvl_i]) eq alike_top(s))))
kvl_colour(s) = word("#0072b2 #d55e00 #009e73 #cc79a7", 1 + (alike_rank(s, 1) - 1) % 4)
kvl_dash(s) = 1 + (alike_rank(s, 2) - 1) % 5
load home."/panels.gp"
