#!/usr/bin/env bash
# headers.sh - a public function is defined in the folder of its header: kvl/table.h in core/policy/table, and so
# plan.h, select.h and observe.h; the calls of policy.h in core/policy/hooks.
#   $1 the sources
set -euo pipefail
cd "$1"
n=0 bad=0
while read -r header folder; do
    for name in $(awk '/^KVL_API/ { on = 1 } on { text = text " " $0 } on && /;/ { print text; text = ""; on = 0 }' "core/include/kvl/$header.h" |
        grep -oE '\bkvl_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u); do
        n=$((n + 1))
        at=$(grep -rlE "^[a-z][a-z0-9_ ]*[ *]$name\(" core/policy --include=*.c || true)
        case $at in
        "core/policy/$folder/"*.c) ;;
        *) echo "headers: $name of kvl/$header.h is defined in ${at:-no file of core/policy}, want core/policy/$folder" >&2; bad=1 ;;
        esac
    done
done <<'TEXT'
policy hooks
plan plan
table table
select select
observe observe
TEXT
[ "$n" -ge 80 ] || { echo "headers: $n public functions, want 80 or more" >&2; exit 1; }
exit $bad
