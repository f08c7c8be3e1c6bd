#!/usr/bin/env bash
# test_sweep.sh - a sweep from outside: one prefill per context, resume, shares, policies apart.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# ---- what a sweep does, and what it leaves ------------------------------------------------------

# 2 tasks x 2 lengths; per group and protocol: full, snapkv 64, random 64, quest 64 (and 16 at 256).
sweep_file 3 >small.yaml
equal "dry run" "36 cells in 4 groups: 3456 tokens to prefill, 192 questions to answer, 0 timed steps" \
    "$("$program" sweep small.yaml --dry-run | grep ' cells in ')"
[ ! -e out ] || fail "a dry run wrote something"

# A context is prefilled once, whatever is asked of it: 4 groups of 3 contexts.
equal "one prefill per context" \
    "prefilled 12 contexts (3456 tokens) for 192 samples, 0 contexts for 0 timed runs; 4 errors" \
    "$(run_sweep small.yaml --stats 2>err)"
log=out/small.jsonl.zst
[ -s "$log" ] || fail "no log at $log"
equal "samples" 192 "$(lines_of $log | grep -c '"kind":"sample"')"
equal "cells" 32 "$(lines_of $log | grep -c '"kind":"cell"')"
equal "errors" 4 "$(lines_of $log | grep -c '"kind":"error"')"
equal "runs" 1 "$(lines_of $log | grep -c '"kind":"run"')"
equal "repeated" "" "$(repeated_samples $log)$(repeated_cells $log)"
zstd -tq "$log" || fail "zstd finds the log damaged"
"$program" report $log >table || fail "no table"

# ---- what a dry run says is left, and that it is what a run then does ----------------------------

"$program" sweep small.yaml --dry-run >said
equal "nothing left" "log: $log has 36 of them, 4 as failed; nothing is left to do" "$(tail -n 1 said)"
equal "no cells then" 0 "$(grep -c '^  ' said || true)"
groups_of $log >groups
for n in 2 5 9; do
    head -c "$(sed -n ${n}p groups)" $log >part.zst
    "$program" sweep small.yaml --dry-run --log part.zst >said
    cells=$(sed -nE 's/^log: part.zst has .* left: ([0-9]+) cells, .*/\1/p' said)
    equal "cells that are left, $n" "$(grep -c '^  ' said)" "$cells"
    [ $n = 2 ] || grep -q '^time: about [0-9:]* more, at the rates of the answers in the log$' said || fail "no time: $(cat said)"
    equal "status of a part, $n" \
        "$(lines_of part.zst | grep -c '"kind":"cell"' || true) of 36 done $(lines_of part.zst | grep -c '"kind":"sample"' || true) of 192" \
        "$("$program" status part.zst | sed -nE 's/^(cells|samples) +([0-9]+ of [0-9]+( done)?).*/\2/p' | xargs)"
    run_sweep small.yaml --log part.zst --stats >stats 2>err
    equal "status of a part that went on, $n" "32 of 36 done, 4 stopped by an error (sweep --retry) 192 of 192 not running" \
        "$("$program" status part.zst | sed -nE 's/^(cells|samples|state) +(.*)/\2/p' | xargs)"
    equal "what is left, $n" "$(sed -E 's/.* left: [0-9]+ cells, ([0-9]+) tokens to prefill, ([0-9]+) questions.*/\1 \2/; t; d' said)" \
        "$(sed -E 's/.* contexts \(([0-9]+) tokens\) for ([0-9]+) samples.*/\1 \2/; t; d' stats)"
done
"$program" sweep small.yaml --dry-run --log none.zst >said
grep -q '^log: none.zst has 0 of them; left: 36 cells, 3456 tokens to prefill, 192 questions' said || fail "without a log: $(cat said)"
grep -q '^time: about [0-9:]* more, at the rates of a context of each task$' said || fail "no time: $(cat said)"
[ ! -e none.zst ] || fail "a dry run wrote a log"
equal "a quiet dry run runs nothing" "time: unknown, the log has no answers yet and --quiet runs none" \
    "$("$program" sweep small.yaml --dry-run --quiet --log none.zst 2>&1 | tail -n 1)"

