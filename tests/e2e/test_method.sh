#!/usr/bin/env bash
# test_method.sh - what methods count and say of themselves: in the log, in tables, exported; names of
# results; and the scores by which methods that name tokens themselves chose, in traces.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
. "$source_dir/tests/e2e/fake_log.sh"
cd "$work"
model=$source_dir/datasets/model/kvlab-tiny.gguf

cat >some.yaml <<EOF
model: $model
tasks: [{task: passkey, keys: 4}]
lengths: [256]
protocols: [question_in_prefill, question_after_compress]
contexts: 2
questions: 2
policies: [full, {policy: omnikv, filter_layers: [measured, "0+2"]}, infllm, {policy: infllm, prefill: own}]
budgets: [32, 128]
speed: {task: passkey, lengths: [256], budgets: [32], policies: [full, infllm], steps: 4, warmup: 1, repeats: 1}
EOF
run_sweep some.yaml --log some.zst 2>err || fail "sweep"
bash "$source_dir/tests/e2e/check_records.sh" some.zst "$source_dir/results/README.md" sample cell speed >said || fail "$(cat said)"

# holds WHAT NAME EXPRESSION: it is true of the list of all records
holds() { [ "$(lines_of "$2.zst" | jq -s "$3")" = true ] || fail "$1"; }

# ---- records ---------------------------------------------------------------------------------------

holds "methods that count nothing" some 'map(select(.policy == "full")) | length == 3 and all(.method == null and .notes == null)'
holds "numbers of samples" some '
    (map(select(.kind == "cell") | {key: .cell, value: .policy}) | from_entries) as $policy
    | map(select(.kind == "sample" and $policy[.cell] == "infllm"))
    | length == 32 and all(.method.blocks > 0 and .method.cache_hits + .method.cache_misses > 0)'
holds "numbers of speed records" some 'map(select(.kind == "speed" and .policy == "infllm")) | length == 1 and all(.method.cache_misses > 0)'
holds "a cell has the means of its samples" some '
    map(select(.kind == "sample")) as $samples
    | map(select(.kind == "cell" and .method)) | length == 16 and all(.cell as $id | .method | to_entries
        | all(.key as $k | [$samples[] | select(.cell == $id) | .method[$k] | select(.)] as $v
            | ($v | add / length) as $want | .value - $want | fabs < 1e-9 * (1 + ($want | fabs))))'
# Below four fifths of what lists of their own capture there is a note, else there is none.
holds "notes of omnikv" some '
    map(select(.kind == "sample" and .method.filters and .method.capture_own != null))
    | length == 16 and all((.notes != null) == (.method.capture_mean < 0.8 * .method.capture_own))
      and ([.[] | .notes != null] | unique) == [false, true]'
holds "no note without a measurement" some '
    (map(select(.kind == "cell") | {key: .cell, value: .options_asked}) | from_entries) as $asked
    | map(select(.kind == "sample" and $asked[.cell] == "filter_layers=0+2")) | length == 16 and all(.notes == null)'
