/* The flag of a request to stop, and the clock that runs from it. */
#include "stop.h"

#include "guard.h"

#include <assert.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile int stop_signal;
static volatile sig_atomic_t stop_watch = 1;

/* Only async-signal-safe calls: _exit leaves the log at its last commit. */
static void stop_on_signal(int number)
{
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
    if (stop_watch) alarm(KVL_STOP_GRACE_S);
}

static size_t stop_add(char *line, size_t at, size_t size, const char *text)
{
    for (; *text && at < size; text++) line[at++] = *text;
    return at;
}

/* Whatever runs has not polled the flag since: most likely a hook that does not return.  It may hold
 * any lock, that of malloc too, so nothing is saved here: the log ends with its last commit. */
static void stop_on_alarm(int number)
{
    char line[200],
        digits[] = { (char)('0' + stop_signal / 10), (char)('0' + stop_signal % 10), 0 };
    bool is_task;
    const char *name = kvl_guard_running(&is_task), *what = is_task ? "; task " : "; policy ";
    (void)number;
    size_t n = stop_add(line, 0, sizeof line, "kvlab: stopped by signal ");
    n = stop_add(line, n, sizeof line, digits[0] == '0' ? digits + 1 : digits);
    n = stop_add(line, n, sizeof line, name ? what : "; what ran");
    n = stop_add(line, n, sizeof line - 40, name ? name : "");
    n = stop_add(line, n, sizeof line, " did not return within 5 s\n");
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
    _exit(128 + stop_signal);
}

static_assert(KVL_STOP_GRACE_S == 5, "the line above says so");

/* Whether whoever started this program wants it to outlive that signal: nohup.  Not asked of SIGINT, which
 * shells turn off for whatever a script starts with &. */
static bool stop_given_up(int number)
{
    struct sigaction before;
    return number != SIGINT && sigaction(number, NULL, &before) == 0 &&
           before.sa_handler == SIG_IGN;
}

void kvl_stop_install(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = stop_on_signal };
    struct sigaction late = { .sa_handler = stop_on_alarm };
    sigset_t alarms;
    sigemptyset(&action.sa_mask);
    sigemptyset(&late.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!stop_given_up(numbers[i])) sigaction(numbers[i], &action, NULL);
    sigaction(SIGALRM, &late, NULL);
    sigemptyset(&alarms); /* whoever started this program may have blocked it */
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarms, NULL);
}

void kvl_stop_watch(bool on)
{
    stop_watch = on;
    alarm(on && stop_signal ? KVL_STOP_GRACE_S : 0);
}

void kvl_stop_ignore(void)
{
    struct sigaction action = { .sa_handler = SIG_IGN };
    sigemptyset(&action.sa_mask);
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGXFSZ, &action, NULL);
}

const volatile int *kvl_stop_flag(void)
{
    return &stop_signal;
}
