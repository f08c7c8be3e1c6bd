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
refused 2 '--scale big: want paper or small' quest.fig4 --scale big
refused 2 '--scale paper wants --model' quest.fig4 --scale paper
# Data that a recipe needs is asked for by name, and the others run on.
refused 2 '1 recipe did not run' quest.fig6 --scale paper --out data -m "$sources/datasets/model/kvlab-tiny.gguf"
contains "what is missing" 'quest.fig6: wants --data: a plain text' err

# Every sweep of the small scale is one that the program takes.
"$program" reproduce --all --scale small --dry-run --out dry > out 2> err || fail "$(grep -v ' %' err | head -3)"

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
