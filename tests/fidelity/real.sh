#!/usr/bin/env bash
# real.sh - holds kvlab against transformers and kvpress on a real model: logits on prose, positions kept of the same
# prompt, answers token by token with the question behind the compressed context and in it, seconds, memory.
#
#   tests/fidelity/real.sh                  SmolLM2-135M-Instruct (harness/models.sh), 2 contexts of 512 tokens
#   tests/fidelity/real.sh --model MODEL    a name of harness/models.sh, or a GGUF file of Llama or Qwen 2
#   tests/fidelity/real.sh --task SPEC --length N --contexts N --questions N --ratios R,... --logits N,... --noise N --only REGEX
#                          --no-sets --no-answers
#   tests/fidelity/real.sh --out FILE.md    writes the tables there, too
#
# Both programs read the weights as 32-bit floats, which are written once to KVLAB_FIDELITY_CACHE=DIR
# (~/.cache/kvlab/fidelity: 4 bytes per weight).  A log beside them has what is done: the same command goes on with it.
# Wants what tests/fidelity/run.sh wants, and takes the same variables.  Exit code 1: kept positions differ that are not
# known to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../harness/setup.sh"
venv=${KVLAB_FIDELITY:-$kvl_root/out/fidelity}

model=smollm2-135m
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --model) [ $# -gt 1 ] || { kvl_say "--model wants a name or a file"; exit 2; }; model=$2; shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
# Wrong arguments need neither packages nor a model.
python=$venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
"$python" "$kvl_root/tests/fidelity/real.py" --model . --text . --cache . --check ${arguments[@]+"${arguments[@]}"} || exit
[ -e "$model" ] || model=$("$kvl_root/harness/models.sh" --path "$model")
text=$("$kvl_root/harness/prose.sh" --path austen)
"$kvl_root/tests/fidelity/run.sh" --install
kvl_find_kvlab
export KVLAB=$kvlab MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296
exec "$venv/bin/python" "$kvl_root/tests/fidelity/real.py" --model "$model" --text "$text" \
    --cache "${KVLAB_FIDELITY_CACHE:-${HOME:?}/.cache/kvlab/fidelity}" "${arguments[@]}"
