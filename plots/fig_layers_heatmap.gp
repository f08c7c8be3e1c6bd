# fig_layers_heatmap.gp - attention of a layer (across) on the tokens that another one chose (down).
#
# The figure of OmniKV (2025), fig. 6, layer by layer.
# One should see: the diagonal near 100 %; blocks of high values right of it where neighbouring
# layers attend to the same tokens; pale rows of layers that make bad filters.
set palette defined (0 "#f7fbff", 40 "#9ecae1", 70 "#4292c6", 100 "#08519c")
set cbrange [0:100]
heat_format = "%.0f"; heat_unit = "attention caught, %"
heat_light = 60
load home."/heat.gp"
