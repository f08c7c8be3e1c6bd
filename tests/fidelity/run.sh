#!/usr/bin/env bash
# run.sh - holds kvlab's methods against kvpress on random models: positions kept, and logits.
#
#   tests/fidelity/run.sh                 installs what it needs, builds, compares (minutes)
#   tests/fidelity/run.sh --installed     the same, but installs and builds nothing: what is missing ends
#                                         it with code 77
#   tests/fidelity/run.sh --list          what is compared
#   tests/fidelity/run.sh --install       installs what it needs, and no more
#   tests/fidelity/run.sh --report FILE.md --only REGEX --models M,... --lengths N,... --ratios R,... --jobs N
#
# Wants a python3 with PyTorch: on Debian 12 `apt-get install python3-torch python3-venv` (150 MB).
# KVLAB_FIDELITY=DIR is the virtual environment (out/fidelity); PYTHON=PATH another python3; KVLAB=PATH a
# program in place of build/kvlab.  Exit code 1: something differs that is not known to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../harness/setup.sh"
here=$kvl_root/tests/fidelity
venv=${KVLAB_FIDELITY:-$kvl_root/out/fidelity}

fidelity_say() { printf 'fidelity: %s\n' "$*" >&2; }

# python_of: the first python3 that has PyTorch.  A python3 of the user's own may stand before Debian's.
python_of() {
    local python
    for python in ${PYTHON:-python3 /usr/bin/python3}; do
        ! "$python" -c 'import torch, numpy' 2>/dev/null || { command -v "$python"; return; }
    done
    return 1
}

install() {
    local python
    python=$(python_of) || {
        fidelity_say "no ${PYTHON:-python3} with PyTorch and NumPy, want one: apt-get install python3-torch python3-venv (Debian 12), or PYTHON=PATH"
        exit 4
    }
    fidelity_say "installing $here/requirements.txt into $venv"
    "$python" -m venv --system-site-packages "$venv" || { fidelity_say "no venv: apt-get install python3-venv"; exit 4; }
    "$venv/bin/python" -m pip install --quiet --no-deps -r "$here/requirements.txt" || { fidelity_say "pip could not install them"; exit 4; }
    cp "$here/requirements.txt" "$venv/installed.txt"
}

installed=
arguments=()
for argument in "$@"; do
    case $argument in
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --installed) installed=1 ;;
    --install) cmp -s "$here/requirements.txt" "$venv/installed.txt" || install; exit 0 ;;
    *) arguments+=("$argument") ;;
    esac
done

# Wrong arguments and --list need neither packages nor a build.
python=$venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
command -v "$python" >/dev/null || { fidelity_say "no $python"; [ -n "$installed" ] && exit 77 || exit 4; }
"$python" "$here/compare.py" --check ${arguments[@]+"${arguments[@]}"} || exit
[[ " ${arguments[*]-} " != *" --list "* ]] || exit 0

if [ -n "$installed" ]; then
    [ -e "$venv/installed.txt" ] || { fidelity_say "skipped, no kvpress in $venv: tests/fidelity/run.sh installs it"; exit 77; }
    kvlab=${KVLAB:-$kvl_root/build/kvlab}
else
    cmp -s "$here/requirements.txt" "$venv/installed.txt" || install
    kvl_find_kvlab
fi
# Large blocks stay with the process: PyTorch takes and returns them at every layer.
export KVLAB=$kvlab MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296
exec "$venv/bin/python" "$here/compare.py" ${arguments[@]+"${arguments[@]}"}
