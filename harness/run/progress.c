/* The progress line. */
#include "progress.h"

#include "show.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- what is known --------------------------------------------------------------------------- */

void kvl_progress_spent(struct kvl_progress *p)
{
    uint64_t now = kvl_now_ns();
    p->spent_ns += (double)(now - p->t_spent);
    p->t_spent = now;
}

void kvl_progress_part(struct kvl_progress *p, double part)
{
    p->t_known = kvl_now_ns();
    p->part = part;
    p->left_s =
        part > 0.0 ? (double)(p->t_known - p->t_start) * 1e-9 * (1.0 - part) / part : (double)NAN;
}

/* ---- the line -------------------------------------------------------------------------------- */

void kvl_progress_begin(struct kvl_progress *p, bool quiet)
{
    p->t_start = p->t_shown = p->t_spent = kvl_now_ns();
    p->part = 0.0;
    p->left_s = (double)NAN;
    p->tty = isatty(STDERR_FILENO) != 0;
    p->every_ns = p->tty ? KVL_PROGRESS_TTY_NS : 10000000000u;
    p->quiet = quiet;
}

void kvl_progress_time(double s, char *out, size_t size)
{
    if (isnan(s)) {
        snprintf(out, size, "?");
        return;
    }
    int64_t t = (int64_t)(s + 0.5);
    if (t >= 3600)
        snprintf(out, size, "%lld:%02d:%02d", (long long)(t / 3600), (int)(t / 60 % 60),
                 (int)(t % 60));
    else
        snprintf(out, size, "%d:%02d", (int)(t / 60), (int)(t % 60));
}

bool kvl_progress_due(const struct kvl_progress *p)
{
    return !p->quiet && kvl_now_ns() - p->t_shown >= p->every_ns;
}

/* A large model answers less than once a second. */
static void progress_rate_text(double per_s, char out[32])
{
    if (per_s >= 10.0)
        snprintf(out, 32, "  %.0f answers/s", per_s);
    else if (per_s >= 1.0)
        snprintf(out, 32, "  %.1f answers/s", per_s);
    else
        snprintf(out, 32, "  %.*f answers/min", per_s * 60.0 < 10.0, per_s * 60.0);
}

double kvl_progress_left_s(const struct kvl_progress *p, uint64_t now)
{
    if (!p->t_known || !(p->left_s > 0.0)) return p->left_s;
    return p->left_s * exp(-(double)(now - p->t_known) * 1e-9 / p->left_s);
}

/* The part that was known then, and what the time since then has made of the rest: amid a prefill of minutes it moves. */
static double progress_part(const struct kvl_progress *p, uint64_t now)
{
    double left = kvl_progress_left_s(p, now);
    return p->left_s > 0.0 ? 1.0 - (1.0 - p->part) * left / p->left_s : p->part;
}

void kvl_progress_show(struct kvl_progress *p, const char *what)
{
    if (!kvl_progress_due(p)) return;
    uint64_t now = kvl_now_ns();
    char left[32], spent[32], errors[32] = "", rate[32] = "";
    double elapsed = (double)(now - p->t_start) * 1e-9;
    kvl_progress_time(elapsed, spent, sizeof spent);
    kvl_progress_time(kvl_progress_left_s(p, now), left, sizeof left);
    if (p->n_errors) snprintf(errors, sizeof errors, ", %zu errors", p->n_errors);
    if (p->n_answers && elapsed > 0.0) progress_rate_text((double)p->n_answers / elapsed, rate);
    if (p->tty) kvl_show_clear_line();
    fprintf(stderr, "%3.0f %%  %zu/%zu cells%s%s  %s spent, %s left  %s%s",
            100.0 * progress_part(p, now), p->n_done, p->n_cells, errors, rate, spent, left, what,
            p->tty ? "" : "\n");
    fflush(stderr);
    p->t_shown = now;
    p->shown = true;
}

/* ---- amid a prefill, amid answers ------------------------------------------------------------ */

void kvl_progress_name(struct kvl_progress *p, const char *what)
{
    snprintf(p->what, sizeof p->what, "%s", what);
}

/* By the process that shows the line. */
static void progress_say(struct kvl_progress *p, const char *what)
{
    if (!p->tell) {
        kvl_progress_show(p, what);
        return;
    }
    p->tell(what, p->tell_user);
    p->t_shown = kvl_now_ns();
}

void kvl_progress_step(void *progress, int32_t step, int32_t most)
{
    struct kvl_progress *p = progress;
    char what[192];
    if (!kvl_progress_due(p)) return;
    snprintf(what, sizeof what, "%s  token %d of at most %d", p->what, step, most);
    progress_say(p, what);
}

static void progress_tick(int64_t done, int64_t all, void *user)
{
    struct kvl_progress *p = user;
    char what[192];
    uint64_t now = kvl_now_ns();
    if (done == 0) p->t_prefill = now;
    if (done == 0 || now == p->t_prefill || !kvl_progress_due(p)) return;
    double per_s = (double)done / p->n_layers / ((double)(now - p->t_prefill) * 1e-9);
    snprintf(what, sizeof what, "%s  prefill %.0f %%  %.*f tok/s", p->what,
             100.0 * (double)done / (double)all, per_s < 10.0, per_s);
    progress_say(p, what);
}

void kvl_progress_watch(struct kvl_progress *p, struct kvl_engine *e)
{
    p->n_layers = kvl_model_shape(kvl_engine_model(e))->n_layers;
    kvl_engine_set_tick(e, progress_tick, p);
}

void kvl_progress_end(struct kvl_progress *p)
{
    if (p->tty && p->shown) kvl_show_clear_line();
    p->shown = false;
}
