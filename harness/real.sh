#!/usr/bin/env bash
# real.sh - the main job on a real model, SmolLM2-135M-Instruct (98 MB, fetched by harness/models.sh): what methods
# want to know of it (kvlab tables), methods of each kind on tasks that it can do, then the table, the figure and
# the page.  Run it again and it goes on where it was, or draws what is there.
#
#   harness/real.sh                results and figures in out/real/
#   harness/real.sh --fresh        forgets earlier results of it
#   harness/real.sh --model MODEL  another model: a name of harness/models.sh, or a file or folder of yours;
#                                  results in out/real-NAME/.  Tasks that it cannot do are marked in the table.
#   harness/real.sh --out DIR      results in DIR
#   harness/real.sh --no-tables    without tables: methods that want some measure on each context
#   harness/real.sh ... -- OPTION...   options for kvlab sweep: --set contexts=4
#
# KVLAB=PATH takes that program instead of building one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

model=smollm2-135m
fresh=
tables=1
out=
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --fresh) fresh=1 ;;
    --no-tables) tables= ;;
    --model) [ $# -gt 1 ] || { kvl_say "--model wants a name, a file or a folder"; exit 2; }; model=$2; shift ;;
    --out) [ $# -gt 1 ] || { kvl_say "--out wants a folder"; exit 2; }; out=$2; shift ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; options=("$@"); break ;;
    *) kvl_say "unknown option $1, see --help"; exit 2 ;;
    esac
    shift
done

if [ -e "$model" ]; then
    file=$(realpath -s "$model") name=-$(basename "$model" .gguf)
else
    file=$("$kvl_root/harness/models.sh" --path "$model") name=-$model
fi
[ "$model" = smollm2-135m ] && name=
[ -n "$out" ] || out=$kvl_root/out/real$name
[ -z "$fresh" ] || rm -f "$out"/real.jsonl.zst
mkdir -p "$out"

kvl_find_kvlab
# Beside the model, where methods find them.
if [ -n "$tables" ] && [ ! -e "${file%.gguf}.tables" ]; then
    kvl_say "tables of layers and heads"
    "$kvlab" tables --length 1024 --contexts 1 --task things --task niah_multikey "$file" >"$out/tables.txt" ||
        kvl_say "methods measure on each context instead"
fi
log=$out/real.jsonl.zst
"$kvlab" sweep "$kvl_root/harness/sweeps/real.yaml" --model "$file" --log "$log" "${options[@]}"
"$kvlab" plot accuracy_budget "$log" --out "$out"
"$kvlab" report "$log" --html "$out/real.html"
kvl_say "$out/real.html, $out/accuracy_budget.png"
