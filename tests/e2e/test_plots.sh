#!/usr/bin/env bash
# test_plots.sh - figures: their tables against jq, their pictures for what must be in them.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
. "$sources/tests/e2e/fake_log.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_plots: $*" >&2
    exit 1
}
expect() { [ "$2" = "$3" ] || fail "$1 (< wanted, > got)"$'\n'"$(diff <(echo "$2") <(echo "$3") | head -n 12)"; }
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in $3"; }
lacks() { ! grep -qE -- "$2" "$3" || fail "$1: \"$2\" in $3"; }
refused() {
    local code=$1 pattern=$2 rc=0
    shift 2
    env "${with[@]}" "$program" "$@" > out 2> err || rc=$?
    expect "exit code of $*" "$code" "$rc"
    contains "message of $*" "$pattern" err
}
with=() # NAME=VALUE for refused
# words SVG: its texts in one line, as the subtitle may have two.
words() { tr '\n' ' ' < "$1" | sed 's/<[^>]*>/ /g; s/[[:space:]]\{1,\}/ /g' > words; }
zst() { zstd -qf -o "$1"; }
fake_cells > log.jsonl
zst log.zst < log.jsonl
: | zst empty.zst

# Each listed figure has a script, and the other way round.
expect "figures" "$(cd "$sources/plots" && ls fig_*.gp | sed 's/^fig_//; s/\.gp$//')" \
    "$("$program" plot --list | awk '{ print $1 }' | sort)"
for script in "$sources"/plots/fig_*.gp; do
    contains "$script says what one should see" '^# One should see' "$script"
done

refused 2 'did you mean "speed_length"' plot speed_lenght log.zst
refused 2 'a figure and logs' plot accuracy_budget
refused 2 'want svg, png' plot accuracy_budget log.zst --format gif
refused 2 'want a number' plot accuracy_budget log.zst --length long
refused 2 '--policy qest: nothing of that in the log, did you mean "quest"' plot accuracy_budget log.zst --policy h2o,qest
refused 2 '--task foo: nothing of that in the log, it has passkey, kv_retrieval|kv_retrieval, passkey' plot accuracy_budget log.zst --task foo
refused 2 '--protocol x: nothing' plot accuracy_budget log.zst --protocol x
refused 2 '--budget 65: nothing' plot accuracy_budget log.zst --budget 65
refused 2 '--length 77: nothing of that in the log, the nearest is 1024' plot speed_length log.zst --length 77
refused 2 'the nearest is 16384' plot speed_length log.zst --length 99999
with=(KVL_HOME=/nowhere)
refused 4 'KVL_HOME' plot accuracy_budget log.zst
mkdir nothing
with=(PATH="$dir/nothing")
refused 4 'apt-get install gnuplot-nox' plot accuracy_budget log.zst
with=()
[ -s accuracy_budget.dat ] || fail "no table without gnuplot"
refused 4 '/dev/null' plot accuracy_budget log.zst --out /dev/null/x

if ! command -v gnuplot > /dev/null; then
    echo "test_plots: the rest is skipped, no gnuplot"
    exit 77
fi

# ---- tables -------------------------------------------------------------------------------------
"$program" plot accuracy_budget log.zst --task passkey --out a/b > said
expect "pictures" "a/b/accuracy_budget.svg a/b/accuracy_budget.png" "$(tr '\n' ' ' < said | sed 's/ $//')"
# A task is a row; its columns are protocols, what the method knows most first, and in them lengths.
expect "the grid" "6 6" "$(sed -nE 's/^n_(panels|columns) = //p' a/b/accuracy_budget.gp | paste -sd ' ')"
# points POLICY: its rows in the panel of 4096 tokens after compression
points() { awk -v p="# panel 5, $1" '$0 == p { on = 1; next } /^$/ { on = 0 } on { print $1, $5, sprintf("%.6f %.6f %.6f", $2, $3, $4) }' a/b/accuracy_budget.dat; }
"$program" export log.zst --format jsonl >cells.jsonl # test_report.sh checks its intervals
for policy in quest random oracle streaming_llm; do
    expect "points of $policy" \
        "$(jq -r "select(.policy==\"$policy\" and .task==\"passkey\" and .length_tok==4096 and .protocol==\"question_after_compress\")
            | [.attended_tok, .budget_tok, .official*100, .official_lo*100, .official_hi*100] | @tsv" cells.jsonl |
            sort -n | awk '{ printf "%s %s %.6f %.6f %.6f\n", $1, $2, $3, $4, $5 }')" "$(points "$policy")"