# A running sweep is told from one that was killed.
sweep_file 400 >long.yaml
"$program" sweep --threads 1 --jobs 1 --quiet long.yaml --log killed.zst 2>err &
pid=$!
eventually something_in killed.zst $pid || fail "a sweep that does not begin"
equal "a running sweep" running "$("$program" status killed.zst | sed -nE 's/^state +//p')"
kill -9 $pid
wait $pid 2>/dev/null || true
! "$program" status killed.zst >said 2>err || fail "a killed sweep: the exit code says that nothing is left"
grep -qE '^state +not running, [0-9]+ cells left' said || fail "a killed sweep: $(cat said)"

# ---- several tasks and policies from flags -------------------------------------------------------

# Every one that is named runs, whether the flag stands again or has a list; only the last task did once.
flags=(run -m "$model" --length 256 --contexts 1 --threads 1 --quiet --budget 64)
cells_of() { lines_of "$1" | sed -nE 's/.*"kind":"cell".*"task":"([^"]*)".*"policy":"([^"]*)".*"options_asked":"([^"]*)".*/\1 \2 \3/p' | LC_ALL=C sort; }
"$program" "${flags[@]}" -t passkey:keys=2,depth=1 -P full 2>err && fail "an option that is none is taken"
"$program" "${flags[@]}" -t kv_retrieval -t passkey:keys=2,needle -P quest:page=16,dense_layers=0,snapkv -P full --log flags.zst 2>err ||
    fail "several tasks and policies"
for task in kv_retrieval needle passkey; do
    printf '%s full \n%s quest page=16,dense_layers=0\n%s snapkv \n' $task $task $task
done >want
equal "cells of all of them" "$(cat want)" "$(cells_of flags.zst)"
for words in 'quest,page=16|--policy: "quest,page=16": options follow a colon, want quest:page=16' \
    'quest,,full|--policy: an empty name in the list' 'quest,ful|.*did you mean "full"?'; do
    ! "$program" "${flags[@]}" -t needle -P "${words%%|*}" --log none.zst 2>err || fail "-P ${words%%|*} is taken"
    grep -qx "kvlab: ${words#*|}" err || fail "-P ${words%%|*}: $(cat err)"
done
printf 'a text of some words, again and again, which is long enough. %.0s' {1..80} >text
"$program" "${flags[@]}" -t needle,perplexity:mode=decode -P full --text text --log text.zst 2>err || fail "--text beside another task"
lines_of text.zst | grep -q '"kind":"perplexity".*text=' || fail "the text is not read: $(lines_of text.zst | tail -n 1)"

# ---- contexts that memory has no room for --------------------------------------------------------

# 150 MiB are left by ulimit; a context of 1.5 million tokens takes 0.4 GiB.  It is refused before it
# starts, unless the store itself has a limit or the log has it already.
long=(run -m "$model" -t kv_retrieval -P full --length 1500000 --allow-overlong --contexts 1 --threads 1 --log long.zst)
cramped() { (ulimit -v 200000; "$program" "$@"); }
if ! cramped list >said 2>err; then
    lines_of flags.zst | grep -q '"sanitizers":"[^"]' || fail "list does not start in 200 MB: $(cat err)"
    echo "skipped: contexts that memory has no room for, since a sanitizer wants memory of its own"
