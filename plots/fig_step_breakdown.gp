# fig_step_breakdown.gp - where the time of a decode step goes.
#
# The stacked latency figures of Quest (2024, fig. 10), InfiniGen and ShadowKV: attention, choosing,
# metadata and the rest of the model, beside dense attention.
# One should see: the attention of full growing with the length and that of the methods level; what is
# left of the gain after selection and metadata are paid; "rest of the model" the same for all.
set style fill solid 0.85 border rgb "#ffffff"
bar_colours = "#0072b2 #e69f00 #cc79a7 #d55e00 #bbbbbb"
load home."/bars.gp"
