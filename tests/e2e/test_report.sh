#!/usr/bin/env bash
# test_report.sh - report, export, status, inspect and log on a log whose numbers jq knows as well.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
. "$sources/tests/e2e/fake_log.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_report: $*" >&2
    exit 1
}
# expect WHAT WANT GOT
expect() {
    [ "$2" = "$3" ] || fail "$1 (< wanted, > got)"$'\n'"$(diff <(echo "$2") <(echo "$3") | head -n 12)"
}
# Ten digits: the last ones depend on who prints them.
digits='def digits: if type == "number" then . * 1e10 | round else . end;'
# contains WHAT PATTERN FILE
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in"$'\n'"$(head -n 60 "$3")"; }
lacks() { ! grep -qE -- "$2" "$3" || fail "$1: \"$2\" in $3"; }
# refused CODE PATTERN ARGUMENTS: that exit code, one line that matches
refused() {
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" "$@" > out 2> err || rc=$?
    expect "exit code of $*" "$code" "$rc"
    expect "lines of the message of $*" 1 "$(wc -l < err)"
    contains "message of $*" "$pattern" err
}
zst() { zstd -qf -o "$1"; }

fake_log > log.jsonl
zst log.zst < log.jsonl

# ---- export: the values of the log, unchanged, in order -----------------------------------------
"$program" export log.zst --format jsonl > cells.jsonl
fields='attended: .attended_tok, physical: .kv_physical_bytes, budget: .budget_tok, dense: .dense_tok'
expect "export of cells" \
    "$(jq -c "$digits select(.kind==\"cell\") | {cell, official: .official.p, $fields} | map_values(digits)" log.jsonl | sort)" \
    "$(jq -c "$digits {cell, official, $fields} | map_values(digits)" cells.jsonl | sort)"
# Intervals are by the correlation within contexts over all cells of a task: by jq from the formula of
# harness/lib/stats.h.  Logs tell the two sums, or, older ones, the n_eff of each cell.
intervals() { # intervals LOG_LINES: cell, n_eff, interval of the official score
    jq -sc 'def sums: (.n * .official.p * (1 - .official.p)) as $s | .official
          | if .between then {between, simple} else {simple:$s, between:(0.8 * $s * 10 / .n_eff)} end;
        def wilson($p;$n): 1.959963984540054 as $z | ($z*$z/$n) as $q | (($p+$q/2)/(1+$q)) as $mid
          | ($z/(1+$q)*(($p*(1-$p)/$n + $q/(4*$n))|sqrt)) as $half | [([0,$mid-$half]|max), ([1,$mid+$half]|min)];
        map(select(.kind == "cell")) | group_by(.task)[] | (map(sums | .between * 5 / 4 - .simple) | add) as $excess
        | (map(sums.simple) | add) as $pairs | ([0, $excess] | max) as $excess
        | ([1, ($excess + 0.25) / ($pairs + 0.25)] | min) as $icc | .[] | sums as $s
        | (if $s.simple > 0 then [5, 10 / ($s.between * 5 / 4 / $s.simple)] | max else 10 end) as $alone
        | ([$alone, 10 / (1 + $icc), 10] | min) as $n | [.cell, $n] + wilson(.official.p; $n)' "$1" | jq -c 'map(if type == "number" then . * 1e9 | round else . end)' | sort
}
same_intervals() {
    zst intervals.zst < "$1"
    expect "intervals of $1" "$(intervals "$1")" "$("$program" export intervals.zst --format jsonl |
        jq -c 'select(.protocol) | [.cell, .n_eff, .official_lo, .official_hi] | map(if type == "number" then . * 1e9 | round else . end)' | sort)"
}
fake_cells > alone.jsonl
zst alone.zst < alone.jsonl
same_intervals alone.jsonl
fake_cells 'if .kind == "cell" and .task == "passkey" then .official.n_eff = 6.25 else . end' > design.jsonl
same_intervals design.jsonl
fake_cells 'if .kind == "cell" then .official += {simple:(10 * .official.p * (1 - .official.p)), between:(11 * .official.p * (1 - .official.p))} else . end' > sums.jsonl
same_intervals sums.jsonl
# All right: the others tell how alike answers of one context are, and it is not one answer per context.
expect "10 of 10" "7.3 65.4" "$("$program" export intervals.zst --format jsonl |
    jq -r 'select(.protocol and .official == 1 and .task == "passkey") | "\(.n_eff * 10 | round / 10) \(.official_lo * 1000 | round / 10)"' | sort -u)"

expect "rows of cells" 301 "$("$program" export alone.zst | wc -l)"
expect "rows of samples" 3000 "$("$program" export log.zst --kind sample --format tsv --out samples.tsv && tail -n +2 samples.tsv | wc -l)"
expect "fields per row" 36 "$(awk -F'\t' '{ print NF }' samples.tsv | sort -u)"
expect "predictions with line feeds, in TSV" '12, "x"\nno' \
    "$(awk -F'\t' '$23 == "length" { print $22 }' samples.tsv | grep x | sort -u)"