else
    rc=0
    cramped "${long[@]}" >said 2>err || rc=$?
    equal "exit code without memory" 4 $rc
    grep -qE '^kvlab: run: lengths: 1500000 tokens: their keys and values take 0\.4 GiB, 0\.[0-9] GiB of memory are free: want at most [0-9]+ tokens(, or --kv-type [a-z0-9_+]+)?$' err ||
        fail "what it says without memory: $(cat err)"
    equal "one line" 1 "$(wc -l <err)"
    [ ! -e long.zst ] || fail "a refused sweep left a log"
    fits=$(sed -E 's/.*at most ([0-9]+) tokens.*/\1/' err)
    [ "$fits" -gt 100000 ] && [ "$fits" -lt 800000 ] || fail "$fits tokens would fit"
    cramped "${long[@]}" --dry-run --quiet >said 2>err || fail "a dry run without memory"
    grep -qE '^memory: about 4[0-9]{2} MiB: 3[0-9]{2}\.[0-9] of keys and values .* \(1500000 tokens\).*: too little, want at most [0-9]+ tokens(, or --kv-type [a-z0-9_+]+)?$' said ||
        fail "a dry run without memory: $(cat said)"
    # A quarter longer than fits: in q8_0 it fits.  What is free can differ by a seventh, by stacks of threads that end.
    more=("${long[@]}" --length $((fits * 5 / 4)))
    cramped "${more[@]}" >said 2>err && fail "a quarter longer than fits"
    grep -qE 'want at most [0-9]+ tokens, or --kv-type q8_0$' err || fail "a smaller type: $(cat err)"
    cramped "${more[@]}" --kv-type q8_0 --dry-run --quiet >said 2>err || fail "a dry run in q8_0: $(cat err)"
    grep -q '^memory: ' said || fail "no memory in a dry run: $(cat said)"
    grep -q 'too little' said && fail "in q8_0 it does not fit: $(cat said)"
fi
grep -q '^ *snapkv  *64 ' table || fail "snapkv is not in the table"

# ---- again: nothing to do -----------------------------------------------------------------------

cp $log before
equal "a second start does nothing" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep small.yaml --stats 2>err)"
cmp -s $log before || fail "a second start changed the log"

# ---- the same answers whoever else is in the sweep ----------------------------------------------

