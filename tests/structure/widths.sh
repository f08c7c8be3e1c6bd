#!/usr/bin/env bash
# widths.sh - no line of a README (or of harness/gpu.md and the pages of methods/) is wider than 120 columns: rows of tables, code
# and words that cannot be parted aside.
#
#   widths.sh SOURCES           tells the lines
#   widths.sh SOURCES --write   wraps the paragraphs that have one
set -euo pipefail
cd "$1"
work=$(mktemp)
trap 'rm -f "$work"' EXIT
export LC_ALL=C.UTF-8
rc=0
for page in $(find . -name README.md ! -path './build*' ! -path './.git/*') harness/gpu.md methods/*.md; do
    if [ "${2-}" = --write ]; then
        # Lines of a paragraph are kept until it ends; one with a wide line is set anew, under the mark of its list.
        awk -v most=120 '
            # The indent and the mark of a list that a line begins with.
            function mark_of(line) {
                if (match(line, /^ *[-*+] +/) || match(line, /^ *[0-9]+\. +/) || match(line, /^ */)) return substr(line, 1, RLENGTH)
            }
            function flush(    i, j, wide, n, word, line, pad, first, text, mark) {
                for (i = 1; i <= n_held; i++) wide = wide || length(held[i]) > most
                if (!wide) { for (i = 1; i <= n_held; i++) print held[i]; n_held = 0; return }
                first = mark_of(held[1]); pad = first; gsub(/[^ ]/, " ", pad)
                line = first
                for (i = 1; i <= n_held; i++) {
                    text = substr(held[i], i == 1 ? length(first) + 1 : 1)
                    gsub(/^ +| +$/, "", text)
                    n = split(text, word, " ")
                    for (j = 1; j <= n; j++) {
                        # a word that would begin a list or a heading stays in the line before
                        mark = word[j] ~ /^([-*+#>|]+|1\.)$/
                        if (line != first && line != pad && length(line " " word[j]) > most - 2 && !mark) { print line; line = pad word[j] }
                        else line = line (line == first || line == pad ? "" : " ") word[j]
                    }
                }
                print line; n_held = 0
            }
            /^ *```/ { flush(); print; code = !code; next }
            code || /^ *\|/ || /^#/ || /^ *$/ || /^<!--/ || /^!\[/ { flush(); print; next }
            n_held == 0 && /^    / { print; next } # code by its indent
            /^ *[-*+] / || /^ *[0-9]+\. / { flush() }
            { held[++n_held] = $0 }
            END { flush() }' "$page" >"$work"
        cmp -s "$work" "$page" || cp "$work" "$page"
    fi
    awk -v page="${page#./}" '
        /^ *```/ { code = !code }
        !code && !/^(    |#)/ && !/^ *\|/ && length($0) > 120 && $0 ~ /[^ ] [^ ]/ { print page ":" NR ": " length($0) " columns, want at most 120"; bad = 1 }
        END { exit bad }' "$page" || rc=1
done
exit $rc