"$program" export log.zst --kind sample --format jsonl > samples.jsonl
# README's line for pandas: a row per sample, its settings and scores as plain columns.
expect "rows that are not plain" 0 "$(jq -c 'select([.model, .task, .protocol, .policy, .options, .budget] | all(type == "string") | not)' samples.jsonl | wc -l)"
expect "scores that are no numbers" 0 "$(jq -c 'select([.official, .strict, .length_tok, .context, .question] | all(type == "number") | not)' samples.jsonl | wc -l)"
if python3 -c 'import pandas' 2> err; then
    expect "README's line for pandas" \
        "$(jq -sr 'map(select(.policy == "quest") | .official) | add / length * 1e6 | round' samples.jsonl)" \
        "$(python3 -c 'import pandas; print(round(1e6 * pandas.read_json("samples.jsonl", lines=True).groupby("policy").official.mean()["quest"]))')"
else
    echo "test_report: README's line for pandas was not tried: no python3 with pandas here"
fi
expect "samples" \
    "$(jq -c 'select(.kind=="sample") | [.cell,.context,.question,.official,.prediction,.attended_tok]' log.jsonl | sort)" \
    "$(jq -c '[.cell,.context,.question,.official,.prediction,.attended_tok]' samples.jsonl | sort)"
expect "speed" \
    "$(jq -c 'select(.kind=="speed") | [.cell, (.step_ns|sort|.[1]), .ttft_ns]' log.jsonl | sort)" \
    "$("$program" export log.zst --kind speed --format jsonl | jq -c '[.cell, .step_p50_ns, .ttft_ns]' | sed 's/\.0//' | sort)"
expect "median of the repeats" \
    "$(jq -s '[.[]|select(.kind=="speed" and .policy=="quest" and .length_tok==4096)|.decode_tok_per_s]|sort|.[1]|.*1e6|round' log.jsonl)" \
    "$(jq -s '[.[]|select(.policy=="quest" and .length_tok==4096 and .budget=="256")|.decode_tok_per_s]|unique|.[0]*1e6|round' cells.jsonl)"
expect "CSV quotes" '"12, ""x""' "$("$program" export log.zst --kind sample | grep -o '"12, ""x""' | sort -u)"

# ---- the table ----------------------------------------------------------------------------------
"$program" report log.zst > table
awk '/kv_retrieval  question_after_compress  1024/ { on = 1 } /^$/ { on = 0 } on' table > block
expect "policies in order" "full h2o quest snapkv streaming_llm random oracle" \
    "$(awk 'NR > 2 && $2 != "the" { print $1 }' block | uniq | tr '\n' ' ' | sed 's/ $//')"
percent() { awk '{ printf "%.1f %2.0f-%.0f", 100 * $1, 100 * $2, 100 * $3 }'; }
want=$(jq -r 'select(.cell=="kv_retrieval-question_after_compress-1024-quest-256")
    | [.official, .official_lo, .official_hi] | @tsv' cells.jsonl | percent)
contains "accuracy and interval of quest 256" "^  quest +256 +256 +1024 +$want " block
[ "$(awk '{ print length }' table | sort -n | tail -1)" -le 137 ] || fail "the table is wider than 137"
contains "what bounds are" '^Bounds, not methods' table
lacks "stale results" 'other code' table
# The strict score has a column where it differs from the official one in any row.
lacks "a note on strict scores" 'without strict' table
expect "columns of strict scores" 12 "$(grep -c 'strict %' table)"
fake_cells 'if .kind == "cell" and .cell != "passkey-question_in_prefill-4096-quest-256" then .strict = .official else . end' | zst alike.zst
"$program" report alike.zst > alike
expect "strict scores of one row" "passkey question_in_prefill 4096" \
    "$(awk '/^tiny-8L/ { block = $2 " " $3 " " $4 } /strict %/ && /policy/ { print block }' alike)"
contains "the note on strict scores" '^A table without strict %: it is official % in every row' alike
contains "the other columns" '^  policy +budget +attended +dense +official % +best layer +tok/s +read/tok +index/tok +KV held +n/ctx$' alike
fake_cells 'if .kind == "cell" then .strict = .official else . end' | zst alike.zst
[ "$("$program" report alike.zst | awk '{ print length }' | sort -n | tail -n 1)" -le 123 ] || fail "tables without strict scores are wider than 123"

# Waits of the host for a GPU stand beside the speed wherever that does, and nowhere without one.
fake_cells 'if .kind == "speed" then .gpu = { syncs: (.step_ns | length * 13) } else . end' | zst waits.zst
for form in "" "--summary" "--html waits.html"; do
    # shellcheck disable=SC2086
    "$program" report waits.zst $form > waits
    [ -z "${form##*html*}" ] && [ -n "$form" ] && cp waits.html waits
    contains "waits beside the speed, report $form" 'waits/tok' waits
    contains "waits of a token, report $form" '13\.0' waits
done
lacks "waits without a GPU" 'waits/tok' table
for kind in cell speed; do
    expect "waits in rows of kind $kind" 13 "$("$program" export waits.zst --kind $kind --format jsonl | jq -r 'select(.waits_per_tok) | .waits_per_tok' | sort -u)"
done
# They are of the records that the speed is of: those of the same task where there are any.
fake_cells 'if .kind == "speed" then (.gpu = { syncs: (.step_ns | length * 13) }),
        (.cell += "-2" | .key += "2" | .task = "kv_retrieval" | .gpu = { syncs: (.step_ns | length * 40) }) else . end' | zst waits.zst
expect "waits of each task" "kv_retrieval 40 passkey 13" "$("$program" export waits.zst --kind cell --format jsonl |
    jq -r 'select(.waits_per_tok and .protocol) | "\(.task) \(.waits_per_tok)"' | sort -u | tr '\n' ' ' | sed 's/ $//')"

