#!/usr/bin/env bash
# publish.sh - copies the logs and figures of a run of demo.sh and figures.sh into results/, as they
# are kept there: of logs without the records of single answers, texts and reference passes, which a new
# run makes, and without the path of this folder.  What results/ does not hold is not copied.
#
#   harness/publish.sh              from out/demo and out/figures
#   harness/publish.sh OUT [TO]     from OUT/demo and OUT/figures; into TO (default results/)
#
# KVLAB=PATH takes that program instead of build/kvlab, to draw accuracy_budget at 4096 tokens alone.
# Wants zstd and gnuplot, which harness/demo.sh installs.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

case ${1-} in
-h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
-*) kvl_say "unknown option $1, see --help"; exit 2 ;;
esac
[ $# -le 2 ] || { kvl_say "$3: want OUT and TO, no more"; exit 2; }
from=${1:-$kvl_root/out}
held=$kvl_root/results
to=${2:-$held}
kvlab=${KVLAB:-$kvl_root/build/kvlab}
[ -x "$kvlab" ] || { kvl_say "$kvlab: not there, want a build or KVLAB=PATH"; exit 2; }

mapfile -t files < <(cd "$held" && printf '%s\n' demo/* figures/*)

# All or nothing: results of two models side by side would be compared.
missing=0
for file in "${files[@]}"; do
    [ -f "$from/$file" ] || { kvl_say "$from/$file: not there"; missing=1; }
done
[ $missing = 0 ] || { kvl_say "run harness/demo.sh and harness/figures.sh first; nothing was copied"; exit 1; }
# Everything is made in a folder of its own and checked before results/ changes.
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir -p "$made/demo" "$made/figures" "$made/plot"
root=$(printf '%s' "$kvl_root/" | sed 's/[].[^$*|\\]/\\&/g') # as sed reads it
models=
for file in "${files[@]}"; do
    case $file in
    *.zst)
        zstd -tq "$from/$file" || { kvl_say "$from/$file: damaged; nothing was copied"; exit 1; }
        model=$(zstdcat "$from/$file" | sed -n '/"kind":"run"/s/.*"model":{[^}]*"hash":"\([0-9a-f]*\)".*/\1/p' | sort -u)
        [ -n "$model" ] || { kvl_say "$from/$file: no run of a model; nothing was copied"; exit 1; }
        models=$(printf '%s\n' $models $model | sort -u)
        zstdcat "$from/$file" | sed -E '/^\{"kind":"(sample|nll|quality)"/d' | sed "s|$root||g" | zstd -19 -q -c >"$made/$file"
        ;;
    demo/accuracy_budget.*) ;;
    *) cp "$from/$file" "$made/$file" ;;
    esac
done
[ "$(printf '%s\n' "$models" | wc -l)" = 1 ] ||
    { kvl_say "the logs are of several models, ${models//$'\n'/, }: want fresh ones; nothing was copied"; exit 1; }
"$kvlab" plot accuracy_budget "$made/demo/demo.jsonl.zst" --length 4096 --out "$made/plot" >/dev/null
cp "$made/plot"/accuracy_budget.{dat,png} "$made/demo/"

mkdir -p "$to"
cp -r "$made/demo" "$made/figures" "$to/"
kvl_say "${#files[@]} files of the model $models in $to"
