#!/usr/bin/env bash
# test_sampling.sh - drawn answers from outside: in sweeps and in generate.
set -euo pipefail
program=$1 source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"

# drawn LOG SAMPLING FLAGS: a small sweep
drawn() {
    local log=$1 sampling=$2
    shift 2
    sweep_file 2 >"$work/small.yaml"
    run_sweep "$work/small.yaml" --log "$work/$log.zst" ${sampling:+--set "sampling={$sampling}"} "$@" 2>"$work/err" ||
        fail "sweep $log"
}
records() {
    zstd -dcq "$work/$1.zst" | jq -c "$2"
}
# What was answered, without ids of cells (they have the sampling in them).
answers() {
    zstd -dcq "$work/$1.zst" | jq -cS 'select(.kind == "sample") |
        {seed, question, prompt_hash, prediction, ids, stop, official, strict, answers, attended_tok}' | LC_ALL=C sort
}
drawn greedy ""
drawn zero "temperature: 0, top_p: 0.5"
equal "temperature 0" "$(answers greedy)" "$(answers zero)"
equal "cells of temperature 0" "$(records greedy '.cell | strings' | sort -u)" "$(records zero '.cell | strings' | sort -u)"
drawn one "temperature: 3, top_k: 1"
equal "top_k 1" "$(answers greedy)" "$(answers one)"
equal "cells of top_k 1 that greedy has" "" \
    "$(comm -12 <(records greedy 'select(.kind == "cell") | .cell' | sort -u) <(records one 'select(.kind == "cell") | .cell' | sort -u))"

four="temperature: 1.5, top_k: 40, n: 4"
drawn four "$four"
equal "answers of a question" 4 "$(records four 'select(.kind == "sample") | .answers | length' | sort -u)"
equal "the score is their mean" true "$(zstd -dcq "$work/four.zst" | jq -s '[.[] | select(.kind == "sample") |
    (([.answers[].official] | add / 4) - .official) | . < 1e-9 and . > -1e-9] | all')"
equal "the first one is shown" true "$(zstd -dcq "$work/four.zst" |
    jq -s '[.[] | select(.kind == "sample") | .answers[0].ids == .ids] | all')"
equal "n of a cell are its questions" 4 "$(records four 'select(.kind == "cell") | .n' | sort -u)"
[ "$(records four 'select(.kind == "sample") | [.answers[].ids] | unique | length' | sort -n | tail -n 1)" -gt 1 ] ||
    fail "four answers are all the same"
equal "the record of a cell" '"temperature=1.5,top_p=1,top_k=40,min_p=0,n=4,seed=1"' \
    "$(records four 'select(.kind == "cell") | .sampling' | sort -u)"
# One answer is the first of four; batches, workers and threads change nothing, another seed does.
drawn single "temperature: 1.5, top_k: 40"
equal "one of four" "$(answers four | jq -c '[.seed, .question, .ids]' | sort)" \
    "$(answers single | jq -c '[.seed, .question, .ids]' | sort)"
drawn batch "$four" --set batch=4
equal "batches of one question" "$(answers four)" "$(answers batch)"
drawn jobs "$four" --jobs 2 --threads 2
equal "workers and threads" "$(answers four)" "$(answers jobs)"
drawn seed "$four, seed: 2"
[ "$(answers four)" != "$(answers seed)" ] || fail "a seed changes nothing"
"$program" report "$work/four.zst" >"$work/out"
grep -q '^  answers drawn: temperature=1.5,top_p=1,top_k=40,min_p=0,n=4,seed=1$' "$work/out" || fail "no line under tables"

refused() {
    local want=$1
    shift
    if "$@" >"$work/out" 2>"$work/err"; then fail "not refused: $*"; fi
    equal "lines of: $*" 1 "$(wc -l <"$work/err")"
    grep -qF "$want" "$work/err" || fail "no \"$want\""
}
sweep="run_sweep $work/small.yaml --log $work/x.zst --set"
refused 'without a temperature are all the same' $sweep "sampling={n: 4}"
refused 'batch is 2' $sweep "sampling={temperature: 1, n: 4}" --set batch=2
refused 'out of range, want 0 to 1' $sweep "sampling={top_p: 1.5}"
refused 'no key "sampling.top", want one of temperature, top_p,' $sweep "sampling={top: 1}"

# generate
ask=("$program" generate --model "$model" --prompt "The old river" -n 6 --show-ids)
greedy=$("${ask[@]}")
equal "generate, temperature 0" "$greedy" "$("${ask[@]}" --temperature 0 --seed 3)"
equal "generate, top-k 1" "$greedy" "$("${ask[@]}" --temperature 2 --top-k 1)"
equal "generate, top-p 0" "$greedy" "$("${ask[@]}" --temperature 2 --top-p 0)"
equal "generate, min-p 1" "$greedy" "$("${ask[@]}" --temperature 2 --min-p 1)"
several=$("${ask[@]}" --temperature 1.5 --answers 4 --seed 5 --ignore-end)
equal "answers of generate" 4 "$(wc -l <<<"$several")"
equal "the first of four" "$(head -n 1 <<<"$several")" "$("${ask[@]}" --temperature 1.5 --seed 5 --ignore-end)"
equal "the same again" "$several" "$("${ask[@]}" --temperature 1.5 --answers 4 --seed 5 --ignore-end --threads 1)"
[ "$(sort -u <<<"$several" | wc -l)" -gt 1 ] || fail "four answers of generate are all the same"
refused 'want --temperature' "${ask[@]}" --answers 2
refused 'out of range' "${ask[@]}" --temperature x
