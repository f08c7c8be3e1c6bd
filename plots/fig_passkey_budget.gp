# fig_passkey_budget.gp - passkey accuracy against budget, at two lengths.
#
# Table 1 of Quest (2024) as curves: passkey accuracy at budgets of 32 to 512 tokens of 10K and of 256 to
# 4096 tokens of 100K, beside H2O, TOVA and StreamingLLM.
# One should see: quest and omnikv near full from small budgets on; streaming_llm close to the share of
# the context that it keeps, snapkv with the question hidden there or below; h2o, too, unless passkeys
# stand out and its budget holds all of them.  At the longer context the same budget is worth less to
# those, and as much to the methods that look at the query.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.018
load home."/tokens.gp"
set ytics 20
load home."/panels.gp"
