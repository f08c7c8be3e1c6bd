#!/usr/bin/env bash
# test_resume.sh - a sweep that is killed at random moments and started again ends with the results
# of one that was left alone: nothing that was committed is lost, nothing stands twice.  With one process
# and with workers.
#
# KVL_LONG=1 kills 100 times instead of 10, and sweeps more; KVL_KILLS=N kills N times.  With KVL_KILLS_FOLDER=DIR what
# was killed stays there, and a test that was itself ended goes on with the kills that are left.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/kill_lib.sh"
cd "$work"
kills=${KVL_KILLS:-$((${KVL_LONG:-0} ? 100 : 10))}
RANDOM=${KVL_SEED:-7}
[ -z "${KVL_KILLS_FOLDER-}" ] || { mkdir -p "$KVL_KILLS_FOLDER"; cd "$KVL_KILLS_FOLDER"; }

if [ ! -s whole ]; then
    sweep_file $((kills > 99 ? kills * 6 / 10 : 24)) >small.yaml
    run_sweep small.yaml --log whole.zst 2>err || fail "the sweep alone"
    results_of whole.zst >whole.new
    mv whole.new whole
fi
whole_bytes=$(stat -c %s whole.zst)

# ---- kill -9 ------------------------------------------------------------------------------------

# kill_often JOBS: kills when the log has grown by a random part, together less than the whole log, and
# a random moment later; sets killed to how many met a running sweep.
kill_often() {
    local tries=0
    killed=0
    [ ! -e "killed-$1" ] || read -r tries killed <"killed-$1"
    RANDOM=$((${KVL_SEED:-7} + tries)) # one that goes on does not kill at the same moments again
    for ((; tries < kills; tries++)); do
        kill_once "cut-$1.zst" $((RANDOM * whole_bytes / kills / 32768)) --jobs "$1" --log "cut-$1.zst"
        echo $((tries + 1)) $killed >"killed-$1"
    done
}

for jobs in 1 2; do
    # Where this script gets no time, the sweep ends before it is killed: then again.
    for ((round = 0; round < 10; round++)); do
        kill_often $jobs
        [ $killed -lt $((kills / 2)) ] || break
        rm -f "cut-$jobs.zst" "cut-$jobs.zst".* "killed-$jobs"
    done
    [ $killed -ge $((kills / 2)) ] || fail "only $killed of $kills kills met a running sweep"
    run_sweep small.yaml --jobs $jobs --log cut-$jobs.zst 2>err || fail "the last start"
    committed cut-$jobs.zst | head -n "$(wc -l <cut-$jobs.zst.kept)" | cmp -s - cut-$jobs.zst.kept || fail "records are gone at the end"
    equal "nothing twice" "" "$(repeated_samples cut-$jobs.zst)$(repeated_cells cut-$jobs.zst)"
    results_of cut-$jobs.zst >cut
    cmp -s whole cut || fail "other results than alone: $(diff whole cut | head -n 4)"
    [ -z "${KVL_KILLS-}" ] || echo "$jobs worker(s): killed $killed times: no committed record lost, none twice, the results of a sweep left alone"
done

# ---- a log that ends in the middle of a write ---------------------------------------------------

# The last commit that ends before nine tenths of the bytes, and the one behind it.
groups_of whole.zst >groups
[ "$(wc -l <groups)" -gt 100 ] || fail "only $(wc -l <groups) commits are found"
awk -v at=$((whole_bytes * 9 / 10)) '$1 > at { print last, $1; exit } { last = $1 }' groups >two
read -r group next <two

# cut_at BYTES: starts the sweep again on a log that ends there
cut_at() {
    rm -f torn.zst*
    head -c "$1" whole.zst >torn.zst
    run_sweep small.yaml --log torn.zst 2>err || fail "a log of $1 bytes"
    results_of torn.zst >torn
    cmp -s whole torn || fail "other results after a log of $1 bytes"
}

# Inside a header, right behind it, inside a frame, one byte before its end.
for bytes in $((group + 10)) $((group + 96)) $(((group + 96 + next) / 2)) $((next - 1)); do
    cut_at $bytes
    grep -q "torn.zst: byte $group: .* ($((bytes - group)) bytes), set aside" err ||
        fail "a log torn at $bytes is not reported: $(cat err)"
    cmp -s torn.zst.torn-1 <(tail -c +$((group + 1)) whole.zst | head -c $((bytes - group))) ||
        fail "the torn bytes were not set aside"
done
# A log that ends with a frame is only shorter.
cut_at "$next"
[ ! -s err ] || fail "a whole log is reported: $(cat err)"
[ ! -e torn.zst.torn-1 ] || fail "something of a whole log was set aside"

