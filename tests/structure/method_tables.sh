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
bash "$(dirname "${BASH_SOURCE[0]}")/made_tables.sh" "$work/tables" "$readme" "${3-}"
