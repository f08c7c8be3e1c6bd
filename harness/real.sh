#!/usr/bin/env bash
# real.sh - the main job on a real model, SmolLM2-135M-Instruct (98 MB, fetched by harness/models.sh): what methods
# want to know of it (kvlab tables), methods of each kind on tasks that it can do, then the table, the figure and
# the page.  Run it again and it goes on where it was, or draws what is there.
#
#   harness/real.sh                results and figures in out/real/
#   harness/real.sh --fresh        forgets earlier results of it
#   harness/real.sh --model MODEL  another model: a name of harness/models.sh, or a file or folder of yours;
#                                  results in out/real-NAME/.  Tasks that it cannot do are marked in the table.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

model=smollm2-135m
fresh=
while [ $# -gt 0 ]; do
    case $1 in
    --fresh) fresh=1 ;;
    --model) [ $# -gt 1 ] || { kvl_say "--model wants a name, a file or a folder"; exit 2; }; model=$2; shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) kvl_say "unknown option $1, see --help"; exit 2 ;;
    esac
    shift
done

out=$kvl_root/out/real
if [ -e "$model" ]; then
    name=$(basename "$model" .gguf)
    out+=-$name
    file=$(realpath "$model")
else
    [ "$model" = smollm2-135m ] || out+=-$model
    file=$("$kvl_root/harness/models.sh" --path "$model")
fi
[ -z "$fresh" ] || rm -rf "$out"
mkdir -p "$out"

kvl_find_kvlab
# Beside the model, where methods find them.
if [ ! -e "${file%.gguf}.tables" ]; then
    kvl_say "tables of layers and heads"
    "$kvlab" tables --length 1024,2048 --task things --task niah_multikey "$file" >"$out/tables.txt" ||
        kvl_say "methods measure on each context instead"
fi
log=$out/real.jsonl.zst
"$kvlab" sweep "$kvl_root/harness/sweeps/real.yaml" --model "$file" --log "$log"
"$kvlab" plot accuracy_budget "$log" --out "$out"
"$kvlab" report "$log" --html "$out/real.html"
kvl_say "$out/real.html, $out/accuracy_budget.png"
