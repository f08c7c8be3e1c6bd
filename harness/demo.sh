#!/usr/bin/env bash
# demo.sh - the main job on the model that ships: methods of each kind over the tasks at several lengths and
# budgets, then the table and the figures.  Three to nine minutes on two cores; run it again and it
# goes on where it was, or draws what is there.
#
#   harness/demo.sh            results and figures in out/demo/
#   harness/demo.sh --fresh    forgets earlier results of the demo
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

out=$kvl_root/out/demo
case ${1-} in
'') ;;
--fresh) rm -rf "$out" ;;
-h | --help) sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
*) kvl_say "unknown option $1, see --help"; exit 2 ;;
esac

kvl_program
kvlab=$kvl_root/build/kvlab
mkdir -p "$out"
"$kvlab" sweep "$kvl_root/harness/sweeps/demo.yaml" --log "$out/demo.jsonl.zst"
for figure in accuracy_budget speed_length step_breakdown; do
    "$kvlab" plot "$figure" "$out/demo.jsonl.zst" --out "$out"
done
"$kvlab" plot two_stage_share "$out/demo.jsonl.zst" --task two_stage_retr --out "$out"
"$kvlab" report "$out/demo.jsonl.zst" --html "$out/demo.html"
