#!/usr/bin/env bash
# arm64.sh - builds for 64-bit Arm and runs the tests under qemu, on Debian on another processor.
#
#   tests/arm64.sh          operators, units, examples of the papers, conformance, one sweep
#   tests/arm64.sh -- ARGS  ARGS go to ctest instead (for example: -- -R test_rows -V)
#
# The libraries of that machine are unpacked into build-arm64/root: nothing of the system changes but
# for the cross compiler and qemu, which are installed when they are missing.  Expect half an hour.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../harness/setup.sh"

case ${1:-} in
-h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
--) shift ;;
'') ;;
*) kvl_say "unknown option $1, see --help"; exit 2 ;;
esac
[ "$(uname -m)" != aarch64 ] || kvl_die "this is such a machine: tests/run.sh is enough"

build=$kvl_root/build-arm64
export KVL_ARM64_ROOT=$build/root
export OMP_WAIT_POLICY=passive # spinning is dear where every instruction is

# Downloads the packages of that architecture and what they need, with an apt of its own.
fetch_root() {
    local apt=$build/apt deb
    mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial "$KVL_ARM64_ROOT.new"
    : >"$apt/state/status"
    cat >"$apt/apt.conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
Dir::State "$apt/state";
Dir::State::status "$apt/state/status";
Dir::Cache "$apt/cache";
EOF
    APT_CONFIG=$apt/apt.conf apt-get update -qq || kvl_die "apt-get update for arm64 did not work"
    APT_CONFIG=$apt/apt.conf apt-get install -y -qq --download-only libc6-dev libgomp1 libzstd-dev zlib1g-dev \
        libxxhash-dev libjansson-dev libyaml-dev libpcre2-dev libutf8proc-dev libcmocka-dev \
        libopenblas0-pthread >/dev/null ||
        kvl_die "apt-get could not download the libraries for arm64"
    for deb in "$apt"/cache/archives/*.deb; do dpkg -x "$deb" "$KVL_ARM64_ROOT.new"; done
    # which an installation would link
    ln -s openblas-pthread/libopenblas.so.0 "$KVL_ARM64_ROOT.new/usr/lib/aarch64-linux-gnu/libopenblas.so.0"
    mv "$KVL_ARM64_ROOT.new" "$KVL_ARM64_ROOT"
    rm -r "$apt"
}

kvl_needs+=' aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user'
kvl_setup
mkdir -p "$build"
[ -d "$KVL_ARM64_ROOT" ] || fetch_root
kvl_build "$build" -DCMAKE_TOOLCHAIN_FILE="$kvl_root/tests/arm64.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DKVL_ASSERTS=ON -DKVL_WERROR=ON
cd "$build"
[ $# -eq 0 ] || exec ctest --output-on-failure "$@"
ctest --output-on-failure -j "$(nproc)" -L 'ops|unit|golden|conformance|fuzz'

# The program as the scripts of tests/e2e call it.
printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" "%s" "$@"\n' "$KVL_ARM64_ROOT" "$build/kvlab" >kvlab-qemu
chmod +x kvlab-qemu
bash "$kvl_root/tests/e2e/test_snapshots.sh" "$build/kvlab-qemu" "$kvl_root"
kvl_say "arm64: all passed"
