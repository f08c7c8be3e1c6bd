# fig_preselect_effect.gp - what selecting every token, preselecting and dense layers each do.
#
# The table of KTransformers' tutorial on long contexts (2024), in general form: full attention,
# selection at every token (quest with dense_layers=0), preselection by the question's window (snapkv,
# question read before), selection with dense first layers (quest).
# One should see: selection alone losing at small budgets; in large models dense layers repairing
# much of it (in the small one that comes with kvlab they do not);
# preselection good when the question is seen and near random when it is not.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
