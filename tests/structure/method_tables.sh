#!/usr/bin/env bash
# method_tables.sh - methods/README.md says of methods what their cards say: the tables between "<!-- made by: kvlab
# describe --markdown, NAME -->" and "<!-- end -->" are those that the program prints, all of them.
#
#   method_tables.sh PROGRAM SOURCES           compares
#   method_tables.sh PROGRAM SOURCES --write   puts them into the file
set -euo pipefail
program=$1 readme=$2/methods/README.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" describe --markdown >"$work/tables"
# The file with the tables of the program in place of its own; those that only one of the two has are named.
awk -v tables="$work/tables" '
    BEGIN {
        while ((getline line < tables) > 0) {
            if (line ~ /^<!-- made by: /) { key = line; order[++n] = key }
            table[key] = table[key] line "\n"
        }
    }
    /^<!-- made by: kvlab describe --markdown/ {
        if (!($0 in table)) { print "kvlab describe --markdown has no table \"" $0 "\"" >"/dev/stderr"; bad = 1 }
        printf "%s", table[$0]
        seen[$0] = 1
        inside = 1
    }
    !inside
    /^<!-- end -->/ { inside = 0 }
    END {
        for (i = 1; i <= n; i++)
            if (!(order[i] in seen)) { print "methods/README.md has no line \"" order[i] "\"" >"/dev/stderr"; bad = 1 }
        if (inside) { print "methods/README.md: a table has no \"<!-- end -->\"" >"/dev/stderr"; bad = 1 }
        exit bad
    }' "$readme" >"$work/readme"

if [ "${3-}" = --write ]; then
    cp "$work/readme" "$readme"
elif ! diff "$readme" "$work/readme" >"$work/diff"; then
    cut -c 1-160 "$work/diff" | head -n 20 >&2
    echo "methods/README.md is not what the cards say: renew it with tests/structure/method_tables.sh PROGRAM SOURCES --write" >&2
    exit 1
fi
