#!/usr/bin/env bash
# llama.sh - greedy continuations of real prose by kvlab and by llama.cpp's library, from the same files.
#
#   tests/fidelity/llama.sh                  SmolLM2, Gemma 3 270M and Qwen2.5-Coder 0.5B (harness/models.sh)
#   tests/fidelity/llama.sh --model MODEL    a name of harness/models.sh, or a GGUF file; again for more
#   tests/fidelity/llama.sh --prompts N --length N --tokens N --threads N --gap LOGITS
#
# Wants python3-venv and a C++ compiler: pip builds llama-cpp-python in a virtual environment, which takes ten minutes.
# KVLAB_LLAMA=DIR is that environment (out/llama); KVLAB=PATH a program in place of build/kvlab.  LLAMA_CPP_LIB_PATH=DIR takes
# a libllama.so that is there, and PYTHON=PATH with it a python3 that has the package.
# Exit code 1: at a first difference llama.cpp's logits of the two tokens are more than --gap (0.6) apart.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../harness/setup.sh"
package=llama-cpp-python==0.3.36
venv=${KVLAB_LLAMA:-$kvl_root/out/llama}

models=()
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    --model) [ $# -gt 1 ] || { kvl_say "--model wants a name or a file"; exit 2; }; models+=("$2"); shift ;;
    *) arguments+=("$1") ;;
    esac
    shift
done
[ ${#models[@]} -gt 0 ] || models=(smollm2-135m gemma3-270m qwen2.5-coder-0.5b)
for model in "${models[@]}"; do
    [ -e "$model" ] || model=$("$kvl_root/harness/models.sh" --path "$model")
    arguments+=(--model "$model")
done
text=$("$kvl_root/harness/prose.sh" --path austen)
python=${PYTHON:-$venv/bin/python}
if [ -z "${PYTHON-}" ] && ! "$python" -c 'import llama_cpp' 2>/dev/null; then
    kvl_say "building $package in $venv"
    python3 -m venv "$venv" || { kvl_say "no venv: apt-get install python3-venv"; exit 4; }
    "$venv/bin/python" -m pip install --quiet "$package" || { kvl_say "pip could not build it"; exit 4; }
fi
kvl_find_kvlab
export KVLAB=$kvlab
exec "$python" "$kvl_root/tests/fidelity/llama.py" --text "$text" "${arguments[@]}"
