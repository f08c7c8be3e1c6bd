#!/usr/bin/env bash
# fields.sh - the fields of records stand in harness/log/fields.def alone: results/README.md has the tables that are made
# of its rows, nothing else in harness/log writes a field of its own, and what is observed of a session is named nowhere
# else in harness/.
#
#   fields.sh SOURCES           compares
#   fields.sh SOURCES --write   puts the tables into results/README.md
#   fields.sh --self-test       plants a name and sees that it is found
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names of what is observed, a line each; a record of a GPU's traffic has some of them, too.
observed() {
    grep -v '^ \*' "$1" | tr '\n' ' ' | grep -oE '\b(OBSERVED|TIER)\( *[a-z0-9_]+, *[a-z0-9_]+' | sed 's/.*[ ,]//' |
        grep -vxE 'd2h_bytes|d2h_calls|device_peak_bytes'
}

# once SOURCES: prints what is written or named beside fields.def, a line each
once() {
    cd "$1"
    grep -rnE "\"(tiers\\.)?($(observed harness/log/fields.def | paste -sd '|'))\"" harness --include='*.[ch]' |
        grep -v '^harness/bench/' || true
    # A record is begun, and filled with its rows.
    awk 'FNR == 1 { since = 0 }
        /^#define [A-Z]+ KVL_PUT/ { since = 0 }
        since && since++ == 4 { print FILENAME ":" FNR - 4 ": a record that is not made of rows" }
        /kvl_record_start\("/ { since = 1 }' harness/log/*.c
}

self_test() {
    mkdir -p "$work/tree/harness/log" "$work/tree/harness/report"
    printf 'OBSERVED(seen,\n         seen_tok, "number")\n' >"$work/tree/harness/log/fields.def"
    echo 'x = kvl_json_number(r, "seen_tok");' >"$work/tree/harness/report/a.c"
    printf 'r = kvl_record_start("sample", run);\n#define SAMPLE KVL_PUT\n\n\n\n\nr = kvl_record_start("cell", run);\n\n\n\n}\n' \
        >"$work/tree/harness/log/record.c"
    (once "$work/tree") >"$work/said"
    [ "$(cut -d : -f 1,2 "$work/said")" = "$(printf 'harness/report/a.c:1\nharness/log/record.c:7')" ] ||
        { echo "fields: not what was planted:"; cat "$work/said"; exit 1; }
}

if [ "${1-}" = --self-test ]; then self_test; exit; fi
(self_test)
sources=$(realpath "$1")
cc -std=c17 -Wall -Werror -I "$sources/harness/log" -o "$work/page" "$here/fields_page.c"
"$work/page" >"$work/tables"
bash "$here/made_tables.sh" "$work/tables" "$sources/results/README.md" "${2-}"
(once "$sources") >"$work/wrong"
[ ! -s "$work/wrong" ] || { echo "a field is named beside harness/log/fields.def:"; cat "$work/wrong"; exit 1; }
