#!/bin/bash
# kvlab bench --device cuda and bench_goals on the emulated GPU (KVL_TEST_CUDA): every kind of line, a table of goals, other
# programs' figures beside ours.  No time is ever looked at.  With KVL_LONG=1 on both devices at once (hybrid), too.
#   $1 the program, $3 bench_goals
set -u
[ -n "${KVL_TEST_CUDA:-}" ] || exit 77
kvlab=$1
goals=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

fail() { echo "FAIL: $*" >&2; failed=1; }

cat >"$tmp/peers.jsonl" <<'END'
{"kind": "peer", "what": "decode attention", "variant": "enable_gqa", "backend": "flash", "depth_tok": 96, "seconds": 10.0}
{"kind": "peer", "what": "decode attention", "variant": "enable_gqa", "backend": "math", "depth_tok": 96, "seconds": 20.0}
{"kind": "peer", "what": "random pages", "depth_tok": 96, "ratio": 0.91}
END
"$goals" --device cuda --quick --rounds 1 --depths 96 --budget 48 --peer-json "$tmp/peers.jsonl" \
    --json "$tmp/run.jsonl" --report="$tmp/report.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "a run: $(tail -n 1 "$tmp/err")"
jq -es 'length > 10 and all(.[]; .part == "gpu" and .kv_type == "bf16" and .weights == "BF16" and has("gpu")
    and has("driver") and has("date") and (has("threads") | not))' "$tmp/run.jsonl" >"$tmp/o" ||
    fail "a JSON line lacks a field"
for what in 'stream read' 'pinned copy to the device' 'projections of 64, bf16' token waits 'token speed-up' \
    'attention, random pages'; do
    jq -es --arg what "$what" 'any(.[]; .what == $what)' "$tmp/run.jsonl" >"$tmp/o" || fail "no line of $what"
done
for policy in quest omnikv omnikv_host streaming_llm h2o snapkv; do
    jq -es --arg policy $policy 'any(.[]; .what == "token" and .policy == $policy)' "$tmp/run.jsonl" >"$tmp/o" ||
        fail "no token under $policy"
done
jq -es '[.[] | select(.what == "waits")] | any(.policy == "quest") and all(.[]; .value >= 1) and
    all(.[] | select(.policy == "quest" or .policy == null); .value < 2)' "$tmp/run.jsonl" >"$tmp/o" ||
    fail "waits of a token, quest: $(jq -c 'select(.what == "waits")' "$tmp/run.jsonl")"
jq -es 'all(.[]; .what != "attention against torch" or .ratio > 0)' "$tmp/run.jsonl" >"$tmp/o" || fail "torch"
grep -q '^# What the GPU path reaches' "$tmp/report.md" || fail "not the table of a GPU"
grep -q '^| random 16-token pages against contiguous .* 0.910 | yes |$' "$tmp/report.md" || fail "random pages"
"$goals" --from "$tmp/run.jsonl" --report="$tmp/again.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "--from: $(tail -n 1 "$tmp/err")"
diff <(sed '/^Left out:/,$d' "$tmp/report.md") <(sed '/^Left out:/,$d' "$tmp/again.md") | grep '^[<>] .' &&
    fail "--from: another table"
if [ -n "${KVL_LONG:-}" ]; then
    "$kvlab" bench --device hybrid --quick --rounds 1 --depths 96 --budget 48 --json "$tmp/hybrid.jsonl" \
        >"$tmp/out" 2>"$tmp/err" || fail "hybrid: $(tail -n 1 "$tmp/err")"
    grep -q 'attention on the host' "$tmp/out" "$tmp/err" || fail "hybrid: nothing of attention on the host"
    jq -es 'all(.[]; .gpu | endswith(", hybrid"))' "$tmp/hybrid.jsonl" >"$tmp/o" || fail "hybrid: lines that do not say so"
fi
"$goals" --device cuda --quick --rounds 1 --prefill-host 64 --json "$tmp/host.jsonl" >"$tmp/out" 2>"$tmp/err" ||
    fail "--prefill-host: $(tail -n 1 "$tmp/err")"
jq -es 'length == 3 and all(.[]; .depth_tok == 64 and .value > 0) and .[0].unit == "tok/s"' "$tmp/host.jsonl" >"$tmp/o" ||
    fail "--prefill-host: its lines"
"$goals" --quick --prefill-host 96 >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "--prefill-host on the CPU: exit code"
KVL_EMU_MEMORY=23000000 "$kvlab" bench --device cuda --quick --rounds 1 --depths 96 >"$tmp/out" 2>"$tmp/err"
[ $? = 4 ] || fail "too little memory: exit code"
grep -q 'device cuda: out of memory' "$tmp/err" || fail "too little memory: $(tail -n 1 "$tmp/err")"
echo nonsense >"$tmp/peers.jsonl"
"$goals" --device cuda --quick --peer-json "$tmp/peers.jsonl" >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "--peer-json of nonsense: exit code"
grep -q 'peers.jsonl:1: want lines of' "$tmp/err" || fail "--peer-json of nonsense: $(cat "$tmp/err")"
exit $failed
