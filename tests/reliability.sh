#!/usr/bin/env bash
# reliability.sh - what kvlab is put through, and how it came out: the rows of results/reliability.md, as they are now.
#
#   tests/reliability.sh [--write] [NAME...]    all of them, or those of a name: kills shards crashes faults flips memory
#                                               growth clocks harm slurm schedulers coverage noise
#
# --write puts them into the table, with date and version, in the place of the rows of that name.  Processor time, not
# machines: an hour for all.  KVL_KILLS, KVL_CRASH_STATES and KVL_ALLOCATIONS ask for more or less.  With
# KVL_KILLS_FOLDER=DIR kills that were interrupted go on there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../harness/setup.sh"
build=${KVL_BUILD:-$kvl_root/build-test}
program=$build/kvlab
page=$kvl_root/results/reliability.md
write=
[ "${1-}" != --write ] || { write=1; shift; }
names=("$@")
[ $# -gt 0 ] || names=(kills shards crashes faults flips memory growth clocks harm slurm schedulers coverage noise)
[ -x "$program" ] || kvl_die "no $program: tests/run.sh builds it, or KVL_BUILD names a folder that has one"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

e2e() { bash "$kvl_root/tests/e2e/test_$1.sh" "$program" "$kvl_root"; }
unit() { "$build/tests/$1" 2>&1; }
# says PATTERN: the lines of standard input that match, as one
says() { grep -E "$1" | sed 's/^ *//' | paste -sd ';' | sed 's/;/; /g'; }

kills() { KVL_KILLS=${KVL_KILLS:-1000} e2e resume | says 'killed'; }
shards() { KVL_KILLS=${KVL_KILLS:-100} e2e shards_killed | says 'four shards'; }
crashes() { KVL_CRASH_STATES=${KVL_CRASH_STATES:-10000} unit test_log_crash | says 'states after a crash'; }
faults() { unit test_log_faults | says 'faults of'; }
flips() { unit test_log | says 'bytes changed'; }
memory() { KVL_ALLOCATIONS=${KVL_ALLOCATIONS:-200} e2e faults | says 'failed allocations'; }
harm_said() { [ -s "$work/harm" ] || e2e harm >"$work/harm" || return; cat "$work/harm"; }
growth() { harm_said | says 'without end'; }
clocks() { KVL_ALLOCATIONS=1 e2e faults >"$work/said" && echo "a sweep, its shards and their merge under a wall clock that jumps by years: the same records, no time below zero"; }
harm() { harm_said | says 'misbehave'; }
slurm() { e2e slurm >"$work/said" && echo "four nodes, a requeue, a lost node, a time limit: the records of an unsharded sweep ($(slurmctld -V))"; }
schedulers() { e2e schedulers >"$work/said"; echo "what each first try left when its disk was full goes on$([ ! -s "$work/said" ] || sed 's/^test_schedulers//' "$work/said" | paste -sd ' ')"; }
# Rates from 0.5 to 0.99 alone: those that the issue of intervals is about.
coverage() {
    KVL_SHOW=1 unit test_stats | awk -F '|' '/^\| [0-9]+ x [0-9]+ \|/ { for (i = 4; i <= 10; i++) { v = $i + 0; n++; sum += v; near += v >= 94 && v <= 96
            if (!lo || v < lo) lo = v; if (v > hi) hi = v } }
        END { if (!n) exit 1; printf "of 100 intervals of clustered answers %.1f to %.1f hold the truth, %.1f in the mean (%d designs, rates 0.5 to 0.995, 4000 trials each); 94 to 96 in %d of them\n", lo, hi, sum / n, n, near }'
}
# The same times taken twice: how far repeats of one cell lie apart, and what is said of the two.
noise() {
    local log
    for log in a b; do
        "$program" run -m "$kvl_root/datasets/model/kvlab-small.gguf" --threads 1 --task passkey --length 256 --contexts 1 --policy full,quest,snapkv --budget 64 --quiet \
            --set 'speed={task: passkey, lengths: [1024], steps: 64, warmup: 4, repeats: 10, policies: [full, quest, snapkv], budgets: [64]}' --only speed --log "$work/$log.zst" || return
    done
    "$program" compare "$work/a.zst" "$work/b.zst" --measure speed >"$work/aa" || [ $? = 1 ] || return
    awk '/ speed / { n++; v[$NF]++ } /^Speed: repeats/ { match($0, /up to [0-9.]+ % apart/); far = substr($0, RSTART, RLENGTH) }
        END { if (!n || !far) exit 1; printf "times taken twice of %d cells with 10 repeats: repeats of one cell %s; the two runs are the same in %d, unclear in %d, faster in %d, slower in %d\n", n, far, v["same"], v["unclear"], v["faster"], v["slower"] }' "$work/aa"
}

version=$("$program" --version | sed -E 's/^kvlab ([^ ]*) \(([^,]*),.*/\1, \2/')
for name in "${names[@]}"; do
    [ "$(type -t "$name")" = function ] || kvl_die "$name: no such figure, see --help of this file: kills shards crashes ..."
    start=$SECONDS
    figure=$("$name") || { kvl_say "$name failed"; exit 1; }
    [ -n "$figure" ] || { kvl_say "$name says nothing"; exit 1; }
    row="| $name | $figure | $(date -u +%F) | $version |"
    echo "$row"
    kvl_say "$name took $((SECONDS - start)) s"
    [ -n "$write" ] || continue
    awk -v name="$name" -v row="$row" 'BEGIN { gsub(/\\/, "\\\\", row) } $2 == name && /^\| / { print row; done = 1; next } { print }
        END { if (!done) print row }' "$page" >"$work/page"
    cat "$work/page" >"$page"
done
