#!/usr/bin/env bash
# test_prefill.sh - sparse prefills: their own prefill without being told, what is counted and said of it,
# and tables of heads, written and read, with their errors.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
model=$source_dir/datasets/model/kvlab-tiny.gguf

# holds WHAT NAME EXPRESSION: it is true of the list of all records
holds() { [ "$(lines_of "$2.zst" | jq -s "$3")" = true ] || fail "$1"; }
# refused WHAT TEXT COMMAND...: exit status 2, and the text in its one line
refused() {
    local what=$1 text=$2 rc=0
    shift 2
    "$@" >out 2>err || rc=$?
    [ $rc = 2 ] || fail "$what: exit status $rc, want 2"
    grep -qF -- "$text" err || fail "$what: no \"$text\""
    [ "$(wc -l <err)" = 1 ] || fail "$what: more than a line"
}

# ---- sweeps ------------------------------------------------------------------------------------------

cat >some.yaml <<END
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [320]
contexts: 2
questions: 2
policies: [full, minference, {policy: minference, pattern: [a_shape, block_sparse]}, omnikv_prefill, duo_attention, {policy: duo_attention, prefill: own}]
budgets: [96, 512]
END
run_sweep some.yaml --log some.zst 2>err || fail "sweep"
holds "own prefill without being told" some 'map(select(.kind == "cell" and (.policy == "minference" or .policy == "omnikv_prefill")))
    | length == 8 and all(.prefill == "own")'
holds "duo_attention has both" some 'map(select(.kind == "cell" and .policy == "duo_attention") | .prefill) | group_by(.) | map(length) == [2, 2]'
holds "a part is computed, all of it with room for all" some 'map(select(.kind == "cell" and .prefill == "own" and .policy != "full"))
    | length == 10 and all(if .budget_tok == 512 then .method.prefill_share == 1 else .method.prefill_share < 1 and .method.prefill_share > 0.1 end)'
