#!/usr/bin/env bash
# kernels.sh - whether nvcc made of every kernel what tests/gpu/kernels.txt says; no GPU is needed.
#
#   kernels.sh FACTS ARCHS OBJECT...
#
# FACTS: the program kernel_facts; ARCHS: those that were built, with commas.  Exit status 77: nothing was built by nvcc,
# or not for sm_90, which the table is of.
set -euo pipefail

table=$(dirname "${BASH_SOURCE[0]}")/kernels.txt
skip() { echo "kernels.sh: skipped: $*"; exit 77; }

# limits TABLE FACTS - prints what is wrong, a line each
limits() {
    local -a pattern want used
    local row line n=0 i registers stack loc generic mma flight name said
    while read -r row; do
        [[ $row = \#* || -z $row ]] && continue
        read -r registers stack loc generic mma flight name <<<"$row"
        pattern[n]=$name want[n]="$registers $stack $loc $generic $mma $flight" used[n]=0
        n=$((n + 1))
    done <"$1"
    while read -r registers stack loc generic mma flight name; do
        name=${name#void } name=${name%%(*} said=
        for ((i = 0; i < n; i++)); do
            # shellcheck disable=SC2053
            [[ $name = ${pattern[i]} ]] || continue
            used[i]=1
            read -ra line <<<"${want[i]}"
            [ "$registers" -le "${line[0]}" ] || echo "$name: $registers registers, want at most ${line[0]}"
            [ "$stack" -le "${line[1]}" ] || echo "$name: $stack bytes of stack, want at most ${line[1]}"
            [ "$loc" -le "${line[2]}" ] || echo "$name: $loc loads and stores of local memory, want at most ${line[2]}"
            [ "$generic" -le "${line[3]}" ] || echo "$name: $generic generic loads and stores, want at most ${line[3]}"
            [ "$mma" -ge "${line[4]}" ] || echo "$name: $mma matrix instructions, want at least ${line[4]}"
            [ "$flight" -ge "${line[5]}" ] || echo "$name: $flight loads under way, want at least ${line[5]}"
            said=1
            break
        done
        [ -n "$said" ] || echo "$name: no row in tests/gpu/kernels.txt fits it"
    done <"$2"
    for ((i = 0; i < n; i++)); do
        [ "${used[i]}" = 1 ] || echo "no kernel fits the row of ${pattern[i]}"
    done
}

self_test() {
    printf '%s\n' '32 0 0 0 0 0 good<*>' '32 16 0 0 32 8 bad' '32 0 0 0 0 0 gone' >"$work/table"
    printf '%s\n' '32 0 0 0 0 0 void good<1, true>(in)' '33 24 2 1 16 7 bad(in)' '8 0 0 0 0 0 new(in)' >"$work/facts"
    [ "$(limits "$work/table" "$work/facts" | grep -cE '^(bad: .*, want at (most|least)|new: no row|no kernel .* gone$)')" = 8 ] ||
        { echo "kernels.sh: does not find what is wrong:"; limits "$work/table" "$work/facts"; exit 1; }
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
self_test
[ $# -gt 2 ] && [ -e "$3" ] || skip "built without nvcc"
[[ ,$2, = *,90,* ]] || skip "built for sm_$2, the table is of sm_90"
facts=$1
shift 2
"$facts" 90 "$@" >"$work/mangled" || { [ $? = 3 ] && skip "kernels are compressed in the objects"; exit 1; }
c++filt <"$work/mangled" >"$work/facts"
[ "$(wc -l <"$work/facts")" -ge 300 ] || { echo "kernels.sh: $(wc -l <"$work/facts") kernels found, want 300 or more"; exit 1; }
limits "$table" "$work/facts" >"$work/wrong"
cat "$work/wrong"
[ ! -s "$work/wrong" ]
