#!/usr/bin/env bash
# archs.sh - the kernels compile without a warning for every generation of GPUs that is supported, and cost no more
# registers, stack and spills there than tests/gpu/kernels.txt and archs.txt allow.
#
#   archs.sh SOURCES FOLDER
#
# Every file becomes PTX once, for the oldest generation, which ptxas compiles for each: no more than ptxas says is asked.
# Many minutes of processor time at first: only with KVL_LONG=1 (tests/run.sh --long).  FOLDER keeps what came of every
# file, by the bytes that it is made of, so that a later run compiles what has changed.  Exit status 77: skipped.
set -euo pipefail
archs='80 90 100 120'
PATH=$PATH:/usr/local/cuda/bin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# facts LOG ARCH - a line per kernel: arch registers stack spills name
facts() {
    awk -v arch="$2" '/Compiling entry function/ { split($0, q, "\x27"); name = q[2] }
        /bytes stack frame/ { stack = $1; spills = $5 + $9 }
        /: Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") r = $(i + 1)
            print arch, r, stack, spills, name }' "$1" | c++filt
}

# limits KERNELS ARCHS FACTS - prints what is wrong, a line each.  The first row that fits counts, those of ARCHS first.
# 40 registers are always right for sm_120: its 1536 threads all fit with them.
limits() {
    local -a pattern want used
    local arch registers stack spills name rest n=0 first i word
    while read -r arch registers stack spills name; do
        [[ $arch = [0-9]* ]] || continue
        pattern[n]="$arch $name" want[n]="$registers $stack $spills" used[n]=0
        n=$((n + 1))
    done <"$2"
    first=$n
    while read -r registers stack _ _ _ _ name; do
        [[ $registers = [0-9]* ]] || continue
        pattern[n]="* $name" want[n]="$registers $stack 0"
        n=$((n + 1))
    done <"$1"
    while read -r arch registers stack spills name; do
        name=${name#void } name=${name%%(*}
        for ((i = 0; i < n; i++)); do
            # shellcheck disable=SC2053
            [[ "$arch $name" = ${pattern[i]} ]] || continue
            used[i]=1
            read -ra word <<<"${want[i]}"
            [ "$arch" != 120 ] || [ "${word[0]}" -ge 40 ] || word[0]=40
            [ "$registers" -le "${word[0]}" ] || echo "sm_$arch $name: $registers registers, want at most ${word[0]}"
            [ "$stack" -le "${word[1]}" ] || echo "sm_$arch $name: $stack bytes of stack, want at most ${word[1]}"
            [ "$spills" -le "${word[2]}" ] || echo "sm_$arch $name: $spills bytes of spills, want at most ${word[2]}"
            break
        done
        [ $i -lt $n ] || echo "sm_$arch $name: no row in tests/gpu/kernels.txt fits it"
    done <"$3"
    for ((i = 0; i < first; i++)); do
        [ "${used[i]}" = 1 ] || echo "no kernel fits the row of sm_${pattern[i]} in tests/gpu/archs.txt"
    done
}

self_test() {
    printf '%s\n' '32 0 0 0 0 0 good<*>' '32 16 0 0 32 8 bad' >"$work/kernels"
    printf '%s\n' '80 40 0 8 good<*>' '120 8 0 0 gone' >"$work/archs"
    printf '%s\n' '80 40 0 8 void good<1, true>(in)' '90 33 0 0 void good<2>(in)' '90 32 24 4 bad(in)' '90 8 0 0 new(in)' \
        >"$work/facts"
    [ "$(limits "$work/kernels" "$work/archs" "$work/facts" | grep -cE 'want at most|no row in|no kernel fits')" = 5 ] ||
        { echo "archs.sh: does not find what is wrong:"; limits "$work/kernels" "$work/archs" "$work/facts"; exit 1; }
}

# parts FILE - it and what it includes of ours
parts() {
    local name f
    [ -z "${seen[$1]-}" ] || return 0
    seen[$1]=1
    echo "$1"
    while read -r name; do
        for f in "$src/core/ops/cuda/$name" "$src/core/ops/$name" "$src/core/include/$name" "$src/core/base/$name"; do
            [ -f "$f" ] && parts "$f" && break
        done
    done < <(sed -nE 's/^#include "(.*)"/\1/p' "$1")
}

# compile FILE - its facts for all generations, or the messages of the compiler
compile() {
    local stem kept arch
    declare -A seen
    stem=$(basename "$1" .cu)
    kept=$keep/$stem.$({ printf '%s\n' "$archs" "${options[@]}"; nvcc --version; parts "$1" | xargs cat; } | sha256sum | cut -c1-32)
    [ -e "$kept" ] && { cat "$kept"; return 0; }
    nvcc "${options[@]}" -arch=compute_80 -ptx "$1" -o "$work/$stem.ptx" >"$work/$stem.log" 2>&1 || { cat "$work/$stem.log" >&2; return 1; }
    for arch in $archs; do
        ptxas -O3 --warning-as-error -v -arch="sm_$arch" "$work/$stem.ptx" -o /dev/null >"$work/$stem.log" 2>&1 ||
            { grep -v '^ptxas info\|bytes stack frame' "$work/$stem.log" >&2; return 1; }
        if grep -i warning "$work/$stem.log" >&2; then return 1; fi
        facts "$work/$stem.log" "$arch" >>"$work/$stem.facts"
    done
    rm -f "$work/$stem.ptx" "$keep/$stem".*
    touch "$work/$stem.facts"
    mv "$work/$stem.facts" "$kept"
    cat "$kept"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
self_test
[ -n "${KVL_LONG-}" ] || { echo "archs.sh: skipped without KVL_LONG=1"; exit 77; }
command -v nvcc >/dev/null || { echo "archs.sh: skipped: no nvcc here"; exit 77; }
for arch in $archs; do
    nvcc --list-gpu-code | grep -qx "sm_$arch" || { echo "archs.sh: skipped: this nvcc has no sm_$arch"; exit 77; }
done
src=$(cd "$1" && pwd)
mkdir -p "$2"
keep=$(cd "$2" && pwd)
options=(-std=c++17 -O3 -DKVL_CUDA -DKVL_CUDA_SM90A=0 -fmad=false -I"$src/core/include" -I"$src/core/ops/cuda" -I"$src/core/ops" -I"$src/core/base"
    -Xcompiler=-Wall,-Wextra,-Wno-maybe-uninitialized -Werror=all-warnings)
# Two at a time: an attention takes a minute by itself.
failed=
for half in 0 1; do
    i=0
    for f in "$src"/core/ops/cuda/*.cu; do
        [ $((i++ % 2)) = $half ] || continue
        compile "$f" >>"$work/facts.$half" || { echo "archs.sh: $f: see above"; touch "$work/failed"; }
    done &
done
wait
[ ! -e "$work/failed" ] || failed=1
cat "$work"/facts.? >"$work/facts"
[ "$(wc -l <"$work/facts")" -ge 1200 ] || { echo "archs.sh: $(wc -l <"$work/facts") kernels found, want 1200 or more"; failed=1; }
limits "$here/kernels.txt" "$here/archs.txt" "$work/facts" >"$work/wrong"
cat "$work/wrong"
[ -z "$failed" ] && [ ! -s "$work/wrong" ]