holds "a cell counts notes" some '
    map(select(.kind == "sample" and .notes) | .cell) as $noted
    | map(select(.kind == "cell") | ([.cell] | inside($noted)) == (.notes != null)
          and (.cell as $id | (.notes // {} | add // 0) == ($noted | map(select(. == $id)) | length))) | all'

# A sweep that was cut off goes on with the numbers of the log.
zstd -dcq some.zst | jq -c 'select(.kind == "run" or .kind == "sample")' | zstd -q >cut.zst
run_sweep some.yaml --log cut.zst 2>err || fail "resume"
equal "cells of a sweep that was resumed" \
    "$(lines_of some.zst | jq -c 'select(.kind == "cell") | [.cell, .method, .notes]' | sort)" \
    "$(lines_of cut.zst | jq -c 'select(.kind == "cell") | [.cell, .method, .notes]' | sort)"

# ---- names ------------------------------------------------------------------------------------------

"$program" report some.zst >table || fail report
equal "names of results" 'full
infllm
infllm, own prefill
omnikv(filter_layers=0+2)
omnikv(filter_layers=measured)' "$("$program" export some.zst --format jsonl | jq -r .label | sort -u)"
sed 's/{policy: omnikv, filter_layers.*$/{policy: infllm, n_local: [12, auto]}, {policy: infllm, prefill: own, n_local: 12}]/' some.yaml >given.yaml
sed -i -e 's/\[full, /[/' -e '/^speed/d' given.yaml
run_sweep given.yaml --log given.zst 2>err || fail "sweep with options"
equal "names with options" 'infllm(n_local=12)
infllm(n_local=12), own prefill
infllm(n_local=auto)' "$("$program" export given.zst --format jsonl | jq -r .label | sort -u)"

# Logs from before options_asked: what differs between own and shared prefill follows from it.
lines_of some.zst | jq -c 'del(.options_asked)' | zstd -q >older.zst
equal "names of an older log" 'full
infllm
infllm, own prefill' "$("$program" export older.zst --format jsonl | jq -r .label | grep -v omnikv | sort -u)"

# ---- tables -----------------------------------------------------------------------------------------

grep -q '^What methods count themselves: kvlab report --method.$' table || fail "the way to --method"
"$program" report --method some.zst >table || fail "report --method"
lines_of some.zst | jq -r 'select(.kind == "cell" and .policy == "infllm" and .prefill == "own" and .protocol == "question_in_prefill")
    | [.budget, .method.blocks + 0] | @tsv' | sort -n | cut -f 2 | xargs >want
awk '/question_in_prefill/ { on = 1 } on && /^  infllm, own/ { row = 1 } row && $1 == "blocks" { print $2, $3; exit }' table >got
equal "a number by budget" "$(cat want)" "$(cat got)"
fake_log | zstd -q >none.zst
! "$program" report --method none.zst >said 2>err || fail "--method without numbers"
equal "the message of it" 1 "$(wc -l <err)"
! grep -q 'report --method' <("$program" report none.zst) || fail "a way to nothing"

# One line per label, the means over the answers that have the note.
fake_log 'if .kind == "cell" and .policy == "quest" then
    .method = {kept: (if .budget == "64" then 0.25 else 0.75 end), calls: 3}
    | .notes = (if .budget == "64" then {"keeps {kept%} in {calls} calls, {none} {": 6}
                elif .budget == "512" then {"keeps {kept%} in {calls} calls, {none} {": 2} else null end)
    else . end' | zstd -q >noted.zst
"$program" report noted.zst >table
# 12 blocks x (6 + 2) of 12 x 4 budgets x 10 answers; (6 x 0.25 + 2 x 0.75) / 8 = 37.5 %
equal "a note" 'quest: keeps 38 % in 3 calls, ? {; 96 of 480 answers.' "$(grep '^quest:' table)"

# ---- export -----------------------------------------------------------------------------------------

"$program" export noted.zst --format tsv >cells.tsv
equal "numbers in one column" 'kept=0.25 calls=3' "$(awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR > 1 && $at["policy"] == "quest" && $at["budget"] == 64 { print $at["method"] }' cells.tsv | sort -u)"
"$program" export some.zst --kind sample --format jsonl >samples.jsonl
equal "numbers of samples" "$(lines_of some.zst | jq -c 'select(.kind == "sample") | [.cell, .context, .question, .method]' | sort)" \
    "$(jq -c '[.cell, .context, .question, .method]' samples.jsonl | sort)"

# ---- traces -----------------------------------------------------------------------------------------

n=150 context=120 steps=6
for i in $(seq 1 80); do printf 'The river of %d was long, and the key is %d. ' $((i * 37 % 101)) $((i * 53 % 997)); done >text.txt
ids=1,$("$program" tokenize -m "$model" --ids text.txt | tr ' ' , | cut -d, -f 1-$((n - 1)))
trace() {
    local name=$1
    shift
    "$program" trace -m "$model" --threads 1 --ids "$ids" --context $context --steps $steps "$@" \
        --out "$name.zst" >said 2>err || fail "trace $*"
    bash "$source_dir/tests/e2e/check_records.sh" "$name.zst" "$source_dir/results/README.md" trace_score >said || fail "$(cat said)"
}
best='def best($s; $n): [range($s | length)] | sort_by([-$s[.], .])[:$n] | sort;'

# The filter layer's scores make the list of the layers behind it: the best of the context and the tail.
trace omnikv --policy omnikv:filter_layers=1+4 --budget 40
holds "lists of a filter" omnikv "$best"'
    (.[0].model.n_layers) as $n_layers
    | map(select(.kind == "trace_score")) as $scores
    | ($scores | length == 2 * '$steps' and all(.scope == "layer" and .unit_tok == 1 and (.score[0] | length) == '$context'))
      and (map(select(.kind == "trace_read" and (.dense | not)))
    | length == ($n_layers - 3) * '$steps' and all(. as $r
        | (if $r.layer < 4 then 1 else 4 end) as $filter
        | ($scores[] | select(.index == $r.index and .layer == $filter).score[0]) as $s
        | $r.read == [best($s; 39 - ($r.pos - '$context')) + [range('$context'; $r.pos + 1)]]))'

# Blocks of four behind four first tokens; a window of 20 and what was in no block before the step.
trace infllm --policy infllm:block_size=4,n_init=4,n_local=20,topk=3 --budget 40
holds "the best blocks" infllm "$best"'
    map(select(.kind == "trace_score")) as $scores
    | ($scores | all(.scope == "layer" and .unit_tok == 4 and .first_tok == 4))
      and (map(select(.kind == "trace_read"))
    | length == ($scores | length) and length > 0 and all(. as $r
        | ($scores[] | select(.index == $r.index and .layer == $r.layer).score[0]) as $s
        | ($r.pos - 4 - 20) as $far | ($far / 4 | floor) as $blocks
        | ($s | length) == $blocks and $r.read == [[range(4)] + [best($s; 3)[] as $b | range(4 + 4 * $b; 8 + 4 * $b)]
            + [range(4 + 4 * $blocks; $r.pos + 1)]]))'
"$program" trace -m "$model" --threads 1 --ids "$ids" --context $context --steps $steps --no-scores \
    --policy infllm:block_size=4,n_init=4,n_local=20,topk=3 --budget 40 --out silent.zst >said
reads() { lines_of "$1.zst" | jq -c 'select(.kind == "trace_read" or .kind == "trace_step") | del(.run)'; }
equal "scores change nothing" "$(reads infllm)" "$(reads silent)"