done
expect "full spans the panel" 2 "$(points full | wc -l)"
"$program" plot accuracy_budget log.zst --task passkey --length 1024 --protocol question_in_prefill \
    --policy full,quest --strict --format svg --out one > said
expect "series that were chosen" "full quest" \
    "$(sed -n 's/^# panel 1, //p' one/accuracy_budget.dat | tr '\n' ' ' | sed 's/ $//')"
contains "the strict score" 'strict score' one/accuracy_budget.svg
"$program" plot speed_length log.zst --out s > said
expect "speed of quest: lengths, medians" \
    "$(jq -rs '[.[]|select(.kind=="speed" and .policy=="quest")] | group_by(.length_tok)[]
        | "\(.[0].length_tok) \([.[].decode_tok_per_s]|sort|.[1]*1000|round)"' log.jsonl)" \
    "$(awk '/^# panel 1, quest/ { on = 1; next } /^$/ { on = 0 } on { printf "%d %.0f\n", $1, $2 * 1000 }' s/speed_length.dat)"
fake_log 'select(.task == null or .task == "passkey") | select(.kind != "sample" or (.cell | test("^passkey")))' | zst lanes.zst
"$program" plot recall_budget lanes.zst --out a/b > said

# Rows of all methods: the order is that of the mean distance from the mean of a column (a panel and a
# budget; full: a panel), dots are those of the log.
"$program" plot methods log.zst --length 4096 --format svg --out m > said
order=$(jq -rs '[.[] | select(.kind == "cell" and .length_tok == 4096)] as $c
    | [$c[] | . as $x | [$c[] | select(.task == $x.task and .protocol == $x.protocol and
        ($x.budget_tok == null or .budget_tok == $x.budget_tok)) | .official.p] as $column
        | {policy, above: (.official.p - ($column | add / length))}]
    | group_by(.policy) | map({policy: .[0].policy, above: (map(.above) | add / length)})
    | sort_by(-.above) | .[].policy' log.jsonl | xargs)
expect "methods, best first" "$order" "$(sed -n "s/^array y_tick.*= \[\(.*\)\]$/\1/p" m/methods.gp | tr -d "',")"
row=$(tr ' ' '\n' <<< "$order" | grep -n '^quest$' | cut -d : -f 1)
expect "dots of quest" \
    "$(jq -r 'select(.policy == "quest" and .length_tok == 4096 and .budget_tok == 256)
        | "\(.official * 1000 | round) \(.official_lo * 1000 | round) \(.attended_tok)"' cells.jsonl | sort)" \
    "$(awk -v row="$row" '/^# panel/ { on = /budget 256$/ } on && $2 == row { printf "%.0f %.0f %s\n", $1 * 10, $3 * 10, $6 }' m/methods.dat | sort)"
for name in full quest 'budget 64' 'budget 512'; do contains "methods" ">$name<" m/methods.svg; done

# ---- pictures -----------------------------------------------------------------------------------
for picture in a/b/accuracy_budget a/b/recall_budget s/speed_length; do
    for name in full quest snapkv; do contains "the legend" ">$name(<|  × )" $picture.svg; done
    contains "axes" 'tokens read, mean over all layers|context, tokens' $picture.svg
    contains "a white background" 'fill="white"|#ffffff' $picture.svg
    expect "$picture.png" "$(printf '\211PNG')" "$(head -c 4 $picture.png)"
done
# Behind a name of speed_length: its speed by that of full, at the longest length.
expect "quest by full" "quest  × $(awk '/^# panel/ { name = $NF } /^[0-9]/ { last[name] = $2 } END { printf "%.1f", last["quest"] / last["full"] }' s/speed_length.dat)" \
    "$(grep -oE 'quest  × [0-9.]+' s/speed_length.svg | head -n 1)"
# Above a bar of step_breakdown: the time of full by its own, at the same length.
"$program" plot step_breakdown log.zst --format svg --out s > said
expect "bars by full" \
    "$(jq -rs '[.[] | select(.kind == "speed" and .attend_ns != null)
            | {policy, length_tok, budget, ms: ((.attend_ns + .select_ns + .meta_ns + .evict_ns + .rest_ns) / (.step_ns | length))}]
        | group_by(.length_tok)[] | group_by([.policy, .budget])
        | map({policy: .[0].policy, ms: (map(.ms) | add / length)}) | (map(select(.policy == "full"))[0].ms) as $full
        | .[] | $full / .ms * 1000 | round' log.jsonl | sort -n)" \
    "$(awk '/^[0-9]/ && $7 > 0 { printf "%.0f\n", $7 * 1000 }' s/step_breakdown.dat | sort -n)"
