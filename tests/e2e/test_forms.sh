#!/usr/bin/env bash
# test_forms.sh - what real models are asked: needles in a text of the user's, tasks by the name of a preset; what an
# unfinished sweep shows; a text beside full attention.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
model=$source_dir/datasets/model/kvlab-tiny.gguf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "test_forms: $*" >&2
    [ ! -s err ] || tail -n 5 err >&2
    exit 1
}
equal() { [ "$2" = "$3" ] || fail "$1"$'\n'"want $2"$'\n'"got  $3"; }
run() { "$program" run -m "$model" --threads 1 --jobs 1 --quiet "$@" 2>err; }
records() { zstdcat "$1" | jq -c "select(.kind == \"$2\")"; }
# refuse WHAT TEXT ARG...: exit code 2 and a line
refuse() {
    local code=0
    run -P full --length 256 --log no.zst "${@:3}" >out || code=$?
    equal "$1: exit code" 2 "$code"
    grep -q "$2" err || fail "$1: want a line with $2"
}

# ---- prose ---------------------------------------------------------------------------------------------------

# 300 sentences, each once; a title, a number and a short one that are left out; Mr. ends no sentence.
{
    printf 'CHAPTER THE FIRST\n\nThere were 12 of them in the house.\n\nOh no.\n\nA line without an end\n\n'
    for i in $(seq 300); do
        a=$(printf '%03d' "$i" | tr 0-9 a-j)
        printf 'The lady %s had said to Mr. Brown\nthat she would come. "Is it so?" asked %s of him. ' "$a" "$a"
        [ $((i % 5)) != 0 ] || printf '\n\n'
    done
} >book.txt
run -P full -t things:keys=2,prose=book.txt --length 384 --contexts 2 --questions 2 --log a.zst || fail "prose"
"$program" show a.zst "$(records a.zst sample | head -n 1 | jq -r .cell)" >shown 2>err || fail "show"
grep -q 'had said to Mr. Brown that she would come\. "Is it so?" asked' shown || fail "sentences of the book: $(head -c 1500 shown)"
! grep -qE 'CHAPTER|12 of them|Oh no|A line without' shown || fail "what is no sentence is in the context"
grep -q 'Remember it: ' shown || fail "no item in the context"
"$program" report a.zst >table 2>err
grep -q 'things(keys=2,prose=book.txt)' table || fail "the label: $(head -n 1 table)"

# The file is known by its contents: another place is the same cell, other words are another one.
mkdir far
cp book.txt far/other.txt
run -P full -t things:keys=2,prose=far/other.txt --length 384 --contexts 2 --questions 2 --log b.zst || fail "prose elsewhere"
equal "keys of the same text" "$(records a.zst cell | jq -r .cell)" "$(records b.zst cell | jq -r .cell)"
equal "prompts of the same text" "$(records a.zst sample | jq -r .prompt_hash)" "$(records b.zst sample | jq -r .prompt_hash)"
sed 's/lady/aunt/' book.txt >far/other.txt
run -P full -t things:keys=2,prose=far/other.txt --length 384 --contexts 2 --questions 2 --log c.zst || fail "prose, edited"
[ "$(records a.zst cell | jq -r .cell)" != "$(records c.zst cell | jq -r .cell)" ] || fail "an edited text is the same cell"
for task in passkey:keys=2 needle:facts=2 niah_multikey:keys=2 niah_multivalue niah_multiquery:queries=2 vt number_string; do
    run -P full -t "$task$([[ $task == *:* ]] && echo , || echo :)prose=book.txt" --length 512 --contexts 1 --log "p-${task%%:*}.zst" ||
        fail "prose of $task"
done
refuse "no such text" 'nix.txt' -t things:prose=nix.txt
head -n 20 book.txt >short.txt
refuse "a short text" 'sentences, want a text of at least' -t things:prose=short.txt
refuse "needles all over" 'prose with haystack=needles' -t niah_multikey:haystack=needles,prose=book.txt

# ---- presets -------------------------------------------------------------------------------------------------

equal "tasks of a preset" "kv_retrieval niah_multikey things" "$(run -P full -t preset:small --length 1024 --contexts 1 \
    --log d.zst >/dev/null && records d.zst cell | jq -r .task | sort | paste -sd ' ')"
run -P full --length 1024 --contexts 1 --log e.zst --set 'tasks=[{preset: small, keys: 3, prose: book.txt}]' >/dev/null || fail "options of a preset"
equal "options of a preset" '3 book.txt' "$(records e.zst cell | jq -r 'select(.task == "things") | .task_options' |
    sed -E 's/^keys=([0-9]+),.*prose=(.*)$/\1 \2/')"
