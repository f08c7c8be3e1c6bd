/* What a worker does between its fork and its end. */
#include "worker.h"

#include "kvl/fpenv.h"

#include "crash_line.h"
#include "harm.h"
#include "runner_context.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool worker_write(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

static bool worker_read(int fd, void *data, size_t len)
{
    char *p = data;
    while (len > 0) {
        ssize_t n = recv(fd, p, len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n;
        len -= (size_t)n;
    }
    return true;
}

/* ---- harm ------------------------------------------------------------------------------------ */

/* Of this process, which is one worker: kvl_guard_after takes no argument. */
static struct kvl_worker *worker_self;
static struct kvl_harm worker_harm;

/* A policy or task has run.  Where it harmed the process this ends, and the name of who did it still stands where the
 * sweep's process sees it; a copy that it made ends without a word. */
static void worker_look(void)
{
    enum kvl_harm_kind kind = kvl_harm_look(&worker_harm);
    if (kind == KVL_HARM_NONE && !kvl_ops_fp_default()) kind = KVL_HARM_FLOAT;
    if (kind == KVL_HARM_NONE) return;
    if (kind != KVL_HARM_COPY) worker_self->shared->harm = kind;
    _exit(kind == KVL_HARM_COPY ? 0 : 1);
}

/* ---- telling --------------------------------------------------------------------------------- */

/* Statistics belong to the commit that they count; only progress is told before. */
static struct kvl_worker_count worker_take(struct kvl_runner *r, enum kvl_worker_says says)
{
    struct kvl_worker_count count = { 0 };
    if (says == KVL_WORKER_NEXT || says == KVL_WORKER_AMID) return count;
    count.stats = r->stats;
    count.n_done = r->progress.n_done;
    count.n_errors = r->progress.n_errors;
    count.n_answers = r->progress.n_answers;
    count.n_loaded = r->snapshots.n_loaded;
    count.n_saved = r->snapshots.n_saved;
    r->stats = (struct kvl_run_stats){ 0 };
    r->progress.n_done = r->progress.n_errors = 0;
    r->progress.n_answers = r->snapshots.n_loaded = r->snapshots.n_saved = 0;
    return count;
}

static bool worker_say(struct kvl_worker *w, enum kvl_worker_says says, const void *data,
                       size_t len)
{
    if (w->r->jobs.watched && worker_self) worker_look();
    struct kvl_worker_frame frame = { .says = says,
                                      .bytes = len,
                                      .count = worker_take(w->r, says) };
    return worker_write(w->fd, &frame, sizeof frame) && worker_write(w->fd, data, len);
}

static int worker_gone(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ESTOP, "the sweep's process is gone");
}

static int worker_tell(struct kvl_worker *w, const char *what, struct kvl_err *err)
{
    return worker_say(w, KVL_WORKER_NEXT, what, strlen(what)) ? KVL_OK : worker_gone(err);
}

/* Who is gone is met by what is said next. */
static void worker_amid(const char *what, void *user)
{
    (void)worker_say(user, KVL_WORKER_AMID, what, strlen(what));
}

static int worker_commit(const char *lines, size_t len, void *user, struct kvl_err *err)
{
    return worker_say(user, KVL_WORKER_COMMIT, lines, len) ? KVL_OK : worker_gone(err);
}

/* ---- units ----------------------------------------------------------------------------------- */

bool kvl_worker_hand(int fd, const struct kvl_runner *r, struct kvl_unit u)
{
    const struct kvl_group *g = &r->work->group[u.group];
    if (!worker_write(fd, &u, sizeof u)) return false;
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (!worker_write(fd, &r->state->cell[i].failed, sizeof r->state->cell[i].failed))
            return false;
    return true;
}

/* The next unit; false: there is none. */
static bool worker_wait(struct kvl_worker *w, struct kvl_unit *u)
{
    if (!worker_read(w->fd, u, sizeof *u)) return false;
    const struct kvl_group *g = &w->r->work->group[u->group];
    for (size_t i = g->first; i < g->first + g->n; i++) {
        struct kvl_progress_cell *p = &w->r->state->cell[i];
        if (!worker_read(w->fd, &p->failed, sizeof p->failed)) return false;
    }
    return true;
}

int kvl_runner_answer(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                      struct kvl_err *err)
{
    char what[96];
    snprintf(what, sizeof what, "%s %d", g->speed ? "speed" : g->task->task->name, g->length);
    kvl_progress_name(&r->progress, what);
    KVL_TRY(kvl_engine_observe(r->engine, &g->observers, err));
    /* Of the same kind, so that one snapshot serves this sweep and that of the reference's type. */
    if (r->reference) KVL_TRY(kvl_engine_observe(r->reference, &g->observers, err));
    if (g->speed) return kvl_runner_speed(r, g, err);
    return kvl_point_reading(g->task) ? kvl_runner_text(r, g, context, err)
                                      : kvl_runner_context(r, g, context, err);
}

/* Whole samples that wait for their commit are kept when the work is cut off. */
static struct kvl_err worker_unit(struct kvl_worker *w, struct kvl_unit u)
{
    struct kvl_err err = { 0 }, none = { 0 };
    struct kvl_runner *r = w->r;
    err.code = kvl_runner_answer(r, &r->work->group[u.group], u.context, &err);
    if (kvl_runner_ends(err.code)) (void)kvl_log_commit(r->log, &none);
    return err;
}

/* Signals that stop a sweep reach its process, which raises the flag that all workers see: one that got
 * the signal and the request would take the second for impatience. */
static void worker_signals(void)
{
    static const int numbers[] = { SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU };
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    sigemptyset(&ignore.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        sigaction(numbers[i], &ignore, NULL);
}

static int worker_begin(struct kvl_worker *w, struct kvl_err *err)
{
    struct kvl_runner *r = w->r;
    worker_signals();
    setpgid(0, 0); /* what a policy starts or stops is in it, and no more */
    kvl_fp_restore();
    kvl_guard_share(&w->shared->policy);
    kvl_log_redirect(r->log, worker_commit, w);
    kvl_ops_set_threads(w->threads);
    r->worker = w;
    r->tell = worker_tell;
    r->stop = w->stop;
    r->announced = true;
    r->progress.tell = worker_amid;
    r->progress.tell_user = w;
    r->progress.every_ns = KVL_PROGRESS_TTY_NS; /* the sweep's process shows what is due */
    worker_take(r, KVL_WORKER_DONE); /* what was counted before the fork is the parent's */
    if (!r->engine) KVL_TRY(kvl_runner_engine(r, err));
    kvl_engine_set_stop(r->engine, r->stop);
    if (!r->jobs.watched) return KVL_OK;
    worker_self = w;
    kvl_harm_begin(&worker_harm);
    kvl_guard_after(worker_look);
    return KVL_OK;
}

/* _exit: what atexit and open files would do is for the sweep's process. */
_Noreturn void kvl_worker_live(struct kvl_worker *w, struct kvl_unit first, int64_t parent)
{
    struct kvl_unit u = first;
    struct kvl_err err = { 0 };
    enum kvl_worker_says says = KVL_WORKER_DONE;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it died before that call */
    err.code = worker_begin(w, &err);
    do {
        if (err.code == KVL_OK) {
            err = worker_unit(w, u);
            if (err.code == KVL_EDEVICE) says = KVL_WORKER_LOST;
        }
    } while (worker_say(w, says, &err, sizeof err) && err.code == KVL_OK && worker_wait(w, &u));
    _exit(0);
}
