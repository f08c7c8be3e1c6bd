#!/usr/bin/env bash
# test_official.sh - what leaves is what a benchmark's own scorer reads: exports are read by official.jq, which follows the
# scripts, and its number is the one that kvlab reports.  And what is not official says so wherever its number stands.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
model=$sources/datasets/model/kvlab-tiny.gguf
reader=$sources/tests/e2e/official.jq

fail() {
    echo "test_official: $*" >&2
    exit 1
}
expect() { [ "$2" = "$3" ] || fail "$1: want \"$2\", got \"$3\""; }
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in"$'\n'"$(head -n 60 "$3")"; }
# official FORM TASK FILE: percent, by the rules of the script
official() {
    jq -s --arg form "$1" --arg task "$2" -f "$reader" "$3" 2> err || fail "$1 $2 cannot be read: $(cat err)"
}
# near WHAT A B: equal as two decimals of percent are
near() { awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(d < 0.0051 && d > -0.0051) }' || fail "$1: the script has $2, kvlab $3"; }

# ---- rows of all tasks of the four benchmarks ----------------------------------------------------------------------
mkdir -p ib sc lb ru
text='The old river crossed the garden near the tower. Peyton lived there. '
row() { jq -cn --arg context "$text$text$text" "$@"; } # an object with that context
options='["tower", "river", "garden", "Peyton"]'
for i in 0 1 2 3; do
    row --argjson i $i '{id: $i, context: "\($context)The pass key is 7143\($i). \($context)", input: "What is the pass key?", answer: "7143\($i)", options: []}' >> ib/passkey.jsonl
    row --argjson i $i '{id: $i, context: "\($context)The pass key is 7143\($i). \($context)", input: "What?", answer: ["7143\($i)"], options: []}' >> ib/number_string.jsonl
    row --argjson i $i '{id: $i, context: $context, input: "Key \($i)?", answer: (if $i < 2 then "v\($i)" else ["v\($i)"] end), options: []}' >> ib/kv_retrieval.jsonl
    row --argjson i $i '{context: $context, input: "Who lived there \($i)?", answer: ["Peyton", "the tower"][0:1 + $i % 2], options: []}' >> ib/longbook_qa_eng.jsonl
    row --argjson i $i '{id: $i, context: $context, input: "谁\($i)？", answer: (if $i < 2 then ["你好世界"] else "你好世界" end), options: []}' >> ib/longbook_qa_chn.jsonl
    row --argjson i $i --argjson options "$options" '{id: $i, context: $context, input: "Where \($i)?", answer: (if $i < 2 then $options[$i] else [$options[$i]] end), options: $options}' >> ib/longbook_choice_eng.jsonl
    row --argjson i $i --argjson options "$options" '{id: $i, context: $context, input: "", answer: [$options[$i]], options: $options}' >> ib/code_debug.jsonl
    row --argjson i $i '{id: $i, context: "\($i) \($context)", input: "", answer: ["ACE"], options: []}' >> ib/longdialogue_qa_eng.jsonl
    row --argjson i $i '{id: $i, context: "\($i) \($context)", input: "", answer: (if $i < 2 then "zq summary" else ["zq summary"] end), options: []}' >> ib/longbook_sum_eng.jsonl
    row --argjson i $i '{id: $i, context: [$i, 3, 7.5], input: "The largest number of the list is", answer: (if $i < 2 then 7.5 else [3] end), options: []}' >> ib/math_find.jsonl
    row --argjson i $i '{id: $i, context: "1 + 2 + \($i)", input: "", answer: [1, 3, 3 + $i], options: []}' >> ib/math_calc.jsonl
    row --argjson i $i '{id: $i, context: "def func_\($i)(x): return 3", input: "What is func_\($i)(-1)?", answer: (if $i < 2 then 3 else [-17] end), options: []}' >> ib/code_run.jsonl
