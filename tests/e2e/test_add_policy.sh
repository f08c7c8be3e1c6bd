#!/usr/bin/env bash
# test_add_policy.sh - one new file is a method: methods/README.md, followed literally.
#
# Runs the commands of its first block in a copy of the sources, and those of the second (the same
# file as a plug-in) against the program that is there.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
build_dir=$(dirname "$program")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/copy

fail() {
    echo "test_add_policy: $*" >&2
    [ ! -f "$work/log" ] || tail -n 40 "$work/log" >&2
    exit 1
}

# The n-th block of shell commands of the README.
block() {
    awk -v want="$1" '/^```sh$/ { n++; inside = n == want; next } /^```/ { inside = 0 } inside' \
        "$source_dir/methods/README.md"
}

# What is tracked and there; without git, everything but build folders.
copy_sources() {
    mkdir -p "$copy"
    cd "$source_dir"
    if git rev-parse --is-inside-work-tree >"$work/log" 2>&1; then
        git ls-files -z | while IFS= read -r -d '' file; do
            [ ! -f "$file" ] || printf '%s\0' "$file"
        done | tar -c --null -T - -f - | tar -x -C "$copy" -f -
    else
        tar -c --exclude='./build*' --exclude=./out -f - . | tar -x -C "$copy" -f -
    fi
}

run_block() {
    block "$2" >"$work/block.sh"
    grep -q mymethod "$work/block.sh" || fail "no commands in methods/README.md, block $2"
    (cd "$1" && bash -eux -o pipefail "$work/block.sh") >"$work/log" 2>&1 ||
        fail "a command of methods/README.md, block $2, ended with an error"
}

expect() {
    grep -Eq -- "$1" "${2-$work/log}" || fail "no \"$1\" in the output"
}

copy_sources
if command -v ninja >"$work/log"; then export CMAKE_GENERATOR=Ninja; fi
run_block "$copy" 1
expect '^ +mymethod +method '
expect 'OK \] mymethod: real equals masked'
if grep -Eq '^\[ +FAILED' "$work/log"; then fail "the conformance suite failed"; fi
log=$copy/out/mymethod.jsonl.zst
[ -s "$log" ] || fail "no log of the sweep"
zstd -dcq "$log" | grep -Eq '"policy": *"mymethod"' || fail "the log has no mymethod"
"$copy/build/kvlab" report "$log" >"$work/report"
expect mymethod "$work/report"
grep -rlq mymethod "$copy/out" --include='*.svg' --include='*.tsv' --include='*.dat' ||
    fail "no figure shows mymethod"

# The plug-in, in a folder that has the finished file and the build that is there.
plugin=$work/plugin
mkdir -p "$plugin/methods"
cp "$copy/methods/mymethod.c" "$plugin/methods/"
ln -s "$build_dir" "$plugin/build"
ln -s "$source_dir/core" "$plugin/core"
if [ -x "$build_dir/tests/test_conformance" ]; then
    run_block "$plugin" 2
    expect '^ +mymethod +method .*mymethod\.so'
    expect 'OK \] mymethod: real equals masked'
else
    echo "test_add_policy: plug-in left out, no test_conformance beside $program"
fi
echo "test_add_policy: ok"
