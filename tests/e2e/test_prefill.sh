#!/usr/bin/env bash
# test_prefill.sh - sparse prefills: their own prefill without being told, what is counted and said of it,
# tables of heads, written and read, and those of a model, with their errors.
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
"$program" report --method some.zst | grep -c >/dev/null "^  prefill_share" || fail "no share among what methods count"

# Another chunk of the engine changes nothing.
sed "s/^budgets:.*/budgets: [96]\nchunk_tok: 50/" some.yaml >cut.yaml
run_sweep cut.yaml --log cut.zst 2>err || fail "sweep in other chunks"
# Nor do layers one by one, where the method knows its mask without the others.
sed "s/^policies:.*/policies: [minference, {policy: minference, pattern: [a_shape, block_sparse]}, omnikv_prefill, {policy: duo_attention, prefill: own, gates: measure}]/" cut.yaml >layers.yaml
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

# kinds LOG FLAG FIELD SAID A B: a sweep with A, B and A again has cells of each, which the log and the table name.
kinds() {
    local kind
    for kind in "$5" "$6" "$5"; do
        run_sweep some.yaml --set policies=[full] --set budgets=[96] "$2" "$kind" --log "$1.zst" 2>err || fail "sweep of $kind"
    done
    holds "$3 is named" "$1" "map(select(.kind == \"run\") | .store.$3) == [\"$5\", \"$6\"]"
    holds "a cell of each $3" "$1" 'map(select(.kind == "cell")) | length == 2 and (map(.cell) | unique | length) == 2'
    "$program" report "$1.zst" >said || fail "report of $1"
    grep -q "kvlab-tiny, $4" said || fail "the table does not say $4: $(cat said)"
}
# Prefills by OpenBLAS, and decoding with activations in 8 bits.
kinds types --prefill-type prefill_type "prefill blas" f32 blas
kinds acts --decode-act decode_act "decode q8" q16 q8

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
tables qfilters "$model" -o qf.txt 2>err || fail "tables qfilters"
tables triattention "$model" -o tri.txt 2>err || fail "tables triattention"
# A vector per kv head, of length 1 where the contexts agree; of query heads means, then lengths of pairs, which no mean
# passes.
equal "filters" "$(for l in {0..7}; do printf "%s\n" "$l 0 66" "$l 1 66"; done)" "$(awk '!/^#/ { print $1, $2, NF }' qf.txt)"
equal "filters are directions" "" "$(awk '!/^#/ { s = 0; for (i = 3; i <= NF; i++) s += $i * $i; if (!(s > 0.05 && s < 1.0001)) print }' qf.txt)"
equal "means" "$(for l in {0..7}; do for h in {0..3}; do echo "$l $h 130"; done; done)" "$(awk '!/^#/ { print $1, $2, NF }' tri.txt)"
equal "lengths" "" "$(awk '!/^#/ { a = b = 0; for (i = 3; i < 67; i++) { a += $i * $i; b += $(i + 64) * $(i + 64) }
    if (!(b > 0 && b >= a * 0.999)) print }' tri.txt)"
grep -q "^# triattention table of kvlab-tiny" tri.txt || fail "a table of means does not say what it is of"
"$program" tables kvzap "$model" -o zap --length 256 --contexts 2 --task passkey --task needle 2>err || fail "tables kvzap"
grep -Eq "^kvlab: zap: of texts held out the networks explain 0\.[0-9]{3} of the variance of log KVzip" err || fail "what networks explain"
"$program" tables kvzap "$model" -o again.zap --length 256 --contexts 2 --task passkey --task needle 2>/dev/null || fail "networks again"
cmp -s zap/model.safetensors again.zap/model.safetensors || fail "networks that are fitted twice differ"
equal "sizes of networks" "128 2 null 8" "$(jq -r '"\(.input_dim) \(.output_dim) \(.hidden_dim) \(.n_modules)"' zap/config.json)"
equal "gates are shares" "" "$(grep -v '^#' duo.txt | tr ' ' '\n' | awk '!($1 >= 0 && $1 <= 1)')"
tables duo_attention:sink=8,measure_window=32 "$model" >again 2>err || fail "a table to standard output"
cmp -s duo.txt again || fail "a table measured twice differs"

