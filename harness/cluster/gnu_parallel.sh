#!/usr/bin/env bash
# gnu_parallel.sh - a sweep in shards by GNU parallel, on this machine or, with its --sshloginfile, on several that share
# the folder.  Started again it runs what is left.
#
#   gnu_parallel.sh 64 sweep.yaml [OPTIONS of kvlab sweep]     # JOBS=4 shards at a time; RUNS: where the logs go
#   PARALLEL='--sshloginfile nodes --workdir .' gnu_parallel.sh 64 sweep.yaml
set -u
[ $# -ge 2 ] || { echo "want: gnu_parallel.sh SHARDS SWEEP.yaml [OPTIONS]" >&2; exit 2; }
shards=$1 runs=${RUNS:-runs} kvlab=${KVLAB:-kvlab}
shift
seq 0 $((shards - 1)) | parallel --quote --jobs "${JOBS:-1}" --retries 3 --termseq TERM,30000,KILL --tag --line-buffer \
    "$kvlab" sweep "$@" --set "log=$runs/sweep.jsonl.zst" --shard "{}/$shards" --quiet
exec "$kvlab" status "$runs"/*.zst
