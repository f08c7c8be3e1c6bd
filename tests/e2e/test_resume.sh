#!/usr/bin/env bash
# test_resume.sh - a sweep that is killed at random moments and started again ends with the results
# of one that was left alone: nothing that was committed is lost, nothing stands twice.  With one process
# and with workers.
#
# KVL_LONG=1 kills 100 times instead of 10.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
kills=$((${KVL_LONG:-0} ? 100 : 10))
RANDOM=${KVL_SEED:-7}

sweep_file 60 >small.yaml
start=$(date +%s%N)
run_sweep small.yaml --log whole.zst 2>err || fail "the sweep alone"
whole_ms=$((($(date +%s%N) - start) / 1000000))
results_of whole.zst >whole

# Whole records of samples and cells that stand in the log now.
committed() {
    lines_of "$1" | grep -E '"kind":"(sample|cell|error)"' || true
}

# ---- kill -9 ------------------------------------------------------------------------------------

# kill_often SHARE JOBS: kills at random moments that add up to about that share of the whole sweep's
# time; sets killed to how many met a running sweep.
kill_often() {
    rm -f cut.zst
    : >kept
    killed=0
    for ((i = 0; i < kills; i++)); do
        "$program" sweep --threads 1 --jobs "$2" --quiet small.yaml --log cut.zst 2>>err &
        pid=$!
        sleep "$(awk -v ms="$whole_ms" -v r=$RANDOM -v n=$kills -v share="$1" \
            'BEGIN { print share * ms / 1000 * (0.01 + 1.8 * r / 32767 / n) }')"
        if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
        wait $pid 2>/dev/null || true
        [ -e cut.zst ] || continue
        # Whatever was there after an earlier kill is there still, byte for byte.
        committed cut.zst >now
        head -n "$(wc -l <kept)" now | cmp -s - kept || fail "records are gone after kill $i"
        mv now kept
    done
}

for jobs in 1 2; do
    # A machine that is suddenly faster than before ends the sweep too early: then again with less time.
    for share in 1 0.5 0.2 0.1; do
        kill_often $share $jobs
        [ $killed -lt $((kills / 2)) ] || break
    done
    [ $killed -ge $((kills / 2)) ] || fail "only $killed of $kills kills met a running sweep"
    run_sweep small.yaml --jobs $jobs --log cut.zst 2>err || fail "the last start"
    committed cut.zst | head -n "$(wc -l <kept)" | cmp -s - kept || fail "records are gone at the end"
    equal "nothing twice" "" "$(repeated_samples cut.zst)$(repeated_cells cut.zst)"
    results_of cut.zst >cut
    cmp -s whole cut || fail "other results than alone: $(diff whole cut | head -n 4)"
done

# ---- a log that ends in the middle of a write ---------------------------------------------------

head -c "$(($(stat -c %s whole.zst) * 2 / 3))" whole.zst >torn.zst
run_sweep small.yaml --log torn.zst 2>err || fail "a torn log"
grep -q 'torn.zst: byte [0-9]*: ' err || fail "a torn log is not reported: $(cat err)"
results_of torn.zst >torn
cmp -s whole torn || fail "other results after a torn log"
ls torn.zst.torn-* >/dev/null 2>&1 || fail "the torn bytes were not set aside"

# ---- signals ------------------------------------------------------------------------------------

# The first one ends the sweep within 5 s with 128 + its number; what is done stays done.
for signal in INT:130:1 TERM:143:1 HUP:129:1 TERM:143:2; do
    IFS=: read -r signal number jobs <<<"$signal"
    rm -f signal.zst
    "$program" sweep --threads 1 --jobs $jobs --quiet small.yaml --set contexts=2000 --log signal.zst 2>err &
    pid=$!
    for ((i = 0; i < 200; i++)); do
        [ ! -s signal.zst ] || break
        sleep 0.05
    done
    before=$(date +%s)
    kill -$signal $pid
    rc=0
    wait $pid || rc=$?
    equal "exit after SIG$signal" $number $rc
    [ $(($(date +%s) - before)) -le 5 ] || fail "SIG$signal took more than 5 s"
    grep -q 'stopped by signal' err || fail "no message after SIG$signal: $(cat err)"
    equal "nothing twice after SIG$signal" "" "$(repeated_samples signal.zst)"
    zstd -tq signal.zst || fail "the log is damaged after SIG$signal"
done

# A command that does not poll ends at once.
mkfifo never
for command in "tokenize -m $model never" 'report never'; do
    "$program" $command >stdout 2>err &
    pid=$!
    sleep 0.3
    kill -TERM $pid
    for ((i = 0; i < 50; i++)); do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    kill -9 $pid 2>/dev/null && fail "${command%% *} does not end after SIGTERM"
    rc=0
    wait $pid || rc=$?
    equal "exit of ${command%% *} after SIGTERM" 143 $rc
done
