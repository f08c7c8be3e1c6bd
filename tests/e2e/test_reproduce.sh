#!/usr/bin/env bash
# test_reproduce.sh - recipes of papers: all can be read and planned, one is run, its numbers are those of the log.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_reproduce: $*" >&2
    exit 1
}
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in"$'\n'"$(head -n 40 "$3")"; }
# refused CODE PATTERN ARGUMENTS: that exit code, a last line that matches
refused() {
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" reproduce "$@" > out 2> err || rc=$?
    [ "$rc" = "$code" ] || fail "exit code of $*: $rc, want $code; $(tail -1 err)"
    tail -1 err > last
    contains "message of $*" "$pattern" last
}

# ---- what there is -------------------------------------------------------------------------------
"$program" reproduce > list
for file in "$sources"/harness/reproduce/*.yaml; do
    contains "the list" "^  $(basename "$file" .yaml) " list
done
refused 2 'did you mean "quest.fig4"' quest.fig44
refused 2 '--scale big: want paper, small or real' quest.fig4 --scale big
refused 2 '--scale paper wants --model' quest.fig4 --scale paper
# Data that a recipe needs is asked for by name, and the others run on.
refused 2 '1 recipe did not run' quest.fig6 --scale paper --out data -m "$sources/datasets/model/kvlab-tiny.gguf"
contains "what is missing" 'quest.fig6: wants --data: a plain text' err

# Every sweep of the small scale is one that the program takes.
"$program" reproduce --all --scale small --dry-run --out dry > out 2> err || fail "$(grep -v ' %' err | head -3)"

# A real model is asked the paper's own task where there is one, what stands for a benchmark otherwise, and reads real text.
model=$sources/datasets/model/kvlab-small.gguf
refused 2 '--scale real wants --model' quest.fig4 --scale real
refused 2 '1 recipe did not run' h2o.perplexity --scale real -m "$model" --out real
contains "what is missing" 'h2o.perplexity: wants --data: a plain text' err
"$program" reproduce h2o.perplexity snapkv.qasper h2o.long quest.fig6 omnikv.fig1a --scale real -m "$model" --data "$sources/README.md" \
    --dry-run --out real > out 2> err || fail "$(tail -1 err)"
contains "real text" "^tasks: .*mode: decode, tokens: 256, text: \"$sources/README.md\"" real/h2o.perplexity.yaml
contains "stand-ins" '^tasks: \[\{preset: small\}\]$' real/snapkv.qasper.yaml
contains "stand-ins of an analysis" '^tasks: \[\{preset: small\}\]$' real/omnikv.fig1a.yaml
contains "tasks of the paper" '^tasks: \[passkey, needle\]$' real/h2o.long.yaml
contains "all else" '^budgets: \[256, 512\]$' real/snapkv.qasper.yaml
"$program" reproduce snapkv.qasper --scale real -m "$model" --contexts 1 --set questions=1 --set 'budgets=[256]' --out real > out 2> err ||
    fail "$(tail -1 err)"
contains "the scale" 'Small scale, real model: Another task ran' out
contains "the page shows what ran" 'preset: small' real/index.html

# ---- one, run ------------------------------------------------------------------------------------
"$program" reproduce llama_cpp.cache --out new > out 2> err || fail "$(tail -1 err)"
# A token has a key and a value of two bytes per element in each kv head of each layer.
want=$(zstdcat new/llama_cpp.cache.jsonl.zst | jq -s '[.[] | select(.kind == "run")][0].model | 4 * .head_dim * .n_kv_heads * .n_layers / 1024')
got=$(awk '$1 == "Llama-3.2-1B" { print $NF }' out) # no interval stands behind it, and no difference to another model's
jq -en --argjson a "$want" --argjson b "$got" '($a - $b | fabs) < 0.006' > same || fail "$got KiB a token, want $want"
contains "the page" 'id="llama_cpp.cache"' new/index.html
contains "the small scale" 'Small scale: Another model, shorter contexts; only the shape compares' out
if grep -q 'differs' out; then fail "a difference between two models is told"; fi
contains "the page says what it is" 'only the shape compares' new/index.html
before=$(stat -c %s new/llama_cpp.cache.jsonl.zst)
"$program" reproduce llama_cpp.cache --out new > out 2> err
[ "$(zstdcat new/llama_cpp.cache.jsonl.zst | grep -c '"kind":"speed"')" = "$(zstdcat new/llama_cpp.cache.jsonl.zst | jq -r 'select(.kind=="speed") | "\(.cell) \(.repeat)"' | sort -u | wc -l)" ] ||
    fail "a second call ran again what was there ($before bytes before)"
