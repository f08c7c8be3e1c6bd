#!/usr/bin/env bash
# tables.sh - the tables of results/demo.md and results/methods.md, in markdown, from logs.
#
#   harness/tables.sh demo [LOG...]       accuracy at 4096 tokens (default results/demo/demo.jsonl.zst)
#   harness/tables.sh methods [LOG...]    all methods, mean of the tasks (of results/)
#
# Wants jq and zstd, which harness/demo.sh installs, and the program, which it builds (or KVLAB=PROGRAM): the
# intervals are those of kvlab report.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# What both tables share.  Of records of the same point (16 digits, by whatever code) the latest counts.
shared='
def percent: 100 * . | round;
def score: if . then "\(.p | percent) (\(.lo | percent)-\(.hi | percent))" else "-" end;
def head: "| | " + join(" | ") + " |", "|" + ("---|" * (1 + length));
def row: "| " + join(" | ") + " |";
($told | map({ key: .cell, value: { p: .official, lo: .official_lo, hi: .official_hi } }) | from_entries) as $scores
| map(select(.kind == "cell")) | group_by(.cell[:16]) | map(last | .official = $scores[.cell])
| map(.label = .policy + if .options_asked != "" then "(\(.options_asked))" else "" end)'

table_demo() {
    jq -rs --slurpfile told "$told" "$shared"'
    | map(select(.length_tok == 4096))
    | [["passkey", "passkey"], ["kv_retrieval", "kv_retrieval"], ["two_stage_retr", "2StageRetr"]] as $tasks
    | [["question_in_prefill", "in prefill"], ["question_after_compress", "after"]] as $protocols
    | [$tasks[] as $t | $protocols[] as $p | [$t[0], $p[0], "\($t[1]), \($p[1])"]] as $columns
    | ["full", "omnikv", "quest", "infllm", "snapkv", "h2o", "streaming_llm", "random", "oracle"] as $order
    | (["budget"] + [$columns[][2]] | head),
      ( group_by([(.policy as $x | $order | index($x) // length), .label, .budget_tok])[]
      | . as $cells
      | ["`\(.[0].label)`", .[0].budget]
        + [$columns[] as $c | $cells | map(select(.task == $c[0] and .protocol == $c[1]))[0].official | score]
      | row )'
}

# What reads all has one cell that stands for every budget.
table_methods() {
    jq -rs --slurpfile told "$told" "$shared"'
    | (map(.budget_tok | values) | unique) as $budgets
    | ["question_in_prefill", "question_after_compress"] as $protocols
    | ["full", "oracle", "random"] as $bounds
    | ([$protocols[] | $budgets[] | tostring] | head),
      ( group_by(.label)
      | map(. as $cells
          | { policy: .[0].policy, label: .[0].label,
              values: [$protocols[] as $p | $budgets[] as $b | $cells
                       | map(select(.protocol == $p and (.budget_tok == null or .budget_tok == $b)) | .official.p)
                       | if length > 0 then add / length | percent else "-" end] })
      | sort_by((.policy as $x | $bounds | index($x) // length), # then by what the table shows
                (.values | map(numbers) | -add / length), .label)[]
      | ["`\(.label)`"] + .values | map(tostring) | row )'
}

case ${1-} in
demo) logs=("${@:2}") && [ $# -gt 1 ] || logs=("$kvl_root/results/demo/demo.jsonl.zst") ;;
methods) logs=("${@:2}") && [ $# -gt 1 ] || logs=("$kvl_root/results/figures/methods.jsonl.zst" "$kvl_root/results/methods/more.jsonl.zst") ;;
-h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
*) kvl_say "want demo or methods, see --help"; exit 2 ;;
esac
for log in "${logs[@]}"; do [ -f "$log" ] || { kvl_say "$log: not there"; exit 2; }; done
kvl_find_kvlab
told=$(mktemp)
trap 'rm -f "$told"' EXIT
"$kvlab" export "${logs[@]}" --format jsonl --out "$told"
text=$(zstdcat "${logs[@]}" | "table_$1")
[ "$(wc -l <<<"$text")" -gt 2 ] || { kvl_say "${logs[*]}: no cells for this table"; exit 1; }
printf '%s\n' "$text"
