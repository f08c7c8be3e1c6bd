#!/usr/bin/env bash
# test_fidelity.sh - what the comparison with kvpress can show without PyTorch: arguments, how sets are
# judged, and that the program takes every policy that is compared.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"
fidelity=$source_dir/tests/fidelity
export KVLAB_FIDELITY=$work/venv PYTHONDONTWRITEBYTECODE=1 KVLAB=$program

"$fidelity/run.sh" --help >out || fail "--help"
grep -q '^  tests/fidelity/run.sh --installed ' out || fail "--help: $(cat out)"
if ! command -v python3 >/dev/null; then
    echo "test_fidelity: skipped, no python3"
    exit 77
fi

# refused PATTERN ARGUMENTS: exit code 2 and one line
refused() {
    local pattern=$1 rc=0
    shift
    "$fidelity/run.sh" --installed "$@" >out 2>err || rc=$?
    equal "$*: exit code" 2 $rc
    equal "$*: lines" 1 "$(wc -l <err)"
    grep -Eq "$pattern" err || fail "$*"
}
refused 'lengths.*12.*want tokens from 64' --lengths 12
refused 'lengths.*x.*want tokens' --lengths 260,x
refused 'ratios.*1\.5.*want shares' --ratios 0.5,1.5
refused 'models.*huge.*want some of mha' --models mha,huge
refused 'only.*quest.*no method' --only quest
refused 'only.*no regular expression' --only '('
refused 'jobs.*0.*want a number' --jobs 0
refused 'unrecognized.*--fast' --fast

rc=0
"$fidelity/run.sh" --installed >out 2>err || rc=$?
equal "nothing installed: exit code" 77 $rc
grep -q 'skipped, no kvpress in .*venv' err || fail "nothing installed"
rc=0
PYTHON=$work/no-such-python "$fidelity/run.sh" >out 2>err || rc=$?
equal "no python: exit code" 4 $rc

# ---- every policy is one of the program's --------------------------------------------------------------

"$fidelity/run.sh" --list >list || fail "--list"
[ "$(wc -l <list)" -ge 30 ] || fail "--list: $(wc -l <list) lines"
ids=1,$(seq -s , 300 600)
n=0
while read -r policy _; do
    [[ $policy != *%* ]] || { echo "{\"of\":$((++n)),\"index\":-1}"; continue; } # of the model at hand
    rm -f x.zst
    "$program" trace -m "$model" --ids "$ids" --steps 1 -P "$policy" --budget 200 --no-scores --threads 1 --out x.zst \
        >out 2>err </dev/null || fail "$policy"
    n=$((n + 1))
    lines_of x.zst | sed -n "/\"kind\":\"trace_keep\"/s/^{/{\"of\":$n,/p"
done <list >kept
for i in $(jq 'select(.index == -1).of' kept | sort -u | comm -3 - <(seq $n | sort)); do
    fail "$(sed -n "${i}p" list) keeps everything"
done
equal "policies" "$(wc -l <list)" $n

# ---- how sets are judged -------------------------------------------------------------------------------

cat >judge.py <<'EOF'
import sys

sys.path.insert(0, sys.argv[1])
from compare import chunk_means, failures
from presses import Setting
from sets import DIFFERENT, EQUAL, ROUNDING, TIES, Tally, compare

def judged(theirs, ours, scores=None, **more):
    return compare([set(a) for a in theirs], [set(b) for b in ours], scores, **more)

def check(what, got, want):
    if got != want:
        sys.exit("%s: got %s, want %s" % (what, got, want))

