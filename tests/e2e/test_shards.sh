#!/usr/bin/env bash
# test_shards.sh - a sweep in shards: whose they are, what keeps them together, and their logs as one.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
merge() { "$program" log merge "$@"; }

# refused CODE SAYS COMMAND...: it fails with the code and says so in one line
refused() {
    local code=$1 says=$2 rc=0
    shift 2
    "$program" "$@" >stdout 2>err || rc=$?
    equal "exit of $*" "$code" $rc
    equal "lines about $*" 1 "$(wc -l <err)"
    grep -qE -e "$says" err || fail "$*: want $says"
}

sweep_file 2 >small.yaml
run_sweep small.yaml --log whole.zst 2>err || fail "the sweep alone"
results_of whole.zst >whole

# ---- four processes, each told by something else -----------------------------------------------------

run_sweep small.yaml --shard 0/4 2>err || fail "the flag"
KVLAB_SHARD=1/4 run_sweep small.yaml 2>err || fail "KVLAB_SHARD"
SLURM_ARRAY_TASK_ID=12 SLURM_ARRAY_TASK_COUNT=1 KVLAB_SHARD_OFFSET=-10 run_sweep small.yaml --shard auto/4 2>err || fail "an array"
OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 "$program" sweep --threads 1 small.yaml --shard auto >stdout 2>err || fail "MPI"
grep -qx 'kvlab: shard 3/4 (OMPI_COMM_WORLD_RANK)' err || fail "it does not say which shard it is"
equal "logs and plan" "small.plan.json small.shard-0-of-4.jsonl.zst small.shard-1-of-4.jsonl.zst small.shard-2-of-4.jsonl.zst small.shard-3-of-4.jsonl.zst" \
    "$(ls out | xargs)"
for i in 0 1 2 3; do
    lines_of out/small.shard-$i-of-4.jsonl.zst >shard-$i.jsonl
    grep -c '"kind":"sample"' shard-$i.jsonl >/dev/null || fail "shard $i has nothing to do"
done

# ---- the plan ---------------------------------------------------------------------------------------

cp out/small.plan.json plan.json
refused 2 'small.plan.json: its sweep is spread over 4 shards, this is shard 1 of 3 \(--shard\): want --shard i/4' \
    sweep small.yaml --shard 1/3
KVLAB_SHARD=0/8 refused 2 'small.plan.json: its sweep is spread over 4 shards, this is shard 0 of 8 \(KVLAB_SHARD\)' \
    sweep small.yaml --dry-run
refused 2 'small.plan.json: its shards have plan [0-9a-f]{16}, this sweep has [0-9a-f]{16}' \
    sweep small.yaml --shard 1/4 --set 'policies=[full, quest]'
equal "a refused shard has no log" 4 "$(ls out/*.zst | wc -l)"
cmp -s plan.json out/small.plan.json || fail "the plan was changed"
echo 'no plan' >out/odd.plan.json
refused 2 'odd.plan.json: no plan of shards' sweep small.yaml --set log=out/odd.jsonl.zst --shard 1/4
# The same sweep by the same plan goes on.
equal "again" "prefilled 0 contexts (0 tokens) for 0 samples, 0 contexts for 0 timed runs; 0 errors" \
    "$(run_sweep small.yaml --shard 2/4 --stats 2>err)"
# Many that begin at once: one writes the plan, and they are of one mind.
for i in 0 1 2 3 4 5 6 7; do
    run_sweep small.yaml --shard $i/8 --set log=many/small.jsonl.zst --set contexts=1 --set tasks=kv_retrieval 2>err.$i &
done
wait
equal "shards of a plan, some of them empty" 8 "$(ls many/*.zst | wc -l)"
equal "and one plan" 1 "$(ls -A many | grep -vc zst)"

# ---- what is left ------------------------------------------------------------------------------------

