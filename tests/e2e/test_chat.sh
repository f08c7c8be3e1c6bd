#!/usr/bin/env bash
# test_chat.sh - chat templates from outside: which one a file has, sweeps and generate with and without.
set -euo pipefail
program=$1 source_dir=$2
. "$source_dir/tests/e2e/sweep_lib.sh"
tiny=$source_dir/datasets/model/kvlab-tiny.gguf

with_template "$tiny" "$work/vicuna.gguf" "$vicuna"
with_template "$tiny" "$work/unknown.gguf" "### Instruction: {{ messages | shout }}"

inspected() {
    "$program" inspect "$1" | sed -n 's/^chat template */chat template: /p'
}
equal "no template" "chat template: none; prompts are raw text" "$(inspected "$tiny")"
own=$(inspected "$work/vicuna.gguf" | grep -o 'own-[0-9a-f]*')
equal "a template" "chat template: $own: the file's own is run" "$(inspected "$work/vicuna.gguf")"
equal "one that cannot be run" "chat template: cannot be run, want chat: none, or a name" \
    "$(inspected "$work/unknown.gguf" | sed 's/ (.*//')"

# run LOG MODEL FLAGS: passkey under full attention, all protocols
run() {
    local log=$1 model=$2
    shift 2
    "$program" run --threads 1 --quiet --log "$work/$log.zst" --model "$model" -t passkey -P full,snapkv \
        --budget 64 --length 512 --contexts 2 \
        --protocol question_in_prefill,question_after_compress,question_as_decode "$@" 2>"$work/err"
}
records() {
    zstd -dcq "$work/$1.zst" | jq -c "$2"
}
cells='select(.kind == "cell" and .policy == "full")'
run auto "$work/vicuna.gguf"
equal "template of the cells" "\"$own\"" "$(records auto "$cells | .chat" | sort -u)"
equal "system text" null "$(records auto "$cells | .system" | sort -u)"
equal "answers in a template" 1 "$(records auto "$cells | .official.p" | sort -u | cut -d . -f 1)"
equal "evidence in a template" 1 "$(records auto "$cells | .recall.mean" | sort -u | cut -d . -f 1)"
equal "length with a template" 512 "$(records auto 'select(.kind == "sample") | .context_tok' | sort -u)"
equal "prompts of a context are the same for all" 2 \
    "$(records auto 'select(.kind == "sample") | .prompt_hash' | sort -u | wc -l)"

# The same by name, whatever the file has; raw text has the ids that it had without templates.
run name "$tiny" --chat vicuna
equal "prompts by name" "$(records auto 'select(.kind == "sample") | .prompt_hash' | sort -u)" \
    "$(records name 'select(.kind == "sample") | .prompt_hash' | sort -u)"
run raw "$tiny"
run none "$tiny" --chat none
equal "raw text" '"none"' "$(records raw "$cells | .chat" | sort -u)"
equal "cells of raw text" "$(records raw '.cell | strings' | sort -u)" "$(records none '.cell | strings' | sort -u)"
[ -z "$(records raw '.key | strings | select(contains("chat"))')" ] || fail "raw text has a chat in its key"
run system "$tiny" --chat vicuna --system "Answer, </s> in short."
equal "system text of the cells" '"Answer, </s> in short."' "$(records system "$cells | .system" | sort -u)"
comm -12 <(records auto '.cell | strings' | sort -u) <(records system '.cell | strings' | sort -u) >"$work/both"
[ ! -s "$work/both" ] || fail "a system text does not change cells"

# Tables.
cat "$work"/{auto,raw,system}.zst >"$work/all.zst"
"$program" report "$work/all.zst" >"$work/table"
equal "lines under tables" 6 "$(grep -cE "^  chat template: (vicuna|$own)" "$work/table")"
equal "with a system text" 3 "$(grep -c 'vicuna, system text: "Answer, </s> in short."' "$work/table")"
equal "tables" 9 "$(grep -c 'not run here' "$work/table")"

