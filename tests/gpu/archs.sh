#!/usr/bin/env bash
# archs.sh - the kernels compile without a warning for every generation of GPUs that is supported.  A quarter of an hour
# of processor time: only with KVL_LONG=1 (tests/run.sh --long).  Exit status 77: skipped.
#   $1 the sources
set -euo pipefail
archs='80;90;100;120'
PATH=$PATH:/usr/local/cuda/bin
[ -n "${KVL_LONG-}" ] || { echo "archs.sh: skipped without KVL_LONG=1"; exit 77; }
command -v nvcc >/dev/null || { echo "archs.sh: skipped: no nvcc here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake -S "$1" -B "$work" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVL_CUDA=NVCC "-DKVL_CUDA_ARCHS=$archs" -DKVL_TESTS=OFF \
    -DKVL_WERROR=ON >"$work/configure" 2>&1 || { tail -n 20 "$work/configure"; exit 1; }
sed -n 's/^-- \(CUDA .*\)/archs.sh: \1/p' "$work/configure"
ninja -C "$work" -k 0 kvl_cuda >"$work/log" 2>&1 || { grep -E "FAILED|error|warning" "$work/log" | head -n 40 || tail -n 5 "$work/log"; exit 1; }
if grep -inE 'warning' "$work/log"; then exit 1; fi
