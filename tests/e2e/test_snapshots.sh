#!/usr/bin/env bash
# test_snapshots.sh - prefilled contexts on disk: saved once, loaded ever after, without any effect on
# results; and prefills that policies do themselves.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# snapkv observes the last queries, h2o the sums of all columns, streaming_llm needs keys before RoPE.
cat >some.yaml <<EOF
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [256, 320]
protocols: [question_in_prefill, question_after_compress]
contexts: 2
questions: 2
policies: [full, snapkv, h2o, quest, streaming_llm, {policy: streaming_llm, prefill: own}]
budgets: [64]
EOF

# ---- the same results -----------------------------------------------------------------------------

run_sweep some.yaml --log plain.zst 2>err || fail "without snapshots"
equal "first with snapshots" "prefilled 4 contexts (1152 tokens) for 96 samples, 0 contexts for 0 timed runs; 0 errors
8 contexts were read by the policies themselves
snapshots: 0 loaded, 4 saved" "$(run_sweep some.yaml --log saved.zst --snapshots a/snap --stats 2>err)"
equal "again with snapshots" "prefilled 0 contexts (0 tokens) for 96 samples, 0 contexts for 0 timed runs; 0 errors
8 contexts were read by the policies themselves
snapshots: 4 loaded, 0 saved" "$(run_sweep some.yaml --log loaded.zst --snapshots a/snap --stats 2>err)"
[ ! -s err ] || fail "loading said something"
results_of plain.zst >plain
for log in saved loaded; do
    results_of $log.zst >$log
    cmp -s plain $log || fail "results differ when $log: $(diff plain $log | head -n 4)"
done

# Times of what was loaded are not known, those of a method's own prefill are.
equal "unknown times" 80 \
    "$(lines_of loaded.zst | grep '"kind":"sample"' | grep -c '"prefill_ns":null')"
equal "unknown speeds" 20 \
    "$(lines_of loaded.zst | grep '"kind":"cell"' | grep -c '"prefill_tok_per_s":null')"