# What cannot be is one line.
refused() {
    local want=$1
    shift
    if "$@" >"$work/out" 2>"$work/err"; then fail "not refused: $*"; fi
    equal "lines of: $*" 1 "$(wc -l <"$work/err")"
    grep -qF "$want" "$work/err" || fail "no \"$want\""
}
refused 'want chat: none, or one of phi-4, chatml,' "$program" run --log "$work/x.zst" \
    --model "$work/unknown.gguf" -t passkey -P full --length 512
refused 'did you mean "vicuna"' "$program" run --log "$work/x.zst" --model "$tiny" -t passkey -P full --length 512 \
    --chat vicunia
run unknown "$work/unknown.gguf" --chat none
"$program" run --quiet --log "$work/text.zst" --model "$work/unknown.gguf" -t perplexity -P full --length 512 \
    --contexts 1 2>"$work/err" || fail "a text was refused for its template"

# generate: a continuation, or a question in the template.
ask=(--model "$work/vicuna.gguf" --prompt "The pass key is 12345." -n 4)
plain=$("$program" generate "${ask[@]}" --show-ids)
equal "none is the default" "$plain" "$("$program" generate "${ask[@]}" --chat none --show-ids)"
chat=$("$program" generate "${ask[@]}" --chat auto --show-ids)
[ "$plain" != "$chat" ] || fail "generate is the same in a template"
full="$system USER: The pass key is 12345. ASSISTANT:"
equal "the template of generate" "$chat" \
    "$("$program" generate --model "$tiny" --prompt "$full" -n 4 --show-ids)"
refused 'goes with --prompt' "$program" generate --model "$tiny" --ids 1,2 --chat auto
refused 'without a chat template' "$program" generate --model "$tiny" --prompt x --chat auto --system y

# multi_turn: each right answer ends its turn, the next question is a turn of the user; the answer is that to the
# same tokens in one prompt.
keys='The pass key of Anna is 16728. The pass key of Bob is 99312. The pass key of Clara is 40551.\n'
printf '{"context": "%s", "turns": [{"q": "Bob?", "p": " His key is", "a": "99312"}, {"q": "\\nAnna?", "a": "16728"}, {"q": "\\nClara?", "p": " Her key is", "a": "40551"}]}\n' \
    "$keys" >"$work/turns.jsonl"
printf '{context}{question}' >"$work/prompt.txt"
"$program" run --threads 1 --quiet --log "$work/turns.zst" --model "$tiny" --chat vicuna --length 400 --contexts 1 \
    --questions 3 --protocol multi_turn -P full,snapkv,quest,infllm:prefill=own --budget 96 --task \
    "jsonl:file=$work/turns.jsonl,prompt=@$work/prompt.txt,turns=turns,question=q,answer_prefix=p,answers=a,score=first_int,max_new=8"
ids() { # TEXT: of a text that goes on
    printf '%b' "$1" | "$program" tokenize -m "$tiny" --continue --ids - | tr ' ' ,
}
one=1,$(ids "$system USER:"),$(ids " $keys"),$(ids "Bob?"),$(ids " ASSISTANT:"),$(ids " His key is")
two=$one,$(ids " 99312"),2,$(ids "USER:"),$(ids " \nAnna?"),$(ids " ASSISTANT:")
three=$two,$(ids " 16728"),2,$(ids "USER:"),$(ids " \nClara?"),$(ids " ASSISTANT:"),$(ids " Her key is")
for prompt in "$one" "$two" "$three"; do
    "$program" generate --model "$tiny" --ids "$prompt" -n 8 --show-ids
done >"$work/want"
full=$(records turns 'select(.kind == "cell" and .policy == "full") | .cell')
records turns "select(.kind == \"sample\" and .cell == $full) | .ids" >"$work/got"
equal "answers of turns" "$(tr -dc '0-9\n' <"$work/want")" "$(tr -dc '0-9\n' <"$work/got")"
equal "turns of all policies" 12 "$(records turns 'select(.kind == "sample" and .error == null) | .cell' | wc -l)"
