#!/usr/bin/env bash
# test_files.sh - benchmarks' files from outside: sweeps over them, cells that know the contents of a file, check,
# exports and scores of predictions.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
model=$sources/datasets/model/kvlab-tiny.gguf

fail() {
    echo "test_files: $*" >&2
    exit 1
}
# expect WHAT WANT GOT
expect() { [ "$2" = "$3" ] || fail "$1: want \"$2\", got \"$3\""; }
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in"$'\n'"$(head -n 60 "$3")"; }
# refused CODE PATTERN ARGUMENTS: that exit code, one line that matches
refused() {
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" "$@" > out 2> err || rc=$?
    expect "exit code of $*" "$code" "$rc"
    expect "lines of the message of $*" 1 "$(wc -l < err)"
    contains "message of $*" "$pattern" err
}
samples() { zstdcat log.zst | jq -c 'select(.kind == "sample")'; }
cells() { zstdcat log.zst | jq -c 'select(.kind == "cell")'; }

# ---- files in the official form --------------------------------------------------------------------
mkdir ib lb
for i in 0 1 2 3; do
    grass=$(printf 'The grass is green. The sky is blue.\\n%.0s' $(seq 1 $((i * 4 + 1))))
    printf '{"id": %d, "context": "%sThe pass key is 7143%d. Remember it. 7143%d is the pass key.\\n%s", ' \
        $i "$grass" $i $i "$grass"
    printf '"input": "What is the pass key?", "answer": ["7143%d"], "options": []}\n' $i
done > ib/passkey.jsonl
for i in 0 1 2; do
    printf '{"id": %d, "context": "Anna has a cat. Bob has a dog.", "input": "Who has pet %d?", "answer": ["Bob"], "options": []}\n' $i $i
done > ib/longbook_qa_eng.jsonl
printf '{"input": "Who?", "context": "Bob was there.", "answers": ["Bob"], "length": 3, "all_classes": null, "_id": "a"}\n' |
    gzip > lb/hotpotqa.jsonl.gz

# ---- a sweep: what is there, as many as there are ----------------------------------------------------
cat > sweep.yaml <<END
model: $model
tasks: [{task: infinitebench, dir: ib, names: all}, {task: longbench, dir: lb, name: hotpotqa, control: no_context}]
lengths: [1024, 240]
contexts: 8
questions: 2
policies: [full, snapkv]
budgets: [96]
END
"$program" sweep sweep.yaml --log log.zst > out
expect "samples" "$((2 * (4 + 3) * 2 + 2))" "$(samples | wc -l)"
expect "cells of the control" "full full" \
    "$(cells | jq -r 'select(.task == "longbench") | .policy' | sort | xargs)"
# Three questions of one text, two to a context: two contexts, one observation.
expect "questions of cells" "3 1" \
    "$(cells | jq -r 'select(.task_options | test("longbook_qa")) | "\(.n) \(.n_contexts)"' | sort -u)"
expect "texts of contexts" "0 0,1 0" \
    "$(samples | jq -r 'select(.policy == "full" or .cell) | select((.row // "" | tostring) | test("longbook_qa")) | "\(.context) \(.text)"' | sort -u | paste -sd,)"
expect "errors" 0 "$(cells | jq .n_errors | sort -u)"
samples | jq -se 'map(select(.context_tok + .question_tok > 1024)) == []' > jq.out || fail "a prompt is too long"
expect "evidence that was cut off" true "$(samples | jq -s 'any(.evidence_lost)')"
cells | jq -se 'map(.evidence.lost // 0) | add > 0' > jq.out || fail "no cell counts evidence that was cut off"
"$program" report log.zst --evidence > out
contains "report" 'of [0-9]+ questions it was cut off before any policy read it' out
contains "report" 'weak: of [0-9]+ questions' out
expect "cells that are left" 0 "$("$program" sweep sweep.yaml --log log.zst --dry-run | grep -c 'question_in' || true)"

