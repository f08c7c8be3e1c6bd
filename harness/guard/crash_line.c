/* The line that a crash leaves. */
#include "crash_line.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const int crash_signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
enum { GUARD_N = sizeof crash_signals / sizeof crash_signals[0] };

static int crash_users;
static struct sigaction crash_before[GUARD_N];
static stack_t crash_stack_before;
static char crash_stack[65536]; /* a crash may be that of a full stack */
static const char *volatile crash_name;
static const char *volatile crash_policy; /* that runs again once a task does not */
static volatile bool crash_is_task;
static const char *volatile *crash_shared; /* the same for another process; or NULL */
static void (*crash_after)(void);          /* called before something else runs; or NULL */

static size_t crash_add(char *line, size_t at, size_t size, const char *text)
{
    for (; *text && at < size; text++) line[at++] = *text;
    return at;
}

/* Only async-signal-safe calls.  The handler is gone when this returns (SA_RESETHAND). */
static void crash_on_crash(int number)
{
    static char line[160];
    const char *name = crash_name;
    size_t n = crash_add(line, 0, sizeof line, "kvlab: crashed");
    if (!name) n = crash_add(line, n, sizeof line, "; a plug-in may be the cause\n");
    if (name)
        n = crash_add(line, n, sizeof line, crash_is_task ? " while task " : " while policy ");
    if (name) n = crash_add(line, n, sizeof line - 8, name);
    if (name) n = crash_add(line, n, sizeof line, " ran\n");
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
    raise(number);
}

void kvl_guard_enter(void)
{
    struct sigaction action = { .sa_handler = crash_on_crash,
                                .sa_flags = (int)(SA_RESETHAND | SA_NODEFER | SA_ONSTACK) };
    stack_t stack = { .ss_sp = crash_stack, .ss_size = sizeof crash_stack };
    if (crash_users++ > 0) return;
    kvl_guard_policy(NULL);
    sigemptyset(&action.sa_mask);
    sigaltstack(&stack, &crash_stack_before);
    for (size_t i = 0; i < GUARD_N; i++) sigaction(crash_signals[i], &action, &crash_before[i]);
}

void kvl_guard_leave(void)
{
    if (--crash_users > 0) return;
    for (size_t i = 0; i < GUARD_N; i++) sigaction(crash_signals[i], &crash_before[i], NULL);
    sigaltstack(&crash_stack_before, NULL);
}

void kvl_guard_share(const char *volatile *where)
{
    crash_shared = where;
}

void kvl_guard_after(void (*check)(void))
{
    crash_after = check;
}

static void crash_set(const char *name, bool is_task)
{
    if (crash_after && crash_name) crash_after();
    crash_is_task = is_task;
    crash_name = name;
    if (crash_shared) *crash_shared = name;
}

void kvl_guard_policy(const char *name)
{
    crash_policy = name;
    crash_set(name, false);
}

void kvl_guard_task(const char *name)
{
    crash_set(name ? name : crash_policy, name != NULL);
}

const char *kvl_guard_running(bool *is_task)
{
    *is_task = crash_is_task;
    return crash_name;
}
