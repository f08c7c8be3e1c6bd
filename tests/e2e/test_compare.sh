#!/usr/bin/env bash
# test_compare.sh - kvlab compare on logs whose differences are known: verdicts, numbers, reasons, exit codes.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
. "$sources/tests/e2e/fake_log.sh"
fake_contexts=20 fake_group=passkey-question_in_prefill-4096
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_compare: $*" >&2
    exit 1
}
# compares CODE ARGUMENTS: that exit code; standard output in out, errors in err
compares() {
    local want=$1 rc=0
    shift
    "$program" compare "$@" > out 2> err || rc=$?
    [ "$rc" = "$want" ] || fail "compare $*: exit $rc, want $want: $(cat err)"
    [ "$want" = 0 ] || [ "$(wc -l < err)" = 1 ] || fail "compare $*: want one line, got: $(cat err)"
}
says() { grep -qE -- "$2" "$1" || fail "no \"$2\" in $(head -n 12 "$1")"; }
zst() { zstd -qf -o "$1"; }

# A part of the fake log is enough: four policies on one task and protocol.
part='select(.kind == "run" or (.cell // "" | test("^passkey-question_in_prefill-4096-(full|quest|snapkv|oracle)-(0|256)$"))
    or (.kind == "speed" and .length_tok == 4096 and (.policy == "quest" or .policy == "full") and (.budget == "256" or .budget == "-")))'
fake_log "$part" > old.jsonl
zst old.zst < old.jsonl

# ---- the same log: no row is worse, the exit code is 0 -------------------------------------------
compares 0 old.zst old.zst
says out '^A: old.zst, B: old.zst\. [0-9]+ rows: 0 worse, 0 better, [0-9]+ without a difference shown, 0 not comparable\.$'
# Of 20 equal contexts at most 16.1 % of all can be others (3.8415 / 23.8415): an interval has a width.
says out 'quest +256 +accuracy +40 .* \+0\.0 +-16\.1 +16\.1 +no difference shown *$'

