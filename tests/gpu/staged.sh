#!/usr/bin/env bash
# staged.sh - what a GPU is asked first, for a bare machine without root: three stages, each planned for less than
# nine minutes and ended by its deadline.  A later stage uses what stage 1 built.
#
#   staged.sh [OPTION...] 1        builds; every operator, then whole tokens, against the CPU; a model of 14 GB
#   staged.sh [OPTION...] 2        speed: the table of goals, with PyTorch beside ours where it is
#   staged.sh [OPTION...] 3        compute-sanitizer, conformance of methods, a profile of attention
#   staged.sh [OPTION...] --dry    without a GPU: whether all that the stages name exists, and the time they plan
#   staged.sh fetch DIR            downloads the Debian packages that a bare machine may lack, for --debs
#
#   --built DIR  programs built for this GPU elsewhere, as a build folder has them (kvlab, tests/gpu_*, ...): nothing is
#                compiled, which is most of stage 1; their libraries must be found
#   --debs DIR   unpacks the .deb files of DIR and builds with them; they are not installed
#   --work DIR   build, model and unpacked packages (default: kvlab-gpu in TMPDIR or /tmp)
#   --out DIR    results: stageN.txt, a line per command; stageN.log, all output; tables (default: out in --work)
#
# Exit status 0: all of the stage passed.  Wants cmake, ninja, a C and C++ compiler, CUDA 12 or newer.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
deadline=530 # seconds of a stage
work=${TMPDIR:-/tmp}/kvlab-gpu
out='' debs='' dry='' stage='' built=''
failed=0
planned=0

say() { printf 'staged: %s\n' "$*" >&2; }
die() { say "$*"; exit 2; }

# ---- packages --------------------------------------------------------------------------------------

# Libraries with their headers; what they depend on comes along, but for what every machine with a compiler has.
packages='libzstd-dev libxxhash-dev libjansson-dev libyaml-dev libpcre2-dev libcmocka-dev pkgconf'

fetch() {
    local names
    command -v apt-get >/dev/null || die "fetch wants apt-get: run it where the distribution is the GPU machine's"
    mkdir -p "$1" && cd "$1" || die "cannot write $1"
    names=$packages
    for _ in 1 2 3; do # what they need, what that needs
        # shellcheck disable=SC2086
        names=$({ printf '%s\n' $names; apt-cache depends --important $names; } |
            sed -nE 's/^([a-z0-9].*)|^ *Depends: ([a-z0-9].*)/\1\2/p' | grep -vE '^(libc6|libc-dev|libgcc)' | sort -u)
    done
    # shellcheck disable=SC2086
    apt-get download -qq $names 2>&1 | grep -v '^W: ' >&2
    [ "${PIPESTATUS[0]}" = 0 ] || die "apt-get could not download: $names"
    say "$(find . -name '*.deb' | wc -l) packages in $1"
}

# Makes the compiler, pkg-config and the loader look into the unpacked packages first.
use_debs() {
    local at=$work/deb lib f
    mkdir -p "$at"
    for f in "$debs"/*.deb; do
        [ -f "$f" ] || die "--debs $debs: no .deb files there, see staged.sh fetch"
        dpkg-deb -x "$f" "$at" || die "$f: cannot be unpacked"
    done
    for lib in "$at"/usr/lib/*-linux-*; do break; done
    printf '#!/bin/sh\nexec "%s/usr/bin/pkgconf" "$@"\n' "$at" >"$work/pkg-config"
    chmod +x "$work/pkg-config"
    export LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} CMAKE_LIBRARY_PATH=$lib
    export PKG_CONFIG=$work/pkg-config PKG_CONFIG_LIBDIR=$lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$at
    export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
}

# ---- one command -----------------------------------------------------------------------------------

# run SECONDS FILE COMMAND... - its output to FILE in --out (-: only to the log); never longer than what the stage has left
run() {
    local limit=$1 file=$2 left rc from=$SECONDS
    shift 2
    planned=$((planned + limit))
    if [ -n "$dry" ]; then
        known "$@" || failed=1
        return 0
    fi
    left=$((deadline - SECONDS))
    [ "$limit" -le "$left" ] || limit=$left
    if [ "$limit" -le 0 ]; then
        line "no time left: $*"
        failed=1
        return 1
    fi
    timeout -k 5 "$limit" "$@" >"$work/output" 2>>"$work/errors"
    rc=$?
    cat "$work/output" "$work/errors" >>"$out/stage$stage.log"
    [ "$file" = - ] || cp "$work/output" "$out/$file"
    line "rc $rc, $((SECONDS - from)) s: ${*/#$work\//}"
    if [ $rc -ne 0 ]; then
        failed=1
        cat "$work/output" "$work/errors" | grep -E 'FAILED|ERROR|[Ee]rror|kvlab:' | head -n 8 | cut -c1-300 |
            tee -a "$out/stage$stage.txt"
    fi
    : >"$work/errors"
    return $rc
}

line() { printf '%s\n' "$*" | tee -a "$out/stage$stage.txt"; }