done
turns() { jq -cn --arg context "$text" "$@"; }
for i in 0 1; do
    pair='{multi_turns: [{input: "Key: a\nThe value is: ", answer: "1"}, {input: "Key: b\nThe value is: ", answer: "2"}]}'
    turns "{id: $i, context: \"\(\$context)$i\"} + $pair" >> sc/scbench_kv.jsonl
    turns "{id: $i, context: \"\(\$context)$i\"} + $pair" >> sc/scbench_prefix_suffix.jsonl
    turns "{id: $i, input: \$context, length: 100, multi_turns: [{input: \"Which $i? \", answer: [\"ABC\", \"DEF\", \"GHI\"]}, {input: \"And? \", answer: [\"ABC\"]}]}" >> sc/scbench_vt.jsonl
    turns "{id: $i, context: \$context, multi_turns: [{input: \"Who $i?\", answer: \"Peyton\"}, {input: \"Where?\", answer: \"tower\"}]}" >> sc/scbench_qa_eng.jsonl
    turns "{id: $i, context: \$context, multi_turns: [{input: \"谁$i？\", answer: \"你好世界\"}, {input: \"谁？\", answer: \"世界\"}]}" >> sc/scbench_qa_chn.jsonl
    turns --argjson options "$options" "{id: $i, context: \$context, multi_turns: [{input: \"Where $i?\", answer: \"tower\", options: \$options}, {input: \"Who?\", answer: \"Peyton\", options: \$options}]}" >> sc/scbench_choice_eng.jsonl
    turns "{id: $i, context: [$i, 3, 5], multi_turns: [{input: \"Say it. The largest number of the list is: \", answer: 5}, {input: \"Say it. The median number of the list is: \", answer: 3}]}" >> sc/scbench_mf.jsonl
    turns "{id: $i, task: \"date_understanding\", context: \$context, multi_turns: [{input: \"Q$i? Options: (A) x (B) y\", answer: \"(A)\"}]}" >> sc/scbench_many_shot.jsonl
    turns "{id: $i, context: \$context, multi_turns: [{input: \"Sum $i.\", answer: \"zq summary\"}]}" >> sc/scbench_summary.jsonl
    turns "{id: $i, lang: \"python\", repo: \"r\", context: \"def f():\n    pass\n\", multi_turns: [{input: \"The function $i.\", answer: \"def f():\n    pass\n\", name: \"f\"}]}" >> sc/scbench_repoqa.jsonl
    turns "{id: $i, context: \$context, multi_turns: [{input: \"Sum $i.\", answer: \"zq summary\", task: \"scbench_summary\"}, {input: \"The pass key is\", answer: \"71432\", task: \"scbench_passkey\"}]}" >> sc/scbench_summary_with_needles.jsonl
    turns "{id: $i, lang: \"python\", repo: \"r\", context: \"def f():\n    pass\n\", multi_turns: [{input: \"The function $i.\", answer: \"def f():\n    pass\n\", name: \"f\", task: \"scbench_repoqa\"}, {input: \"Key: a\", answer: \"1\", task: \"scbench_kv\"}]}" >> sc/scbench_repoqa_and_kv.jsonl
done
for task in hotpotqa gov_report trec samsum passage_count passage_retrieval_en lcc qasper_e; do
    for i in 0 1 2 3; do
        case $task in
        trec) answers='["Date"]' ;;
        passage_count) answers='["3"]' ;;
        passage_retrieval_en) answers='["Paragraph 7"]' ;;
        gov_report | samsum) answers='["Qeyton qiver"]' ;;
        *) answers='["Peyton", "the tower"]' ;;
        esac
        row --argjson i $i --argjson answers "$answers" '{input: "Question \($i)?", context: $context, answers: $answers, length: (3000 + 2500 * $i), all_classes: ["Date", "Dat", "City"], _id: "\($i)"}' >> lb/$task.jsonl
    done
