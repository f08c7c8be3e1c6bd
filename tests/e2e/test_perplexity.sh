#!/usr/bin/env bash
# test_perplexity.sh - perplexity of texts: numbers that follow from `kvlab logits`, modes that agree
# where they must, resumed logs, tables, and what is refused.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# The text: words that the model has seen, and some that it has not.
for i in $(seq 1 120); do
    printf 'The river in the garden was %d steps long, and the teacher watched it. ' $((i * 37 % 101))
done >text.txt
length=200

run() {
    "$program" run -m "$model" --threads 1 --kv-type f32 --quiet "$@" 2>err || fail "run $*"
}
# near WHAT TOLERANCE WANT GOT
near() {
    awk -v a="$3" -v b="$4" -v t="$2" 'BEGIN { d = a - b; exit !(d <= t && -d <= t) }' ||
        fail "$1: want $3, got $4"
}
records() { lines_of "$1" | grep "^{\"kind\":\"$2\"," || true; }
ppl=(run --text text.txt --length $length --contexts 2 --policy full)

# ---- the numbers: -log softmax of the logits of a dense run ----------------------------------------

"${ppl[@]}" --task perplexity:tokens=50 --log prefill.zst
bos=1
ids=$bos,$("$program" tokenize -m "$model" --ids text.txt | tr ' ' , | cut -d, -f 1-$((length - 1)))
"$program" logits -m "$model" --ids "$ids" --out x.npy
n_vocab=$(head -c 128 x.npy | tr -cd '[:print:]' | sed -E 's/.*, ([0-9]+)\).*/\1/')
tail -c +129 x.npy | od -An -v -t f4 -w$((4 * n_vocab)) | awk -v ids="$ids" '
    BEGIN { n = split(ids, id, ",") }
    NR < n {
        most = $1
        for (i = 2; i <= NF; i++) if ($i > most) most = $i
        sum = 0
        for (i = 1; i <= NF; i++) sum += exp($i - most)
        printf "%.6f\n", log(sum) + most - $(id[NR + 1] + 1)
    }' >want # line i: nll of token i, counted from 0
equal "predictions of a dense run" $((length - 1)) "$(wc -l <want)"
mean_of() { tail -n +"$1" want | awk '{ s += $1 } END { printf "%.6f", s / NR }'; }
first() { records "$1" nll | jq -r "select(.context == 0) | $2"; }
near "mean nll" 0.0005 "$(mean_of $((length - 50)))" "$(first prefill.zst .nll_mean)"
paste <(tail -n 50 want) <(first prefill.zst '.nll[]') |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.005) exit 1 }' || fail "nll per token"
equal "tokens" "[200,150,50,50]" "$(first prefill.zst '[.text_tok, .first_tok, .n_tok, (.nll | length)]|tostring')"
equal "marks" "[1,2,3,4,6,8,12,16,24,32,48,50]" "$(first prefill.zst '[.curve[][0]]|tostring')"
near "the curve at 8" 0.001 "$(tail -n 50 want | head -n 8 | awk '{ s += $1 } END { print s / 8 }')" \
    "$(first prefill.zst '.curve[] | select(.[0] == 8) | .[1]')"

# The cell: both texts, of equal length.
equal "mean of the texts" true "$(lines_of prefill.zst | jq -s '
    (map(select(.kind == "nll").nll_mean) | add / length) as $mean
    | map(select(.kind == "perplexity"))[0] | (.nll.mean - $mean | fabs) < 1e-12
      and (.ppl.value - (.nll.mean | exp) | fabs) < 1e-9 and .n == 2 and .n_tok == 100
      and .nll.over == "texts" and .nll.lo <= .nll.mean and .nll.mean <= .nll.hi
      and (.curve[-1][1] - .nll.mean | fabs) < 1e-12')"

# ---- modes ----------------------------------------------------------------------------------------

