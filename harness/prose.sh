#!/usr/bin/env bash
# prose.sh - a long English text, free or in the public domain, out of a Debian package: for perplexity, and as what
# needles are hidden in.  The package is unpacked, not installed; a text file of yours does as well.
#
#   harness/prose.sh              the texts
#   harness/prose.sh NAME         fetches one and says what to type next
#   harness/prose.sh --path NAME  the same, and prints the file's name alone
#
# KVLAB_TEXTS=DIR      where the texts are kept (default ~/.cache/kvlab/texts)
# KVLAB_PACKAGES=DIR   a folder with the packages, instead of apt-get
#
# Wants python3 and dpkg-deb.  Exit codes: 2 no such text; 3 not the package that it should be; 4 no network or a
# tool is missing.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

# name : package : file in it : what it is
texts="
austen:r-cran-janeaustenr:usr/lib/R/site-library/janeaustenr/data/Rdata.rdb:six novels of Jane Austen, public domain
jargon:jargon-text:usr/share/doc/jargon-text/jargon.txt.gz:the Jargon File, public domain
"
work=
kept=${KVLAB_TEXTS:-${HOME:?}/.cache/kvlab/texts}

prose_find() {
    local row
    row=$(grep "^$1:" <<<"$texts" || true)
    [ -n "$row" ] || { kvl_say "$1: no such text, want one of: $(grep . <<<"$texts" | cut -d : -f 1 | paste -sd ' '), or a file of yours"; exit 2; }
    IFS=: read -r name package member what <<<"$row"
}

# A file of the package as text.  R keeps its objects one behind the other: a length, a stream of zlib, and in it (R's
# XDR, "R Internals" 1.8) a vector of strings, one for each line of a novel.
prose_text() {
    python3 - "$1" <<'END'
import gzip, struct, sys, zlib

def lines(text):
    at = 2  # "X\n"
    def number():
        nonlocal at
        at += 4
        return struct.unpack(">i", text[at - 4:at])[0]
    version, _, _ = number(), number(), number()
    if version == 3:
        size = number()  # of the name of an encoding
        at += size
    kind, n = number() & 255, number()
    if kind != 16:
        raise ValueError(f"an object of kind {kind}, want 16, strings")
    for _ in range(n):
        number()
        size = max(0, number())
        yield text[at:at + size]
        at += size

name = sys.argv[1]
try:
    data, at = open(name, "rb").read(), 0
    if name.endswith(".gz"):
        sys.stdout.buffer.write(gzip.decompress(data))
        at = len(data)
    while at < len(data):
        stream = zlib.decompressobj()
        text = stream.decompress(data[at + 4:])
        if not stream.eof:
            raise ValueError("it is cut")
        for line in lines(text):
            sys.stdout.buffer.write(line + b"\n")
        at = len(data) - len(stream.unused_data)
except (OSError, EOFError, ValueError, struct.error, zlib.error) as why:
    sys.exit(f"kvlab: {name}: cannot be read ({why})")
END
}

prose_get() {
    local deb
    prose_find "$1"
    [ ! -s "$kept/$name.txt" ] || return 0
    mkdir -p "$kept" 2>/dev/null && [ -w "$kept" ] || kvl_die "$kept: cannot be written, want KVLAB_TEXTS=DIR"
    kvl_needs=' python3:python3 dpkg-deb:dpkg'
    kvl_setup
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    if [ -n "${KVLAB_PACKAGES-}" ]; then
        deb=$(find "$KVLAB_PACKAGES" -name "${package}_*.deb" 2>/dev/null | head -n 1) || true
    else
        kvl_say "$name: Debian's package $package"
        (cd "$work" && apt-get download "$package" >apt.log 2>&1) || true
        deb=$(find "$work" -name '*.deb')
    fi
    [ -n "$deb" ] || kvl_die "$name: package $package cannot be had: want a network and apt-get update, or a text file of yours"
    dpkg-deb -x "$deb" "$work/at" 2>/dev/null && [ -f "$work/at/$member" ] ||
        { kvl_say "$deb: no package with $member"; exit 3; }
    prose_text "$work/at/$member" >"$work/text" || exit 3
    mv "$work/text" "$kept/$name.txt"
}

prose_next() {
    cat <<END
$kept/$name.txt
  $what
next:
  build/kvlab run --model MODEL --task perplexity --text '$kept/$name.txt' --policy full,snapkv --length 2048
  build/kvlab run --model MODEL --task niah_files:dir='$kept' --policy full,snapkv --length 2048
END
}

case ${1-} in
'') grep . <<<"$texts" | while IFS=: read -r name _ _ what; do printf '%-8s %s\n' "$name" "$what"; done; exit 0 ;;
-h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
--path)
    [ $# = 2 ] || { kvl_say "--path wants one text"; exit 2; }
    prose_get "$2"
    printf '%s\n' "$kept/$name.txt"
    exit 0
    ;;
-*) kvl_say "unknown option $1, see --help"; exit 2 ;;
esac
[ $# = 1 ] || { kvl_say "$2: want one text, no more"; exit 2; }
prose_get "$1"
prose_next
