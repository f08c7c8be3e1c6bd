#!/bin/bash
# bench_goals: tables of goals from a run and from its lines, another program by turns, forecasts.  No time is ever
# looked at.
#   $3 the program bench_goals
set -u
goals=$3
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

fail() { echo "FAIL: $*" >&2; failed=1; }

# refused WHAT CODE WORDS... - the program ends with CODE, one line on standard error, saying WHAT
refused() {
    local what=$1 code=$2
    shift 2
    "$goals" "$@" >"$tmp/out" 2>"$tmp/err"
    local rc=$?
    [ $rc = "$code" ] || fail "bench_goals $*: exit code $rc, want $code"
    [ "$(wc -l <"$tmp/err")" = 1 ] || fail "bench_goals $*: not one line: $(cat "$tmp/err")"
    grep -qF -- "$what" "$tmp/err" || fail "bench_goals $*: \"$what\" is not in: $(cat "$tmp/err")"
}

# ---- a small run and its table
"$goals" --quick --shape tiny --rounds 1 --threads 1 --depths 0,512 --budget 96 \
    --policies "quest:dense_layers=0;streaming_llm:positions=original" \
    --json "$tmp/run.jsonl" --report="$tmp/report.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "quick run: $(tail -n 1 "$tmp/err")"
for title in Goals 'Machine, operators' 'Policies against their bytes' 'A token under each policy, 1 thread'; do
    grep -q "^## $title" "$tmp/report.md" || fail "no \"$title\" in the report"
done
[ "$(wc -l <"$tmp/report.md")" -lt 170 ] || fail "a report of $(wc -l <"$tmp/report.md") lines"
if grep -q 'e[+-][0-9]' "$tmp/report.md"; then fail "exponents in the report"; fi
grep -q '^| full decode attention' "$tmp/report.md" || fail "no goals in the report"
grep -q '^| what | at least | aim | 1 thread | met |$' "$tmp/report.md" || fail "one number of threads, two columns"
awk -F '|' '/^## Machine/ { exit bad } /^\|/ && NF != 7 { print; bad = 1 }' "$tmp/report.md" ||
    fail "rows of goals that are not as wide as their head"
grep -q 'not measured' "$tmp/report.md" || fail "goals at 16K count as measured"
grep -q "skipped: comparison with llama.cpp" "$tmp/out" || fail "the missing peer is not told"
if grep -qE "$(uname -n)|$HOME|$tmp" "$tmp/report.md"; then fail "a name of this machine in the report"; fi

# ---- a peer that prints what llama-bench prints, one line a test
cat >"$tmp/peer" <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in -p) p=$2 ;; -n) n=$2 ;; esac
    shift 2>/dev/null || break
done
for _ in $(tr , ' ' <<<"$p" | wc -w | xargs seq) $(tr , ' ' <<<"$n" | wc -w | xargs seq); do
    echo '{"n_prompt": 1, "avg_ts": 1000.0}'
done
END
chmod +x "$tmp/peer"
"$goals" --only machine --quick --rounds 1 --threads 1 --depths 0,64 --peer "$tmp/peer" \
    --json "$tmp/peer.jsonl" >"$tmp/out" 2>"$tmp/err" || fail "peer: $(tail -n 1 "$tmp/err")"
jq -es '[.[] | select(.part == "peer")] | length == 6 and all(.[]; .peer_s > 0 and .ratio > 0)' \
    "$tmp/peer.jsonl" >"$tmp/o" || fail "not the lines of a peer"
jq -es 'any(.[]; .what == "decode, first tokens" and (.peer_s - 0.001 | fabs) < 1e-9)' \
    "$tmp/peer.jsonl" >"$tmp/o" || fail "a thousand tokens a second are not a millisecond each"
printf '#!/bin/sh\nexit 1\n' >"$tmp/broken"
chmod +x "$tmp/broken"
"$goals" --only machine --quick --rounds 1 --threads 1 --depths 0,64 --peer "$tmp/broken" \
    >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] || fail "a peer without results: exit code"
grep -q "gave no result, want a llama-bench" "$tmp/err" || fail "a peer without results: $(cat "$tmp/err")"

