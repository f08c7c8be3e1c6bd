#!/usr/bin/env bash
# test_code_hashes.sh - what an edit changes of the code that results are of: a method's own cells when it
# is a method, all cells when it is the engine, none when it is a text or a table.
#   $1 the program (not used)   $2 the sources
set -euo pipefail
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

if ! command -v cmake >/dev/null; then
    echo "test_code_hashes: skipped, no cmake"
    exit 77
fi

fail() {
    echo "test_code_hashes: $*" >&2
    [ ! -s "$work/log" ] || tail -n 20 "$work/log" >&2
    exit 1
}

mkdir copy
(cd "$source_dir" && tar -c CMakeLists.txt core methods datasets/*.[ch] datasets/text harness results/README.md) |
    tar -C copy -x
# A header that two methods share.
touch copy/methods/of_two.h
sed -i '1i #include "of_two.h"' copy/methods/snapkv.c copy/methods/rocketkv.c
# Ninja sees sooner than make what is to be done, and it does not need cmake for that.
generator=() build=(cmake --build build --target kvl_code)
! command -v ninja >/dev/null || generator=(-G Ninja) build=(ninja -C build kvl_code)
configure() {
    cmake -S copy -B build "${generator[@]}" -DKVL_TESTS=OFF -DKVL_CUDA=OFF >log 2>&1 || fail "cmake"
}
# hashes FILE: a line for each engine, method and task, by the build's own rules
hashes() {
    "${build[@]}" >log 2>&1 || fail "the target kvl_code"
    sed -nE -e 's/^#define KVL_CODE_([A-Z]+) (0x[0-9a-f]+)$/\1 \2/p' -e '/POLICIES/,/TASKS/s/^ *X\(([a-z0-9_]+), (0x[0-9a-f]+)\).*/method \1 \2/p' \
        -e '/TASKS/,$s/^ *X\(([a-z0-9_]+), (0x[0-9a-f]+)\).*/task \1 \2/p' build/generated/kvl_code.h | sort >"$1"
}
# edit FILE: one more line of text in it
edit() {
    [ -f "copy/$1" ] || fail "no $1 any more: name another file here"
    echo "/* edited */" >>"copy/$1"
}
# changes WHAT WANT: names whose hash is another one than before the edit, or that are new
changes() {
    hashes now
    local got
    got=$(comm -13 before now | sed -E 's/ 0x.*//' | xargs)
    [ "$got" = "$2" ] || fail "$1 changes \"$got\", want \"$2\""
    mv now before
}
# file NAME: where a file lies in core/ or harness/
file() {
    (cd copy && find core harness -name "$1" | grep -v /ref/)
}

configure
hashes before
n_methods=$(grep -lE '^KVL_POLICY_EXPORT\(' copy/methods/[a-z]*.c | wc -l)
[ "$(grep -c '^method ' before)" = "$n_methods" ] || fail "$(grep -c '^method ' before) methods, want $n_methods"
[ "$(cut -d ' ' -f 3 before | sort | uniq -d)" = "" ] || fail "two have one hash: $(sort -k 3 before | head)"
tasks=$(sed -nE 's/^(task [^ ]*) .*/\1/p' before | xargs)

edit methods/README.md
edit results/README.md
edit "$(file labels.c)"
edit "$(file plot_chart.c)"
edit "$(file report_compare.c)"
changes "a text and a table" ""
edit methods/snapkv.c
changes "a method" "method snapkv"
edit methods/of_two.h
changes "a header of two methods" "method rocketkv method snapkv"
edit methods/pyramidkv_caps.h
changes "a header of one method" "method pyramidkv"
edit methods/parts/lsh.c
changes "a part of one method" "method magicpig"
edit methods/parts/lsh.h
changes "its header" "method magicpig"
edit methods/parts/head_file.c
changes "a part of two methods" "method duo_attention method minference method qfilters method triattention"
edit methods/parts/filter_roles.c
changes "a part of a method and of another part" "method omnikv method omnikv_prefill"
edit datasets/passkey.c
changes "a task" "task passkey"
edit datasets/text/english.def
changes "a text of tasks" "$tasks"
edit datasets/sample.c
changes "what tasks share" "$tasks"
edit "$(file forward.c)"
changes "the engine" ENGINE
edit core/include/kvl/opt.h
changes "a header of the engine" ENGINE
edit "$(file attn_decode.c)"
changes "an operator" ENGINE
edit "$(file attn_decode.cu)"
changes "a kernel" CUDA
edit "$(file runner_samples.c)"
changes "what runs answers" ENGINE
edit "$(file measure.c)"
changes "what scores them" ENGINE
edit "$(file measure.h)"
changes "its header" ENGINE
edit "$(file analysis.c)"
changes "what analyze counts" ANALYSIS
edit core/ops/ref/attend.c
changes "what only tests use" ""

# A file that moves is the same code; a method or a task that comes is new, and nothing else is.
mkdir copy/core/base/moved
mv copy/core/base/rng.c copy/core/base/moved/rng.c
configure
changes "a move" ""
sed 's/snapkv/mymethod/g' copy/methods/snapkv.c >copy/methods/mymethod.c
configure
changes "a new method" "method mymethod"
cp "$source_dir/tests/conformance/host_loop.op.h" copy/methods/mymethod.op.h
sed 's/host_loop/mymethod/g' "$source_dir/tests/conformance/host_loop.op.c" >copy/methods/mymethod.op.c
configure
changes "a loop of a method's own" "method mymethod"
edit methods/mymethod.op.c
changes "that loop" "method mymethod"
edit methods/mymethod.op.h
changes "a header of that loop" "method mymethod"
echo "test_code_hashes: ok"