"$program" report log.zst > table
contains "a table" '! of [0-9]+ questions the evidence was cut off before any policy read it' table
"$program" run --model "$model" --policy full,snapkv --budget 96 --length 400 --contexts 1 --log control.zst \
    --task longbench:dir=lb,name=hotpotqa --task longbench:dir=lb,name=hotpotqa,control=no_context > out
expect "tables with a baseline" 1 "$(grep -c 'asked without the context, whatever the policy: ' out)"
contains "a table" '^kvlab-tiny  longbench\(name=hotpotqa,control=no_context\)' out
if grep -q 'a language model judge' out; then fail "LongBench is judged by no model"; fi
turns='[{"role": "user", "content": "My dog is called Rex.", "has_answer": true}]'
printf '[{"question_id": "q", "question": "Which dog?", "answer": "Rex", "question_date": "d", "haystack_dates": ["d"], "haystack_session_ids": ["s"], "haystack_sessions": [%s], "answer_session_ids": ["s"]}]' \
    "$turns" > longmemeval_s.json
"$program" run --model "$model" --policy full --length 400 --contexts 1 --log judged.zst \
    --task longmemeval:dir=.,max_new=4 > out
contains "a table" '! official is a score of kvlab.s: the benchmark lets a language model judge' out
expect "evidence of a session" true "$(zstdcat judged.zst | jq 'select(.kind == "cell") | .recall.mean == 1')"

# ---- a file that changes is another cell, one that moves is not ---------------------------------------
mv ib moved
sed -i 's/dir: ib/dir: moved/' sweep.yaml
expect "cells of a moved file" 0 "$("$program" sweep sweep.yaml --log log.zst --dry-run | grep -c 'question_in' || true)"
sed -i 's/blue/gray/' moved/passkey.jsonl
expect "cells of an edited file" 4 "$("$program" sweep sweep.yaml --log log.zst --dry-run | grep -c 'question_in' || true)"
sed -i 's/gray/blue/' moved/passkey.jsonl

# ---- predictions for the benchmark's scripts, and what they say ----------------------------------------
"$program" export --as infinitebench --out pred log.zst > paths
expect "files of predictions" 8 "$(wc -l < paths)"
expect "members" id,prediction,ground_truth \
    "$(head -n 1 pred/kvlab-tiny/full-1024-question_in_prefill/preds_passkey.jsonl | jq -r 'keys_unsorted | join(",")')"
want=$(cells | jq -r 'select(.policy == "full" and .length_tok == 1024 and (.task_options | test("passkey"))) | .official.p * 100')
got=$("$program" data score --as infinitebench pred/kvlab-tiny/full-1024-question_in_prefill/preds_passkey.jsonl |
    awk -F'\t' 'NR == 2 { print $3 + 0 }')
expect "score of the predictions" "$want" "$got"
# Another template or sampling is another folder.
zstdcat log.zst | jq -c 'if .kind == "cell" then .chat = "chatml" | .sampling = "temperature=0.7,n=2" else . end' | zstd -qf -o drawn.zst
"$program" export --as infinitebench --out drawn drawn.zst > paths
expect "folders of drawn answers" 8 "$(grep -c 'question_in_prefill-chat=chatml-sampling=temperature=0.7_n=2/' paths)"
refused 2 'no answers of the task ruler' export --as ruler --out pred log.zst
refused 2 'want --out' export --as ruler log.zst
refused 2 '"squad" is no task of longbench' data score --as longbench --name squad paths
printf '{"pred": "x", "answers": ["x"]}\n{"pred": 1,}\n' > hotpotqa.jsonl
refused 2 'hotpotqa.jsonl: line 2' data score --as longbench hotpotqa.jsonl

"$program" describe infinitebench > out
contains "describe" 'dir= +\(path\)' out

# ---- analyses: as many contexts as there are ------------------------------------------------------------------
printf 'model: %s\ntasks: [{task: infinitebench, dir: moved, name: passkey}]\nlengths: [700]\ncontexts: 9\nlog: analysis.zst\nanalyze: {what: mass}\n' \
    "$model" > analysis.yaml
