# fig_needle_heatmap.gp - needle accuracy over context length and depth.
#
# The figure of Kamradt's needle test as OmniKV (2025, fig. 7) and KTransformers' tutorial (128K) show it.
# One should see: full dark everywhere that the model reaches; methods that look at the query dark
# as well; streaming_llm dark at both ends only, in a band that narrows as the context grows; random
# pale but for chance.
set palette defined (0 "#f7fbff", 40 "#9ecae1", 70 "#4292c6", 100 "#08519c")
set cbrange [0:100]
heat_format = "%.0f"; heat_unit = "right answers, %"
heat_light = 60
load home."/heat.gp"
