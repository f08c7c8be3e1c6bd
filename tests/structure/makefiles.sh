#!/usr/bin/env bash
# makefiles.sh - CMake's Makefiles build what Ninja builds, also one target alone and several at once.  Ninja knows every
# file; a Makefile of one folder finds an object of another there only when the target that makes it is named as a
# dependency, in Makefile2.  Compiling it all would take minutes: what is asked is whether the dependency is there.
#   $1 the sources
set -euo pipefail
command -v make >/dev/null || { echo "makefiles: skipped, no make"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset "${!CMAKE_@}"
cmake -S "$1" -B "$work/b" -G "Unix Makefiles" -DKVL_CUDA=OFF >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cd "$work/b"
find . -name build.make -exec grep -HE '^[^ #]+: [^ ]+\.dir/[^ ]+\.o$' {} + | awk '
    function target(path) { return match(path, /[^ ]*CMakeFiles\/[^\/]+\.dir/) ? substr(path, RSTART, RLENGTH) : "" }
    function reaches(from, to,    part, n, i) { # by dependencies of Makefile2
        if (from == to) return 1
        if ((from, to) in known) return known[from, to]
        n = split(needs[from], part, " ")
        for (i = 1; i <= n; i++) if (reaches(part[i], to)) return known[from, to] = 1
        return known[from, to] = 0
    }
    BEGIN {
        while ((getline line <"CMakeFiles/Makefile2") > 0)
            if (line ~ /\.dir\/all: .*\.dir\/all$/) { split(line, half, ": "); needs[target(half[1])] = needs[target(half[1])] " " target(half[2]) }
    }
    {
        split($0, half, "build.make:")
        who = target(half[1]); sub(/^\.\//, "", who)
        split(half[2], pair, ": ")
        maker = target(pair[2])
        n_objects++
        if (!reaches(who, maker) && !said[who, maker]++) print who " links objects of " maker ", which is not built first"
    }
    END { if (n_objects < 1000) print "only " n_objects " objects: this test reads the Makefiles wrongly" }' >"$work/wrong"
[ ! -s "$work/wrong" ] || { sort "$work/wrong" | head -n 20; exit 1; }
