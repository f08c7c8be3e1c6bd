#!/usr/bin/env bash
# test_shards_killed.sh - a sweep in four shards that are killed with -9 again and again, while the others run: merged, it is the
# table of a sweep that was left alone.  12 kills; with KVL_LONG=1 a hundred, with KVL_KILLS=N so many.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/kill_lib.sh"
cd "$work"
kills=${KVL_KILLS:-$((${KVL_LONG:-0} ? 100 : 12))}
RANDOM=${KVL_SEED:-11}

sweep_file $((kills > 99 ? kills * 6 / 10 : 12)) >small.yaml
run_sweep small.yaml --log whole.zst 2>err || fail "the sweep alone"
results_of whole.zst >whole
bytes=$(stat -c %s whole.zst)

# shard I: killed a quarter of the times, then let go on to its end
shard() {
    local log=out/small.shard-$1-of-4.jsonl.zst rc=0
    killed=0
    RANDOM=$((${KVL_SEED:-11} + $1))
    for ((k = 0; k < kills / 4; k++)); do kill_once "$log" $((RANDOM * bytes / kills / 32768)) --shard "$1/4"; done
    echo $killed >killed.$1
    run_sweep small.yaml --shard "$1/4" 2>>err || rc=$?
    equal "the last start of shard $1" 0 $rc
}
shards=()
for i in 0 1 2 3; do
    shard $i &
    shards+=($!)
done
for pid in "${shards[@]}"; do wait "$pid" || fail "a shard"; done
sum=$(cat killed.? | awk '{ n += $1 } END { print n }')
[ "$sum" -ge $((kills / 4)) ] || fail "only $sum of $kills kills met a running sweep"

"$program" status out/*.zst >status 2>err || fail "something is left: $(cat status)"
"$program" log merge -o all.zst out/*.zst >merged 2>err || fail "merge"
equal "nothing twice" "" "$(repeated_samples all.zst)$(repeated_cells all.zst)"
results_of all.zst | cmp -s whole - || fail "other records than those of a sweep left alone"
# The table, but for times, which differ between any two runs, and names of logs.
accuracy() { "$program" report "$1" | awk '/prefill|tok\/s|^ *runs|log/ { next } 1'; }
accuracy whole.zst >table.whole
accuracy all.zst >table.all
diff table.whole table.all || fail "another table than that of a sweep left alone"
[ -z "${KVL_KILLS-}" ] || echo "four shards: killed $sum times, merged: the records and the table of a sweep left alone"
