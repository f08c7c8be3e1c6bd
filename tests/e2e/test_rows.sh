#!/usr/bin/env bash
# test_rows.sh - rows of benchmarks' files as their scripts read them: lines, fields that are null or missing, the questions
# of a row, the text of later questions, and the cut in a chat template.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
model=$sources/datasets/model/kvlab-tiny.gguf

fail() {
    echo "test_rows: $*" >&2
    exit 1
}
expect() { [ "$2" = "$3" ] || fail "$1: want \"$2\", got \"$3\""; }
contains() { grep -qE -- "$2" "$3" || fail "$1: no \"$2\" in"$'\n'"$(head -n 40 "$3")"; }

# ---- lines -----------------------------------------------------------------------------------------------------------
hotpot() { printf '{"input": "q%s?", "context": "context %s Anna", "answers": ["Anna"], "length": 1, "all_classes": null, "_id": "%s"}' "$1" "$1" "$1"; }
# lines NAME WANT TEXT: what data check says of such a file
lines() {
    mkdir -p "$1"
    printf '%b' "$3" > "$1"/hotpotqa.jsonl
    "$program" data check "$1" > check.out || true
    contains "$1" "$2" check.out
}
lines cr '^longbench hotpotqa: 3 questions' "$(hotpot 0)\r$(hotpot 1)\r$(hotpot 2)"
lines crlf '^longbench hotpotqa: 2 questions' "$(hotpot 0)\r\n\r\n$(hotpot 1)\r\n"
lines two 'odd: line 1: has more behind its first value, at byte [0-9]+' "$(hotpot 0) $(hotpot 1)\n$(hotpot 2)\n"
lines tail 'odd: line 2: has more behind its first value' "$(hotpot 0)\n$(hotpot 1) x\n"
# What is no UTF-8 has no letters to compare: it is refused with its place, in the file and as a question of a sweep.
lines latin 'odd: line 2: byte 15 \(0xe9\) is no UTF-8' "$(hotpot 0)\n{\"input\": \"caf\\xe9?\", \"context\": \"c\", \"answers\": [\"x\"]}\n"
printf '{"context": "c", "question": "caf\xe9", "answers": ["x"]}\n' > latin.jsonl
"$program" run --model "$model" --task jsonl:file=latin.jsonl --policy full --length 128 --contexts 1 --log l.zst 2> err && fail "a row of Latin-1 is taken"
contains "Latin-1" 'latin.jsonl: line 1: byte 34 \(0xe9\) is no UTF-8' err
printf '{"context": "c", "question": "q", "answers": [""]}\n' > none.jsonl
"$program" run --model "$model" --task jsonl:file=none.jsonl,score=substring --policy full --length 128 --contexts 1 --log l.zst 2> err && fail "an answer of no text is taken"
contains "an empty answer" 'none.jsonl: line 1: .*"answers"' err
lines array 'odd: has more behind its list' "[$(hotpot 0)]\nx"
lines escape 'odd: line 2: is not JSON at byte 3' "$(hotpot 0)\n{\"\\\\x41\": 1}\n"
lines control 'odd: line 2: is not JSON' "$(hotpot 0)\n{\"a\tb\": 1}\n"
lines number 'odd: line 2: is not JSON' "$(hotpot 0)\n{\"length\": 01}\n"
# Of members with one name the last counts, also where it is spelled with an escape.
mkdir last
printf '{"input": "first?", "context": "a", "answers": ["x"], "\\u0069nput": "last?", "length": 1, "all_classes": null, "answers": ["Anna"]}\n' > last/hotpotqa.jsonl
"$program" run --model "$model" --task longbench:dir=last,name=hotpotqa,max_new=2 --policy full --length 300 --contexts 1 --log last.zst > out
expect "the last of two members" Anna "$(zstdcat last.zst | jq -r 'select(.kind == "sample") | .gold')"
printf '{"pred": "x", "answers": ["x"]} {"pred": "y", "answers": ["x"]}\n' > hotpotqa.jsonl
"$program" data score --as longbench hotpotqa.jsonl > out 2> err && fail "predictions with two objects on a line are scored"
contains "predictions" 'line 1: has more behind' err
# A folder may be called as it likes.
mkdir -p parquet/damaged
hotpot 0 > parquet/damaged/hotpotqa.jsonl
"$program" data check parquet/damaged > out
expect "lines about a folder named parquet" "2" "$(wc -l < out)"
# Choices that nobody sees are refused.
printf '{"context": "c", "question": "q", "answers": ["x"], "o": ["x", "y"]}\n' > own.jsonl
"$program" run --model "$model" --task jsonl:file=own.jsonl,choices=o --policy full --length 128 --contexts 1 --log l.zst 2> err && fail "choices= without {choices} is taken"
contains "choices" 'choices=o: the prompt does not show them, want \{choices\}' err

