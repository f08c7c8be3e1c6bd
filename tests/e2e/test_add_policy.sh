#!/usr/bin/env bash
# test_add_policy.sh - one new file is a method, or a task: methods/README.md and datasets/README.md,
# followed literally.
#
# Runs the commands of the second block of each (a plug-in) in a copy of the sources, with the programs that are
# built.  With KVL_LONG=1 those of the first come before, which build their own: minutes of processor time.  A method
# with a loop of its own (methods/<name>.op.c) is added, too.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") source_dir=$(realpath "$2")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/copy

fail() {
    echo "test_add_policy: $*" >&2
    [ ! -f "$work/log" ] || tail -n 40 "$work/log" >&2
    exit 1
}

# block README N: its n-th block of shell commands.
block() {
    awk -v want="$2" '/^```sh$/ { n++; inside = n == want; next } /^```/ { inside = 0 } inside' \
        "$source_dir/$1"
}

# What is tracked and there; without git, everything but build folders.
copy_sources() {
    mkdir -p "$copy"
    cd "$source_dir"
    if git rev-parse --is-inside-work-tree >"$work/log" 2>&1; then
        comm -z -23 <(git ls-files -z | sort -zu) <(git ls-files -zd | sort -zu) | tar -c --null -T - -f - | tar -x -C "$copy" -f -
    else
        tar -c --exclude='./build*' --exclude=./out -f - . | tar -x -C "$copy" -f -
    fi
}

# run_block README N NAME: in the copy; NAME is what the block adds.
run_block() {
    block "$1" "$2" >"$work/block.sh"
    grep -q "$3" "$work/block.sh" || fail "no commands for $3 in $1, block $2"
    (cd "$copy" && bash -eux -o pipefail "$work/block.sh") >"$work/log" 2>&1 ||
        fail "a command of $1, block $2, ended with an error"
    if grep -Eq '^\[ +FAILED' "$work/log"; then fail "conformance of $3 failed"; fi
}

# logged NAME FILE: records of a log.
logged() {
    [ -s "$2" ] || fail "no log of the sweep"
    zstd -dcq "$2" | grep -E "\"(policy|task)\": *\"$1\"" >"$work/found" || fail "the log has no $1"
    "$copy/build/kvlab" report "$2" >"$work/report"
    expect "$1" "$work/report"
}

expect() {
    grep -Eq -- "$1" "${2-$work/log}" || fail "no \"$1\" in the output"
}

# The commands name the programs by where they are built.
built_programs() {
    mkdir -p "$copy/build/tests"
    ln -s "$program" "$copy/build/kvlab"
    for name in test_conformance test_task_conformance; do
        [ -x "$(dirname "$program")/tests/$name" ] || fail "no $name beside $program"
        ln -s "$(dirname "$program")/tests/$name" "$copy/build/tests/$name"
    done
}

built_in_method() {
    local end
    for end in c op.c op.h; do
        sed 's/host_loop/own_loop/g' "$source_dir/tests/conformance/host_loop.$end" >"$copy/methods/own_loop.$end"
    done
    run_block methods/README.md 1 mymethod
    expect '^ +mymethod +keeps the latest tokens'
    expect 'OK \] mymethod: real equals masked'
    logged mymethod "$copy/out/mymethod.jsonl.zst"
    logged own_loop "$copy/out/mymethod.jsonl.zst"
    zstd -dcq "$copy/out/mymethod.jsonl.zst" | grep '"policy": *"own_loop"' | grep -Eq '"host_op_calls": *[1-9]' ||
        fail "records of own_loop do not count its loops"
    "$copy/build/kvlab" report "$copy/out/mymethod.jsonl.zst" >"$work/report"
    expect 'a loop of its own on the host, which waits for the device before each of [0-9]' "$work/report"
    grep -rlq mymethod "$copy/out" --include='*.svg' --include='*.tsv' --include='*.dat' ||
        fail "no figure shows mymethod"
}

built_in_task() {
    run_block datasets/README.md 1 mytask
    expect '^ +mytask +words hidden in filler text'
    expect 'OK \] mytask, kvlab-tiny: evidence and questions'
    expect 'OK \] test_bytes'
    logged mytask "$copy/out/mytask.jsonl.zst"
}

# A file that goes away, or has another name: once the build ended with an undefined kvl_task_mytask.
removed_task() {
    rm "$copy/datasets/mytask.c" "$copy/tests/unit/test_task_mytask.c"
    (cd "$copy" && cmake --build build --parallel --target kvlab) >"$work/log" 2>&1 ||
        fail "no build without the file of mytask"
    "$copy/build/kvlab" list tasks >"$work/log"
    if grep -q mytask "$work/log"; then fail "mytask is listed without its file"; fi
}

copy_sources
# Half the time of the build, and the steps do not look at speed.
echo 'set(CMAKE_C_FLAGS_RELEASE "-O1" CACHE STRING "")' >"$work/quick.cmake"
export CMAKE_TOOLCHAIN_FILE=$work/quick.cmake
if command -v ninja >"$work/log"; then export CMAKE_GENERATOR=Ninja; fi
if [ -n "${KVL_LONG-}" ]; then built_in_method; else built_programs; fi
run_block methods/README.md 2 myplugin
expect '^ +myplugin +keeps the latest tokens .*myplugin\.so'
expect 'OK \] myplugin: real equals masked'

if [ -n "${KVL_LONG-}" ]; then
    built_in_task
    removed_task
fi
run_block datasets/README.md 2 plugtask
expect '^ +plugtask +words hidden in filler text.*'
expect 'out/plugtask\.so'
expect 'OK \] plugtask, kvlab-tiny: evidence and questions'
logged plugtask "$copy/out/plugtask.jsonl.zst"
echo "test_add_policy: ok"