# Recall: the mean over the lanes in which oracle, at its smallest budget, attends half of the evidence or more;
# in the fake log lane 0 always is one, lane 1 where oracle's share is; the best layer stands apart.
expect "recall of retrieving lanes" \
    "$(jq -sc 'def mean: add / length; def digits: . * 1e9 | round;
        map(select(.kind == "sample")) | group_by(.cell) | map({id: .[0].cell, lanes: (map(.lane_recall[0]) | transpose | map(mean))})
        | (map({key: .id, value: .lanes}) | from_entries) as $all | .[] | (.id | split("-")) as $k
        | $all[($k[:3] + ["oracle", "64"]) | join("-")] as $oracle
        | [.id, ([.lanes, $oracle] | transpose | map(select(.[1] >= 0.5) | .[0]) | mean | digits)]' log.jsonl | sort)" \
    "$(jq -c 'select(.protocol) | [.cell, (.recall * 1e9 | round)]' cells.jsonl | sort)"
expect "recall of the best layer" "$(jq -c "$digits select(.kind==\"cell\") | [.cell, (.recall.mean | digits)]" log.jsonl | sort)" \
    "$(jq -c "$digits select(.protocol) | [.cell, (.recall_best_layer | digits)]" cells.jsonl | sort)"
contains "what recall is" '^recall: share of the evidence attended, mean over the layers and heads that retrieve' table
fake_log 'select(.kind != "sample" or (.cell | test("-oracle-") | not))' | zst no-oracle.zst
"$program" report no-oracle.zst --summary > out
lacks "a headline without oracle" '^  policy .* recall' out
contains "the best layer without oracle" '^  policy .* best layer' out
contains "why there is no headline" 'wants samples and the policy oracle' out

"$program" report alone.zst --by length > by
contains "one column per length" '^  policy +budget +1024 +4096 +16384$' by
want=$(jq -r 'select(.kind=="cell" and .task=="kv_retrieval" and .protocol=="question_after_compress"
    and .policy=="oracle" and .budget=="64") | .official.p' log.jsonl | awk '{ printf " +%.1f", 100 * $1 }')
contains "the row of oracle 64" "^  oracle +64$want\$" by

# Needles at random depths: right answers by the quarter that they lie in.
cell='.task == "passkey" and .protocol == "question_in_prefill" and .length_tok == 4096 and .policy == "quest" and .budget == "128"'
id=$(jq -r "select(.kind == \"cell\" and $cell) | .cell" log.jsonl)
fake_log 'if .kind == "sample" then .depth = (.context * 2 + .question) / 11 else . end' > deep.jsonl
zst deep.zst < deep.jsonl
"$program" report deep.zst --by depth > by
contains "a column per quarter" '^  policy +budget +0..25 % +25..50 % +50..75 % +75..100 % +n *$' by
want=$(jq -rs --arg id "$id" '[.[] | select(.kind == "sample" and .cell == $id)] | group_by(.depth * 4 | floor)
    | (map(" +\(map(.official) | 1000 * add / length | round / 10 | tostring | if test("[.]") then . else . + ".0" end)") | add) + " +"
        + (map(length | tostring) | join(", "))' deep.jsonl)
sed -n '/passkey  question_in_prefill  4096/,/^$/p' by > block
contains "quarters of quest 128" "^  quest +128$want *\$" block

# The summary tells speed and bytes of one length for all rows, '-' where a row has none of it.
fake_cells 'if .policy == "snapkv" and .length_tok == 16384 then empty else . end' | zst short.zst
"$program" report short.zst --summary > summary
contains "the length of the footer" 'KV held: 16384 tokens' summary
contains "a row without that length" '^  snapkv +64( +[0-9.]+ +[0-9]+-[0-9]+){4} +[0-9.]+ +- +- +- +80$' summary
contains "a row with that length" '^  h2o +64( +[0-9.]+ +[0-9]+-[0-9]+){4} +[0-9.]+ +- +256 KiB +256 KiB +120$' summary

fake_cells 'select(.kind == "run" or .kind == "speed")' | zst speeds.zst
"$program" report speeds.zst --summary > summary
contains "speed alone" '^  h2o +256 +[0-9]+ +1.0 MiB +1.0 MiB +0$' summary
contains "speed alone, its length" 'KV held: 16384 tokens' summary

# A share of the context is one row, whatever it is in tokens at each length.
fake_cells 'select(.kind == "run" or .kind == "cell") | if .budget_tok != null then .budget = "\(.budget_tok * 100 / 1024)%" | .budget_tok = .budget_tok * .length_tok / 1024 else . end' | zst shares.zst
"$program" report shares.zst --summary > summary
expect "rows of shares" "quest 6.25% 120, quest 12.5% 120, quest 25% 120, quest 50% 120" \
    "$(awk '$1 == "quest" { printf "%s%s %s %s", n++ ? ", " : "", $1, $2, $NF }' summary)"

"$program" report shares.zst --by length > by
expect "shares across lengths" "quest 6.25% 3, quest 12.5% 3, quest 25% 3, quest 50% 3" \
    "$(awk '/passkey  question_in_prefill/ { on = 1 } /^$/ { on = 0 }
        on && $1 == "quest" { n = 0; for (i = 3; i <= NF; i++) n += $i ~ /^[0-9.]+$/; printf "%s%s %s %d", m++ ? ", " : "", $1, $2, n }' by)"
expect "their accuracy" "$(jq -rs '[.[] | select(.kind == "cell" and .task == "passkey" and .protocol == "question_in_prefill"
        and .policy == "quest" and .budget == "256")] | sort_by(.length_tok) | map(.official.p * 100 * 10 | round / 10) | @tsv' log.jsonl)" \
    "$(awk '/passkey  question_in_prefill/ { on = 1 } /^$/ { on = 0 } on && $1 == "quest" && $2 == "25%" { print $3 + 0 "\t" $4 + 0 "\t" $5 + 0 }' by)"

