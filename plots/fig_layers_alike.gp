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
load home."/panels.gp"
