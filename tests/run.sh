#!/usr/bin/env bash
# run.sh - sets up, builds and runs the tests.  Exit status 0: all passed.
#
#   tests/run.sh          the fast tests (five minutes of processor time on a Zen 4: under three on two of its cores)
#   tests/run.sh --san    the same under AddressSanitizer and UBSan (slower)
#   tests/run.sh --clang  the same with clang
#   tests/run.sh --long   the long variants too: more kills, more random operations, more thread counts, the READMEs built,
#                         whole conformance on the emulated GPU, kernels for every generation of GPUs
#   tests/run.sh --gpu    instead, on a machine with an NVIDIA GPU: builds for it (build-gpu) and checks that
#                         it gives the right results: operators, policies, CPU against GPU, the same bits,
#                         compute-sanitizer; writes results/gpu-checks.md
#   tests/run.sh --fresh [bookworm|trixie]   instead, as root: both commands of README.md in a new folder of Debian 12
#                         or 13 (debootstrap), where nothing but git is installed; an hour of processor time
#   tests/run.sh --mutation   instead: whether the golden tests of every method notice slips in it
#                             (half an hour; KVL_MUTANTS=N slips per method, default 24)
#   tests/run.sh ... -- ARGS   ARGS go to ctest (for example: -- -R quest -V)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../harness/setup.sh"
. "$kvl_root/tests/bare.sh"

build=$kvl_root/build
tests=()
gpu=
options=(-DCMAKE_BUILD_TYPE=Release -DKVL_ASSERTS=ON -DKVL_WERROR=ON)
kvl_needs+=$kvl_needs_tests
# nvcc, where it is, compiles the kernels for one GPU alone.
options+=(-DKVL_CUDA=NVCC -DKVL_CUDA_ARCHS=90)
while [ $# -gt 0 ]; do
    case $1 in
    --san) build+=-san; options+=(-DKVL_SAN=address,undefined) ;;
    --clang) build+=-clang; options+=(-DCMAKE_C_COMPILER=clang); kvl_needs+=' clang:clang' ;;
    --long) export KVL_LONG=1 ;;
    --gpu) gpu=1; build+=-gpu ;;
    --mutation) tests=(-C mutation -L mutation -V) ;;
    --fresh) shift; exec "$kvl_root/tests/fresh.sh" "${1:-bookworm}" harness/demo.sh tests/run.sh ;;
    --) shift; break ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) kvl_say "unknown option $1, see --help"; exit 2 ;;
    esac
    shift
done

if [ -n "$gpu" ]; then
    PATH=$PATH:/usr/local/cuda/bin
    command -v nvidia-smi >/dev/null && cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1) ||
        kvl_die "--gpu: no NVIDIA GPU here (nvidia-smi finds none), want a machine with one and its driver"
    command -v nvcc >/dev/null || kvl_die "--gpu: no nvcc here, want the CUDA toolkit, 12.0 or newer"
    options+=(-DKVL_CUDA=ON "-DKVL_CUDA_ARCHS=${cap//./}" -DKVL_GPU_TESTS=ON)
fi
[ "$build" = "$kvl_root/build" ] && build=$kvl_root/build-test
kvl_setup
[ -n "$gpu" ] || kvl_setup_more
kvl_build "$build" "${options[@]}"
[ -z "$gpu" ] || exec "$kvl_root/tests/gpu/checks.sh" "$build" "$kvl_root/results/gpu-checks.md"
cd "$build"
if bare_path "$build/bin"; then
    PATH=$build/bin
else
    kvl_say "no dpkg here: the tests find every program of your PATH, also those that setup does not install"
fi
exec ctest --output-on-failure -j "$(nproc)" "${tests[@]}" "$@"
