# style.gp - what all figures share: the terminal, and a colour and a marker per policy.
#
# A figure is drawn by `kvlab plot`, which writes a table (.dat) and a script (.gp) beside the picture.
# The script sets the variables below, then loads this file and fig_<name>.gp; it can be edited and
# run again with gnuplot alone.
#
#   format        "svg", "png" or "pdf"  out       file to write
#   width height  pixels of the picture home      this folder
#
# Policies keep their colour and marker in every figure.  One that is not listed here gets both from
# the letters of its name: the same in every figure, on every machine, and in a colour that no listed
# one has.  Two of them may meet; a row in kvl_known parts them.  Variants of a policy, such as
# "quest(page=8)", have the colour of the policy and a marker and dash of their own.

if (!exists("page_columns")) { page_columns = 0 }
if (format eq "pdf") {
    inches = page_columns == 1 || (page_columns == 2 && n_columns == 1) ? 3.4 : 7.0
    set terminal pdfcairo size inches,inches*height/width font "DejaVu Sans,11" \
        fontscale (1.08*72*inches/width) linewidth (80*inches/width) background rgb "white" noenhanced \
        pointscale (85*inches/width)
} else { if (format eq "png") {
    set terminal pngcairo size 2*width,2*height font "DejaVu Sans,11" fontscale 2 linewidth 1.6 \
        pointscale 1.7 background rgb "white" noenhanced
} else {
    set terminal svg size width,height font "DejaVu Sans,DejaVuSans,Verdana,sans-serif,11" \
        background rgb "white" noenhanced
} }
set output out
set encoding utf8

# name colour marker.  Colours: Okabe and Ito's, and darker ones, apart for the colour-blind as far
# as that many can be; open and filled markers tell the rest.  Close colours have unlike markers, and
# no two methods the same pair.  Bounds; evicting; reading a part; from the host tier; prefill and
# positions.
kvl_known = "full #000000 13   random #9a9a9a 2   oracle #5a5a5a 12 \
    snapkv #d55e00 5   pyramidkv #8c510a 4   adakv #b2182b 8   chunkkv #b15928 12   kvzip #666a00 14 \
    expected_attention #a6761d 6   keydiff #2c7fb8 14   knorm #6a3d9a 4   lagkv #8c2d04 11 \
    streaming_llm #cc79a7 11   h2o #009e73 9   tova #e69f00 13   fastgen #c7a500 15 \
    h2o_sim #004d38 8   quest #0072b2 7   infllm #56b4e9 6   omnikv #7b3294 15   ktransformers #08306b 11 \
    ktransformers_code #4a6fa5 9 \
    twilight #1f3b73 13   magicpig #c51b7d 10   sparq #01665e 10   vattention #4a1486 5   rocketkv #e7298a 7 \
    brute_offload #737373 6   arkvale #3690c0 5   infinigen #66a61e 6   shadowkv #1b7837 4 \
    pqcache #00876c 12   retroinfer #7570b3 9 \
    minference #5ab4ac 11   omnikv_prefill #7b3294 14   duo_attention #d94801 14 \
    self_extend #c994c7 8   context_shift #dd1c77 4 \
    random_decode #8fb339 4   criticalkv #b07aa1 9   criticalada #2f4b7c 14   defensivekv #a05195 7 \
    defensivekv_layer #d45087 12   compactor #f95d6a 5   leverage #ff7c43 10   noncausal #665191 15 \
    curdkv #003f5c 8   capkv #7a9e9f 13   qfilters #bc5090 6   finch #8fb339 14 \
    simlayerkv #b07aa1 7   entropychunkkv #2f4b7c 12   dms #a05195 5   block #d45087 10 \
    chunk #f95d6a 15   per_layer #ff7c43 8   key_rerotation #665191 13   decode #003f5c 6 \
    rkv #7a9e9f 11   triattention #bc5090 4   kvzap #8fb339 7   dms_decode #ff7c43 14"
