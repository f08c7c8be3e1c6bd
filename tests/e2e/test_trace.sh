#!/usr/bin/env bash
# test_trace.sh - what a trace says is checked against what the methods promise, worked out here from the
# scores and positions in it.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
model=$source_dir/datasets/model/kvlab-tiny.gguf # it has several kv heads
n=150 context=120 steps=6

for i in $(seq 1 80); do printf 'The river of %d was long, and the key is %d. ' $((i * 37 % 101)) $((i * 53 % 997)); done >text.txt
ids=1,$("$program" tokenize -m "$model" --ids text.txt | tr ' ' , | cut -d, -f 1-$((n - 1)))

# trace NAME ARGUMENTS: NAME.zst
trace() {
    local name=$1
    shift
    "$program" trace -m "$model" --threads 1 --ids "$ids" --context $context --steps $steps "$@" \
        --out "$name.zst" >said 2>err || fail "trace $*"
}
records() { lines_of "$1.zst" | jq -c "select(.kind == \"$2\")"; }
# holds WHAT NAME EXPRESSION: it is true of the list of all records
holds() { [ "$(lines_of "$2.zst" | jq -s "$3")" = true ] || fail "$1"; }

# ---- full: everything, and the tokens of a dense run -----------------------------------------------

trace full --policy full --kv-type f32
holds "full reads everything" full 'map(select(.kind == "trace_read")) | length > 0 and all((.dense | not) and .read == null and .list_of_head == null)'
holds "a read per step and layer" full '(.[0].model.n_layers) as $l | map(select(.kind == "trace_read")) | length == $l * '$steps
equal "ids" "[$ids]" "$(records full trace | jq -c .ids)"
equal "steps" "$(seq -s ' ' $context $((context + steps - 1)))" "$(records full trace_step | jq .pos | xargs)"
"$program" logits -m "$model" --ids "$(cut -d, -f 1-$((context + 1)) <<<"$ids")" --out x.npy
n_vocab=$(head -c 128 x.npy | tr -cd '[:print:]' | sed -E 's/.*, ([0-9]+)\).*/\1/')
tail -c $((4 * n_vocab)) x.npy | od -An -v -t f4 -w4 | awk -v id="$(cut -d, -f $((context + 2)) <<<"$ids")" '
    { v[NR - 1] = $1; if (NR == 1 || $1 > most) { most = $1; best = NR - 1 } }
    END { for (i in v) sum += exp(v[i] - most); print best, log(sum) + most - v[id] }' >want
records full trace_step | jq -r 'select(.index == 0) | "\(.argmax) \(.nll)"' >got
paste want got | awk '{ d = $2 - $4; exit !($1 == $3 && d < 1e-3 && d > -1e-3) }' || fail "first step: $(paste want got)"

# ---- quest: the best pages of every kv head ----------------------------------------------------------

trace quest --policy quest:dense_layers=1,page=8 --budget 40
holds "the first layer is dense, no other" quest '
    map(select(.kind == "trace_read")) | all(.dense == (.layer == 0) and (.read == null) == .dense)'
# Of p pages the newest is forced, the others are those of the largest scores.
holds "the best pages" quest '
    (.[0].model | .n_heads / .n_kv_heads) as $group
    | (map(select(.kind == "trace_score")) | map({key: "\(.index) \(.layer)", value: .}) | from_entries) as $scores
    | map(select(.kind == "trace_read" and (.dense | not)))
    | length > 0 and all($scores["\(.index) \(.layer)"] as $s | . as $r
        | $s.unit_tok == 8 and ($s.scope | IN("kv_head", "q_head"))
          and ([range(.list_of_head | length)] | all(. as $h
            | (if $s.scope == "kv_head" then ($h / $group | floor) else $h end) as $list
            | $r.read[$r.list_of_head[$h]] as $read
            | ([$read[] / 8 | floor] | unique) as $pages
            | ($pages | length) == 5 and ($pages[-1] == ($r.pos / 8 | floor))
              and $read == [$pages[] as $p | range($p * 8; [$p * 8 + 8, $r.pos + 1] | min)]
              and ($s.score[$list] | to_entries | map(select(.key < $pages[-1]))
                   | sort_by([-.value, .key])[:4] | map(.key) | sort) == $pages[:4])))'

# ---- snapkv: one eviction at the start ---------------------------------------------------------------

trace snapkv --policy snapkv:window=8 --budget 40
holds "lanes kept" snapkv '
    (.[0].model | .n_layers * .n_kv_heads) as $lanes | map(select(.kind == "trace_keep"))
    | length == $lanes and all(.index == -1 and .pos == '$((context - 1))' and (.kept | length) == 39)' # and the current token
holds "the window and the best of the rest" snapkv '
    (map(select(.kind == "trace_score")) | map({key: "\(.layer)", value: .score}) | from_entries) as $scores
    | map(select(.kind == "trace_keep"))
    | all($scores["\(.layer)"][.kv_head] as $s
        | .kept == (([range('$((context - 8))')] | sort_by([-$s[.], .])[:31] | sort) + [range('$((context - 8))'; '$context')]))'
holds "what was kept is read, and what came since" snapkv '
    (.[0].model | .n_heads / .n_kv_heads) as $group
    | (map(select(.kind == "trace_keep")) | map({key: "\(.layer) \(.kv_head)", value: .kept}) | from_entries) as $kept
    | map(select(.kind == "trace_read"))
    | length > 0 and all(. as $r | [range(.list_of_head | length)] | all(
        $r.read[$r.list_of_head[.]] == $kept["\($r.layer) \(. / $group | floor)"] + [range('$context'; $r.pos + 1)]))'

