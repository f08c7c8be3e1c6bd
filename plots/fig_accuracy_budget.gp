# fig_accuracy_budget.gp - accuracy against the tokens that attention really read.
#
# The figure of H2O (2023), fig. 4, accuracy over the share of the KV cache that is kept, and of OmniKV
# (2025), fig. 5, score over token budget; both with dense attention for comparison.
# One should see: oracle nearest to full at small budgets; methods between oracle and random, rising
# with the budget and meeting full's band where the budget nears the context; random flat until the
# budget is a good part of the context.  A method below random, or above oracle by more than the
# intervals, is a bug or a finding.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
