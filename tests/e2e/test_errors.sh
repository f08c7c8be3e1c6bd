#!/usr/bin/env bash
# test_errors.sh - bad input: one line that names file, key, value and what would be right, and the
# exit code that says of what kind it is.  The expected lines stand in this file, word for word.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
ln -s "$model" m.gguf
sweep_file 1 | sed 's|^model:.*|model: m.gguf|' >s.yaml
n_lines=0

# refuse CODE LINE ARGUMENTS...: the program ends with CODE and says exactly "kvlab: LINE".
refuse() {
    local code=$1 line=$2 rc=0
    shift 2
    "$program" "$@" >stdout 2>err </dev/null || rc=$?
    [ $rc = "$code" ] || fail "kvlab $*: exit code $rc, want $code"
    equal "kvlab $*" "kvlab: $line" "$(cat err)"
    [ ! -s stdout ] || fail "kvlab $*: prints something on standard output"
    n_lines=$((n_lines + 1))
}

# refuse_like CODE PATTERN ARGUMENTS...: the same for lines with parts that machines decide.
refuse_like() {
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" "$@" >stdout 2>err </dev/null || rc=$?
    [ $rc = "$code" ] || fail "kvlab $*: exit code $rc, want $code"
    [ "$(wc -l <err)" = 1 ] || fail "kvlab $*: not one line: $(cat err)"
    grep -Eqx -- "kvlab: $pattern" err || fail "kvlab $*: $(cat err)"
    n_lines=$((n_lines + 1))
}

# ---- commands and options -----------------------------------------------------------------------

refuse 2 'no command, see kvlab --help'
refuse 2 'swep: no such command, did you mean "sweep"?' swep
refuse 2 'zzzzzzzz: no such command, see kvlab --help' zzzzzzzz
refuse 2 '--modle: no such option, did you mean --model?' generate --modle x
refuse 2 '--xyzzyx: no such option, see --help' generate --xyzzyx
refuse 2 '-z: no such option, see --help' list -z
refuse 2 '--model: wants a value: FILE' generate --model
refuse 2 '--dry-run: takes no value, got "yes"' sweep s.yaml --dry-run=yes
refuse 2 '--threads: "0" is out of range, want 1 to 1024' generate -m m.gguf --threads 0
refuse 2 '--threads: "two" is not a number, want 1 to 1024' generate -m m.gguf --threads two
refuse 2 '--kv-type: "f8": want one of f32, f16, bf16, q8_0, q4_0, q8_0+hadamard, q4_0+hadamard, fp8_e4m3, turboquant4, turboquant3, kivi4, kivi2, or two, keys/values: q8_0/q4_0' generate -m m.gguf --kv-type f8
refuse 2 '--prefill-type: "f16": want f32, bf16 or blas' generate -m m.gguf --prefill-type f16
refuse 2 '--prefill-kv: "disk": want device or host' generate -m m.gguf --prefill-kv disk
refuse 2 '--decode-act: "q4": want q16 or q8' generate -m m.gguf --decode-act q4
refuse 2 '--decode-act: "8": want q16 or q8' bench --decode-act 8
refuse_like 2 '--set decode_act: .*want q16 or q8' sweep s.yaml --set decode_act=f16
refuse 2 '--window: "no": want auto or off' generate -m m.gguf --window no
refuse_like 2 '--set window: .*want auto or off' sweep s.yaml --set window=no
refuse_like 2 '--set prefill_kv: .*want device or host' sweep s.yaml --set prefill_kv=disk
refuse_like 2 '--set prefill_type: .*want f32, bf16 or blas' sweep s.yaml --set prefill_type=f16
refuse_like 2 '--set kv_type: .*want one of f32, f16, .*or {k: .., v: ..}' sweep s.yaml --set kv_type=f8
refuse 2 'list "policy": want "policies", "tasks", "kv-types" or nothing' list policy
refuse 2 'no name, want one of kvlab list' describe
refuse 2 '"quset" is no policy and no task, did you mean "quest"?' describe quset
refuse 2 '"zzzzzzzzzz" is no policy and no task, see kvlab list' describe zzzzzzzzzz
refuse 2 'no sweep, want a YAML file (harness/sweeps/demo.yaml)' sweep
refuse 2 '"b.yaml": one sweep at a time' sweep a.yaml b.yaml
refuse 2 'none.yaml: cannot open: No such file or directory' sweep none.yaml
refuse 2 '.: is a folder, want a file' sweep .
refuse_like 3 '\.: a folder of GGUF files; want one of them, such as \./[a-z]+\.gguf' inspect .
printf 'some words\n' >words.txt
refuse 3 'words.txt: not a GGUF file: it starts with 0x656d6f73' inspect words.txt
refuse 2 '.: is a folder, want a file' tokenize -m m.gguf .
refuse 2 'foo: no such command, see kvlab --help' foo
refuse 2 'm.gguf: is no YAML file: byte 4: control characters are not allowed' sweep m.gguf

