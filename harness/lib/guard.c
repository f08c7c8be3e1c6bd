/* The line that a crash leaves. */
#include "guard.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const int guard_signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
enum { GUARD_N = sizeof guard_signals / sizeof guard_signals[0] };

static int guard_users;
static struct sigaction guard_before[GUARD_N];
static stack_t guard_stack_before;
static char guard_stack[65536]; /* a crash may be that of a full stack */
static const char *volatile guard_name;
static const char *volatile guard_policy; /* that runs again once a task does not */
static volatile bool guard_is_task;
static const char *volatile *guard_shared; /* the same for another process; or NULL */
static void (*guard_after)(void);          /* called before something else runs; or NULL */

static size_t guard_add(char *line, size_t at, size_t size, const char *text)
{
    for (; *text && at < size; text++) line[at++] = *text;
    return at;
}

/* Only async-signal-safe calls.  The handler is gone when this returns (SA_RESETHAND). */
static void guard_on_crash(int number)
{
    static char line[160];
    const char *name = guard_name;
    size_t n = guard_add(line, 0, sizeof line, "kvlab: crashed");
    if (!name) n = guard_add(line, n, sizeof line, "; a plug-in may be the cause\n");
    if (name)
        n = guard_add(line, n, sizeof line, guard_is_task ? " while task " : " while policy ");
    if (name) n = guard_add(line, n, sizeof line - 8, name);
    if (name) n = guard_add(line, n, sizeof line, " ran\n");
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
    raise(number);
}

void kvl_guard_enter(void)
{
    struct sigaction action = { .sa_handler = guard_on_crash,
                                .sa_flags = (int)(SA_RESETHAND | SA_NODEFER | SA_ONSTACK) };
    stack_t stack = { .ss_sp = guard_stack, .ss_size = sizeof guard_stack };
    if (guard_users++ > 0) return;
    kvl_guard_policy(NULL);
    sigemptyset(&action.sa_mask);
    sigaltstack(&stack, &guard_stack_before);
    for (size_t i = 0; i < GUARD_N; i++) sigaction(guard_signals[i], &action, &guard_before[i]);
}

void kvl_guard_leave(void)
{
    if (--guard_users > 0) return;
    for (size_t i = 0; i < GUARD_N; i++) sigaction(guard_signals[i], &guard_before[i], NULL);
    sigaltstack(&guard_stack_before, NULL);
}

void kvl_guard_share(const char *volatile *where)
{
    guard_shared = where;
}

void kvl_guard_after(void (*check)(void))
{
    guard_after = check;
}

static void guard_set(const char *name, bool is_task)
{
    if (guard_after && guard_name) guard_after();
    guard_is_task = is_task;
    guard_name = name;
    if (guard_shared) *guard_shared = name;
}

void kvl_guard_policy(const char *name)
{
    guard_policy = name;
    guard_set(name, false);
}

void kvl_guard_task(const char *name)
{
    guard_set(name ? name : guard_policy, name != NULL);
}

const char *kvl_guard_running(bool *is_task)
{
    *is_task = guard_is_task;
    return guard_name;
}
