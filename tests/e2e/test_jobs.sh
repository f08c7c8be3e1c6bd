#!/usr/bin/env bash
# test_jobs.sh - worker processes answer what one process answers; those that die cost what they had in
# hand and no more.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
ulimit -c 0
nothing="prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors"

# sweep JOBS ARGUMENTS...
sweep() {
    local jobs=$1
    shift
    "$program" sweep --threads 2 --jobs "$jobs" --quiet "$@"
}

# kinds LOG: how many records of each kind
kinds() { lines_of "$1" | sed -E 's/^\{"kind":"([a-z]*)".*/\1/' | LC_ALL=C sort | uniq -c | xargs; }

# errors_of LOG: status and message of what failed, how often
errors_of() {
    lines_of "$1" | grep '"kind":"error"' |
        sed -E 's/.*"status":("[^"]*"),"message":("[^"]*").*/\1 \2/' | LC_ALL=C sort | uniq -c | sed 's/^ *//'
}

# plugin NAME STATEMENT [STATEMENT]: a policy that runs it when it selects, and another when it plans
plugin() {
    cat >"$1.c" <<END
#include "kvl/policy.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int ${1}_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)ctx, (void)step, (void)q, (void)sel;
    $2;
    return KVL_OK;
}

static int ${1}_plan(struct kvl_plan *plan)
{
    (void)plan;
    ${3:-};
    return KVL_OK;
}

static const struct kvl_policy $1 = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "$1",
    .title = "$1",
    .paper = "none",
    .help = "ends the process",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SAMPLES,
    .plan = ${1}_plan,
    .select = ${1}_select,
};

KVL_POLICY_EXPORT($1)
END
    cc -std=c17 -D_GNU_SOURCE -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o "$1.so" "$1.c"
}
# ---- the same, whoever answers --------------------------------------------------------------------

sweep_file 3 >small.yaml
cat >>small.yaml <<'END'
quality: {questions: 1, steps: 2, top: [8]}
END
sed -i -e 's/^tasks: .*/tasks: [{task: passkey, keys: 2}, kv_retrieval, {task: perplexity, tokens: 32}]/' \
    -e 's/^policies: .*/policies: [full, quest, snapkv, random, {policy: streaming_llm, prefill: own}]/' small.yaml
sed -i 's/^lengths: .*/lengths: [256, 320]/; s/\[snapkv, random\], budget: 16/[snapkv, random, streaming_llm], budget: 16/' small.yaml
for jobs in 1 2 5; do
    sweep $jobs small.yaml --log $jobs.zst --stats >$jobs.stats 2>err || fail "--jobs $jobs"
    [ ! -s err ] || fail "--jobs $jobs says: $(cat err)"
    equal "nothing twice with --jobs $jobs" "" "$(repeated_samples $jobs.zst)$(repeated_cells $jobs.zst)"
    zstd -tq $jobs.zst || fail "zstd finds the log of --jobs $jobs damaged"
    results_of $jobs.zst >$jobs.results
done
[ "$(wc -l <1.results)" -gt 180 ] || fail "only $(wc -l <1.results) results"
for jobs in 2 5; do
    cmp -s 1.results $jobs.results ||
        fail "other results with --jobs $jobs: $(diff 1.results $jobs.results | cut -c 1-300 | head -n 4)"
    equal "statistics of --jobs $jobs" "$(cat 1.stats)" "$(cat $jobs.stats)"
    "$program" report $jobs.zst >table
    equal "table of --jobs $jobs" "$("$program" report 1.zst | sed 's/\b1\.zst//')" "$(sed "s/\b$jobs\.zst//" table)"
    equal "a second start" "$nothing" "$(sweep $jobs small.yaml --log $jobs.zst --stats 2>err)"
done

# jobs_of LOG: what its first run says
jobs_of() { lines_of "$1" | head -n 1 | sed -E 's/.*"jobs":([0-9]*),"job_threads":([0-9]*),.*/\1 \2/'; }
equal "the run records" "1 2, 2 1, 5 1" "$(jobs_of 1.zst), $(jobs_of 2.zst), $(jobs_of 5.zst)"
# Samples of one context and one protocol are one commit, whole: its neighbours in the log.
lines_of 5.zst | grep -E '"kind":"(sample|cell)"' |
    sed -E 's/.*"kind":"sample".*"cell":"([^"]*)","context":([0-9]*),.*/\1 \2/; /^\{/d' | uniq | LC_ALL=C sort |
    uniq -d >split
