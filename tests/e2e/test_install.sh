#!/usr/bin/env bash
# test_install.sh - `cmake --install` gives a program that runs apart from the sources, draws, and headers with
# which a plug-in compiles.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "test_install: $*" >&2
    [ ! -f "$work/log" ] || tail -n 20 "$work/log" >&2
    exit 1
}

build=$(dirname "$program")
[ -f "$build/cmake_install.cmake" ] || { echo "test_install: skipped, $build is no build folder"; exit 77; }
cmake --install "$build" --prefix "$work/at" >"$work/log" 2>&1 || fail "cmake --install"
kvlab=$work/at/bin/kvlab share=$work/at/share/kvlab
[ -x "$kvlab" ] || fail "no bin/kvlab"

cp "$share/methods/_template.c" "$work/mine.c"
cc -std=c17 -D_GNU_SOURCE -DKVL_PLUGIN -shared -fPIC -I"$work/at/include" -o "$work/mine.so" "$work/mine.c" \
    >"$work/log" 2>&1 || fail "a plug-in does not compile with the installed headers"
sed 's/sparq/apart/g' "$sources/methods/sparq.c" >"$work/apart.c"
cc -std=c17 -D_GNU_SOURCE -DKVL_PLUGIN -shared -fPIC -I"$work/at/include" -I"$share/methods" -o "$work/apart.so" "$work/apart.c" \
    "$share/methods/parts/channels.c" >"$work/log" 2>&1 || fail "a plug-in with a part does not compile with what is installed"
cd "$work"
"$kvlab" list policies --plugin "$work/mine.so" >"$work/log" 2>&1 || fail "the plug-in does not load"
"$kvlab" run -m "$share/datasets/model/kvlab-tiny.gguf" --plugin "$work/apart.so" --task passkey --length 512 --policy apart --budget 64 \
    --contexts 1 --questions 1 --log "$work/apart.jsonl.zst" >"$work/log" 2>&1 || fail "the plug-in with a part does not run"
"$kvlab" run -m "$share/datasets/model/kvlab-tiny.gguf" --task passkey --length 512 --policy streaming_llm --budget 64 --contexts 1 --questions 1 \
    --log "$work/run.jsonl.zst" >"$work/log" 2>&1 || fail "a run with the installed model"
"$kvlab" run -m "$share/datasets/model/kvlab-tiny.gguf" --task passkey --length 512 --policy omnikv --budget 64 --contexts 1 --questions 1 \
    --log "$work/omnikv.jsonl.zst" >"$work/log" 2>&1 || fail "a run of omnikv"
grep -q "by the model's tables" "$work/log" || fail "the installed model is without its tables"
"$kvlab" sweep "$share/harness/sweeps/demo.yaml" --dry-run --quiet >"$work/log" 2>&1 || fail "an installed sweep finds its model"
KVL_HOME=$share "$kvlab" plot accuracy_budget "$work/run.jsonl.zst" --out "$work" >"$work/log" 2>&1 || fail "a plot"
[ -s "$work/accuracy_budget.png" ] || fail "no picture"
