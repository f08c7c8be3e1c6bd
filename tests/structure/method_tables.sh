#!/usr/bin/env bash
# method_tables.sh - methods/README.md and methods/cards.md say of methods what their cards say: the tables between
# "<!-- made by: kvlab describe --markdown, NAME -->" and "<!-- end -->" are those that the program prints, all of them.
#
#   method_tables.sh PROGRAM SOURCES           compares
#   method_tables.sh PROGRAM SOURCES --write   puts them into the files
set -euo pipefail
program=$1 methods=$2/methods
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" describe --markdown >"$work/all"
rc=0
for page in README.md cards.md; do
    # What the methods are stands with the guide, the rest on a page of its own.
    awk -v page="$page" '/^<!-- made by: / { on = (/, kinds -->$/ != (page != "README.md")) } on' "$work/all" >"$work/tables"
    bash "$(dirname "${BASH_SOURCE[0]}")/made_tables.sh" "$work/tables" "$methods/$page" "${3-}" || rc=1
done
exit $rc
