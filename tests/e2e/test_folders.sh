#!/usr/bin/env bash
# test_folders.sh - models as folders of Hugging Face's form against logits of another implementation: hf_folders.py
# says how.  Wants KVL_ARCHS, a folder of NAME.gguf and NAME.json, and numpy (KVL_PYTHON [python3]).  Where that has
# transformers as well, random models of many sizes: hf_random.py.
#   $1 the program   $2 the sources
set -euo pipefail
python=${KVL_PYTHON:-python3}
[ -n "${KVL_ARCHS:-}" ] || { echo "folders: skipped, no KVL_ARCHS"; exit 77; }
"$python" -c 'import numpy' 2>/dev/null || { echo "folders: skipped, no numpy"; exit 77; }
"$python" "$2/tests/e2e/hf_folders.py" "$1" "$KVL_ARCHS"
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "random models: skipped, no transformers"; exit 0; }
"$python" "$2/tests/e2e/hf_random.py" "$1"