[ "$(awk '/^[0-9]/ && $7 > 0' s/step_breakdown.dat | wc -l)" -gt 3 ] || fail "bars without their ratio to full"
contains "the ratio in the picture" '>×1\.0<' s/step_breakdown.svg
# Long names of bars make the picture higher, not the panel lower; without full nothing is told of it.
fake_cells 'if .policy == "quest" then .policy = "a_policy_whose_name_is_longer_than_thirty_nine_letters" else . end' | grep -v '"policy":"full"' | zst long.zst
"$program" plot step_breakdown long.zst --format svg --out long > said
awk -F '[ =]+' '{ v[$1] = $2 } END { exit !(v["panel_h"] == 250 && v["gap_y"] > 53 * 6 && v["height"] > v["top"] + v["panel_h"] + 53 * 6) }' long/step_breakdown.gp ||
    fail "no room for long names of bars"
words long/step_breakdown.svg
lacks "speed by that of full" 'by that of full' words
# Lengths of an axis have short names, which do not meet; a paper's column has the legend below.
for name in 1K 4K 16K; do contains "names of tokens" ">$name<" s/speed_length.svg; done
lacks "long names of tokens" '>(1024|4096)<' s/speed_length.svg
"$program" plot accuracy_budget log.zst --task passkey --columns 1 --format svg,pdf --out col > said
expect "panels below each other" "n_columns = 1" "$(grep '^n_columns' col/accuracy_budget.gp)"
awk -F '[ =]+' '$1 ~ /^(width|height|top|panel_h|gap_y|legend_y|n_panels)$/ { v[$1] = $2 }
    END { exit !(v["legend_y"] > v["top"] + v["n_panels"] * v["panel_h"] + (v["n_panels"] - 1) * v["gap_y"] && v["height"] > v["legend_y"] && v["width"] < 500) }' \
    col/accuracy_budget.gp || fail "no legend below the panels"
# A colour bar stands beside the panels in a column too; methods has four panels on a page of two columns.
fake_log 'select(.kind != "sample") | if .kind == "cell" then .depth = ([0, 0.5, 1][.budget_tok // 0 | . / 64 | floor | . % 3]) else . end' | zst deep.zst
"$program" plot needle_heatmap deep.zst --columns 1 --policy quest --task passkey --length 4096 --format svg --out col > said
awk -F '[ =]+' '{ v[$1] = $2 } END { exit !(v["legend_x"] == v["left"] + v["panel_w"] && v["width"] > v["legend_x"]) }' col/needle_heatmap.gp ||
    fail "a colour bar over the panel"