holds "no share without a mask" some 'map(select(.kind == "cell" and .prefill == "shared")) | all(.method.prefill_share == null)'
holds "room for all is full attention" some '
    (map(select(.kind == "cell") | {key: .cell, value: (.policy + (.budget_tok // 0 | tostring))}) | from_entries) as $of
    | (map(select(.kind == "sample" and $of[.cell] == "full0") | .prediction)) as $full
    | map(select(.kind == "sample" and ($of[.cell] | endswith("512")))) | group_by(.cell) | length == 6 and all(map(.prediction) == $full)'
"$program" report some.zst >said || fail "report"
grep -q "minference.*own prefill" said || fail "the table does not say own prefill"
grep -q "computing .* % of the attention of a dense prefill" said || fail "no note below the table"
"$program" report --method some.zst | grep -q "^  prefill_share" || fail "no share among what methods count"

# Another chunk of the engine changes nothing.
sed "s/^budgets:.*/budgets: [96]\nchunk_tok: 50/" some.yaml >cut.yaml
run_sweep cut.yaml --log cut.zst 2>err || fail "sweep in other chunks"
# Nor do layers one by one, where the method knows its mask without the others.
sed "s/^policies:.*/policies: [minference, {policy: minference, pattern: [a_shape, block_sparse]}, omnikv_prefill, {policy: duo_attention, prefill: own}]/" cut.yaml >layers.yaml
run_sweep layers.yaml --prefill-kv host --log layers.zst 2>err || fail "sweep layer by layer"
equal "those that look across layers" 2 "$("$program" report layers.zst | grep -c 'wants its context chunk by chunk')"
holds "the run says where" layers 'map(select(.kind == "run")) | all(.store.prefill_kv == "host")'
for log in some cut layers; do
    lines_of $log.zst | jq -s -c '
        (map(select(.kind == "cell" and .budget_tok == 96 and .prefill == "own") | {key: .cell, value: 1}) | from_entries) as $own
        | map(select(.kind == "sample" and $own[.cell]) | [.cell, .context, .question, .prediction]) | sort' >$log.answers
done
[ "$(jq length some.answers)" = 20 ] || fail "answers of own prefills"
equal "answers in other chunks" "$(cat some.answers)" "$(cat cut.answers)"
equal "answers layer by layer" '[12,[]]' "$(jq -c 'map(select(.[3] != null)) | [length, . - $some[0]]' --slurpfile some some.answers layers.answers)"

refused "shared" "want prefill=own" "$program" run --model "$model" --task passkey --length 200 --policy minference:budget=96,prefill=shared --quiet
refused "a chunk" "multiple of 64" "$program" generate --model "$model" --policy minference:budget=96,chunk=100 --prompt "$(seq 400)"
"$program" generate --model "$model" --policy minference:budget=96 --prompt "$(seq 100)" -n 4 >/dev/null 2>err || fail "generate"

# ---- tables --------------------------------------------------------------------------------------------

tables() { "$program" tables "$@" --length 256 --contexts 1 --task passkey --task needle; }
tables minference "$model" -o mi.txt 2>err || fail "tables minference"
tables duo_attention:sink=8,measure_window=32 "$model" -o duo.txt 2>err || fail "tables duo_attention"
equal "a line per query head" 32 "$(grep -vc '^#' mi.txt)"
equal "a line per layer" 8 "$(grep -vc '^#' duo.txt)"
grep -q "^# minference table of kvlab-tiny" mi.txt || fail "a table does not say what it is of"
grep -q "^# measured on 1 contexts of 256 tokens each of passkey, needle" mi.txt || fail "a table does not say what it was measured on"
equal "gates are shares" "" "$(grep -v '^#' duo.txt | tr ' ' '\n' | awk '!($1 >= 0 && $1 <= 1)')"
tables duo_attention:sink=8,measure_window=32 "$model" >again 2>err || fail "a table to standard output"
cmp -s duo.txt again || fail "a table measured twice differs"

cat >table.yaml <<END
model: $model
tasks: [passkey]
lengths: [256]
contexts: 1
questions: 1
policies: [{policy: minference, table: mi.txt}, {policy: duo_attention, table: duo.txt, prefill: [shared, own]}]
budgets: [96]
END
run_sweep table.yaml --log table.zst 2>err || fail "sweep of tables"
holds "the checksum is logged" table 'map(select(.kind == "cell")) | length == 3 and all(.options | test("table_sum=[0-9a-f]{16}"))'
# An edited table is another result.
echo "# remark" >>mi.txt
run_sweep table.yaml --log table.zst 2>err || fail "sweep of an edited table"
holds "an edited table is another cell" table 'map(select(.kind == "cell" and .policy == "minference") | .cell) | unique | length == 2'

run="$program generate --model $model --prompt hello -n 1"
refused "no file" "none.txt" $run --policy minference:budget=96,table=none.txt
sed 's/^0 1 /0 77 /' mi.txt >bad.txt
refused "a head too many" "bad.txt, line 6: query head \"77\"" $run --policy minference:budget=96,table=bad.txt
sed '$d' duo.txt >bad.txt
refused "a line too few" "bad.txt: 7 lines of gates; the model has 8 layers" $run --policy duo_attention:budget=96,table=bad.txt
refused "another table's checksum" "table_sum=00" $run --policy duo_attention:budget=96,table=duo.txt,table_sum=00
refused "a file that is there" "exists already" tables duo_attention "$model" -o duo.txt
refused "no method" "want minference or duo_attention" "$program" tables
refused "a method without a table" "snapkv: has no table" "$program" tables snapkv "$model"
refused "an option" "sinks" "$program" tables duo_attention:sinks=3 "$model"
refused "contexts without an outside" "nothing of such contexts" "$program" tables duo_attention:sink=200 "$model" --length 64 --task passkey
echo "$name: ok"
