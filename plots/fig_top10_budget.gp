# fig_top10_budget.gp - how many of the ten tokens of largest attention weight a method reads.
#
# The figure of Quest (2024), fig. 4: recall of the top-10 tokens of full attention against budget.
# One should see: oracle highest, yet below 100 %, since it chooses once for the heads of a group and each
# has ten of its own; what looks at the query (omnikv, quest, infllm) next, nearer the
# larger the budget; what dropped tokens before the query was known far below at small budgets; random at
# the share of the budget, over it at the smallest.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
