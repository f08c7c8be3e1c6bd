#!/usr/bin/env bash
# real_results.sh - results/real.md with its pictures and results/real.html: all methods on real models, at least 100
# questions in 25 contexts behind every number, made of the logs in results/real/.
#
#   harness/real_results.sh                 the page, the table and the pictures of the logs that are there; runs nothing
#   harness/real_results.sh --run           first goes on with the sweeps where they were: hours.  Stop it at any time:
#                                           the table says n of how many
#   harness/real_results.sh --plan          what the sweeps lack, and how long they take
#   harness/real_results.sh --run NAME...   these parts alone, in this order
#   harness/real_results.sh --list          the parts
#   harness/real_results.sh --no-tables     without tables of layers and heads: methods that want some measure on each context
#   harness/real_results.sh --out DIR       logs in DIR (default results/real)
#   harness/real_results.sh ... -- OPTION...   options for kvlab sweep: --threads 1
#
# KVLAB=PATH takes that program instead of building one.  Wants what harness/models.sh and harness/prose.sh want.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# A part is a log: name | model | length | tasks | methods | budgets.  `all`: every method that there is.
main='full,random,oracle,streaming_llm,snapkv,h2o,tova,expected_attention,quest,omnikv,infllm'
parts="
qwen05-2k|qwen2.5-coder-0.5b|2048|niah things|$main|256
smollm2-1k|smollm2-135m|1024|things niah4|$main|128
smollm2-1k-text|smollm2-135m|1024|text|$main|128
smollm2-1k-all|smollm2-135m|1024|things|all|128
qwen05-2k-text|qwen2.5-coder-0.5b|2048|text|$main|256
gemma3-2k-text|gemma3-270m|2048|text|$main|256
qwen05-2k-all|qwen2.5-coder-0.5b|2048|things|all|256
smollm2-1k-budgets|smollm2-135m|1024|things|$main|64,256,512
qwen05-2k-budgets|qwen2.5-coder-0.5b|2048|things|$main|64,128,512,1024
qwen05-4k|qwen2.5-coder-0.5b|4096|things|$main|512
qwen15-2k|qwen2.5-coder-1.5b|2048|things|$main|256
qwen15-4k|qwen2.5-coder-1.5b|4096|things|$main|512
"
run= plan= out= tables=1
names=()
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --run) run=1 ;;
    --plan) plan=1 ;;
    --no-tables) tables= ;;
    --list) grep . <<<"$parts" | tr '|' '\t'; exit 0 ;;
    --out) [ $# -gt 1 ] || { kvl_say "--out wants a folder"; exit 2; }; out=$2; shift ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; options=("$@"); break ;;
    -*) kvl_say "unknown option $1, see --help"; exit 2 ;;
    *) names+=("$1") ;;
    esac
    shift
done

cd "$kvl_root" # logs name files relative to it
[ -n "$out" ] || out=results/real
held=out/real-results
kvl_find_kvlab

# The model under a name in the checkout, with what methods want to know of it (kvlab tables) beside it.
results_model() {
    local path
    path=$(harness/models.sh --path "$1")
    mkdir -p "$held"
    ln -sf "$path" "$held/$1.gguf"
    [ ! -e "${path%.gguf}.tables" ] || [ -e "$held/$1.tables" ] || cp "${path%.gguf}.tables" "$held/$1.tables"
    if [ -n "$tables" ] && [ -z "$plan" ] && [ ! -e "$held/$1.tables" ]; then
        kvl_say "$1: tables of layers and heads"
        "$kvlab" tables --length 1024 --contexts 1 --task things --task niah_multikey "$held/$1.gguf" >"$held/$1.tables.txt" ||
            kvl_say "$1: without tables omnikv, duo_attention and the like measure on each context"
    fi
}

results_task() {
    case $1 in
    niah) printf '{task: niah_multikey, keys: 8, prose: %s}' "$held/prose.txt" ;;
    niah4) printf '{task: niah_multikey, keys: 4, prose: %s}' "$held/prose.txt" ;;
    things) printf '{task: things, keys: 8, prose: %s}' "$held/prose.txt" ;;
    text) printf '{task: perplexity, tokens: 128, text: %s}' "$held/prose.txt" ;;
    esac
}

results_sweep() {
    local name=$1 model=$2 length=$3 tasks=$4 methods=$5 budgets=$6 task list=
    local log=$out/$name.jsonl.zst how=()
    [ "$methods" = all ] && methods='"*"'
    for task in $tasks; do list+="${list:+, }$(results_task "$task")"; done
    [ -z "$plan" ] || how=(--dry-run)
    results_model "$model"
    kvl_say "$name"
    "$kvlab" sweep harness/sweeps/real_results.yaml --model "$held/$model.gguf" --log "$log" --set "name=$name" \
        --set "tasks=[$list]" --set "lengths=[$length]" --set "policies=[$methods]" --set "budgets=[$budgets]" \
        --snapshots "$held/snapshots" "${how[@]}" "${options[@]}"
}

# What a log has: its table and its picture.
results_part() {
    local name=$1 log=$out/$1.jsonl.zst status figure
    # Its exit code says whether work is left.
    status=$({ "$kvlab" status "$log" 2>/dev/null || true; } | sed -n 's/^samples  *//p')
    printf '## %s\n\n' "$2"
    printf '`%s`: %s answers or texts of the sweep.\n\n' "$log" "$status"
    "$kvlab" report --summary --format markdown "$log"
    printf '\n'
    # A text has no answers, a question no KL: a figure without a point is none.
    for figure in methods accuracy_budget kl_budget top1_budget; do
        "$kvlab" plot "$figure" "$log" --out "$made" >/dev/null 2>&1 || continue
        grep -q '^[0-9]' "$made/$figure.dat" || continue
        cp "$made/$figure.png" "$out/$name-$figure.png"
        printf '![%s](%s)\n\n' "$figure" "real/$name-$figure.png"
    done
}

results_make() {
    local row name model length logs=()
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    for row in $(grep . <<<"$parts" | tr ' ' '_'); do
        IFS='|' read -r name model length _ <<<"$row"
        [ ! -s "$out/$name.jsonl.zst" ] || logs+=("$out/$name.jsonl.zst")
    done
    [ ${#logs[@]} -gt 0 ] || { kvl_say "$out: no logs, want --run first"; exit 1; }
    {
        cat harness/real_results.md
        for row in $(grep . <<<"$parts" | tr ' ' '_'); do
            IFS='|' read -r name model length _ <<<"$row"
            [ ! -s "$out/$name.jsonl.zst" ] || results_part "$name" "$model, $length tokens: $name"
        done
    } >"$made/real.md"
    "$kvlab" report "${logs[@]}" --html "$made/real.html"
    cp "$made/real.md" "$made/real.html" results/
    kvl_say "results/real.md, results/real.html"
}

[ -z "$run$plan" ] || kvl_run_parts results_sweep
[ -n "$plan" ] || results_make