# gate CODE LEFT LOG...: exit code of status, and the shards that it says are left
gate() {
    local code=$1 left=$2 rc=0 only=0
    shift 2
    "$program" status "$@" >stdout 2>err || rc=$?
    equal "exit of status $*" "$code" $rc
    equal "left of $*" "${left:+$left}" "$(sed -nE 's/^left +shards (.*) of [0-9]+$/\1/p' stdout)"
    equal "only what is left of $*" "$left" "$("$program" status --left "$@" 2>said || only=$?; [ $only = "$code" ] || echo "exit $only")"
    equal "lines about what is left of $*" $((code != 0)) "$(wc -l <err)"
}
gate 0 '' out/*.zst
gate 0 '' whole.zst
gate 0 '' many
gate 75 1,3 out/small.shard-[02]*
gate 75 0-2 out/small.shard-3*
gate 75 1-2,4-7 many/small.shard-[03]*
grep -qx 'kvlab: work is left: shards 1-2,4-7 of 8' err || fail "what is left: $(cat err)"
# A shard that was cut off, and the same after it went on.
groups_of out/small.shard-2-of-4.jsonl.zst | sed -n 4p >at
mkdir cut
cp out/small.shard-[01]* cut
head -c "$(cat at)" out/small.shard-2-of-4.jsonl.zst >cut/small.shard-2-of-4.jsonl.zst
gate 75 2-3 cut
for i in 2 3; do run_sweep small.yaml --set log=cut/small.jsonl.zst --shard $i/4 2>err || fail "a shard that goes on"; done
gate 0 '' cut
# An unsharded sweep has no numbers; failures are none either, and neither is damage.
groups_of whole.zst | sed -n 9p >at
head -c "$(cat at)" whole.zst >half.zst
gate 75 '' half.zst
lines_of whole.zst | sed -E '0,/"kind":"sample"/s/("kind":"sample".*)"error":null/\1"error":"lost"/; /"kind":"sample"/s/"error":null/"error":"lost"/' | zstd -q >lost.zst
gate 6 '' lost.zst
{ cat whole.zst; echo damage; cat whole.zst; } >hurt.zst
gate 5 '' hurt.zst
run_sweep small.yaml --set name=other --set log=of3/other.jsonl.zst --set contexts=1 --shard 0/3 2>err || fail "another sweep"
refused 2 'left: sweeps in other numbers of shards' status --left out/small.shard-[02]* of3

# ---- one log of them ---------------------------------------------------------------------------------

cp -r out before
equal "merged" "merged.zst: $(cat shard-?.jsonl | wc -l) records of 4 runs, from 4 logs of $(cat shard-?.jsonl | wc -l)" \
    "$(merge -o merged.zst out/small.shard-*)"
results_of merged.zst >merged
cmp -s whole merged || fail "other records than those of an unsharded run: $(diff whole merged | head -n 4)"
diff -r before out || fail "a merge changes its logs"
"$program" log check merged.zst >stdout 2>err || fail "the merged log is not whole: $(cat stdout)"
[ "$(ls -A | grep -c part-)" = 0 ] || fail "something is left beside it"

# The order and the names of the logs are no part of it, nor is what stands there twice.
merge -o other.zst out/small.shard-[321]* out/small.shard-0* >stdout 2>err || fail "another order"
cmp -s merged.zst other.zst || fail "another order gives other bytes"
mkdir named
i=9
for log in out/*.zst; do cp "$log" named/$((i--)).zst; done
merge -o names.zst named >stdout 2>err || fail "other names"
cmp -s merged.zst names.zst || fail "other names give other bytes"
merge -o twice.zst out out/*.zst merged.zst named/9.zst >stdout 2>err || fail "logs that stand twice"
cmp -s merged.zst twice.zst || fail "logs that stand twice give other bytes"
merge -o a.zst out/small.shard-[02]* >stdout 2>err
grep -qx 'small: shard 1,3 of 4 is in no log' stdout || fail "what is missing: $(cat stdout)"
merge -o b.zst out/small.shard-[13]* >stdout 2>err
merge -o ab.zst b.zst a.zst >stdout 2>err
cmp -s merged.zst ab.zst || fail "merged in two steps"

# Answered twice: the first answer stays, unless it failed.
run_sweep small.yaml --shard 1/4 --log again.zst 2>err || fail "shard 1 once more"
merge -o again2.zst again.zst out/*.zst >stdout 2>err || fail "a shard that ran twice"
grep -q '; [0-9]* had been answered already$' stdout || fail "it does not say so: $(cat stdout)"
results_of again2.zst | cmp -s whole - || fail "a shard that ran twice"
equal "nothing twice" "" "$(repeated_samples again2.zst)"
# Failures of an earlier run, as lines: every answer of it is an error.
lines_of again.zst | sed -E '/"kind":"sample"/s/"error":null/"error":"lost"/; s/"run":"[0-9a-f]{32}"/"run":"00000000000000000000000000000000"/
    s/"t_start":"[^"]*"/"t_start":"2001-01-01T00:00:00.000Z"/; s/"n_errors":0/"n_errors":4/' | zstd -q >failed.zst
merge -o healed.zst failed.zst out/*.zst >stdout 2>err || fail "a shard that failed first"
results_of healed.zst | cmp -s whole - || fail "failures stay: $(results_of healed.zst | diff whole - | head -n 4)"

# ---- what is no shard of it --------------------------------------------------------------------------

refused 2 'merged.zst: exists; merge writes a new file' log merge -o merged.zst out
refused 2 'merge: no new log, want --out FILE' log merge out
refused 2 'no log given' log merge -o none.zst
run_sweep small.yaml --shard 1/3 --log third.zst 2>err
refused 2 'third.zst: shard 1/3 of plan [0-9a-f]{16}, and out/small.shard-0-of-4.jsonl.zst has one of 4 of plan [0-9a-f]{16}' \
    log merge -o none.zst out third.zst
run_sweep small.yaml --shard 1/4 --log changed.zst --set 'policies=[full, quest]' 2>err
refused 2 'changed.zst: shard 1/4 of plan' log merge -o none.zst out changed.zst
cp out/small.shard-1-of-4.jsonl.zst hit.zst
printf 'damage' | dd of=hit.zst bs=1 seek=1000 conv=notrunc 2>dd.err
refused 5 'hit.zst: byte [0-9]+: .*; merge what kvlab log repair copies of it' log merge -o none.zst out hit.zst
sed 's/kvlab\/1/kvlab\/2/' shard-1.jsonl | zstd -q >newer.zst
refused 5 'newer.zst: a record of schema "kvlab/2", want kvlab/1' log merge -o none.zst out newer.zst
[ ! -e none.zst ] || fail "a refused merge leaves a log"
# A torn tail is none of a log's records.
head -c -10 out/small.shard-1-of-4.jsonl.zst >torn.zst
merge -o torn2.zst torn.zst out/*.zst >stdout 2>err || fail "a torn tail"
cmp -s merged.zst torn2.zst || fail "a torn log beside the whole one"

# ---- times apart from accuracy ------------------------------------------------------------------------

timed=(small.yaml --set contexts=1 --set lengths=256 --set
    'speed={task: kv_retrieval, lengths: [256], steps: 3, repeats: 2, policies: [full, quest], budgets: [64]}')
cells_of() { lines_of "$1" | grep -E '"kind":"(cell|speed)"' | sed -E 's/.*"kind":"([a-z]*)".*"cell":"([^"]*)".*/\1 \2/' | LC_ALL=C sort; }
run_sweep "${timed[@]}" --log both.zst 2>err || fail "accuracy and times"
run_sweep "${timed[@]}" --log speed.zst --only speed 2>err || fail "--only speed"
run_sweep "${timed[@]}" --log accuracy.zst --only accuracy 2>err || fail "--only accuracy"
equal "only times" "$(cells_of both.zst | grep speed)" "$(cells_of speed.zst)"
equal "all but times" "$(cells_of both.zst | grep -v speed)" "$(cells_of accuracy.zst)"
gate 0 '' speed.zst
for i in 0 1; do run_sweep "${timed[@]}" --set log=timed/x.jsonl.zst --only speed --shard $i/2 2>err || fail "shard $i of times"; done
equal "only times, in shards" "$(cells_of speed.zst)" "$(for i in 0 1; do cells_of timed/x.shard-$i-of-2.jsonl.zst; done | LC_ALL=C sort)"
refused 2 'x.plan.json: its shards have plan' sweep "${timed[@]}" --threads 1 --set log=timed/x.jsonl.zst --shard 0/2
refused 2 '^kvlab: --only: "times": want speed or accuracy$' sweep small.yaml --only times