row = [9.0, 1.0, 5.0, 5.0, 5.0 + 1e-5, 7.0]
check("equal", judged([[0, 2]], [[2, 0]], [row]), [(EQUAL, 0)])
check("ties", judged([[0, 2]], [[0, 3]], [row]), [(TIES, 1)])
check("rounding", judged([[0, 4]], [[0, 3]], [row]), [(ROUNDING, 1)])
check("another token", judged([[0, 5]], [[0, 3]], [row]), [(DIFFERENT, 1)])
check("one of two ties", judged([[0, 2, 5]], [[0, 3, 4]], [row]), [(DIFFERENT, 2)])
check("fewer tokens", judged([[0, 2, 3]], [[0, 2]], [row]), [(DIFFERENT, 1)])
check("no scores", judged([[0, 2]], [[0, 3]]), [(DIFFERENT, 1)])
# A token that went to another lane is a tie of the layer, not of the lane.
two = [[0, 1], [0]], [[0], [0, 1]], [[3.0, 2.0], [4.0, 2.0]]
check("lanes apart", judged(*two), [(DIFFERENT, 1)] * 2)
check("lanes together", judged(*two, group=lambda lane: 0), [(TIES, 1)] * 2)
check("close cuts", judged([[0, 2]], [[0, 3]], cuts=[1e-6]), [(ROUNDING, 1)])
check("no close cut", judged([[0, 2]], [[0, 3]], cuts=[1e-3]), [(DIFFERENT, 1)])
# Chunks of two tokens with equal scores, of which the last has one token.
pairs = [4.0, 4.0, 2.0, 2.0, 4.0]
check("chunks of two sizes", judged([[0, 1]], [[4]], [pairs], size=2), [(TIES, 2)])
check("tokens of two sizes", judged([[0, 1]], [[4]], [pairs]), [(DIFFERENT, 2)])
check("a chunk more", judged([[0, 1, 4]], [[0, 1]], [pairs], size=2), [(DIFFERENT, 1)])
check("means of chunks", chunk_means([1.0, 3.0, 5.0, 7.0, 2.0], 2), [2.0, 2.0, 6.0, 6.0, 2.0])

def tally(*verdicts):
    out = Tally()
    out.add(verdicts)
    return out

both = tally((EQUAL, 0), (DIFFERENT, 3))
both.merge(tally((DIFFERENT, 4), (TIES, 1)))
check("merged", (both.sets, both.tokens), ([1, 1, 0, 2], [0, 1, 0, 7]))

asked = Setting("knorm", "KnormPress()", None)
known = Setting("chunkkv", "ChunkKVPress()", None, known="documented")
fine = [("mha", 260, 1e-6, 5.0)]
check("nothing wrong", failures([(asked, tally((EQUAL, 0), (TIES, 2), (ROUNDING, 1)))], fine), [])
check("known", failures([(known, tally((DIFFERENT, 3)))], fine), [])
check("different", len(failures([(asked, tally((EQUAL, 0), (DIFFERENT, 3)))], fine)), 1)
check("nothing compared", len(failures([(asked, tally())], fine)), 1)
check("logits", len(failures([(asked, tally((EQUAL, 0)))], [("mha", 260, 1e-2, 5.0)])), 1)
check("logits of NaN", len(failures([(asked, tally((EQUAL, 0)))], [("mha", 260, float("nan"), 5.0)])), 1)
EOF
python3 judge.py "$fidelity" >out 2>err || fail "judge.py"

# ---- a run that was cut goes on -------------------------------------------------------------------------

cat >resume.py <<'EOF'
import sys

sys.path.insert(0, sys.argv[1])
from real import Log

def check(what, got, want):
    if got != want:
        sys.exit("%s: got %s, want %s" % (what, got, want))

log = Log("done/log.jsonl")
check("made", log.once(lambda: [1, 2], "kept", "knorm", 0.5), [1, 2])
check("made once", log.once(lambda: [3], "kept", "knorm", 0.5), [1, 2])
log.put({"right": 1.0}, "answers", "knorm")
with open("done/log.jsonl") as file:
    text = file.read().rstrip("\n")
with open("done/log.jsonl", "w") as file:
    file.write(text[:-4])  # the last line was not written whole
log = Log("done/log.jsonl")
check("whole line", log.get("kept", "knorm", 0.5), [1, 2])
check("half a line", log.get("answers", "knorm"), None)
log.put({"right": 0.0}, "answers", "knorm")
check("behind half a line", Log("done/log.jsonl").get("answers", "knorm"), {"right": 0.0})
EOF
python3 resume.py "$fidelity" >out 2>err || fail "resume.py"
