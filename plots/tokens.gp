# tokens.gp - a logarithmic x axis of tokens, named 64, 128 ... 1K, 2K; 1K is 1024.
set logscale x 2
kvl_tokens(e) = e < 10 ? sprintf("%d", 2**e) : e < 20 ? sprintf("%dK", 2**(e-10)) : sprintf("%dM", 2**(e-20))
kvl_doublings = log(x_max / x_min) / log(2)
set format x "%.0f"
if (kvl_doublings >= 1.5) {
    set xtics ()
    do for [e=int(log(x_min)/log(2)):int(log(x_max)/log(2)):(kvl_doublings > 9 ? 2 : 1)] {
        set xtics add (kvl_tokens(e) 2.0**e)
    }
}
