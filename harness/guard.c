/* The line that a crash leaves. */
#include "guard.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int guard_signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
enum { GUARD_N = sizeof guard_signals / sizeof guard_signals[0] };

static int guard_users;
static struct sigaction guard_before[GUARD_N];
static stack_t guard_stack_before;
static char guard_stack[65536]; /* a crash may be that of a full stack */
static char guard_line[160];

/* Only async-signal-safe calls.  The handler is gone when this returns (SA_RESETHAND). */
static void guard_on_crash(int number)
{
    ssize_t n = write(STDERR_FILENO, guard_line, strlen(guard_line));
    (void)n;
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

void kvl_guard_policy(const char *name)
{
    if (name)
        snprintf(guard_line, sizeof guard_line, "kvlab: crashed while policy %.64s ran\n", name);
    else
        snprintf(guard_line, sizeof guard_line, "kvlab: crashed; a plug-in may be the cause\n");
}
