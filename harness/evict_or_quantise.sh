#!/usr/bin/env bash
# evict_or_quantise.sh - results/evict_or_quantise.md: what is lost at 2, 4 and 8 times fewer bytes by keeping fewer tokens,
# by storing them in fewer bits, and by both; on small real models, made of the logs in results/evict_or_quantise/.
#
#   harness/evict_or_quantise.sh            the page and the picture of the logs that are there; runs nothing
#   harness/evict_or_quantise.sh --run      first goes on with the sweeps where they were: about 40 minutes of a core
#   harness/evict_or_quantise.sh --plan     what the sweeps lack, and how long they take
#   harness/evict_or_quantise.sh --contexts N   of every cell (default 10): more contexts, narrower intervals
#   harness/evict_or_quantise.sh --run NAME...  these parts alone
#   harness/evict_or_quantise.sh ... -- OPTION...   options for kvlab sweep: --threads 1
#
# KVLAB=PATH takes that program instead of building one.  Wants what harness/models.sh and harness/prose.sh want.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# A part is a log: name | model | length | tasks.
parts='
smollm2|smollm2-135m|1024|things8 text
gemma3|gemma3-270m|1024|things4 text
'
run= plan= contexts=10
names=()
options=()
while [ $# -gt 0 ]; do
    case $1 in
    --run) run=1 ;;
    --plan) plan=1 ;;
    --contexts) [ $# -gt 1 ] || { kvl_say "--contexts wants a number"; exit 2; }; contexts=$2; shift ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --) shift; options=("$@"); break ;;
    -*) kvl_say "unknown option $1, see --help"; exit 2 ;;
    *) names+=("$1") ;;
    esac
    shift
done

cd "$kvl_root" # logs name files relative to it
out=results/evict_or_quantise
held=out/evict-or-quantise
kvl_find_kvlab

trade_task() {
    case $1 in
    things*) printf '{task: things, keys: %s, prose: %s}' "${1#things}" "$held/prose.txt" ;;
    text) printf '{task: perplexity, tokens: 128, text: %s}' "$held/prose.txt" ;;
    esac
}

trade_sweep() {
    local name=$1 model=$2 length=$3 tasks=$4 task list= how=()
    for task in $tasks; do list+="${list:+, }$(trade_task "$task")"; done
    [ -z "$plan" ] || how=(--dry-run)
    ln -sf "$(harness/models.sh --path "$model")" "$held/$model.gguf"
    kvl_say "$name"
    "$kvlab" sweep harness/sweeps/evict_or_quantise.yaml --model "$held/$model.gguf" --log "$out/$name.jsonl.zst" \
        --set "name=$name" --set "tasks=[$list]" --set "lengths=[$length]" --set "contexts=$contexts" \
        --snapshots "$held/snapshots" --snapshots-limit 8G "${how[@]}" "${options[@]}"
}

# The figure's table as Markdown: of every panel of bytes held, the points that are within a fifth of 2, 4 and 8 times.
trade_tables() {
    awk '
    function key(label, budget) { return block SUBSEP label SUBSEP budget }
    function cell(m, k, text) { # one text gives no interval
        if (!((m, k) in y)) return "-"
        text = sprintf(form[m], y[m, k], lo[m, k], hi[m, k])
        if (lo[m, k] == hi[m, k]) sub(/ .*/, "", text)
        return text
    }
    BEGIN {
        form["right answers, %"] = "%.0f (%.0f to %.0f)"
        form["KL to full attention in f16"] = "%.2g (%.2g to %.2g)"
        form["perplexity by that in f16"] = "%.3f (%.3f to %.3f)"
        split("2 4 8", target, " ")
    }
    /^# shows / { split(substr($0, 9), part, "; "); measure = part[1]; bytes = part[2]; block = part[3]
        if (!(block in seen)) { seen[block] = ++n_blocks; name[n_blocks] = block; first[n_blocks] = part[4] }
        if (!((block, measure) in has)) { has[block, measure] = 1; measures[block] = measures[block] "\t" measure }
        next }
    /^# panel / { label = $0; sub(/^# panel [0-9]+, /, "", label); next }
    /^[0-9]/ && label !~ /fewer bits$/ {
        k = key(label, $5)
        if (!((bytes, k) in times)) times[bytes, k] = $1 # the level of full attention in f16 has two ends
        y[measure, k] = $2; lo[measure, k] = $3; hi[measure, k] = $4
        if (!(k in row)) { row[k] = ++n_rows; what[n_rows] = label; budget[n_rows] = $5; of[n_rows] = block; at[n_rows] = k }
    }
    END {
        for (b = 1; b <= n_blocks; b++) {
            n_m = split(substr(measures[name[b]], 2), m, "\t")
            printf "### %s\n\n", name[b]
            k = name[b] SUBSEP "full, kv f16" SUBSEP 0
            printf "Full attention in f16 holds %s", first[b]
            if (("right answers, %", k) in y) printf " and is right in %s %%", cell("right answers, %", k)
            printf "."
            printf "\n\n| about | policy and type | tokens kept | held | read |"
            for (j = 1; j <= n_m; j++) printf " %s |", m[j]
            printf "\n|---|---|---:|---:|---:|"
            for (j = 1; j <= n_m; j++) printf "---|"
            print ""
            for (t = 1; t <= 3; t++) {
                n = 0
                for (i = 1; i <= n_rows; i++) {
                    x = times["held", at[i]]
                    if (of[i] != name[b] || x < 0.8 * target[t] || x > 1.25 * target[t]) continue
                    for (j = ++n; j > 1 && times["held", at[order[j - 1]]] > x; j--) order[j] = order[j - 1]
                    order[j] = i
                }
                for (j = 1; j <= n; j++) {
                    i = order[j]
                    printf "| %dx | %s | %s | %.1fx | %.1fx |", target[t], what[i], budget[i] ? budget[i] : "all",
                        times["held", at[i]], times["read per token", at[i]]
                    for (q = 1; q <= n_m; q++) printf " %s |", cell(m[q], at[i])
                    print ""
                }
            }
            print ""
        }
    }' "$1"
}

trade_make() {
    local logs=() log made
    for log in "$out"/*.jsonl.zst; do [ ! -s "$log" ] || logs+=("$log"); done
    [ ${#logs[@]} -gt 0 ] || { kvl_say "$out: no logs, want --run first"; exit 1; }
    made=$(mktemp -d)
    "$kvlab" plot evict_or_quantise "${logs[@]}" --out "$made" --format png >/dev/null
    cp "$made/evict_or_quantise.png" "$out/"
    {
        cat harness/evict_or_quantise.md
        printf '![evict_or_quantise](evict_or_quantise/evict_or_quantise.png)\n\n## At equal bytes\n\n'
        trade_tables "$made/evict_or_quantise.dat"
        printf '## All of it\n\n'
        for log in "${logs[@]}"; do
            printf '`%s`\n\n' "$log"
            "$kvlab" report --summary --format markdown "$log"
            printf '\n'
        done
    } >"$made/page.md"
    cp "$made/page.md" results/evict_or_quantise.md
    rm -rf "$made"
    kvl_say "results/evict_or_quantise.md"
}

[ -z "$run$plan" ] || kvl_run_parts trade_sweep
[ -n "$plan" ] || trade_make
