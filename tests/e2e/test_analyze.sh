#!/usr/bin/env bash
# test_analyze.sh - analyses against numbers worked out here from the attention weights in a trace of
# `oracle`, which knows them all; what must hold for any numbers; tables, export and what is refused.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
model=$source_dir/datasets/model/kvlab-tiny.gguf # it has several layers and kv heads
length=120 steps=8

for i in $(seq 1 40); do printf 'The river of %d was long, and the key is %d. ' $((i * 37 % 101)) $((i * 53 % 997)); done >text.txt
analyze() { "$program" analyze -m "$model" --threads 1 "$@" 2>err || fail "analyze $*"; }
# By grep: it is called for every number below, and jq takes ten times as long to begin.
records() { lines_of "$1" | grep "^{\"kind\":\"analysis\",.*\"what\":\"$2\"" || true; }
# holds WHAT LOG ANALYSIS EXPRESSION
holds() { [ "$(records "$2" "$3" | jq "$4")" = true ] || fail "$1"; }

# ---- the same weights -----------------------------------------------------------------------------

analyze all --kv-type f32 --task perplexity:text=text.txt,tokens=$steps --length $length --contexts 1 --tokens 4,16 \
    --lag 3 --next 2,3 --out a.zst >tables
ids=1,$("$program" tokenize -m "$model" --ids text.txt | tr ' ' , | cut -d, -f 1-$((length - 1)))
# With a budget of all tokens but a few without weight the run stays what it is.
"$program" trace -m "$model" --threads 1 --kv-type f32 --ids "$ids" --context $((length - steps - 1)) --steps $steps \
    --policy oracle:scope=q_head --budget $((length - steps - 2)) --out t.zst >said 2>err || fail trace

# [step][layer][head][position], the current token last.
lines_of t.zst | jq -s -c 'map(select(.kind == "trace_score")) | group_by(.index)
    | map(sort_by(.layer) | map(.score | map(. + [[0, 1 - add] | max])))' >weights
equal "steps in the trace" $steps "$(jq length weights)"

# near WHAT: compares two lists of numbers, line by line
near() {
    paste want got | awk -v t="$2" '{ d = $1 - $2; if (d > t || -d > t || NF != 2) { print NR ": " $0; exit 1 } }' >bad ||
        fail "$1: $(cat bad)"
    [ -s want ] || fail "$1: nothing"
}
jq -r '. as $w | range($w[0] | length) as $l | range($w[0][0] | length) as $h | (0.90, 0.95, 0.99) as $p
    | [$w[][$l][$h] | sort | reverse | . as $s
       | label $found | foreach range($s | length) as $i (0; . + $s[$i]; if . >= $p - 1e-7 then $i + 1, break $found else empty end)]
    | add / length' weights >want
records a.zst mass | jq -r '.mass[].tok_mean' >got
near "tokens of a mass" 0.26 # a weight at the edge may round to either side
jq -r '. as $w | range($w[0] | length) as $l | range($w[0][0] | length) as $h | 1, 2, 3 | $w[0][$l][$h] | length' weights >want
records a.zst mass | jq -r --argjson n $length '.mass[] | if .share > 0 and .share <= 1 then .tok_mean / .share else 0 end' >got
near "shares are of all tokens" $steps

reduced='def weights_of($kind): map(map(transpose | map(if $kind == "max" then max else add / length end)));
    def top($m): .[:-1] | to_entries | sort_by([-.value, .key])[:$m] | map(.key) | sort;'
for reduce in max mean; do
    for m in 4 16; do
        jq -r "$reduced"' weights_of("mean") as $mean | weights_of("'$reduce'") | map(map(top('$m'))) as $list
            | ($mean[0] | length) as $n | range($n) as $l1 | range($l1; $n) as $l2
            | [range($mean | length) | . as $s | $mean[$s][$l2] as $w | $w[-1] + ([$w[$list[$s][$l1][]]] | add)] | add / length' \
            weights >want
        row='.similarity[] | select(.m == '$m' and .reduce == "'$reduce'")'
        records a.zst similarity | jq -r "$row | .capture | range(length) as \$i | .[\$i][\$i:][]" >got
        near "capture, $m $reduce" 0.002
        for lag in 1 3; do
            jq -r "$reduced"' weights_of("'$reduce'") | map(map(top('$m'))) as $list | range($list[0] | length) as $l
                | [range('$lag'; $list | length) as $s | ($list[$s][$l] - ($list[$s][$l] - $list[$s - '$lag'][$l]) | length)]
                | add / length / '$m weights >want
            drift='.drift[] | select(.m == '$m' and .reduce == "'$reduce'" and .lag == '$lag')'
            records a.zst drift | jq -r "$drift | .kept[]" >got
            near "kept, $m $reduce lag $lag" 0.04
            equal "pairs of lag $lag" $((steps - lag)) "$(records a.zst drift | jq "$drift | .n")"
        done
    done
