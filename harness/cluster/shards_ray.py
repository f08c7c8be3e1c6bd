"""shards_ray.py - a sweep in shards as tasks of Ray:  python3 shards_ray.py 64 sweep.yaml [OPTIONS of kvlab sweep]

What fails or loses its node is tried again, and goes on where it was.  RUNS is a folder that all nodes share; KVLAB_GPUS=0:
on processors alone.
"""
import os, subprocess, sys

import ray

n, sweep, runs = int(sys.argv[1]), sys.argv[2:], os.environ.get("RUNS", "runs")


@ray.remote(num_gpus=float(os.environ.get("KVLAB_GPUS", 1)), max_retries=3, retry_exceptions=True)
def shard(i, folder, kvlab):
    args = ["--set", f"log={runs}/sweep.jsonl.zst", "--shard", f"{i}/{n}", "--quiet"]
    subprocess.run([kvlab, "sweep", *sweep, *args], cwd=folder, check=True)


ray.get([shard.remote(i, os.getcwd(), os.environ.get("KVLAB", "kvlab")) for i in range(n)])