equal "of a task that lacks them" 'false' "$(records e.zst cell | jq -r 'select(.task == "kv_retrieval") | .task_options | test("prose|keys=")')"
refuse "no such preset" 'no preset "nix"' -t preset:nix
refuse "an option of no task" 'no task of preset "small" has an option "nix"' --set 'tasks=[{preset: small, nix: 1}]'
for preset in "$source_dir"/harness/presets/*.yaml; do
    "$program" run -m "$model" -P full --length 1024 --contexts 1 -t "preset:$(basename "$preset" .yaml)" --dry-run --quiet --log f.zst \
        >/dev/null 2>err || fail "$preset"
done

# ---- unfinished ----------------------------------------------------------------------------------------------

sweep() { "$program" run -m "$model" -P full,random --budget 32 -t passkey:keys=2 --length 2048 --contexts 20 --questions 2 --threads 1 \
    --jobs "$1" --quiet --log g.zst >/dev/null 2>err & }
samples() { { records g.zst sample 2>/dev/null || true; } | wc -l; }
for jobs in 1 2; do
    before=$(samples)
    sweep $jobs
    for _ in $(seq 300); do
        [ "$(samples)" -le $((before + 4)) ] || break
        sleep 0.1
    done
    kill -INT %% 2>/dev/null || fail "--jobs $jobs: ended before it was stopped"
    wait || true
    "$program" report g.zst >table 2>err || true
    grep -qE '^ *random .* [0-9]+/[0-9]+ of 40' table || fail "--jobs $jobs: no unfinished row: $(cat table)"
    grep -q 'Not finished: 2 cells' table || fail "--jobs $jobs: no note"
    equal "--jobs $jobs: n of the table" "$(samples)" "$(awk '$1 == "full" || $1 == "random" { split($NF == "40" ? $(NF - 2) : $NF, n, "/"); sum += n[1] } END { print sum }' table)"
    "$program" status g.zst >status 2>err || true
    grep -q '0 of 2 done, 2 not finished' status || fail "--jobs $jobs: status: $(cat status)"
    "$program" export g.zst --format jsonl --out export.jsonl
    equal "--jobs $jobs: n_planned of an export" '40' "$(jq -r '.n_planned + 0' export.jsonl | sort -u)"
done
sweep 2
wait
"$program" report g.zst >table 2>err || fail "the end"
! grep -qE ' of 40|Not finished' table || fail "a finished sweep: $(cat table)"
equal "samples of the end" 80 "$(awk '$1 == "full" || $1 == "random" { split($NF, n, "/"); sum += n[1] } END { print sum }' table)"

# ---- beside full attention -----------------------------------------------------------------------------------

for mode in prefill chunk decode; do
    run -P full,random,oracle -P infllm:block_size=1 --budget 32 -t "perplexity:mode=$mode,tokens=24,chunk=48" --length 200 --contexts 3 --log "k-$mode.zst" >/dev/null ||
        fail "texts, $mode"
    # Full attention beside itself: nothing is apart.
    equal "$mode: full" '0 1 0' "$(records "k-$mode.zst" perplexity | jq -r 'select(.policy == "full") | "\(.kl_nats.mean + 0) \(.top1.mean + 0) \(.kl_curve[-1][1] + 0)"')"
    records "k-$mode.zst" perplexity | jq -se 'map({(.policy): .}) | add
        | .random.kl_nats.mean > .oracle.kl_nats.mean and .oracle.kl_nats.mean > 0 and .random.top1.mean < .oracle.top1.mean' >/dev/null ||
        fail "$mode: random and oracle"
    # A mean is that of its tokens, and never below zero.
    records "k-$mode.zst" nll | jq -se 'all((.kl_nats | min) >= 0 and ((.kl_nats | add / length) - .kl_mean | fabs) < 0.002 * .kl_mean + 1e-9
        and ((.top1 | add / length) - .top1_mean | fabs) < 1e-9 and (.kl_nats | length) == .n_tok)' >/dev/null || fail "$mode: tokens and means"
done
"$program" report k-prefill.zst >table 2>err
grep -qE 'KL +from +to +top-1 %' table || fail "columns of texts: $(head -n 2 table)"
# Blocks of one token: more bytes of representatives than of keys and values.
grep -qE '^ *infllm .* !' table || fail "infllm reads more than full, and has no mark: $(cat table)"
grep -q '! reads more a token than full attention' table || fail "the mark is not explained"
bash "$source_dir/tests/e2e/check_records.sh" g.zst "$source_dir/results/README.md" partial >out || fail "fields: $(tail -n 3 out)"
bash "$source_dir/tests/e2e/check_records.sh" k-prefill.zst "$source_dir/results/README.md" nll perplexity >out || fail "fields: $(tail -n 3 out)"
echo "test_forms: ok"
