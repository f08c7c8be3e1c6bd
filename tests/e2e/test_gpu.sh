#!/usr/bin/env bash
# test_gpu.sh - --device cuda: what it says where there is no GPU; and on one (the emulated one, with
# KVL_TEST_CUDA set) the same answers, records that tell of it, and a sweep that outlives its failures.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
ulimit -c 0
unset "${!KVL_EMU_@}"
tiny=$source_dir/datasets/model/kvlab-tiny.gguf

# fails CODE WHAT ARGUMENTS...: ends with CODE and one line that has WHAT
fails() {
    local code=$1 what=$2 rc=0
    shift 2
    "$program" "$@" >out 2>err || rc=$?
    equal "$*" "$code" "$rc"
    [ "$(wc -l <err)" = 1 ] || fail "$*: not one line"
    grep -q -- "$what" err || fail "$*: no \"$what\""
}

# What runs a model, on a device that is not there.
refused() {
    sweep_file 1 >small.yaml
    fails 7 "$1" run --device cuda --model "$model" --task passkey --length 256 --policy full
    fails 7 "$1" run --device hybrid --model "$model" --task passkey --length 256 --policy full
    fails 7 "$1" sweep --device cuda small.yaml --log none.zst
    fails 7 "$1" logits --device cuda --model "$model" --ids 1,2 --out x.npy
    fails 7 "$1" generate --device cuda --model "$model" --prompt x
    fails 7 "$1" analyze mass --device cuda --model "$model" --task passkey --length 256
    [ ! -e none.zst ] || fail "a log of nothing"
}

fails 2 'want cpu, cuda, hybrid or cpu-hybrid' run --device gpu --model "$model" --task passkey --length 256
for device in cuda: cuda:x cuda:1..0 cuda:0.1 cuda:64 cpu:0; do
    fails 2 "\"$device\": want a GPU as in cuda:2" run --device "$device" --model "$model" --task passkey --length 256
done
"$program" doctor >out || fail "doctor"
grep -q '^processor ' out || fail "doctor: no processor"
grep -qE '^threads    [0-9]+ of [0-9]+ processors may be used' out || fail "doctor: threads: $(cat out)"
grep -qE '^disk       [0-9.]+ GiB free here$' out || fail "doctor: disk: $(cat out)"
SLURM_CPUS_PER_TASK=1 OMP_NUM_THREADS=7 "$program" doctor >out || fail "doctor in a job"
grep -qE '^threads    .*, 1 by Slurm, OMP_NUM_THREADS is 7$' out || fail "doctor: Slurm: $(cat out)"
grep -q '^do         --threads 1: more would wait for each other, 7 are the default here$' out || fail "doctor: what to do: $(cat out)"
if [ -z "${KVL_TEST_CUDA:-}" ]; then
    grep -q '^GPU        none: device cuda: ' out || exit 0
    refused 'device cuda: .*; '
    exit 0
fi

grep -q '^GPU        emulated' out || fail "doctor: no GPU"
grep -q '^graphs     taken' out || fail "doctor: no graphs"
KVL_EMU_GRAPHS=0 "$program" doctor 2>err | grep -c >/dev/null '^graphs     none' || fail "doctor: graphs of a driver that has none"
KVL_EMU_DEVICES=0 refused 'device cuda: no GPU '
fails 2 'decode_act q8 is of the CPU, got device cuda; want q16' logits --device cuda --decode-act q8 --model "$model" --ids 1,2 --out x.npy
fails 2 'prefill_type blas is of the CPU, got device cuda; want f32 or bf16' logits --device cuda --prefill-type blas --model "$model" --ids 1,2 --out x.npy

# ---- the same answers -----------------------------------------------------------------------------

ids_of() {
    "$program" generate --model "$model" --device "$@" --prompt 'The key is 4711. The key is' \
        -n 6 --show-ids 2>err || fail "generate on $1"
}
equal "greedy tokens" "$(ids_of cpu)" "$(ids_of cuda)"
equal "greedy tokens, from the host" "$(ids_of cpu)" "$(ids_of cuda --prefill-kv host)"

