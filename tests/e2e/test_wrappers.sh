#!/usr/bin/env bash
# test_wrappers.sh - a policy over another from outside: names, sweeps, resume, tables, figures, plug-ins.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# refuse TEXT COMMAND...: exit status 2 and that text.
refuse() {
    local text=$1 rc=0
    shift
    "$program" "$@" >out.txt 2>err || rc=$?
    [ $rc -eq 2 ] || fail "$*: exit status $rc, want 2"
    grep -qF -- "$text" err || fail "$*: does not say \"$text\""
}

has() {
    grep -qF -- "$2" "$1" || fail "$1 lacks \"$2\""
}

# ---- cards ----------------------------------------------------------------------------------------

"$program" describe adakv >card
has card 'adakv - Ada-KV'
has card 'snapkv.window=auto'
has card 'floor_alpha=0.2'
"$program" describe pyramidkv >card
has card 'snapkv.window=8'
"$program" describe 'adakv(random)' >card
has card 'adakv(random)'
has card 'random.mode=select'
refuse 'adakv works on scores, quest gives none' describe 'adakv(quest)'
refuse 'parentheses do not match' describe 'adakv(snapkv'

# ---- a sweep, and again ---------------------------------------------------------------------------

sweep() {
    cat <<END
name: wrap
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [256]
contexts: 2
questions: 2
policies: [$1]
budgets: [64]
END
}
sweep 'full, adakv, adakv(random:mode=evict), "chunkkv(snapkv:window=8,kernel=5):chunk=10", twilight(random)' >wrap.yaml
run_sweep wrap.yaml 2>err || fail "sweep"
log=out/wrap.jsonl.zst
"$program" report $log >table || fail "report"
for policy in 'adakv(snapkv)' 'adakv(random)' 'chunkkv(snapkv)' 'twilight(random)'; do
    equal "cells of $policy" 1 "$(lines_of $log | grep '"kind":"cell"' | grep -cF "\"policy\":\"$policy\"")"
    has table "$policy"
done
equal "errors" 0 "$(lines_of $log | grep -c '"kind":"error"' || true)"
lines_of $log >lines
has lines 'snapkv.window=8'

# What is written another way is the same: nothing is left to do.
sweep 'full, adakv(snapkv), "chunkkv(snapkv):chunk=10,snapkv.kernel=5,snapkv.window=8", twilight(random)' >again.yaml
equal "again" "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep again.yaml --log $log --stats 2>err)"

# ---- tables and figures ---------------------------------------------------------------------------

"$program" export $log --format csv >cells.csv
has cells.csv ',twilight(random),'
if command -v gnuplot >version; then
    "$program" plot accuracy_budget $log --out figures >names || fail "plot"
    has figures/accuracy_budget.dat 'adakv(random)'
    "$program" plot accuracy_budget $log --out figures --policy 'adakv(snapkv),full' >names
fi
"$program" generate -m "$model" --policy 'adakv(snapkv:window=8):budget=40' -n 4 --prompt "$(seq 60)" \
    >text 2>err || fail "generate"

# ---- plug-ins on either side ----------------------------------------------------------------------

if command -v cc >version; then
    plug() { # NAME FROM [PART]: the method FROM as a plug-in of another name, with the part that it takes
        sed "s/$2/$1/g" "$source_dir/methods/$2.c" >"$1.c"
        cc -std=c17 -O1 -shared -fPIC -DKVL_PLUGIN -I"$source_dir/core/include" -I"$source_dir/methods" \
            "$1.c" ${3:+"$source_dir/methods/parts/$3.c"} -o "$1.so" 2>err || fail "$1 does not compile"
    }
    plug inside snapkv window_scores
    plug outside chunkkv
    sweep 'chunkkv(inside), outside(snapkv), outside(inside), chunkkv(snapkv)' >plug.yaml
    run_sweep plug.yaml --plugin ./inside.so --plugin ./outside.so --log plug.jsonl.zst >table 2>err ||
        fail "plug-ins"
    # What a cell of the sweep answered, whatever it is called.
    answers() {
        local cell
        cell=$(lines_of plug.jsonl.zst | grep '"kind":"cell"' | grep -F "\"policy\":\"$1\"" |
            sed -E 's/.*"cell":"([0-9a-f]*)".*/\1/')
        lines_of plug.jsonl.zst | grep '"kind":"sample"' | grep -F "\"cell\":\"$cell\"" |
            sed -E 's/.*"context":([0-9]*),.*"question":([0-9]*),.*"ids":(\[[^]]*\]).*/\1 \2 \3/' | sort
    }
    [ -n "$(answers 'chunkkv(snapkv)')" ] || fail "no answers of chunkkv(snapkv)"
    for policy in 'chunkkv(inside)' 'outside(snapkv)' 'outside(inside)'; do
        equal "answers of $policy" "$(answers 'chunkkv(snapkv)')" "$(answers "$policy")"
    done
    refuse 'outside wraps a policy itself' describe 'adakv(outside)' --plugin ./outside.so
fi
echo "test_wrappers: ok"
