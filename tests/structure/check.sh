#!/usr/bin/env bash
# check.sh - the house keeps its rooms: no include and no call against rooms.txt, no circle between folders, none
# between files (by their calls) or headers, no folder of more than 30 source files, hooks called from hooks.c alone.
#
#   check.sh SOURCES OBJECTS   OBJECTS: a file with the path of one object a line (.../<target>.dir/<source>.o)
#   check.sh --self-test       plants one fault of each kind and sees that it is found
set -eu
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

most_files=30
# One file per operator, method, task or command: lists, not rooms to find one's way in.
lists='^(core/ops/(ref|cpu|cuda)|methods|datasets(/files)?|harness/cmd)$'

# "from to" per line: folders that a folder may use.
allowed() {
    sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$1" |
        awk -F: '{ print $1, $1; n = split($2, to, " "); for (i = 1; i <= n; i++) print $1, to[i] }'
}

# "file file" per line: who includes whom.  Names of headers are unique in the tree.
includes() {
    find core harness methods datasets -name '*.h' -o -name '*.cuh' -o -name '*.def' 2>/dev/null |
        grep -v '^core/include/' >"$work/headers"
    find core harness methods datasets \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null |
        xargs grep -HoE '^#include "[^"]+"' /dev/null |
        awk -v headers="$work/headers" '
            BEGIN { while ((getline path < headers) > 0) { name = path; sub(/.*\//, "", name); at[name] = path } }
            { split($0, half, ":"); name = half[2]; gsub(/#include |"/, "", name)
              if (name ~ /^kvl\//) next
              sub(/.*\//, "", name); if (name in at) print half[1], at[name] }'
}

# "file file function" per line: who calls whom.  A function that several files define is not followed.
calls() {
    xargs nm -A <"$1" | sed -E 's|^.*\.dir/(\./)?||; s|\.o:| |' | awk '
        NF == 4 && $3 ~ /^[TDRBVW]$/ { count[$4]++; home[$4] = $1 }
        NF == 3 && $2 == "U" { n++; user[n] = $1; name[n] = $3 }
        END { for (i = 1; i <= n; i++) if (count[name[i]] == 1 && home[name[i]] != user[i])
                  print user[i], home[name[i]], name[i] }'
}

# check SOURCES OBJECTS ROOMS: prints what is wrong, a line each; nothing when all is well
check() {
    cd "$1"
    allowed "$3" >"$work/allowed"
    includes >"$work/includes"
    calls "$2" >"$work/calls"
    for kind in includes calls; do
        awk -v allowed="$work/allowed" -v kind="$kind" '
            function folder(path) { sub(/\/[^\/]*$/, "", path); sub(/^core\/policy\/.*/, "core/policy", path); return path }
            BEGIN { while ((getline line < allowed) > 0) ok[line] = 1 }
            { pair = folder($1) " " folder($2)
              if (!(pair in ok)) print $1, (kind == "calls" ? "calls " $3 " of" : "includes"), $2 ": rooms.txt does not allow it" }' \
            "$work/$kind"
    done
    cat "$work/includes" "$work/calls" | awk '
        function folder(path) { sub(/\/[^\/]*$/, "", path); sub(/^core\/policy\/.*/, "core/policy", path); return path }
        folder($1) != folder($2) { print folder($1), folder($2) }' | sort -u >"$work/folders"
    tsort "$work/folders" 2>&1 >/dev/null | sed -n 's/^tsort: *-\{0,1\}/circle between folders: /p' | grep -v 'input contains' || true
    { awk '{ print $1, $2 }' "$work/calls"; awk '$1 !~ /\.(c|cu)$/' "$work/includes"; } | sort -u >"$work/files"
    tsort "$work/files" 2>&1 >/dev/null | sed -n 's/^tsort: *-\{0,1\}/circle between files: /p' | grep -v 'input contains' || true
    find core harness methods datasets \( -name '*.c' -o -name '*.cu' \) 2>/dev/null | sed 's|/[^/]*$||' | sort | uniq -c |
        awk -v most="$most_files" -v lists="$lists" '$1 > most && $2 !~ lists { print $2 " has " $1 " source files, want at most " most }'
    grep -rnE -- '->(plan|open|prefill_mask|append|prefilled|schedule|score|select|observe|evict|report)\(' core --include=*.c 2>/dev/null |
        grep -vE '^core/policy/hooks/(hooks|compose)\.c:' | sed 's/$/ : hooks are called from core\/policy\/hooks\/hooks.c alone/' || true
}

self_test() {
    local tree=$work/tree object
    mkdir -p "$tree"/core/{base,policy,engine,kv} "$work"/o.dir/core/{engine,base,kv}
    echo '#include "up.h"' >"$tree/core/base/low.c"
    echo 'int kvl_up(void);' >"$tree/core/policy/up.h"
    printf 'int kvl_up(void);\nint kvl_low(void);\nint kvl_low(void) { return kvl_up(); }\n' >"$tree/core/base/call.c"
    printf 'int kvl_low(void);\nint kvl_up(void);\nint kvl_b(void);\nint kvl_up(void) { return kvl_low() + kvl_b(); }\n' >"$tree/core/engine/a.c"
    printf 'int kvl_up(void);\nint kvl_b(void);\nint kvl_b(void) { return kvl_up(); }\n' >"$tree/core/engine/b.c"
    for i in $(seq 31); do : >"$tree/core/kv/f$i.c"; done
    echo 'int f(void) { return policy->plan(plan); }' >"$tree/core/policy/other.c"
    printf 'int kvl_c(void);\nint kvl_d(void);\nint kvl_c(void) { return kvl_d(); }\n' >"$tree/core/kv/c.c"
    printf 'int kvl_c(void);\nint kvl_d(void);\nint kvl_d(void) { return kvl_c(); }\n' >"$tree/core/kv/d.c"
    echo '#include "y.h"' >"$tree/core/kv/x.h"
    echo '#include "x.h"' >"$tree/core/kv/y.h"
    for object in base/call engine/a engine/b kv/c kv/d; do
        cc -c -o "$work/o.dir/core/$object.c.o" "$tree/core/$object.c"
        echo "$work/o.dir/core/$object.c.o"
    done >"$work/objects"
    check "$tree" "$work/objects" "$here/rooms.txt" >"$work/said"
    local wrong=0 want
    while read -r want; do
        grep -qF "$want" "$work/said" || { echo "structure: not found: $want"; wrong=1; }
    done <<'TEXT'
core/base/low.c includes core/policy/up.h: rooms.txt does not allow it
core/base/call.c calls kvl_up of core/engine/a.c: rooms.txt does not allow it
circle between folders: core/
circle between files: core/engine/a.c
circle between files: core/kv/c.c
circle between files: core/kv/x.h
core/kv has 33 source files, want at most 30
hooks are called from core/policy/hooks/hooks.c alone
TEXT
    [ $wrong = 0 ] || { cat "$work/said"; exit 1; }
}

case ${1-} in
--self-test) self_test; exit ;;
'') sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
(self_test)
check "$(realpath "$1")" "$(realpath "$2")" "$here/rooms.txt" >"$work/wrong"
[ ! -s "$work/wrong" ] || { cat "$work/wrong"; exit 1; }
