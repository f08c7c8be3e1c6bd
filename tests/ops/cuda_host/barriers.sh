#!/usr/bin/env bash
# barriers.sh - whether the checker of races (cuda_host_races.h) misses no barrier: each one of decode attention in turn
# orders nothing, and its test has to find that.  Without KVL_LONG=1 only those of the merge.
#   $1 the test, $2 the sources
set -euo pipefail
files='attn_decode.cu'
[ -z "${KVL_LONG-}" ] || files+=' attn_split.cuh attn_fast.cuh'
export KVL_EMU_GUARD=0
unset KVL_EMU_EVERY
n=0
for f in $files; do
    while IFS=: read -r line _; do
        n=$((n + 1))
        if said=$(KVL_EMU_DROP=$f:$line "$1" 2>&1); then
            echo "$f:$line: a race without this barrier is not found"
            exit 1
        fi
        grep -q 'cuda_host: race in ' <<<"$said" || { echo "$f:$line: fails otherwise: ${said: -400}"; exit 1; }
    done < <(grep -n '__syncthreads()' "$2/core/ops/cuda/$f")
done
[ $n -ge 4 ] || { echo "$n barriers, want 4 or more"; exit 1; }