[ ! -s split ] || fail "samples of one context lie apart: $(head -n 3 split)"
# A sweep that another number of workers began.
groups_of 1.zst >groups
head -c "$(($(sed -n 5p groups) + 100))" 1.zst >torn.zst
sweep 2 small.yaml --log torn.zst 2>err || fail "a torn log"
grep -q 'torn.zst: byte .* set aside' err || fail "a torn log is not reported: $(cat err)"
cmp -s 1.results <(results_of torn.zst) || fail "other results after a torn log"

# ---- policies that do not return ------------------------------------------------------------------

sed -i 's/^tasks: .*/tasks: [kv_retrieval]/; /^quality/d' small.yaml
# in_loop SIGNAL EXIT JOBS: the first signal ends the sweep all the same, keeps what was committed, and blames
# nobody: the next start goes on.  A file says that the loop was entered.  In a folder of its own.
in_loop() {
    local signal=$1 number=$2 jobs=$3 pid rc=0
    work=$work/loop-$signal-$jobs
    mkdir "$work"
    cd "$work"
    entered() { [ -e entered ] || gone "$1"; }
    "$program" sweep "${loop[@]}" --jobs $jobs --log loop.zst 2>err &
    pid=$!
    trap '[ -z "$pid" ] || kill -9 $pid' EXIT
    eventually entered $pid || fail "it does not come to the loop: $(cat err)"
    lines_of loop.zst | grep -v '"kind":"run"' >kept || true
    kill -$signal $pid
    eventually gone $pid || fail "SIG$signal does not end a loop with --jobs $jobs"
    wait $pid || rc=$?
    pid=
    equal "exit after SIG$signal in a loop" $number $rc
    grep -q "^kvlab: .*policy loop did not return within 5 s" err || fail "what it says of a loop: $(cat err)"
    zstd -tq loop.zst || fail "a loop left a damaged log"
    # head may end before grep has written all.
    lines_of loop.zst | { grep -v '"kind":"run"' || true; } | head -n "$(wc -l <kept)" | cmp -s - kept ||
        fail "records are gone after a loop"
    equal "errors after a loop" "" "$(errors_of loop.zst)"
    KVL_TEST_GO_ON=1 "$program" sweep "${loop[@]}" --log loop.zst 2>err || fail "after a loop"
    cmp -s <(results_of ../returns.zst) <(results_of loop.zst) || fail "other results after a loop"
}
# Each takes the 5 s that the program waits: beside all that follows, up to the end of this script.
loops=()
if command -v cc >/dev/null; then
    plugin loop 'if (ctx->seed % 4 == 0 && !getenv("KVL_TEST_GO_ON")) { close(creat("entered", 0600)); for (;;) pause(); }'
    cp small.yaml loop.yaml
    loop=(--threads 2 --quiet --plugin "$work/loop.so" "$work/loop.yaml" --set 'policies=[full, loop]' --set budgets=64 --set contexts=6)
    KVL_TEST_GO_ON=1 "$program" sweep "${loop[@]}" --log returns.zst 2>err || fail "a policy that returns"
    trap 'kill $(jobs -p) 2>"$work/said" || true; rm -rf "$work"' EXIT
    for try in 'INT 130 1' 'TERM 75 1' 'TERM 75 2' 'USR1 75 2' 'HUP 129 auto'; do
        # shellcheck disable=SC2086
        in_loop $try &
        loops+=($!)
    done
fi

# ---- how many -------------------------------------------------------------------------------------

auto() { "$program" sweep small.yaml --quiet --log auto.zst "$@" 2>err && jobs_of auto.zst && rm auto.zst; }
equal "auto: a core each for a small model" "3 1" "$(auto --threads 3)"
equal "one thread, one process" "1 1" "$(auto --threads 1)"
equal "no more than contexts" "2 2" "$(auto --threads 4 --set contexts=1)"
equal "one context has all threads" "1 4" "$(auto --threads 4 --jobs 3 --set contexts=1 --set lengths=256)"
equal "--dry-run" "3 workers with 2 threads each, each with a kv_limit_mib of 64" \
    "$("$program" sweep small.yaml --dry-run --threads 6 --jobs 3 --set kv_limit_mib=64 | head -n 1)"
for word in 0 1025 two; do
    ! "$program" sweep small.yaml --jobs $word 2>err || fail "--jobs $word is taken"
    grep -q "^kvlab: --jobs: \"$word\" is .*, want auto or 1 to 1024$" err || fail "--jobs $word: $(cat err)"
