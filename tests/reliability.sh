#!/usr/bin/env bash
# reliability.sh - what kvlab is put through, and how it came out: the rows of results/reliability.md, as they are now.
#
#   tests/reliability.sh [--write] [NAME...]    all of them, or those of a name: kills shards crashes faults flips memory
#                                               clocks harm slurm schedulers
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
[ $# -gt 0 ] || names=(kills shards crashes faults flips memory clocks harm slurm schedulers)
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
clocks() { KVL_ALLOCATIONS=1 e2e faults >"$work/said" && echo "a sweep, its shards and their merge under a wall clock that jumps by years: the same records, no time below zero"; }
harm() { e2e harm | says 'misbehave'; }
slurm() { e2e slurm >"$work/said" && echo "four nodes, a requeue, a lost node, a time limit: the records of an unsharded sweep ($(slurmctld -V))"; }
schedulers() { e2e schedulers >"$work/said"; echo "what each first try left when its disk was full goes on$([ ! -s "$work/said" ] || sed 's/^test_schedulers//' "$work/said" | paste -sd ' ')"; }

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