# ---- fields that are null, missing or of another kind: an odd row or none, never an end ---------------------------------
valid() { # FILE OBJECT
    mkdir -p "$(dirname "good/$1")"
    printf '%s\n' "$2" > "good/$1"
}
turn='{"input": "What is it? The largest number is", "answer": "x", "options": ["x", "y", "z", "w"], "name": "f", "task": "scbench_kv"}'
valid longbench/trec.jsonl '{"input": "q", "context": "c", "answers": ["x"], "all_classes": ["x", "y"], "length": 1, "_id": "0"}'
valid longbench_v2/data.jsonl '{"_id": "0", "question": "q", "context": "c", "answer": "A", "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "difficulty": "easy", "length": "short", "domain": "x", "sub_domain": "y"}'
valid infinitebench/longbook_choice_eng.jsonl '{"id": 0, "context": "c", "input": "q", "answer": ["x"], "options": ["x", "y", "z", "w"]}'
valid ruler/qa_1/validation.jsonl '{"index": 0, "input": "c\nQuestion: q Answer:", "outputs": ["x"], "length": 9, "others": {"id": 1}, "answer_prefix": " A"}'
valid scbench/scbench_choice_eng.jsonl "{\"id\": 0, \"context\": \"c\", \"multi_turns\": [$turn, $turn]}"
valid scbench2/scbench_vt.jsonl "{\"id\": 0, \"input\": \"c\", \"multi_turns\": [$turn]}"
valid scbench3/scbench_repoqa_and_kv.jsonl "{\"id\": 0, \"context\": \"c\", \"lang\": \"l\", \"repo\": \"r\", \"multi_turns\": [$turn]}"
valid babilong/qa1/4k.json '[{"input": "c", "question": "q", "target": "office"}]'
valid clongeval/key_passage_retrieval/small.jsonl '{"id": 0, "context": "c", "query": "q", "answer": "x"}'
valid kv_files/kv-retrieval-75_keys.jsonl '{"ordered_kv_records": [["k", "v"], ["l", "w"]], "key": "k", "value": "v"}'
valid two_stage_file/2stage.jsonl '{"prompt": "c\nThe equation is 1 + 1", "answers": ["red"]}'
valid mrcr/2needle.jsonl '{"prompt": "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"user\", \"content\": \"r\"}]", "answer": "zx", "random_string_to_prepend": "z"}'
valid longmemeval/longmemeval_s.json '[{"question_id": "q", "question": "Which?", "answer": "x", "question_date": "d", "haystack_dates": ["d"], "haystack_session_ids": ["s"], "haystack_sessions": [[{"role": "user", "content": "x", "has_answer": true}]], "answer_session_ids": ["s"]}]'
valid helmet/json_kv/test_k105_dep6.jsonl '{"context": "c", "question": "q", "answer": "x", "demos": [["a", "b"], ["c", "d"]]}'
valid helmet2/ruler/niah_multivalue/validation_8192.jsonl '{"context": "c", "outputs": ["x"], "type_needle_v": "number", "query": "q"}'
mutants='[paths] as $p | . as $row | range($p | length) as $i
    | (null, 7, "", [], {}, [null], delete) as $v | $row | setpath($p[$i]; $v)'
mutants=${mutants/, delete/}
find good -type f | while read -r file; do
    name=${file#good/} base=${file#good/}
    mkdir -p "bad/$(dirname "$name")"
    case $name in
    *.json) jq -c "[.[0] | $mutants]" "$file" > "bad/$name" ;;
    *) jq -c "$mutants" "$file" > "bad/$name" ;;
    esac
    "$program" data check "good/${base%%/*}" --model "$model" > out 2> err || fail "$name: $(cat out err)"
    grep -q odd: out && grep -vq 'do not stand in\|than are generated' <(grep odd: out) && fail "$name: $(cat out)"
    rc=0
    "$program" data check "bad/${base%%/*}" --model "$model" > out 2> err || rc=$?
    [ $rc = 0 ] || fail "$name with fields of other kinds ends data check with $rc: $(cat err)"
    if grep -q 'out of memory' out err; then fail "$name: $(grep -h 'out of memory' out err)"; fi
    grep -q 'odd: line\|odd: [0-9]* rows more' out || fail "$name: no row is odd: $(cat out)"
done

