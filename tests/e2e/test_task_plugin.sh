#!/usr/bin/env bash
# test_task_plugin.sh - tasks from shared objects: listed, run, refused when they do not fit, and failing
# for their own cells alone when they crash.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") source_dir=$(realpath "$2")
. "$source_dir/tests/e2e/sweep_lib.sh"

# Every task that is built in has a row of the table and a section.
"$program" list tasks | awk '/^  [a-z]/ { print $1 }' >"$work/tasks"
[ "$(wc -l <"$work/tasks")" -ge 12 ] || fail "few tasks: $(cat "$work/tasks")"
while read -r task; do
    grep -q "^| \`$task\` | " "$source_dir/datasets/README.md" || fail "datasets/README.md has no row of $task"
    grep -Eq "^##+ (.*, )?$task(,|$)" "$source_dir/datasets/README.md" ||
        fail "datasets/README.md has no section of $task"
done <"$work/tasks"

if ! command -v cc >/dev/null; then
    echo "test_task_plugin: skipped, no cc"
    exit 77
fi
cd "$work"
template=$source_dir/datasets/_template.c

# plugin NAME SCRIPT: the template under another name, edited by sed
plugin() {
    sed -E "s/\"template\"/\"$1\"/; $2" "$template" >"$1.c"
    cmp -s "$1.c" <(sed -E "s/\"template\"/\"$1\"/" "$template") && [ -n "$2" ] && fail "$1: nothing edited"
    cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -I "$source_dir/datasets" \
        "$1.c" -o "$1.so"
}

# refuse FLAG FILE CODE PATTERN: not loaded, one line
refuse() {
    local rc=0
    "$program" list "$1" "$2" >out.txt 2>err || rc=$?
    equal "exit code for $2" "$3" $rc
    equal "lines for $2" 1 "$(wc -l <err)"
    grep -Eqx -- "kvlab: $4" err || fail "$2: $(cat err)"
}

# ---- what fits ------------------------------------------------------------------------------------

plugin good ''
"$program" list tasks --task-plugin good.so >out.txt
grep -Eqx '  good +words hidden .*\(\./good\.so\)' out.txt || fail "list: $(cat out.txt)"
"$program" describe good --task-plugin ./good.so >out.txt
grep -Eqx 'plug-in +\./good\.so' out.txt || fail "describe: $(cat out.txt)"
grep -q '^  words=1 ' out.txt || fail "describe: $(cat out.txt)"

cat >good.yaml <<END
model: $model
tasks: [{task: good, words: 2}, passkey]
lengths: [256]
contexts: 3
policies: [full, quest]
budgets: [64]
exclude: [{task: good, policy: quest}]
END
sweep() {
    run_sweep good.yaml --task-plugin good.so --jobs "$1" --log "$2" --stats "${@:3}" 2>err
}
sweep 1 one.zst >stats || fail "a sweep with a task of a plug-in"
sweep 2 two.zst >/dev/null || fail "the same with workers"
equal "cells" 3 "$(lines_of one.zst | grep -c '"kind":"cell"')"
equal "cells of the plug-in" 1 "$(lines_of one.zst | grep '"kind":"cell"' | grep -c '"task":"good"')"
cmp -s <(results_of one.zst) <(results_of two.zst) || fail "workers answer otherwise"
chances=$(lines_of one.zst | grep '"kind":"cell"' |
    sed -E 's/.*"task":("[a-z]*").*"chance":([^,]*),.*/\1 \2/' | LC_ALL=C sort -u | xargs)
[[ $chances =~ ^good\ 0\.0[0-9]+\ passkey\ 1e-5$ ]] || fail "chances: $chances"
"$program" report one.zst >out.txt || fail "a report without the plug-in"
grep -q 'good(words=2)' out.txt || fail "no label of the plug-in: $(cat out.txt)"
"$program" tables duo_attention "$model" --task good --task-plugin good.so --length 256 --contexts 1 >out.txt ||
    fail "tables of contexts of a plug-in"

# An edited task is another one: its cells run again, those of the others do not.
grep -q 'for 6 samples\|for 9 samples' stats || fail "samples: $(cat stats)"
cp good.so before.so
{ cat good.c && echo 'int edited; int edited;'; } >edited.c
cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -I "$source_dir/datasets" edited.c -o good.so
sweep 1 one.zst >stats || fail "an edited plug-in"
grep -q 'for 3 samples' stats || fail "an edited plug-in runs again alone: $(cat stats)"
cp before.so good.so
sweep 1 one.zst >stats || fail "the first plug-in again"
grep -q 'for 0 samples' stats || fail "what was answered runs again: $(cat stats)"

