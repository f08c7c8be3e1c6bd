#!/usr/bin/env bash
# test_show.sh - kvlab show: the prompt of an answer is the one that was sent, since the model, given its tokens, says
# again what the log has; the template is told from the rest; nothing of a log acts on a terminal.
#   $1 the program, $2 the sources
set -euo pipefail
program=$1
source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"
command -v jq >/dev/null || { echo "test_show: skipped, no jq"; exit 77; }
cd "$work"

with_template "$model" chat.gguf "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
show() { "$program" show "$@" 2>err || fail "show $*"; }
refuse() { # refuse CODE PATTERN WORD...
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" show "$@" >out 2>err || rc=$?
    equal "exit code of show $*" "$code" $rc
    equal "lines of the message of show $*" 1 "$(wc -l <err)"
    grep -qE "$pattern" err || fail "message of show $*: want $pattern"
}

"$program" run --model chat.gguf --threads 1 --quiet --task passkey:keys=2 --length 256 --contexts 2 --questions 2 \
    --policy full --policy quest --budget 64 --protocol question_in_prefill,multi_turn --chat chatml --system "Be brief." \
    --log chat.zst >out 2>err || fail "a sweep"
"$program" run --model "$model" --threads 1 --quiet --task kv_retrieval --length 300 --contexts 2 --questions 1 \
    --policy full --protocol question_after_compress --log raw.zst >out 2>err || fail "a sweep without a template"

# ---- the prompt is what was sent: the same tokens, the same answer ------------------------------------------
tried=0
for log in chat raw; do
    file=chat.gguf
    [ $log = chat ] || file=$model
    lines_of $log.zst | jq -sr '(map(select(.kind == "cell" and .policy == "full").cell)) as $full | .[] |
        select(.kind == "sample" and (.cell | IN($full[]))) | "\(.cell) \(.context) \(.question) \(.ids | length)"' >answers
    while read -r cell context question n; do
        show $log.zst "$cell" --context "$context" --question "$question" --ids >ids
        "$program" generate --model "$file" --ids "$(tr ' ' , <ids)" -n "$n" --show-ids --threads 1 >said 2>err </dev/null ||
            fail "generate from the ids of $log $cell"
        lines_of $log.zst | jq -r --arg cell "$cell" --argjson c "$context" --argjson q "$question" \
            'select(.kind == "sample" and .cell == $cell and .context == $c and .question == $q).ids | map(tostring) | join(" ")' >want
        equal "answer to the prompt of $log $cell, context $context, question $question" "$(cat want)" "$(tr ', ' '  ' <said)"
        tried=$((tried + 1))
    done <answers
done
equal "answers tried" 10 $tried

# From another folder than that of the sweep: names of files are those of a folder above the log.
mkdir -p sweeps/out elsewhere
cp chat.zst sweeps/out
printf '{"context": "The door is blue. ", "question": "Which door?", "answers": ["blue"]}\n' >sweeps/rows.jsonl
cp chat.gguf sweeps/one.gguf
(cd sweeps && "$program" run --model one.gguf --threads 1 --quiet --task "jsonl:file=rows.jsonl" --length 64 --contexts 1 --policy full \
    --log out/rows.zst) >out 2>err || fail "a sweep of a file"
rows=$(lines_of sweeps/out/rows.zst | jq -r 'select(.kind == "cell").cell')
(cd elsewhere && "$program" show ../sweeps/out/rows.zst "$rows") >out 2>err || fail "show from another folder"
grep -q 'those that were sent (by their hash)$' out || fail "the hash, from another folder"
(cd elsewhere && "$program" show ../sweeps/out/rows.zst "$rows" --model ../sweeps/one.gguf) >out 2>err || fail "show from another folder, with the model"
grep -q 'The door is blue' out || fail "the rows, from another folder"
mv sweeps/one.gguf elsewhere
refuse 2 '^kvlab: the model of the log .*one\.gguf: cannot open' sweeps/out/rows.zst "$rows"

