# kill_lib.sh - sweeps that are killed again and again.  Sourced, after sweep_lib.sh.

bytes_of() { stat -c %s "$1" 2>/dev/null || echo 0; }
# grown LOG BYTES PID: it has so many, or its sweep is gone
grown() { [ "$(bytes_of "$1")" -ge "$2" ] || gone "$3"; }

# Whole records of samples and cells that stand in the log now.
committed() {
    lines_of "$1" | grep -E '"kind":"(sample|cell|error)"' || true
}

# kill_once LOG BYTES ARGUMENTS...: a sweep, killed with -9 when the log has so many more, and a random moment later.  Adds
# to killed if it met a running one; fails where something is gone that was committed at an earlier kill.
kill_once() {
    local log=$1 target=$(($(bytes_of "$1") + $2)) pid
    shift 2
    "$program" sweep --threads 1 --quiet small.yaml "$@" 2>>err &
    pid=$!
    eventually grown "$log" $target $pid || fail "a sweep that does not get on"
    sleep "$(awk -v r=$RANDOM 'BEGIN { print r / 32768 * 0.02 }')"
    if kill -9 $pid 2>/dev/null; then killed=$((killed + 1)); fi
    wait $pid 2>/dev/null || true
    [ -e "$log" ] || return 0
    # Whatever was there after an earlier kill is there still, byte for byte.
    committed "$log" >"$log.now"
    [ -e "$log.kept" ] || : >"$log.kept"
    head -n "$(wc -l <"$log.kept")" "$log.now" | cmp -s - "$log.kept" || fail "records are gone after kill $killed"
    mv "$log.now" "$log.kept"
}
