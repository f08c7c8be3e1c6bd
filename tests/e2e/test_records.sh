#!/usr/bin/env bash
# test_records.sh - every field that the program writes is in results/README.md, and the other way
# round, for every kind of record; and the committed log is whole for kvlab, zstd and jq.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
check() { bash "$sources/tests/e2e/check_records.sh" "$@"; }

cat > "$dir/all.yaml" <<END
model: $sources/datasets/model/kvlab-test.gguf
tasks: [{task: passkey, keys: 4}, two_stage_retr]
lengths: [256]
protocols: [question_in_prefill, question_after_compress]
contexts: 2
questions: 2
policies: ["*", {policy: streaming_llm, prefill: own}]
budgets: [64]
quality: {questions: 1, steps: 2}
speed: {task: passkey, lengths: [256], budgets: [64], policies: [full, quest], steps: 4, warmup: 1,
        repeats: 2}
END
"$program" sweep "$dir/all.yaml" --log "$dir/all.zst" --quiet
check "$dir/all.zst" "$sources/results/README.md" run sample quality cell speed
# Of prefills that were loaded, no time is known.
sed 's/\["\*"/[full, quest, snapkv/' "$dir/all.yaml" > "$dir/some.yaml"
for log in first second; do
    "$program" sweep "$dir/some.yaml" --log "$dir/$log.zst" --snapshots "$dir/snapshots" --quiet
done
check "$dir/second.zst" "$sources/results/README.md" run sample quality cell speed
"$program" log check "$dir/all.zst"
zstd -tq "$dir/all.zst"

# A task without evidence has no depth: null, which the dictionary did not allow.
sed -e 's/^tasks:.*/tasks: [{task: cwe, words: 2}]/' -e 's/^questions: 2/questions: 1/' \
    -e 's/\["\*", .*/[full, quest]/' -e '/^speed/,$d' "$dir/all.yaml" > "$dir/counted.yaml"
"$program" sweep "$dir/counted.yaml" --log "$dir/counted.zst" --quiet
check "$dir/counted.zst" "$sources/results/README.md" run sample quality cell

# A store that is too small: records of kind error.
sed -e 's/\[256\]$/[8192]/' -e '/^speed/,$d' "$dir/all.yaml" > "$dir/error.yaml"
echo 'kv_limit_mib: 1' >> "$dir/error.yaml"
"$program" sweep "$dir/error.yaml" --log "$dir/error.zst" --quiet
check "$dir/error.zst" "$sources/results/README.md" run error

# The check itself: a field too many, one too few, a wrong type.
zstd -dcq "$dir/all.zst" | grep '^{"kind":"cell"' | sed -n 1p > "$dir/cell"
zstd -qf -o "$dir/cell.zst" < "$dir/cell"
check "$dir/cell.zst" "$sources/results/README.md" cell
for edit in '.new = 1' 'del(.budget)' '.n = "8"' '.official.extra = 1' 'del(.recall.lo)'; do
    jq -c "$edit" "$dir/cell" | zstd -qf -o "$dir/edited.zst"
    if check "$dir/edited.zst" "$sources/results/README.md" > "$dir/said"; then
        echo "test_records: $edit went unseen" >&2
        exit 1
    fi
done