# What the key of a cell tells apart is no row beside it and no pool with it: KV type, model file,
# seed are blocks; cells of other contexts or questions are left out, and a note says so.
other() { # other KEY_SUFFIX CONTEXTS RUN_EDIT CELL_EDIT: 256 tokens of h2o and quest once more
    fake_cells 'select(.kind=="run" or (.kind=="cell" and .length_tok==1024 and .task=="passkey" and .protocol=="question_in_prefill"
        and (.policy|IN("h2o","quest")) and .budget=="256")) | .run = "'"$1"'" | if .kind == "run" then '"$3"'
        else .cell += "'"$1"'" | .n = 2*'"$2"' | .n_contexts = '"$2"' | .t_end = "2026-01-03" | '"$4"' end'
}
cat alone.jsonl <(other q8 5 '.store.kv_type="q8_0"' .) | zst kinds.zst
"$program" report kinds.zst > table
contains "a row of its own for a KV type" '^  [a-z0-9_]*, kv q8_0 ' table
contains "and the other" '^  [a-z0-9_]*, kv f16 ' table
cat alone.jsonl <(other f2 5 '.model.hash="1234567890abcdef"' .) | zst kinds.zst
"$program" report kinds.zst > table
contains "a block of its own for a model file" '^tiny-8L, file 1234567890ab  passkey' table
cat alone.jsonl <(other s3 5 . '.key = "x;seed=3;policy=h2o/1"') | zst kinds.zst
"$program" report kinds.zst --summary > table
contains "a table of its own for a seed" '^tiny-8L, seed 3  on cpu' table
cat alone.jsonl <(other few 2 . .) <(other many 50 . .) <(other some 9 . .) | zst kinds.zst
"$program" report kinds.zst > table
awk '/passkey  question_in_prefill  1024/ { on = 1 } /^$/ { on = 0 } on' table > block
expect "the cell with the most samples" "quest 256 100/50" "$(awk '$1 == "quest" && $2 == 256 { print $1, $2, $NF }' block)"
contains "the note on the others" '^6 cells are not in the tables: another cell of the same point has more' table
expect "all cells in the export" 307 "$("$program" export kinds.zst | wc -l)"
contains "all cells in the status" '^cells +306 done' <("$program" status kinds.zst)
"$program" report kinds.zst --summary > summary
contains "no context twice" '^  quest +256 .* 210$' summary

# Speed of other threads is no repeat of it: 2 threads with the cells, 8 threads in its own block.
{ cat alone.jsonl; fake_cells 'select(.kind == "speed") | .cell += "8" | .threads = 8 | .decode_tok_per_s *= 4'; } | zst threads.zst
expect "speed of the threads of the run" "$(jq -c '[.cell, .decode_tok_per_s]' cells.jsonl)" \
    "$("$program" export threads.zst --format jsonl | jq -c 'select(.task != null and .protocol != null) | [.cell, .decode_tok_per_s]')"
"$program" report threads.zst > table
contains "a block for the other threads" '^tiny-8L, 8 threads on node1  passkey  speed only  1024 tokens' table
contains "the note on threads" '^Speed was measured on several machines or with several numbers of threads' table

# The speed of a cell that is not shown is shown by itself.
fake_cells '., (if .kind == "run" then .run = "more" | .machine.threads = 8 elif .kind == "speed" then .cell += "8" | .threads = 8
    elif .kind == "cell" then .run = "more" | .cell += "x" | .n = 20 | .n_contexts = 10 else empty end)' | zst more.zst