# ---- h2o: the scores by which it cuts its lanes itself ---------------------------------------------------

trace h2o --policy h2o:heavy=16,recent=20 --budget 40
best='def best($s; $n): [range($s | length)] | map(select($s[.] != null)) | sort_by([-$s[.], .])[:$n] | sort;'
holds "the heaviest of the old and the latest" h2o "$best"'
    (.[0].model | .n_layers * .n_kv_heads) as $lanes
    | (map(select(.kind == "trace_score")) | map({key: "\(.index) \(.layer)", value: .score}) | from_entries) as $scores
    | map(select(.kind == "trace_keep" and .index >= 0))
    | length == $lanes * '$steps' and all($scores["\(.index) \(.layer)"][.kv_head] as $s | .pos as $pos
        | ([range($s | length)] | map(select($s[.] != null))) as $live
        | ($live | length) == 37 and ($s | length) == $pos + 1
          and .kept == best($s[:$live[17]]; 16) + $live[17:])'
trace sim --policy h2o_sim --budget 40
holds "masks of the next step" sim "$best"'
    (.[0].model | .n_heads / .n_kv_heads) as $group
    | (map(select(.kind == "trace_score")) | map({key: "\(.index) \(.layer)", value: .score}) | from_entries) as $scores
    | map(select(.kind == "trace_read"))
    | length > 0 and all(.index as $i | .layer as $l | .read as $read | .list_of_head as $of | .pos as $pos
        | [range($of | length)] | all($scores["\($i - 1) \($l)"][. / $group | floor] as $s
            | ($s | length) == $pos - 20 and $read[$of[.]] == best($s; 20) + [range($pos - 19; $pos + 1)]))'

# ---- streaming_llm: sinks and a window, whoever prefilled ----------------------------------------------

sinks='map(select(.kind == "trace_read")) | length == $l * '$steps' and all(
    .read == [[range(4)] + [range(.pos - 27; .pos + 1)]])'
trace shared --policy streaming_llm --budget 32
holds "sinks and window" shared ".[0].model.n_layers as \$l | $sinks"
trace own --policy streaming_llm:prefill=own --budget 32
holds "sinks and window of its own" own ".[0].model.n_layers as \$l | .[0].prefill == \"own\" and ($sinks)"
equal "steps of its own" "$context" "$(records own trace_step | jq -s '.[0].index')"

# ---- the file ------------------------------------------------------------------------------------------

for name in full quest snapkv h2o sim shared own; do
    "$program" log check $name.zst >said || fail "log check $name.zst"
    bash "$source_dir/tests/e2e/check_records.sh" $name.zst "$source_dir/results/README.md" trace trace_read \
        trace_step >said || fail "$(cat said)"
done
trace bare --policy quest:budget=40 --no-scores
equal "without scores" "" "$(records bare trace_score)"
tr , '\n' <<<"$ids" >ids.txt
"$program" trace -m "$model" --ids ids.txt --context $context --steps $steps --policy quest:budget=40 --no-scores \
    --out file.zst --threads 1 >said
same() { lines_of "$1" | jq -c 'select(.kind | startswith("trace_")) | del(.run)'; }
equal "ids from a file" "$(same bare.zst)" "$(same file.zst)"
"$program" help trace >said
grep -q '^Usage: kvlab trace ' said || fail "kvlab help trace: $(cat said)"

# ---- what is refused -----------------------------------------------------------------------------------

refuse() {
    local code=$1 line=$2 rc=0
    shift 2
    "$program" trace "$@" >said 2>err || rc=$?
    equal "exit code of $*" "$code" $rc
    equal "message of $*" "kvlab: $line" "$(cat err)"
}
some=(-m "$model" --ids 1,2,3,4,5)
refuse 2 'no model, want --model FILE' --ids 1,2
refuse 2 'want one of --ids 1,2,3, --prompt TEXT and --text FILE' -m "$model"
refuse 2 'want one of --ids 1,2,3, --prompt TEXT and --text FILE' "${some[@]}" --prompt a
refuse 2 'no policy, want --policy NAME' "${some[@]}"
refuse 2 'no file, want --out X.jsonl.zst' "${some[@]}" --policy full
refuse 2 'policy "quest" needs a budget, want --budget 256' "${some[@]}" --policy quest --out o
refuse 2 '--budget 64: the policy has one already, budget=32' "${some[@]}" --policy quest:budget=32 --budget 64 --out o
refuse 2 '--context: 5 of 5 tokens, want 1 to 4' "${some[@]}" --policy full --context 5 --out o
refuse 2 '--steps: 4, but 3 tokens follow the context of 2' "${some[@]}" --policy full --context 2 --steps 4 --out o
refuse 2 'none.ids: cannot open: No such file or directory' -m "$model" --ids none.ids --policy full --out o
refuse 2 '1 tokens, want at least 2' -m "$model" --ids 1 --policy full --out o
refuse 2 'full.zst: exists already, want a new file' "${some[@]}" --policy full --out full.zst
echo word >word.ids
refuse 2 "word.ids: token id \"word\": want a whole number from 0 to $((n_vocab - 1))" -m "$model" --ids word.ids \
    --policy full --out o
[ ! -e o ] || fail "a refused trace leaves a file"
echo "test_trace: ok"
