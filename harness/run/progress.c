/* The progress line. */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

void kvl_progress_begin(struct kvl_progress *p, bool quiet)
{
    p->t_start = p->t_shown = kvl_now_ns();
    p->first = p->done;
    p->tty = isatty(STDERR_FILENO) != 0;
    p->quiet = quiet;
}

static void progress_time(double s, char *out, size_t size)
{
    int64_t t = (int64_t)(s + 0.5);
    if (t >= 3600)
        snprintf(out, size, "%lld:%02d:%02d", (long long)(t / 3600), (int)(t / 60 % 60),
                 (int)(t % 60));
    else
        snprintf(out, size, "%d:%02d", (int)(t / 60), (int)(t % 60));
}

static void progress_left(const struct kvl_progress *p, double elapsed, char *out, size_t size)
{
    double worked = p->done - p->first;
    snprintf(out, size, "?");
    if (worked > 0.0) progress_time(elapsed / worked * (p->total - p->done), out, size);
}

void kvl_progress_show(struct kvl_progress *p, const char *what)
{
    uint64_t now = kvl_now_ns();
    uint64_t every = p->tty ? 200000000u : 10000000000u;
    if (p->quiet || now - p->t_shown < every) return;
    char left[32], spent[32], errors[32] = "", rate[32] = "";
    double elapsed = (double)(now - p->t_start) * 1e-9;
    double percent = p->total > 0.0 ? 100.0 * p->done / p->total : 100.0;
    progress_time(elapsed, spent, sizeof spent);
    progress_left(p, elapsed, left, sizeof left);
    if (p->n_errors) snprintf(errors, sizeof errors, ", %zu errors", p->n_errors);
    if (p->n_answers && elapsed > 0.0)
        snprintf(rate, sizeof rate, "  %.0f answers/s", (double)p->n_answers / elapsed);
    fprintf(stderr, "%s%3.0f %%  %zu/%zu cells%s%s  %s spent, %s left  %s%s", p->tty ? "\r" : "",
            percent, p->n_done, p->n_cells, errors, rate, spent, left, what,
            p->tty ? "\033[K" : "\n");
    fflush(stderr);
    p->t_shown = now;
    p->shown = true;
}

void kvl_progress_end(struct kvl_progress *p)
{
    if (p->tty && p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}
