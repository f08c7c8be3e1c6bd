#!/usr/bin/env bash
# figures.sh - the figures of plots/ from logs made here: for each one the sweep in harness/sweeps/
# that names it, then the picture.  All of them take twelve minutes to half an hour on two cores,
# those of the demo three to nine more; run it again and it goes on where it was, or draws what is there.
#
#   harness/figures.sh                         all figures; logs and pictures in out/figures/
#   harness/figures.sh NAME...                 these figures
#   harness/figures.sh --list                  figures and their sweeps
#   harness/figures.sh --out DIR [NAME...]     logs and pictures in DIR
#   harness/figures.sh [NAME...] -- OPTION...  options for kvlab sweep and analyze: --model FILE
#
# KVLAB=PATH takes that program instead of building one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

sweeps=$kvl_root/harness/sweeps
out=$kvl_root/out/figures
names=()

# "figure sweep" per line: the comment of a sweep begins "# Figure a:" or "# Figures a, b:".
figures_known() {
    awk 'FNR == 1 && match($0, /^# Figures? [^:]*:/) {
            n = split(substr($0, RSTART, RLENGTH - 1), word, /[ ,]+/)
            name = FILENAME
            gsub(/.*\/|\.yaml$/, "", name)
            for (i = 3; i <= n; i++) print word[i], name
        }' "$sweeps"/*.yaml
}

figures_sweep_of() { figures_known | awk -v name="$1" '$1 == name { print $2; exit }'; }

# Where a sweep's results are: those of the demo may be there already.
figures_log() {
    if [ "$1" = demo ] && [ "$out" = "$kvl_root/out/figures" ]; then
        printf '%s\n' "$kvl_root/out/demo/demo.jsonl.zst"
    else
        printf '%s\n' "$out/$1.jsonl.zst"
    fi
}

# Runs what a sweep's log does not have yet, once per start.
figures_run() {
    local sweep=$1 file=$sweeps/$1.yaml log
    log=$(figures_log "$sweep")
    case " ${ran-} " in *" $sweep "*) return ;; esac
    ran="${ran-} $sweep"
    mkdir -p "$(dirname "$log")"
    if grep -q '^analyze:' "$file"; then
        "$kvlab" analyze "$file" --out "$log" "${options[@]}" >"$out/$sweep.txt"
    else
        "$kvlab" sweep "$file" --log "$log" "${options[@]}" >"$out/$sweep.txt"
    fi
    # The other cell type, once: its bytes are wanted, not its speed.
    if [ "$sweep" = kv_length ]; then
        "$kvlab" sweep "$file" --log "$out/$sweep-f32.jsonl.zst" --kv-type f32 \
            --set speed.repeats=1 "${options[@]}" >"$out/$sweep-f32.txt"
    fi
}

figures_draw() {
    local name=$1 sweep=$2 logs
    logs=("$(figures_log "$sweep")")
    if [ "$name" = kv_length ]; then logs+=("$out/$sweep-f32.jsonl.zst"); fi
    "$kvlab" plot "$name" "${logs[@]}" --out "$out"
}

options=()
while [ $# -gt 0 ]; do
    case $1 in
    --list) figures_known | awk '{ printf "  %-18s harness/sweeps/%s.yaml\n", $1, $2 }'; exit 0 ;;
    --out) [ $# -gt 1 ] || { kvl_say "--out wants a folder"; exit 2; }; out=$2; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; options=("$@"); break ;;
    -*) kvl_say "unknown option $1, see --help"; exit 2 ;;
    *) names+=("$1") ;;
    esac
    shift
done
# Logs and pictures are named from where the user stands.
case $out in /*) ;; *) out=$PWD/$out ;; esac

kvl_find_kvlab
for name in "${names[@]}"; do
    # A name that no sweep has is told by the program, which knows the nearest.
    if [ -z "$(figures_sweep_of "$name")" ]; then
        "$kvlab" plot "$name" - </dev/null || exit 2
    fi
done
if [ ${#names[@]} = 0 ]; then mapfile -t names < <(figures_known | awk '{ print $1 }'); fi

mkdir -p "$out"
for name in "${names[@]}"; do
    began=$SECONDS
    sweep=$(figures_sweep_of "$name")
    kvl_say "$name: $sweep.yaml"
    figures_run "$sweep"
    figures_draw "$name" "$sweep"
    kvl_say "$name: $((SECONDS - began)) s"
done