"$program" report more.zst > table
contains "the speed of what is not shown" '^tiny-8L, 2 threads on node1  passkey  speed only  1024 tokens' table
lacks "the speed of what is shown" '8 threads on' table

# Two versions of a method are two rows and two curves, and no other method is called by its version.  A new
# version's speed is not that of the old one.
cat alone.jsonl <(fake_cells 'select(.policy == "quest") | .cell += "-v2" | .policy_version = 2 | if .kind == "speed" then .decode_tok_per_s *= 10 else . end') | zst versions.zst
"$program" report versions.zst > table
awk '/passkey  question_in_prefill  1024/ { on = 1 } /^$/ { on = 0 } on' table > block
expect "rows of two versions" "quest v1 64, quest v1 128, quest v1 256, quest v1 512, quest v2 64, quest v2 128, quest v2 256, quest v2 512" \
    "$(awk '$1 == "quest" { printf "%s%s %s %s", n++ ? ", " : "", $1, $2, $3 }' block)"
contains "others without a version" '^  snapkv +64 ' block
# Options that only the versions differ in are no part of the names.
cat alone.jsonl <(fake_cells 'select(.policy == "quest") | .cell += "-v2" | .policy_version = 2 | .options |= sub("page=16"; "page=32")') | zst options.zst
"$program" report options.zst > options
lacks "options of two versions" 'page=' options
speeds() { "$program" export versions.zst --format jsonl | jq -s "[.[] | select(.policy == \"quest\" and .policy_version == $1) | .decode_tok_per_s]"; }
expect "speeds of two versions" "$(speeds 1 | jq -c 'map(values * 10 | round)')" "$(speeds 2 | jq -c 'map(values | round)')"
lacks "two versions as one" 'not in the tables' table
"$program" report versions.zst --summary > summary
contains "a row of the summary" '^  quest v2 +64 ' summary
"$program" report versions.zst --by length > by
contains "a row by length" '^  quest v2 +64 ' by
expect "labels of the export" "quest v1 48, quest v2 48" \
    "$("$program" export versions.zst --format jsonl | jq -r 'select(.policy == "quest").label' | sort | uniq -c | awk '{ printf "%s%s %s %s", n++ ? ", " : "", $2, $3, $1 }')"
"$program" plot accuracy_budget versions.zst --task passkey --length 4096 --format svg --out versions > said
expect "curves of two versions" "quest v1 quest v2" "$(sed -nE 's/^# panel 1, (quest.*)/\1/p' versions/accuracy_budget.dat | xargs)"

# Paired: questions that only one of the two got right, by jq.
"$program" report log.zst --vs snapkv > vs
pair=$(jq -rs '[.[]|select(.kind=="sample")] as $s
    | def right($p): [$s[]|select(.cell=="passkey-question_in_prefill-4096-\($p)-256")]|sort_by(.context,.question)|map(.official);
    [right("quest"), right("snapkv")] | transpose
    | "\(map(select(.[0]>.[1]))|length) +\(map(select(.[0]<.[1]))|length)"' log.jsonl)
awk '/passkey  question_in_prefill  4096/ { on = 1 } /^$/ { on = 0 } on' vs > block
contains "quest against snapkv" "^  quest +256 +10 .* $pair +[<0-9]" block

contains "what p is" '^p: two-sided sign-flip test over whole contexts' vs
contains "what p of all is" "^p of all: by Holm's procedure over all rows above" vs
# The least p of all rows is multiplied by their number.
expect "the least p, of all rows" "right" "$(awk '$1 == "policy" { for (i = 1; i <= NF; i++) if ($i == "p") next } /^  [a-z_]+ .* [0-9.<]+ +[0-9.<]+$/ { p = $(NF - 1); all = $NF; n++; if (p !~ /</ && (least == "" || p < least)) { least = p; its = all } }
    END { want = least * n; if (want > 1) want = 1; print (its - want < 0.01 && want - its < 0.01) ? "right" : "p " least " of " n ": " its ", want " want }' vs)"

# Questions that only one of the two answered are no pair: context 3 is missing in the middle.
jq -c 'select(.kind != "sample" or .cell != "passkey-question_in_prefill-4096-snapkv-256" or .context != 3)' log.jsonl | zst gap.zst
pair=$(jq -rs '[.[]|select(.kind=="sample" and .context != 3)] as $s
    | def right($p): [$s[]|select(.cell=="passkey-question_in_prefill-4096-\($p)-256")]|sort_by(.context,.question)|map(.official);
    [right("quest"), right("snapkv")] | transpose
    | "\(map(select(.[0]>.[1]))|length) +\(map(select(.[0]<.[1]))|length)"' log.jsonl)
"$program" report gap.zst --vs snapkv > vs
awk '/passkey  question_in_prefill  4096/ { on = 1 } /^$/ { on = 0 } on' vs > block
contains "pairs beside a gap" "^  quest +256 +8 .* $pair +[<0-9]" block
"$program" report gap.zst --vs quest > vs
awk '/passkey  question_in_prefill  4096/ { on = 1 } /^$/ { on = 0 } on' vs > block
contains "pairs, the gap on the other side" \
    "^  snapkv +256 +8 .* $(awk -F' [+]' '{ print $2 " +" $1 }' <<< "$pair") +[<0-9]" block

# Published logs have no samples: one line, and no rows of nothing.
fake_cells | zst published.zst
refused 2 '^kvlab: --vs: compares answer by answer, and the log has no samples' report published.zst --vs snapkv
expect "no table" "" "$(cat out)"
fake_log 'select(.kind != "sample" or .policy == null) | select(.kind != "sample" or (.cell | test("h2o|snapkv")))' | zst some.zst
"$program" report some.zst --vs snapkv > vs
expect "rows of what has samples" "h2o" "$(awk '/^  [a-z]/ && $1 != "policy" && $1 != "not" { print $1 }' vs | sort -u)"
for form in markdown latex csv; do
    mark=$(case $form in latex) echo '% ' ;; csv) echo '# ' ;; esac)
    "$program" report some.zst --vs snapkv --format $form > form
    contains "and of what has none, $form" "^${mark}Left out: [1-9]" form
    contains "notes, $form" "^${mark}p: two-sided sign-flip" form
