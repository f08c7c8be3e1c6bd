#!/usr/bin/env bash
# method_sizes.sh - a method reads like its paper's algorithm: how long methods may be, with the headers beside them that
# they include and with sources of their own (<name>.op.c), texts and tables of options counted in.
#   $1 the sources
set -euo pipefail
cd "$1/methods"
most_lines=300  # of any
most_median=170 # of all
most_headers=1  # private ones of a file

# Private headers of $@, and those that they include.
headers() {
    local file header
    for file in "$@"; do
        while read -r header; do
            [ ! -f "$header" ] || { echo "$header"; headers "$header"; }
        done < <(sed -nE 's|^[ \t]*#[ \t]*include[ \t]*"([a-z0-9_.]+)"|\1|p' "$file")
    done | sort -u
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
for file in *.c; do
    name=${file%.c}
    [[ $file != _* && $file != *.op.c ]] || continue
    own=("$file")
    for part in "$name".op.c "$name".op.h; do [ ! -f "$part" ] || own+=("$part"); done
    mapfile -t beside < <(headers "${own[@]}" | grep -v '\.op\.h$')
    echo "$(cat "${own[@]}" "${beside[@]}" | wc -l) ${#beside[@]} $name"
done | sort -rn >"$list"

n=$(wc -l <"$list")
[ "$n" -ge 30 ] || { echo "method_sizes: $n methods in $1/methods, want 30 or more" >&2; exit 1; }
median=$(sed -n "$(((n + 1) / 2))p" "$list" | cut -d ' ' -f 1)
bad=$(awk -v lines=$most_lines -v headers=$most_headers '$1 > lines || $2 > headers' "$list" | wc -l)
[ "$median" -le $most_median ] && [ "$bad" = 0 ] && exit 0
{
    echo "method_sizes: the median of $n methods has $median lines, want at most $most_median; $bad methods have more than"
    echo "$most_lines lines or more than $most_headers private header.  The longest (lines, private headers, method):"
    head -n 5 "$list"
    awk -v headers=$most_headers '$2 > headers' "$list"
} >&2
exit 1
