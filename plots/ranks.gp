# ranks.gp - colours and markers by rank, for series that are not policies: layers, counts, shares.
# Load it before panels.gp.
kvl_ramp = "#440154 #46327e #365c8d #277f8e #1fa187 #4ac16d #a0da39 #d9c51c"
kvl_of(s) = 1 + int((legend_rank(s) - 1) * words(kvl_ramp) / (n_legend > 8 ? 1.0*n_legend : 8.0))
kvl_few(s) = n_legend > 4 ? kvl_of(s) : 1 + 2 * (legend_rank(s) - 1)
# Neighbours of a long ramp look alike: many series get colours that do not.
kvl_apart = "#0072b2 #d55e00 #009e73 #cc79a7 #000000 #56b4e9 #8c510a #666a00 #7b3294 #e69f00"
kvl_colour(s) = n_legend > 5 ? word(kvl_apart, 1 + (legend_rank(s) - 1) % 10) : word(kvl_ramp, kvl_few(s))
kvl_marker(s) = int(word("7 5 9 11 13 15 6 4 8 10 12 14", 1 + (legend_rank(s) - 1) % 12))
kvl_dash(s) = n_legend > 5 ? 1 + (legend_rank(s) - 1) % 3 : 1