done

# Times are taken by the sweep's process, with all its threads, when no worker is left.
sed 's/^policies.*/policies: [full]/' small.yaml >speed.yaml
echo 'speed: {task: kv_retrieval, lengths: [256], steps: 3, repeats: 2}' >>speed.yaml
sweep 2 speed.yaml --set contexts=2 --log speed.zst 2>err || fail "a sweep with times"
equal "times" "4 cell 1 run 16 sample 2 speed" "$(kinds speed.zst)"
equal "threads of times" 2 "$(lines_of speed.zst | grep '"kind":"speed"' | grep -c '"threads":2,')"
equal "times are last" speed "$(lines_of speed.zst | sed -E 's/^\{"kind":"([a-z]*)".*/\1/' | tail -n 1)"

# ---- failures that are no crashes -----------------------------------------------------------------

# Both workers meet the limit in the same cells: one record each.
sweep 2 small.yaml --set kv_limit_mib=1 --set kv_type=f32 --set lengths=4000 --set exclude=[] \
    --log tight.zst --stats >stats 2>err || fail "no room"
equal "cells without room" "" "$(repeated_cells tight.zst)"
equal "errors without room" "$(kinds tight.zst)" "$(lines_of tight.zst | grep -c '"kind":"error"') error 1 run"
equal "errors counted" "$(lines_of tight.zst | grep -c '"kind":"error"')" "$(sed -E 's/.*; ([0-9]*) errors/\1/' stats)"

# A file that cannot grow: what is committed stays, and the sweep goes on later.
rc=0
(ulimit -f 8; sweep 2 small.yaml --set contexts=24 --log full.zst >said 2>err) || rc=$?
equal "exit code of a full disk" 4 $rc
zstd -tq full.zst || fail "a full disk left a damaged log"
sweep 2 small.yaml --set contexts=24 --log full.zst 2>err || fail "after there is space again"
sweep 1 small.yaml --set contexts=24 --log whole.zst 2>err || fail "in one process"
equal "results after a full disk" "$(results_of whole.zst | sort | cksum)" "$(results_of full.zst | sort | cksum)"

# ---- workers that are killed ----------------------------------------------------------------------

