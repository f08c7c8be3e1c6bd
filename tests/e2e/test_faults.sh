#!/usr/bin/env bash
# test_faults.sh - memory that runs out anywhere, and clocks that jump: every command ends with one clear line or does its
# work, and logs stay whole.
#
# Of every command KVL_ALLOCATIONS allocations fail in turn, spread over all that it makes, each once and once with all
# later ones (20; 0: every one).
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
command -v cc >/dev/null || { echo "test_faults: skipped, no cc"; exit 77; }
cd "$work"
cc -O2 -shared -fPIC -o alloc.so "$source_dir/tests/e2e/fail_alloc.c"
sweep_file 1 | sed 's/^lengths: .*/lengths: [256]/; s/, length: 320//; s/^policies: .*/policies: [full, quest, snapkv]/; s/\[snapkv, random\]/snapkv/' >small.yaml
run_sweep small.yaml --log a.zst 2>err || fail "a sweep"
run_sweep small.yaml --log b.zst --set seed=2 2>err || fail "another one"

# ---- memory -----------------------------------------------------------------------------------------

# short ON AT COMMAND...: allocation AT of it fails, and with ON=1 all later ones; sets rc
short() {
    local on=$1 at=$2
    shift 2
    rm -f new.zst new.zst.* count
    rc=0
    OMP_NUM_THREADS=1 timeout 60 env KVL_FAIL_COUNT="$work/count" KVL_FAIL_AT="$at" KVL_FAIL_ON="$on" LD_PRELOAD="$work/alloc.so" \
        "$program" "$@" >out 2>err || rc=$?
}
wrong=0 tried=0
# all_short COMMAND...
all_short() {
    local n step on at
    short 0 0 "$@"
    [ $rc = 0 ] || fail "$1: exit $rc with all memory"
    n=$(cat count)
    step=$((${KVL_ALLOCATIONS:-20} ? (n + ${KVL_ALLOCATIONS:-20} - 1) / ${KVL_ALLOCATIONS:-20} : 1))
    for on in 0 1; do
        for ((at = 1; at <= n; at += step)); do
            short $on $at "$@"
            tried=$((tried + 1))
            # 1: what libgomp and argp do of themselves.
            case $rc in
            0) ;;
            4) [ "$(wc -l <err)" = 1 ] || { echo "$1, allocation $at: $(wc -l <err) lines: $(head -n 3 err)"; wrong=$((wrong + 1)); } ;;
            *) echo "$1, allocation $at of $n${on/1/ and all later ones}: exit $rc: $(head -n 2 err)"; wrong=$((wrong + 1)) ;;
            esac
            [ ! -s new.zst ] || "$program" log check new.zst >checked 2>&1 || { echo "$1, allocation $at: $(cat checked)"; wrong=$((wrong + 1)); }
        done
    done
    said+="${said:+, }$1 $n"
}
said=
all_short report a.zst
all_short report --vs full a.zst
all_short export a.zst
all_short log merge -o new.zst a.zst b.zst
all_short sweep small.yaml --threads 1 --quiet --shard none --log new.zst
all_short run -m "$model" --threads 1 --quiet --task passkey:keys=2 --length 256 --contexts 1 --policy full,quest --budget 16,64 --log new.zst
[ $wrong = 0 ] || fail "$wrong of $tried failures of memory are not taken well"
[ -z "${KVL_ALLOCATIONS-}" ] || echo "$tried failed allocations (of $said), each taken: one line and exit code 4, or none needed it; logs whole"

# ---- clocks -----------------------------------------------------------------------------------------

# A wall clock that jumps by years, back and forth, at every look.
cat >clock.c <<'END'
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long looks;

static long jump(void)
{
    static const long jumps[] = { 0, 400000000, -300000000, 3600, -3600 };
    return jumps[looks++ % 5];
}

int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME) out->tv_sec += jump();
    return rc;
}

time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
END
cc -O2 -shared -fPIC -o clock.so clock.c
LD_PRELOAD=$work/clock.so run_sweep small.yaml --log jumps.zst 2>err || fail "a clock that jumps"
results_of a.zst | cmp -s - <(results_of jumps.zst) || fail "a clock that jumps changes results"
lines_of jumps.zst | grep -oE '"[a-z_]*(_ns|_s)":-' >negative && fail "times below zero: $(sort -u negative)"
for i in 0 1 2; do LD_PRELOAD=$work/clock.so run_sweep small.yaml --set log=shards/j.jsonl.zst --shard $i/3 2>err || fail "a shard with a clock that jumps"; done
"$program" status shards/*.zst >status 2>err || fail "shards with clocks that jump: $(cat status)"
"$program" log merge -o merged.zst shards/*.zst >said 2>err || fail "merge"
results_of a.zst | cmp -s - <(results_of merged.zst) || fail "clocks that jump change what is merged"
