/* The flag of a request to stop. */
#include "stop.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile int stop_signal;

/* Only async-signal-safe calls: _exit leaves the log at its last commit. */
static void stop_on_signal(int number)
{
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
}

void kvl_stop_install(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = stop_on_signal };
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &action, NULL);
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
