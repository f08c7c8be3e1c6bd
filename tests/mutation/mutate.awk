# mutate.awk - small slips in the code of a method, one at a time.
#
#   awk -f mutate.awk FILE                 a line per place: number, line, slip
#   awk -v pick=N -f mutate.awk FILE       the file with slip N in it
#
# Comments, texts, tables of options, the policy object, messages and what only refuses or reports are
# left alone.  Slips are token for token and on one line: a sign, a comparison, a term, an index or a
# loop off by one, a maximum for a minimum.

# In place of text between quotes and comments: blanks, so that columns agree.
function blank(n,  s) {
    s = ""
    while (n-- > 0) s = s " "
    return s
}
function masked(line,  out, i, c, two, quote) {
    out = ""
    quote = ""
    for (i = 1; i <= length(line); i++) {
        c = substr(line, i, 1)
        two = substr(line, i, 2)
        if (comment) {
            if (two == "*/") { comment = 0; out = out "  "; i++ } else out = out " "
        } else if (quote != "") {
            if (c == "\\") { out = out "  "; i++ } else { if (c == quote) quote = ""; out = out " " }
        } else if (two == "/*") {
            comment = 1
            out = out "  "
            i++
        } else if (c == "\"" || c == "'") {
            quote = c
            out = out " "
        } else out = out c
    }
    return out
}

# One place: `length` characters at column `at` become `with`.
function place(at, length_, with) {
    n_places++
    if (pick) {
        if (n_places == pick) line = substr(line, 1, at - 1) with substr(line, at + length_)
        return
    }
    printf "%d %d %s -> %s\n", n_places, FNR, substr(line, at, length_), with
}

# Every occurrence of the plain text `old`.
function swap(code, old, with,  from, at) {
    from = 1
    while ((at = index(substr(code, from), old)) > 0) {
        at += from - 1
        place(at, length(old), with)
        from = at + length(old)
    }
}

# Every match of `pattern`: its last `tail` characters have `with` before them.
function insert(code, pattern, tail, with,  from, at) {
    from = 1
    while (match(substr(code, from), pattern)) {
        at = from - 1 + RSTART + RLENGTH - tail
        place(at, tail, with substr(code, at, tail))
        from = from - 1 + RSTART + RLENGTH
    }
}

# Every match of `pattern` goes, but for its last character.
function drop(code, pattern,  from, at) {
    from = 1
    while (match(substr(code, from), pattern)) {
        at = from - 1 + RSTART
        place(at, RLENGTH - 1, "")
        from = at + RLENGTH
    }
}

function slips(code) {
    if (code ~ /^ *for \(/) {
        swap(code, " = 0; ", " = 1; ")
        return
    }
    swap(code, " + ", " - ")
    swap(code, " - ", " + ")
    swap(code, " += ", " -= ")
    swap(code, " -= ", " += ")
    swap(code, " * ", " + ")
    swap(code, " / ", " * ")
    swap(code, " < ", " <= ")
    swap(code, " <= ", " < ")
    swap(code, " > ", " >= ")
    swap(code, " >= ", " > ")
    swap(code, " == ", " != ")
    swap(code, " != ", " == ")
    swap(code, " && ", " || ")
    swap(code, " || ", " && ")
    swap(code, "KVL_MAX(", "KVL_MIN(")
    swap(code, "KVL_MIN(", "KVL_MAX(")
    swap(code, "-INFINITY", "INFINITY")
    swap(code, "KVL_REDUCE_SUM", "KVL_REDUCE_MAX")
    swap(code, "KVL_REDUCE_MEAN", "KVL_REDUCE_MAX")
    swap(code, "KVL_REDUCE_MAX", "KVL_REDUCE_MEAN")
    swap(code, "sqrtf(", "(")
    swap(code, "expf(", "(")
    swap(code, "fabsf(", "(")
    insert(code, "\\[[a-z_]+\\]", 1, " + 1")
    insert(code, "\\.(k|n|n_tok|pos|pos0|first|last|window) = [a-z_.>-]+,", 1, " - 1")
    drop(code, " [-+*/] [a-z_][a-z_0-9.>-]*[;,)]")
}

# Tables end with "};", functions with "}" at the beginning of a line.
/^static const struct kvl_(opt|policy)( |$)/ || /^static const char \*const/ { region = 1 }
/^(static )?[a-z_0-9 *]+_(min_budget|report)\(/ && !/;$/ { region = 2 }
{
    line = $0
    code = masked($0)
    if (code ~ /kvl_fail\(|assert\(|kvl_report_/) message = 1
    if (!region && !message && code ~ /^ / &&
        code !~ /^ *(#|static const|const struct|enum|\.(min|max|def|off|type) =)/) slips(code)
    if (message && code ~ /;/) message = 0
    if (pick) print line
}
(region == 1 && /};$/) || (region == 2 && /^}/) { region = 0 }