done
contains "and of what has none" '^Left out: [1-9][0-9]* of [1-9][0-9]* rows, whose cells have no samples in the log\.$' vs
lacks "rows of n 0" '^  [a-z_0-9]+ +[0-9]+ +0 ' vs

# ---- what must not be overlooked ----------------------------------------------------------------
zst twice.zst < <(cat log.jsonl log.jsonl)
expect "a log read twice" "$(md5sum < cells.jsonl)" "$("$program" export twice.zst --format jsonl | md5sum)"
expect "files together" "$(md5sum < cells.jsonl)" "$("$program" export log.zst twice.zst --format jsonl | md5sum)"
expect "samples of a log read twice" 3001 "$("$program" export twice.zst --kind sample --format tsv | wc -l)"
zst texts.zst <<< '{"kind":"nll","schema":"kvlab/1","run":"5eed","cell":"perplexity-question_in_prefill-4096-full-0","context":0,"question":0,"nll_mean":2.1}'
expect "samples of a log behind one of texts" 3001 "$("$program" export texts.zst log.zst --kind sample --format tsv | wc -l)"

fake_log 'select((.cell // "" | test("oracle")) | not) | if .cell == "passkey-question_in_prefill-4096-h2o-64" and .kind=="cell" then .code = "older" else . end
    | if .kind == "sample" and .cell == "passkey-question_in_prefill-4096-full-0" and .context < 2 then .error = "no" | .official = null | .strict = null else . end
    | if .kind == "cell" and .cell == "passkey-question_in_prefill-4096-full-0" then .n = 6 | .n_errors = 4 else . end
    | select(.kind != "cell" or .cell != "passkey-question_in_prefill-4096-quest-64")' > worse.jsonl
echo '{"kind":"error","schema":"kvlab/1","run":"5eed","cell":null,"key":null,"context":null,"question":null,"status":"a policy broke its contract","message":"quest: slot 9 of 8"}' >> worse.jsonl
zst worse.zst < worse.jsonl
"$program" report worse.zst > table
contains "a stale row" '^  h2o \* +64 ' table
contains "the note on stale results" '^\* answered or timed by other code than that of the newest run .*: 1\.' table
fake_cells 'if .kind == "speed" and .policy == "snapkv" and .budget == "256" and .length_tok == 4096 then .code = "older" else . end' | zst timed.zst
"$program" report timed.zst > timed
contains "a row with a stale speed" '^  snapkv \* +256 ' timed
lacks "the star of another speed" '^  snapkv \* +64 ' timed
"$program" report worse.zst --by length > by
contains "a stale row of a table by length" '^  h2o \* +64 ' by
lacks "the star of another row" '^  h2o \* +128 ' by
contains "its note" '^\* answered or timed by other code' by
"$program" report worse.zst --vs snapkv > vs
contains "a stale row of differences" '^  h2o \* +64 ' vs
contains "its note" '^\* answered or timed by other code' vs
expect "stale cells in the export" passkey-question_in_prefill-4096-h2o-64 \
    "$("$program" export worse.zst --format jsonl | jq -r 'select(.stale).cell')"
expect "their samples" "passkey-question_in_prefill-4096-h2o-64 10" \
    "$("$program" export worse.zst --kind sample --format jsonl | jq -r 'select(.stale).cell' | uniq -c | awk '{ print $2, $1 }')"
"$program" plot accuracy_budget worse.zst --task passkey --length 4096 --format svg --out stale > said
contains "a stale curve" '^# panel [0-9], h2o \*$' stale/accuracy_budget.dat
lacks "the star of another curve" '^# panel [0-9], quest \*$' stale/accuracy_budget.dat
contains "what the star means" "^subtitle = .*\* answered or timed by other code" stale/accuracy_budget.gp
contains "a missing bound" '^  not run here: oracle' table
contains "failed samples in the row" '^  full .* 6/5 +4$' table
contains "failed samples below" '^4 of [0-9]* samples failed' table
contains "a cell that was cut off" '^Cut off and not in the table: 1 cell;' table
contains "errors by status" '1 x a policy broke its contract: quest: slot 9 of 8' table
"$program" status worse.zst > status 2> err || expect "a gate behind failures" 6 $?
contains "status" '^cells +251 done, 1 not finished, 1 with failed samples, 1 of other code than the newest run' status