kvl_n_known = words(kvl_known) / 3

# For policies that are not listed: any of these colours with any of these markers.
kvl_colours = "#4477aa #ee6677 #228833 #aa8800 #66ccee #aa3377 #994455 #004488 #997700 #117733 \
    #882255 #332288"
kvl_markers = "4 5 6 7 8 9 10 11 12 13 14 15"

kvl_letters = "abcdefghijklmnopqrstuvwxyz0123456789_-=,.()ABCDEFGHIJKLMNOPQRSTUVWXYZ "
kvl_hash(s) = strlen(s) == 0 ? 0 : \
    int(sum [kvl_i=1:strlen(s)] ((3*kvl_i + 1) * (1 + strstrt(kvl_letters, s[kvl_i:kvl_i]))))
# A policy that wraps another is called "adakv(keydiff)": a variant of the outer one, but for the one that
# it usually wraps.
kvl_usual = "adakv(snapkv) chunkkv(snapkv) pyramidkv(snapkv) twilight(quest)"
kvl_wraps(s) = int(sum [kvl_i=1:words(kvl_usual)] \
    (strstrt(s, word(kvl_usual, kvl_i)) == 1 ? strlen(word(kvl_usual, kvl_i)) : 0))
kvl_plain(s) = kvl_wraps(s) > 0 ? s[1:strstrt(s, "(")-1] . s[kvl_wraps(s)+1:strlen(s)] : s
# Where the name ends and options begin: "quest(page=8)", "h2o, own prefill", "top 64".
kvl_at(s, c) = strstrt(s, c) > 0 ? strstrt(s, c) : 1000
kvl_least(a, b) = a < b ? a : b
kvl_first(s) = kvl_least(kvl_at(s, "("), kvl_least(kvl_at(s, ","), kvl_at(s, " ")))
kvl_cut(s) = kvl_first(s) < 1000 ? kvl_first(s) : 0
kvl_name(s) = kvl_cut(s) > 1 ? s[1:kvl_cut(s)-1] : s
kvl_options(s) = kvl_cut(s) > 1 ? s[kvl_cut(s):strlen(s)] : ""
kvl_base(s) = kvl_name(kvl_plain(s))
kvl_variant(s) = kvl_options(kvl_plain(s))
kvl_row(s) = int(sum [kvl_i=1:kvl_n_known] (word(kvl_known, 3*kvl_i-2) eq s ? kvl_i : 0))

kvl_colour_of(s) = kvl_row(s) > 0 ? word(kvl_known, 3*kvl_row(s)-1) \
    : word(kvl_colours, 1 + kvl_hash(s) % words(kvl_colours))
kvl_marker_of(s) = kvl_row(s) > 0 ? int(word(kvl_known, 3*kvl_row(s))) \
    : int(word(kvl_markers, 1 + kvl_hash(s) / words(kvl_colours) % words(kvl_markers)))
kvl_colour(s) = kvl_colour_of(kvl_base(s))
kvl_marker(s) = kvl_variant(s) eq "" ? kvl_marker_of(kvl_base(s)) \
    : int(word(kvl_markers, 1 + kvl_hash(s) % words(kvl_markers)))
kvl_is_bound(s) = kvl_base(s) eq "full" || kvl_base(s) eq "random" || kvl_base(s) eq "oracle"
# full: solid; random: dotted; oracle: dashed; methods solid, their variants dashed each in its way.
kvl_dash(s) = kvl_base(s) eq "random" ? 3 : kvl_base(s) eq "oracle" ? 2 \
    : kvl_variant(s) eq "" ? 1 : 1 + kvl_hash(kvl_variant(s)) % 5

set border 3 lw 0.8 lc rgb "#444444"
set tics nomirror out scale 0.6 textcolor rgb "#222222"
set grid ytics lt 1 lw 0.6 lc rgb "#e2e2e2"
set errorbars small
set format '%h' # no blank before a number
