# fig_top1_budget.gp - share of the tokens of a text of which full attention and a method have the same best next token,
# against the tokens that attention read.
#
# One should see: rising lines that meet 100 % where the budget nears the context, oracle above the methods, random below.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
