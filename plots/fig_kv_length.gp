# fig_kv_length.gp - bytes of the KV cache of one sequence against context length.
#
# The memory tables of KTransformers' tutorial and of llama.cpp (cache types f16, f32 ...): what one
# sequence holds after its context, tables of the method included.
# One should see: full and the selecting methods on one line of slope 1 (they keep everything; their
# metadata lifts them a little), evicting methods level at their budget.  Other element types shift
# the lines by the ratio of their sizes.
kvl_wide(s) = 0
kvl_shift = 1.0
load home."/tokens.gp"
set logscale y 10
set format y "%g"
load home."/panels.gp"