"${ppl[@]}" --task perplexity:mode=decode --log decode.zst
"${ppl[@]}" --task perplexity:mode=chunk,chunk=30 --log chunk.zst
equal "first token, token by token" 2 "$(first decode.zst .first_tok)"
equal "first token, in chunks" 31 "$(first chunk.zst .first_tok)"
near "token by token" 0.0005 "$(mean_of 2)" "$(first decode.zst .nll_mean)"
near "in chunks" 0.0005 "$(mean_of 31)" "$(first chunk.zst .nll_mean)"
# Chunks of one token are single steps, for a policy that selects.
select=(run --text text.txt --length 120 --contexts 1 --policy quest:dense_layers=0 --policy streaming_llm
    --budget 48)
"${select[@]}" --task perplexity:mode=chunk,chunk=1 --log one.zst
"${select[@]}" --task perplexity:mode=decode --log steps.zst
for policy in quest streaming_llm; do
    near "$policy in chunks of one token" 0.0005 \
        "$(records steps.zst perplexity | jq "select(.policy == \"$policy\").nll.mean")" \
        "$(records one.zst perplexity | jq "select(.policy == \"$policy\").nll.mean")"
done
equal "who reads the text" "quest shared streaming_llm own" \
    "$(records steps.zst perplexity | jq -r '"\(.policy) \(.prefill)"' | sort | xargs)"

# What is predicted are steps, each of which selects for itself, whoever read what comes before them.
# (All of the text was the context of a method that reads it itself: InfLLM shared selections.)
sizes=n_init=4,n_local=8,block_size=4,topk=2,prefill=own
"${select[@]}" --task perplexity:mode=decode --log runs.zst --policy infllm:$sizes,exc_block_size=1 \
    --policy infllm:$sizes,exc_block_size=8
equal "selections of each step" 1 \
    "$(records runs.zst perplexity | jq 'select(.policy == "infllm").nll.mean' | sort -u | wc -l)"
equal "policies that select for each step" 2 "$(records runs.zst perplexity | grep -c '"policy":"infllm"')"

# One text: its stretches make the interval.
equal "one text" "[\"blocks\",true]" \
    "$(records steps.zst perplexity | jq -c 'select(.policy == "quest") | [.nll.over, .nll.lo < .nll.hi]')"

# ---- one plan, one log ------------------------------------------------------------------------------

cat >mixed.yaml <<YAML
model: $model
tasks: [{task: perplexity, tokens: [20, 40]}, {task: passkey, keys: 2}]
lengths: [200, 256]
depths: [0, 1]
protocols: [question_in_prefill, question_after_compress]
contexts: 2
questions: 2
policies: [full, random, oracle, snapkv]
budgets: [64, 40%]
YAML
run_sweep mixed.yaml --log mixed.zst --stats >stats
equal "prefills: 2 x 2 x 2 texts, 2 x 2 x 2 contexts" "prefilled 16 contexts" "$(cut -d' ' -f1-3 stats)"
equal "cells of texts, whatever the depths and protocols" 28 "$(records mixed.zst perplexity | wc -l)"
equal "of passkey" 56 "$(records mixed.zst cell | wc -l)"
lines_of mixed.zst | grep -E '"kind":"run"|"kind":"nll".*"context":0,.*"text_tok":200' | zstd -q >part.zst
run_sweep mixed.yaml --log part.zst --accept-stale
results_of mixed.zst >want
results_of part.zst >got
cmp -s want got || fail "a log that was cut off: $(diff want got | cut -c 1-300 | head -n 4)"
run_sweep mixed.yaml --log mixed.zst --stats >stats
equal "nothing is done twice" "prefilled 0 contexts" "$(cut -d' ' -f1-3 stats)"
lines_of mixed.zst | grep -E '"kind":"(nll|perplexity)"' | zstd -q >texts.zst
bash "$source_dir/tests/e2e/check_records.sh" texts.zst "$source_dir/results/README.md" nll perplexity >said ||
    fail "$(cat said)"
