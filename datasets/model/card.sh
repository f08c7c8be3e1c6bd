#!/usr/bin/env bash
# card.sh - measures a model for the Accuracy section of its card, README.md of this folder: runs the
# sweeps card*.yaml with full attention.  Run it again and it goes on where it was.
#
#   datasets/model/card.sh                      all but the long ones; logs and tables in out/card/
#   datasets/model/card.sh --long               more at 16K, 32K and 64K tokens, too
#   datasets/model/card.sh NAME...              these sweeps (127K, and some of 64K, only so: see --list)
#   datasets/model/card.sh --list               sweeps: name, when it runs, file, what differs from it
#   datasets/model/card.sh --model FILE         another model than kvlab-small.gguf; logs in out/card-NAME/
#   datasets/model/card.sh --out DIR            logs and tables in DIR
#   datasets/model/card.sh --fresh              forgets earlier results of the sweeps that run
#   datasets/model/card.sh card -- OPTION...    options for kvlab sweep: --set contexts=1
#
# datasets/model/train/card.py DIR prints the card's tables (python3, nothing else).  KVLAB=PATH takes
# that program instead of building one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../harness/setup.sh"

folder=$kvl_root/datasets/model
model=$folder/kvlab-small.gguf
out=
names=()
options=()
long=
fresh=

# The longest first, so that no core is left with one of them at the end.  127K: a question still fits
# into the model's 128K.
card_known() {
    cat <<'END'
card_single_127k named   card_single      tasks=[number_string] lengths=[130048] contexts=20 prefill_type=bf16
card_long_127k   named   card_long        lengths=[130048] contexts=1 prefill_type=bf16
card_ruler_127k  named   card_ruler_long  lengths=[130048] contexts=1
card_ruler_64k   named   card_ruler_long  lengths=[65536] contexts=4
card_fwe_64k     named   card_ruler       tasks=[fwe] lengths=[65536] contexts=20 prefill_type=bf16
card_single_64k  named   card_single      tasks=[number_string] lengths=[65536] contexts=20 prefill_type=bf16
card_single_16k  --long  card_single      tasks=[number_string,needle] lengths=[16384] prefill_type=bf16
card_single_32k  --long  card_single      tasks=[number_string,needle] lengths=[32768] contexts=20 prefill_type=bf16
card_fwe_32k     --long  card_ruler       tasks=[fwe] lengths=[32768] contexts=20 prefill_type=bf16
card_ruler       always  card_ruler
card_fwe_16k     --long  card_ruler       tasks=[fwe] lengths=[16384] prefill_type=bf16
card_ruler_16k   --long  card_ruler_long
card_long_64k    --long  card_long        lengths=[65536] contexts=1 prefill_type=bf16
card_long        always  card_long
card_ruler_32k   --long  card_ruler_long  lengths=[32768] contexts=4
card_single_4k   always  card_single      lengths=[4096]
card_long_32k    --long  card_long        lengths=[32768] contexts=1
card_snapkv      always  card_snapkv
card             always  card
card_wordings    always  card_wordings
card_single      always  card_single
card_perplexity  always  card_perplexity
END
}

# card_run NAME OPTION...: one sweep with the threads of its lane.
card_run() {
    local name=$1 known set sets=() began=$SECONDS
    shift
    read -r -a known < <(card_known | awk -v name="$name" '$1 == name')
    for set in "${known[@]:3}"; do sets+=(--set "$set"); done
    "$kvlab" sweep "$folder/${known[2]}.yaml" --model "$model" --log "$out/$name.jsonl.zst" --strict \
        --threads "$threads" --jobs "$threads" "${sets[@]}" "$@" >"$out/$name.txt" 2>"$out/$name.err" ||
        { tail -n 5 "$out/$name.err" >&2; kvl_say "$name: did not finish"; return 1; }
    kvl_say "$name: $((SECONDS - began)) s"
}

while [ $# -gt 0 ]; do
    case $1 in
    --model) [ $# -gt 1 ] || { kvl_say "--model wants a file"; exit 2; }; model=$2; shift ;;
    --out) [ $# -gt 1 ] || { kvl_say "--out wants a folder"; exit 2; }; out=$2; shift ;;
    --long) long=1 ;;
    --fresh) fresh=1 ;;
    --list) card_known; exit 0 ;;
    -h | --help) sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; options=("$@"); break ;;
    -*) kvl_say "unknown option $1, see --help"; exit 2 ;;
    *) names+=("$1") ;;
    esac
    shift
done

for name in "${names[@]}"; do
    [ -n "$(card_known | awk -v name="$name" '$1 == name')" ] || { kvl_say "unknown sweep $name, see --list"; exit 2; }
done
[ -z "$long" ] || [ ${#names[@]} = 0 ] || { kvl_say "--long or names of sweeps, not both"; exit 2; }
if [ ${#names[@]} = 0 ]; then
    mapfile -t names < <(card_known | awk -v long="$long" '$2 == "always" || ($2 == "--long" && long) { print $1 }')
fi
[ -f "$model" ] || { kvl_say "$model: no such file"; exit 2; }
if [ -z "$out" ]; then # logs of two models do not mix
    stem=$(basename "$model" .gguf)
    out=$kvl_root/out/card
    [ "$stem" = kvlab-small ] || out+=-$stem
fi

kvl_find_kvlab
mkdir -p "$out"
if [ -n "$fresh" ]; then
    for name in "${names[@]}"; do rm -f "$out/$name.jsonl.zst"; done
fi

# A core per sweep: long contexts of one sweep alone leave cores idle when they are of unequal length.
cores=$(nproc)
lanes=$((cores < ${#names[@]} ? cores : ${#names[@]}))
threads=$((cores / lanes))
export kvlab model out folder threads
export -f card_run card_known kvl_say
# xargs and not background jobs, which would not see Ctrl-C.
printf '%s\n' "${names[@]}" |
    xargs -P "$lanes" -I '{}' bash -c 'card_run "$@"' card.sh '{}' "${options[@]}" ||
    { kvl_say "not everything is there (see above); what is, stays: run it again"; exit 1; }
