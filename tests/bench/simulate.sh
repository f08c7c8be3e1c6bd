#!/usr/bin/env bash
# simulate.sh - how far `kvlab simulate` is off on this machine: every method of results/cpu.md's section "Methods against
# their bytes" from depths up to half of the one that was measured there, one thread.  Some ten minutes.
#
#   tests/bench/simulate.sh [KVLAB] [CPU.md]      default: build/kvlab, results/cpu.md
#
# Compared are speeds, as times full attention's: both sides of each are of one run.  The section "Methods, simulated" of
# CPU.md is replaced, and made where it is not there.  Exit code 1: some are more than 20 % off.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/tests/bench/page_section.sh"
kvlab=${1:-$root/build/kvlab}
page=${2:-$root/results/cpu.md}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cat "$root/README.md" "$root/core/README.md" "$root/methods/README.md" >"$tmp/text"

# "LENGTH METHOD SPEED" of the section's tables
measured() {
    awk '/^## / { on = /^## Methods against their bytes/ } on && /^### / { match($0, /[0-9]+ tokens/); n = substr($0, RSTART, RLENGTH); sub(/ tokens/, "", n) }
        on && /^\| [a-z]/ && $2 != "method" { print n, $2, $6 }' "$page"
}

predict() { # MODEL LENGTH
    "$kvlab" simulate --model "$1" --text "$tmp/text" --depths "$(($2 / 4)),$(($2 / 2))" --lengths "$2" --budget 1024 \
        --threads 1 --rounds "${ROUNDS:-3}" --profiles here --json "$tmp/$2.jsonl" >"$tmp/$2.out"
    jq -r '[.length_tok, .policy, .speed] | @tsv' "$tmp/$2.jsonl"
}

measured >"$tmp/measured"
[ -s "$tmp/measured" ] || { echo "$page: no section \"Methods against their bytes\": tests/bench/methods.sh writes it" >&2; exit 2; }
{
    predict "$("$root/harness/models.sh" --path smollm2-135m)" 8192
    predict "$root/datasets/model/kvlab-small.gguf" 16384
} >"$tmp/predicted"

# "LENGTH METHOD PREDICTED MEASURED OFF"
awk 'NR == FNR { at[$1 " " $2] = $3; next } ($1 " " $2) in at && at[$1 " " $2] > 0 && $2 != "full" {
    m = at[$1 " " $2]; printf "%d %s %.2f %.2f %.0f\n", $1, $2, $3, m, 100 * ($3 / m - 1) }' "$tmp/measured" "$tmp/predicted" >"$tmp/rows"
far() { awk '$5 > 20 || $5 < -20' "$tmp/rows"; }
{
    echo "## Methods, simulated"
    echo
    echo "Written by \`tests/bench/simulate.sh\`: what \`kvlab simulate\` says of the speeds in the section before, from depths up to half of"
    echo "those. $(awk 'END { print NR }' "$tmp/rows") rows, $(far | wc -l) of them more than 20 % off. $("$kvlab" --version), $(date -u +%F)."
    echo
    echo "| tokens | method | speed, predicted | measured | off, % |"
    echo "|---|---|---|---|---|"
    awk '{ printf "| %s | %s | %s | %s | %s%s |\n", $1, $2, $3, $4, $5, ($5 > 20 || $5 < -20) ? " (far)" : "" }' "$tmp/rows"
} >"$tmp/section"
put_section "$page" "Methods, simulated" "$tmp/section"
far
[ -z "$(far)" ]