# ---- a table of runs that were made before: the one that the run itself wrote, but for what it left out
"$goals" --quick --rounds 1 --only machine,token --threads 1 --depths 0,64 --json "$tmp/a.jsonl" \
    --report="$tmp/a.md" >"$tmp/out" 2>"$tmp/err" || fail "a run for --from: $(tail -n 1 "$tmp/err")"
"$goals" --from "$tmp/a.jsonl" --report="$tmp/b.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "--from: $(tail -n 1 "$tmp/err")"
sed '/^Left out:/,$d' "$tmp/a.md" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$tmp/a.cut"
sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' "$tmp/b.md" >"$tmp/b.cut"
cmp -s "$tmp/a.cut" "$tmp/b.cut" || fail "--from: another table: $(diff "$tmp/a.cut" "$tmp/b.cut" | head -5)"
sed 's/"budget_tok":256/"budget_tok":128/' "$tmp/a.jsonl" >"$tmp/other.jsonl"
refused 'another budget_tok than the lines before' 2 --from "$tmp/a.jsonl" --from "$tmp/other.jsonl"
refused 'no line of kvlab bench --json' 2 --from "$tmp/a.md"
refused 'want --report and --json alone' 2 --from "$tmp/a.jsonl" --quick
refused 'cannot open' 4 --from "$tmp/nothing"

# ---- a GPU: its table without a run; what is of the CPU is refused
: >"$tmp/none.jsonl"
"$goals" --device cuda --from "$tmp/none.jsonl" --report="$tmp/gpu.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "--device cuda --from: $(tail -n 1 "$tmp/err")"
grep -q 'Nothing has run on a GPU yet' "$tmp/gpu.md" || fail "an empty table does not say that it is"
[ "$(grep -c 'not run on a GPU yet |$' "$tmp/gpu.md")" -ge 14 ] || fail "goals of a GPU without a run"
jq -c '. + {gpu: "NVIDIA X", driver: "1, CUDA 2", date: "2026-01-01"} | del(.threads)
    | if .part == "token" then .part = "gpu" | .what = "attention" | .depth_tok = 32768 | .ratio = 0.85
    | .ratio_lo = 0.85 | .ratio_hi = 0.85 else . end' "$tmp/a.jsonl" >"$tmp/gpu.jsonl"
"$goals" --from "$tmp/gpu.jsonl" --report="$tmp/gpu.md" >"$tmp/out" 2>"$tmp/err" ||
    fail "--from of a GPU: $(tail -n 1 "$tmp/err")"
grep -q '^NVIDIA X, driver 1, CUDA 2, 2026-01-01; ' "$tmp/gpu.md" || fail "the GPU is not named"
grep -q '^| full decode attention, 32K .* 0.850 | yes |$' "$tmp/gpu.md" || fail "a goal of a GPU that was met"
# The forecast: a figure for every goal and GPU, in the report too.
"$goals" --forecast >"$tmp/forecast.md" 2>"$tmp/err" || fail "--forecast: $(tail -n 1 "$tmp/err")"
n_goals=$(($(wc -l <"$tmp/forecast.md") - 2))
[ $n_goals -ge 14 ] && [ "$(grep -cE '( [0-9]+\.[0-9]{2}( \(no\))? \|){4}$' "$tmp/forecast.md")" = $n_goals ] ||
    fail "--forecast: $(cat "$tmp/forecast.md")"
[ "$(grep -cxFf <(tail -n +3 "$tmp/forecast.md") "$tmp/gpu.md")" = $n_goals ] || fail "the report has another forecast"

# ---- wrong input
refused 'cannot run' 2 --peer "$tmp/nothing"
refused 'no regular file, want a llama-bench' 2 --peer "$tmp"
# A run takes minutes: these once came at its end.
refused 'cannot open' 3 --quick --million "$tmp/nothing"
refused '--report: ' 4 --quick --report="$tmp/no/folder.md"
refused '--peer and --million are of the CPU' 2 --device cuda --peer "$tmp/peer"
refused '--colour: no option' 2 --colour red
exit $failed