cat >table.yaml <<END
model: $model
tasks: [passkey]
lengths: [256]
contexts: 1
questions: 1
policies: [{policy: minference, table: mi.txt}, {policy: duo_attention, table: duo.txt, prefill: [shared, own]},
  {policy: qfilters, table: qf.txt}, {policy: triattention, table: tri.txt, prompt: judge}, {policy: kvzap, weights: zap},
  {policy: "dms(kvzap:weights=zap)"}, {policy: "decode(kvzap:weights=zap)"}]
budgets: [96]
END
run_sweep table.yaml --log table.zst 2>err || fail "sweep of tables"
holds "the checksum is logged" table 'map(select(.kind == "cell")) | length == 8 and all(.options | test("(table|weights)_sum=[0-9a-f]{16}"))'
# An edited table is another result.
echo "# remark" >>mi.txt
run_sweep table.yaml --log table.zst 2>err || fail "sweep of an edited table"
holds "an edited table is another cell" table 'map(select(.kind == "cell" and .policy == "minference") | .cell) | unique | length == 2'

head -c 3000 zap/model.safetensors >cut.zap
mkdir other.zap
python3 - <<'END' || fail "networks of another model"
import json, struct
head = json.dumps({"layers.0.weight": {"dtype": "F32", "shape": [3, 7], "data_offsets": [0, 84]},
                   "layers.0.bias": {"dtype": "F32", "shape": [3], "data_offsets": [84, 96]}}).encode()
open("other.zap/model.safetensors", "wb").write(struct.pack("<Q", len(head)) + head + bytes(96))
END
run="$program generate --model $model --prompt hello -n 1"
refused "no file" "none.txt" $run --policy minference:budget=96,table=none.txt
sed 's/^0 1 /0 77 /' mi.txt >bad.txt
refused "a head too many" "bad.txt, line 6: query head \"77\"" $run --policy minference:budget=96,table=bad.txt
sed '$d' duo.txt >bad.txt
refused "a line too few" "bad.txt: 7 lines of gates; the model has 8 layers" $run --policy duo_attention:budget=96,table=bad.txt
sed '$d' qf.txt >bad.txt
refused "a filter too few" "bad.txt ends before layer 7, head 1" $run --policy qfilters:budget=96,table=bad.txt
sed 's/ [^ ]*$//' tri.txt >bad.txt
refused "a number too few" "bad.txt, line 5" $run --policy triattention:budget=96,table=bad.txt
refused "filters for means" "qf.txt, line 5" $run --policy triattention:budget=96,table=qf.txt
refused "no networks" "none.zap" $run --policy kvzap:budget=96,weights=none.zap
refused "networks of another model" "want 2 x" $run --policy kvzap:budget=96,weights=other.zap
refused "half a file of networks" "weights: ./cut.zap: tensor" $run --policy kvzap:budget=96,weights=cut.zap
refused "other networks' checksum" "weights_sum=00" $run --policy kvzap:budget=96,weights=zap,weights_sum=00
refused "a threshold without networks" "give weights=FILE" $run --policy "dms(kvzap):budget=96,threshold=-4,window=16"
refused "networks to standard output" "want -o FOLDER" tables kvzap "$model"
refused "networks of networks" "leave weights out" tables kvzap:weights=zap "$model" -o more.zap
refused "networks that are there" "exists already" tables kvzap "$model" -o zap
refused "another table's checksum" "table_sum=00" $run --policy duo_attention:budget=96,table=duo.txt,table_sum=00
refused "a file that is there" "exists already" tables duo_attention "$model" -o duo.txt
refused "no model" "no model" "$program" tables
refused "a method without a table" "snapkv: has no table" "$program" tables snapkv "$model"
refused "an option" "sinks" "$program" tables duo_attention:sinks=3 "$model"
refused "contexts without an outside" "nothing of such contexts" "$program" tables duo_attention:sink=200 "$model" --length 64 --task passkey

# ---- tables of a model: what lies beside it is used, and named ------------------------------------------

cp "$model" m.gguf
cat >beside.yaml <<END
model: m.gguf
tasks: [passkey]
lengths: [256]
contexts: 1
questions: 1
policies: [omnikv, {policy: omnikv, filter_layers: [measured, 2]}, omnikv_prefill, duo_attention]
budgets: [96]
END
run_sweep beside.yaml --log none.zst 2>err || fail "sweep without tables"
[ ! -s err ] || fail "it says something"
holds "without tables filters are measured" none 'map(select(.kind == "cell" and .policy == "omnikv" and .options_asked == ""))
    | length == 1 and all((.options | test("filter_layers=measured,.*table_sum=$")) and (.notes | keys | any(test("has no tables"))))'
