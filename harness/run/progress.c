/* The progress line. */
#include "progress.h"

#include "show.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

/* ---- work and its time ----------------------------------------------------------------------- */

void kvl_progress_mark(struct kvl_progress *p)
{
    p->t_mark = kvl_now_ns();
}

void kvl_progress_did(struct kvl_progress *p, enum kvl_work_kind kind, double cost)
{
    uint64_t now = kvl_now_ns();
    p->amid_cost = p->amid = p->amid_ns = 0.0;
    p->work[kind].done += cost;
    p->work[kind].ns += (double)(now - p->t_mark);
    p->t_mark = now;
}

void kvl_progress_skip(struct kvl_progress *p, enum kvl_work_kind kind, double cost)
{
    p->work[kind].done += cost;
    p->work[kind].before += cost;
}

void kvl_progress_spent(struct kvl_progress *p)
{
    uint64_t now = kvl_now_ns();
    p->spent_ns += (double)(now - p->t_spent);
    p->t_spent = now;
}

/* Work of a kind with what is done of the prefill at hand. */
static struct kvl_progress_work progress_work(const struct kvl_progress *p, int kind)
{
    struct kvl_progress_work w = p->work[kind];
    if (kind == KVL_WORK_PREFILL) w.done += p->amid;
    if (kind == KVL_WORK_PREFILL) w.ns += p->amid_ns;
    return w;
}

/* Nanoseconds per unit of a kind, of all where it was not met yet; NaN: nothing was done. */
static double progress_rate(const struct kvl_progress *p, int kind)
{
    double all_ns = 0.0, all_did = 0.0;
    for (int k = 0; k < KVL_WORK_KINDS; k++) {
        const struct kvl_progress_work w = progress_work(p, k);
        double did = w.done - w.before;
        if (k == kind && did > 0.0) return w.ns / did;
        all_ns += w.ns;
        all_did += did;
    }
    return all_did > 0.0 ? all_ns / all_did : (double)NAN;
}

double kvl_progress_part(const struct kvl_progress *p)
{
    double total = 0.0, done = 0.0;
    for (int k = 0; k < KVL_WORK_KINDS; k++) {
        double rate = progress_rate(p, k);
        if (!(rate > 0.0)) rate = 1.0;
        total += rate * p->work[k].total;
        done += rate * progress_work(p, k).done;
    }
    return total > 0.0 ? done / total : 1.0;
}

double kvl_progress_left_s(const struct kvl_progress *p)
{
    double ns = 0.0;
    for (int k = 0; k < KVL_WORK_KINDS; k++) {
        double left = p->work[k].total - progress_work(p, k).done;
        int32_t n = k == KVL_WORK_TIMED ? 1 : KVL_MAX(p->n_parallel, 1);
        if (left > 0.0) ns += left * progress_rate(p, k) / n;
    }
    return ns * 1e-9;
}

/* ---- the line -------------------------------------------------------------------------------- */

void kvl_progress_begin(struct kvl_progress *p, bool quiet)
{
    p->t_start = p->t_shown = p->t_spent = kvl_now_ns();
    for (int k = 0; k < KVL_WORK_KINDS; k++) {
        p->work[k].before = p->work[k].done;
        p->work[k].ns = 0.0;
    }
    p->tty = isatty(STDERR_FILENO) != 0;
    p->every_ns = p->tty ? KVL_PROGRESS_TTY_NS : 10000000000u;
    p->quiet = quiet;
    kvl_progress_mark(p);
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

/* What was known a while ago, less that while. */
static double progress_left_s(const struct kvl_progress *p, uint64_t now)
{
    if (!p->known) return kvl_progress_left_s(p);
    return p->t_known ? fmax(p->left_s - (double)(now - p->t_known) * 1e-9, 0.0) : p->left_s;
}

/* The part that was known then, and what the time since then has made of the rest. */
static double progress_part(const struct kvl_progress *p, uint64_t now)
{
    if (!p->known) return kvl_progress_part(p);
    double left = progress_left_s(p, now);
    return p->left_s > 0.0 ? 1.0 - (1.0 - p->part) * left / p->left_s : p->part;
}

void kvl_progress_show(struct kvl_progress *p, const char *what)
{
    if (!kvl_progress_due(p)) return;
    uint64_t now = kvl_now_ns();
    char left[32], spent[32], errors[32] = "", rate[32] = "";
    double elapsed = (double)(now - p->t_start) * 1e-9;
    double percent = 100.0 * progress_part(p, now);
    kvl_progress_time(elapsed, spent, sizeof spent);
    kvl_progress_time(progress_left_s(p, now), left, sizeof left);
    if (p->n_errors) snprintf(errors, sizeof errors, ", %zu errors", p->n_errors);
    if (p->n_answers && elapsed > 0.0) progress_rate_text((double)p->n_answers / elapsed, rate);
    if (p->tty) kvl_show_clear_line();
    fprintf(stderr, "%3.0f %%  %zu/%zu cells%s%s  %s spent, %s left  %s%s", percent, p->n_done,
            p->n_cells, errors, rate, spent, left, what, p->tty ? "" : "\n");
    fflush(stderr);
    p->t_shown = now;
    p->shown = true;
}

/* ---- amid a prefill -------------------------------------------------------------------------- */

void kvl_progress_name(struct kvl_progress *p, const char *what)
{
    snprintf(p->what, sizeof p->what, "%s", what);
}

static void progress_tick(int64_t done, int64_t all, void *user)
{
    struct kvl_progress *p = user;
    char what[192];
    uint64_t now = kvl_now_ns();
    if (done == 0) p->t_prefill = now;
    p->amid = all > 0 ? p->amid_cost * (double)done / (double)all : 0.0;
    p->amid_ns = p->amid > 0.0 ? (double)(now - p->t_mark) : 0.0;
    if (done == 0 || now == p->t_prefill || !kvl_progress_due(p)) return;
    double per_s = (double)done / p->n_layers / ((double)(now - p->t_prefill) * 1e-9);
    snprintf(what, sizeof what, "%s  prefill %.0f %%  %.*f tok/s", p->what,
             100.0 * (double)done / (double)all, per_s < 10.0, per_s);
    if (!p->tell) {
        kvl_progress_show(p, what);
        return;
    }
    p->tell(what, p->tell_user);
    p->t_shown = now;
}

void kvl_progress_amid(struct kvl_progress *p, double cost)
{
    p->amid_cost = cost;
    p->amid = p->amid_ns = 0.0;
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