done
for task in niah_single_1 qa_1; do
    mkdir -p ru/$task
    for i in 0 1; do
        row --argjson i $i '{index: (1271 + $i), input: "\($context)\nWhat is the special magic number? The special magic number is", outputs: ["7143\($i)", "Peyton"], length: 60} + if $i == 0 then {others: null} else {} end' >> ru/$task/validation.jsonl
    done
done

# ---- a sweep: the script's number for the export is that of the cell -------------------------------------------------
cat > sweep.yaml <<END
model: $model
tasks:
  - {task: infinitebench, dir: ib, names: all, max_new: 12}
  - {task: scbench, dir: sc, names: all, max_new: 12}
  - {task: longbench, dir: lb, names: all, max_new: 12}
  - {task: ruler, dir: ru, names: all, max_new: 12}
lengths: [640]
contexts: 4
questions: 2
protocols: [multi_turn]
policies: [full]
END
"$program" sweep sweep.yaml --log log.zst > out 2>&1 || fail "$(tail -n 3 out)"
# What the model says becomes an answer of every second row, so that scores are not all 0: prompts stay what they are.
zstdcat log.zst | jq -c 'select(.kind == "sample" and .row.form == "list" and .row.set == "longbook_qa_eng" or .row.set == "hotpotqa") | [.row.set, .row.line, .prediction]' > said
while read -r line; do
    set=$(jq -r '.[0]' <<< "$line") number=$(jq -r '.[1]' <<< "$line")
    file=ib/$set.jsonl
    [ -f "$file" ] || file=lb/$set.jsonl
    jq -c --argjson said "$line" --argjson at "$number" 'if input_line_number == $at and $at % 2 == 1
        then (if has("answers") then .answers else .answer end) = [$said[2], "x"] else . end' "$file" > changed
    mv changed "$file"
