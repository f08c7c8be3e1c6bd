#!/usr/bin/env bash
# slurm_array.sh - a sweep as an array job: a shard per task, each with a GPU.  What is pre-empted, loses its node or comes
# to its time limit goes on later, where it was.
#
#   sbatch --array=0-63%16 slurm_array.sh 64 sweep.yaml [OPTIONS of kvlab sweep]
#   kvlab status runs/*.zst                # 0: all is done; 75: some shards are left
#   sbatch --array="$(kvlab status --left runs/*.zst)" slurm_array.sh 64 sweep.yaml
#   kvlab log merge -o all.zst runs/*.zst
#
# More shards than MaxArraySize (scontrol show config): several arrays, KVLAB_SHARD_OFFSET=1000 sbatch ... for the second.
# One kind of GPU for times: --gres=gpu:h100:1 and --only speed; accuracy may run on any (--only accuracy).
#SBATCH --gres=gpu:1 --cpus-per-task=8 --time=04:00:00 --signal=B:USR1@120
#SBATCH --requeue --open-mode=append --output=slurm-%A_%a.out
set -u
[ $# -ge 2 ] || { echo "want: slurm_array.sh SHARDS SWEEP.yaml [OPTIONS]" >&2; exit 2; }
shards=$1 again=
shift
"${KVLAB:-kvlab}" sweep "$@" --set "log=${RUNS:-runs}/sweep.jsonl.zst" --shard "auto/$shards" --quiet &
pid=$!
trap 'again=1; kill -USR1 $pid' USR1 # B: it comes to this script alone, ahead of the time limit
trap : TERM                          # comes to both: pre-empted, cancelled or too late; Slurm decides what follows
while kill -0 $pid 2>/dev/null; do wait $pid; done # a trap ends a wait
wait $pid
rc=$?
[ $rc != 75 ] || [ -z "$again" ] || scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
exit $rc