# random needs no raw keys and no window; alone, its engine has neither.
for policy in random quest full; do
    run_sweep small.yaml --set "policies=[$policy]" --log alone.zst 2>err || fail "$policy alone"
    results_of alone.zst >alone
    results_of $log | grep -Ff <(sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' alone | sort -u) >together
    cmp -s alone together || fail "$policy answers differently alone: $(diff alone together | head -n 4)"
    rm alone.zst
done

# A second sweep on the same log runs only what the first one lacks.
equal "more budgets" \
    "prefilled 12 contexts (3456 tokens) for 48 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep small.yaml --set 'budgets=[16, 64, 128]' --set 'policies=[full, snapkv]' --stats 2>err)"

# Threads and chunks change no answer, so they are no other cells either.
"$program" sweep small.yaml --quiet --threads 2 --set chunk_tok=37 --log threads.zst 2>err
equal "threads" "$(results_of before)" "$(results_of threads.zst)"

# Neither does what decodes together: one answer alone, a cell cut in two, as many as there is room for.
for batch in 1 3; do
    run_sweep small.yaml --set batch=$batch --log batch.zst 2>err
    equal "batches of $batch" "$(results_of before)" "$(results_of batch.zst)"
    rm batch.zst
done
# Copies that eviction makes: a limit that lets few sessions in at once costs no answer.
narrow=(small.yaml --set 'policies=[snapkv, h2o]' --set 'budgets=[128, 192, 256]' --set exclude=[]
    --set tasks=kv_retrieval --set lengths=512 --set questions=8 --set kv_type=f32
    --set contexts=1 --set kv_limit_mib=1)
run_sweep "${narrow[@]}" --strict --log narrow.zst 2>err || fail "batches in little memory"
run_sweep "${narrow[@]}" --strict --set batch=1 --log alone.zst 2>err || fail "one in little memory"
equal "batches in little memory" "$(results_of alone.zst)" "$(results_of narrow.zst)"
rm alone.zst
# Budgets of quest share the tables of a prompt within a batch, and those of a context.
shared=(small.yaml --set 'policies=[{policy: quest, page: 4}]' --set 'budgets=[8, 16, 24, 32]'
    --set exclude=[] --set tasks=kv_retrieval --set questions=6)
run_sweep "${shared[@]}" --log shared.zst 2>err || fail "budgets of quest"
run_sweep "${shared[@]}" --set batch=1 --log unshared.zst 2>err || fail "budgets of quest, alone"
equal "budgets that share tables" "$(results_of unshared.zst)" "$(results_of shared.zst)"

# ---- what each protocol runs --------------------------------------------------------------------

# Full attention attends to everything before, so its mean over the tokens run under the policy tells
# which tokens those were: the last one of the question and the answer, or all of the question, too.
if command -v jq >/dev/null; then
    run_sweep small.yaml --set policies=full --log protocols.zst \
        --set 'protocols=[question_in_prefill, question_after_compress, question_as_decode]' 2>err
    lines_of protocols.zst | jq -rs '
        (map(select(.kind == "cell")) | map({ key: .cell, value: .protocol }) | from_entries) as $of
        | map(select(.kind == "sample"))[]
        | (.n_new_tok + (if .stop == "end" then 1 else 0 end)) as $steps
        | (if $of[.cell] == "question_in_prefill" then .question_tok + ($steps - 1) / 2
           else (.question_tok + $steps) / 2 end) as $want
        | [$of[.cell], (if .attended_tok - .context_tok == $want then "right" else "wrong" end)]
        | join(" ")' | sort | uniq -c | awk '{ print $1, $2, $3 }' >attended
    equal "tokens that each protocol runs" \
        $'24 question_after_compress right\n24 question_as_decode right\n24 question_in_prefill right' \
        "$(cat attended)"
    # One token at a time or as a block: the same question, so the same answers but for rounding.
    lines_of protocols.zst | jq -rs '
        (map(select(.kind == "cell")) | map({ key: .cell, value: .protocol }) | from_entries) as $of
        | map(select(.kind == "sample" and $of[.cell] != "question_in_prefill"))
        | group_by([.seed, .question]) | map(map(.ids) | unique | length)
        | map(select(. == 1)) | length' >same
    [ "$(cat same)" -ge 20 ] || fail "only $(cat same) of 24 answers are the same as decode"
fi

# ---- shares -------------------------------------------------------------------------------------

for i in 0 1 2; do run_sweep small.yaml --shard $i/3 2>err || fail "shard $i/3"; done
cat out/small.shard-?-of-3.jsonl.zst >shards.zst
equal "shards together" "$(results_of before)" "$(results_of shards.zst)"
SLURM_ARRAY_TASK_ID=6 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MIN=5 \
    run_sweep small.yaml --log slurm.zst 2>err
equal "share of an array job" "$(results_of out/small.shard-1-of-3.jsonl.zst)" "$(results_of slurm.zst)"

# ---- results of other code ----------------------------------------------------------------------

# by_code HASH POLICY: the log `before` as a program of another POLICY ("engine": of another engine) would
# have written it; the hash has 8 digits.
by_code() {
    local cells=$2 part="s/(\"key\":\"[^\"]*policy=$2\\/[^\"]*;code=[0-9a-f]*\\.)[0-9a-f]*/\\1$1$1/
        s/(\"policies\":\\{[^}]*\"$2\":\")[0-9a-f]*/\\1$1$1/"
    if [ "$2" = engine ]; then
        cells='[a-z]*' part="s/(;code=|\"engine\":\")[0-9a-f]*/\\1$1$1/"
    fi
    lines_of before | sed -nE 's/.*"cell":"([0-9a-f]{16})([0-9a-f]{8})","key":"[^"]*policy='"$cells"'\/.*/s\/\1\2\/\1'"$1"'\//p' |
        sort -u >ids.sed
    lines_of before | sed -E -f ids.sed -e "$part" -e 's/("git"|"code"):"[^"]*"/\1:"0000000"/g'
}
nothing="prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors"

# A commit that edits none of what a cell depends on: a text, a table.
lines_of before | sed -E 's/("git"|"code"):"[^"]*"/\1:"0000000"/g' | zstd -q >old.zst
equal "results of another commit" "$nothing" "$(run_sweep small.yaml --log old.zst --stats 2>err)"
[ ! -s err ] || fail "a commit makes results stale: $(cat err)"

# An edited method: its 8 cells run again, and what it refuses, but nothing else.
by_code 00000000 quest >quest.jsonl
zstd -q <quest.jsonl >old.zst
equal "cells of other code" 8 "$(lines_of old.zst | grep '"kind":"cell"' | grep -cE '"cell":"[0-9a-f]{16}0{8}"')"
"$program" report old.zst >table
! grep -q 'other code' table || fail "a log of one program has stale results: $(grep 'other code' table)"
cp old.zst kept.zst
equal "an edited method runs again" \
    "prefilled 12 contexts (3456 tokens) for 48 samples, 0 contexts for 0 timed runs; 4 errors" \
    "$(run_sweep small.yaml --log old.zst --stats 2>err)"
equal "what is said" "kvlab: old.zst: 8 cells answered by other code (build 0000000) run again; --accept-stale keeps them" "$(cat err)"
"$program" report old.zst >table
! grep -Eq 'other code|Cut off|not in the tables|[^0-9]4[0-9]? of ' table || fail "the old answers are still counted: $(tail -n 12 table)"
"$program" report before >want
equal "the table of the new answers" "$(grep -E '^  quest ' want)" "$(grep -E '^  quest ' table)"
equal "cells of both" '32 of 36 done, 4 stopped by an error (sweep --retry)' \
    "$("$program" status old.zst | sed -nE 's/^cells +(.*)/\1/p')"
equal "samples of both" '192 of 192' "$("$program" status old.zst | sed -nE 's/^samples +//p')"
equal "and then nothing" "$nothing" "$(run_sweep small.yaml --log old.zst --stats 2>err)"
[ ! -s err ] || fail "stale results that were run again: $(cat err)"

# Kept on demand, and marked: by the run that keeps them, and in whatever is made of the log later.
stars() { sed -nE 's/^  ([a-z0-9]+) \* .*/\1/p' | sort -u | xargs; }
equal "stale results are kept on demand" "$nothing" "$(run_sweep small.yaml --log kept.zst --accept-stale --stats 2>err)"
equal "what is kept" "kvlab: kept.zst: 8 cells answered by other code (build 0000000) are kept; tables mark them with a star" "$(cat err)"
"$program" report kept.zst >table
equal "rows with a star" quest "$(stars <table)"
grep -Eq '^\* answered or timed by other code .*: 8\.' table || fail "no line on the star: $(tail -n 8 table)"
"$program" report kept.zst --evidence >table
equal "rows with a star beside accuracy" quest "$(stars <table)"
grep -Eq '^\* answered or timed by other code' table || fail "no line on the star: $(tail -n 8 table)"
cp kept.zst again.zst
"$program" sweep small.yaml --threads 1 --log again.zst --accept-stale >table 2>err
equal "rows with a star in the sweep's own table" quest "$(stars <table)"
cmp -s kept.zst again.zst || fail "a second start that keeps stale results changed the log"

# Cells are counted, not their records: two earlier versions answered the same 8.
by_code 11111111 quest | cat quest.jsonl - | zstd -q >twice.zst
run_sweep small.yaml --log twice.zst --accept-stale 2>err
grep -q 'twice.zst: 8 cells answered by other code' err || fail "cells that two versions answered: $(cat err)"

# An edited engine: everything runs again.
by_code 00000000 engine | zstd -q >old.zst
equal "an edited engine" \
    "prefilled 12 contexts (3456 tokens) for 192 samples, 0 contexts for 0 timed runs; 4 errors" \
    "$(run_sweep small.yaml --log old.zst --stats 2>err)"
grep -q 'old.zst: 32 cells answered by other code' err || fail "an edited engine: $(cat err)"

# A log from before keys had the code: read as it was, and kept on demand.
lines_of before | sed -E 's/"cell":"([0-9a-f]{16})[0-9a-f]{8}"/"cell":"\1"/; s/;code=[0-9a-f.]*//
    s/,"sources":\{"engine.*("machine":)/,\1/; s/("git"|"code"):"[^"]*"/\1:"0000000"/g' | zstd -q >old.zst
"$program" report old.zst >table
equal "the table of an older log" "$(grep -E '^  [a-z0-9]+ +[0-9-]' want)" "$(grep -E '^  [a-z0-9]+ +[0-9-]' table)"
equal "an older log is kept on demand" "$nothing" "$(run_sweep small.yaml --log old.zst --accept-stale --stats 2>err)"
grep -q 'old.zst: 32 cells answered by other code' err || fail "an older log: $(cat err)"
"$program" report old.zst >table
equal "its rows with a star" "full quest random snapkv" "$(stars <table)"

# ---- speed --------------------------------------------------------------------------------------

cat >speed.yaml <<EOF
model: $model
policies: [full, quest, snapkv]
budgets: [64]
speed: {task: kv_retrieval, lengths: [256, 320], steps: 5, warmup: 2, repeats: 2}
EOF
equal "one prefill per length" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 2 contexts for 12 timed runs; 0 errors" \
    "$(run_sweep speed.yaml --stats 2>err)"
lines_of out/speed.jsonl.zst | grep '"kind":"speed"' >speeds
equal "timed runs" 12 "$(wc -l <speeds)"
equal "steps" 12 "$(grep -cE '"step_ns":\[[0-9]+,[0-9]+,[0-9]+,[0-9]+,[0-9]+\]' speeds)"
equal "timed runs are not repeated" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep speed.yaml --stats 2>err)"

# ---- from flags ---------------------------------------------------------------------------------

"$program" run --model "$model" --task passkey:keys=2 --policy full --policy quest:page=8 \
    --length 256,320 --budget 64 --contexts 1 --questions 2 --log run.zst --quiet --stats \
    >stats 2>err || fail "kvlab run"
equal "run" "prefilled 2 contexts (576 tokens) for 8 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(cat stats)"

# A log may hold other sweeps; the table at the end is that of this one.
"$program" run --model "$model" --task passkey:keys=2 --policy full --length 256 --contexts 1 \
    --questions 2 --log run.zst >table 2>err || fail "kvlab run again"
grep -q '^ *full ' table || fail "no table at the end: $(cat table)"
! grep -Eq 'quest |320' table || fail "cells of another sweep in the table: $(cat table)"

# ---- a policy that breaks its contract for some questions -----------------------------------------

if ! command -v cc >/dev/null; then
    echo "test_sweep: no cc, a broken policy is not tested"
    exit 0
fi
cat >broken.c <<'EOF'
#include "kvl/policy.h"

/* Names a position that does not exist when the sample's seed is odd; else reads everything. */
static int broken_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos = step->pos + 7;
    (void)q;
    if (ctx->seed % 2 == 0) return KVL_OK;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, &pos, 1);
}

static const struct kvl_policy broken = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "broken",
    .title = "Broken",
    .paper = "none",
    .help = "fails for every other question",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SAMPLES,
    .select = broken_select,
};

