#!/usr/bin/env bash
# slurm_node.sh - a sweep on all GPUs of one node: one process, a worker per GPU, one log.  It goes on later when its time
# is over.
#
#   sbatch --gres=gpu:4 slurm_node.sh sweep.yaml [OPTIONS of kvlab sweep]
#
# Without Slurm: kvlab sweep sweep.yaml --device cuda:0..3
#SBATCH --nodes=1 --cpus-per-task=32 --time=04:00:00 --signal=B:USR1@120
#SBATCH --requeue --open-mode=append
set -u
[ $# -ge 1 ] || { echo "want: slurm_node.sh SWEEP.yaml [OPTIONS]" >&2; exit 2; }
gpus=${SLURM_GPUS_ON_NODE:-0} device=() again=
[ "$gpus" = 0 ] || device=(--device "cuda:0..$((gpus - 1))")
"${KVLAB:-kvlab}" sweep "$@" ${device[@]+"${device[@]}"} --set "log=${RUNS:-runs}/sweep.jsonl.zst" --shard none --quiet &
pid=$!
trap 'again=1; kill -USR1 $pid' USR1
trap : TERM
while kill -0 $pid 2>/dev/null; do wait $pid; done
wait $pid
rc=$?
[ $rc != 75 ] || [ -z "$again" ] || scontrol requeue "$SLURM_JOB_ID"
exit $rc
