# bare.sh - a PATH as it is on a fresh Debian.  Sourced, after harness/setup.sh.
#
# A test that calls a program which setup does not install passes on every machine that happens to have it.  So the
# suite runs with the programs of these packages alone: essential ones, git's (README begins with a clone), those of
# kvl_needs, and what they depend on.  Tests that may use more where it is (a name in KVL_MORE_PROGRAMS of
# tests/CMakeLists.txt) find the rest of the PATH behind them.

# bare_packages: their names, a line each
bare_packages() {
    local row asked=" git"
    for row in $kvl_needs; do asked+=" ${row##*:}"; done
    dpkg-query -W -f '${Package}\t${Essential}\t${Priority}\t${Pre-Depends}, ${Depends}\t${Provides}\n' | awk -F'\t' -v asked="$asked" '
        # A list of a package: versions and architectures off, alternatives (a | b) all taken.
        function names(text, to) { gsub(/\([^)]*\)|:[a-z0-9]+/, "", text); gsub(/[|,]/, " ", text); return split(text, to, " ") }
        { needs[$1] = $4
          n = names($5, provided); for (i = 1; i <= n; i++) virtual[provided[i]] = virtual[provided[i]] " " $1
          if ($2 == "yes" || $3 == "required") asked = asked " " $1 }
        END {
            n = split(asked, todo, " ")
            for (i = 1; i <= n; i++) {
                name = todo[i]
                if (name in seen) continue
                seen[name] = 1
                if (name in needs) print name
                m = names((name in needs) ? needs[name] : virtual[name], more)
                for (j = 1; j <= m; j++) todo[++n] = more[j]
            }
        }'
}

# bare_path DIR: fills DIR with links to their programs; fails where there is no dpkg
bare_path() {
    local dir=$1 path row program
    command -v dpkg-query >/dev/null || return 1
    rm -rf "$dir"
    mkdir -p "$dir"
    bare_packages | xargs dpkg -L | grep -E '^(/usr)?/s?bin/[^/]+$' | sort -u >"$dir.files"
    # What update-alternatives made (awk, cc) belongs to no package.
    find /usr/bin /usr/sbin -lname '/etc/alternatives/*' | while read -r path; do
        ! grep -qxF -e "$(realpath "$path")" "$dir.files" || echo "$path"
    done >"$dir.links"
    cat "$dir.links" >>"$dir.files"
    xargs -d '\n' ln -sf -t "$dir" <"$dir.files"
    # What setup looks for and finds elsewhere it does not install.
    for row in $kvl_needs; do
        program=${row%%:*}
        [ -e "$dir/$program" ] || [[ $row = *-dev ]] || ln -s "$(command -v "$program")" "$dir/$program"
    done
}
