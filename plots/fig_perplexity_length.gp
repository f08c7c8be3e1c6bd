# fig_perplexity_length.gp - running perplexity of a text against its length.
#
# The figure of Quest (2024), fig. 6, and of StreamingLLM (2023): perplexity of a long text over the
# tokens read so far, at one budget.
# One should see: all methods on full's line until the text outgrows the budget; then quest
# staying near it, the others above it by little, since a text is mostly predicted from what
# stands near; a method that breaks (a window without sinks, random) leaving at the top.
# Read token by token there is no prefill: methods that decide about that (snapkv) would read everything and
# are not shown; omnikv leaves out the first token alone, which costs a model that rests on it.
# Half of the sentences of the text come again, else nothing far would help.
kvl_wide(s) = 0
kvl_shift = 1.0
set logscale y 10
# The lowest curve fills the picture; what is far above it leaves at the top.
least = 1.6 * y_min
y_min = least / 1.08
y_max = y_max > 2 * least ? 2 * least : y_max
set xtics 2**(ceil(log(x_max) / log(2)) - 2)
set ytics ()
digits = "1 1.2 1.4 1.6 1.8 2 2.5 3 4 5 6 7 8 9"
set for [decade=-1:6] for [digit in digits] ytics add \
    (sprintf("%g", digit*10**decade) digit*10.0**decade)
load home."/panels.gp"
