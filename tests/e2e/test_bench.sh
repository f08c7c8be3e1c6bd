#!/bin/bash
# kvlab bench: generated models are the same twice and load, a small run prints and writes all it
# should, wrong input is one line.  No time is ever looked at.
set -u
kvlab=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

fail() { echo "FAIL: $*" >&2; failed=1; }

# refused WHAT CODE WORDS... - the program ends with CODE, one line on standard error, saying WHAT
refused() {
    local what=$1 code=$2
    shift 2
    "$kvlab" bench "$@" >"$tmp/out" 2>"$tmp/err"
    local rc=$?
    [ $rc = "$code" ] || fail "bench $*: exit code $rc, want $code"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "bench $*: not one line: $(cat "$tmp/err")"
    grep -qF -- "$what" "$tmp/err" || fail "bench $*: \"$what\" is not in: $(cat "$tmp/err")"
}

# ---- models
for weights in f16 bf16 q8_0 q4_0; do
    "$kvlab" bench --make-model tiny --weights $weights "$tmp/a.gguf" || fail "make-model $weights"
    "$kvlab" bench --make-model tiny --weights $weights "$tmp/b.gguf" || fail "make-model $weights"
    cmp "$tmp/a.gguf" "$tmp/b.gguf" || fail "make-model $weights: two files differ"
    sum=$(sha256sum <"$tmp/a.gguf" | cut -c1-16)
    echo "$weights $sum"
    "$kvlab" inspect --all "$tmp/a.gguf" >"$tmp/keys" || fail "inspect $weights"
    grep -q "general.architecture" "$tmp/keys" || fail "inspect $weights: no architecture"
    "$kvlab" logits --model "$tmp/a.gguf" --ids 1,70,300 --out "$tmp/l.npy" >"$tmp/out" 2>&1 ||
        fail "logits $weights: $(cat "$tmp/out")"
    text="Hello, w\303\266rld \001"
    ids=$(printf "$text" | "$kvlab" tokenize --model "$tmp/a.gguf" - 2>"$tmp/err" | tail -n 1)
    [ -n "$ids" ] || fail "tokenize $weights: $(cat "$tmp/err")"
done >"$tmp/sums"
grep -q . "$tmp/sums" || fail "no sums"
[ "$(sort -u -k2 "$tmp/sums" | wc -l)" = 4 ] || fail "weights do not matter: $(cat "$tmp/sums")"

# ---- a small run
"$kvlab" bench --quick --shape tiny --rounds 1 --threads 1 --depths 0,512 --budget 96 \
    --policies "quest:dense_layers=0;streaming_llm:positions=original" \
    --json "$tmp/run.jsonl" >"$tmp/out" 2>"$tmp/err" ||
    fail "quick run: $(tail -n 1 "$tmp/err")"
jq -es 'all(.[]; .kind == "bench" and (.what | length) > 0 and (.unit | length) > 0
    and has("value") and has("value_lo") and has("value_hi") and has("cpu") and has("cores")
    and has("isa") and has("version") and has("git") and has("model") and has("rounds")
    and .kv_type == "f16" and .budget_tok == 96)' \
    "$tmp/run.jsonl" >"$tmp/o" || fail "a JSON line lacks a field"
jq -es 'all(.[]; .value_lo <= .value and .value <= .value_hi)' "$tmp/run.jsonl" >"$tmp/o" ||
    fail "a median outside its range"
jq -es 'all(.[]; (has("against") | not) or (.ratio_lo <= .ratio and .ratio <= .ratio_hi))' \
    "$tmp/run.jsonl" >"$tmp/o" || fail "a ratio outside its range"
for part in machine ops token policy sweep prefill; do
    jq -es --arg part $part 'any(.[]; .part == $part)' "$tmp/run.jsonl" >"$tmp/o" ||
        fail "no line of part $part"
    grep -q "^$part " "$tmp/out" || fail "nothing printed of part $part"
done
jq -es '[.[] | select(.part == "policy" and .what == "token") | .policy] | sort
    == ["none", "quest", "streaming_llm"]' "$tmp/run.jsonl" >"$tmp/o" || fail "not the policies asked for"
# What was read is known whatever the machine: all keys and values, or pages within the budget.
jq -es '[.[] | select(.part == "policy" and .what == "token")] | map({(.policy): .}) | add
    | .none.kv_read_bytes > 512 * 1024 and .quest.kv_read_bytes < 100 * 1024
    and .quest.index_read_bytes > 0 and .quest.attended_tok <= 96
    and .streaming_llm.kv_read_bytes < 100 * 1024' "$tmp/run.jsonl" >"$tmp/o" ||
    fail "bytes read are not those of the policies"
awk '$1 ~ /^(machine|ops|token|policy|sweep|prefill)$/ && length > 130 { exit 1 }' "$tmp/out" || fail "printed lines are wider than a terminal"
# ---- one part alone
"$kvlab" bench --only machine --quick --rounds 1 --threads 1 >"$tmp/out" 2>"$tmp/err" || fail "--only"
[ "$(grep -c '^ops\|^token\|^policy' "$tmp/out")" = 0 ] || fail "--only machine: other parts too"

