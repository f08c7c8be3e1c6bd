#!/usr/bin/env bash
# test_prose.sh - harness/prose.sh on made-up packages, without a network; and what it says to type next.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KVLAB_TEXTS=$work/texts KVLAB_PACKAGES=$work/debs

fail() {
    echo "test_prose: $*" >&2
    [ ! -s "$work/err" ] || tail -n 5 "$work/err" >&2
    exit 1
}
equal() { [ "$2" = "$3" ] || fail "$1"$'\n'"want $2"$'\n'"got  $3"; }
prose() { bash "$source_dir/harness/prose.sh" "$@" >"$work/out" 2>"$work/err"; }
# refuse WHAT CODE TEXT ARG...
refuse() {
    local code=0
    prose "${@:4}" || code=$?
    equal "$1: exit code" "$2" "$code"
    tail -n 1 "$work/err" | grep -q "^kvlab: .*$3" || fail "$1: want a line with $3"
}

for tool in python3 dpkg-deb; do
    command -v $tool >/dev/null || { echo "test_prose: skipped, no $tool"; exit 77; }
done

# package NAME FILE: FILE of $work/in at its place in a package
package() {
    mkdir -p "$work/$1/DEBIAN" "$work/$1/$(dirname "$2")" "$KVLAB_PACKAGES"
    printf 'Package: %s\nVersion: 1\nArchitecture: all\nMaintainer: X <x@x>\nDescription: x\n' "$1" >"$work/$1/DEBIAN/control"
    cp "$work/in" "$work/$1/$2"
    dpkg-deb --build "$work/$1" "$KVLAB_PACKAGES/$1_1_all.deb" >/dev/null
}

# Two vectors of strings as R writes them, of its versions 2 and 3; one is UTF-8, one is missing (NA).
python3 - "$work" <<'END'
import struct, sys, zlib
be = lambda *n: b"".join(struct.pack(">i", i) for i in n)
string = lambda flags, s: be(flags, len(s)) + s
two = b"X\n" + be(2, 0, 0) + be(16, 3) + string(0x40009, b"Line one") + string(0x40009, b"") + string(0x8009, "caf\u00e9".encode())
three = b"X\n" + be(3, 0, 0) + be(5) + b"UTF-8" + be(16, 2) + string(0x40009, b"Second novel") + be(9, -1)
numbers = b"X\n" + be(2, 0, 0) + be(13, 1, 7)
pack = lambda *all: b"".join(be(len(text)) + zlib.compress(text) for text in all)
open(sys.argv[1] + "/good", "wb").write(pack(two, three))
open(sys.argv[1] + "/numbers", "wb").write(pack(numbers))
END
rdb=usr/lib/R/site-library/janeaustenr/data/Rdata.rdb

cp "$work/good" "$work/in" && package r-cran-janeaustenr $rdb
prose --path austen || fail "novels"
equal "novels" $'Line one\n\ncaf\u00e9\nSecond novel' "$(cat "$work/texts/austen.txt")"
equal "--path" "$work/texts/austen.txt" "$(cat "$work/out")"
for i in {1..400}; do echo "This is line $i of the file about $((i * 37 % 101)) things."; done | gzip >"$work/in"
package jargon-text usr/share/doc/jargon-text/jargon.txt.gz
prose jargon || fail "a packed file"
equal "a packed file" "$(zcat "$work/in")" "$(cat "$work/texts/jargon.txt")"
KVLAB_PACKAGES=$work/gone prose jargon || fail "a text that is there"

# What is to be typed next works, with the model that ships.
mapfile -t lines < <(sed -n "s|^  build/kvlab \(.*\)|\1|p" "$work/out")
equal "what to type" 2 "${#lines[@]}"
cd "$work"
for line in "${lines[@]}"; do
    line=${line/MODEL/$source_dir/datasets/model/kvlab-tiny.gguf}
    eval "'$program' ${line/2048/512} --contexts 1 --budget 64 --log '$work/log.zst'" >"$work/said" 2>"$work/err" || fail "$line"
    rm "$work/log.zst"
done

# ---- what is refused ------------------------------------------------------------------------------------

rm "$work/texts"/*
refuse "another text" 2 'nope: no such text, want one of: austen jargon' nope
refuse "two texts" 2 'want one text, no more' austen jargon
refuse "an option" 2 'unknown option --nope' --nope
KVLAB_PACKAGES=$work/gone refuse "no package" 4 'r-cran-janeaustenr cannot be had' austen
KVLAB_TEXTS=/dev/null/x refuse "no place" 4 'want KVLAB_TEXTS=DIR' austen
cp "$work/numbers" "$work/in" && package r-cran-janeaustenr $rdb
refuse "no strings" 3 'kind 13, want 16' austen
head -c 40 "$work/good" >"$work/in" && package r-cran-janeaustenr $rdb
refuse "a file that is cut" 3 'cannot be read' austen
head -c 200 "$KVLAB_PACKAGES/r-cran-janeaustenr_1_all.deb" >"$work/cut" && mv "$work/cut" "$KVLAB_PACKAGES/r-cran-janeaustenr_1_all.deb"
refuse "a package that is cut" 3 'no package with' austen
equal "what is kept" '' "$(ls "$work/texts")"
echo "test_prose: ok"