# ---- signals ------------------------------------------------------------------------------------

# signalled NUMBER SIGNALS JOBS ARGUMENTS...: a sweep that has hours to go gets them, one after the other, and ends with
# the number; what is done stays done
signalled() {
    local number=$1 signals=$2 jobs=$3 signal rc=0
    shift 3
    rm -f signal.zst
    "$program" sweep --threads 1 --jobs "$jobs" --quiet small.yaml --set contexts=5000 --log signal.zst "$@" 2>err &
    pid=$!
    eventually something_in signal.zst $pid || fail "a sweep that does not get on"
    for signal in $signals; do kill -"$signal" $pid || fail "it ended before SIG$signal: $(cat err)"; done
    eventually gone $pid || { kill -9 $pid; fail "SIG$signals does not end it"; }
    wait $pid || rc=$?
    equal "exit after SIG$signals, $jobs workers" "$number" $rc
    equal "nothing twice after SIG$signals" "" "$(repeated_samples signal.zst)"
    zstd -tq signal.zst || fail "the log is damaged after SIG$signals"
}
# What a scheduler sends means "later"; a person at a terminal, or one that has waited, means "no".
for signal in INT:130:1 TERM:75:1 HUP:129:1 TERM:75:2 USR1:75:1 USR2:75:1 USR1:75:2 INT:130:2; do
    IFS=: read -r signal number jobs <<<"$signal"
    signalled "$number" "$signal" "$jobs"
    grep -qx "kvlab: stopped by signal [0-9]*; start the same command again to go on" err ||
        fail "no message after SIG$signal: $(cat err)"
done

# The second one ends it at once, even while a policy does not return; the first one alone, when its time is over.
cat >stuck.c <<'END'
#include "kvl/policy.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

static int stuck_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx, (void)step, (void)q, (void)sel;
    close(open("in", O_WRONLY | O_CREAT, 0600));
    for (;;) nanosleep(&(struct timespec){ 1, 0 }, NULL);
}

static const struct kvl_policy stuck = {
    .abi = KVL_POLICY_ABI, .size = sizeof(struct kvl_policy), .name = "stuck", .title = "stuck", .paper = "none",
    .help = "never returns", .version = 1, .caps = KVL_CAP_SELECTS, .select = stuck_select,
};

KVL_POLICY_EXPORT(stuck)
END
cc -std=c17 -D_GNU_SOURCE -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o stuck.so stuck.c
for case in '75 TERM' '143 USR1 TERM' '138 USR2 USR1' '130 TERM INT'; do
    rm -f in stuck.zst
    "$program" sweep --threads 1 --jobs 1 --quiet small.yaml --plugin ./stuck.so --set 'policies=[stuck]' --set budgets=64 \
        --set contexts=1 --log stuck.zst 2>err &
    pid=$!
    stuck_in() { [ -e in ] || gone $pid; }
    eventually stuck_in || fail "it does not come to the policy"
    for signal in ${case#* }; do
        kill -"$signal" $pid || fail "it ended before SIG$signal: $(cat err)"
        [ "$signal" = "${case##* }" ] || sleep 0.2 # two signals at once have no order
    done
    eventually gone $pid || { kill -9 $pid; fail "SIG${case#* } does not end it"; }
    rc=0
    wait $pid || rc=$?
    equal "exit after SIG${case#* } amid a hook" "${case%% *}" $rc
done

# Before there is anything to end: while the plan is made or the model is read.
mkfifo slow.yaml
for case in 'TERM 75' 'USR1 75' 'USR2 75' 'INT 130' 'HUP 129'; do
    "$program" sweep --threads 1 --quiet slow.yaml --log never.zst 2>err &
    pid=$!
    # SIGUSR1, for one; bash catches it too, until it has become the program.
    catches() { [ /proc/$pid/exe -ef "$program" ] && grep -qs '^SigCgt:.*[2367abef]..$' /proc/$pid/status; }
    eventually catches || fail "it does not begin"
    kill -"${case% *}" $pid
    eventually gone $pid || { kill -9 $pid; fail "SIG${case% *} does not end its beginning"; }
    rc=0
    wait $pid || rc=$?
    equal "exit after SIG${case% *} at the beginning" "${case#* }" $rc
done

# A command that does not poll ends at once.
mkfifo never
for command in "tokenize -m $model never" 'report never'; do
    "$program" $command >stdout 2>err &
    pid=$!
    sleep 0.3
    kill -TERM $pid
    eventually gone $pid || { kill -9 $pid; fail "${command%% *} does not end after SIGTERM"; }
    rc=0
    wait $pid || rc=$?
    equal "exit of ${command%% *} after SIGTERM" 143 $rc
done
