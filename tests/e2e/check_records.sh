#!/usr/bin/env bash
# check_records.sh - compares a log with the dictionary of its fields, both ways.
#
#   check_records.sh LOG results/README.md [KIND...]
#
# Every field of every record must be in the dictionary with a type that fits, and every field of the
# dictionary that is never absent in every record of its kind, in its order; the fields of objects as well.  KINDs must occur in the log.
# Prints what does not fit; exit code 1 when anything does not.
set -euo pipefail
log=$1 dictionary=$2
shift 2

# kind, field, type; fields of an object as field.name with type "".  A row of speed without a type
# has that of the row of cell.
dictionary_rows() {
    awk -F'|' '
        function words(text, out,    n) {
            n = 0
            while (match(text, /`[^`]*`/)) {
                out[++n] = substr(text, RSTART + 1, RLENGTH - 2)
                text = substr(text, RSTART + RLENGTH)
            }
            return n
        }
        /^## / { kind = substr($0, 4); next }
        /^\| `/ && kind {
            n = words($2, field)
            type_text = $3
            gsub(/^ +| +$/, "", type_text)
            n_types = split(type_text, type, / *, */)
            for (i = 1; i <= n; i++) {
                t = n_types == n ? type[i] : type_text
                if (t == "") t = known["cell", field[i]]
                known[kind, field[i]] = t
                print kind "\t" field[i] "\t" t
                if (t !~ /object/) continue
                m = words($4, sub_field)
                for (j = 1; j <= m; j++)
                    if (sub_field[j] ~ /^[a-z][a-z0-9_]*$/)
                        print kind "\t" field[i] "." sub_field[j] "\t"
            }
        }' "$dictionary"
}

jq -Rn '[inputs | split("\t") | {kind: .[0], field: .[1], type: .[2]}]
        | (map(select(.kind == "All kinds"))) as $all
        | reduce .[] as $row ({}; if $row.kind == "All kinds" then . else
              .[$row.kind][$row.field] = $row.type end)
        | map_values(($all | map({(.field): .type}) | add) + .)' \
    < <(dictionary_rows) > "${TMPDIR:-/tmp}/kvlab-dictionary.$$"
trap 'rm -f "${TMPDIR:-/tmp}/kvlab-dictionary.$$"' EXIT

zstd -dcq "$log" | jq -rn --slurpfile d "${TMPDIR:-/tmp}/kvlab-dictionary.$$" --args '
    def fields: to_entries[] | .key as $k | {field: $k, value: .value},
        (.value | objects | to_entries[] | {field: "\($k).\(.key)", value: .value, of: $k});
    def fits($value; $words): ($value | type) as $is
        | ($words | split(" or ") | map(if . == "map" then "object" else . end)) as $may
        | ($words == "") or ($may | index($is)) != null
          or ($may | index("any")) != null or ($is == "number" and ($may | index("integer")) != null and ($value | floor) == $value);
    $d[0] as $dictionary
    | reduce inputs as $r ({n: {}, bad: {}};
        ($dictionary[$r.kind] // {}) as $want
        | .n[$r.kind] += 1
        | reduce ($r | fields) as $f (.;
            if (($want[$f.of // ""] // "") | startswith("map")) then . elif ($want | has($f.field)) then
                if fits($f.value; $want[$f.field]) then . else
                    .bad["\($r.kind).\($f.field): \($f.value | type), the dictionary says \($want[$f.field])"] += 1 end
            else .bad["\($r.kind).\($f.field): not in the dictionary"] += 1 end)
        | ($r | keys_unsorted | map(select(in($want)))) as $has
        | if $has == ($want | keys_unsorted | map(select(in($r)))) then . else
              .bad["\($r.kind): the fields stand in another order"] += 1 end
        | reduce ($want | keys_unsorted[]) as $k (.;
            ($k | split(".")) as $path
            | if ($path | length) == 1
              then if ($r | has($k)) or ($want[$k] | endswith("absent")) then . else .bad["\($r.kind).\($k): not in the log"] += 1 end
              elif ($r[$path[0]] | type) != "object" or ($r[$path[0]] | has($path[1])) then .
              else .bad["\($r.kind).\($k): not in the log"] += 1 end))
    | (.bad | to_entries[] | "\(.key) (\(.value) records)"),
      (.n as $n | $ARGS.positional[] | select($n[.] == null) | "no record of kind \(.)"),
      "checked: \(.n | to_entries | map("\(.value) \(.key)") | join(", "))"
' "$@" | {
    bad=0
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $line in checked:*) ;; *) bad=1 ;; esac
    done
    exit $bad
}
