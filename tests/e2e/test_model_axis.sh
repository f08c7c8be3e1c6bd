#!/usr/bin/env bash
# test_model_axis.sh - a sweep over several models: each gets contexts and a template of its own, and what is
# wrong with one is the failure of its own cells.
set -euo pipefail
program=$1 source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"
mkdir "$work/models"
cp "$model" "$work/models/base.gguf"
with_template "$source_dir/datasets/model/kvlab-tiny.gguf" "$work/models/instruct.gguf" "$vicuna"
head -c 1000 "$model" >"$work/models/broken.gguf"

# several MODELS MORE: the sweep as text, paths relative to it
several() {
    printf 'models: [%s]\ntasks: [passkey]\nlengths: [256]\npolicies: [full, snapkv]\nbudgets: [64]\n' "$1"
    printf 'contexts: 2\nquestions: 1\n%s\n' "${2:-}"
}
records() {
    zstd -dcq "$work/$1.zst" | jq -c "$2"
}
several "models/base.gguf, ./models/../models/instruct.gguf" >"$work/both.yaml"
"$program" sweep "$work/both.yaml" --threads 2 --log "$work/both.zst" >"$work/out" 2>"$work/err" || fail "two models"
equal "a run for each" 2 "$(records both 'select(.kind == "run") | .model.name' | sort -u | wc -l)"
equal "templates" '["kvlab-test","none"]
["kvlab-tiny","own"]' "$(zstd -dcq "$work/both.zst" | jq -sc '(map(select(.kind == "run")) |
    map({(.run): .model.name}) | add) as $m | .[] | select(.kind == "cell") | [$m[.run], (.chat | split("-")[0])]' | sort -u)"
equal "cells" 4 "$(records both 'select(.kind == "cell") | .cell' | sort -u | wc -l)"
equal "prompts" 4 "$(records both 'select(.kind == "sample") | .prompt_hash' | sort -u | wc -l)"
equal "a section for each model" 2 "$("$program" report "$work/both.zst" | grep -c '^kvlab-.* passkey ')"
grep -q '^2 models, 0 failed' "$work/out" || fail "no last line"
grep -q '! full is right in 0.0 %' "$work/out" || fail "the base model does not do the task, and no table says so"
equal "marked tables" 1 "$(grep -c '  ! full' "$work/out")"

# The same records as of each model alone.
for one in base instruct; do
    several "models/$one.gguf" >"$work/$one.yaml"
    run_sweep "$work/$one.yaml" --log "$work/$one.zst" 2>"$work/err" || fail "$one alone"
done
cat "$work/base.zst" "$work/instruct.zst" >"$work/alone.zst"
equal "one by one" "$(results_of "$work/alone.zst")" "$(results_of "$work/both.zst")"
"$program" sweep "$work/both.yaml" --log "$work/both.zst" >"$work/out" 2>"$work/err" || fail "again"
equal "again: samples in this run" 2 "$(grep -c '^0 samples' "$work/out")"
"$program" sweep "$work/both.yaml" --model "$work/models/base.gguf" --log "$work/flag.zst" --quiet 2>"$work/err" ||
    fail "--model instead of models"
equal "--model instead of models" '"kvlab-test"' "$(records flag 'select(.kind == "run") | .model.name')"

# What is wrong with a model fails its own cells.
several "models/absent.gguf, models/base.gguf, models/broken.gguf" >"$work/wrong.yaml"
"$program" sweep "$work/wrong.yaml" --quiet --log "$work/wrong.zst" 2>"$work/err" || fail "two of three fail"
equal "lines" 2 "$(wc -l <"$work/err")"
equal "cells of the sound one" 2 "$(records wrong 'select(.kind == "cell") | .cell' | sort -u | wc -l)"
equal "errors" "absent
broken" "$(records wrong 'select(.kind == "error") | .model' | sed 's/.*models.//; s/\..*//')"
status=0
"$program" sweep "$work/wrong.yaml" --quiet --strict --log "$work/wrong.zst" 2>"$work/err" || status=$?
equal "--strict" 6 $status
equal "errors are recorded once" 2 "$(records wrong 'select(.kind == "error")' | wc -l)"
cp "$work/models/instruct.gguf" "$work/models/absent.gguf"
"$program" sweep "$work/wrong.yaml" --quiet --log "$work/wrong.zst" 2>"$work/err" || fail "one of three fails"
"$program" report "$work/wrong.zst" >"$work/out"
grep -q '^1 error' "$work/out" || fail "a model that runs is still an error"
rm "$work/models/absent.gguf"
several "models/absent.gguf, models/broken.gguf" >"$work/none.yaml"
if "$program" sweep "$work/none.yaml" --log "$work/none.zst" >"$work/out" 2>"$work/err"; then fail "no model is left"; fi
grep -q 'every model fails; the first one: .*absent.gguf' "$work/err" || fail "every model fails"
[ ! -e "$work/none.zst" ] || fail "a log of nothing"

# One that needs more than its context has, or more memory than there may be.
several "models/base.gguf, models/instruct.gguf" "kv_limit_mib: 1" >"$work/limit.yaml"
"$program" sweep "$work/limit.yaml" --quiet --log "$work/limit.zst" 2>"$work/err" || fail "one does not fit"
equal "the one that fits" '"kvlab-test"' "$(zstd -dcq "$work/limit.zst" | jq -sc '(map(select(.kind == "run")) |
    map({(.run): .model.name}) | add) as $m | .[] | select(.kind == "cell" and .n > 0) | $m[.run]' | sort -u)"

# Two ways to say which.
for text in "model: x" "models: []"; do
    several "models/base.gguf" "$text" | sed "$([ "$text" = "models: []" ] && echo 1d)" >"$work/two.yaml"
    if "$program" sweep "$work/two.yaml" --log "$work/two.zst" >"$work/out" 2>"$work/err"; then fail "not refused: $text"; fi
    equal "lines: $text" 1 "$(wc -l <"$work/err")"
done

# A stop ends all of it, and the same command goes on.
several "models/instruct.gguf, models/base.gguf" | sed 's/lengths: .*/lengths: [1024, 2048]/; s/contexts: .*/contexts: 400/' \
    >"$work/long.yaml"
"$program" sweep "$work/long.yaml" --quiet --threads 1 --log "$work/long.zst" 2>"$work/err" &
pid=$!
eventually something_in "$work/long.zst" $pid || fail "a sweep that does not begin"
kill -TERM $pid
status=0
wait $pid || status=$?
equal "status of a stopped sweep" 75 $status
equal "models after a stop" 1 "$(records long 'select(.kind == "run") | .model.name' | sort -u | wc -l)"
equal "lines of a stopped sweep" 1 "$(wc -l <"$work/err")"