# ---- what is printed -------------------------------------------------------------------------------------------
equal "cells listed" 4 "$(show chat.zst | wc -l)"
cell=$(lines_of chat.zst | jq -r 'select(.kind == "cell" and .policy == "quest" and .protocol == "question_in_prefill").cell')
show chat.zst "${cell:0:12}" >out
grep -q "^prompt  .* those that were sent (by their hash)$" out || fail "the hash"
grep -qE '^method    quest\(page=16,.*, budget 64$' out || fail "the method"
grep -qE '^kept      a step attends to [0-9.]+ tokens per lane of a prompt of [0-9]+; [0-9]+ bytes .* of the evidence' out || fail "what was kept"
equal "parts" "template
context
question
template, and how the answer begins" "$(sed -n 's/^--- \(.*\), tokens .*/\1/p' out)"
sed -n '/^--- template, tokens/,/^--- context/p' out | grep -q 'Be brief\.' || fail "the system text is the template's"
sed -n '/^--- context/,/^--- question/p' out >part
grep -q 'pass key' part || fail "the context"
! grep -q 'im_start' part || fail "the template in the context"
sed -n '/^--- template, and/,/^--- answer/p' out | grep -q 'assistant' || fail "the answer's turn"
# Evidence is where the text says.
read -r first last text < <(sed -n 's/^evidence  tokens \([0-9]*\) to \([0-9]*\): /\1 \2 /p' out)
show chat.zst "$cell" --ids | tr ' ' '\n' | sed -n "$((first + 1)),$((last + 1))p" >ids
equal "tokens of the evidence" "$text" "$("$program" tokenize --model chat.gguf --decode --continue ids | sed 's/^ //')"
grep -qE '^why       the answer (has|lacks) the gold text; scored again: official [01], strict [01] ' out || fail "why"
equal "score" "$(lines_of chat.zst | jq -r --arg c "$cell" 'select(.kind == "sample" and .cell == $c and .context == 0 and .question == 0) | "\(.official + 0) \(.strict + 0)"')" \
    "$(awk '/^official/ { o = $2 } /^strict/ { print o, $2 }' out)"
cell=$(lines_of chat.zst | jq -r 'select(.kind == "cell" and .policy == "full" and .protocol == "multi_turn").cell')
show chat.zst "$cell" --question 1 >out
grep -q '^--- earlier turns, tokens' out || fail "earlier turns"

# ---- a log of somebody else ------------------------------------------------------------------------------------
lines_of raw.zst | jq -c 'if .kind == "sample" then .prediction = "a\u001b]0;x\u0007b\u009bc" | .prompt_hash = "0" else . end' | zstd -q >evil.zst
cell=$(lines_of raw.zst | jq -r 'select(.kind == "cell").cell')
show evil.zst "$cell" >out
! LC_ALL=C grep -q $'[\x1b\x07]\|\xc2\x9b' out || fail "a control character reaches the terminal"
grep -q '^a\\x1b\]0;x\\x07b\\x9bc$' out || fail "what it was is shown"
grep -q '^prompt .* NOT those that were sent' out || fail "another hash"
refuse 2 'no cell zz, see kvlab show raw.zst' raw.zst zz
refuse 2 'has no such answer' raw.zst "$cell" --question 7
refuse 2 'want kvlab show LOG' --ids
mv chat.gguf away.gguf
cell=$(lines_of chat.zst | jq -r 'select(.kind == "cell" and .policy == "full").cell' | head -n 1)
refuse 3 'another place of it: --model FILE' chat.zst "$cell"
show chat.zst "$cell" --model away.gguf >out
grep -q 'those that were sent (by their hash)' out || fail "a model elsewhere"
lines_of chat.zst | jq -c 'select(.kind != "cell")' | zstd -q >part.zst
refuse 2 'is not complete yet' part.zst "$cell"

# Options with line feeds and quotes come back, and a context that is none is refused.
printf '%s\n' '{"context":"The code of Bob is 17.","question":"What is \"the code\" of Bob?","answers":["17"]}' >rows.jsonl
"$program" run --model "$model" --threads 1 --quiet --task 'jsonl:file=rows.jsonl' --length 200 --contexts 1 --policy full \
    --log rows.zst >out 2>err || fail "a sweep of a file"
cell=$(lines_of rows.zst | jq -r 'select(.kind == "cell").cell')
show rows.zst "$cell" >out
grep -q '^What is "the code" of Bob?$' out || fail "the question of a file"
for context in -1 1e300 null; do
    lines_of rows.zst | jq -c --argjson c $context 'if .kind == "sample" then .context = $c else . end' | zstd -qf >bad.zst
    refuse 5 'no such context' bad.zst "$cell"
done