# Processes whose command line has a pattern, which must not match itself.
left() { { grep -lz -- "$1" /proc/[0-9]*/cmdline 2>grep.err || true; } | wc -l; }
workers_of() { cat /proc/"$1"/task/*/children 2>said || true; }

# at_work PID LOG: both workers of a sweep run and something is in its log, or the sweep is gone
at_work() { { [ -s "$2" ] && [ "$(workers_of "$1" | wc -w)" = 2 ]; } || gone "$1"; }

# A worker that waits for its next context when it is killed has nothing in hand and is replaced without
# a word, and where this script gets no time the sweep has ended: then again.
for ((try = 0; try < 20; try++)); do
    rm -f killed.zst
    "$program" sweep --threads 2 --jobs 2 --quiet small.yaml --set contexts=24 --log killed.zst 2>err &
    pid=$!
    eventually at_work $pid killed.zst || fail "no workers: $(cat err)"
    kill -9 "$(workers_of $pid | cut -d ' ' -f 1)" 2>said || true
    wait $pid || fail "a sweep whose worker is killed: $(cat err)"
    equal "results when a worker is killed" "$(results_of whole.zst | sort | cksum)" "$(results_of killed.zst | sort | cksum)"
    [ ! -s err ] || break
done
equal "words on a killed worker" "1 of 1" "$(grep -c 'was killed (signal 9; .*tried again$' err) of $(wc -l <err)"

# The sweep's process is killed: no worker lives on, nothing keeps the log.
"$program" sweep --threads 2 --jobs 2 --quiet small.yaml --set contexts=5000 --log orphans.zst 2>err &
pid=$!
eventually at_work $pid orphans.zst || fail "no workers: $(cat err)"
kill -9 $pid
{ wait $pid || true; } 2>said
sweep 2 small.yaml --set contexts=1 --log orphans.zst 2>err || fail "the log is still locked: $(cat err)"
none_left() { [ "$(left "orphans[.]zst")" = 0 ]; }
eventually none_left || fail "workers of a killed sweep live on"

# Control-C reaches all processes of a terminal at once.  Where they get no time for 5 s, they are ended: then again.
for ((try = 0; try < 20; try++)); do
    rm -f group.zst
    setsid "$program" sweep --threads 2 --jobs 2 --quiet small.yaml --set contexts=5000 --log group.zst 2>err &
    pid=$!
    eventually at_work $pid group.zst || fail "no workers: $(cat err)"
    kill -INT -- -$pid
    eventually gone $pid || { kill -9 $pid; fail "Control-C does not end it"; }
    rc=0
    wait $pid || rc=$?
    equal "exit after Control-C" 130 $rc
    equal "nothing twice after Control-C" "" "$(repeated_samples group.zst)"
    grep -q 'did not return within 5 s$' err || break
done
[ $try -lt 20 ] || fail "Control-C: in each of 20 tries workers were ended after 5 s"
equal "message after Control-C" "kvlab: stopped by signal 2; start the same command again to go on" "$(tail -n 1 err)"

# ---- policies that crash --------------------------------------------------------------------------

if [ ${#loops[@]} = 0 ]; then
    echo "test_jobs: no cc, crashing policies are not tested"
    exit 0
fi
plugin crash 'if (ctx->seed % 4 == 0) *(volatile int *)0 = step->pos'
plugin leave '_Exit(3)'
plugin swamp 'raise(SIGKILL)'

# Two policies that crash and two that do not: those are answered as if they were alone.
broken=(--plugin ./crash.so --plugin ./leave.so --set 'policies=[full, crash, leave, quest]' --set budgets=64 --set contexts=6)
sweep 2 small.yaml --set 'policies=[full, quest]' --set budgets=64 --set contexts=6 --log well.zst 2>err ||
    fail "without those that crash"
sweep 2 small.yaml "${broken[@]}" --log crash.zst --stats >stats 2>err || fail "a crash ended the sweep"
grep -qx 'kvlab: crashed while policy crash ran' err || fail "no word of the crash: $(cat err)"
grep -q '^kvlab: kv_retrieval [0-9]*, context [0-9]*: the worker of this context crashed (signal 11, .*) while policy crash ran; 2 cells failed, the sweep goes on$' err ||
    fail "what the sweep says of a crash: $(cat err)"
equal "errors of crashes" '4 "a policy broke its contract" "the worker of this context crashed (signal 11, Segmentation fault) while policy crash ran"
4 "a policy broke its contract" "the worker of this context ended with exit code 3 while policy leave ran"' "$(errors_of crash.zst)"
equal "nothing twice after crashes" "" "$(repeated_samples crash.zst)$(repeated_cells crash.zst)"
results_of crash.zst | grep -Ff <(lines_of well.zst | sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' | sort -u) >beside
cmp -s beside <(results_of well.zst) || fail "other results beside a crash: $(diff beside <(results_of well.zst) | cut -c 1-300 | head -n 4)"
equal "errors counted" 8 "$(sed -E 's/.*; ([0-9]*) errors/\1/' stats)"
equal "crashes are results" "$nothing" "$(sweep 2 small.yaml "${broken[@]}" --log crash.zst --stats 2>err)"
rc=0
sweep 2 small.yaml "${broken[@]}" --log crash.zst --strict 2>err || rc=$?
equal "--strict after a crash" 6 $rc
sweep 2 small.yaml "${broken[@]}" --log crash.zst --retry 2>err || fail "--retry after a crash"
equal "crashes tried again" "8 8" "$(errors_of crash.zst | cut -d ' ' -f 1 | xargs)"

# One that crashes when it is asked for its plan is refused, before anything runs; the others run.
plugin early '' '*(volatile int *)0 = 1'
early=(--plugin ./early.so --set budgets=64 --set contexts=6)
sweep 2 small.yaml "${early[@]}" --set 'policies=[full, early, quest]' --log early.zst --stats >stats 2>err ||
    fail "a crash in a plan ended the sweep"
equal "errors of a plan" '4 "a policy broke its contract" "the plan of policy early crashed (signal 11, Segmentation fault)"' \
    "$(errors_of early.zst)"
results_of early.zst | grep -v '"kind":"error"' | cmp -s - <(results_of well.zst) ||
    fail "other results beside a plan that crashes"
rc=0
sweep 1 small.yaml "${early[@]}" --set policies=early --log none.zst 2>err || rc=$?
equal "exit code of a plan that crashes" 6 $rc
grep -qx 'kvlab: every cell is refused: the plan of policy early crashed (signal 11, Segmentation fault)' err ||
    fail "what is said of a plan that crashes: $(cat err)"

# Killed while a policy ran: nobody is blamed at once, and nothing is tried for ever.
sweep 2 small.yaml --plugin ./swamp.so --set 'policies=[full, swamp]' --set budgets=64 --set lengths=256 \
    --set protocols=question_after_compress --log swamp.zst 2>err || fail "a killed worker ended the sweep"
grep -q 'tried again$' err || fail "it is not tried again: $(cat err)"
lines_of swamp.zst | grep '"status":"out of memory or over a limit","message":"the worker of this context was killed (signal 9; the system may have been out of memory) while policy swamp ran"' >found ||
    fail "no record of the killed worker: $(errors_of swamp.zst)"

# A plug-in has a worker, whatever the number of jobs and the number of threads; times are taken by one, too.
auto=(--quiet --plugin ./crash.so --set 'policies=[full, crash, quest]' --set budgets=64 --set contexts=6)
for threads in 1 2; do
    rm -f auto.zst
    "$program" sweep --threads $threads small.yaml "${auto[@]}" --log auto.zst 2>err ||
        fail "a crash ended the sweep of $threads threads"
    equal "errors of crashes, $threads threads" '4 "a policy broke its contract" "the worker of this context crashed (signal 11, Segmentation fault) while policy crash ran"' \
        "$(errors_of auto.zst)"
    results_of auto.zst | grep -Ff <(lines_of well.zst | sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' | sort -u) >beside
    cmp -s beside <(results_of well.zst) || fail "other results beside a crash with $threads threads"
done
plugin fall 'abort()'
"$program" sweep --threads 2 --quiet --plugin ./fall.so speed.yaml --set contexts=1 --log fall.zst \
    --set 'policies=[full]' --set 'speed={task: kv_retrieval, lengths: [256], steps: 3, repeats: 1, policies: [full, fall], budgets: [64]}' 2>err ||
    fail "a crash ended the sweep when times were taken"
equal "a time and a crash" "1 error 1 speed" "$(kinds fall.zst | grep -oE '[0-9]+ (error|speed)' | xargs)"
sweep 1 small.yaml "${auto[@]}" --log auto-1.zst 2>err || fail "--jobs 1: a plug-in ended the sweep"
equal "--jobs 1: a plug-in has a worker" "$(errors_of auto.zst)" "$(errors_of auto-1.zst)"

# ---- started by nohup -----------------------------------------------------------------------------

# A closed terminal does not end a sweep that began without SIGHUP.
plugin hold 'if (access("go", F_OK) != 0) close(creat("held", 0600)); while (access("go", F_OK) != 0) usleep(1000)'
(trap '' HUP
 exec "$program" sweep --threads 1 --jobs 1 --quiet --plugin ./hold.so small.yaml --set 'policies=[hold]' --set budgets=64 \
     --set contexts=1 --log held.zst 2>err) &
pid=$!
held() { [ -e held ] || gone $pid; }
eventually held || fail "it does not come to the policy"
kill -HUP $pid
touch go
rc=0
wait $pid || rc=$?
equal "exit after a SIGHUP that nohup keeps away" 0 $rc

for pid in "${loops[@]}"; do
    wait "$pid" || fail "a policy that does not return"
done

# ---- the line amid a prefill ------------------------------------------------------------------------

# Between two answers a long prefill says how far it is, here and in a worker; nothing of the results depends on it.
"$program" run -m "$source_dir/datasets/model/kvlab-small.gguf" --threads 1 --jobs 2 --task passkey --length 4096 --contexts 1 \
    --policy full --quiet --log quiet.zst >said 2>&1 || fail "a quiet run"
! grep -q prefill said || fail "a quiet run shows its prefill: $(cat said)"
for jobs in 1 2; do
    watched="$program run -m $source_dir/datasets/model/kvlab-small.gguf --threads 1 --jobs $jobs --task passkey --length 4096"
    watched+=" --contexts 1 --policy full --log $PWD/watched$jobs.zst"
    script -qec "$watched" /dev/null </dev/null >said 2>&1 || fail "a run on a terminal: $(cat said)"
    tr '\r' '\n' <said | grep -qE 'cells .*passkey 4096  prefill [0-9]+ %  [0-9.]+ tok/s' || fail "no progress amid a prefill with $jobs jobs"
    equal "a run that is watched" "$(results_of quiet.zst)" "$(results_of watched$jobs.zst)"
done