# ---- prompts ------------------------------------------------------------------------------------

limit=$("$program" inspect --all m.gguf | awk '$1 == "llama.context_length" { print $3 }')
refuse 2 'no model, want --model FILE' generate --prompt a
refuse 2 'want one of --prompt TEXT and --ids 1,2,3' generate -m m.gguf
refuse 2 'want one of --prompt TEXT and --ids 1,2,3' generate -m m.gguf --prompt a --ids 1
refuse_like 2 'token id "99999999": want a whole number from 0 to [0-9]+' \
    generate -m m.gguf --ids 1,99999999
refuse_like 2 'token id "-1": want a whole number from 0 to [0-9]+' generate -m m.gguf --ids=-1
refuse_like 2 'token id "x": want a whole number from 0 to [0-9]+' logits -m m.gguf --ids 1,x --out o
refuse 2 '--ids: no ids, want at least one' logits -m m.gguf --ids '' --out o
refuse 2 'want --ids 1,2,3 and --out X.npy' logits -m m.gguf --ids 1
refuse 2 "-n: \"-3\" is out of range, want 0 to 2147483647" generate -m m.gguf --prompt a -n -3
refuse 2 "3 prompt tokens and $limit new ones, the model's context is $limit: shorten it or give --allow-overlong" \
    generate -m m.gguf --ids 1,2,3 -n "$limit"
refuse_like 4 '/nowhere/o.npy: cannot create: No such file or directory' \
    logits -m m.gguf --ids 1,2 --out /nowhere/o.npy
refuse 2 '--ids and --decode exclude each other' tokenize -m m.gguf --ids --decode -
refuse 2 'no file, want a path or - for standard input' tokenize -m m.gguf
refuse 2 '--info goes with --model alone' tokenize -m m.gguf --info -
refuse 2 'no model, want --model FILE' tokenize --info
mkdir folder
refuse 3 'folder: no tokenizer.json, no tokenizer.model, no vocab.json with merges.txt' tokenize -m folder --info
echo '{"model":{"type":"Unigram"}}' >folder/tokenizer.json
refuse 3 'folder/tokenizer.json: model.type is "Unigram", want "BPE"' tokenize -m folder -
refuse 2 'none.txt: cannot open: No such file or directory' tokenize -m m.gguf none.txt

# ---- policies and budgets -----------------------------------------------------------------------

gen=(generate -m m.gguf --ids 1,2,3 --policy)
refuse 2 'policy "qest:budget=64": policy "qest" does not exist, did you mean "quest"?' \
    "${gen[@]}" qest:budget=64
refuse 2 'policy "quest" needs a budget, want quest:budget=256' "${gen[@]}" quest
refuse 2 'policy "quest:budget=64,paeg=2": no option "paeg", did you mean "page"? (there are: page, dense_layers, reduce, offload)' \
    "${gen[@]}" quest:budget=64,paeg=2
refuse 2 'policy "quest:budget=64,page=0": option "page": "0" is out of range, want a whole number from 1 to 4096' \
    "${gen[@]}" quest:budget=64,page=0
refuse 2 'policy "quest:budget=64,reduce=summ": option "reduce": "summ" is not a choice, want one of none, sum, max, mean_q (did you mean "sum"?)' \
    "${gen[@]}" quest:budget=64,reduce=summ
refuse 2 'policy "quest:budget=1,budget=2": option "budget" stands twice' \
    "${gen[@]}" quest:budget=1,budget=2
refuse 2 'budget "0": want tokens per lane (256) or a part of the context (25%)' \
    "${gen[@]}" quest:budget=0
refuse 2 'budget "101%": want tokens per lane (256) or a part of the context (25%)' \
    "${gen[@]}" quest:budget=101%
refuse 2 'quest: budget 31 tokens, quest needs at least 32 with these options' \
    "${gen[@]}" quest:budget=31
