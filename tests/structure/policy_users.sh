#!/usr/bin/env bash
# policy_users.sh - nothing in core serves one method: every call of the policy headers is used by two methods or more,
# of their own or through their parts (methods/parts), or policy_users.txt names it with a reason.  A call that serves
# one method belongs to that method, or to a part.
#   $1 the sources; prints how many methods use each call
#   policy_users.sh --self-test
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers='policy plan table select observe'

# "macro call" per line, a call for itself too: what a mention of a macro of the headers is a use of.
calls() {
    local header
    for header in $headers; do
        awk '/^KVL_API/ { on = 1 } on { text = text " " $0 } on && /;/ { print text; text = ""; on = 0 }' "$1/core/include/kvl/$header.h" |
            grep -oE '\bkvl_[a-z0-9_]+ *\(' | tr -d ' (' | sort -u | sed 's/.*/& &/'
    done | sort -u >"$work/calls"
    cat "$work/calls"
    for header in $headers; do
        sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$1/core/include/kvl/$header.h" |
            sed -nE 's/^#define (kvl_[a-z0-9_]+)\([^)]*\)(.*)/\1 \2/p' |
            while read -r macro body; do
                grep -oE '\bkvl_[a-z0-9_]+\b' <<<"$body" | sort -u | sed "s/^/$macro /"
            done
    done
}

# "method file" per line: the files of a method, of its parts and of their parts.
files() {
    awk '
        function read(file, method,    line, path, folder) {
            if ((method, file) in seen) return
            seen[method, file] = 1
            print method, file
            while ((getline line < file) > 0) text[file] = text[file] line "\n"
            close(file)
            folder = file
            sub(/[^\/]*$/, "", folder)
            split(text[file], lines, "\n")
            walk(file, method, folder)
        }
        function walk(file, method, folder,    n, i, list, path) {
            n = split(text[file], list, "\n")
            for (i = 1; i <= n; i++)
                if (list[i] ~ /^#include "[a-z0-9_.\/]+\.h"/ && list[i] !~ /"kvl\//) {
                    path = list[i]
                    gsub(/^#include "|".*/, "", path)
                    path = folder path
                    if (exists(path)) read(path, method)
                    sub(/\.h$/, ".c", path)
                    if (exists(path)) read(path, method)
                }
        }
        function exists(path,    line, there) { there = (getline line < path) >= 0; close(path); return there }
        BEGIN { for (i = 1; i < ARGC; i++) { method = ARGV[i]; sub(/.*\//, "", method); sub(/\.c$/, "", method); read(ARGV[i], method) } }
    ' "$1"/methods/[a-z]*.c | grep -v '\.op ' | sed -E 's/^([a-z0-9_]+)\.op /\1 /'
}

# users SOURCES: "call n methods" per line
users() {
    calls "$1" >"$work/names"
    files "$1" >"$work/files"
    cut -d' ' -f2 "$work/files" | sort -u | while read -r file; do
        { grep -oE '\bkvl_[a-z0-9_]+\b' "$file" || true; } | sort -u | sed "s|^|$file |"
    done >"$work/mentions"
    awk -v files="$work/files" -v names="$work/names" '
        BEGIN {
            while ((getline line < names) > 0) { split(line, w, " "); of[w[1]] = of[w[1]] " " w[2]; if (w[1] == w[2]) call[w[1]] = 1 }
            while ((getline line < files) > 0) { split(line, w, " "); by[w[2]] = by[w[2]] " " w[1] }
        }
        $2 in of {
            n = split(of[$2], meant, " "); m = split(by[$1], method, " ")
            for (i = 1; i <= n; i++) for (j = 1; j <= m; j++)
                if ((meant[i] in call) && !((meant[i], method[j]) in seen)) { seen[meant[i], method[j]] = 1; count[meant[i]]++; who[meant[i]] = who[meant[i]] " " method[j] }
        }
        END { for (name in call) print name, count[name] + 0 who[name] }' "$work/mentions" | sort
}

# check SOURCES EXCEPTIONS: prints what is wrong, a line each
check() {
    users "$1" >"$work/users"
    sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$2" >"$work/excepted"
    awk -v list="$work/excepted" '
        BEGIN { while ((getline line < list) > 0) { name = line; sub(/[: ].*/, "", name); why = line; sub(/^[^:]*: */, "", why); reason[name] = why
                                                     if (line !~ /^kvl_[a-z0-9_]+: ./) print "policy_users.txt: \"" line "\", want \"call: reason\"" } }
        { seen[$1] = 1 }
        $2 < 2 && !($1 in reason) { print $1 " serves " ($2 ? "one method," : "no method") substr($0, length($1 $2) + 2) ": it belongs there, or into policy_users.txt with a reason" }
        $2 > 1 && ($1 in reason) { print $1 " serves " $2 " methods: policy_users.txt need not name it" }
        END { for (name in reason) if (!(name in seen)) print name " of policy_users.txt is no call of the policy headers" }' "$work/users"
}

self_test() {
    local tree=$work/tree
    mkdir -p "$tree"/core/include/kvl "$tree"/methods/parts
    for header in $headers; do : >"$tree/core/include/kvl/$header.h"; done
    cat >"$tree/core/include/kvl/plan.h" <<'TEXT'
KVL_API int kvl_two(int a,
                    int b);
KVL_API int kvl_one(void);
KVL_API int kvl_none(void);
KVL_API int kvl_meant(void);
KVL_API int kvl_part(void);
#define kvl_macro(x) \
    kvl_meant(x)
TEXT
    printf '#include "parts/p.h"\nint a(void) { return kvl_two(1, 2) + kvl_one() + kvl_macro(1); }\n' >"$tree/methods/a.c"
    printf '#include "parts/p.h"\nint b(void) { return kvl_two(1, 2) + kvl_macro(1); }\n' >"$tree/methods/b.c"
    : >"$tree/methods/parts/p.h"
    echo 'int p(void) { return kvl_part(); }' >"$tree/methods/parts/p.c"
    printf 'kvl_two: a reason\nkvl_gone: a reason\nkvl_none\n' >"$work/list"
    check "$tree" "$work/list" | sort >"$work/said"
    diff "$work/said" - <<'TEXT'
kvl_gone of policy_users.txt is no call of the policy headers
kvl_one serves one method, a: it belongs there, or into policy_users.txt with a reason
kvl_two serves 2 methods: policy_users.txt need not name it
policy_users.txt: "kvl_none", want "call: reason"
TEXT
}

(self_test) || { echo "policy_users: the self-test fails" >&2; exit 1; }
[ "${1-}" != --self-test ] || exit 0
check "$(realpath "$1")" "$here/policy_users.txt" >"$work/wrong"
sort -k2,2n -k1,1 "$work/users"
[ ! -s "$work/wrong" ] || { cat "$work/wrong" >&2; exit 1; }
