# shellcheck shell=bash
# page_section.sh - sourced by scripts that write a section of a page.

# put_section PAGE HEADING FILE: FILE, which begins with the line "## HEADING...", takes the place of that section of
# PAGE, and stands at its end where there is none.
put_section() {
    local made
    made=$(mktemp)
    awk -v section="$3" -v head="## $2" '
        function put() { while ((getline line < section) > 0) print line; print ""; done = 1 }
        index($0, head) == 1 { put(); skip = 1; next }
        /^## / { skip = 0 }
        !skip { print }
        END { if (!done) { print ""; put() } }' "$1" >"$made"
    cat "$made" >"$1"
    rm -f "$made"
}
