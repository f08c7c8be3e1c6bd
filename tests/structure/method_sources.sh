#!/usr/bin/env bash
# method_sources.sh - the file of a method that has a paper says, beside the code that carries a step out, where the step
# stands there: an equation, algorithm, listing, figure, section, stage or step with its number, or a function of the
# official code, as name().  The comment at the head of a file does not count, nor do functions of core and the file's own.
#   $1 the sources
set -euo pipefail
cd "$1/methods"
numbered='(Eq\.|Equation|Algorithm|Listing|Figure|[Ss]ections?|[Ss]tages?|[Ss]teps?) [0-9]'
function='[A-Za-z_][A-Za-z_0-9.]*\(\)'
# Whose steps have no numbers, or no published code.
without=" omnikv omnikv_prefill "

bad=0 n=0
for file in *.c; do
    name=${file%.c}
    [[ $file != _* && $file != *.op.c ]] || continue
    ! grep -qE '^ *\.paper = "none' "$file" || continue
    n=$((n + 1))
    # Comments behind the first #include, those of several lines too.
    said=$(awk '/^#include/ { on = 1 } on { at = index($0, "/*"); if (at) { open = 1; $0 = substr($0, at) } if (open) print; if (/\*\//) open = 0 }' "$file" |
        sed -E "s/\b(kvl|$name)_[A-Za-z_0-9]*\(\)//g" | grep -cE "$numbered|$function" || true)
    case "$said$without" in
    0*" $name "*) continue ;;
    0*) echo "method_sources: $file: no comment of the code names a step of the paper (section 3.2, Eq. 4, Algorithm 1, name())" >&2 ;;
    *" $name "*) echo "method_sources: $file: $said lines name steps of the paper, want no exception for it" >&2 ;;
    *) continue ;;
    esac
    bad=1
done
[ "$n" -ge 30 ] || { echo "method_sources: $n methods with a paper in $1/methods, want 30 or more" >&2; exit 1; }
exit $bad
