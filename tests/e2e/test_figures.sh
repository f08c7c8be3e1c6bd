#!/usr/bin/env bash
# test_figures.sh - every figure beside those of test_plots.sh: its table against jq on the records of
# small sweeps, what it says of an empty log, and its sweep file, run small by harness/figures.sh.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
model=$source_dir/datasets/model/kvlab-tiny.gguf # it has several layers and heads
export OMP_NUM_THREADS=1

"$program" plot --list | awk '{ print $1 }' >figures

# ---- an empty log -----------------------------------------------------------------------------------

: | zstd -qf -o empty.zst
if command -v gnuplot >/dev/null; then
    while read -r figure; do
        "$program" plot "$figure" empty.zst --format svg --out empty >said 2>err
        grep -q 'No result to show' "empty/$figure.svg" || fail "$figure of an empty log does not say so"
        grep -q "^kvlab: $figure: no value to show" err || fail "$figure of an empty log is not told"
        equal "$figure of an empty log: points" 0 "$(grep -cv '^#\|^$' "empty/$figure.dat" || true)"
    done <figures
fi

# ---- sweep files ------------------------------------------------------------------------------------

# Each names its figures, each figure has one; and all of them can be planned.
figures_sh() { KVLAB=$program bash "$source_dir/harness/figures.sh" "$@"; }
figures_sh --list | awk '{ print $1 }' | sort >named
equal "figures that a sweep names, once" "$(sort figures)" "$(cat named)"
for file in "$source_dir"/harness/sweeps/*.yaml; do
    command=sweep
    ! grep -q '^analyze:' "$file" || command=analyze
    more=
    [[ $file != */real.yaml ]] || more='--set lengths=2048' # the model that ships takes more tokens for the same words
    # shellcheck disable=SC2086
    "$program" $command "$file" $more --dry-run --quiet >said 2>err || fail "$file --dry-run"
    [ -s said ] || fail "$file plans nothing"
done

if ! command -v gnuplot >/dev/null; then
    echo "test_figures: the rest is skipped, no gnuplot"
    exit 77
fi

# ---- tables -----------------------------------------------------------------------------------------

# rows NAME PANEL SERIES COLUMNS: those columns of a series
rows() {
    awk -v head="# panel $2, $3" -v columns="$4" '
        $0 == head { on = 1; next } /^$/ { on = 0 }
        on { n = split(columns, c, " "); for (i = 1; i <= n; i++) printf "%s%s", (i > 1 ? " " : ""), $c[i]; print "" }' "$1.dat"
}
# near: the two halves of every line have the same words, or numbers.  Sums in another order differ in their last digits,
# and times often lie where these decide how they are rounded.
near() {
    awk 'function number(x) { return x ~ /^-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?$/ }
        function size(x) { return x < 0 ? -x : x }
        function alike(a, b) { return a "" == b "" || number(a) && number(b) && size(a - b) <= 1e-8 * (1 + size(a)) }
        NF % 2 || /nan/ { exit 1 }
        { for (i = NF / 2; i > 0; i--) if (!alike($i, $(i + NF / 2))) exit 1 }'
}
near <<<'word 3e6 word 3.00000001e+06' || fail "near: last digits"
for line in '10485760 9437184' '0 2e-8' 'a b' 'a 0' 'nan nan' '1 1 1'; do ! near <<<"$line" || fail "near: $line"; done
# same WHAT FILTER LOG: the rows on standard input are those that the jq filter gives
same() {
    lines_of "$3" | jq -rs "$2 | @tsv" >want
    cat >got
    [ -s want ] || fail "$1: no such record"
    [ "$(wc -l <want)" = "$(wc -l <got)" ] && paste want got | near || equal "$1" "$(cat want)" "$(cat got)"
}
draw() { "$program" plot "$@" --format svg >said 2>err || fail "plot $*"; }

