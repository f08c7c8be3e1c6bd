#!/usr/bin/env bash
# test_hints.sh - what is written wrongly gets the nearest right word, what tables print can be written in a sweep, and
# help and --dry-run are no longer than what applies.
#   $1 the program, $2 the sources
set -euo pipefail
program=$1
source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"
cd "$work"

refuse() { # refuse PATTERN WORD...
    local pattern=$1 rc=0
    shift
    "$program" "$@" >out 2>err || rc=$?
    equal "exit code of $*" 2 $rc
    equal "lines of the message of $*" 1 "$(wc -l <err)"
    grep -qE "$pattern" err || fail "message of $*: want $pattern"
}

sweep() { printf 'model: %s\ntasks: [passkey]\nlengths: %s\ncontexts: 1\npolicies: [%s]\nbudgets: [%s]\n%s\n' "$model" "$1" "$2" "$3" "${4-}" >sweep.yaml; }

# ---- the nearest word ----------------------------------------------------------------------------------------
sweep '[256]' full 64 'policy: quest'
refuse 'sweep.yaml:7: no key "policy", did you mean "policies"\?' sweep sweep.yaml
sweep '[256]' qeust 64
refuse 'did you mean "quest"' sweep sweep.yaml
refuse 'did you mean "quest.table1-100?k"\?' reproduce quest.tabel1
refuse 'did you mean "reproduce"\?' reproduse
refuse 'did you mean --policy\?' run --polices full
refuse 'did you mean "accuracy_budget"\?' plot accuracy_bugdet x.zst
refuse 'did you mean "passkey"\?' describe paskey

# ---- lengths and budgets as they are printed -----------------------------------------------------------------
sweep '[1k, 1K..4K*2]' quest '1k'
"$program" sweep sweep.yaml --dry-run --quiet >out 2>err || fail "lengths of 4k"
equal "groups" "1024 2048 4096" "$(sed -n 's/^passkey length \([0-9]*\):.*/\1/p' out | xargs)"
equal "budgets" 3 "$(grep -cE ' quest +1024 ' out)"
sweep '[4g]' quest 64
refuse '"4g" is no length' sweep sweep.yaml --dry-run

# ---- a dry run of many cells -----------------------------------------------------------------------------------
sweep '[256, 512]' 'quest, snapkv, random' '16..48+1'
"$program" sweep sweep.yaml --dry-run --quiet >out 2>err || fail "a dry run"
[ "$(wc -l <out)" -lt 15 ] || fail "a dry run of many cells has $(wc -l <out) lines"
grep -q '^198 cells one by one: --cells$' out || fail "how to see the cells"
"$program" sweep sweep.yaml --dry-run --quiet --cells >out 2>err || fail "--cells"
equal "cells one by one" 198 "$(grep -cE '^  [0-9a-f]{24}  question' out)"

# ---- a cheap trial of a recipe -----------------------------------------------------------------------------------
"$program" reproduce llama_cpp.cache --dry-run --contexts 1 --out r >out 2>err || fail "reproduce --contexts"
"$program" reproduce infllm.passkey --dry-run --contexts 1 --set 'lengths=[512]' --set 'budgets=[64]' --out r >out 2>err ||
    fail "reproduce --set"
equal "lengths of the trial" "512" "$(sed -n 's/^[a-z_]* length \([0-9]*\):.*/\1/p' out | sort -u | xargs)"
! "$program" reproduce omnikv.fig1a --dry-run --contexts 1 --out r >out 2>err || fail "reproduce --contexts of an analysis"
grep -q 'omnikv.fig1a: is an analysis, want no --set and no --contexts' err || fail "the message of it"

# ---- help: what applies ----------------------------------------------------------------------------------------
"$program" tokenize --help >out
! grep -qE -- '--(device|threads|kv-type|prefill|window|plugin|allow)' out || fail "tokenize --help has options of a run"
grep -q -- '--model=FILE' out || fail "tokenize --help lacks --model"
"$program" logits --help >out
! grep -q -- '--plugin' out || fail "logits --help has --plugin"
grep -q -- '--device=NAME' out || fail "logits --help lacks --device"