# A ratio of times wants one machine, one GPU and one driver on both sides.
"$program" compare full quest speed.zst >stdout 2>err || [ $? = 1 ] || fail "times of one machine: $(cat err)"
grep -qE ' speed .*(better|worse|no difference|faster|slower|same|unclear)' stdout || fail "times of one machine: $(cat stdout)"
lines_of speed.zst | sed -E '/"policy":"quest"/!d; s/"run":"[0-9a-f]{32}"/"run":"00000000000000000000000000000000"/' >quest.jsonl
for gpu in '{"name":"A","driver":"1"}' '{"name":"A","driver":"2"}' '{"name":"B","driver":"1"}'; do
    { lines_of speed.zst | sed -E '/"policy":"quest"/d; s/"gpu":null/"gpu":{"name":"A","driver":"1"}/'
      lines_of speed.zst | sed -E '/"kind":"run"/!d; s/"run":"[0-9a-f]{32}"/"run":"00000000000000000000000000000000"/; s/"gpu":null/"gpu":'"$gpu"'/'
      cat quest.jsonl; } | zstd -q >gpus.zst
    "$program" compare full quest gpus.zst >stdout 2>err || true
    if [ "$gpu" = '{"name":"A","driver":"1"}' ]; then
        ! grep -q 'timed on another' stdout err || fail "the same GPU: $(cat stdout err)"
    else
        grep -q 'timed on another machine, device, driver or number of threads' stdout err || fail "a ratio over GPUs: $(cat stdout err)"
    fi
    rm gpus.zst
done
