#!/usr/bin/env bash
# methods.sh - what every method reaches of the speed that its bytes allow, into results/cpu.md: SmolLM2 at 8K tokens of text
# and the model that ships at 16K, one thread.  Wants a machine on which nothing else runs, for some twenty minutes.
#
#   tests/bench/methods.sh [KVLAB] [OUT.md]     default: build/kvlab, results/cpu.md
#
# The section "Methods against their bytes" of OUT.md is replaced, and made where it is not there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/bench/page_section.sh"
kvlab=${1:-$root/build/kvlab}
out=${2:-$root/results/cpu.md}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat "$root/README.md" "$root/core/README.md" "$root/methods/README.md" >"$tmp/text"

measure() { # MODEL TOKENS
    "$kvlab" bench methods --model "$1" --text "$tmp/text" --depths "$2" --budget 1024 --threads 1 --rounds 3 \
        --report="$tmp/$2.md"
}

measure "$("$root/harness/models.sh" --path smollm2-135m)" 8192
measure "$root/datasets/model/kvlab-small.gguf" 16384

# The head once, then both tables.
{
    cat "$tmp/8192.md"
    echo
    sed '1,/^### /{/^### /!d}' "$tmp/16384.md"
} >"$tmp/section"
put_section "$out" "Methods against their bytes" "$tmp/section"
