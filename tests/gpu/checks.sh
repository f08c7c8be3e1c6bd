#!/usr/bin/env bash
# checks.sh - whether the GPU of this machine gives the right results; tests/run.sh --gpu has built for it.
#
#   checks.sh BUILD OUT.md     runs everything, writes the table of what passed; exit status 1: not all
#   checks.sh --fast BUILD OUT.md   in a minute or two: without conformance and compute-sanitizer, operators at the sizes
#                              of the fast tests; BUILD needs the programs alone
#   checks.sh --table OUT.md   the same table, of which nothing has run
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
fast=
[ "${1-}" != --fast ] || { fast=1; shift; }
build=$1 out=$2
failed=0
rows=

say() { printf 'kvlab: %s\n' "$*" >&2; }

# check TITLE COMMAND... - one row; the output goes to checks.log
check() {
    local title=$1 result
    shift
    if [ "$build" = --table ]; then
        result='not run on a GPU yet'
    elif [ "$1" = left_out ]; then
        result='left out (`--fast`)'
    else
        say "$title"
        if "$@" >>"$build/checks.log" 2>&1; then result=passed; else result="**failed**"; failed=1; fi
        [ "$result" = passed ] || say "failed, see $build/checks.log"
    fi
    rows+="| $title | $result |"$'\n'
}

# With asserts every operator waits, unless: here kernels run behind the host's back, and steps as graphs.
export KVL_CUDA_CHECKS=0

in_build() { (cd "$build" && ctest --output-on-failure --no-tests=error -j 1 "$@"); }
on_gpu() { KVL_TEST_DEVICE=cuda in_build "$@"; }

# Every program of the operators, without ctest.
programs() {
    local program rc=0
    for program in "$build"/tests/gpu_*; do
        echo "$program"
        timeout 300 "$program" || rc=1
    done
    return $rc
}

# part TEST - one test of test_gpu, which has run
part() { grep -qF "[       OK ] $1" "$build/test_gpu.log"; }

# sanitize TOOL - every program of the operators under compute-sanitizer
sanitize() {
    local program rc=0
    for program in "$build"/tests/gpu_*; do
        [ -x "$program" ] && [ -f "$program" ] || continue
        echo "$1: $program"
        timeout 3600 compute-sanitizer --tool "$1" --error-exitcode 9 "$program" || rc=1
    done
    return $rc
}

sanitizer() {
    local tool=$1
    if [ -n "$fast" ]; then
        check "compute-sanitizer $tool over the tests of the operators" left_out
    elif [ "$build" = --table ] || command -v compute-sanitizer >/dev/null; then
        check "compute-sanitizer $tool over the tests of the operators" sanitize "$tool"
    else
        rows+="| compute-sanitizer $tool over the tests of the operators | not run: not installed |"$'\n'
    fi
}

if [ "$build" != --table ]; then
    : >"$build/checks.log"
    say "CPU against GPU"
    "$build/tests/test_gpu" >"$build/test_gpu.log" 2>&1 || failed=1
    cat "$build/test_gpu.log" >>"$build/checks.log"
fi
operators="in_build -L ^gpu_ops$" conformance="on_gpu -L ^conformance$" how='`ctest -L gpu_ops`'
[ -z "$fast" ] || operators=programs conformance=left_out how='the programs `gpu_*`'
# shellcheck disable=SC2086
check "every operator against its definition, the store against a naive one ($how)" $operators
# shellcheck disable=SC2086
check "conformance of every policy (\`KVL_TEST_DEVICE=cuda ctest -L conformance\`)" $conformance
check "logits, CPU against GPU: within 1e-3 of the largest in f32, 2e-2 in bf16" part test_logits
check "greedy tokens of the shipped model, CPU against GPU: the same" part test_greedy
check "what policies read and keep, CPU against GPU: the same but for near-ties (one entry in fifty)" part test_selections
check "100 runs of full, quest and h2o: the same bits" part test_repeats
check "memory of the device is given back" part test_memory
check "memory of both sides (\`test_gpu_twins\`)" "$build/tests/test_gpu_twins"
check "waits of a token, and hooks that run ahead of the GPU (\`test_gpu_steps\`)" "$build/tests/test_gpu_steps"
sanitizer memcheck
sanitizer racecheck

{
    echo '# Whether the GPU path is right'
    echo
    echo "Written by \`tests/$([ -n "$fast" ] && echo gpu/checks.sh --fast || echo run.sh --gpu)\`; do not edit. Speed is in [gpu.md](gpu.md)."
    echo
    if [ "$build" = --table ]; then
        echo '**Nothing has run on a GPU yet.** The same kernels pass these tests on the CPU, compiled by a C++ compiler'
        echo '(`tests/ops/cuda_host`, which says what that cannot show).'
    else
        printf '%s, driver %s; %s; %s; kvlab %s.\n' \
            "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" \
            "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)" \
            "$("$build/kvlab" doctor | sed -n 's/.*this program was \(built with CUDA [0-9.]*\).*/\1/p')" \
            "$(date -u +%F)" "$("$build/kvlab" --version | sed 's/^kvlab //')"
    fi
    echo
    echo '| check | result |'
    echo '|---|---|'
    printf '%s' "$rows"
} >"$out"
exit $failed
