# fig_needle_heatmap.gp - needle accuracy over context length and depth.
#
# The figure of Kamradt's needle test as OmniKV (2025, fig. 7) and KTransformers' tutorial (128K) show it.
# One should see: full green everywhere that the model reaches; methods that look at the query green
# as well; streaming_llm green at both ends only, in a band that narrows as the context grows; random
# red but for chance.
set palette defined (0 "#F0496E", 50 "#EBB839", 100 "#0CD79F")
set cbrange [0:100]
heat_format = "%.0f"
heat_light = 1000
load home."/heat.gp"