# ---- one policy loses what it had right in half of the contexts ---------------------------------
worse='if .kind == "sample" and (.cell | test("-quest-")) and .context % 2 == 0 then .official = 0 | .lane_recall |= map(map(0)) else . end'
jq -c "$worse" old.jsonl | zst worse.zst
compares 1 old.zst worse.zst --measure accuracy
says err '^kvlab: 1 of 4 rows is worse: accuracy of quest 256 on passkey, 4096 tokens'
want=$(jq -s "def p: [.[] | select(.kind == \"sample\" and (.cell | test(\"-quest-\"))) | .official] | add / length * 100;
    p as \$a | map($worse) | p as \$b | [\$a, \$b, \$b - \$a] | map(. * 10 | round / 10)" old.jsonl | jq -r 'join(" ")')
got=$(awk '$4 == "quest" && $6 == "accuracy" { print $8 + 0, $9 + 0, $10 + 0 }' out)
[ "$got" = "$want" ] || fail "accuracy of quest in A, in B, difference: $got, want $want"
says out 'snapkv +256 +accuracy .* no difference shown'
compares 0 worse.zst old.zst --measure accuracy
says out 'quest +256 +accuracy .* better *$'
compares 0 old.zst worse.zst --measure accuracy --threshold accuracy=99
compares 1 old.zst worse.zst --measure recall
says err 'recall of quest 256'
# As in tables: the mean over retrieving lanes, not the best layer.
want=$(for log in old worse; do "$program" export $log.zst --format jsonl |
    jq -r 'select(.policy == "quest" and .budget == "256") | .recall * 100 | round / 100'; done | xargs)
got=$(awk '$4 == "quest" && $6 == "recall" { print $8 + 0, $9 + 0 }' out)
[ "$got" = "$want" ] || fail "recall of quest in A and B: $got, want $want"

# ---- few contexts: no verdict, whatever the difference; six are the least that can show one ------
few() { # few CONTEXTS [FIELD=context]: quest is right in none of that many contexts, before in all
    jq -c "select(.kind != \"sample\" or .context < $1) | if .kind == \"sample\" then ${2:-.} | .official = 1 else . end" old.jsonl | zst few-a.zst
    zstdcat few-a.zst | jq -c 'if .kind == "sample" and (.cell | test("-quest-")) then .official = 0 else . end' | zst few-b.zst
}
few 2
compares 0 few-a.zst few-b.zst --measure accuracy # p = 0.5
says out 'quest +256 +accuracy +4 +100\.0 +0\.0 +-100\.0 +-100\.0 +31\.5 +no difference shown *$'
says out '^[0-9]+ rows of fewer than 6 contexts: too few for a verdict\.$'
few 5
compares 0 few-a.zst few-b.zst --measure accuracy # p = 2 / 2^5
few 6
compares 1 few-a.zst few-b.zst --measure accuracy # p = 2 / 2^6
says out 'quest +256 +accuracy +12 +100\.0 +0\.0 +-100\.0 +-100\.0 +-21\.9 +worse *$'
few 20 '.text = .context % 5' # contexts that are parts of five texts
compares 0 few-a.zst few-b.zst --measure accuracy
says out 'rows of fewer than 6 contexts'
few 1
compares 2 few-a.zst few-b.zst --measure accuracy
says err 'one context gives no interval'

# ---- bytes and tokens/s -------------------------------------------------------------------------
jq -c 'if .kind == "cell" and .policy == "snapkv" then .kv_read_bytes_per_tok *= 1.02 else . end' old.jsonl | zst bytes.zst
compares 1 old.zst bytes.zst
says err '^kvlab: 1 of [0-9]+ rows is worse: bytes of snapkv 256'
says out 'snapkv +256 +bytes .* \+2\.0 % +- +- +worse *$' # counted: no interval
compares 0 old.zst bytes.zst --threshold bytes=2.5
jq -c 'if .kind == "speed" and .policy == "quest" then .decode_tok_per_s *= 0.5 else . end' old.jsonl | zst slow.zst
compares 1 old.zst slow.zst --measure speed
says err '1 of 2 rows is worse: speed of quest 256'
says out ' speed .* slower *$'
compares 0 old.zst slow.zst --measure speed --threshold speed=60
compares 0 slow.zst old.zst --measure speed
says out ' speed .* faster *$'
# The same log twice: the same within the noise of its own repeats, and nothing can be told below it.
compares 0 old.zst old.zst --measure speed --threshold speed=50
says out ' speed .* same *$'
says out '^Speed: repeats of one cell, of which nothing differs, are up to [0-9.]+ % apart; 0 rows are unclear for that[.]$'
jq -c 'if .kind == "speed" and .repeat == 0 then .decode_tok_per_s *= 1.3 else . end' old.jsonl | zst noisy.zst
compares 0 noisy.zst noisy.zst --measure speed
says out ' speed .* unclear *$'
says out '^Speed: .* up to (3|4)[0-9][.][0-9] % apart; [1-9] rows? (is|are) unclear for that[.]$'
jq -c 'if .kind == "speed" then .host = "node9" else . end' old.jsonl | zst other.zst
compares 2 old.zst other.zst --measure speed
says err 'nothing is comparable: timed on another machine'

# ---- what makes cells compare -------------------------------------------------------------------
differs() { # differs REASON EDIT
    jq -c "$2" old.jsonl | zst differs.zst
    compares 2 old.zst differs.zst
    says err "nothing is comparable: $1"
    says out "not comparable: $1"
}
differs 'model file 00ff / 11ee' 'if .kind == "run" then .model.hash = "11ee" else . end'
differs 'task version 1 / 2' 'if .kind == "cell" or .kind == "speed" then .task_version = 2 else . end'
differs 'chat template none / chatml' 'if .kind == "cell" or .kind == "speed" then .chat = "chatml" else . end'
jq -c 'if .kind == "sample" then .prompt_hash = "00000000000000a\(.context % 10)" else . end' old.jsonl | zst hash-a.zst
jq -c 'if .kind == "sample" then .prompt_hash = "00000000000000\(if .context == 3 then "f" else "a" end)\(.context % 10)" else . end' old.jsonl | zst hash-b.zst
compares 2 hash-a.zst hash-b.zst --measure accuracy
says err 'nothing is comparable: prompts of 2 of 40 questions differ'
compares 0 hash-a.zst old.zst --measure accuracy
jq -c 'select(.kind != "sample")' old.jsonl | zst published.zst
compares 2 old.zst published.zst --measure accuracy
says err 'a log has no samples .none that is published has.: run its sweep for them'
jq -c 'if .kind == "sample" then .context += 100 else . end' old.jsonl | zst elsewhere.zst
compares 2 old.zst elsewhere.zst --measure accuracy
says err 'no question in both logs'
jq -c 'if .kind == "cell" or .kind == "speed" then .length_tok = 99 else . end' old.jsonl | zst apart.zst
compares 2 old.zst apart.zst
says err 'nothing to compare: no cell of B is in A'

# ---- two policies of one log --------------------------------------------------------------------
fake_log 'select(.kind == "run" or (.cell // "" | test("^passkey-question_in_prefill-4096-(full|quest|random)-(0|64|256)$")))' | zst all.zst
compares 1 quest random all.zst --measure accuracy
[ "$(grep -cE '^passkey .* accuracy .* worse *$' out)" -ge 1 ] || fail "random is not worse than quest: $(cat out)"
compares 0 random quest all.zst --measure accuracy
compares 1 full random all.zst --measure accuracy # full has no budget: every budget meets it
[ "$(grep -cE '^passkey +question_in_prefill +4096 +random' out)" = 2 ] || fail "budgets of random: $(cat out)"
# The same tests as report --vs.
compares 1 full random all.zst --measure accuracy --format csv
"$program" report all.zst --vs full | awk '$1 == "random" { print $2, $3, $4, $5, $6 }' > vs
awk -F, 'NR > 1 { sub("\r", ""); printf "%s %s %.1f %s %s\n", $6, $8, $11, $12, $13 }' out > csv
diff vs csv || fail "compare and report --vs differ"

# ---- wrong input --------------------------------------------------------------------------------
compares 2 quest nobody all.zst
says err '^kvlab: nobody: no cell of that policy in the log$'
compares 2 old.zst
compares 2 old.zst nothing.zst
says err '^kvlab: nothing.zst: cannot open'
compares 2 old.zst old.zst --threshold speed
says err 'want a number from 0 on after =$'
compares 2 old.zst old.zst --threshold time=1
compares 2 old.zst old.zst --measure time
