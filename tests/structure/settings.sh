#!/usr/bin/env bash
# settings.sh - the keys of a sweep file stand in harness/plan/settings.def alone: harness/sweeps/README.md has the tables
# that are made of its rows, and nothing in harness/ reads a mapping of such keys, or gives a flag to one, by itself.
#
#   settings.sh SOURCES           compares
#   settings.sh SOURCES --write   puts the tables into the page
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cc -std=c17 -Wall -Werror -I "$sources/harness/plan" -o "$work/page" "$here/settings_page.c"
"$work/page" >"$work/tables"
bash "$here/made_tables.sh" "$work/tables" "$sources/harness/sweeps/README.md" "${2-}"
cd "$sources"
# Parts of one value are read with it; presets of tasks, recipes of papers and profiles of devices are files of other keys.
grep -rn 'kvl_yaml_walk(' harness --include='*.c' |
    grep -vE '^harness/(plan/setting[a-z_]*|plan/config_point|report/published|simulate/profile|lib/yamldoc)\.c:' >"$work/wrong" || true
# A key of the command line is a flag's row; what a command says in the place of the user is none.
grep -rnE 'kvl_sweep_override(_words)?\([^"]*"[a-z_.]+", "--[a-z]' harness --include='*.c' |
    grep -vE '"(log|tasks|policies)",' >>"$work/wrong" || true
[ ! -s "$work/wrong" ] || { echo "a setting beside harness/plan/settings.def:"; cat "$work/wrong"; exit 1; }
