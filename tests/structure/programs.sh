#!/usr/bin/env bash
# programs.sh - scripts call programs that setup installs, or that skip by name where they are missing (the list below).
# A program that only this machine happens to have is found here; tests/run.sh finds what is called in other ways,
# since its PATH has no more than a fresh Debian's.
#   $1 the sources
set -euo pipefail
cd "$1"
. harness/setup.sh
. tests/bare.sh
kvl_needs+=$kvl_needs_tests
for row in $kvl_more_tests; do ! kvl_has "${row%%:*}" "${row##*:}" || kvl_needs+=" $row"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bare_path "$work/bin" || { echo "programs: skipped, no dpkg here"; exit 77; }

# script program: what a script can do without
more='harness/models.sh python3
harness/prose.sh python3
tests/e2e/test_fidelity.sh python3
tests/e2e/test_prose.sh python3
tests/e2e/test_real_run.sh python3
tests/e2e/test_real_models.sh python3
tests/e2e/test_report.sh python3
tests/fresh.sh debootstrap
tests/gpu/archs.sh nvcc
tests/gpu/archs.sh ptxas
tests/gpu/staged.sh python3'

# foreign FILE...: words where a command may stand, that are no functions of the file and that this machine has and a
# fresh one has not
foreign() {
    local file word
    awk '{ sub(/(^|[[:space:]])#.*/, "") }
        match($0, /^ *[a-zA-Z0-9_]+\(\)/) { name = $0; gsub(/[ (].*|^ */, "", name); own[FILENAME, name] = 1 }
        {
            gsub(/(^|; |\| |& |`|\$\(|[{] |!|(then|do|else|if|while|until|xargs|exec|eventually|time|nice|env) )[ \t]*/, "\n")
            n = split($0, part, "\n")
            for (i = 2; i <= n; i++)
                if (match(part[i], /^[a-z][a-zA-Z0-9_.+-]+( [^=]|$)/)) { split(part[i], word, " "); called[FILENAME, word[1]] = 1 }
        }
        END { for (pair in called) if (!(pair in own)) { split(pair, of, SUBSEP); print of[1], of[2] } }' "$@" | sort |
        while read -r file word; do
            [ -e "$work/bin/$word" ] || { type -P "$word" >"$work/where" && [[ $'\n'$more$'\n' != *$'\n'"$file $word"$'\n'* ]] && echo "$file $word"; }
        done || true
}

# A program of no package is found.
planted=kvl-planted
mkdir "$work/mine"
printf '#!/bin/sh\n' >"$work/mine/$planted"
chmod +x "$work/mine/$planted"
PATH=$PATH:$work/mine
printf 'true && x=$(%s 1)\n' $planted >"$work/planted.sh"
[ "$(foreign "$work/planted.sh")" = "$work/planted.sh $planted" ] || { echo "programs: a planted fault was not found"; exit 1; }

mapfile -t scripts < <(find .ci harness methods datasets plots tests -name '*.sh' -o -path '.ci/run')
foreign "${scripts[@]}" | sed 's/ / calls /; s/$/, which setup does not install/' >"$work/wrong"
[ ! -s "$work/wrong" ] || { cat "$work/wrong"; exit 1; }