# optional TOOL SECONDS FILE COMMAND... - where the machine has the tool
optional() {
    local tool=$1
    shift
    if [ -n "$dry" ] || command -v "$tool" >/dev/null; then
        run "$@"
    else
        line "left out, no $tool: ${*:3}"
    fi
}

# ---- dry -------------------------------------------------------------------------------------------

# What only machines with a GPU have.
gpu_tools=' nvidia-smi compute-sanitizer ncu nvcc '

# known COMMAND... - the program exists or will be built, and has every --option that it is given
known() {
    local word program
    while [[ $1 = env || $1 = *=* ]]; do shift; done
    program=$1
    shift
    case $program in
    "$build/tests/"*) known_test "${program##*/}" "$@" ;;
    "$build/kvlab") known_options "$("$kvlab" "$1" --help)" "$@" ;;
    compute-sanitizer | ncu) # the program that they look at
        for word in "$@"; do
            case $word in "$build/tests/"*) known_test "${word##*/}" || return 1 ;; esac
        done ;;
    *.py) known_options "$(cat "$program")" "$@" ;;
    python3) known "$@" ;;
    *) [[ $gpu_tools = *" $program "* ]] || command -v "$program" >/dev/null || { say "no $program here"; return 1; } ;;
    esac
}

# known_options TEXT ARGUMENT...
known_options() {
    local text=$1 word rc=0
    shift
    [ -n "$text" ] || { say "nothing is known of the options of: $*"; return 1; }
    for word in "$@"; do
        [[ $word = --[a-z]* ]] || continue
        grep -qF -- "${word%%=*}" <<<"$text" || { say "no option ${word%%=*}: $*"; rc=1; }
    done
    return $rc
}

# known_test PROGRAM [METHOD] - a target of the build, as far as this machine can configure one
known_test() {
    local source
    if [ -n "$targets" ]; then
        grep -qxF "tests/$1" <<<"$targets" || { say "the build has no program $1"; return 1; }
    else
        case $1 in
        gpu_*) source="ops/test_${1#gpu_}.c unit/test_${1#gpu_}.c" ;;
        bench_goals) source=bench/goals/goals.c ;;
        bench_*) source=bench/$1.c ;;
        *) source="gpu/$1.c conformance/$1.c" ;;
        esac
        (cd "$root/tests" && for f in $source; do [ ! -f "$f" ] || exit 0; done; exit 1) ||
            { say "no source of the program $1"; return 1; }
    fi
    [ "$1" != test_conformance ] || grep -qxF "$2" <<<"$methods" || { say "no method $2"; return 1; }
}

dry_run() {
    local got
    kvlab=${KVLAB:-$root/build/kvlab}
    command -v "$kvlab" >/dev/null || die "--dry: no program $kvlab: build it, or set KVLAB"
    methods=$("$kvlab" list policies | awk '/^  [a-z]/ { print $1 }')
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    build=$work/build targets=''
    if command -v nvcc >/dev/null; then
        configure 90 >"$work/configure" 2>&1 || { tail -n 20 "$work/configure" >&2; die "cmake cannot configure"; }
        targets=$(ninja -C "$build" -t targets all | sed -n 's/: .*//p')
    else
        say "no nvcc here: programs are looked up by their sources"
    fi
    for stage in 1 2 3; do
        planned=0
        "stage_$stage"
        echo "stage $stage: at most $planned s planned"
        [ $planned -le $deadline ] || { say "stage $stage: $planned s planned, want at most $deadline"; failed=1; }
    done
    got=$(known "$build/tests/gpu_nothing" 2>&1) && { say "a program that is not there was not missed"; failed=1; }
    got=$(known "$build/kvlab" bench --no-such-option 2>&1) && { say "an option that is not there was not missed"; failed=1; }
    got=$(known "$build/tests/test_conformance" no_method 2>&1) && { say "a method that is not there was not missed"; failed=1; }
    exit $failed
}

# ---- the stages ------------------------------------------------------------------------------------

configure() { # RUN... ARCH
    "${@:1:$#-1}" cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVL_CUDA=ON \
        "-DKVL_CUDA_ARCHS=${*: -1}" -DKVL_GPU_TESTS=ON
}

# All programs that the stages name, and no others: tests of the CPU need no GPU.
build_all() {
    local names
    names=$(ninja -C "$build" -t targets all |
        grep -oE '^tests/(gpu_[a-z0-9_]*|test_gpu|test_gpu_steps|test_gpu_twins|test_conformance|bench_goals|bench_cuda_[a-z]*):' | tr -d :)
    # shellcheck disable=SC2086
    run 200 - ninja -C "$build" kvlab $names
}

# Whether a failure is of kernels, of graphs or of the order of work: the same once more without graphs, and once with a
# wait after every kernel.
again() {
    [ -z "$dry" ] || return 0
    line "once more without graphs, then with a wait after every kernel:"
    run 60 - env KVL_CUDA_GRAPH=0 "$@"
    run 60 - env KVL_CUDA_GRAPH=0 KVL_CUDA_CHECKS=1 "$@"
}

