#!/usr/bin/env bash
# test_hybrid.sh - attention where blocks lie, from outside: the same answers as fetching, in cells of their
# own, with what was read and moved in their records.  The CPU in both places; with KVL_TEST_CUDA the
# (emulated) GPU beside it.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
fetches=cpu
hybrid=cpu-hybrid
if [ -n "${KVL_TEST_CUDA:-}" ]; then
    fetches=cuda
    hybrid=hybrid
fi

cat >small.yaml <<END
name: small
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [192]
contexts: 2
policies: [full, {policy: quest, offload: true}, {policy: brute_offload, block: 16}]
budgets: [64]
speed: {lengths: [128], policies: [{policy: quest, offload: true}], steps: 2, warmup: 1, repeats: 1}
END
predictions() { lines_of "$1" | jq -c 'select(.kind == "sample") | [.policy, .context, .prediction]' | LC_ALL=C sort; }
run_sweep small.yaml --device $fetches --log fetched.zst 2>err || fail "the sweep that fetches"
run_sweep small.yaml --device $hybrid --log hybrid.zst 2>err || fail "the hybrid sweep"
[ ! -s err ] || fail "the hybrid sweep says something"
equal "samples" 6 "$(predictions hybrid.zst | wc -l)"
equal "predictions" "$(predictions fetched.zst)" "$(predictions hybrid.zst)"
equal "devices of cells" "\"$hybrid\"" "$(lines_of hybrid.zst | jq -c 'select(.kind == "cell" or .kind == "speed").device' | sort -u)"
equal "keys of both" 0 "$(cat fetched.zst hybrid.zst | zstd -dcq | jq -r 'select(.kind == "cell" or .kind == "speed").key' | sort | uniq -d | wc -l)"
bash "$source_dir/tests/e2e/check_records.sh" hybrid.zst "$source_dir/results/README.md" run sample cell speed >out ||
    fail "the dictionary: $(cat out)"

# full keeps nothing on the host; of the others all samples, cells and timed runs tell what was read there.
samples='select(.kind == "sample") | .tiers | select(. != null)'
equal "samples with a host tier" 4 "$(lines_of hybrid.zst | jq -c "$samples" | wc -l)"
equal "read on the host" 4 "$(lines_of hybrid.zst | jq -c "$samples | select(.host_attend_bytes_per_tok > 0 and .host_attend_keys_per_tok > 0 and .d2h_calls > 0)" | wc -l)"
equal "fetched there" 0 "$(lines_of hybrid.zst | jq -c "$samples | select(.cache_hits_per_tok > 0 or .cache_misses_per_tok > 0)" | wc -l)"
equal "read on the host by who fetches" 0 "$(lines_of fetched.zst | jq -c "$samples | select(.host_attend_bytes_per_tok > 0)" | wc -l)"
# Up come results, much less than keys and values.
moved() { lines_of "$1" | jq -s "[.[] | $samples | .h2d_bytes_per_tok] | add | floor"; }
[ "$(moved hybrid.zst)" -lt "$(moved fetched.zst)" ] || fail "hybrid moves $(moved hybrid.zst) bytes up, fetching $(moved fetched.zst)"
equal "timed runs" 1 "$(lines_of hybrid.zst | jq -c 'select(.kind == "speed" and .tiers.host_attend_bytes_per_tok > 0)' | wc -l)"
"$program" export hybrid.zst --format csv >table 2>err || fail "export"
for column in host_attend_bytes_per_tok host_attend_keys_per_tok d2h_calls; do
    head -n 1 table | tr , '\n' | grep -qx "$column" || fail "export: no $column"
done
"$program" report hybrid.zst >out 2>err || fail "report"
grep -q 'at host' out || fail "report: no column of what was read on the host"
