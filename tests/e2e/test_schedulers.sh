#!/usr/bin/env bash
# test_schedulers.sh - the templates of harness/cluster for GNU parallel, Snakemake and Ray, each where it is installed: what
# they run is interrupted, started again and merged, and has the records of an unsharded sweep.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
export KVLAB=$program HOME=$work
cluster=$source_dir/harness/cluster
cd "$work"
tried=
more=(--set threads=1)

sweep_file 6 >small.yaml
run_sweep small.yaml --log whole.zst 2>err || fail "the sweep alone"
results_of whole.zst >whole

# whole LOG...: they are done, and merged they are the unsharded sweep
whole() {
    "$program" status "$@" >status 2>err || fail "$what: something is left: $(cat status)"
    rm -f all.zst
    "$program" log merge -o all.zst "$@" >merged 2>err || fail "$what: merge"
    results_of all.zst | cmp -s whole - || fail "$what: other records than those of an unsharded sweep"
    tried+=" $what"
}
# Every shard's first try comes to a full disk.
cat >first <<END
#!/usr/bin/env bash
for word; do [[ \$word != */4 ]] || shard=\${word%/4}; done
if [ -n "\${shard-}" ] && mkdir "\$TRIED/\$shard" 2>/dev/null; then ulimit -f 4; fi
exec "$program" "\$@"
END
chmod +x first
# interrupted LOG...: what the first tries left is whole, and not all
interrupted() {
    local log
    for log; do [ "$(lines_of "$log" | grep -c '"kind":"run"')" -ge 2 ] || fail "$what: $log has no second try"; done
}
# begin NAME
begin() {
    what=$1
    mkdir "tried-$what"
    export TRIED=$work/tried-$what RUNS=$what KVLAB=$work/first
}

if command -v parallel >/dev/null; then
    begin parallel
    JOBS=2 "$cluster/gnu_parallel.sh" 4 small.yaml "${more[@]}" >out 2>err || fail "$what: $(cat out)"
    interrupted "$what"/*.zst
    whole "$what"/*.zst
    # What is done is not done again, and the gate tells of what cannot work.
    cp -r "$what" before
    JOBS=2 "$cluster/gnu_parallel.sh" 4 small.yaml "${more[@]}" >out 2>err || fail "$what, again"
    diff -r before "$what" || fail "$what: a second start does something"
    rm "$what"/*-2-of-4*
    rc=0
    JOBS=2 "$cluster/gnu_parallel.sh" 4 none.yaml >out 2>err || rc=$?
    equal "$what: the gate" 75 $rc
fi

if command -v snakemake >/dev/null; then
    begin snakemake
    snakemake -s "$cluster/shards.smk" -j 2 --quiet --config kvlab="$KVLAB" sweep=small.yaml runs="$what" >out 2>err || fail "$what: $(tail -n 20 out err)"
    interrupted "$what"/sweep.shard-*
    whole "$what"/sweep.shard-*
    results_of "$what/all.zst" | cmp -s whole - || fail "$what: the log that it merged"
fi

python=${KVL_RAY_PYTHON:-python3}
if command -v "$python" >/dev/null && "$python" -c 'import ray' 2>said; then
    begin ray
    KVLAB_GPUS=0 RAY_DISABLE_IMPORT_WARNING=1 RAY_USAGE_STATS_ENABLED=0 \
        "$python" "$cluster/shards_ray.py" 4 small.yaml "${more[@]}" >out 2>err || fail "$what: $(tail -n 20 out err)"
    interrupted "$what"/*.zst
    whole "$what"/*.zst
fi

for what in parallel snakemake ray; do
    [[ $tried = *" $what"* ]] || echo "test_schedulers: not tried, since it is not installed: $what"
done
[ -n "$tried" ] || exit 77