refuse 2 'policy "full:page=1": no option "page": there are none' "${gen[@]}" full:page=1

# ---- sweep files (more of them in unit/test_config.c) ---------------------------------------------

# with LINE: the sweep file with a line more
with() {
    { cat s.yaml; printf '%s\n' "$1"; } >w.yaml
}
n=$(wc -l <s.yaml)
with 'lenghts: 4'
refuse 2 "w.yaml:$((n + 1)): no key \"lenghts\", did you mean \"lengths\"?" sweep w.yaml
with 'lengths: 4'
refuse 2 "w.yaml:$((n + 1)): lengths: stands twice, first in line 4" sweep w.yaml
with 'speed: {lengths: 64, stpes: 3}'
refuse 2 "w.yaml:$((n + 1)): no key \"speed.stpes\", did you mean \"speed.steps\"?" sweep w.yaml
with 'kv_limit_mib: 1e9'
refuse 2 "w.yaml:$((n + 1)): kv_limit_mib: \"1e9\" is out of range, want 1 to 2147483647" sweep w.yaml
printf 'model: [' >w.yaml
refuse_like 2 'w.yaml:[0-9]+: did not find expected .*' sweep w.yaml
printf 'lengths:\n\t- 64\n' >w.yaml
refuse_like 2 'w.yaml:2: .* \(indent with spaces, not tabs\)' sweep w.yaml
printf 'lengths:\n  - 64\n\t- 128\n' >w.yaml
refuse_like 2 'w.yaml:3: .* \(indent with spaces, not tabs\)' sweep w.yaml
printf 'name: @a\n' >w.yaml
refuse 2 'w.yaml:1: found character that cannot start any token' sweep w.yaml
: >w.yaml
refuse 2 'w.yaml: model: is missing, want the path of a GGUF file' sweep w.yaml
refuse 2 'run: lengths: is missing, want --length TOKENS' run -m "$model" --task passkey --policy full
refuse 2 'want --as, or --prediction, --gold and --score' data score s.yaml
refuse 2 '--set budgets: budget "-5": want tokens per lane (256) or a part of the context (25%)' \
    sweep s.yaml --set budgets=-5
refuse 2 '--set polices: no key "polices", did you mean "policies"?' sweep s.yaml --set polices=full
refuse 2 '--set: "budgets", want KEY=VALUE' sweep s.yaml --set budgets
refuse 2 '--set policies: policy "snapvk" does not exist, did you mean "snapkv"?' \
    sweep s.yaml --set policies=snapvk
refuse 2 '--set tasks: task "passkeys" does not exist, did you mean "passkey"?' \
    sweep s.yaml --set tasks=passkeys
refuse 2 '--set tasks: passkey: no option "kees", did you mean "keys"? (there are: keys, digits, wording, prose)' \
    sweep s.yaml --set 'tasks={task: passkey, kees: 1}'
refuse 2 's.yaml: tasks: passkey: 2 questions with keys=1, want keys=2 or fewer questions' \
    sweep s.yaml --set tasks=passkey
printf '%s\n' 'model: m.gguf' 'tasks:' '- passkey' '- {task: passkey, keys: 2}' '- needle' '- {task: needle, facts: 1, digits: 5}' \
    'lengths: [256, 320]' 'questions: 2' 'policies: [full]' >w.yaml
refuse 2 'w.yaml:3: tasks: passkey: 2 questions with keys=1, want keys=2 or fewer questions; line 5: needle: 2 questions with facts=1, want facts=2 or fewer questions; line 6: needle: 2 questions with facts=1, want facts=2 or fewer questions' \
    sweep w.yaml
refuse 2 "s.yaml: lengths: $((limit + 1)) tokens, the model's context is $limit: want less or --allow-overlong" \
    sweep s.yaml --set "lengths=$((limit + 1))"
refuse_like 2 "s.yaml: lengths: $limit tokens and [0-9]+ of question and answer, the model's context is $limit: want at most [0-9]+ or --allow-overlong" \
    sweep s.yaml --set "lengths=$limit" --set tasks=kv_retrieval
refuse 2 's.yaml: exclude: leaves out every cell' sweep s.yaml --set 'exclude=[{length: [256, 320]}]'
refuse 2 '--shard: "4/4": want i/n with 0 <= i < n (0/4 is the first of four), auto, auto/n or none' sweep s.yaml --shard 4/4
refuse 2 'no policy, want --policy NAME' run -m m.gguf --task passkey --length 256
refuse 2 '--length: "12q" is no length, want 1 to 16777216 tokens' \
    run -m m.gguf --task passkey --policy full --length 12q
