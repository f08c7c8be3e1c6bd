#!/usr/bin/env bash
# test_harm.sh - a plug-in harms its own cells only: floating point, forks, files, the working folder, the locale, exit,
# stop, loops, scores that are none.  The records of others stay what they are, bit by bit.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
if ! command -v cc >"$work/said"; then
    echo "test_harm: skipped, no cc"
    exit 77
fi
cd "$work"

# policy NAME STATEMENT [STATEMENT [FLAG]]: runs it when it selects, and another when it plans
policy() {
    cat >"$1.c" <<END
#include "kvl/policy.h"

#include <errno.h>
#include <fcntl.h>
#include <fenv.h>
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int ${1}_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    static int n;
    (void)ctx, (void)step, (void)q, (void)sel;
    if (n++ == 3) { $2; }
    return KVL_OK;
}

static int ${1}_plan(struct kvl_plan *plan)
{
    (void)plan;
    ${3:-};
    return KVL_OK;
}

static const struct kvl_policy $1 = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "$1",
    .title = "$1",
    .paper = "none",
    .help = "harms the process",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_SAMPLES,
    .plan = ${1}_plan,
    .select = ${1}_select,
};

KVL_POLICY_EXPORT($1)
END
    # shellcheck disable=SC2086
    cc -std=c17 -D_GNU_SOURCE -shared -fPIC ${4:-} -DKVL_PLUGIN -I "$source_dir/core/include" -o "$1.so" "$1.c"
}

sweep_file 1 >small.yaml
few=(--set lengths=256 --set budgets=64 --set protocols=question_after_compress --set 'tasks=[{task: passkey, keys: 2}]' --set 'exclude=[]')
"$program" sweep small.yaml "${few[@]}" --threads 2 --quiet --set 'policies=[full, quest]' --log well.zst 2>err || fail "without harm"
results_of well.zst >well