cat >small.yaml <<END
name: small
model: $model
threads: 1
tasks: [needle]
lengths: [200, 300]
depths: [0.0, 0.5, 1.0]
protocols: [question_in_prefill]
contexts: 2
policies: [full, quest, {policy: snapkv, window: 8}, random]
budgets: [32, 64]
quality: {steps: 3, top: [4, 10]}
speed: {task: needle, lengths: [200, 300], budgets: [32], steps: 5, warmup: 1, repeats: 2}
END
"$program" sweep small.yaml --log small.zst --quiet
for kv in f16 f32; do
    "$program" sweep <(sed '/^depths\|^quality\|^lengths/d' small.yaml) \
        --set name=kv --set "model=$model" --kv-type $kv --log "kv-$kv.zst" --quiet
done

draw needle_heatmap small.zst --policy snapkv --budget 64
rows needle_heatmap 1 snapkv "1 2 3 4 5 6" | sort | same "cells of needle_heatmap" '
    map(select(.kind == "cell" and .policy == "snapkv" and .budget == "64"))
    | map([(.length_tok - 100) / 100, 1 + .depth * 2, .official.p * 100, .length_tok, .depth, .n]) | sort[]' small.zst

# Bytes of a token in one lane times the lanes: what tokens read are told by.
token='(map(select(.kind == "run"))[0] | (if .store.kv_type == "f32" then 8 else 4 end) * .model.head_dim * .model.n_kv_heads * .model.n_layers) as $token'
draw top10_budget small.zst --length 300
# Every depth is a panel.
rows top10_budget 2 quest "1 2 3 4 5" | same "top10_budget" '
    '"$token"' | map(select(.kind == "cell" and .policy == "quest" and .length_tok == 300 and .depth == 0.5)) | sort_by(.budget_tok)[]
    | .quality as $q | $q.select.recall[$q.top | index(10)] as $r
    | [.kv_read_bytes_per_tok / $token, $r.mean * 100, $r.lo * 100, $r.hi * 100, .budget_tok]' small.zst

# Pieces of a bar: means of the records, each on the one below it, up to their sum.
draw step_breakdown small.zst --length 300 --policy quest
for part in attend:attention select:selection meta:metadata evict:eviction rest:"rest of the model"; do
    rows step_breakdown 1 "${part#*:}" "2 3 4"