"$program" analyze analysis.yaml > out
expect "contexts of an analysis" 4 "$(zstdcat analysis.zst | jq 'select(.kind == "analysis") | .n_contexts')"

# ---- check ------------------------------------------------------------------------------------------------
printf '{"id": 9, "context": "x", "input": "y", "answer": []}\n{\n' >> moved/passkey.jsonl
"$program" data check moved lb --model "$model" > check.out
contains "check" '^infinitebench passkey: 4 questions about 4 contexts.*tokens' check.out
contains "check" 'odd: line 5: field "answer"' check.out
contains "check" 'odd: line 6: is not JSON' check.out
contains "check" '^infinitebench longbook_qa_eng: 3 questions about 1 contexts' check.out
contains "check" '^longbench hotpotqa: 1 questions' check.out
refused 2 'moved/passkey.jsonl: line 5: field "answer"' sweep sweep.yaml --log log.zst
mkdir empty
refused 2 'no file of a benchmark' data check empty
refused 2 'none of its files is there' run --model "$model" --task infinitebench:dir=empty,name=all --policy full --length 256 --log l.zst

# ---- multi_turn: questions behind the right answers before them ------------------------------------------------
keys='The pass key of Anna is 16728. The pass key of Bob is 99312. The pass key of Clara is 40551.\n'
ask() { printf '%sWhat is the pass key of %s? The pass key of %s is' "$1" "$2" "$2"; }
one=$(ask '' Bob) two=$(ask '\n' Anna) three=$(ask '\n' Clara)
printf '{"context": "%s", "turns": [{"q": "%s", "a": "99312"}, {"q": "%s", "a": "16728"}, {"q": "%s", "a": "40551"}]}\n' \
    "$keys" "$one" "$two" "$three" > turns.jsonl
printf '{"context": "%s", "q": "%s", "a": "%s"}\n' "$keys" "$one" 99312 "$keys$one 99312" "$two" 16728 \
    "$keys$one 99312$two 16728" "$three" 40551 > history.jsonl
printf '{context}{question}' > prompt.txt
cat > turns.yaml <<END
model: $model
tasks: [{task: jsonl, file: turns.jsonl, prompt: "@prompt.txt", turns: turns, question: q, answers: a, score: first_int, max_new: 12}]
lengths: [400]
contexts: 1
questions: 3
protocols: [multi_turn, multi_request]
policies: [full, snapkv, quest, h2o, {policy: infllm, prefill: own}]
budgets: [224]
END
predictions() { zstdcat "$1" | jq -c 'select(.kind == "sample") | [.cell, .question, .ids]' | sort; }
"$program" sweep turns.yaml --log turns.zst > out
"$program" run --model "$model" --policy full --length 400 --contexts 3 --log history.zst \
    --task jsonl:file=history.jsonl,prompt=@prompt.txt,question=q,answers=a,score=first_int,max_new=12 > out
full=$(zstdcat turns.zst | jq -r 'select(.kind == "cell" and .policy == "full" and .protocol == "multi_turn") | .cell')
expect "turns as histories" "$(zstdcat history.zst | jq -c 'select(.kind == "sample") | [.context, .ids]' | sort)" \
    "$(zstdcat turns.zst | jq -c --arg cell "$full" 'select(.kind == "sample" and .cell == $cell) | [.question, .ids]' | sort)"
expect "multi_request" 5 "$(zstdcat turns.zst | jq -r 'select(.kind == "cell") | .protocol' | grep -c question_after_compress)"
# One by one, and from the second question on.
"$program" sweep turns.yaml --log alone.zst --set batch=1 > out
expect "turns in batches of one" "$(predictions turns.zst)" "$(predictions alone.zst)"
zstdcat turns.zst | jq -c 'select(.kind != "cell" and (.kind != "sample" or .question == 1))' | zstd -q > half.zst
"$program" sweep turns.yaml --log half.zst > out
expect "turns that were answered before" "$(predictions turns.zst)" "$(predictions half.zst)"
refused 2 'quality.questions: 2 with protocol multi_turn' sweep turns.yaml --log q.zst --set 'quality={questions: 2}'
