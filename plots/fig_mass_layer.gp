# fig_mass_layer.gp - share of the tokens that hold 90, 95 and 99 % of the attention, per layer.
#
# The figure of Quest (2024), fig. 3, which asks for sparsity at equal perplexity; here by attention
# mass, mean over heads, bars from the sparsest to the densest head.
# One should see: in large models the first two layers dense and the others below 10 %.  A small model
# has layers of its own kinds: local heads that need a few tokens, retrieving ones that need tens.
kvl_wide(s) = 0
kvl_shift = 1.0
set xtics 1
set logscale y 10
y_min = 0.02; y_max = 130
set yrange [y_min:y_max]
set format y "%g"
load home."/ranks.gp"
load home."/panels.gp"
