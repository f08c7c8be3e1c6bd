#!/usr/bin/env bash
# cookbook.sh - every call of the cookbook in methods/README.md is in a public header or that of a part, and in every
# file that its row names or a header beside that it includes.
#   $1 the sources
set -euo pipefail
cd "$1"
awk '
    function fail(what) { print "cookbook: " what >"/dev/stderr"; bad = 1 }
    # text_of: a file, with a line feed before it; nothing when there is none
    function text_of(path,    line) {
        if (path in text) return text[path]
        while ((getline line <path) > 0) text[path] = text[path] "\n" line
        close(path)
        return text[path] = text[path] "\n"
    }
    # of_method: the file of a method and the headers beside it that it includes
    function of_method(file,    folder, n, line, i) {
        if (file in whole) return whole[file]
        whole[file] = text_of("methods/" file)
        folder = file ~ /\// ? file : ""
        sub(/[^\/]*$/, "", folder)
        n = split(whole[file], line, "\n")
        for (i = 1; i <= n; i++)
            if (line[i] ~ /^#include "[a-z0-9_.]+\.h"/) {
                split(line[i], part, "\"")
                whole[file] = whole[file] text_of("methods/" folder part[2])
            }
        return whole[file]
    }
    function has_word(where, word,    from, at) {
        for (from = 1; (at = index(substr(where, from), word)) > 0; from = at + 1) {
            at += from - 1
            if (substr(where, at - 1, 1) !~ /[A-Za-z0-9_]/ && substr(where, at + length(word), 1) !~ /[A-Za-z0-9_]/) return 1
        }
        return 0
    }
    # words: what stands in `backticks`
    function words(column, out,    n) {
        for (n = 0; match(column, /`[^`]*`/); column = substr(column, RSTART + RLENGTH))
            out[++n] = substr(column, RSTART + 1, RLENGTH - 2)
        return n
    }
    FILENAME != "methods/README.md" { public = public "\n" $0; next }
    /^## / { on = $0 == "## Cookbook" }
    !on || !/^\| / || /^\| I want/ { next }
    {
        rows++
        split($0, column, "|")
        n_calls = words(column[3], call)
        n_files = words(column[4], file)
        if (!n_calls || !n_files) fail("no call or no file:" column[2])
        for (i = 1; i <= n_calls; i++) {
            # ".hook" is a member of struct kvl_policy, set by a method.
            hook = call[i] ~ /^[.]/
            if (!(hook ? index(public, "(*" substr(call[i], 2) ")(") : has_word(public, call[i])))
                fail(call[i] " is in no header of core/include/kvl or methods/parts")
            for (j = 1; j <= n_files; j++) {
                if (text_of("methods/" file[j]) == "\n") fail("there is no methods/" file[j] ":" column[2])
                else if (!(hook ? index(of_method(file[j]), "\n    " call[i] " = ") : has_word(of_method(file[j]), call[i])))
                    fail("methods/" file[j] " does not use " call[i] ":" column[2])
            }
        }
    }
    END {
        if (rows < 40) fail("methods/README.md has no cookbook of 40 rows or more")
        exit bad
    }' $(find core/include/kvl methods/parts -name '*.h' -o -name '*.def') methods/README.md
