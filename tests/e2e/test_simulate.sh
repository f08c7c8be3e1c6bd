#!/usr/bin/env bash
# test_simulate.sh - kvlab simulate: bytes and times worked out by hand on devices whose numbers make them easy, several
# devices, a sweep, and what is refused.
#
# The shape "tiny": 4 layers, 2 kv heads of 32, so that keys and values of a token take 4 x 2 x 32 x 2 x 2 = 1024 bytes in
# 16 bits.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# A CPU that reads a megabyte a second and multiplies in no time: what it takes is its bytes.
cat >slow.yaml <<'END'
name: slow
kind: cpu
memory_gib: 1
memory_gbs: 0.001
tflops: 1000000
cores: 1
link_gbs: 1000
link_us: 1000
END

simulate() { "$program" simulate --threads 1 --rounds 1 "$@" >out 2>err || fail "simulate $*: $(tail -n 1 err)"; }
# value METHOD KEY [LENGTH]: of a row
value() { jq -r --arg p "$1" --arg k "$2" --arg n "${3:-1048576}" 'select(.policy == $p and (.length_tok | tostring) == $n) | .[$k] | if type == "number" then . + 0 else . end' rows.jsonl; }
# near WHAT WANT GOT [PERCENT]
near() { awk -v w="$2" -v g="$3" -v p="${4:-1}" 'BEGIN { exit !(g >= w - p / 100 * w && g <= w + p / 100 * w) }' || fail "$1: want $2 within ${4:-1} %, got $3"; }

tiny=(--shape tiny --budget 256 --depths '256,512,1024' --policies 'streaming_llm;snapkv;quest:page=16,dense_layers=2;omnikv;arkvale' --profiles ./slow.yaml)
simulate "${tiny[@]}" --lengths 1M,10M --json rows.jsonl
# Full attention: every key and value.  A method that evicts: its budget, at any length.
near "full, 1M" $((1048576 * 1024)) "$(value full kv_read_bytes)"
near "full, 10M" $((10485760 * 1024)) "$(value full kv_read_bytes 10485760)"
near "streaming_llm" $((256 * 1024)) "$(value streaming_llm kv_read_bytes 10485760)" 5
equal "streaming_llm has no index" 0 "$(value streaming_llm index_read_bytes)"
# Quest: two of four layers read everything, two their budget and the bounds of each page: 2 x 32 x 2 bytes.
near "quest, keys and values" $((1048576 * 512 + 256 * 512)) "$(value 'quest:page=16,dense_layers=2' kv_read_bytes)" 2
near "quest, bounds" $((1048576 / 16 * 2 * 2 * 32 * 2 * 2)) "$(value 'quest:page=16,dense_layers=2' index_read_bytes)" 2
# Time: bytes over 10^6, in milliseconds.  Weights of 16 bits: a layer 2 x 256 x 256 + 2 x 256 x 64 + 3 x 256 x 704, a head
# of 512 x 256.
weights=$((2 * (4 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 704) + 512 * 256)))
equal "weights" "$weights" "$(value full weight_bytes)"
near "time of weights" $((weights / 1000)) "$(value full weights_ms)"
near "time of full attention" $((1048576 * 1024 / 1000)) "$(value full attend_ms)"
near "time of the bounds" $((1048576 / 16 * 512 / 1000)) "$(value 'quest:page=16,dense_layers=2' method_ms)" 3
near "the sum" "$(awk -v w=$weights 'BEGIN { print (w + 1048576 * 1024) / 1000 }')" "$(value full token_ms)"
# Memory: weights, embedding too, and the store; what lies on the host is no memory of the device.
near "memory" $((weights + 2 * 512 * 256 + 1048576 * 1024)) "$(value full memory_bytes)" 3
[ "$(value arkvale on_host_bytes | cut -d . -f 1)" -gt $((1048576 * 1000)) ] || fail "arkvale keeps nothing on the host"
[ "$(value arkvale bus_bytes | cut -d . -f 1)" -gt 0 ] || fail "arkvale fetches nothing"
grep -qE '^full .* 10\.0 GiB \(no\)' out || fail "10M tokens in a device of 1 GiB: $(grep '^full' out)"

# ---- several devices: heads, layers, tokens of the layers that are left dense

one=$(value full attend_ms)
cp rows.jsonl one.jsonl
simulate "${tiny[@]}" --lengths 1M --tensor 2 --json rows.jsonl
near "half the heads" "$(awk -v t="$one" 'BEGIN { print t / 2 }')" "$(value full attend_ms)"
# Two sums a layer, a millisecond each; a link that carries any row in no time.
near "two sums a layer" 8 "$(value full links_ms)"
simulate "${tiny[@]}" --lengths 1M --tensor 8 --json rows.jsonl
near "more devices than kv heads" "$(awk -v t="$one" 'BEGIN { print t / 2 }')" "$(value full attend_ms)"
simulate "${tiny[@]}" --lengths 1M --pipeline 4 --json rows.jsonl
near "stages follow each other" "$one" "$(value full attend_ms)"
near "three messages" 3 "$(value full links_ms)"
near "memory of a stage" $(((weights + 2 * 512 * 256 + 1048576 * 1024) / 4)) "$(value full memory_bytes)" 3
simulate "${tiny[@]}" --lengths 1M --context 4 --json rows.jsonl
near "a quarter of the tokens" "$(awk -v t="$one" 'BEGIN { print t / 4 }')" "$(value full attend_ms)"
# Quest's dense layers are shared out, the others are not.
near "dense layers alone" $(((1048576 * 512 / 4 + 256 * 512) / 1000)) "$(value 'quest:page=16,dense_layers=2' attend_ms)" 2
near "what is chosen stays" "$(jq -r 'select(.policy == "streaming_llm" and .length_tok == 1048576).attend_ms' one.jsonl)" "$(value streaming_llm attend_ms)" 5