# Why samples failed; errors until the cell has a result; what stops at an error needs --retry.
contains "why samples failed" '^  4 x no$' table
contains "why samples failed, status" '^  4 x no$' status
error='{"kind":"error","schema":"kvlab/1","run":"5eed","key":null,"context":null,"question":null,"status":"out of room","message":"store full"'
{ cat worse.jsonl; echo "$error,\"cell\":\"passkey-question_in_prefill-4096-quest-64\"}"; echo "$error,\"cell\":\"never\"}"; } > stopped.jsonl
zst stopped.zst < stopped.jsonl
"$program" report stopped.zst > table
lacks "a cell that an error stopped" '^Cut off' table
contains "cells that errors stopped" '^Stopped by an error and not in the table: 2 cells; sweep --retry' table
contains "their errors" '^  2 x out of room: store full$' table
contains "cells that errors stopped, status" '2 stopped by an error' <("$program" status stopped.zst)
fake_log 'select((.kind == "cell" or .kind == "sample") and .cell == "passkey-question_in_prefill-4096-quest-64" or (.kind == "sample" and .cell == "passkey-question_in_prefill-4096-full-0" and .context == 1))' |
    cat stopped.jsonl - | zst later.zst
"$program" report later.zst > table
contains "one error left" '^  1 x out of room' table
contains "one cell left" '^Stopped by an error and not in the table: 1 cell;' table
contains "a sample that was asked again" '^  2 x no$' table
contains "two errors of the log" '^2 errors:$' table

# Cells that are left: an error of a sweep whose run says how much there is counts, one of another does not.
fake_log 'if .kind == "run" then .sweep += {cells: 348, answers: 12000} else . end' > counted.jsonl
other=$(jq -c 'select(.kind == "run") | .run = "0ther" | .sweep.name = "other" | del(.sweep.cells)' counted.jsonl)
{ cat counted.jsonl; echo "$other"; echo "$error,\"cell\":\"never\"}"
  echo "$error,\"cell\":\"else\"}" | sed 's/5eed/0ther/'
  jq -c 'select(.kind == "cell") | .run = "0ther" | .cell += "-other" | .length_tok = 77' log.jsonl | sed -n 1p; } | zst counted.zst
"$program" status counted.zst > status2 2> err || expect "a gate before cells that are left" 75 $?
contains "cells left beside stopped ones" '^state +not running, 2 cells left' status2
contains "runs that do not say of how many" '345 of 348 done \(without those of 1 run ' status2

contains "the sweep" '^sweep +fake \(fake.yaml\)$' status
fake_cells 'if .kind == "run" then .sweep.file = null else . end' | zst single.zst
contains "a run without a file" '^sweep +fake$' <("$program" status single.zst)

# Options that follow from the budget stay out of the name; those that tell cells apart are in it.
fake_cells 'select(.kind == "cell" or .kind == "run") | ., (select(.policy == "quest") | .cell += "x" | .options = "page=32,dense_layers=2")' | zst variants.zst
"$program" report variants.zst > table
contains "a variant" '^  quest\(page=32\) +64 ' table
contains "and the other" '^  quest\(page=16\) +64 ' table
contains "no budget in a name" '^  snapkv +64 ' table

: | zst empty.zst
"$program" report empty.zst > table
contains "an empty log" '^No result yet' table
: > zero.zst
"$program" report zero.zst > table
contains "a file of no bytes" '^No result yet' table

# ---- damage -------------------------------------------------------------------------------------
split -n l/4 alone.jsonl part.
for part in part.*; do zstd -q "$part"; done
cat part.aa.zst part.ab.zst part.ac.zst part.ad.zst > damaged.zst
"$program" log check damaged.zst > said
contains "a whole log" ', whole$' said
size=$(stat -c %s part.aa.zst)
hit=$((size + $(stat -c %s part.ab.zst) / 2)) # whatever zstd made of it, this byte is another one then
printf "\\$(printf %03o $((255 ^ $(od -An -tu1 -j $hit -N 1 damaged.zst))))" |
    dd of=damaged.zst bs=1 seek=$hit conv=notrunc status=none
refused 5 'log repair' log check damaged.zst
contains "where it is damaged" "^damaged.zst: offset $size, $(stat -c %s part.ab.zst) bytes: no valid group" out
"$program" log repair damaged.zst > said
expect "records after the repair" "$(cat part.aa part.ac part.ad | wc -l)" "$(zstd -dcq damaged.repaired.zst | wc -l)"
"$program" log check damaged.repaired.zst > said
contains "a repaired log says what was lost" '^repaired 1 time, some groups \([0-9]* bytes\) were lost before$' said
refused 2 'exists' log repair damaged.zst
refused 2 '/dev/null: a device' log check /dev/null
refused 2 '/dev/null: no regular file' log repair /dev/null --out null.zst
refused 2 'no regular file' log repair "$dir"
refused 2 'none.zst: cannot open' log repair none.zst
[ ! -e null.zst ] && [ ! -e "$dir.repaired.zst" ] || fail "a repair of nothing wrote a file"
expect "a log from a pipe" "$(md5sum < cells.jsonl)" "$("$program" export <(cat log.zst) --format jsonl | md5sum)"
"$program" report damaged.zst > table
contains "the table of a damaged log" '^The log is not whole' table

