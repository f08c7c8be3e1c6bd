#!/usr/bin/env bash
# test_sweep_page.sh - the examples on the page of the keys of a sweep run (structure.settings: it has all keys).
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_sweep_page: $*" >&2
    exit 1
}

page=$sources/harness/sweeps/README.md
[ "$(grep -c '^| `' "$page")" -ge 50 ] || fail "only $(grep -c '^| `' "$page") keys on the page"

# ---- examples: a sweep with the line of the example in place of its own ----------------------------
cp "$sources/datasets/model/kvlab-tiny.gguf" .
cat > base <<'END'
name: base
model: kvlab-tiny.gguf
tasks: [{task: passkey, keys: 2}]
lengths: [512]
policies: [full, quest, snapkv]
protocols: [question_in_prefill, question_after_compress]
budgets: [64, 128]
contexts: 1
END
while IFS= read -r example; do
    case $example in
    '{'*) sed -E 's/^\{(.*)\}$/\1/; s/, /\n/' <<< "$example" > lines ;;
    *) echo "$example" > lines ;;
    esac
    key=$(head -n 1 lines | cut -d: -f1)
    { grep -v "^$key:" base | if [ "$key" = models ]; then grep -v '^model:'; else cat; fi; cat lines; } > sweep.yaml
    "$program" sweep sweep.yaml --log no.zst --dry-run --quiet > out 2> err || fail "$example: $(cat err)"
done < <(sed -nE 's/^\| `.*\| `([^`]*)` \|$/\1/p' "$page")
