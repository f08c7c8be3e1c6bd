#!/usr/bin/env bash
# test_sweep_page.sh - the page of the keys of a sweep has those that the parser knows, no others, and its examples run.
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

# ---- keys: the tables of the parser, with the prefix that their walk gives them --------------------
cat "$sources"/harness/plan/config*.c | awk '
    /struct kvl_yaml_key (keys|config_keys)\[\] = \{/ { on = 1; n = 0 }
    on { line = $0; while (match(line, /\{ "[a-z_]+", [a-z_0-9]+, (true|false) \}/)) {
             s = substr(line, RSTART + 3, RLENGTH); sub(/".*/, "", s); key[n++] = s; line = substr(line, RSTART + RLENGTH) } }
    on && /^ *\};/ { if ($0 ~ /^\};/) { for (i = 0; i < n; i++) print key[i]; n = 0 }; on = 0 }
    /kvl_yaml_walk\(/ && n { split($0, q, "\""); for (i = 0; i < n; i++) print q[2] key[i]; n = 0 }' | sort > known
page=$sources/harness/sweeps/README.md
sed -nE 's/^\| `([a-z_.]+)` \|.*/\1/p' "$page" | sort > told
[ "$(wc -l < known)" -ge 50 ] || fail "only $(wc -l < known) keys in the tables of the parser"
diff known told > differ || fail "keys (< of the parser, > of the page)"$'\n'"$(cat differ)"
[ -z "$(awk -F' \\| ' '/^\| `/ && NF != 5' "$page")" ] || fail "rows without five cells: $(awk -F' \\| ' '/^\| `/ && NF != 5' "$page")"

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
