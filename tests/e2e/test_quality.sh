#!/usr/bin/env bash
# test_quality.sh - reference passes: what they find of policies whose choice is known, that they change
# nothing else, and that a sweep resumes them.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
if ! command -v jq >/dev/null; then
    echo "$name: skipped, no jq"
    exit 77
fi

cat >some.yaml <<EOF
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [256]
protocols: [question_in_prefill, question_as_decode]
contexts: 3
questions: 2
policies: [full, oracle, random, quest, snapkv, {policy: streaming_llm, prefill: own}]
budgets: [64]
EOF
passes() {
    run_sweep some.yaml --set 'quality={questions: 1, steps: 4, top: [1, 10, 64]}' "$@"
}
kind() {
    lines_of "$1" | grep "\"kind\":\"$2\""
}

# ---- nothing else changes -------------------------------------------------------------------------

run_sweep some.yaml --log plain.zst 2>err || fail "without"
equal "dry run" \
    "12 cells in 1 groups: 2304 tokens to prefill, 72 questions to answer, 0 timed steps, 36 reference passes" \
    "$(passes --dry-run | grep ' cells in ')"
equal "with reference passes" "prefilled 3 contexts (768 tokens) for 72 samples, 0 contexts for 0 timed runs; 0 errors
6 contexts were read by the policies themselves
36 reference passes" "$(passes --log with.zst --stats 2>err)"
equal "samples" "$(results_of plain.zst | grep '"kind":"sample"')" \
    "$(results_of with.zst | grep '"kind":"sample"')"
equal "a sweep that asked for none" 12 "$(kind plain.zst cell | grep -c '"quality":null')"

# ---- what they find -------------------------------------------------------------------------------

# full reads everything, so that only rounding tells it from the dense run; oracle reads the tokens of
# the largest weights; random reads some.
kind with.zst cell | jq -r '.policy as $p | .quality |
    if $p == "full" then [$p, .n == 3, .select.recall[].mean == 1, .select.mass.mean > 0.999999,
        .select.out_error.mean < 1e-4, .kl_nats.mean < 1e-5, .top1.mean == 1]
    elif $p == "oracle" then [$p, .n == 3, .select.recall[0].mean == 1, .select.recall[1].mean > 0.99,
        .select.recall[2].mean < 0.999, .select.mass.mean > 0.7, .select.out_error.mean > 0.01]
    elif $p == "random" then [$p, .n == 3, .select.recall[2].mean < 0.5, .select.mass.mean < 0.6,
        .kl_nats.mean > 0.01]
    else [$p, .n == 3, .select.recall[1].mean < 1, .select.mass.mean < 0.99,
        .select.out_error.mean > 0.01] end | map(tostring) | join(" ")' | sort -u >found
! grep -q false found || fail "$(grep false found)"
equal "policies" 6 "$(wc -l <found)"
equal "steps, layers, heads, tops" '[4,2,2,3,4]' "$(kind with.zst quality |
    jq -c '[(.mass|length), (.mass[0]|length), (.mass[0][0]|length), (.recall|length), (.pos|length)]' |
    sort -u)"
# The tokens that were run: the last one of the question and those of the answer.
lines_of with.zst | jq -rs '(map(select(.kind == "sample")) | map({
        key: "\(.cell) \(.context) \(.question)", value: (.context_tok + .question_tok - 1) })
        | from_entries) as $at | map(select(.kind == "quality"))[]
    | (.pos[0] == $at["\(.cell) \(.context) \(.question)"]) and (.pos[3] == .pos[0] + 3)' |
    sort -u >at
equal "positions" true "$(cat at)"
"$program" report --quality with.zst >table || fail "no table"
grep -Eq '^ *oracle  *64  *1\.000 ' table || fail "oracle in the table: $(cat table)"
equal "rows of the export" $((36 * 4 * 2 * 2 * 3 + 1)) \
    "$("$program" export --kind quality with.zst | wc -l)"

# ---- resume ---------------------------------------------------------------------------------------

# A log without: the passes alone run, and records of cells are written again.
cp plain.zst later.zst
equal "asked for later" "prefilled 3 contexts (768 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors
6 contexts were read by the policies themselves
36 reference passes" "$(passes --log later.zst --stats 2>err)"
equal "asked for later: passes" "$(results_of with.zst | grep '"kind":"quality"')" \
    "$(results_of later.zst | grep '"kind":"quality"')"
equal "asked for later: cells" "$(results_of with.zst | grep '"kind":"cell"')" \
    "$(results_of later.zst | grep '"kind":"cell"' | grep -v '"quality":null')"
equal "nothing left" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(passes --log later.zst --stats 2>err)"
# Without the last five passes and what was made of them.
lines_of with.zst | awk '(/"kind":"quality"/ && ++n > 31) || /"kind":"cell"/ { next } { print }' |
    zstd -q >cut.zst
equal "cut off" 5 "$(passes --log cut.zst --stats 2>err | sed -n 's/ reference passes//p')"
equal "cut off: results" "$(results_of with.zst)" "$(results_of cut.zst)"
# Others than those in the log.
equal "more steps" 36 "$(run_sweep some.yaml --set 'quality={steps: 5, top: [1, 10, 64]}' \
    --log cut.zst --stats 2>err | sed -n 's/ reference passes//p')"
# A sweep that asks for none takes cells as they are.
equal "asked for no more" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep some.yaml --log with.zst --stats 2>err)"