done < said
sed 's/names: all, max_new/names: [longbook_qa_eng], max_new/; /scbench/d; /ruler/d; /longbench/s/longbook_qa_eng/hotpotqa/' sweep.yaml > again.yaml
"$program" sweep again.yaml --log again.zst > out 2>&1 || fail "$(tail -n 3 out)"
zstdcat log.zst again.zst | jq -c 'select(.kind == "cell")' > cells
# exported FORM LOG: each file of the export, by both
exported() {
    local form=$1 n=0 path base task name cell ours
    "$program" export --as "$form" --out pred-"$2" "$2".zst > paths
    while read -r path; do
        base=$(basename "$path" .jsonl)
        task=${base#preds_} task=${task#prediction_scbench_} task=${task%_multi_turn}
        name=$task
        case $path in *_e/*) name=${task}_e ;; esac
        cell=$(zstdcat "$2".zst | jq -c --arg form "$form" --arg name "$name" 'select(.kind == "cell" and .task == $form and (.task_options | test("name=\($name)(,|$)")))')
        ours=$(jq '.official.p * 100' <<< "$cell")
        near "data score of $path" "$("$program" data score --as "$form" "$path" | awk -F'\t' 'NR == 2 { print $3 }')" "$ours"
        # Functions are told by BLEU, which is not ours; that the fields are there is seen all the same.  How alike code
        # is the reader does not know.
        case $task in
        lcc) ;;
        repoqa*) jq -se 'all(.lang == "python" and .repo == "r" and (.func_name == "f" or .task == "scbench_kv"))' "$path" > err ||
            fail "$path lacks what its scorer reads: $(head -n 1 "$path")" ;;
        *) near "$path" "$(official "$form" "$task" "$path")" "$ours" ;;
        esac
        n=$((n + 1))
    done < paths
    echo $n
}
for form in infinitebench:12 scbench:12 longbench:8 ruler:2; do
    expect "tasks of $form" "${form#*:}" "$(exported "${form%:*}" log)"
done
expect "tasks with answers that the model gives" "1 1" "$(exported infinitebench again) $(exported longbench again)"
jq -se 'map(.official.p) | max > 0.4' cells > out || fail "no task has a score"

# ---- answers of every kind under the same readers -----------------------------------------------------------------------
# said FORM TASK FILE TEXT...: the exported rows with each of these predictions, scored by both
said() {
    local form=$1 task=$2 file=$3
    shift 3
    jq -c '. as $row | $ARGS.positional[] as $answer
        | $row | if has("pred") then .pred = $answer else .prediction = $answer end' "$file" --args "$@" > doctored.jsonl
    near "$form $task: $*" "$(official "$form" "$task" doctored.jsonl)" \
        "$("$program" data score --as "$form" --name "$task" doctored.jsonl | awk -F'\t' 'NR == 2 { print $3 }')"
}
at=pred-log/kvlab-tiny/full-full-640-multi_turn
[ -d "$at" ] || at=$(dirname "$(ls pred-log/kvlab-tiny/*/preds_passkey.jsonl)")
for task in passkey number_string kv_retrieval; do
    said infinitebench $task $at/preds_$task.jsonl '71430 is it' 'a71431b' 'v0' 'v2.' 'it is v3;' ''
done
said infinitebench longbook_qa_eng $at/preds_longbook_qa_eng.jsonl 'Peyton' 'The Peyton tower.' 'P e y' 'nothing'
said infinitebench longbook_qa_chn $at/preds_longbook_qa_chn.jsonl '你好世界' '世界，你好' '好' 'x'
said infinitebench longdialogue_qa_eng $at/preds_longdialogue_qa_eng.jsonl 'ACE' 'it is ace.' 'A' 'nobody'
said infinitebench longbook_choice_eng $at/preds_longbook_choice_eng.jsonl 'A' 'B. river' 'the answer is: C' 'I say D' 'tower' ''
said infinitebench code_debug $at/preds_code_debug.jsonl 'A. x' 'the answer is: tower' 'Option B' 'is: D'
said infinitebench longbook_sum_eng $at/preds_longbook_sum_eng.jsonl 'zq summary' 'other words'
said infinitebench math_find $at/preds_math_find.jsonl '3' '3e3' '0x3' '7.5' 'it is 7' '3.0' '-3' ''
said infinitebench math_calc $at/preds_math_calc.jsonl '1, 3, 3' '[1, 3, 4]' '1 2 3' '1_3' 'none'
said infinitebench code_run $at/preds_code_run.jsonl '3' '-17' '+-17' 'x 3.' '+3' '1_7' 'three'
for task in kv prefix_suffix; do said scbench $task $at/prediction_scbench_${task}_multi_turn.jsonl '1' 'x12' 'v' ''; done
said scbench vt $at/prediction_scbench_vt_multi_turn.jsonl 'ABC' 'abc def' 'A B C' ''
said scbench qa_eng $at/prediction_scbench_qa_eng_multi_turn.jsonl 'peyton' 'a tower' 'zzz' ''
said scbench qa_chn $at/prediction_scbench_qa_chn_multi_turn.jsonl '你好世界' '世界' 'x'
said scbench choice_eng $at/prediction_scbench_choice_eng_multi_turn.jsonl 'A' 'D. Peyton' 'answer: A' 'river'
said scbench mf $at/prediction_scbench_mf_multi_turn.jsonl '5' '3' '3.9' '5e1' '0x5' ''
said scbench many_shot $at/prediction_scbench_many_shot_multi_turn.jsonl '(A)' 'nothing' '(B)' 'zzz'
said scbench summary $at/prediction_scbench_summary_multi_turn.jsonl 'zq summary' 'other words'
said ruler niah_single_1 $at/niah_single_1.jsonl '71430' 'peyton and 71431' 'x' ''
said ruler qa_1 $at/qa_1.jsonl '71430' 'peyton' 'x'
said longbench hotpotqa $at/hotpotqa.jsonl 'Peyton' 'The tower!' 'x'
said longbench trec $at/trec.jsonl $'\nDate\nCity' 'Dat, City' 'a Date or City'
said longbench passage_count $at/passage_count.jsonl '3' '3 or 4' 'no'
said longbench passage_retrieval_en $at/passage_retrieval_en.jsonl 'Paragraph 7' '7, 8' 'none'
said longbench gov_report $at/gov_report.jsonl 'Qeyton qiver' 'nothing'
said longbench lcc $at/lcc.jsonl 'Peyton'
# A perfect answer to a gold that stands by itself: the script goes through its letters.
jq -c '.prediction = .ground_truth' $at/prediction_scbench_qa_chn_multi_turn.jsonl > perfect.jsonl
head -n 1 perfect.jsonl > first.jsonl
expect "a perfect answer of qa_chn" "40.00 100.00" "$("$program" data score --as scbench --name qa_chn first.jsonl | awk -F'\t' 'NR == 2 { print $3, $4 }')"
# LongBench-E: the script's three ranges, from the folder that is its own.
"$program" data score --as longbench ${at}_e/qasper.jsonl > bins
expect "ranges of LongBench-E" "  length 0-4k 1,  length 4-8k 1,  length 8k+ 2" "$(awk -F'\t' '/length/ { printf "%s%s %s", s, $1, $2; s = "," }' bins)"
# Integers of any length leave as they came.
big='{"id": 0, "context": "def func_1(x): return 3", "input": "What is func_1(1)?", "answer": 123456789012345678901234567890, "options": []}'
mkdir big
printf '%s\n' "$big" > big/code_run.jsonl
"$program" run --model "$model" --task infinitebench:dir=big,name=code_run --policy full --length 400 --contexts 1 --log big.zst > out
"$program" export --as infinitebench --out bigs big.zst > paths
contains "an integer of 30 digits" '"ground_truth": 123456789012345678901234567890}' "$(cat paths)"
sed -i 's/"prediction": "[^"]*"/"prediction": "it is 123456789012345678901234567890."/' "$(cat paths)"
expect "its score" 100.00 "$("$program" data score --as infinitebench "$(cat paths)" | awk -F'\t' 'NR == 2 { print $3 }')"

# ---- not official: said wherever the number stands ---------------------------------------------------------------------
mkdir zh
row '{input: "谁？", context: $context, answers: ["你好世界"], length: 1, all_classes: null, _id: "0"}' | tee zh/dureader.jsonl zh/multifieldqa_zh.jsonl > zh/vcsum.jsonl
"$program" run --model "$model" --task longbench:dir=zh,name=all,max_new=4 --policy full,snapkv --budget 64 --length 300 --contexts 1 --log zh.zst > out
"$program" report zh.zst > out
expect "tables" 3 "$(grep -c '! not official, a score of kvlab.s: Chinese words' out)"
expect "headlines" 3 "$(grep -c '^kvlab-tiny  longbench(name=[a-z_,=0-9]*) \[not official\]' out)"
expect "columns" 3 "$(grep -c '^ *policy .* not official %' out)"
expect "cells" 6 "$("$program" export zh.zst --format jsonl | jq -r .not_official | grep -c jieba)"
expect "samples" 6 "$("$program" export zh.zst --kind sample --format jsonl | jq -r .not_official | grep -c jieba)"
"$program" report zh.zst --html zh.html > out
contains "the page" 'not official</b>, a score of kvlab.s: Chinese words' zh.html
contains "the page" '\[not official\]' zh.html
"$program" compare full snapkv zh.zst > out || true
contains "compare" '\[not official\]' out
"$program" data check zh > out
expect "data check" 3 "$(grep -c 'not official: Chinese words' out)"
"$program" describe longbench > out
expect "describe" 3 "$(grep -c '^not official  the scores of' out)"
"$program" describe scbench > out
contains "describe" 'not official +the scores of repoqa: ' out
"$program" export --as longbench --out zhs zh.zst > paths
"$program" data score --as longbench $(cat paths) > out
expect "data score" 6 "$(grep -c 'not official: Chinese words' out)"
"$program" report log.zst > out
expect "official tables" "" "$(grep -E '\[not official\]' out | grep -vE 'repoqa|summary_with_needles' || true)"
