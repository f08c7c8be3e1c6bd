# fig_kl_budget.gp - KL from the next token of full attention to that of a method, against the tokens that attention read.
#
# What a method changes of any text of any model, with small variance: not in a paper in this form; Quest (2024), fig. 6, has
# perplexity over length.  Texts are decoded with their own tokens, full attention beside the method.
# One should see: falling lines; oracle lowest at small budgets, random highest and flat until the budget is a good part
# of the context.  full itself is zero, and not on a logarithmic axis.
kvl_wide(s) = 0
kvl_shift = 1.018
load home."/tokens.gp"
set logscale y
set format y "%.0e"
load home."/panels.gp"
