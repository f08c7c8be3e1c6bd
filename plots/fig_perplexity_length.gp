# fig_perplexity_length.gp - running perplexity of a text against its length.
#
# The figure of Quest (2024), fig. 6, and of StreamingLLM (2023): perplexity of a long text over the
# tokens read so far, at one budget.
# One should see: all methods on full's line until the text outgrows the budget; then quest and
# omnikv staying with it, the others above it by little, since a text is mostly predicted from what
# stands near; a method that breaks (a window without sinks) shooting up.
kvl_wide(s) = 0
kvl_shift = 1.0
set logscale y 10
set ytics ()
digits = y_max / y_min < 12 ? "1 1.5 2 3 4 5 7" : "1 2 5"
set for [decade=-1:6] for [digit in digits] ytics add \
    (sprintf("%g", digit*10**decade) digit*10.0**decade)
load home."/panels.gp"
