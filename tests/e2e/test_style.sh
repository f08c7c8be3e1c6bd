#!/usr/bin/env bash
# test_style.sh - no two methods have the same colour and marker in plots/style.gp, and a method without a row
# there has both all the same, like no method with one.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")

fail() {
    echo "test_style: $*" >&2
    exit 1
}

# "name colour marker" per line.
known=$(awk '/^kvl_known = "/ { on = 1 } on { text = text " " $0 } on && /"$/ { exit }
    END { sub(/.*= "/, "", text); gsub(/[\\"]/, "", text); n = split(text, word, " ")
          for (i = 1; i <= n; i += 3) print word[i], word[i + 1], word[i + 2] }' "$sources/plots/style.gp")
wrong=$(grep -vE '^[a-z][a-z0-9_]* #[0-9a-f]{6} ([1-9]|1[0-5])$' <<< "$known" || true)
[ -z "$wrong" ] || fail "kvl_known wants \"name #rrggbb marker\", got: $wrong"
twice=$(cut -d ' ' -f 1 <<< "$known" | sort | uniq -d)
[ -z "$twice" ] || fail "stands twice in kvl_known: $twice"
pairs=$(cut -d ' ' -f 2- <<< "$known" | sort | uniq -d)
[ -z "$pairs" ] || fail "colour and marker of several methods: $(grep -F "$pairs" <<< "$known" | tr '\n' ';')"

program_has=$("$program" list policies | awk '/^  [a-z]/ { print $1 }' | sort)
gone=$(comm -13 <(echo "$program_has") <(cut -d ' ' -f 1 <<< "$known" | sort))
[ -z "$gone" ] || fail "no method any more, but in plots/style.gp: $(tr '\n' ' ' <<< "$gone")"

# ---- methods without a row ----------------------------------------------------------------------

if ! command -v gnuplot >/dev/null; then
    echo "test_style: no gnuplot, defaults are not tested"
    exit 0
fi
# "name colour marker" per name, as gnuplot draws it.
drawn() {
    for name in "$@"; do printf 'n = "%s"; print n." ".kvl_colour(n)." ".kvl_marker(n)\n' "$name"; done |
        gnuplot -e 'format = "svg"; out = "/dev/null"; width = 400; height = 300' "$sources/plots/style.gp" - 2>&1
}
mapfile -t listed < <(cut -d ' ' -f 1 <<< "$known")
[ "$(drawn "${listed[@]}")" = "$known" ] || fail "listed methods are not drawn as listed"
mapfile -t new < <(comm -23 <(echo "$program_has") <(cut -d ' ' -f 1 <<< "$known" | sort))
new+=(mymethod myplugin mymethod2 host_loop streaming2 x a_method_of_mine)
defaults=$(drawn "${new[@]}")
wrong=$(grep -vE '^[a-z][a-z0-9_]* #[0-9a-f]{6} ([4-9]|1[0-5])$' <<< "$defaults" || true)
[ -z "$wrong" ] || fail "a default wants \"name #rrggbb marker\", got: $wrong"
near=$(grep -Ff <(cut -d ' ' -f 2 <<< "$known") <<< "$defaults" || true)
[ -z "$near" ] || fail "the default has the colour of a listed method: $near"
[ "$(cut -d ' ' -f 2- <<< "$defaults" | sort -u | wc -l)" -gt $((${#new[@]} - 2)) ] ||
    fail "names do not lead apart: $defaults"
