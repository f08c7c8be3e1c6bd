#!/usr/bin/env bash
# cookbook.sh - every call of the cookbook in methods/README.md is in a public header, and in every file that its row
# names or a header beside that it includes.
#   $1 the sources
set -euo pipefail
cd "$1"
bad=0
fail() {
    echo "cookbook: $*" >&2
    bad=1
}

# words N: what stands in `backticks` in column N of $row.
words() {
    cut -d'|' -f "$1" <<<"$row" | grep -o '`[^`]*`' | tr -d '`' || true
}

rows=$(awk '/^## / { on = $0 == "## Cookbook" } on && /^\| / && !/^\| I want/' methods/README.md)
[ "$(wc -l <<<"$rows")" -ge 40 ] || fail "methods/README.md has no cookbook of 40 rows or more"
while IFS= read -r row; do
    want=$(cut -d'|' -f 2 <<<"$row") calls=$(words 3) files=$(words 4)
    [ -n "$calls" ] && [ -n "$files" ] || { fail "no call or no file:$want"; continue; }
    for call in $calls; do
        # ".hook" is a member of struct kvl_policy, set by a method.
        declared="\\b$call\\b" used="\\b$call\\b"
        [[ $call != .* ]] || { declared="\\(\\*${call#.}\\)\\(" used="^    \\$call = "; }
        grep -rqE -- "$declared" core/include/kvl || fail "$call is in no header of core/include/kvl"
        for file in $files; do
            [ -f "methods/$file" ] || { fail "there is no methods/$file:$want"; continue; }
            headers=$(sed -nE 's|^#include "([a-z0-9_.]+\.h)"|\1|p' "methods/$file" | sed "s|^|methods/$(dirname "$file")/|")
            # shellcheck disable=SC2086
            grep -qE -- "$used" "methods/$file" $headers || fail "methods/$file does not use $call:$want"
        done
    done
done <<<"$rows"
exit $bad
