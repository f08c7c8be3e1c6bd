#!/usr/bin/env bash
# test_style.sh - every method that is built in has a colour and a marker in plots/style.gp, and no two
# the same pair.
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

missing=$(comm -23 <("$program" list policies | awk '/^  [a-z]/ { print $1 }' | sort) <(cut -d ' ' -f 1 <<< "$known" | sort))
[ -z "$missing" ] || fail "no colour and marker in plots/style.gp: $(tr '\n' ' ' <<< "$missing")"