# ---- killed: its model, of hundreds of megabytes, once stayed behind
mkdir "$tmp/models"
TMPDIR=$tmp/models "$kvlab" bench --quick >"$tmp/out" 2>"$tmp/err" &
pid=$!
for _ in $(seq 6000); do # ten minutes: for slow machines
    [ -s "$tmp/out" ] && break
    sleep 0.1
done
kill -KILL $pid
wait $pid 2>"$tmp/err"
[ -s "$tmp/out" ] || fail "nothing is printed"
[ -z "$(ls "$tmp/models")" ] || fail "a killed run left its model"

refused 'beside --device want none of them' 2 --device cuda --only ops
refused '"tpu": want cpu, cuda or hybrid' 2 --device tpu

# ---- wrong input
refused '"huge" is no shape, want tiny, small64, small128 or llama8b' 2 --make-model huge "$tmp/x.gguf"
refused 'no file given, want OUT.gguf' 2 --make-model tiny
refused '--weights: "q5": want f16, bf16, q8_0 or q4_0' 2 --make-model tiny --weights q5 "$tmp/x.gguf"
refused 'cannot create' 4 --make-model tiny "$tmp/no/folder.gguf"
refused '--only: "ram": want machine, ops, token, policy, sweep or prefill' 2 --only ram
refused '--depths: 3 after 5, want them to ascend' 2 --depths 5,3
refused '--threads: "0": want a number from 1 to 1024' 2 --threads 0
refused '--rounds: "many": want a number from 1 to 99' 2 --rounds many
refused 'exclude each other' 2 --shape tiny --model "$tmp/a.gguf"
refused 'want --model FILE' 2 "$tmp/a.gguf"
# A run takes minutes: these once came at its end.
refused '"nope"' 2 --quick --policies nope
"$kvlab" bench --quick --policies quest:page=0 >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "an option of a policy that is out of range: exit code"
grep -q '^machine' "$tmp/out" && fail "an option of a policy that is out of range: seen late"
refused 'cannot create' 4 --json "$tmp/no/folder.jsonl"
refused 'did you mean --rounds?' 2 --round 3
[ ! -e "$tmp/x.gguf" ] || fail "a refused model left a file"
# ---- every method: a row, or the reason why not; what is counted is the same twice
for run in 1 2; do
    "$kvlab" bench methods --quick --rounds 1 --threads 1 --depths 512 --budget 128 \
        --json "$tmp/m$run.jsonl" >"$tmp/out" 2>"$tmp/err" || fail "methods: $(tail -n 1 "$tmp/err")"
done
for method in $("$kvlab" list policies | awk '/^  [a-z]/ { print $1 }'); do
    grep -qE "^(skipped: )?$method(\(| )" "$tmp/out" || fail "bench methods says nothing of $method"
done
jq -es 'all(.[]; .part == "methods" and .depth_tok == 512 and .budget_tok == 128 and .kv_read_bytes > 0
    and has("meta_ms") and has("select_ms") and has("attend_ms") and has("evict_ms")
    and has("fetch_ms") and has("attach_ms") and has("index_read_bytes") and has("attended_tok"))
    and any(.[]; .policy == "full" and (.share_of_full - 1 | fabs) < 0.02)
    and any(.[]; .policy == "snapkv" and .share_of_full < 0.5)' "$tmp/m1.jsonl" >"$tmp/o" ||
    fail "methods: a field is missing or a share is wrong"
for run in 1 2; do jq -c '[.policy, .kv_read_bytes, .index_read_bytes]' "$tmp/m$run.jsonl" >"$tmp/c$run"; done
cmp -s "$tmp/c1" "$tmp/c2" || fail "methods: bytes differ: $(diff "$tmp/c1" "$tmp/c2" | head -n 4)"
refused 'did you mean "quest"' 2 methods --policies qest
# ---- a context that the model reads, and the table of speeds against bytes
printf 'The cat sat on the mat. %.0s' 1 2 3 4 5 6 7 8 9 10 >"$tmp/text"
"$kvlab" bench methods --quick --text "$tmp/text" --rounds 1 --threads 1 --depths 300 \
    --budget 64 --policies 'snapkv,quest' --json "$tmp/t.jsonl" --report="$tmp/t.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "methods of a text: $(tail -n 1 "$tmp/err")"
jq -es 'length == 3 and all(.[]; .ratio > 0 and .bytes_speed > 0.99) and .[0].policy == "full"
    and (.[] | select(.policy == "snapkv") | .bytes_speed > 1)' "$tmp/t.jsonl" >"$tmp/o" ||
    fail "methods of a text: $(cat "$tmp/t.jsonl")"
grep -q '^## Methods against their bytes' "$tmp/t.md" || fail "methods: no heading in the report"
grep -qE '^### .*, 300 tokens, budget 64, 1 thread$' "$tmp/t.md" || fail "methods: the report does not say what of"
[ "$(grep -cE '^\| (full|snapkv|quest) \|' "$tmp/t.md")" = 3 ] || fail "methods: the report has other rows: $(cat "$tmp/t.md")"
grep -q 'the context is text' "$tmp/t.md" || fail "methods: the report does not say that it was text"
: >"$tmp/empty"
refused 'no text in it' 2 methods --quick --text "$tmp/empty"
refused 'cannot open' 2 methods --quick --text "$tmp/nothing"

exit $failed
