#!/usr/bin/env bash
# names.sh - a file is found by its name: no two sources of core, harness, methods and datasets have one name, but for
# operators, which stand three times, and the two templates.
#   $1 the sources
set -euo pipefail
cd "$1"
twice=$(find core harness methods datasets -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    ! -path 'core/ops/ref/*' ! -path 'core/ops/cpu/*' ! -path 'core/ops/cuda/*' ! -path 'core/include/*' ! -name _template.c |
    sed 's|.*/||' | sort | uniq -d)
public=$(find core harness methods datasets -type f -name '*.h' | sed 's|.*/||' | sort | uniq -d)
[ -z "$twice$public" ] && exit 0
echo "names: more than one file of the name:" $twice $public >&2
exit 1