done

# ---- what must hold -------------------------------------------------------------------------------

holds "the curve is the mean of a row" a.zst similarity '
    [.similarity[] | . as $r | .curve[] | . as $c | range($r.capture | length) as $l
     | if $l + $c.next > ($r.capture | length) then $c.value[$l] == null
       else ($c.value[$l] - ($r.capture[$l][$l:$l + $c.next] | add / length) | fabs) < 1e-9 end] | all'
holds "no evidence in a text" a.zst similarity '[.similarity[] | .hit == null and .n_hits == 0] | all'
holds "overlap and jaccard" a.zst drift '
    [.drift[] | . as $r | range(.kept | length) | $r.jaccard[.] <= $r.kept[.] + 1e-9] | all'
# Lists of everything hold everything, evidence too.
analyze similarity --task passkey:keys=2 --length 200 --contexts 2 --questions 2 --tokens 8,4096 --out p.zst --quiet >said
[ ! -s said ] || fail "--quiet prints $(cat said)"
holds "all tokens" p.zst similarity '[.similarity[] | select(.m == 4096)
    | ([.capture[][] | numbers | (. - 1 | fabs) < 1e-4] | all) and ([.hit[] == 1] | all) and .n_hits > 0] | length == 2 and all'
holds "some tokens" p.zst similarity '[.similarity[] | select(.m == 8) | .hit | max > 0 and min < 1] | all'
holds "answers and steps" p.zst similarity '.n_contexts == 2 and .n_answers == 4 and .n_steps >= 4 * 5'
# A layer that keeps the most stands for those behind it: the sum of the suggested set is not below any
# other of two filters.
holds "the filters" p.zst similarity '[.similarity[] | .capture as $c | ($c | length) as $n
    | def kept($f): [range($n) as $l | ($f | map(select(. <= $l)) | last) as $g
        | if $g == null or $g == $l then 1 else $c[$g][$l] end] | add;
      .dense_layers == 2 and .wait_layers == 0
      and (.filters | kept(.)) + 1e-9 >= ([range($n) as $a | range($a + 2; $n - 1) as $b | select($a == 0) | kept([$a, $b])] | max)] | all'

# ---- tables, records, export -----------------------------------------------------------------------

for what in mass similarity drift; do grep -q "^$what of full attention  perplexity" tables || fail "no table of $what"; done
grep -Eq 'omnikv:filter_layers=[0-9+]+\.' tables || fail "no filter layers"
filters=$(grep -Eo 'filter_layers=[0-9+]+' tables | head -n 1)
"$program" run -m "$model" --threads 1 --task passkey --length 256 --contexts 1 --policy "omnikv:$filters" --budget 64 --quiet \
    --strict --log omni.zst 2>err || fail "omnikv does not take $filters"
bash "$source_dir/tests/e2e/check_records.sh" a.zst "$source_dir/results/README.md" run analysis >said || fail "$(cat said)"
"$program" log check a.zst >said || fail "log check"
"$program" report a.zst >again
equal "report" "$(cat tables)" "$(head -n "$(wc -l <tables)" again)"
"$program" export a.zst --kind analysis --format jsonl >rows
equal "exported captures" "$(records a.zst similarity | jq -c '.similarity[] | .capture[][] | numbers' | sort)" \
    "$(jq -c 'select(.number == "capture") | .value' rows | sort)"
equal "exported drift" "$(records a.zst drift | jq -c '.drift[] | .m as $m | .reduce as $r | .lag as $g | .kept | to_entries[] | [$m, $r, $g, .key, .value]' | sort)" \
    "$(jq -c 'select(.number == "kept") | [.m, .reduce, .lag, .layer, .value]' rows | sort)"
# Again, into the same log: it replaces what was there.
n=$(wc -l <rows)
analyze all --kv-type f32 --task perplexity:text=text.txt,tokens=$steps --length $length --contexts 1 --tokens 4,16 \
    --lag 3 --next 2,3 --out a.zst --quiet
equal "rows after a repeat" "$n" "$("$program" export a.zst --kind analysis --format jsonl | wc -l)"
"$program" help analyze >said
grep -q '^Usage: kvlab analyze ' said || fail "help: $(cat said)"

# ---- a sweep file ------------------------------------------------------------------------------------

file() { # file LINE: a sweep whose map `analyze` has one more line
    printf '%s\n' "name: small" "model: $model" "tasks: [{task: passkey, keys: 2}]" "lengths: [200]" "contexts: 2" \
        "questions: 2" "analyze:" "  $1" >small.yaml
}
numbers_of() { lines_of "$1" | jq -cS 'select(.kind == "analysis") | del(.run, .t_end, .wall_s)'; }
file 'what: [similarity, drift]'
echo '  tokens: [8, 32]
  next: 3
  lag: 2' >>small.yaml
