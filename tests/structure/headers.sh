#!/usr/bin/env bash
# headers.sh - a function is defined in the folder of the header that declares it.  Public headers have the folders of
# the table below (kvl/model.h, kvstore.h, device.h, ops.h, fpenv.h, peak.h and task.h are doors to several); what policy_impl.h
# declares is defined in one of the five folders of core/policy.
#   $1 the sources
set -euo pipefail
cd "$1"
folders='core/base base
core/base opt
core/base rng
core/base utf8
core/format gguf
core/tokenizer tokenizer
core/model chat
core/model tables
core/policy/hooks policy
core/policy/plan plan
core/policy/table table
core/policy/select select
core/policy/observe observe'
# header folder: why the header declares what another folder defines
others='core/ops/lane.h core/kv: operators see the lanes of the store
core/ops/cpu/kern/cpu.h core/ops/cpu: what kernels of all instruction sets take'
name='^[A-Za-z][A-Za-z0-9_ ]*[ *]+([a-z][a-z0-9_]*)\('
declared=$(mktemp)
trap 'rm -f "$declared"' EXIT
find core harness methods datasets -name '*.h' -print0 | xargs -0 awk -v rule="$name" '
    /^static|^typedef|^#|^[^A-Za-z]/ { next }
    match($0, rule) { text = substr($0, 1, RLENGTH - 1); sub(/.*[ *]/, "", text); print FILENAME, text }' |
    sort -u >"$declared"
find core harness methods datasets \( -name '*.c' -o -name '*.cu' \) ! -path 'core/ops/ref/*' -print0 |
    xargs -0 grep -HE "$name" | grep -vE ':(static|typedef|else|return) |;$' |
    awk -v rule="$name" -v declared="$declared" -v folders="$folders" -v others="$others" '
    { at = index($0, ":"); path = substr($0, 1, at - 1); text = substr($0, at + 1)
      if (!match(text, rule)) next
      text = substr(text, 1, RLENGTH - 1); sub(/.*[ *]/, "", text)
      sub(/\/[^\/]*$/, "", path)
      if (!index(" " home[text] " ", " " path " ")) home[text] = home[text] (home[text] ? " " : "") path }
    END {
        n = split(folders, line, "\n")
        for (i = 1; i <= n; i++) { split(line[i], word, " "); of["core/include/kvl/" word[2] ".h"] = word[1] }
        n = split(others, line, "\n")
        for (i = 1; i <= n; i++) { sub(/:.*/, "", line[i]); split(line[i], word, " "); more[word[1]] = word[2] }
        while ((getline row < declared) > 0) {
            split(row, word, " "); header = word[1]; text = word[2]
            folder = header; sub(/\/[^\/]*$/, "", folder)
            if (folder == "core/include/kvl" && !(header in of)) continue
            if (header in of) folder = of[header]
            if (!(text in home) || home[text] == more[header]) continue
            n_checked++
            if (header == "core/policy/policy_impl.h" && home[text] ~ /^core\/policy\/[a-z]+$/) continue
            if (index(" " home[text] " ", " " folder " ")) continue
            print "headers: " text " of " header " is defined in " home[text] ", want " folder; bad = 1
        }
        if (n_checked < 800) { print "headers: " n_checked " functions, want 800 or more"; bad = 1 }
        exit bad
    }' >&2