"$program" plot methods log.zst --columns 2 --format svg --out col > said
expect "panels of methods" "n_columns = 4" "$(grep '^n_columns' col/methods.gp)"
# Scripts go where their folder goes.
lacks "an absolute path" "['\"]/[a-z]+/" <(cat ./*/*.gp a/b/*.gp | sed "s/home\.'//")

words a/b/accuracy_budget.svg
contains "the number of questions" '10 questions in 5 contexts per point; bars: 95 %' words
lacks "underscores as subscripts" 'baseline-shift' a/b/accuracy_budget.svg
( cd a/b && rm -f accuracy_budget.png && gnuplot accuracy_budget.gp && [ -s accuracy_budget.png ] ) ||
    fail "the script cannot be run again"

# A policy keeps its colour whatever stands beside it; also one that nobody knows.
# colour NAME FILE: of the line in the legend
fake_cells 'if .policy == "h2o" then .policy = "my_method" else . end' | zst new.zst
"$program" plot accuracy_budget new.zst --task passkey --length 1024 --format svg --out c1 > said
"$program" plot accuracy_budget new.zst --task passkey --length 1024 --policy my_method --format svg --out c2 > said
"$program" plot accuracy_budget new.zst --task passkey --length 1024 --policy quest --format svg --out c3 > said
colour() { awk -v n=">$1<" 'index($0, n) { on = 1 } on && match($0, /<path stroke=.rgb\([^)]*\)/) { print substr($0, RSTART + 14, RLENGTH - 14); exit }' "$2"; }
[ -n "$(colour my_method c1/accuracy_budget.svg)" ] || fail "no colour found in c1/accuracy_budget.svg"
expect "the colour of a new policy" "$(colour my_method c1/accuracy_budget.svg)" "$(colour my_method c2/accuracy_budget.svg)"
expect "the colour of quest" "$(colour quest c1/accuracy_budget.svg)" "$(colour quest c3/accuracy_budget.svg)"
[ "$(colour quest c3/accuracy_budget.svg)" != "$(colour my_method c2/accuracy_budget.svg)" ] || fail "two policies, one colour"

# ---- nothing, one point, only failures ----------------------------------------------------------
"$program" plot accuracy_budget empty.zst --out e > said 2> err
contains "an empty log" 'No result to show' e/accuracy_budget.svg
contains "an empty log is told" 'no value to show' err # test_figures.sh looks at those of the other figures
fake_cells 'select(.kind=="run" or (.kind=="cell" and .cell=="passkey-question_after_compress-4096-quest-256"))' | zst point.zst
"$program" plot accuracy_budget point.zst --format svg --out p > said
contains "one point" '>quest<' p/accuracy_budget.svg
fake_log 'select(.kind != "sample" and (.kind != "cell" or (.task=="passkey" and .length_tok==4096 and .protocol=="question_after_compress")))
    | if .kind=="cell" then .n=0|.n_errors=40|.official={k:0,p:null,lo:null,hi:null,n_eff:0}|.strict=.official else . end' | zst failed.zst
"$program" plot accuracy_budget failed.zst --format svg --out f > said 2> err
contains "all failed" 'no score: all 1000 samples failed' f/accuracy_budget.svg
fake_cells 'select(.kind=="run" or (.kind=="cell" and .task=="passkey" and .length_tok==4096 and .protocol=="question_after_compress")) | if .policy=="quest" then .n_errors=3 else . end' | zst some.zst
"$program" plot accuracy_budget some.zst --format svg --out g > said
words g/accuracy_budget.svg
contains "some failed" '12 samples failed' words
fake_cells 'select(.kind=="run" or (.kind=="cell" and .task=="passkey" and .length_tok==4096 and .protocol=="question_after_compress" and .budget=="64")) | if .policy=="quest" then .n_errors=1 else . end' |
    cat - <(printf '{"kind":"error","cell":null,"policy":"%s","status":"a","message":"%s"}\n' h2o 'h2o: no' tova no h2o 'h2o: no' full 'disk full') | zst single.zst
"$program" plot accuracy_budget single.zst --format svg --out s > said
words s/accuracy_budget.svg
contains "one failed" ' 1 sample failed\.' words
for line in 'Errors in the log: 4\.' '1 × a: full: disk full' '2 × a: h2o: no' '1 × a: tova: no'; do contains "every reason" ">$line<" s/accuracy_budget.svg; done

# ---- a log from anywhere ------------------------------------------------------------------------
fake_cells 'if .policy == "h2o" then .policy = "x`touch ran`'"'"' \"; !touch ran" else . end
    | if .task then .task = "it'"'"'s `touch ran`" else . end' | zst hostile.zst
"$program" plot accuracy_budget hostile.zst --length 1024 --out h > said
[ ! -e ran ] && [ ! -e h/ran ] || fail "a name in a log was run as a command"