done >pieces
<pieces same "step_breakdown" '
    [.[] | select(.kind == "speed" and .policy == "quest" and .length_tok == 300)] as $r
    | reduce ("attend_ns", "select_ns", "meta_ns", "evict_ns", "rest_ns") as $part ([];
        ($r | map(.[$part] / (.step_ns | length) / 1e6) | add / length) as $ms
        | ((.[-1] // [0, 0, 0])[2]) as $below | . + [[$ms, $below, $below + $ms]]) | .[]' small.zst
tail -n 1 pieces | cut -d ' ' -f 3 | same "the whole bar is the step" '[.[]
    | select(.kind == "speed" and .policy == "quest" and .length_tok == 300) | (.step_ns | add / length)] | [add / length / 1e6]' small.zst

draw kv_length kv-f16.zst kv-f32.zst
for kv in f16 f32; do
    for policy in full quest snapkv; do
        rows kv_length 1 "$policy, kv $kv" "1 2 3 4" | same "kv_length of $policy, $kv" '
            map(select(.kind == "speed" and .policy == "'$policy'" and .repeat == 0)) | sort_by(.length_tok)[]
            | ((.kv_physical_bytes + .meta_bytes) / 1048576) as $mib | [.length_tok, $mib, $mib, $mib]' kv-$kv.zst
    done
done

draw two_stage_share small.zst --length 200
rows two_stage_share 1 quest "1 2 5" | same "two_stage_share: x is the share of the context" '
    '"$token"' | map(select(.kind == "cell" and .policy == "quest" and .length_tok == 200 and .depth == 0)) | sort_by(.budget_tok)[]
    | [.kv_read_bytes_per_tok / $token / 2, .official.p * 100, .budget_tok]' small.zst
for figure in preselect_effect passkey_budget; do
    draw $figure small.zst --length 200
    rows $figure 1 quest "1 2 5" | same $figure '
        '"$token"' | map(select(.kind == "cell" and .policy == "quest" and .length_tok == 200 and .depth == 0)) | sort_by(.budget_tok)[]
        | [.kv_read_bytes_per_tok / $token, .official.p * 100, .budget_tok]' small.zst
done

# The running perplexity from the tokens themselves: the exponential of the mean over texts of the means
# so far, over the tokens of the text, of which the first ones do not count.
"$program" sweep <(sed '/^depths\|^quality\|^speed/d; s/^lengths.*/lengths: [200]/; s/^tasks.*/tasks: [{task: perplexity, mode: decode}]/' small.yaml) \
    --set name=texts --set "model=$model" --set 'policies=[full, quest]' --set 'budgets=[32]' --log texts.zst --quiet
draw perplexity_length texts.zst --budget 32
rows perplexity_length 1 quest "1 2 6" >got
lines_of texts.zst | jq -rs '
    (map(select(.kind == "perplexity" and .policy == "quest" and .budget == "32"))[0]) as $cell
    | map(select(.kind == "nll" and .cell == $cell.cell)) as $texts
    | ($texts[0].curve | map(.[0]) | map(select(. >= 16)))[] as $n
    | [$texts[0].first_tok + $n, ($texts | map(.nll[:$n] | add / length) | add / length | exp), ($texts | length)] | @tsv' >want
equal "marks of perplexity_length" "$(awk '{ print $1, $3 }' want)" "$(awk '{ print $1 + 0, $3 + 0 }' got)"
# The log has five decimals of each token.
paste want got | awk '{ d = log($2 / $5); if (d > 2e-5 || -d > 2e-5) print }' >off
[ ! -s off ] || fail "perplexity_length: $(cat off)"

# ---- full attention ---------------------------------------------------------------------------------

"$program" analyze all -m "$model" --threads 1 --task passkey:keys=2 --length 200 --contexts 2 --tokens 8,32 --next 2,3 --lag 3 \
    --out attention.zst --quiet
for figure in mass_layer layers_alike layers_heatmap filter_hit token_drift; do draw $figure attention.zst; done
analysis='map(select(.kind == "analysis" and .what == "'
for mass in 90 95 99; do
    rows mass_layer 1 "$mass %" "1 2 3 4 6" | same "mass_layer, $mass %" "$analysis"'mass"))[0].mass
        | map(select(.mass * 100 | round == '$mass')) | group_by(.layer)[] | map(.share * 100) as $s
        | [.[0].layer, ($s | add / length), ($s | min), ($s | max), ($s | length)]' attention.zst
done
similarity=$analysis'similarity"))[0].similarity | map(select(.reduce == "max"))'
for m in 8 32; do
    for next in 2 3; do
        rows layers_alike 1 "top $m, $next layers" "1 2" | same "layers_alike, $m $next" "$similarity"' | map(select(.m == '$m'))[0].curve
            | map(select(.next == '$next'))[0].value | to_entries[] | select(.value != null) | [.key, .value * 100]' attention.zst
    done
    rows filter_hit 1 "top $m" "1 2" | same "filter_hit, $m" "$similarity"' | map(select(.m == '$m'))[0].hit
        | to_entries[] | [.key, .value * 100]' attention.zst
    rows layers_heatmap $((m == 8 ? 1 : 2)) "the $m tokens of a layer" "4 5 3" | same "layers_heatmap, $m" "$similarity"'
        | map(select(.m == '$m'))[0].capture | to_entries[] | .key as $l1 | .value | to_entries[] | select(.value != null)
        | [.key, $l1, .value * 100]' attention.zst
    rows token_drift $((m == 8 ? 1 : 2)) "layer 3" "1 2" | same "token_drift, $m" "$analysis"'drift"))[0].drift
        | map(select(.m == '$m' and .reduce == "max")) | sort_by(.lag)[] | [.lag, .kept[3] * 100]' attention.zst
done

# ---- figures.sh -------------------------------------------------------------------------------------

refuse() {
    local line=$1 rc=0
    shift
    figures_sh --out no "$@" >said 2>err || rc=$?
    equal "exit code of figures.sh $*" 2 $rc
    equal "message of figures.sh $*" "kvlab: $line" "$(cat err)"
    [ ! -e no ] || fail "figures.sh $* began"
}
refuse 'pasky_budget: no such figure, did you mean "passkey_budget"?' mass_layer pasky_budget
refuse 'unknown option --lits, see --help' --lits
# Sweeps of figures, as small as they get: each figure has values then.
few=(--threads 1 --set contexts=1 --set 'lengths=[256]')
timed=(--set 'speed.lengths=[256]' --set speed.steps=2 --set speed.warmup=0 --set speed.repeats=1)
small() {
    local names=() last
    while [ "$1" != -- ]; do names+=("$1"); shift; done
    figures_sh --out out/f "${names[@]}" "$@" >said 2>err || fail "figures.sh ${names[*]}"
    for last in "${names[@]}"; do
        grep -q "^kvlab: $last: [0-9]* s\$" err || fail "figures.sh $last does not tell its time"
        ! grep -q 'no value to show' err || fail "figures.sh $last: $(grep 'no value' err)"
        [ -s "out/f/$last.png" ] && [ -s "out/f/$last.svg" ] || fail "figures.sh $last: no picture"
    done
}
small mass_layer layers_alike layers_heatmap filter_hit token_drift -- --length 256 --contexts 1 --questions 1 --threads 1
small kv_length step_breakdown speed_length -- --threads 1 "${timed[@]}"
for kv in f16 f32; do grep -q "^# panel 1, .*, kv $kv" out/f/kv_length.dat || fail "kv_length of figures.sh has no $kv"; done
small accuracy_budget recall_budget -- "${few[@]}" --set questions=1 --set 'budgets=[64]' --set 'tasks=[kv_retrieval]' "${timed[@]}"
small needle_heatmap -- "${few[@]}" --set 'depths=[0.5]'
small passkey_budget -- "${few[@]}" --set questions=1 --set 'budgets=[64]'
small perplexity_length -- "${few[@]}" --set 'budgets=[64]' --set 'policies=[full, quest]'
small kl_budget top1_budget -- "${few[@]}" --set 'budgets=[64]' --set 'policies=[full, quest]'
small preselect_effect -- "${few[@]}" --set questions=1 --set 'budgets=[64]'
small top10_budget -- "${few[@]}" --set questions=1 --set quality.questions=1 --set quality.steps=2 --set 'budgets=[64]'
small methods -- "${few[@]}" --set questions=1 --set 'budgets=[64]' --set 'tasks=[needle]' --set protocols=question_in_prefill
small evict_or_quantise -- "${few[@]}" --set questions=1 --set 'budgets=[25%]' --set 'policies=[full, quest]' --set 'kv_type=[f16, q8_0]'
small two_stage_share -- "${few[@]}" --set questions=1 --set 'budgets=[25%]'
equal "figures that figures.sh drew" "$(sort figures)" "$(ls out/f/*.png | sed 's/.*\///; s/\.png$//' | sort)"
# Again: it goes on where it was.
cp out/f/passkey_budget.jsonl.zst before.zst
small passkey_budget -- "${few[@]}" --set questions=1 --set 'budgets=[64]'
equal "samples of the second run" "$(lines_of before.zst | grep -c '"kind":"sample"')" "$(lines_of out/f/passkey_budget.jsonl.zst | grep -c '"kind":"sample"')"
echo "test_figures: ok"
