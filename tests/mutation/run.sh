#!/usr/bin/env bash
# run.sh - whether the golden tests of methods notice slips in their formulas.
#
#   run.sh CONFIG METHOD...     CONFIG is written by CMake: tests/mutation/config in the build folder
#
# For each method, mutate.awk lists small slips in methods/<method>.c, the headers of methods/ that it
# includes and its parts (methods/parts): a sign, a comparison, a term, an index off by one.  Each is applied
# alone, compiled, and linked with the method's golden tests, those named after it, else those that mention its object; it is
# killed if one of them fails.  Prints per method what was killed and what survived.  Some slips change
# nothing that can be seen; a method all of whose slips survive has no golden test worth the name:
# exit status 1.
#
# KVL_MUTANTS=N  slips per method, spread over its files (default 24, and 12 for each part); all: every one
set -euo pipefail
config=$1 here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shift
. "$config" # cc cflags link libs objects golden sources
export CCACHE_DISABLE=1 # it does not notice a header that appears in front of another
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One archive of all objects: of a method that comes before it, the archive's own is not taken.
ar rcsT "$work/all.a" $(<"$objects")

golden_of() {
    local method=$1 stem object named='' mentioned=''
    while read -r stem object; do
        local short=${stem#test_golden_}
        case $short in "$method" | "$method"_*) named+=" $stem:$object" ;; esac
        if grep -qw "kvl_policy_$method" "$sources/tests/golden/$stem.c"; then mentioned+=" $stem:$object"; fi
    done <"$golden"
    echo "${named:-$mentioned}"
}

# Files of methods/ that $1 includes, with the source of each part, and theirs.
included_by() {
    local path
    sed -nE 's|^#include "((parts/)?[a-z0-9_]*)\.h".*|\1|p' "$sources/methods/$1" | while read -r path; do
        case $1 in parts/*) path=parts/$path ;; esac
        [ -e "$sources/methods/$path.h" ] || continue
        [ "$path.c" = "$1" ] || [ "$path.h" = "$1" ] || { echo "$path.h"; included_by "$path.h"; }
        [ ! -e "$sources/methods/$path.c" ] || [ "$path.c" = "$1" ] || { echo "$path.c"; included_by "$path.c"; }
    done
}

# The method's files that have code, each once, itself first.
files_of() {
    { echo "$1.c"; included_by "$1.c"; } | awk '!seen[$0]++'
}

# Fresh sources of the method and its parts in $work/src.
restore() {
    local file
    for file in $files; do
        case $file in *.c) cp "$sources/methods/$file" "$work/src/$file" ;; *) rm -f "$work/src/$file" ;; esac
    done
}

# A test that includes the method's file as ../methods/X.c, with the slip in it.
build_including() {
    mkdir -p "$work/tests"
    ln -sfn "$work/src" "$work/methods"
    $cc $cflags -w -c -DKVL_SOURCE_DIR="\"$sources\"" -I"$work/tests" -I"$work/src" \
        -I"$sources/core/include" $includes -I"$sources/tests" -I"$sources/methods" \
        -o "$work/$1.o" "$sources/tests/golden/$1.c" 2>"$work/log"
}

# build: the method and its parts in $work/src, by test; 1: does not compile or link
build() {
    local file own=() number=0
    for file in $files; do
        case $file in *.c) ;; *) continue ;; esac
        $cc $cflags -w -c -I"$work/src" -I"$sources/core/include" -I"$sources/methods" -I"$sources/methods/parts" \
            -o "$work/own$number.o" "$work/src/$file" 2>"$work/log" || return 1
        own+=("$work/own$number.o")
        number=$((number + 1))
    done
    for test in $tests; do
        local stem=${test%%:*} object=${test#*:}
        if grep -q "^#include \"../methods/$method.c\"" "$sources/tests/golden/$stem.c"; then
            object=$work/$stem.o
            build_including "$stem" || return 1
        fi
        $cc $link -o "$work/$stem" "$object" "${own[@]}" "$work/all.a" $libs 2>"$work/log" || return 1
    done
}

# Whether all golden tests pass.
passes() {
    local test rc
    for test in $tests; do
        rc=0
        { (cd "$work" && timeout -k 1 "$limit" "./${test%%:*}") >"$work/out" 2>&1; } 2>/dev/null || rc=$?
        [ $rc = 0 ] || [ $rc = 77 ] || return 1
    done
}

# "file number line slip" per mutant, at most $KVL_MUTANTS of them.
places() {
    local file n_parts
    n_parts=$(printf '%s\n' $files | grep -c '^parts/.*\.c$' || true)
    for file in $files; do
        awk -f "$here/mutate.awk" "$sources/methods/$file" | sed "s|^|$file |"
    done | awk -v want="${KVL_MUTANTS:-$((24 + 12 * n_parts))}" '{ row[NR] = $0 }
        END { n = want == "all" || want > NR ? NR : want
              for (i = 0; i < n; i++) print row[1 + int((i + 0.5) * NR / n)] }'
}

mutate() {
    local file number line slip killed=0 n=0 survivors=''
    while read -r file number line slip; do
        restore
        awk -v pick="$number" -f "$here/mutate.awk" "$sources/methods/$file" >"$work/src/$file"
        build || continue
        n=$((n + 1))
        if passes; then
            survivors+="  survived: methods/$file:$line: $slip"$'\n'
        else
            killed=$((killed + 1))
        fi
    done < <(places)
    if [ $n = 0 ]; then
        echo "$method: no formula"
        return 0
    fi
    echo "$method: $killed of $n killed"
    printf '%s' "$survivors"
    [ $killed -gt 0 ]
}

status=0
for method in "$@"; do
    tests=$(golden_of "$method") files=$(files_of "$method") limit=300
    rm -rf "$work/src"
    mkdir -p "$work/src/parts"
    if [ -z "$tests" ]; then
        [ -z "$(places)" ] && { echo "$method: no formula"; continue; }
        echo "$method: no golden test"
        status=1
        continue
    fi
    restore
    build || { echo "$method: does not build"; cat "$work/log"; exit 2; }
    began=$SECONDS
    passes || { echo "$method: its golden tests fail as it is"; tail -n 5 "$work/out"; status=1; continue; }
    limit=$((5 + 10 * (SECONDS - began)))
    mutate || status=1
done
exit $status
