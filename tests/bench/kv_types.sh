#!/usr/bin/env bash
# kv_types.sh - what types of keys and values cost in time, into results/kv_types.md: decode attention at 32768 positions on one
# core and two, and a prefill, all types by turns with f16.  Wants a machine on which nothing else runs, for some four minutes.
#
#   tests/bench/kv_types.sh [BUILD] [OUT.md]     default: build, results/kv_types.md
#
# The section "Time, by turns" of OUT.md is replaced, and made where it is not there.  ROUNDS=N: of decoding (default 40), PREFILLS=N
# (default 6).  BUILD has kvlab and tests/bench_kv_types.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/bench/page_section.sh"
build=${1:-$root/build}
out=${2:-$root/results/kv_types.md}
rounds=${ROUNDS:-40} prefills=${PREFILLS:-6} n_tok=4096
model=$root/datasets/model/kvlab-small.gguf
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

types() { tr -d '\n' <"$root/core/include/kvl/kvtypes.def" | grep -o 'KVL_KV_TYPE([A-Z][^"]*"[^"]*"' | sed 's/.*"\(.*\)"/\1/'; }

decode() { # THREADS
    printf '### Decoding, %s\n\n' "$([ "$1" = 1 ] && echo 'one core (processor time)' || echo "$1 cores (wall time)")"
    "$build/tests/bench_kv_types" "$rounds" "$1"
    echo
}

# Text is cut to n_tok tokens; ids, so that no tokenizer is measured.
prefill() {
    local ids type r
    "$build/kvlab" tokenize --bos --ids --model "$model" "$root/core/README.md" | tr -s ' \n' ',' | cut -d, -f1-$n_tok >"$tmp/ids"
    ids=$(cat "$tmp/ids")
    for ((r = 0; r < prefills; r++)); do
        for type in f16 $(types | grep -vx f16) f16; do
            TIMEFORMAT="$type %U %S"
            { time "$build/kvlab" generate --model "$model" --kv-type "$type" --threads 1 --allow-overlong -n 1 --ids "$ids" \
                >/dev/null 2>&1; } 2>>"$tmp/times"
        done
    done
    printf '### A prefill\n\n%s of %s tokens, one thread, processor time of the whole run, the shortest of %s rounds; f16 begins and ' \
        "$(basename "$model" .gguf)" "$n_tok" "$prefills"
    printf 'ends each, and its two series tell how far\nequal runs differ.\n\n| `kv_type` | s | more than f16 |\n|---|---:|---:|\n'
    awk -v rounds="$prefills" '
        { name = $1; if (name == "f16" && ++n % 2 == 0) name = "f16 again"
          s = $2 + $3; if (!(name in best) || s < best[name]) best[name] = s
          if (!(name in seen)) { seen[name] = 1; order[++m] = name } }
        END { for (i = 1; i <= m; i++) printf "| %s | %.2f | %+.1f %% |\n", order[i], best[order[i]], 100 * (best[order[i]] / best["f16"] - 1) }
    ' "$tmp/times"
    echo
}

{
    printf '## Time, by turns\nWritten by `tests/bench/kv_types.sh` on %s; load of the machine when it began: %s.\n\n' \
        "$(awk -F': ' '/^model name/ { n = $2 } /^cpu family/ { f = $2 } /^model\t/ { m = $2 } END { printf "%s (family %s, model %s)", n, f, m }' /proc/cpuinfo)" \
        "$(cut -d' ' -f1 /proc/loadavg)"
    printf 'Decode attention over 32768 slots of 4 kv heads of 128, %s rounds by turns, the fastest of each. Bytes are of a slot. Cells: time, ' "$rounds"
    printf 'how many times\nfaster than f16, and the share of the stream: what reading its bytes from end to end would take of that time.\n'
    printf 'Goals: 1.5x for types of 8 bits, 2x for types of 4 bits; in a prefill 3 %% more.\n\n'
    decode 1
    decode 2
    prefill
} >"$tmp/section"
put_section "$out" "Time, by turns" "$tmp/section"
