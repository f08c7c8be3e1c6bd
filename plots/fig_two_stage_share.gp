# fig_two_stage_share.gp - 2StageRetr accuracy against the share of the context that is attended.
#
# The figure of OmniKV (2025), fig. 3: the entry that answers is known only once the sum has been
# written, after any choice that was made before.
# One should see: methods that choose again at every token (quest, omnikv, infllm) near full at small
# shares; methods that dropped tokens before the sum was known (h2o, snapkv, streaming_llm) on the
# diagonal, accuracy about the share that they kept.
kvl_wide(s) = kvl_base(s) eq "full"
kvl_shift = 1.0
set format x "%g"
set xtics 20
set ytics 20
load home."/panels.gp"