# ---- a large model: 126 layers, 8 kv heads of 128: 516096 bytes a token, and 405 billion weights

simulate --shape llama405b --weights q8_0 --policies streaming_llm --budget 64 --depths 64,128 --lengths 1M --profiles h100 --tensor 8 --json rows.jsonl
near "405B, keys and values" $((1048576 * 516096)) "$(value full kv_read_bytes)" 2
near "405B, weights of a byte and a sixteenth" "$(awk 'BEGIN { print 405.8e9 * 34 / 32 }')" "$(jq -r 'select(.policy == "full").memory_bytes * 8 - 1048576 * 516096' rows.jsonl)" 4
grep -q '^H100, 1048576 tokens, budget 64, llama405b, 8 x tensor: predicted$' out || fail "no head: $(cat out)"

# ---- a sweep: its tokens to prefill and to decode, and its bytes

cat >sweep.yaml <<END
name: planned
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [256, 512]
protocols: [question_after_compress]
contexts: 3
questions: 2
policies: [full, snapkv, {policy: quest, page: [16, 32]}]
budgets: [64]
END
simulate sweep.yaml --profiles ./slow.yaml,h100,here
# Four methods, two lengths, three contexts, two questions of twelve tokens.
grep -q "^sweep.yaml: 8 cells, $((3 * (256 + 512))) tokens to prefill, $((4 * 2 * 3 * 2 * 12)) to decode; predicted" out || fail "a sweep: $(cat out)"
for device in slow H100 here; do grep -qE "^$device  *[0-9]" out || fail "a sweep: no $device: $(cat out)"; done

# ---- this machine, between depths that were measured

simulate --model "$model" --policies snapkv --budget 64 --lengths 300 --profiles here --json rows.jsonl
grep -q '^here, 300 tokens, .*: measured$' out || fail "what is measured: $(cat out)"
[ ! -s rows.jsonl ] || jq -es 'length == 2 and all(.[]; .token_ms > 0 and .prefill_s > 0)' rows.jsonl >said || fail "here: $(cat rows.jsonl)"

# ---- what is refused, before anything is measured

# refused CODE PATTERN ARGUMENTS...
refused() {
    local code=$1 pattern=$2 rc=0
    shift 2
    "$program" simulate "$@" >out 2>err || rc=$?
    equal "exit code of simulate $*" "$code" $rc
    equal "lines of simulate $*" 1 "$(wc -l <err)"
    grep -qE -- "$pattern" err || fail "simulate $*: no \"$pattern\" in: $(cat err)"
}
# profile SED-SCRIPT: slow.yaml, changed
profile() { sed -E "$1" slow.yaml >bad.yaml; }
refused 2 'nothing to simulate, want --model FILE, --shape SHAPE or SWEEP.yaml'
refused 2 '"huge": want tiny, llama8b, llama70b or llama405b' --shape huge
refused 2 'exclude each other' --shape tiny --model "$model"
refused 2 '--weights: of a shape alone' --model "$model" --weights q8_0
refused 2 '--profiles: "tpu": want here, a100, .*h100.*, or the path of a file' --shape tiny --profiles tpu
refused 2 '--profiles: none given' --shape tiny --profiles ''
refused 2 'cannot open' --shape tiny --profiles ./none.yaml
profile '/memory_gbs/d'
refused 2 'bad.yaml: no memory_gbs, want it of a cpu' --shape tiny --profiles ./bad.yaml
profile 's/0\.001/-1/'
refused 2 'bad.yaml:4: memory_gbs: "-1", want a number above 0' --shape tiny --profiles ./bad.yaml
profile 's/0\.001/nan/'
refused 2 'bad.yaml:4: memory_gbs: "nan", want a number above 0' --shape tiny --profiles ./bad.yaml
profile 's/kind: cpu/kind: tpu/'
refused 2 'bad.yaml:2: kind: "tpu", want gpu or cpu' --shape tiny --profiles ./bad.yaml
profile 's/kind: cpu/kind: gpu/'
refused 2 'bad.yaml: no bus_gbs, want it of a gpu' --shape tiny --profiles ./bad.yaml
profile 's/memory_gbs/memory_gb/'
refused 2 'bad.yaml:4: no key "memory_gb", did you mean' --shape tiny --profiles ./bad.yaml
profile '/link/d'
refused 2 'slow: no link_gbs and link_us, want them of several devices' --shape tiny --profiles ./bad.yaml --tensor 2
refused 2 'here: no link_gbs' --shape tiny --profiles here --pipeline 2
refused 2 '--tensor 3: 8 heads do not fall into so many parts' --shape tiny --profiles ./slow.yaml --tensor 3
refused 2 '--pipeline 5: more than 4 layers' --shape tiny --profiles ./slow.yaml --pipeline 5
refused 2 '--tensor: "0": want a number from 1 to 1024' --shape tiny --tensor 0
refused 2 '--lengths: "many": want numbers of tokens' --shape tiny --lengths many
refused 2 '--lengths: "8G": want numbers of tokens' --shape tiny --lengths 8G
refused 2 '--depths: 4, want at most 3' --shape tiny --depths 1,2,3,4
refused 2 'did you mean "quest"' --shape tiny --policies qest
refused 2 '--lengths, --policies and --budget: sweep.yaml says them' sweep.yaml --budget 3
refused 2 'one sweep at a time' sweep.yaml sweep.yaml
refused 2 'cannot open' none.yaml