holds "who gives them is not told" none 'map(select(.kind == "cell" and .options_asked == "filter_layers=2"))
    | length == 1 and all(.notes // {} | keys | all(test("tables") | not))'

"$program" tables m.gguf --length 256,400 --contexts 1 --task passkey --task kv_retrieval --threads 1 >out 2>err || fail "tables of a model"
[ ! -s out ] || fail "tables of a model go to the file alone"
grep -Eq '^kvlab: m.tables: filter layers [0-9+]+, [1-7] layers dense; [0-9]+ of [0-9]+ answer tokens' err || fail "what was found"
equal "the first lines" "kvlab-tables 1 model $(lines_of none.zst | jq -r 'select(.kind == "run") | .model.hash' | head -n 1)" "$(head -n 2 m.tables | tr '\n' ' ' | sed 's/ $//')"
grep -q '^# measured on 1 contexts of 256, 400 tokens each of passkey, kv_retrieval, seed 1$' m.tables || fail "tables do not say what they were measured on"
equal "rows" "8 8 1" "$(grep -c '^kept ' m.tables) $(grep -c '^gates ' m.tables) $(grep -c '^dense ' m.tables)"
"$program" tables m.gguf --length 256,400 --contexts 1 --task passkey --task kv_retrieval --threads 2 -o again.tables 2>err2 || fail "tables into a file"
cmp -s m.tables again.tables || fail "tables measured twice differ"
filters=$(sed -n 's/.*filter layers \([0-9+]*\),.*/\1/p' err)

run_sweep beside.yaml --log with.zst 2>err || fail "sweep with tables"
[ ! -s err ] || fail "it says something"
holds "filter layers are those of the tables" with 'map(select(.kind == "cell" and .options_asked == "" and (.policy | test("omnikv"))))
    | length == 2 and all(.options | test("filter_layers='"${filters//+/[+]}"',.*table_sum=[0-9a-f]{16}"))'
holds "the report names layers and file" with 'map(select(.kind == "cell" and .options_asked == "" and .policy == "omnikv"))
    | map(.options[-16:] as $sum | .notes | keys | any(. == "filter layers '"$filters"' by the model'"'"'s tables (\($sum))")) == [true]'
holds "gates are those of the tables" with 'map(select(.kind == "cell" and .policy == "duo_attention"))
    | map(.options | test("gates=table,.*table=,table_sum=[0-9a-f]{16}")) == [true]'
holds "given ones are not" with 'map(select(.kind == "cell" and .options_asked != "")) | length == 2 and all(.options | endswith("table_sum="))'
"$program" report with.zst | grep -c >/dev/null "omnikv: filter layers $filters by the model's tables" || fail "the report does not name them"

# Of another model, or damaged: a line, and as without.
numbers() { lines_of "$1" | jq -cS 'select(.kind == "cell") | {policy, options, prediction, official, notes}' | sort; }
sed 's/^model ./model x/' again.tables >m.tables
run_sweep beside.yaml --log other.zst 2>err || fail "sweep with tables of another model"
equal "a line" 1 "$(wc -l <err)"
grep -q '^kvlab: ./m.tables: tables of model x[0-9a-f]*, not of this one ([0-9a-f]*); not used$' err || fail "which tables"
equal "tables of another model are not used" "$(numbers none.zst)" "$(numbers other.zst)"
sed 's/^kept 3 1/kept 3 x/' again.tables >m.tables
run_sweep beside.yaml --log damaged.zst 2>err || fail "sweep with damaged tables"
grep -q '^kvlab: ./m.tables: line [0-9]*: share "x' err || fail "where they are damaged"
equal "damaged tables are not used" "$(numbers none.zst)" "$(numbers damaged.zst)"

cp again.tables m.tables
refused "a file beside the model" "m.tables: exists already" "$program" tables m.gguf
refused "a budget" "--budget: is for the table of a method" "$program" tables m.gguf --budget 64
refused "lengths for a method" "want one for the table of a method" "$program" tables duo_attention "$model" --length 256,300
refused "a length" '--length: "12" is out of range' "$program" tables m.gguf --length 256,12
refused "three words" "want a model, or a method and a model" "$program" tables duo_attention "$model" more
refused "a task that asks nothing" "perplexity: asks nothing" "$program" tables "$model" -o new.tables --task perplexity --length 300
[ ! -e new.tables ] || fail "a file is left of what went wrong"
echo "$name: ok"
