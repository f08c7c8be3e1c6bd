#!/usr/bin/env bash
# method_shape.sh - how much of a method is its algorithm: lines per method of the algorithm, the head comment (paper),
# the card (struct kvl_policy), options, plan, and of the parts (methods/parts) that it takes.  There is no limit.  It
# fails where lines are of no kind, where a method has no card or no head comment, and on a part that no method takes.
#   $1 the sources
#   method_shape.sh --self-test   sees that each kind is recognised
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# kinds FILE: "kind lines" for each kind that it has
kinds() {
    awk '
        function kind_of(text) {
            if (text ~ /struct kvl_policy [a-z]/ || text ~ /^KVL_POLICY_EXPORT/) return "card"
            if (text ~ /^struct [a-z0-9_]+_opts \{/ || text ~ /^(static )?const struct kvl_opt / ||
                text ~ /^static const char \*const /) return "options"
            if (text ~ /^[^={;]*\(.*struct kvl_plan \*/ || text ~ /^[^={;]*_min_budget\(/) return "plan"
            return "algorithm"
        }
        function close_item() { n[kind_of(first)] += lines; lines = 0; first = "" }
        !begun && !/^#include/ { n["paper"]++; next }
        { begun = 1 }
        lines == 0 && /^$/ { n["algorithm"]++; next }
        {
            lines++
            code = $0
            gsub(/"([^"\\]|\\.)*"/, "\"\"", code)
            if (comment) { if (code !~ /\*\//) next; comment = 0; sub(/^.*\*\//, "", code) }
            gsub(/\/\*[^*]*\*\//, "", code)
            if (code ~ /\/\*/) { comment = 1; sub(/\/\*.*/, "", code) }
            if (code ~ /^[ \t]*$/) next
            if (first == "" || (depth == 0 && first !~ /[;{=]/)) first = first code
            depth += gsub(/\{/, "{", code) - gsub(/\}/, "}", code)
            if (depth == 0 && (code ~ /^#/ || code ~ /[;}][ \t]*$/ || code ~ /^KVL_[A-Z_]+\(.*\)$/)) close_item()
        }
        END { if (lines > 0) close_item(); for (k in n) print k, n[k] }' "$1"
}

# Private headers beside a method, .op files and parts that it takes, with what these include.
beside() {
    local file=$1 path
    sed -nE 's|^#include "((parts/)?[a-z0-9_.]+)\.h".*|\1|p' "$file" | while read -r path; do
        case $file in parts/*) path=parts/$path ;; esac
        for one in "$path.h" "$path.c"; do
            [ ! -f "$one" ] || [ "$one" = "$file" ] || { echo "$one"; beside "$one"; }
        done
    done | sort -u
}

# shape METHODS: the table
shape() {
    cd "$1"
    local file name own
    for file in [a-z]*.c; do
        name=${file%.c}
        [[ $file != *.op.c ]] || continue
        beside "$file" >"$work/beside"
        grep '^parts/' "$work/beside" >>"$work/taken" || true
        mapfile -t own < <(echo "$file"; grep -v '^parts/' "$work/beside" || true)
        for one in "${own[@]}"; do kinds "$one"; done | awk -v name="$name" -v all="$(cat "${own[@]}" | wc -l)" \
            -v parts="$(grep '^parts/' "$work/beside" | xargs -r cat | wc -l)" '
            { n[$1] += $2; sum += $2 }
            END { printf "%-20s %9d %5d %5d %7d %4d %5d\n", name, n["algorithm"], n["paper"], n["card"], n["options"], n["plan"], parts
                  if (sum != all) print name ": " all - sum " lines are of no kind" >"/dev/stderr"
                  if (!n["card"]) print name ": no card" >"/dev/stderr"
                  if (!n["paper"]) print name ": no head comment" >"/dev/stderr" }'
    done
    for one in parts/*.c; do
        grep -qx "$one" "$work/taken" || echo "methods/$one: no method takes it" >&2
    done
}

self_test() {
    cat >"$work/one.c" <<'TEXT'
/* one - a paper. */
#include "kvl/policy.h"

struct one_opts {
    int32_t a; /* of { x */
};

static int one_plan(struct kvl_plan *plan)
{
    return kvl_plan_needs_budget(plan);
}

/* Eq. 1 */
static int one_select(struct kvl_pctx *ctx,
                      struct kvl_sel *sel)
{
    return 0;
}

static const struct kvl_opt one_options[] = {
    { 0 },
};

const struct kvl_policy one = {
    .name = "one {",
};

KVL_POLICY_EXPORT(one)
TEXT
    kinds "$work/one.c" | sort >"$work/said"
    diff "$work/said" - <<'TEXT'
algorithm 13
card 4
options 6
paper 1
plan 4
TEXT
}

if [ "${1-}" = --self-test ]; then
    self_test
    exit
fi
self_test || { echo "method_shape: kinds of lines are not recognised"; exit 1; }
: >"$work/taken"
echo "method               algorithm paper  card options plan parts"
(shape "$(realpath "$1")/methods") 2>"$work/wrong"
[ ! -s "$work/wrong" ] || { sed 's/^/method_shape: /' "$work/wrong" >&2; exit 1; }
