#!/usr/bin/env bash
# corpus.sh - the inputs of the fuzz targets, which are packed: corpus/NAME.tar.zst.  corpus/counts says how
# many each has; ctest replays them all and wants that number.
#
#   tests/fuzz/corpus.sh add NAME FILE...     inputs more (a crash that was found), named by their bytes
#   tests/fuzz/corpus.sh unpack NAME FOLDER   for the fuzzer, or to take some out
#   tests/fuzz/corpus.sh pack NAME FOLDER     the files of a folder, instead of what is there
set -euo pipefail
corpus=$(dirname "$(realpath "$0")")/corpus

die() {
    echo "corpus.sh: $*" >&2
    exit 2
}

unpack() {
    mkdir -p "$2"
    zstd -dcq "$corpus/$1.tar.zst" | tar -x -C "$2" -f -
}

# The same files give the same bytes, so that an archive changes only with them.
pack() {
    local tar n
    tar=$(mktemp)
    (cd "$2" && find . -maxdepth 1 -type f -printf '%f\0' | LC_ALL=C sort -z |
        tar -c --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 --no-recursion \
            --null -T - -f -) >"$tar"
    n=$(tar -tf "$tar" | wc -l)
    chmod 644 "$tar" # zstd keeps it
    zstd -19 -qf "$tar" -o "$corpus/$1.tar.zst"
    rm -f "$tar"
    touch "$corpus/counts"
    { grep -v "^$1 " "$corpus/counts" || true; echo "$1 $n"; } | LC_ALL=C sort >"$corpus/counts.new"
    mv "$corpus/counts.new" "$corpus/counts"
    echo "$1: $n inputs"
}

add() {
    local name=$1 folder file hash
    folder=$(mktemp -d)
    shift
    unpack "$name" "$folder"
    for file in "$@"; do
        [ -f "$file" ] || die "$file: no such file"
        hash=$(sha256sum <"$file" | cut -c 1-12)
        cp "$file" "$folder/$hash"
    done
    pack "$name" "$folder"
    rm -rf "$folder"
}

[ $# -ge 3 ] || die "want add NAME FILE..., unpack NAME FOLDER or pack NAME FOLDER"
[ -f "$corpus/../fuzz_$2.c" ] || die "\"$2\": want one of $(cd "$corpus/.." && ls fuzz_*.c | sed 's/fuzz_//; s/\.c//' | xargs)"
case $1 in
add | unpack | pack) "$@" ;;
*) die "\"$1\": want add, unpack or pack" ;;
esac