# ---- the command line ---------------------------------------------------------------------------
"$program" inspect log.zst > said
contains "inspect" '^  cell +300$' said
"$program" inspect "$sources/datasets/model/kvlab-test.gguf" > said
contains "inspect of a model" '^architecture +llama$' said
contains "inspect of a model" '^runs +yes' said
"$program" inspect --all "$sources/datasets/model/kvlab-test.gguf" > said
contains "inspect --all of a model" 'general.architecture' said
for command in report export status inspect log plot; do
    "$program" $command --help > said
    contains "help of $command" '^Usage: kvlab' said
    refused 2 'no such option' $command --nonsense
done
for command in report export status; do refused 2 'no log given' $command; done
refused 2 'cannot open' report none.zst
refused 2 'want cell, sample, speed, curve, quality or analysis' export log.zst --kind nothing
refused 2 'want csv, tsv or jsonl' export log.zst --format xml
refused 2 'want task, protocol, length or depth' report log.zst --by colour
refused 2 'one of them' report log.zst --by length --csv
refused 2 'did you mean "snapkv"' report log.zst --vs snapvk
refused 2 'want check, repair or merge' log fix log.zst
refused 5 'not a kvlab log' report "$sources/CMakeLists.txt"
if [ -c /dev/full ]; then # by a link, so that a program that removes too much removes only that
    ln -s /dev/full full
    refused 4 '^kvlab: full: cannot write' export log.zst --out full
    [ -L full ] || fail "export removed what is no regular file"
fi
refused 4 'no/such/folder' export log.zst --out no/such/folder/x.csv
# A reader that has seen enough is no failure: nothing is said.  More than a pipe holds is written.
{ "$program" export log.zst --kind sample --format jsonl 2> err || echo $? > code; } | head -n 1 > out
expect "exit code of export | head" 141 "$(cat code)"
expect "what export | head says" "" "$(cat err)"

# ---- the summary for documents: as many rows and columns as the plain one -----------------------
"$program" report alone.zst --summary > plain
"$program" report alone.zst --summary --format markdown > md
"$program" report alone.zst --summary --format latex > tex
rows=$(awk '/^  policy /{ on = 1; next } on && /^  [A-F]  /{ exit } on' plain | grep -c .)
expect "rows in Markdown" $((rows + 2)) "$(grep -c '^|' md)"
expect "columns in Markdown" 1 "$(grep '^|' md | tr -cd '|\n' | sort -u | wc -l)"
expect "rows in LaTeX" $((rows + 1)) "$(grep -c '\\\\$' tex)"
contains "LaTeX" '^\\begin\{tabular\}\{l' tex
contains "LaTeX writes _ out" 'streaming\\_llm' tex
refused 2 'want text, markdown, latex, csv or html' report log.zst --summary --format word
refused 2 'want --summary, --by, --vs or a table' report log.zst --format latex
refused 2 'without --summary' report log.zst --by length --format html --out x.html
# The other tables in every form: the same numbers, and what is no table is a comment.
"$program" report alone.zst --by length > text
"$program" report alone.zst --by length --format csv > csv
numbers() { grep -E "$1" "$2" | head -n 1 | grep -oE '[0-9]+\.[0-9]' | xargs; }
expect "--by as csv" "$(numbers '^  snapkv +256' text)" "$(numbers '^snapkv,256,' csv)"
expect "only tables and comments" 0 "$(grep -cvE '^#|^$|,' csv || true)"
expect "--by as markdown" "$(numbers '^  snapkv +256' text)" \
    "$("$program" report alone.zst --by length --format markdown > md && numbers '^\| snapkv \| 256' md)"
"$program" report log.zst --vs full --format latex > tex
expect "only tables and comments in latex" 0 "$(grep -cvE '^%|^$|\\\\$|^\\(begin|end|toprule|midrule|bottomrule)' tex || true)"
fake_cells 'if .kind == "cell" then .evidence = {attended_right: 1, attended_wrong: 2, missed_right: 3, missed_wrong: 4, unknown: 0} else . end' | zst evidence.zst
"$program" report evidence.zst --evidence --format csv > csv
contains "a detail as csv" '^snapkv,256,1\+2,33\.3,3\+4,42\.9,' csv
refused 2 'want both or none' report log.zst --format html
refused 2 'without --summary' report log.zst --summary --format csv
expect "--format csv" "$("$program" report alone.zst --csv | md5sum)" "$("$program" report alone.zst --format csv | md5sum)"
"$program" report alone.zst --format html --out form.html > out && "$program" report alone.zst --html flag.html > out
cmp form.html flag.html || fail "--format html and --html differ"
