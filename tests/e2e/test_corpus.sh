#!/usr/bin/env bash
# test_corpus.sh - the packed inputs of the fuzz targets: what one command adds is there, and nothing is
# lost.
#   $1 the program (not used)   $2 the sources
set -euo pipefail
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_corpus: $*" >&2
    exit 1
}

for tool in zstd tar sha256sum; do
    command -v $tool >/dev/null || { echo "test_corpus: skipped, no $tool" && exit 77; }
done
cp -r "$source_dir/tests/fuzz" "$work/fuzz"
corpus=$work/fuzz/corpus.sh
for target in "$work"/fuzz/fuzz_*.c; do
    name=$(basename "$target" .c)
    name=${name#fuzz_}
    bash "$corpus" unpack "$name" "$work/before/$name"
    n=$(find "$work/before/$name" -type f | wc -l)
    grep -qx "$name $n" "$work/fuzz/corpus/counts" || fail "$name has $n inputs, counts says otherwise"
done

name=tokenizer
n=$(find "$work/before/$name" -type f | wc -l)
printf 'found\0bytes' >"$work/crash-1"
bash "$corpus" add $name "$work/crash-1" >"$work/said"
[ "$(cat "$work/said")" = "$name: $((n + 1)) inputs" ] || fail "add says $(cat "$work/said")"
grep -qx "$name $((n + 1))" "$work/fuzz/corpus/counts" || fail "counts is not $((n + 1)) after add"
bash "$corpus" unpack $name "$work/after"
added=$(comm -13 <(ls "$work/before/$name") <(ls "$work/after"))
[ "$(ls "$work/after" | wc -l)" = $((n + 1)) ] || fail "$((n + 1)) inputs are not there after add"
diff -rq "$work/before/$name" "$work/after" >"$work/said" || true
[ "$(cat "$work/said")" = "Only in $work/after: $added" ] || fail "add changes others: $(cat "$work/said")"
cmp -s "$work/after/$added" "$work/crash-1" || fail "add changes the input"
cp "$work/fuzz/corpus/$name.tar.zst" "$work/once"
bash "$corpus" add $name "$work/crash-1" >"$work/said"
cmp -s "$work/fuzz/corpus/$name.tar.zst" "$work/once" || fail "what is there already changes the archive"
if bash "$corpus" add nothing "$work/crash-1" 2>"$work/said"; then fail "a target that does not exist"; fi
grep -q '"nothing": want one of gguf' "$work/said" || fail "an unknown target: $(cat "$work/said")"
if bash "$corpus" add $name "$work/none" 2>"$work/said"; then fail "a file that does not exist"; fi
grep -q 'none: no such file' "$work/said" || fail "an unknown file: $(cat "$work/said")"
echo "test_corpus: ok"