rc=0
"$program" run -m "$model" -t goo -P full --length 256 --task-plugin good.so >out.txt 2>err || rc=$?
equal "exit code of an unknown task" 2 $rc
grep -q 'task "goo" does not exist, did you mean "good"?' err || fail "an unknown task: $(cat err)"

# ---- what does not return -------------------------------------------------------------------------

cat >crash.yaml <<END
model: $model
tasks: [crash_early, crash_late, leave, crash_score, crash_chance, passkey]
lengths: [256]
contexts: 3
policies: [full, quest]
budgets: [64]
END
make='s/^    struct kvl_sample sample = \{ 0 \};/&'
ever='extern int creat(const char *, unsigned), pause(void); creat("entered", 0600); for (;;) pause();'
plugin endless "$make $ever/"
plugin endless_late "$make if (req->index == 2) { $ever }/"
# ended TASK JOBS WORDS: SIGTERM once it loops; neither the sweep nor a process of it is left.  In a folder of its own.
ended() {
    local rc=0 pid child
    work=$work/of-$1
    mkdir "$work"
    cd "$work"
    "$program" sweep ../crash.yaml --quiet --threads 2 --jobs "$2" --set "tasks=[$1]" --task-plugin "../$1.so" --log "$1.zst" 2>err &
    pid=$!
    trap '[ -z "$pid" ] || kill -9 "$pid"' EXIT
    entered() { [ -e entered ] || gone $pid; }
    eventually entered || fail "$1: it does not come to the loop"
    child=$(cat /proc/$pid/task/*/children)
    [ -n "$child" ] || fail "$1: the loop is in the process of the sweep"
    kill $pid
    wait $pid || rc=$?
    pid=
    equal "exit of $1" 75 $rc
    for pid in $child; do
        child_gone() { [ -z "$(cat "/proc/$pid/cmdline" 2>said | tr -d '\0')" ]; }
        eventually child_gone || fail "$1: a process of the sweep lives on"
    done
    pid=
    [ -z "$3" ] || grep -q "$3" err || fail "$1: what it says of a loop: $(cat err)"
}
# One takes the 5 s that the program waits: beside all that follows, up to the end of this script.
trap 'kill $(jobs -p) 2>"$work/said" || true; rm -rf "$work"' EXIT
ended endless 2 '' &
endless=$!
ended endless_late 2 '^kvlab: task endless_late did not return within 5 s of signal 15: ' &
endless_late=$!

# ---- what does not fit ----------------------------------------------------------------------------

flag=--task-plugin
plugin abi 's/KVL_TASK_ABI,/99,/'
refuse $flag abi.so 6 '\./abi\.so: task ABI is 99, this program wants [0-9]+: rebuild it'
plugin size 's/sizeof template,/12,/'
refuse $flag size.so 6 '\./size\.so: struct kvl_task has 12 bytes, this program wants [0-9]+: rebuild it'
plugin Upper ''
refuse $flag Upper.so 6 "\./Upper\.so: task name \"Upper\": want a-z, 0-9 and '_'"
plugin untitled '/\.title/d'
refuse $flag untitled.so 6 '\./untitled\.so: task untitled: title, paper and help must be set'
plugin idle '/\.generate/d'
refuse $flag idle.so 6 '\./idle\.so: task idle: has no generate, want one'
plugin lucky '/\.chance/d'
refuse $flag lucky.so 6 '\./lucky\.so: task lucky: score and chance go together, it has only one of them'
plugin quiet '/\.(chance|score) =/d'
refuse $flag quiet.so 6 '\./quiet\.so: task quiet: asks nothing, and its options have [0-9]+ bytes, want .*'
plugin narrow 's/opts_size = sizeof\(struct template_opts\)/opts_size = 2/'
refuse $flag narrow.so 6 '\./narrow\.so: task narrow: option words of type 1 at byte 0 does not fit its 2 bytes of options'
plugin passkey ''
refuse $flag passkey.so 6 '\./passkey\.so: task "passkey" exists already \(built in\), want another name'
rc=0
"$program" list $flag good.so $flag before.so >out.txt 2>err || rc=$?
equal "exit code of one task twice" 6 $rc
equal "one task twice" 'kvlab: ./before.so: task "good" exists already (./good.so), want another name' "$(cat err)"
echo 'int nothing; int nothing;' >none.c
cc -shared -fPIC none.c -o none.so
refuse $flag none.so 6 '\./none\.so: has no symbol kvl_plugin_task, want a task compiled with -DKVL_PLUGIN'
refuse --plugin good.so 6 '\./good\.so: is a task, want --task-plugin \./good\.so'
cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" "$source_dir/methods/_template.c" -o method.so
refuse $flag method.so 6 '\./method\.so: is a method, want --plugin \./method\.so'
refuse $flag none.c 6 '\./none\.c: cannot be loaded: (invalid ELF header|file too short)'
refuse $flag missing.so 2 '\./missing\.so: cannot open: No such file or directory'

# ---- what breaks its contract ----------------------------------------------------------------------

# broken NAME MESSAGE: a run of it alone ends with one line
broken() {
    local rc=0
    "$program" run -m "$model" -t "$1" -P full --length 256 --task-plugin "$1.so" --log "$1.zst" \
        >out.txt 2>err || rc=$?
    equal "exit code of $1" 6 $rc
    grep -qxF "kvlab: every cell is refused: $2" err || fail "$1: $(cat err)"
}
plugin longer 's/\.length_tok = req->length_tok,/.length_tok = req->length_tok + 1,/'
broken longer 'task longer: made a context of 257 tokens, want 256'
plugin fewer 's/kvl_fit_sample\(&fit, req->n_questions/kvl_fit_sample(\&fit, req->n_questions - 1/'
broken fewer 'task fewer: asks 0 questions, want 1'
plugin beyond 's/q->n_evidence = 1;/q->n_evidence = 1; q->evidence[0].span[0].end += 1 << 20;/'
broken beyond 'task beyond: evidence of question 0 is not inside the context'
plugin mute 's/q->n_evidence = 1;/q->n_evidence = 1; kvl_free(q->gold), q->gold = NULL;/'
broken mute 'task mute: question 0 lacks its text, answer, gold or max_new_tok'

# ---- what crashes ---------------------------------------------------------------------------------

fall='*(volatile int *)0 = 1;'
plugin crash_early "$make $fall/"
plugin crash_late "$make if (req->index == 2) $fall/"
plugin leave "$make extern void _Exit(int); if (req->index == 1) _Exit(3);/"
plugin crash_score "s/^    size_t len = strlen\(q->gold\);/& if (*prediction || !*prediction) $fall/"
plugin crash_chance "s/^    return 1.0 .*/    $fall return n_words;/"
crash() {
    run_sweep crash.yaml --jobs 2 --task-plugin crash_early.so --task-plugin crash_late.so \
        --task-plugin leave.so --task-plugin crash_score.so --task-plugin crash_chance.so --log "$1" "${@:2}" >out.txt 2>err
}
crash crash.zst || fail "a crash ended the sweep"
# errors_of TASK: how many records, status, message
errors_of() {
    lines_of crash.zst | grep '"kind":"error"' | grep "\"task\":\"$1\"\|task=$1/" |
        sed -E 's/.*"status":("[^"]*"),"message":("[^"]*").*/\1 \2/' | LC_ALL=C sort | uniq -c | sed 's/^ *//'
}
worker='"a task broke its contract" "the worker of this context'
signal='(signal 11, Segmentation fault)'
equal "crashes at the first context" "2 \"a task broke its contract\" \"task crash_early crashed $signal\"" \
    "$(errors_of crash_early)"
equal "crashes in its chance" "2 \"a task broke its contract\" \"task crash_chance crashed $signal\"" \
    "$(errors_of crash_chance)"
equal "crashes later" "2 $worker crashed $signal while task crash_late ran\"" "$(errors_of crash_late)"
equal "ends the process" "2 $worker ended with exit code 3 while task leave ran\"" "$(errors_of leave)"
equal "crashes in its scorer" "2 $worker crashed $signal while task crash_score ran\"" "$(errors_of crash_score)"
grep -qx 'kvlab: crashed while task crash_late ran' err || fail "no word of the crash: $(cat err)"
# passkey is answered as if it were alone.
run_sweep crash.yaml --set tasks=passkey --log well.zst >out.txt 2>err || fail "passkey alone"
cmp -s <(results_of crash.zst | grep '"task":"passkey"') <(results_of well.zst | grep '"task":"passkey"') ||
    fail "other results beside a crash"
[ "$(results_of well.zst | grep -c '"task":"passkey"')" -ge 2 ] || fail "no results of passkey"
equal "nothing twice after crashes" "" "$(repeated_samples crash.zst)$(repeated_cells crash.zst)"
rc=0
crash crash.zst --strict || rc=$?
equal "--strict after a crash" 6 $rc

wait "$endless" && wait "$endless_late" || fail "a task that does not return"
echo "test_task_plugin: ok"