# The name of a file is no part of a cell, its contents are.
cp text.txt other.txt
cells() { records "$1" perplexity | jq -r .cell; }
run --task perplexity:tokens=50 --text other.txt --length $length --contexts 2 --policy full --log other.zst
equal "another name" "$(cells prefill.zst)" "$(cells other.zst)"
echo more >>other.txt
run --task perplexity:tokens=50 --text other.txt --length $length --contexts 2 --policy full --log more.zst
[ "$(cells more.zst)" != "$(cells other.zst)" ] || fail "an edited file makes the same cell"

# ---- tables ---------------------------------------------------------------------------------------

"$program" report mixed.zst >report
sed -n '/perplexity(tokens=40)  200 tokens/,/^$/p' report >block
grep -Eq '^ +policy +budget +attended +ppl ' block || fail "no column ppl"
! grep -q official block || fail "perplexity as accuracy"
value=$(records mixed.zst perplexity | jq -r 'select(.policy == "full" and .length_tok == 200
    and (.task_options | contains("tokens=40"))) | .ppl.value * 1000 | round / 1000')
grep -Eq "^ +full .* ${value/./\\.}" block || fail "full has not $value in"$'\n'"$(cat block)"
"$program" report mixed.zst --summary >summary
equal "blocks of texts below the summary" 4 "$(grep -c 'perplexity(tokens=' summary)"
! grep -Eq '^  [A-F]  perplexity' summary || fail "perplexity in a column of accuracy"
"$program" report mixed.zst --vs full >vs
want=$(records mixed.zst nll | jq -s 'group_by(.cell) | map({key: .[0].cell, value: (map(.nll_mean) | add / 2)}) | from_entries' |
    jq -r --slurpfile cells <(records mixed.zst perplexity) '. as $m
        | $cells | map(select(.length_tok == 200 and (.task_options | contains("tokens=40")))) as $c
        | ($c[] | select(.policy == "full") | $m[.cell]) as $full
        | $c[] | select(.policy == "random" and .budget == "64") | $m[.cell] - $full')
near "difference to full" 0.0001 "$want" "$(sed -n '/perplexity(tokens=40).*200 tokens/,/^$/p' vs |
    awk '$1 == "random" && $2 == 64 { print $4 }')"
"$program" report mixed.zst --by length | sed -n '/^Perplexity/,/^$/p' | grep -E '^ +full .* [0-9.]+ +[0-9.]+$' > /dev/null ||
    fail "--by length has no perplexity"
"$program" export mixed.zst --format jsonl >cells
equal "export" "$(records mixed.zst perplexity | jq -c '[.cell, .ppl.value, .nll.lo, .n_tok]' | sort)" \
    "$(jq -c 'select(.ppl) | [.cell, .ppl, .nll_lo, .n_tok]' cells | sort)"
equal "rows of curves" "$(records mixed.zst perplexity | jq '.curve | length' | awk '{ s += $1 } END { print s }')" \
    "$("$program" export mixed.zst --kind curve --format tsv | tail -n +2 | wc -l)"

# ---- what is refused --------------------------------------------------------------------------------

refuse() {
    local line=$1 rc=0
    shift
    "$program" run -m "$model" --length $length --policy full "$@" >out.txt 2>err || rc=$?
    equal "exit code of $*" 2 $rc
    equal "message of $*" "kvlab: $line" "$(cat err)"
}
: >empty.txt
refuse '--task: perplexity: none.txt: cannot open: No such file or directory' --text none.txt
refuse 'run: tasks: empty.txt: is empty, want a text' --task perplexity:tokens=8 --text empty.txt
refuse "run: tasks: text.txt: a text of $("$program" tokenize -m "$model" text.txt | wc -l) tokens, want at least 19900 for 100 contexts of 199" \
    --task perplexity:tokens=8 --text text.txt --contexts 100
refuse 'run: tasks: perplexity: a length of 200 tokens with tokens=199, want a length of at least 201' \
    --task perplexity:tokens=199
refuse 'run: tasks: perplexity: a length of 200 tokens with chunk=199, want a length of at least 201' \
    --task perplexity:mode=chunk,chunk=199
refuse '--text: task passkey reads no file, want --task perplexity' --task passkey --text text.txt
refuse '--text: "a,b" has a comma, want another name' --text a,b
echo "test_perplexity: ok"
