# fig_recall_budget.gp - share of the evidence attended by the heads that retrieve it (harness/report/lanes.h),
# against the budget.
#
# Not the figure of one paper: it explains fig_accuracy_budget.gp, by what the method attended.
# One should see: the order of fig_accuracy_budget, at or above its curves: evidence that was not
# attended can hardly be answered.  Accuracy far above recall means that the answer leaked through
# other tokens; far below, that the model fails although it looked.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