KVL_POLICY_EXPORT(broken)
EOF
cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o broken.so broken.c
run_sweep small.yaml --plugin ./broken.so --set 'policies=[broken, full]' --set budgets=64 \
    --set contexts=8 --log broken.zst 2>err || fail "a broken policy ended the sweep"
broken=$(lines_of broken.zst | sed -nE 's/.*"kind":"cell".*"cell":"([^"]*)".*"policy":"broken".*/\1/p')
equal "cells of the broken policy" 8 "$(wc -w <<<"$broken")"
lines_of broken.zst | grep '"kind":"sample"' >samples
grep -Ff <(printf '"cell":"%s"\n' $broken) samples >of_broken
n_bad=$(grep -c '"error":"broken: select, layer 0, .*position [0-9]* out of range' of_broken)
n_good=$(grep -c '"error":null' of_broken)
equal "samples of the broken policy" $((8 * 8 * 2)) $((n_bad + n_good))
[ "$n_bad" -gt 20 ] && [ "$n_good" -gt 20 ] || fail "$n_bad samples failed, $n_good did not"
# One question of a batch fails, the other is answered.
mixed=$(sed -nE 's/.*("cell":"[^"]*","context":[0-9]*),.*"error":(null|").*/\1 \2/p' of_broken |
    LC_ALL=C sort -u | cut -d ' ' -f 1 | uniq -d | wc -l)
