#!/usr/bin/env bash
# format.sh - C and CUDA sources are as clang-format 14 writes them (cmake --build build --target format mends it).
# Other versions format differently: skipped without one of that name.
#   $1 the sources
set -eu
cd "$1"
for format in clang-format-14 clang-format; do
    if command -v "$format" >/dev/null && "$format" --version | grep -q 'version 14\.'; then break; fi
    format=
done
[ -n "$format" ] || { echo "format: skipped, no clang-format 14"; exit 77; }
wrong=$(find core methods datasets harness tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0 |
    xargs -0 -n 40 -P 2 "$format" --dry-run -Werror 2>&1 | grep 'error:' | cut -d: -f1 | sort -u || true)
[ -z "$wrong" ] || { echo "not formatted (cmake --build build --target format):"; echo "$wrong"; exit 1; }
