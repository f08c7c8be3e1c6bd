#!/usr/bin/env bash
# test_kv_axis.sh - a sweep over several types of keys and values: each has cells of its own, and all of them
# stand in one table.  What quantised ones are compared with is full attention in f16.
set -euo pipefail
program=$1 source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"

# several TYPES MORE: the sweep as text
several() {
    printf 'model: %s\nkv_type: %s\ntasks: [passkey, {task: perplexity, tokens: 16}]\nlengths: [256]\n' "$model" "$1"
    printf 'policies: [full, snapkv]\nbudgets: [64]\ncontexts: 2\nquestions: 1\n%s\n' "${2:-}"
}
records() {
    zstd -dcq "$work/$1.zst" | jq -c "$2"
}
# Cells of a log with the type of their run: type, policy, KL.
by_type() {
    zstd -dcq "$work/$1.zst" | jq -sc '(map(select(.kind == "run")) | map({(.run): .store.kv_type}) | add) as $t |
        .[] | select(.kind == "perplexity") | [$t[.run], .policy, (.kl_nats.mean | if . == null then . else . + 0 end)]' | sort
}

several '[f16, q4_0, {k: q8_0, v: q4_0}]' 'quality: {steps: 2}' >"$work/all.yaml"
"$program" sweep "$work/all.yaml" --threads 1 --log "$work/all.zst" >"$work/out" 2>"$work/err" || fail "three types"
equal "a run for each" '["f16","f16"]
["q4_0","f16"]
["q8_0/q4_0","f16"]' "$(records all 'select(.kind == "run") | .store | [.kv_type, .reference_kv_type]' | sort)"
equal "cells" 12 "$(records all 'select(.kind == "cell" or .kind == "perplexity") | .cell' | sort -u | wc -l)"
equal "keys name the type" 4 "$(records all 'select(.kind == "cell" or .kind == "perplexity") | .key' |
    grep -c ';kv=q8_0/q4_0;')"
equal "the same prompts" 1 "$(records all 'select(.kind == "sample" and .context == 0) | .prompt_hash' | sort -u | wc -l)"
equal "the sweep in the log" 1 "$(records all 'select(.kind == "run") | .sweep.text' |
    grep -o 'kv_type: \[f16, q4_0, q8_0/q4_0\]' | sort -u | wc -l)"
equal "one table at the end" 1 "$(grep -c '^kvlab-test  passkey' "$work/out")"
equal "its rows" 'full, kv f16
full, kv q4_0
full, kv q8_0/q4_0
snapkv, kv f16
snapkv, kv q4_0
snapkv, kv q8_0/q4_0' "$(sed -n '/^kvlab-test  passkey/,/^$/p' "$work/out" | sed -n 's/^  \([a-z]*, kv [^ ]*\) .*/\1/p')"
grep -q '^3 types of keys and values, 0 failed' "$work/out" || fail "no last line"

# Full attention is what it is compared with: nothing is lost in f16, something is in four bits.
equal "full in f16" '["f16","full",0]' "$(by_type all | grep '"f16","full"')"
[ "$(by_type all | jq -s 'map(select(.[1] == "full" and .[2] > 0)) | length')" = 2 ] || fail "a quantised cache without any KL"

# The same answers as of each type alone, whose reference is prefilled apart.
for one in f16 q4_0 '{k: q8_0, v: q4_0}'; do
    several "$one" 'quality: {steps: 2}' >"$work/one.yaml"
    run_sweep "$work/one.yaml" --log "$work/one.zst" 2>"$work/err" || fail "$one alone"
done
equal "one by one" "$(results_of "$work/one.zst")" "$(results_of "$work/all.zst")"
"$program" sweep "$work/all.yaml" --log "$work/all.zst" >"$work/out" 2>"$work/err" || fail "again"
equal "again: samples in this run" 3 "$(grep -c '^0 samples' "$work/out")"
# Snapshots hold one prefill of each type, whoever asks for it.
run_sweep "$work/all.yaml" --log "$work/kept.zst" --snapshots "$work/snapshots" 2>"$work/err" || fail "with snapshots"
equal "with snapshots" "$(results_of "$work/all.zst")" "$(results_of "$work/kept.zst")"
equal "prefills" 12 "$(find "$work/snapshots" -name '*.kvs' | wc -l)"

# A flag, a rule, tables.
run_sweep "$work/all.yaml" --kv-type q8_0,f16 --log "$work/flag.zst" --set 'exclude=[{kv_type: q8_0, policy: snapkv}]' \
    2>"$work/err" || fail "--kv-type with a list"
equal "--kv-type with a list, and a rule" 'f16 full
f16 snapkv
q8_0 full' "$(by_type flag | jq -r '.[0] + " " + .[1]')"
equal "export" 'f16
q8_0' "$("$program" export "$work/flag.zst" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "kv_type") c = i; next } { print $c }' | sort -u)"
"$program" report "$work/flag.zst" --vs "full, kv f16" >"$work/out" 2>"$work/err" || fail "--vs"
grep -q 'full, kv q8_0' "$work/out" || fail "no row of q8_0 beside full in f16"
# Each type has its partner; where one side lacks a type, it has none.
status=0
"$program" compare "$work/flag.zst" "$work/all.zst" >"$work/out" 2>"$work/err" || status=$?
equal "types of which A has no cell" 1 "$(grep -c '^8 cells of B have no partner in A' "$work/out")"

for text in '[f16, f16]' '[]' '[f16, nothing]'; do
    several "$text" >"$work/wrong.yaml"
    if "$program" sweep "$work/wrong.yaml" --log "$work/wrong.zst" >"$work/out" 2>"$work/err"; then fail "not refused: $text"; fi
    equal "lines: $text" 1 "$(wc -l <"$work/err")"
done
if "$program" analyze mass "$work/all.yaml" >"$work/out" 2>"$work/err"; then fail "analyze takes three types"; fi
equal "analyze" 1 "$(grep -c 'kv_type: 3 of them' "$work/err")"
