# shards.smk - a sweep in shards as rules of Snakemake, and their logs as one.
#
#   snakemake -s shards.smk -j 4 --config n=64 sweep=sweep.yaml
#   ... --executor slurm --default-resources slurm_extra="'--gres=gpu:1'" runtime=240    # Snakemake 8 with its plug-in
#
# A shard that is killed or comes to its time limit goes on in the next try: its log is no output of the rule.
KVLAB, SWEEP, RUNS = (config.get(k, v) for k, v in [("kvlab", "kvlab"), ("sweep", "sweep.yaml"), ("runs", "runs")])
N = int(config.get("n", 4))

rule all:
    input: f"{RUNS}/all.zst"

rule shard:
    output: touch(RUNS + "/shard-{i}.done")
    retries: 3
    shell: "{KVLAB} sweep {SWEEP} --set log={RUNS}/sweep.jsonl.zst --shard {wildcards.i}/{N} --quiet"

rule merged:
    input: expand(RUNS + "/shard-{i}.done", i=range(N))
    output: f"{RUNS}/all.zst"
    shell: "{KVLAB} status {RUNS}/sweep.shard-* && {KVLAB} log merge -o {output} {RUNS}/sweep.shard-*"