# ---- the questions of a row are one context ---------------------------------------------------------------------------
mkdir sc
printf '{"id": 0, "input": "VAR ABC = 1. VAR DEF = ABC. ", "multi_turns": [{"input": "Question: which are 1? ", "answer": ["ABC", "D\\"E'"'"'F"]}, {"input": "Question: which are 2? ", "answer": ["GHI"]}, {"input": "Question: which are 3? ", "answer": ["GHI"]}]}\n' > sc/scbench_vt.jsonl
printf '{"id": 0, "context": [1, 2, 5], "multi_turns": [{"input": "Say it. The largest number of the list is: ", "answer": 5}, {"input": "Say it. The median number of the list is: ", "answer": 2}, {"input": "Say it. The smallest number of the list is: ", "answer": 1}]}\n' > sc/scbench_mf.jsonl
printf '{"id": 0, "context": "Anna lives here.", "multi_turns": [{"input": "Who?", "answer": "x", "options": ["x", "y", "z", "w"]}, {"input": "Where?", "answer": "y", "options": ["x", "y", "z", "w"]}]}\n' > sc/scbench_choice_eng.jsonl
"$program" data check sc > out
contains "vt" 'scbench vt: 3 questions about 1 contexts' out
contains "mf" 'scbench mf: 3 questions about 1 contexts' out
# A turn is the text that the scripts make: each later question behind the right answers before it.  The same texts in one
# piece have the same tokens, so that the model says the same.
text() { jq -cn --arg t "$1" '{context: "", text: $t}'; }
vt='VAR ABC = 1. VAR DEF = ABC. '
t1=$vt$'\n\nQuestion: which are 1? ' said="['ABC', 'D\"E\\'F']"
t2=$t1$said$'\n\nQuestion: which are 2? ' t3=$t1$said$'\n\nQuestion: which are 2? '"['GHI']"$'\n\nQuestion: which are 3? '
m1=$'What is the largest number of the list?\n\n[1, 2, 5]\n\nSay it. The largest number of the list is: '
m2=$m1$'5\n\nWhat is the median number of the list?\n\nSay it. The median number of the list is: '
m3=$m2$'2\n\nWhat is the smallest number of the list?\n\nSay it. The smallest number of the list is: '
abcd=$'\nA. x\nB. y\nC. z\nD. w\n\n'
c1=$'Read the book and answer the question.\n\nAnna lives here.\n\nQuestion: Who?'$abcd'The the correct answer is'
c2=${c1}$'x\n\nQuestion: Where?'$abcd'The letter of the correct answer is'
for t in "$t1" "$t2" "$t3" "$m1" "$m2" "$m3" "$c1" "$c2"; do jq -cn --arg t "$t" '{c: "", t: $t, answers: ["x"]}'; done > history.jsonl
cat > turns.yaml <<END
model: $model
tasks: [{task: scbench, dir: sc, names: [vt, mf, choice_eng], max_new: 6}]
lengths: [400]
contexts: 1
questions: 3
protocols: [multi_turn]
policies: [full]
END
"$program" sweep turns.yaml --log turns.zst > out 2>&1 || fail "$(tail -n 2 out)"
"$program" run --model "$model" --policy full --length 400 --contexts 8 --log history.zst \
    --task "jsonl:file=history.jsonl,prompt={t},context=c,question=t,answers=answers,score=exact,max_new=6" > out 2>&1 || fail "$(tail -n 2 out)"
ids() { zstdcat "$1" | jq -c 'select(.kind == "sample") | [.row.set, .context, .question, .ids]' | sort | jq -c '.[3]'; }
for set in vt mf choice_eng; do zstdcat turns.zst | jq -c --arg set $set 'select(.kind == "sample" and .row.set == $set) | [.question, .ids]' | sort; done | jq -c '.[1]' > turn_ids
zstdcat history.zst | jq -c 'select(.kind == "sample") | [.context, .ids]' | sort | jq -c '.[1]' > history_ids
cmp turn_ids history_ids || fail "turns answer $(tr '\n' ' ' < turn_ids), their texts in one piece $(tr '\n' ' ' < history_ids)"

# ---- the cut in a chat template: LongBench's text is cut to the length, and the template comes around it ------------------
words=$(seq -s ' ' 1 300)
mkdir cut
jq -cn --arg c "$words" '{input: "Who?", context: $c, answers: ["x"], length: 1, all_classes: null, _id: "0"}' > cut/hotpotqa.jsonl
ask() { "$program" run --model "$model" --policy full --contexts 1 --log "$1" --task "$2" --length "$3" --chat chatml > out 2>&1 || fail "$(tail -n 2 out)"; }
prompt() { zstdcat "$1" | jq -r 'select(.kind == "sample") | .context_tok + .question_tok'; }
for length in 300 301; do
    "$program" run --model "$model" --policy full --contexts 1 --log plain$length.zst --task longbench:dir=cut,name=hotpotqa,max_new=2 --length $length --chat none > out
    ask chat$length.zst longbench:dir=cut,name=hotpotqa,max_new=2 $length
done
expect "tokens of the text" "$(prompt plain300.zst)" 300
[ "$(prompt chat300.zst)" -gt 300 ] || fail "the template counts within the length: $(prompt chat300.zst) tokens"