refuse 2 '--protocol: no protocol "question_as_decod", did you mean "question_as_decode"?' \
    run -m m.gguf --task passkey --policy full --length 256 --protocol question_as_decod
refuse 2 'every cell is refused: quest: budget 16 tokens, quest needs at least 32 with these options' \
    run -m m.gguf --task passkey --length 256 --policy quest --budget 16
[ ! -e out ] || fail "a refused sweep left something behind"

# ---- models -------------------------------------------------------------------------------------

refuse_like 3 '\.: .*' generate -m . --prompt a
refuse_like 3 '(none.gguf: .*No such file or directory|.*none.gguf.*)' generate -m none.gguf --prompt a
printf 'GGML' >bad.gguf
refuse_like 3 'bad.gguf: .*' generate -m bad.gguf --prompt a
for bytes in 10 1000 100000; do
    head -c $bytes m.gguf >cut.gguf
    refuse_like 3 'cut.gguf: .*' generate -m cut.gguf --prompt a
done
refuse_like 3 ".*cut.gguf: .*" sweep s.yaml --set model=cut.gguf

# ---- logs ---------------------------------------------------------------------------------------

printf 'this is no log, and it is long enough to tell\n' >text.zst
refuse_like 5 'text.zst: .*' sweep s.yaml --log text.zst
equal "a file that is no log stays as it is" 'this is no log, and it is long enough to tell' \
    "$(cat text.zst)"
refuse_like 4 '/proc/none: cannot create the folder: .*' sweep s.yaml --log /proc/none/x.zst
refuse_like 4 '/proc/x.zst: .*' sweep s.yaml --log /proc/x.zst

# A file that cannot grow (the disk is full): what is committed stays, and the sweep goes on later.
(ulimit -f 8 && refuse_like 4 'full.zst: .*' sweep s.yaml --quiet --log full.zst)
zstd -tq full.zst || fail "a full disk left a damaged log"
run_sweep s.yaml --log full.zst 2>err || fail "after there is space again"
run_sweep s.yaml --log whole.zst 2>err || fail "the whole sweep"
equal "results after a full disk" "$(results_of whole.zst)" "$(results_of full.zst)"
equal "nothing twice" "" "$(repeated_samples full.zst)$(repeated_cells full.zst)"

# Two processes, one log.
"$program" sweep --threads 1 --quiet s.yaml --set contexts=5000 --log two.zst 2>first &
pid=$!
eventually something_in two.zst $pid || fail "a sweep that does not get on"
refuse_like 5 "two.zst: another process writes to it \(pid $pid on .*" sweep s.yaml --log two.zst
kill $pid
wait $pid || true

# ---- errors that are results --------------------------------------------------------------------

# What a policy refuses is recorded and the rest goes on; --strict makes it the exit code.
refuse_like 6 'whole.zst: 4 cells have failures, 0 errors in this run \(--strict\)' \
    sweep s.yaml --quiet --strict --log whole.zst
equal "the record" 4 "$(lines_of whole.zst |
    grep -c '"status":"bad argument or configuration","message":"quest: budget 16 tokens, quest needs at least 32 with these options"')"

# No room for the KV of anything: every cell is an error record, and the program ends well.
run_sweep s.yaml --set kv_limit_mib=1 --set kv_type=f32 --set lengths=4000 --set exclude=[] \
    --log tight.zst --stats >stats 2>err || fail "no room"
lines_of tight.zst | grep '"status":"out of memory or over a limit"' > /dev/null || fail "no record of the limit"
# Failures stay as they are until --retry; the limit is no part of a cell.
tight() {
    run_sweep s.yaml --set kv_type=f32 --set lengths=4000 --set exclude=[] --set contexts=1 \
        --log tight.zst --stats "$@" 2>err
}
equal "failures are results" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" "$(tight)"
tight --retry | grep '^prefilled 2 contexts (8000 tokens) for .* 0 timed runs; 4 errors$' > /dev/null ||
    fail "--retry does not run again what failed"
# A limit that is no more: what is done again counts, in that run and in the next one.
tight --set policies=full --set kv_limit_mib=4096 --retry --strict >stats || fail "a retry that works"
tight --set policies=full --strict >stats || fail "cells that were repaired count as failed"

[ $n_lines -ge 60 ] || fail "only $n_lines messages"