[ "$mixed" -ge 8 ] || fail "$mixed contexts have failures and answers"
# Those that did not fail are right: they say what full attention says.
answers() {
    sed -nE 's/.*"context":([0-9]*),"question":([0-9]*),"seed":"([^"]*)".*("ids":[^]]*\]).*"error":null.*/\3 \2 \4/p' |
        LC_ALL=C sort -u
}
answers <of_broken >broken.answers
grep -vFf <(printf '"cell":"%s"\n' $broken) samples | answers >full.answers
equal "answers that full attention does not give" "" \
    "$(LC_ALL=C comm -23 broken.answers full.answers)"
# Nor does a failure reach those that decode with it.
run_sweep small.yaml --plugin ./broken.so --set 'policies=[broken, full]' --set budgets=64 \
    --set contexts=8 --set batch=1 --log alone.zst 2>err || fail "a broken policy, alone"
equal "a broken policy in a batch" "$(results_of alone.zst)" "$(results_of broken.zst)"
run_sweep small.yaml --plugin ./broken.so --set 'policies=[broken, full]' --set budgets=64 \
    --set contexts=8 --log broken.zst --stats >stats 2>err
equal "failures are not repeated" \
    "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(cat stats)"

# ---- a policy that crashes ------------------------------------------------------------------------

