#!/usr/bin/env bash
# real_models.sh - real models beside llama.cpp, by turns, into results/cpu.md: a prompt, tokens after nothing, tokens and a
# chunk at a depth.  Wants a machine on which nothing else runs, for an hour and more; with MODELS="smollm2-135m:512" minutes.
#
#   tests/bench/real_models.sh LLAMA_BENCH [BUILD] [OUT.md]     default: build, results/cpu.md
#
# LLAMA_BENCH is a llama-bench that was built for this machine; PEER=TEXT says which llama.cpp it is of.  BUILD has
# tests/bench_goals.  THREADS=LIST (default 1,2), ROUNDS=N (3).  The section "Real models, beside llama.cpp" of OUT.md is replaced, and
# made where it is not there.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/bench/page_section.sh"
peer=$1
build=${2:-$root/build}
out=${3:-$root/results/cpu.md}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

measure() { # NAME DEPTH
    "$build/tests/bench_goals" --model "$(model "$1")" --only machine --depths "0,$2" --threads "${THREADS:-1,2}" --rounds "${ROUNDS:-3}" \
        --peer "$peer" --json "$tmp/$1.jsonl" >"$tmp/$1.out"
    jq -r --arg name "$1" 'select(.part == "peer") |
        [$name, .what, .policy // "f32", .depth_tok, .threads, .value, .peer_s, .ratio, .ratio_lo, .ratio_hi] | @tsv' "$tmp/$1.jsonl" >>"$tmp/rows"
}

model() {
    if [ "$1" = kvlab-small ]; then echo "$root/datasets/model/kvlab-small.gguf"; else "$root/harness/models.sh" --path "$1"; fi
}

for one in ${MODELS:-smollm2-135m:2048 gemma3-270m:2048 qwen2.5-coder-0.5b:1024 kvlab-small:8192}; do measure "${one%:*}" "${one#*:}"; done

one() { cat "$tmp"/*.jsonl | jq -r "select(.part == \"peer\") | .$1" | head -1; }
{
    echo "## Real models, beside llama.cpp"
    echo
    echo "Written by \`tests/bench/real_models.sh\`: $(one cpu), $(one isa), $("$build/kvlab" --version), llama.cpp ${PEER:-of a build by hand},"
    echo "$(date -u +%F). By turns, medians of ${ROUNDS:-3} rounds, f16 keys and values on both sides, the better of llama.cpp's flash attention on"
    echo "and off. Above 1 kvlab is faster; in brackets the smallest and the largest round."
    echo "Goal: decoding at depth 0 1.2, all else 1. Times of decoding are of one token, others of all that is read at once: a chunk has 512"
    echo "tokens, a prompt as many as the model's other depth, 4096 at most."
    echo
    echo "| model | what | depth | threads | kvlab | llama.cpp's time over ours | goal |"
    echo "|---|---|---:|---:|---:|---:|---|"
    awk -F '\t' '
        function time(s) { return s < 0.01 ? sprintf("%.2f ms", 1000 * s) : s < 1 ? sprintf("%.0f ms", 1000 * s) : sprintf("%.2f s", s) }
        $3 == "f32" { want = ($2 ~ /^decode/ && $4 == 0) ? 1.2 : 1; met = $8 >= want
            printf "| %s | %s | %d | %d | %s | ", $1, $2, $4, $5, time($6)
            printf "%.2f (%.2f .. %.2f) | %s |\n", $8, $9, $10, met ? "met" : "**" want "**" }
    ' "$tmp/rows"
    echo
    echo "Limits: a token at depth 0 reads all weights once; with AVX2 one core is bound by arithmetic, as its activations have 16 bits, where"
    echo "llama.cpp's have 8 (\`decode_act: q8\` computes what llama.cpp does). At a depth keys and values come on top, once for all"
    echo "query heads of a group. A prompt and a chunk are bound by multiply-adds."
} >"$tmp/section"
put_section "$out" "Real models, beside llama.cpp" "$tmp/section"
