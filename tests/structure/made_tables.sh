#!/usr/bin/env bash
# made_tables.sh - a page has the tables that something makes: what stands in it between "<!-- made by: ... -->" and
# "<!-- end -->" is what stands in TABLES behind the same line, all of them.
#
#   made_tables.sh TABLES PAGE           compares
#   made_tables.sh TABLES PAGE --write   puts them into the page
set -euo pipefail
tables=$1 page=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The page with the tables in place of its own; those that only one of the two has are named.
awk -v tables="$tables" -v page="${page##*/}" '
    BEGIN {
        while ((getline line < tables) > 0) {
            if (line ~ /^<!-- made by: /) { key = line; order[++n] = key; made = key; sub(/,[^,]*$/, "", made) }
            table[key] = table[key] line "\n"
        }
    }
    index($0, made) == 1 {
        if (!($0 in table)) { print "no table \"" $0 "\" is made" >"/dev/stderr"; bad = 1 }
        printf "%s", table[$0]
        seen[$0] = 1
        inside = 1
    }
    !inside
    /^<!-- end -->/ { inside = 0 }
    END {
        for (i = 1; i <= n; i++)
            if (!(order[i] in seen)) { print page " has no line \"" order[i] "\"" >"/dev/stderr"; bad = 1 }
        if (inside) { print page ": a table has no \"<!-- end -->\"" >"/dev/stderr"; bad = 1 }
        exit bad
    }' "$page" >"$work/page"

if [ "${3-}" = --write ]; then
    cmp -s "$work/page" "$page" || cp "$work/page" "$page"
elif ! diff "$page" "$work/page" >"$work/diff"; then
    cut -c 1-160 "$work/diff" | head -n 20 >&2
    echo "$page is not what its tables are made of: renew it with the script that says so, and --write" >&2
    exit 1
fi
