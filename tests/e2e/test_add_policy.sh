#!/usr/bin/env bash
# test_add_policy.sh - one new file is a method: methods/README.md, followed literally.
#
# Runs the commands of its first block, and then those of its second (a plug-in), in a copy of the
# sources.
#   $1 the program (not used: the steps build their own)   $2 the sources
set -euo pipefail
source_dir=$(realpath "$2")

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
    grep -Eq 'mymethod|myplugin' "$work/block.sh" || fail "no commands in methods/README.md, block $2"
    (cd "$1" && bash -eux -o pipefail "$work/block.sh") >"$work/log" 2>&1 ||
        fail "a command of methods/README.md, block $2, ended with an error"
}

expect() {
    grep -Eq -- "$1" "${2-$work/log}" || fail "no \"$1\" in the output"
}

copy_sources
# Half the time of the build, and the steps do not look at speed.
echo 'set(CMAKE_C_FLAGS_RELEASE "-O1" CACHE STRING "")' >"$work/quick.cmake"
export CMAKE_TOOLCHAIN_FILE=$work/quick.cmake
if command -v ninja >"$work/log"; then export CMAKE_GENERATOR=Ninja; fi
run_block "$copy" 1
expect '^ +mymethod +keeps the latest tokens'
expect 'OK \] mymethod: real equals masked'
if grep -Eq '^\[ +FAILED' "$work/log"; then fail "the conformance suite failed"; fi
log=$copy/out/mymethod.jsonl.zst
[ -s "$log" ] || fail "no log of the sweep"
zstd -dcq "$log" | grep -E '"policy": *"mymethod"' >"$work/found" || fail "the log has no mymethod"
"$copy/build/kvlab" report "$log" >"$work/report"
expect mymethod "$work/report"
grep -rlq mymethod "$copy/out" --include='*.svg' --include='*.tsv' --include='*.dat' ||
    fail "no figure shows mymethod"

run_block "$copy" 2
expect '^ +myplugin +keeps the latest tokens .*myplugin\.so'
expect 'OK \] myplugin: real equals masked'
echo "test_add_policy: ok"