# Other observers are another prefill; fewer files than contexts would mean that they were mixed up.
run_sweep some.yaml --set policies=full --log full.zst --snapshots a/snap 2>err
equal "snapshots of other observers" 8 "$(ls a/snap/*.kvs | wc -l)"
results_of full.zst >alone
results_of plain.zst | grep -Ff <(sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' alone | sort -u) >together
cmp -s alone together || fail "full answers differently from snapshots of its own"

# ---- damage ---------------------------------------------------------------------------------------

rm -r a/snap
run_sweep some.yaml --log saved2.zst --snapshots a/snap 2>err
first=$(ls a/snap/*.kvs | head -n 1)
printf 'damage' | dd of="$first" bs=1 seek=4000 conv=notrunc 2>dd.err
equal "a damaged snapshot" "snapshots: 3 loaded, 1 saved" \
    "$(run_sweep some.yaml --log damaged.zst --snapshots a/snap --stats 2>err | tail -n 1)"
equal "one line about it" 1 "$(wc -l <err)"
grep -q "$first" err || fail "the line does not name the file: $(cat err)"
results_of damaged.zst >damaged
cmp -s plain damaged || fail "results differ after a damaged snapshot"
: >"$first"
equal "an empty snapshot" "snapshots: 3 loaded, 1 saved" \
    "$(run_sweep some.yaml --log empty.zst --snapshots a/snap --stats 2>err | tail -n 1)"
equal "replaced" "snapshots: 4 loaded, 0 saved" \
    "$(run_sweep some.yaml --log after.zst --snapshots a/snap --stats 2>err | tail -n 1)"

# ---- elsewhere ------------------------------------------------------------------------------------

cat >speed.yaml <<EOF
model: $model
policies: [full, {policy: streaming_llm, prefill: [shared, own]}]
budgets: [64]
speed: {task: kv_retrieval, lengths: [256], steps: 3, warmup: 1, repeats: 1}
EOF
run_sweep speed.yaml --log speed1.zst --snapshots a/snap 2>err || fail "speed"
run_sweep speed.yaml --log speed2.zst --snapshots a/snap 2>err || fail "speed again"
for i in 1 2; do
    lines_of speed$i.zst | grep '"kind":"speed"' | grep -c '"prefill_ns":null' >>unknown || true
done
equal "speed without a time to prefill" "0 2" "$(xargs <unknown)"

generate() {
    "$program" generate --model "$model" --prompt "One of the two pass keys is" -n 6 --show-ids "$@"
}
equal "generate, saved" "$(generate)" "$(generate --snapshots a/gen 2>err)"
equal "generate, loaded" "$(generate)" "$(generate --snapshots a/gen 2>err)"
equal "one snapshot" 1 "$(ls a/gen/*.kvs | wc -l)"

# ---- its own prefill ------------------------------------------------------------------------------

# The question is read like the context, so two protocols are one run.
if command -v jq >/dev/null; then
    lines_of plain.zst | jq -rcs '
        (map(select(.kind == "cell" and .prefill == "own"))
            | map({ key: .cell, value: .protocol }) | from_entries) as $of
        | map(select(.kind == "sample" and $of[.cell]))
        | [length, (group_by([.seed, .question]) | map(map(.ids) | unique | length) | unique)]' >own
    equal "protocols of its own prefill" "[16,[1]]" "$(cat own)"
    # The first tokens of the context attend to less than the budget; they are not counted.
    equal "attended behind its own prefill" true "$(lines_of plain.zst |
        jq 'select(.kind == "cell" and .prefill == "own") | .attended_tok == 64' | sort -u)"
fi
"$program" report plain.zst >table
grep -q '^ *streaming_llm, own prefill  *64 ' table || fail "no own prefill in the table"
grep -q '^ *streaming_llm  *64 ' table || fail "no shared prefill in the table"
run_sweep some.yaml --set 'policies=[full, "quest:prefill=own"]' --log refused.zst 2>err
grep -q 'quest cannot do its own prefill; give prefill: shared' <(lines_of refused.zst) ||
    fail "a prefill that a policy cannot do: $(cat err)"

# ---- bad input ------------------------------------------------------------------------------------

refused() {
    local want=$1
    shift
    ! run_sweep some.yaml --log no.zst "$@" 2>err || fail "$*: taken"
    equal "$*" "$want" "$(cat err)"
    [ ! -e no.zst ] || fail "$*: made a log"
}
refused "kvlab: --snapshots some.yaml: is no folder" --snapshots some.yaml
refused "kvlab: --snapshots: is empty, want a folder" --snapshots ''

# ---- a folder that several use at once ----------------------------------------------------------------

# Four sweeps that begin at once: each context is made by one or by several, and nobody reads half of one.
pids=()
for i in 1 2 3 4; do
    run_sweep some.yaml --log at-once-$i.zst --snapshots many 2>err.$i &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "a sweep beside others"; done
for i in 1 2 3 4; do
    [ ! -s err.$i ] || fail "a sweep beside others says: $(cat err.$i)"
    results_of at-once-$i.zst | cmp -s plain - || fail "results differ beside others"
done
equal "snapshots of four sweeps" 4 "$(ls many | wc -l)"
equal "all of them whole" "4 snapshots, 0 damaged, 0 of these removed" "$("$program" snapshots verify many)"
# The same while a small limit makes what was used longest ago give way.
one=$(stat -c %s many/*.kvs | sort -n | tail -n 1)
pids=()
for i in 1 2 3 4; do
    run_sweep some.yaml --log few-$i.zst --snapshots few --snapshots-limit $((one * 2)) 2>err.$i &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || fail "a sweep with a limit: $(cat err.?)"; done
for i in 1 2 3 4; do results_of few-$i.zst | cmp -s plain - || fail "results differ with a limit"; done
[ "$(stat -c %s few/*.kvs | awk '{ n += $1 } END { print n }')" -le $((one * 2)) ] || fail "more than the limit: $(ls -l few)"

# What was used longest ago goes first; a use counts.
touch -d '2001-01-01' many/*.kvs
newest=$(ls many/*.kvs | tail -n 1)
touch -d '2020-01-01' "$newest"
touch many/other.txt "many/x.kvs.tmp-abcdef" many/y.kvs.tmp-abcdef
touch -d '3 days ago' many/y.kvs.tmp-abcdef
"$program" snapshots list many >list || fail "list"
equal "lines of the list" 7 "$(wc -l <list)"
grep -qE "^ +[0-9.]+ MiB  2020-01-01T00:00:00Z  $(basename "$newest" | cut -c 1-16)  .*model" list || fail "the list: $(cat list)"
"$program" snapshots prune many --max-size $((one + 1)) >pruned || fail "prune"
equal "what is left" "$(basename "$newest") other.txt x.kvs.tmp-abcdef" "$(ls many | xargs)"
"$program" snapshots prune many --days 30 >pruned || fail "prune by days"
equal "what is left of the last month" "other.txt x.kvs.tmp-abcdef" "$(ls many | xargs)"

run_sweep some.yaml --log healed.zst --snapshots many 2>err
printf 'damage' | dd of="$(ls many/*.kvs | head -n 1)" bs=1 seek=4000 conv=notrunc 2>dd.err
rc=0
"$program" snapshots verify many >verified 2>err || rc=$?
equal "exit for a damaged snapshot" 4 $rc
grep -q 'damaged snapshot' verified || fail "which one: $(cat verified)"
"$program" snapshots verify many --delete >verified 2>err || fail "--delete"
equal "and after" "3 snapshots, 0 damaged, 0 of these removed" "$("$program" snapshots verify many)"
