/* The flag of a request to stop, and the clock that runs from it. */
#include "stop.h"

#include "crash_line.h"

#include <assert.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile int stop_signal;
static volatile sig_atomic_t stop_watch = 1, stop_goes_on;

static int stop_code(int number)
{
    bool again = number == SIGTERM || number == SIGUSR1 || number == SIGUSR2;
    return stop_goes_on && again ? KVL_STOP_AGAIN : 128 + number;
}

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

static void stop_write(const char *line, size_t n)
{
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}

static size_t stop_begin(char *line, size_t size, int number)
{
    char digits[] = { (char)('0' + number / 10), (char)('0' + number % 10), 0 };
    size_t n = stop_add(line, 0, size, "kvlab: stopped by signal ");
    return stop_add(line, n, size, digits[0] == '0' ? digits + 1 : digits);
}

/* Nothing has begun that could be ended in order. */
static void stop_on_early(int number)
{
    char line[100];
    size_t n = stop_begin(line, sizeof line, number);
    n = stop_add(line, n, sizeof line, " before anything ran; start the same command again\n");
    stop_write(line, n);
    _exit(stop_code(number));
}

/* Whatever runs has not polled the flag since: most likely a hook that does not return.  It may hold
 * any lock, that of malloc too, so nothing is saved here: the log ends with its last commit. */
static void stop_on_alarm(int number)
{
    char line[200];
    bool is_task;
    const char *name = kvl_guard_running(&is_task), *what = is_task ? "; task " : "; policy ";
    (void)number;
    size_t n = stop_begin(line, sizeof line, stop_signal);
    n = stop_add(line, n, sizeof line, name ? what : "; what ran");
    n = stop_add(line, n, sizeof line - 40, name ? name : "");
    n = stop_add(line, n, sizeof line, " did not return within 5 s\n");
    stop_write(line, n);
    _exit(stop_code(stop_signal));
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

/* The last ones of the list mean a stop only to what goes on when it is started again. */
static void stop_handle(void (*handler)(int))
{
    static const int numbers[] = { SIGINT, SIGHUP, SIGTERM, SIGUSR1, SIGUSR2 };
    size_t n = sizeof numbers / sizeof numbers[0];
    struct sigaction action = { .sa_handler = handler };
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < (stop_goes_on ? n : 3); i++)
        if (!stop_given_up(numbers[i])) sigaction(numbers[i], &action, NULL);
}

void kvl_stop_goes_on(void)
{
    stop_goes_on = 1;
    stop_handle(stop_on_early);
}

void kvl_stop_install(void)
{
    struct sigaction late = { .sa_handler = stop_on_alarm };
    sigset_t alarms;
    sigemptyset(&late.sa_mask);
    stop_handle(stop_on_signal);
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

int kvl_stop_exit(void)
{
    return stop_code(stop_signal);
}

const volatile int *kvl_stop_flag(void)
{
    return &stop_signal;
}
