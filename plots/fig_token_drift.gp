# fig_token_drift.gp - how many important tokens of a step are important some steps later.
#
# The figure of OmniKV (2025), fig. 1c: important tokens change from step to step, so that what was
# dropped once is missed later.
# One should see: curves that fall with the distance, fastest in layers that copy (they move on by one
# token a step); a choice that is made once is as good as its curve.
kvl_wide(s) = 0
kvl_shift = 1.0
set ytics 20
load home."/ranks.gp"
load home."/panels.gp"
