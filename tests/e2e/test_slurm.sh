#!/usr/bin/env bash
# test_slurm.sh - harness/cluster/slurm_array.sh on a real Slurm: an array of four shards, of which one is requeued, one
# loses its node, and one comes to its time limit.  Merged, their logs have the records of an unsharded run.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
. "$source_dir/tests/e2e/slurm_lib.sh"
missing=$(slurm_missing)
[ -z "$missing" ] || { echo "test_slurm: skipped, no $missing here"; exit 77; }
trap 'slurm_stop; rm -rf "$work"' EXIT
cd "$work"

# A policy that takes its time until there is a file: what happens to shards meets them at work.
cat >naps.c <<'END'
#include "kvl/policy.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int naps_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    (void)ctx, (void)layer;
    for (int i = 0; i < 200 && access(getenv("NAPS_END"), F_OK) != 0; i++)
        nanosleep(&(struct timespec){ 0, 10000000 }, NULL);
    return KVL_OK;
}

static const struct kvl_policy naps = {
    .abi = KVL_POLICY_ABI, .size = sizeof(struct kvl_policy), .name = "naps", .title = "naps", .paper = "none",
    .help = "sleeps", .version = 1, .prefilled = naps_prefilled,
};

KVL_POLICY_EXPORT(naps)
END
cc -std=c17 -D_GNU_SOURCE -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o naps.so naps.c
sweep_file 16 >small.yaml
plugin=(--plugin ./naps.so --set 'policies=[naps, full, quest, snapkv, random]' --threads 1)
export NAPS_END=$work/go KVLAB=$program
touch go
"$program" sweep small.yaml "${plugin[@]}" --quiet --shard none --log whole.zst 2>err || fail "the sweep alone"
results_of whole.zst >whole
rm go

slurm_start "$work/slurm" || fail "no Slurm"
# submit ARRAY: sets id
submit() {
    id=$(sbatch --parsable --array="$1" --gres=none --cpus-per-task=1 --time=20 --signal=B:USR1@110 \
        "$source_dir/harness/cluster/slurm_array.sh" 4 small.yaml "${plugin[@]}") || fail "sbatch"
}
submit 0-3
log() { echo "runs/sweep.shard-$1-of-4.jsonl.zst"; }
runs_of() { lines_of "$(log "$1")" | grep -c '"kind":"run"' || true; }
answers_of() { lines_of "$(log "$1")" 2>/dev/null | grep -c '"kind":"sample"' || true; }
state_of() { squeue -h -t all -j "${id}_$1" -o %T 2>/dev/null; }
all_at_work() { local i; for i in 0 1 2 3; do [ -s "$(log $i)" ] && [ "$(answers_of $i)" -gt 0 ] || return 1; done; }
eventually all_at_work || fail "no four shards at work: $(squeue; cat slurm-*.out)"

# ---- what happens to them ----------------------------------------------------------------------------

# 1 is requeued: Slurm ends it with SIGTERM.
scontrol requeue "${id}_1"
# 2 loses its node: all of it, at once.
node=$(squeue -h -j "${id}_2" -o %N)
job=$(squeue -h -j "${id}_2" -o %A)
kill -9 $(slurm_of "-N $node ") || fail "no slurmd of $node"
kill -9 $(slurm_of "slurmstepd: [$job.") $(slurm_of "SLURM_JOB_ID=$job"$'\n') || fail "no job $job on $node"
scontrol update nodename="$node" state=down reason=test
# 3 comes to its time limit, which is told ahead: between one and two minutes from now.  Slurm looks every half minute.
minutes=$(squeue -h -j "${id}_3" -o %M | awk -F: '{ print (NF > 2 ? 60 * $1 : 0) + $(NF - 1) }')
scontrol update jobid="${id}_3" timelimit=$((minutes + 2))
ended() {
    grep -qs 'stopped by signal 10' "slurm-${id}_3.out" || [[ $(state_of 3) =~ COMPLETED|FAILED|TIMEOUT|CANCELLED ]]
}
eventually ended && grep -q 'stopped by signal 10' "slurm-${id}_3.out" || fail "the time limit sends no signal, it is $(state_of 3): $(cat slurm-"${id}_3".out)"
grep -q 'stopped by signal 15' "slurm-${id}_1.out" || fail "a requeue sends no signal: $(cat slurm-"${id}_1".out)"
rc=0
"$program" status runs/*.zst >status 2>err || rc=$?
equal "the gate while shards wait" 75 $rc

# ---- they go on --------------------------------------------------------------------------------------

touch go
# Who waits for its time begins now, and none of them for the time limit of a minute.
nothing_left() {
    local i left
    for i in 1 2 3; do
        [ "$(state_of $i)" != PENDING ] || scontrol update jobid="${id}_$i" starttime=now timelimit=20 2>said || true
    done
    # Of all jobs: an id that is forgotten is an error, as is a controller that is busy.
    left=$(squeue -h -t all -o %T 2>said) || return 1
    ! grep -qE 'PENDING|RUNNING|COMPLETING|CONFIGURING|REQUEUE|SUSPENDED' <<<"$left"
}
eventually nothing_left || fail "it does not end: $(squeue; tail -n 4 slurm-*.out)"
# Not every Slurm starts the job of a lost node again by itself: then the gate says what to submit.
left=$("$program" status --left runs/*.zst 2>said) || true
if [ -n "$left" ]; then
    [ "$left" = 2 ] || fail "other shards than that of the lost node are left: $left"
    submit "$left"
    eventually nothing_left || fail "what was left does not end: $(squeue; tail -n 4 slurm-*.out)"
fi
for i in 1 2 3; do [ "$(runs_of $i)" -ge 2 ] || fail "shard $i ran once: $(tail -n 4 slurm-*.out)"; done
equal "runs of the shard that was left alone" 1 "$(runs_of 0)"
"$program" status runs/*.zst >status 2>err || fail "something is left: $(cat status err; tail -n 4 slurm-*.out)"
"$program" log merge -o all.zst runs/*.zst >merged 2>err || fail "merge: $(cat merged)"
"$program" log check all.zst >checked || fail "the merged log: $(cat checked)"
results_of all.zst >all
equal "nothing twice" "" "$(repeated_samples all.zst)$(repeated_cells all.zst)"
cmp -s whole all || fail "other records than those of an unsharded run: $(diff whole all | head -n 4)"