stage_1() {
    local p cap=90 model_pid=
    run 10 gpu.txt nvidia-smi
    if [ -z "$dry" ]; then
        cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1)
        [ -n "$built" ] || { configure run 60 - "${cap//./}" && build_all; } || return 1
        if [ "$(df -Pk "$work" | awk 'NR == 2 { print int($4 / 1048576) }')" -lt 20 ]; then
            line "no model of 14 GB: less than 20 GB are free in $work"
        elif [ ! -f "$work/model.gguf" ]; then
            (timeout $((deadline - SECONDS)) "$build/kvlab" bench --make-model llama8b --weights bf16 "$work/part.gguf" \
                >/dev/null 2>&1 && mv "$work/part.gguf" "$work/model.gguf") &
            model_pid=$!
        fi
    else
        run 60 - cmake
        run 200 - ninja
        known "$build/kvlab" bench --make-model --weights || failed=1
    fi
    run 10 - "$build/kvlab" doctor
    # The smallest first: what fails there explains what fails later.
    for p in device rows matmul attn_decode attn_prefill select scores kvstore; do
        run 15 - "$build/tests/gpu_$p" || again "$build/tests/gpu_$p"
    done
    run 10 - "$build/tests/test_gpu_twins" || again "$build/tests/test_gpu_twins"
    run 40 - "$build/tests/test_gpu_steps" || again "$build/tests/test_gpu_steps"
    run 60 - "$build/tests/test_gpu" || again "$build/tests/test_gpu"
    run 20 attn.txt "$build/tests/bench_cuda_attn" 1 32K
    [ -z "$model_pid" ] || wait "$model_pid" || line "the model was not written"
}

stage_2() {
    local peers=$work/peers.jsonl
    : >"$peers"
    optional nvidia-smi 90 torch.jsonl env python3 "$root/tests/bench/torch_attention.py" --depths 32768,131072 --rounds 3 &&
        [ -z "$dry" ] && cp "$out/torch.jsonl" "$peers"
    run 45 attn.txt "$build/tests/bench_cuda_attn" 3 && [ -z "$dry" ] && grep '^{' "$out/attn.txt" >>"$peers"
    run 35 select.txt "$build/tests/bench_cuda_select" 3
    run 35 ops.txt "$build/tests/bench_cuda_ops" 3
    run 10 host.txt "$build/tests/bench_cuda_host" 2
    run 315 bench.txt "$build/tests/bench_goals" --device cuda --model "$work/model.gguf" --depths 32768,131072 --rounds 3 \
        --peer-json "$peers" --json "$out/gpu.jsonl" --report="$out/gpu.md"
}

stage_3() {
    local p m
    for p in device rows matmul attn_decode attn_prefill select; do
        optional compute-sanitizer 35 - compute-sanitizer --error-exitcode 9 "$build/tests/gpu_$p"
    done
    for p in attn_decode attn_prefill select; do
        optional compute-sanitizer 30 - compute-sanitizer --tool racecheck --error-exitcode 9 "$build/tests/gpu_$p"
    done
    for m in full quest h2o snapkv omnikv streaming_llm arkvale infllm; do
        run 20 - env KVL_TEST_DEVICE=cuda "$build/tests/test_conformance" "$m"
    done
    optional ncu 60 ncu.txt ncu --clock-control none --set full -k regex:decode_fast -c 2 -f -o "$out/ncu" \
        "$build/tests/bench_cuda_attn" 1 32K
}

# ---- arguments -------------------------------------------------------------------------------------

while [ $# -gt 0 ]; do
    case $1 in
    --built | --debs | --work | --out) [ $# -gt 1 ] || die "$1 wants a folder"
        printf -v "${1#--}" %s "$(realpath -m "$2")"
        shift ;;
    --dry) dry=1 ;;
    fetch) [ $# = 2 ] || die "fetch wants one folder"; fetch "$2"; exit ;;
    1 | 2 | 3) stage=$1 ;;
    -h | --help) sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) die "unknown argument $1, see --help" ;;
    esac
    shift
done
PATH=$PATH:/usr/local/cuda/bin
export KVL_CUDA_CHECKS=0 # with asserts every operator would wait: here kernels run behind the host's back
[ -z "$dry" ] || dry_run
[ -n "$stage" ] || die "want a stage (1, 2 or 3), --dry or fetch, see --help"
SECONDS=0
out=${out:-$work/out} build=${built:-$work/build}
mkdir -p "$work" "$out" || die "cannot write $work and $out"
: >"$out/stage$stage.txt" >"$out/stage$stage.log" >"$work/errors"
command -v nvidia-smi >/dev/null || die "no NVIDIA GPU here (no nvidia-smi); --dry wants none"
[ -z "$debs" ] || use_debs
{ [ "$stage" = 1 ] && [ -z "$built" ]; } || [ -x "$build/kvlab" ] || die "nothing is built in $build: stage 1 first, or --built"
"stage_$stage"
line "stage $stage: $([ $failed = 0 ] && echo 'all passed' || echo 'NOT all passed'), $SECONDS s"
exit $failed