analyze small.yaml --out f.zst >tables
analyze similarity --task passkey:keys=2 --length 200 --contexts 2 --questions 2 --tokens 8,32 --next 3 --out g.zst --quiet
analyze drift --task passkey:keys=2 --length 200 --contexts 2 --questions 2 --tokens 8,32 --lag 2 --out g.zst --quiet
equal "a file and its flags" "$(numbers_of g.zst)" "$(numbers_of f.zst)"
# What the log has is shown, not run; other options are other analyses.
cp f.zst before.zst
analyze small.yaml --out f.zst >again
equal "tables of what is there" "$(cat tables)" "$(cat again)"
cmp -s f.zst before.zst || fail "an analysis that was there was run again"
analyze drift small.yaml --lag 3 --out f.zst --quiet
equal "analyses of other options" "2 1" "$(lines_of f.zst | jq -r 'select(.what == "drift") | [.drift[].lag] | max' | sort -n | uniq -c |
    awk '{ n[$2] = $1 } END { print n[2] + n[3], n[3] }')"
lines_of before.zst | jq -c 'if .kind == "analysis" then .code = "older" | .cell = .cell[:16] + "00000000" else . end' | zstd -qf -o h.zst
analyze small.yaml --out h.zst --quiet
equal "analyses by other code are run again" "2 older" "$(lines_of h.zst | jq -r 'select(.kind == "analysis") | .code' | sort | uniq -c | awk '/older/ { print $1, $2 }')"
equal "and their number" 4 "$(lines_of h.zst | grep -c '"kind":"analysis"')"
analyze small.yaml --quiet
equal "the log of a file" "$(numbers_of g.zst)" "$(numbers_of out/small.jsonl.zst)"
equal "--dry-run" "similarity passkey 200
drift passkey 200" "$("$program" analyze small.yaml --dry-run | awk '{ print $1, $2, $3 }')"

# ---- what is refused --------------------------------------------------------------------------------

refuse() {
    local line=$1 rc=0
    shift
    "$program" analyze "$@" >said 2>err || rc=$?
    equal "exit code of $*" 2 $rc
    equal "message of $*" "kvlab: $line" "$(cat err)"
}
some=(-m "$model" --task passkey --length 200)
refuse 'no analysis, want mass, similarity, drift or all' "${some[@]}"
refuse 'mas: no such analysis, did you mean "mass"?' mas "${some[@]}"
refuse '"drift": one analysis at a time, or all' mass drift "${some[@]}"
refuse '--tokens: 16 after 64, want them ascending' mass "${some[@]}" --tokens 64,16
refuse '--tokens: "x" is no number, want 1 to 16777216' mass "${some[@]}" --tokens x
refuse '--lag: "65" is out of range, want 1 to 64' drift "${some[@]}" --lag 65
refuse '--dense-layers: 1 with 1 waiting after each filter; the model has 8 layers, want 2 to 7' \
    similarity "${some[@]}" --dense-layers 1 --wait-layers 1
refuse 'analyze: model: is missing, want --model FILE.gguf' mass --task passkey --length 200
refuse 'analyze: tasks: is missing, want --task NAME (kvlab list tasks)' mass -m "$model" --length 200
refuse '--task: task "passkeys" does not exist, did you mean "passkey"?' mass -m "$model" --task passkeys --length 200
refuse '"b.yaml": one file at a time' a.yaml b.yaml
file 'what: drft'
refuse 'small.yaml:8: analyze.what: no analysis "drft", did you mean "drift"?' small.yaml
file 'tokens: [64, 16]'
refuse 'small.yaml:8: analyze.tokens: 16 after 64, want them ascending' small.yaml
file 'tokens: [1, 2, 3, 4, 5, 6, 7, 8, 9]'
refuse 'small.yaml:8: analyze.tokens: more than 8 values' small.yaml
file 'next: []'
refuse 'small.yaml:8: analyze.next: is an empty list, want at least one value' small.yaml
file 'lag: 0'
refuse 'small.yaml:8: analyze.lag: "0" is out of range, want 1 to 64' small.yaml
file 'lags: 2'
refuse 'small.yaml:8: no key "analyze.lags", did you mean "analyze.lag"?' small.yaml
file 'lag: 2'
rc=0
"$program" sweep small.yaml >said 2>err || rc=$?
equal "exit code of a sweep of analyses alone" 2 $rc
equal "its message" 'kvlab: small.yaml: policies: is missing; what it analyzes: kvlab analyze small.yaml' "$(cat err)"
echo "test_analyze: ok"