ulimit -c 0
# crash WANT ARGUMENTS...: the program ends by SIGSEGV, and says so
crash() {
    local want=$1 rc=0
    shift
    { "$program" "$@" >stdout 2>err || rc=$?; } 2>/dev/null
    equal "exit after a crash" 139 $rc
    equal "message of a crash" "$want" "$(cat err)"
}
sed -e 's/if (ctx->seed % 2 == 0) return KVL_OK;/*(volatile int *)0 = pos;/' -e 's/broken/crash/g' \
    broken.c >crash.c
cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o crash.so crash.c
run_sweep small.yaml --set 'policies=[full]' --log crash.zst 2>err || fail "before the crash"
cp crash.zst full.zst
run_sweep small.yaml --jobs 1 --plugin ./crash.so --set 'policies=[full, crash]' --set budgets=64 --log crash.zst 2>err ||
    fail "a crash ended the sweep"
equal "the log after a crash" "$(results_of full.zst)" "$(results_of crash.zst | grep -v '"kind":"error"')"
run_sweep small.yaml --set 'policies=[full]' --log crash.zst 2>err || fail "no sweep after a crash"
crash 'kvlab: crashed while policy crash ran' generate -m "$model" --plugin ./crash.so \
    --prompt 'a b c d' --policy crash:budget=64
cat >start.c <<'EOF'
__attribute__((constructor)) static void start(void)
{
    *(volatile int *)0 = 1;
}
EOF
cc -shared -fPIC -o start.so start.c
crash 'kvlab: crashed; a plug-in may be the cause' list --plugin ./start.so