cat >small.yaml <<END
name: small
model: $model
tasks: [{task: passkey, keys: 2}]
lengths: [192]
contexts: 2
policies: [full, quest, snapkv]
budgets: [64]
speed: {lengths: [128], policies: [full, quest], steps: 2, warmup: 1, repeats: 1}
END
predictions() { lines_of "$1" | jq -c 'select(.kind == "sample") | [.policy, .context, .prediction]' | LC_ALL=C sort; }
run_sweep small.yaml --log cpu.zst 2>err || fail "the sweep on the CPU"
run_sweep small.yaml --device cuda --log cuda.zst 2>err || fail "the sweep on the GPU"
[ ! -s err ] || fail "the sweep on the GPU says something"
equal "samples" 6 "$(predictions cuda.zst | wc -l)"
equal "predictions" "$(predictions cpu.zst)" "$(predictions cuda.zst)"
equal "devices of cells" '"cuda"' "$(lines_of cuda.zst | jq -c 'select(.kind == "cell" or .kind == "speed").device' | sort -u)"
equal "keys of both" 0 "$(cat cpu.zst cuda.zst | zstd -dcq | jq -r 'select(.kind == "cell" or .kind == "speed").key' | sort | uniq -d | wc -l)"
equal "timed runs with a GPU" 2 "$(lines_of cuda.zst | jq -c 'select(.kind == "speed" and .gpu.launches > 0 and .gpu.graphs > 0 and .gpu.device_peak_bytes > 0 and .attend_ns == null and .rest_ns == null)' | wc -l)"
equal "run records with a GPU" 1 "$(lines_of cuda.zst | jq -c 'select(.kind == "run" and (.gpu.name | length) > 0)' | wc -l)"
bash "$source_dir/tests/e2e/check_records.sh" cuda.zst "$source_dir/results/README.md" run sample cell speed >out ||
    fail "the dictionary: $(cat out)"
equal "a second start" 0 "$(run_sweep small.yaml --device cuda --log cuda.zst --stats 2>err | grep -c 'prefilled [1-9]')"

# ---- several GPUs ---------------------------------------------------------------------------------

# Workers take them by turns; which one it was changes no cell.
: >chosen
grep -v '^speed' small.yaml >two.yaml
KVL_EMU_DEVICES=4 KVL_EMU_CHOSEN=$PWD/chosen run_sweep two.yaml --device cuda:1..2 --log two.zst 2>err ||
    fail "the sweep on two GPUs"
equal "GPUs that were taken" "1 2" "$(sort -u chosen | xargs)"
equal "predictions on two GPUs" "$(predictions cpu.zst)" "$(predictions two.zst)"
equal "the log of two GPUs on one" 0 "$(run_sweep two.yaml --device cuda --log two.zst --stats 2>err | grep -c 'prefilled [1-9]')"
KVL_EMU_DEVICES=2 fails 7 'device cuda:2: GPUs that are visible: 2 .*; want a number from 0 to 1' \
    generate --device cuda:2 --model "$model" --prompt x
fails 2 'this command works on one GPU, want cuda:0' generate --device cuda:0..1 --model "$model" --prompt x

# ---- a GPU that fails -----------------------------------------------------------------------------

# Every worker loses its GPU at its n-th kernel: what ran is blamed, what is left goes on with another
# worker, and a second start does what failed.  lose N: messages of what failed are in `lost`.
lose() {
    local n=$1 errors
    KVL_EMU_FAIL=run:$n:700 run_sweep small.yaml --device cuda --log $n.zst 2>err || fail "a GPU that is lost at kernel $n"
    zstd -tq $n.zst || fail "zstd finds the log of $n damaged"
    errors=$(lines_of $n.zst | jq -c 'select(.kind == "error")')
    [ -n "$errors" ] || fail "nothing failed at kernel $n"
    equal "what failed" "" "$(jq -c 'select(.status != "device error" or (.message | test("illegal memory access") | not))' <<<"$errors")"
    lost=$(jq -r .message <<<"$errors")
    run_sweep small.yaml --device cuda --log $n.zst --retry 2>err || fail "a second start behind $n"
    equal "predictions behind $n" "$(predictions cpu.zst)" "$(predictions $n.zst)"
    equal "nothing twice" "" "$(repeated_samples $n.zst)"
}
lose 100
# In an answer: only there does quest select.  Which kernels those are moves with how many a step has.
for n in 350 330 600; do
    lose $n
    ! grep -q '^quest: select, ' <<<"$lost" || break
done
grep -q '^quest: select, ' <<<"$lost" || fail "no kernel of an answer failed: $lost"
KVL_EMU_FAIL=run:1:700 fails 7 'device cuda: ' sweep --device cuda small.yaml --log none.zst
KVL_EMU_FAIL=run:400:700 fails 7 "illegal memory access" generate --model "$model" --device cuda --prompt x
for n in 6 16 22; do # where memory is wanted, too
    KVL_EMU_FAIL=malloc:$n:700 fails 7 "illegal memory access" generate --model "$model" --device cuda --prompt x --policy quest:budget=64
done

# Too little memory: what was wanted, and what there is.
KVL_EMU_MEMORY=4000000 fails 4 'wanted: weights .* there is: ' generate --model "$model" --device cuda --prompt x
KVL_EMU_MEMORY=4000000 fails 4 'wanted: weights' generate --model "$model" --device cuda --prompt x \
    --policy h2o:budget=64,prefill=own
equal "tables of memory" 1 "$(grep -o 'wanted:' err | wc -l)"