# errors_of LOG: status and message of what failed, each once
errors_of() {
    lines_of "$1" | grep -E '"kind":"error"' | sed -E 's/.*"message":"([^"]*)".*/\1/' | LC_ALL=C sort -u
    lines_of "$1" | jq -r 'select(.kind == "sample" and .error != null).error' | LC_ALL=C sort -u
}
# harms NAME MESSAGE [FLAG...]: its cells fail with that message, with so many workers ($with); others do not notice
n_harms=0
harms() {
    local name=$1 want=$2 jobs
    n_harms=$((n_harms + 1))
    shift 2
    for jobs in ${with:-1}; do
        rm -f harm.zst
        timeout 120 "$program" sweep small.yaml "${few[@]}" --threads 2 --jobs $jobs --quiet --plugin "./$name.so" \
            --set "policies=[full, $name, quest]" --log harm.zst "$@" 2>err || fail "$name, --jobs $jobs: exit code $?"
        equal "errors of $name, --jobs $jobs" "$want" "$(errors_of harm.zst)"
        results_of harm.zst | grep -Ff <(sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' well | sort -u) >beside || true
        cmp -s beside well || fail "$name, --jobs $jobs: other results of others: $(diff beside well | cut -c 1-300 | head -n 4)"
    done
}
ended='the worker of this context'
float='changed how floating point rounds, flushes to zero or traps, want it left as it was (-Ofast and -ffast-math change it)'

# ---- floating point ------------------------------------------------------------------------------------

policy round 'fesetround(FE_UPWARD)'
with='1 2' harms round "round: select, layer 0, position 259: $float"
policy planner '' 'fesetround(FE_DOWNWARD)'
harms planner "planner: $float"
if [ "$(uname -m)" = x86_64 ]; then
    policy flush '__builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040)'
    harms flush "flush: select, layer 0, position 259: $float"
    # It answers as if it were compiled without: what it set when it was loaded is undone, and it is named.
    # (-Ofast sets it, but for shared objects of gcc 13 and newer: written out.)
    echo '__attribute__((constructor)) static void load(void) { __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); }' >load.h
    policy fast '' '' '-Ofast -include load.h'
    harms fast ''
    grep -qx 'kvlab: \./fast\.so: changed how floating point rounds, flushes to zero or traps when it was loaded (-Ofast or -ffast-math?); that is undone' err ||
        fail "-Ofast: no word: $(cat err)"
fi

# ---- processes ------------------------------------------------------------------------------------------

policy forks 'fork()'
with='1 2' harms forks "$ended was ended: what ran started another process (fork) while policy forks ran"
grep -q 'started another process (fork) while policy forks ran; [0-9]* cells failed, the sweep goes on$' err || fail "forks: no word: $(cat err)"
# Once it runs, and not before: it may be ended as soon as there is one.
policy demon 'if (fork() == 0) { setsid(); close(creat("demon", 0600)); for (;;) pause(); } while (access("demon", F_OK)) usleep(1000)'
harms demon "$ended was ended: what ran started another process (fork) while policy demon ran"
[ -e demon ] || fail "the daemon did not run"
policy orphan 'if (fork() == 0) { if (fork() == 0) { setsid(); for (;;) pause(); } _exit(0); } while (wait(NULL) < 0 && errno == EINTR) continue'
harms orphan ''
left() { grep -lsE '^(.*/)?kvlab.sweep' /proc/[0-9]*/cmdline 2>said | while read -r at; do [ "$(readlink "${at%/cmdline}/cwd")" = "$work" ] && echo "$at"; done; }
equal "processes that are left" "" "$(left)"
policy leaves 'exit(0)'
with='1 2' harms leaves "$ended ended with exit code 0 while policy leaves ran"
policy stops 'kill(0, SIGSTOP)'
harms stops "$ended was ended: no answer within 2 s (--cell-limit) while policy stops ran" --cell-limit 2
policy loops 'for (;;) continue'
harms loops "$ended was ended: no answer within 1 s (--cell-limit) while policy loops ran" --cell-limit 1s
policy leaks 'for (;;) { volatile char *p = malloc(1 << 20); for (int i = 0; p && i < 1 << 20; i += 4096) p[i] = 1; usleep(500); }'
with='1 2' harms leaks "$ended was ended: more than 200 MiB of memory (--cell-memory) while policy leaks ran" --cell-memory 200M
leaked="a policy that takes memory without end is ended at 200 MiB (--cell-memory), with 1 and 2 workers: its cells fail as out of memory, the others stay"
policy thinks '' 'for (;;) continue'
harms thinks 'the plan of policy thinks did not end within 1 s' --cell-limit 1
policy spawns '' 'if (fork() == 0) for (;;) pause()'
harms spawns 'the plan of policy spawns started another process (fork)'

policy sleeps 'sleep(1000)'
harms sleeps "$ended was ended: no answer within 1 s (--cell-limit) while policy sleeps ran" --cell-limit 1
# Budgets of a policy begin together: each is in time, all of them are not.
policy late ''
sed -i 's/^static const struct kvl_policy/static int late_prefilled(struct kvl_pctx *ctx, int32_t layer)\
{\
    (void)ctx;\
    if (layer == 0) usleep(250000);\
    return KVL_OK;\
}\
&/; s/\.select = late_select,/& .prefilled = late_prefilled,/' late.c
cc -std=c17 -D_GNU_SOURCE -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -o late.so late.c
timeout 120 "$program" sweep small.yaml "${few[@]}" --threads 2 --jobs 1 --quiet --plugin ./late.so --cell-limit 1 --log late.zst \
    --set 'budgets=[64, 65, 66, 67]' --set protocols=question_in_prefill --set contexts=1 --set questions=2 --set 'policies=[late]' 2>err ||
    fail "late: exit code $?"
equal "errors of late" "" "$(errors_of late.zst)"
policy kills 'raise(SIGKILL)'
harms kills "$ended was killed (signal 9; the system may have been out of memory) while policy kills ran"

# ---- crashes ----------------------------------------------------------------------------------------------

crashed="$ended crashed (signal 11, Segmentation fault) while policy"
policy null '*(volatile int *)0 = 1'
with='1 2' harms null "$crashed null ran"
policy constant '*(volatile char *)(size_t)"constant" = 1'
harms constant "$crashed constant ran"
echo 'static int deep_again(volatile char *p) { volatile char b[4096]; b[0] = p ? p[0] : 1; return deep_again(b) + b[0]; }' >deep.h
policy deep 'deep_again(NULL)' '' '-O0 -Wno-infinite-recursion -include deep.h'
harms deep "$crashed deep ran"
policy jumps 'static jmp_buf nowhere; longjmp(nowhere, 1)'
harms jumps "$crashed jumps ran"
policy aborts 'abort()'
harms aborts "$ended crashed (signal 6, Aborted) while policy aborts ran"

# ---- what others do not notice ------------------------------------------------------------------------------

policy floods 'static char x[1 << 16]; for (int i = 0; i < 64; i++) if (write(1, x, sizeof x) < 0 || write(2, "flood\n", 6) < 0) break'
harms floods '' >flood
policy handles 'for (int i = 1; i < 32; i++) signal(i, SIG_IGN)'
harms handles ''

# SIGTERM ends a sweep whose policy has stopped its group.
"$program" sweep small.yaml "${few[@]}" --threads 1 --quiet --plugin ./stops.so --set policies=stops --log term.zst 2>err &
pid=$!
stopped() { grep -qs '^State:.T' /proc/[0-9]*/task/*/status && lines_of term.zst >said; }
for _ in $(seq 100); do
    child=$(cat /proc/$pid/task/*/children 2>said || true)
    [ -n "$child" ] && grep -qs '^State:.T' "/proc/${child%% *}/status" && break
    sleep 0.1
done
kill $pid
rc=0
wait $pid || rc=$?
equal "exit of a sweep that was stopped" 75 $rc

# ---- files, folder, locale --------------------------------------------------------------------------------

files="$ended was ended: what ran closed or replaced files that others have open while policy"
policy closes 'for (int i = 3; i < 256; i++) close(i)'
with='1 2' harms closes "$files closes ran"
policy dups 'for (int i = 3; i < 64; i++) if (fcntl(i, F_GETFD) >= 0) dup2(2, i)'
harms dups "$files dups ran"
policy moves 'if (chdir("/")) abort()'
harms moves "$ended was ended: what ran changed the working folder while policy moves ran"
if locale -a 2>said | grep -qx 'C.utf8'; then
    policy speaks 'setlocale(LC_ALL, "C.UTF-8")'
    harms speaks "$ended was ended: what ran changed the locale while policy speaks ran"
fi

# ---- tasks ---------------------------------------------------------------------------------------------------

# task NAME SCRIPT: the template under another name, edited by sed
task() {
    sed -E "s/\"template\"/\"$1\"/; $2" "$source_dir/datasets/_template.c" >"$1.c"
    ! cmp -s "$1.c" <(sed -E "s/\"template\"/\"$1\"/" "$source_dir/datasets/_template.c") || fail "$1: nothing edited"
    sed -i '1i #define _GNU_SOURCE\n#include <fenv.h>\n#include <unistd.h>' "$1.c"
    cc -std=c17 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" -I "$source_dir/datasets" "$1.c" -o "$1.so"
}
# spoils NAME MESSAGE [FLAG...]: the cells of the task fail; those of another do not notice
spoils() {
    local name=$1 want=$2
    n_harms=$((n_harms + 1))
    shift 2
    rm -f harm.zst
    timeout 120 "$program" sweep small.yaml "${few[@]}" --threads 2 --jobs 2 --quiet --task-plugin "./$name.so" --set 'policies=[full, quest]' \
        --set "tasks=[{task: passkey, keys: 2}, {task: $name, words: 2}]" --log harm.zst "$@" 2>err || fail "task $name: exit code $?: $(cat err)"
    equal "errors of task $name" "$want" "$(errors_of harm.zst)"
    cmp -s well <(results_of harm.zst | grep -Ff <(sed -nE 's/.*("cell":"[0-9a-f]*").*/\1/p' well | sort -u)) || fail "task $name: other results of others"
}
body='static double template_chance\(const void \*opts\)'
score='s/^    static const char letters.*/&\n    '
task high 's/\.official = strstr\(prediction, q->gold\) != NULL/.official = 1e30/'
spoils high 'task high: scores of 1e+30 and 0, want each from 0 to 1'
task nothing 's/\.official = strstr\(prediction, q->gold\) != NULL/.official = 0.0 \/ 0.0/'
spoils nothing 'task nothing: scores of -nan and 0, want each from 0 to 1'
task lucky "/$body/,/^}/s/return .*/return 55;/"
spoils lucky 'task lucky: a chance of 55, want a probability from 0 to 1'
task long 's/q->max_new_tok \+= KVL_FIT_END_TOK/q->max_new_tok = 0x7ffffff0/'
spoils long 'task long: question 0 has a max_new_tok of 2147483632, want at most 1048576'
task rounds "${score}fesetround(FE_UPWARD);/"
spoils rounds "$ended was ended: what ran changed how floating point rounds, flushes to zero or traps while task rounds ran"
task forked "${score}static int n; if (n++ == 0) fork();/"
spoils forked "$ended was ended: what ran started another process (fork) while task forked ran"
task slow "${score}for (;;) pause();/"
spoils slow "$ended was ended: no answer within 1 s (--cell-limit) while task slow ran" --cell-limit 1

# ---- what is asked for -------------------------------------------------------------------------------------------

for limit in x 1d -1 1s1 nan; do
    rc=0
    "$program" sweep small.yaml --cell-limit $limit --log no.zst 2>err || rc=$?
    equal "--cell-limit $limit" "2 kvlab: --cell-limit: \"$limit\": want a time such as 90s, 30m or 12h, or 0" "$rc $(cat err)"
done

echo "$n_harms ways in which plug-ins misbehave: each costs its own cells, the records of others stay what they are"
echo "$leaked"
