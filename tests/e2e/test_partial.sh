#!/usr/bin/env bash
# test_partial.sh - whatever shows a log of half a sweep says so: how many cells of how many; of a whole one nothing.
#   $1 the program, $2 the sources
set -euo pipefail
program=$1
source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"
command -v jq >/dev/null || { echo "test_partial: skipped, no jq"; exit 77; }
cd "$work"

"$program" run --model "$model" --threads 1 --quiet --task passkey:keys=2 --length 256 --contexts 2 \
    --policy full,quest,random --budget 64 --log whole.zst >out 2>err || fail "a sweep"
# As if it had been stopped in the third cell.
last=$(lines_of whole.zst | jq -r 'select(.kind == "cell" and .policy == "random").cell')
lines_of whole.zst | jq -c --arg last "$last" 'select(.kind != "cell" or .cell != $last)' | zstd -q >half.zst

says() { # says WHAT COMMAND...: in what it prints, or in the message beside it
    local what=$1
    shift
    "$program" "$@" >out 2>err || fail "$what"
    cat err >>out
    grep -qi 'not complete: 2 of 3 cells' out || fail "$what of half a sweep does not say so"
    [ "$(grep -ci 'not complete' out)" = 1 ] || fail "$what says it more than once"
    "$program" "${@//half/whole}" >out 2>err || fail "$what of a whole sweep"
    ! grep -qi 'not complete' out err || fail "$what of a whole sweep calls it half"
}
says report report half.zst
says summary report half.zst --summary
says "a table by length" report half.zst --by length
says "a table of evidence" report half.zst --evidence
says CSV report half.zst --csv
says export export half.zst
says "export of samples" export half.zst --kind sample --format jsonl
says plot plot accuracy_budget half.zst --format svg --out plots
says "compare of policies" compare full quest half.zst
"$program" compare half.zst whole.zst >out 2>err || fail "compare of logs"
equal "the log that is half" "kvlab: the first log is not complete: 2 of 3 cells; the same sweep goes on" "$(cat err)"
"$program" report half.zst --html half.html >out
grep -q 'Not complete: 2 of 3 cells' half.html || fail "the page does not say so"
"$program" report whole.zst --html whole.html >out
! grep -q 'Not complete' whole.html || fail "the page of a whole sweep calls it half"

# The same log twice, as a merge of copies: every error and every cell is counted once.
"$program" run --model "$model" --threads 1 --quiet --task passkey:keys=2 --length 256 --contexts 2 \
    --policy full,quest --budget 16,64 --log failed.zst >out 2>err || fail "a sweep with a cell that is refused"
cat failed.zst failed.zst >twice.zst
"$program" status failed.zst | grep -vE '^(runs|log) ' >once
grep -q '1 stopped by an error' once || fail "no cell was refused: $(cat once)"
equal "status of a log twice" "$(cat once)" "$("$program" status twice.zst | grep -vE '^(runs|log) ')"

# Logs of a sweep that was parted in two ways: each cell is one, whoever did it.
cat >parted.yaml <<YAML
name: parted
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [128, 192, 256]
policies: [full, quest]
budgets: [32]
contexts: 2
YAML
shard() { "$program" sweep parted.yaml --threads 1 --quiet --log $1.zst --shard $2 >out 2>err || fail "shard $2: $(cat err)"; }
cells_of() { "$program" status "$1" 2>err | grep -oE '^(cells|samples|state) .*'; }
"$program" sweep parted.yaml --threads 1 --quiet --log one.zst >out 2>err || fail "the sweep: $(cat err)"
shard a 1/3
shard b 1/2
shard c 0/2
for logs in 'a b c' 'c b a' 'c one' 'one a'; do
    cat $(printf '%s.zst ' $logs) >parts.zst
    equal "$logs" "$(cells_of one.zst)" "$(cells_of parts.zst)"
    [ ! -s err ] || fail "$logs: something is left"
done
