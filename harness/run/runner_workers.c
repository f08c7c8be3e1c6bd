/* Contexts handed out to worker processes: the side that plans, writes the log and survives.
 *
 * Units go out the most expensive first, so that the last ones to end are short; but the cheapest is the first of
 * all, so that times of long and short contexts are known early (rates.h).  What a worker commits
 * is appended and committed here, whole and at once.  A worker that dies costs what it did not commit:
 * cells of the policy that ran fail for good, the rest of its unit goes to a new worker, which knows
 * that: no policy gets to crash the same unit twice. */
#include "commit.h"
#include "machine.h"
#include "stop.h"
#include "workers_death.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* A worker whose socket is closed ends by itself within the grace of a stop, or is ended.  Time that the sweep's process
 * did not run in, as when it was stopped, is nobody's: at most so much between two looks counts. */
enum {
    WORKERS_POLL_MS = 200,
    WORKERS_READ = 1 << 16,
    WORKERS_FRAME_MAX = 1 << 28, /* bytes of a frame that a worker of ours sends */
    WORKERS_WAIT_US = 2000,
    WORKERS_LOOK_NS = 1000000000,
    WORKERS_MAX = 1024
};

struct unit {
    struct kvl_unit what;
    double cost;
    size_t seen, unseen; /* deaths of workers that had it: a policy ran, or none that is known */
};

struct worker {
    pid_t pid; /* 0 = none */
    int fd;
    struct unit *unit;
    uint64_t t_spent;      /* until then what it did is known */
    uint64_t quiet_ns;     /* a policy or task has run for so long without a frame */
    enum kvl_limit passed; /* for which it was ended */
    struct kvl_buf in;     /* frames that are not whole */
};

/* What all processes see. */
struct shared {
    volatile int stop;
    struct kvl_worker_shared each[]; /* [n] */
};

struct workers {
    struct kvl_runner *r;
    struct unit *unit;
    size_t n_units, next;
    size_t *left; /* [n_groups] units that are not done */
    struct worker *worker;
    struct pollfd *poll; /* [n] */
    struct shared *shared;
    size_t shared_bytes;
    struct kvl_limits limits;
    bool speed;      /* units are groups of speed cells */
    uint64_t t_stop; /* when a stop was seen; 0 = none yet */
    uint64_t t_look; /* when the time of workers was counted */
    bool killed;     /* those that had not ended some time after it */
    int32_t n, n_alive, threads;
    struct kvl_err *err;
};

/* ---- units ----------------------------------------------------------------------------------- */

static double unit_cost(const struct kvl_runner *r, struct kvl_unit u)
{
    const struct kvl_group *g = &r->work->group[u.group];
    double cost = kvl_group_context_cost(r->work, g);
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_state_wants(r->state, u.context, i))
            cost += kvl_cell_context_cost(r->work, &r->work->cell[i]);
    return cost;
}

/* Contexts of a group. */
static int32_t group_units(const struct workers *w, const struct kvl_group *g)
{
    if (!g->mine || g->speed != w->speed) return 0;
    return g->speed ? 1 : w->r->work->sweep->contexts;
}

/* The most expensive first, else as planned. */
static int unit_order(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    if (x->cost > y->cost || x->cost < y->cost) return x->cost > y->cost ? -1 : 1;
    if (x->what.group != y->what.group) return x->what.group < y->what.group ? -1 : 1;
    return x->what.context < y->what.context ? -1 : 1;
}

static void workers_plan(struct workers *w)
{
    const struct kvl_work *work = w->r->work;
    for (size_t i = 0; i < work->n_groups; i++) {
        const struct kvl_group *g = &work->group[i];
        for (int32_t c = 0, n = group_units(w, g); c < n; c++) {
            if (!kvl_state_wants_any(w->r->state, g, c)) continue;
            struct kvl_unit what = { i, c };
            w->unit[w->n_units++] = (struct unit){ what, .cost = unit_cost(w->r, what) };
            w->left[i]++;
        }
    }
    if (!w->n_units || w->speed) return;
    qsort(w->unit, w->n_units, sizeof *w->unit, unit_order);
    struct unit cheapest = w->unit[w->n_units - 1];
    memmove(w->unit + 1, w->unit, (w->n_units - 1) * sizeof *w->unit);
    w->unit[0] = cheapest;
}

static int unit_finish(struct workers *w, struct unit *u)
{
    if (w->speed) return KVL_OK;
    const struct kvl_group *g = &w->r->work->group[u->what.group];
    if (--w->left[u->what.group] > 0) return kvl_runner_so_far(w->r, g, false, w->err);
    return kvl_runner_finish(w->r, g, w->err);
}

/* Cells that failed meanwhile may have been all that wanted a unit. */
static int workers_next(struct workers *w, struct unit **out)
{
    *out = NULL;
    while (w->next < w->n_units && !*w->r->stop) {
        struct unit *u = &w->unit[w->next++];
        if (kvl_state_wants_any(w->r->state, &w->r->work->group[u->what.group], u->what.context)) {
            *out = u;
            return KVL_OK;
        }
        KVL_TRY(unit_finish(w, u));
    }
    return KVL_OK;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* In the child: what belongs to the parent and its other workers is closed, so that each of them sees
 * the end of its own. */
static void worker_child(struct workers *w, int32_t i, int fd, struct kvl_unit first, pid_t parent)
{
    struct kvl_worker self = { .r = w->r,
                               .threads = w->threads,
                               .fd = fd,
                               .stop = &w->shared->stop,
                               .shared = &w->shared->each[i] };
    w->r->gpu = i % w->r->work->sweep->gpus.n;
    for (int32_t k = 0; k < w->n; k++)
        if (w->worker[k].pid) close(w->worker[k].fd);
    kvl_worker_live(&self, first, parent);
}

static int worker_start(struct workers *w, int32_t i, struct unit *u)
{
    int fd[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0)
        return kvl_fail(w->err, KVL_ENOMEM, "cannot talk to a worker: %s; want fewer --jobs",
                        strerror(errno));
    w->shared->each[i] = (struct kvl_worker_shared){ 0 };
    fflush(stdout); /* else both would print what waits there */
    pid_t pid = fork();
    if (pid == 0) {
        close(fd[0]);
        worker_child(w, i, fd[1], u->what, parent);
    }
    close(fd[1]);
    if (pid < 0) {
        close(fd[0]);
        return kvl_fail(w->err, KVL_ENOMEM, "cannot start a worker: %s; want fewer --jobs",
                        strerror(errno));
    }
    w->worker[i] = (struct worker){ .pid = pid, .fd = fd[0], .unit = u, .t_spent = kvl_now_ns() };
    w->poll[i].fd = fd[0];
    w->n_alive++;
    return KVL_OK;
}

/* Those that a policy started, and what these left behind. */
static void workers_end_children(struct workers *w)
{
    pid_t keep[WORKERS_MAX];
    int n = 0;
    for (int32_t i = 0; i < w->n; i++)
        if (w->worker[i].pid && n < WORKERS_MAX) keep[n++] = w->worker[i].pid;
    kvl_harm_end_children(keep, n);
}

/* Closes the socket, which ends a worker that waits for a unit; returns how it ended. */
static int worker_end(struct workers *w, int32_t i)
{
    struct worker *x = &w->worker[i];
    int status = 0;
    pid_t ended = 0;
    close(x->fd);
    uint64_t until = kvl_now_ns() + (uint64_t)KVL_STOP_GRACE_S * 1000000000u;
    while ((ended = waitpid(x->pid, &status, WNOHANG)) == 0 && kvl_now_ns() < until)
        usleep(WORKERS_WAIT_US);
    if (ended == 0) {
        w->shared->each[i].harm = KVL_HARM_STUCK;
        kill(x->pid, SIGKILL);
        while (waitpid(x->pid, &status, 0) < 0 && errno == EINTR) continue;
    }
    kill(-x->pid, SIGKILL);
    kvl_buf_free(&x->in);
    *x = (struct worker){ 0 };
    w->poll[i].fd = -1;
    w->n_alive--;
    if (w->r->jobs.watched) workers_end_children(w);
    return status;
}

/* The next unit for worker i, or a new one in its place; its end when there is nothing left. */
static int worker_feed(struct workers *w, int32_t i)
{
    struct unit *u;
    struct worker *x = &w->worker[i];
    x->unit = NULL;
    KVL_TRY(workers_next(w, &u));
    if (u && x->pid && kvl_worker_hand(x->fd, w->r, u->what)) {
        x->unit = u;
        return KVL_OK;
    }
    if (x->pid) worker_end(w, i);
    return u ? worker_start(w, i, u) : KVL_OK;
}

/* ---- what workers say ------------------------------------------------------------------------ */

static void count_add(struct workers *w, const struct kvl_worker_count *c)
{
    struct kvl_runner *r = w->r;
    r->stats.context_prefills += c->stats.context_prefills;
    r->stats.context_prefill_tok += c->stats.context_prefill_tok;
    r->stats.n_quality += c->stats.n_quality;
    r->stats.own_prefills += c->stats.own_prefills;
    r->stats.speed_prefills += c->stats.speed_prefills;
    r->stats.n_samples += c->stats.n_samples;
    r->stats.n_speed += c->stats.n_speed;
    r->stats.n_errors += c->stats.n_errors;
    r->progress.n_done += c->n_done;
    r->progress.n_errors += c->n_errors;
    r->progress.n_answers += c->n_answers;
    r->snapshots.n_loaded += c->n_loaded;
    r->snapshots.n_saved += c->n_saved;
}

/* Two workers may meet the failure of one cell: one record is enough. */
static void count_repeated(struct kvl_runner *r)
{
    r->stats.n_errors--;
    r->progress.n_errors--;
    r->progress.n_done--;
}

/* The cell is made of what the log says, as after a restart. */
static int workers_record(struct workers *w, const char *line, size_t len)
{
    bool repeated = false;
    json_t *record = json_loadb(line, len, JSON_ALLOW_NUL, NULL);
    if (!record) return kvl_fail(w->err, KVL_EINTERNAL, "a worker sent a record that is no JSON");
    int rc = kvl_state_add(w->r->state, record, &repeated, w->err);
    if (rc == KVL_OK && !repeated) return kvl_runner_append(w->r, record, w->err);
    json_decref(record);
    if (repeated) count_repeated(w->r);
    return rc;
}

static int workers_commit(struct workers *w, const char *lines, size_t len)
{
    for (size_t at = 0; at < len;) {
        const char *end = memchr(lines + at, '\n', len - at);
        size_t n = end ? (size_t)(end - (lines + at)) : len - at;
        KVL_TRY(workers_record(w, lines + at, n));
        at += n + 1;
    }
    return kvl_log_commit(w->r->log, w->err);
}

/* A worker that was stopped or failed ends by itself. */
static int workers_done(struct workers *w, int32_t i, const char *payload)
{
    struct kvl_err err;
    memcpy(&err, payload, sizeof err);
    if (err.code == KVL_OK) KVL_TRY(unit_finish(w, w->worker[i].unit));
    if (err.code == KVL_OK) return worker_feed(w, i);
    worker_end(w, i);
    if (err.code == KVL_ESTOP) return KVL_OK;
    return kvl_fail(w->err, err.code, "%s", err.msg[0] ? err.msg : kvl_status_name(err.code));
}

static int worker_died(struct workers *w, int32_t i, const struct kvl_err *lost);

static int workers_lost(struct workers *w, int32_t i, const char *payload)
{
    struct kvl_err why;
    memcpy(&why, payload, sizeof why);
    return worker_died(w, i, &why);
}

static void worker_spent(struct workers *w, struct worker *x)
{
    uint64_t now = kvl_now_ns();
    w->r->progress.spent_ns += (double)(now - x->t_spent);
    x->t_spent = now;
}

static double workers_flight_ns(const struct workers *w)
{
    double ns = 0.0;
    uint64_t now = kvl_now_ns();
    for (int32_t i = 0; i < w->n; i++)
        if (w->worker[i].pid) ns += (double)(now - w->worker[i].t_spent);
    return ns;
}

static int workers_frame(struct workers *w, int32_t i, const struct kvl_worker_frame *f,
                         const char *payload)
{
    char what[192];
    if (f->says != KVL_WORKER_AMID) w->worker[i].quiet_ns = 0;
    count_add(w, &f->count);
    if (f->says == KVL_WORKER_COMMIT) {
        worker_spent(w, &w->worker[i]);
        return workers_commit(w, payload, (size_t)f->bytes);
    }
    if (f->says == KVL_WORKER_DONE) return workers_done(w, i, payload);
    if (f->says == KVL_WORKER_LOST) return workers_lost(w, i, payload);
    snprintf(what, sizeof what, "%.*s", (int)KVL_MIN(f->bytes, sizeof what - 1), payload);
    return kvl_runner_show(w->r, what, workers_flight_ns(w), w->err);
}

/* A hook has written to the worker's socket: nothing that follows can be told apart. */
static int worker_babbles(struct workers *w, int32_t i)
{
    w->shared->each[i].harm = KVL_HARM_FILES;
    kill(w->worker[i].pid, SIGKILL);
    return worker_died(w, i, NULL);
}

/* All frames that are whole.  The last one may end the worker, and its buffer. */
static int workers_frames(struct workers *w, int32_t i)
{
    struct kvl_buf in = w->worker[i].in;
    struct kvl_worker_frame f;
    size_t at = 0;
    int rc = KVL_OK;
    w->worker[i].in = (struct kvl_buf){ 0 };
    while (rc == KVL_OK && in.len - at >= sizeof f) {
        memcpy(&f, in.data + at, sizeof f);
        if (f.says < KVL_WORKER_NEXT || f.says > KVL_WORKER_LOST || f.bytes > WORKERS_FRAME_MAX) {
            kvl_buf_free(&in);
            return worker_babbles(w, i);
        }
        if (in.len - at - sizeof f < f.bytes) break;
        rc = workers_frame(w, i, &f, in.data + at + sizeof f);
        at += sizeof f + (size_t)f.bytes;
    }
    if (in.len > at) memmove(in.data, in.data + at, in.len - at);
    in.len -= at;
    if (w->worker[i].pid && in.len > 0)
        w->worker[i].in = in;
    else
        kvl_buf_free(&in);
    return rc;
}

/* ---- a worker that died ---------------------------------------------------------------------- */

/* Nobody is blamed for a death that no policy or task is seen in, or that came from outside, as when memory
 * ran out, until it comes again; then the policy that ran.  A task fails for all cells of the unit. */
static int death_record(struct workers *w, struct unit *u, const struct kvl_death *d,
                        struct kvl_err *why, int32_t *n)
{
    const struct kvl_group *g = &w->r->work->group[u->what.group];
    bool seen = (d->policy || d->task) && !kvl_death_killed(d);
    if (d->lost)
        *why = *d->lost;
    else
        kvl_death_text(d, why);
    if (!seen) u->unseen++;
    if (!seen && u->unseen < 2) return KVL_OK;
    return kvl_death_blame(w->r, u->what, ++u->seen <= g->n ? d->policy : NULL, why, n, w->err);
}

/* lost NULL: it did not say why. */
static int worker_died(struct workers *w, int32_t i, const struct kvl_err *lost)
{
    struct unit *u = w->worker[i].unit;
    const struct kvl_group *g = &w->r->work->group[u->what.group];
    struct kvl_err why;
    int32_t n = 0;
    struct kvl_death d = { .passed = w->worker[i].passed, .limits = &w->limits, .lost = lost };
    d.status = worker_end(w, i);
    if (*w->r->stop) return KVL_OK;
    d.harm = d.passed ? KVL_HARM_NONE : (enum kvl_harm_kind)w->shared->each[i].harm;
    d.policy = kvl_death_policy(w->r, u->what, w->shared->each[i].policy);
    d.task = d.policy ? NULL : kvl_death_task(w->r, u->what, w->shared->each[i].policy);
    KVL_TRY(death_record(w, u, &d, &why, &n));
    kvl_death_say(w->r, u->what, &why, n);
    if (kvl_state_wants_any(w->r->state, g, u->what.context)) return worker_start(w, i, u);
    KVL_TRY(unit_finish(w, u));
    return worker_feed(w, i);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int worker_hear(struct workers *w, int32_t i)
{
    char data[WORKERS_READ];
    ssize_t n = recv(w->worker[i].fd, data, sizeof data, 0);
    if (n < 0 && errno == EINTR) return KVL_OK;
    if (n <= 0) return worker_died(w, i, NULL);
    if (kvl_buf_add(&w->worker[i].in, data, (size_t)n) != KVL_OK)
        return kvl_fail(w->err, KVL_ENOMEM, "out of memory for the records of a worker");
    return workers_frames(w, i);
}

/* A hook polls nothing: workers that a stop does not reach are killed.  What they have committed is
 * still in their sockets, and is read as ever; what they had in hand is answered again. */
static void workers_kill(struct workers *w)
{
    for (int32_t i = 0; i < w->n; i++) {
        const struct worker *x = &w->worker[i];
        if (!x->pid) continue;
        const char *runs = w->shared->each[i].policy;
        const char *policy = x->unit ? kvl_death_policy(w->r, x->unit->what, runs) : NULL;
        const char *task = x->unit && !policy ? kvl_death_task(w->r, x->unit->what, runs) : NULL;
        kill(x->pid, SIGKILL);
        kvl_progress_end(&w->r->progress);
        const char *kind = policy ? "policy " : task ? "task " : "", *who = policy ? policy : task;
        fprintf(stderr,
                "kvlab: %s%s did not return within %d s of signal %d: its worker was ended\n", kind,
                who ? who : "what ran", KVL_STOP_GRACE_S, *w->r->stop);
    }
    w->killed = true;
}

static void workers_stop(struct workers *w)
{
    w->shared->stop = *w->r->stop;
    if (!w->shared->stop || w->killed) return;
    uint64_t now = kvl_now_ns();
    if (!w->t_stop) w->t_stop = now;
    if (now - w->t_stop >= (uint64_t)KVL_STOP_GRACE_S * 1000000000u) workers_kill(w);
}

/* A cell that takes longer or holds more than it may costs its worker.  While nobody's code runs, as in a prefill, none
 * does. */
static void workers_limit(struct workers *w)
{
    uint64_t now = kvl_now_ns(), spent = KVL_MIN(now - w->t_look, (uint64_t)WORKERS_LOOK_NS);
    int64_t free_bytes = kvl_memory_free_bytes();
    w->t_look = now;
    for (int32_t i = 0; i < w->n; i++) {
        struct worker *x = &w->worker[i];
        if (!x->pid || x->passed || !w->shared->each[i].policy) continue;
        x->quiet_ns += spent;
        x->passed = kvl_limit_passed(&w->limits, 1e-9 * (double)x->quiet_ns,
                                     kvl_process_bytes(x->pid), free_bytes);
        if (x->passed) kill(x->pid, SIGKILL);
    }
}

/* One that has ended while something that it started holds its socket: no end of it is to be read. */
static void workers_held(struct workers *w)
{
    for (int32_t i = 0; w->r->jobs.watched && i < w->n; i++) {
        siginfo_t gone = { 0 };
        pid_t pid = w->worker[i].pid;
        if (!pid || waitid(P_PID, (id_t)pid, &gone, WEXITED | WNOHANG | WNOWAIT) != 0) continue;
        if (!gone.si_pid) continue;
        kill(-pid, SIGKILL);
        workers_end_children(w);
    }
}

/* Control-Z stops the group of the terminal, in which workers are not. */
static volatile sig_atomic_t workers_pause;

static void workers_on_pause(int number)
{
    (void)number;
    workers_pause = 1;
}

static void workers_signal(const struct workers *w, int number)
{
    for (int32_t i = 0; i < w->n; i++)
        if (w->worker[i].pid) kill(w->worker[i].pid, number);
}

static void workers_paused(struct workers *w)
{
    if (!workers_pause) return;
    workers_pause = 0;
    workers_signal(w, SIGSTOP);
    raise(SIGSTOP);
    workers_signal(w, SIGCONT);
}

static int workers_loop(struct workers *w)
{
    w->t_look = kvl_now_ns();
    for (int32_t i = 0; i < w->n; i++) KVL_TRY(worker_feed(w, i));
    while (w->n_alive > 0) {
        workers_stop(w);
        workers_paused(w);
        workers_limit(w);
        workers_held(w);
        int n = poll(w->poll, (nfds_t)w->n, WORKERS_POLL_MS);
        if (n < 0 && errno != EINTR)
            return kvl_fail(w->err, KVL_EINTERNAL, "cannot wait for workers: %s", strerror(errno));
        for (int32_t i = 0; n > 0 && i < w->n; i++)
            if (w->poll[i].fd >= 0 && w->poll[i].revents) KVL_TRY(worker_hear(w, i));
    }
    return kvl_runner_check_stop(w->r, w->err);
}

static int workers_memory(struct workers *w)
{
    size_t n = (size_t)w->n, n_units = 0;
    for (size_t i = 0; i < w->r->work->n_groups; i++)
        n_units += (size_t)group_units(w, &w->r->work->group[i]);
    w->shared_bytes = sizeof *w->shared + n * sizeof w->shared->each[0];
    w->unit = kvl_alloc(n_units, sizeof *w->unit);
    w->left = kvl_alloc(w->r->work->n_groups, sizeof *w->left);
    w->worker = kvl_alloc(n, sizeof *w->worker);
    w->poll = kvl_alloc(n, sizeof *w->poll);
    void *shared =
        mmap(NULL, w->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    w->shared = shared == MAP_FAILED ? NULL : shared;
    if (!w->unit || !w->left || !w->worker || !w->poll || !w->shared)
        return kvl_fail(w->err, KVL_ENOMEM, "out of memory for %d workers", w->n);
    for (size_t i = 0; i < n; i++) w->poll[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
    return KVL_OK;
}

/* Workers that are left have nothing that counts. */
static void workers_free(struct workers *w)
{
    for (int32_t i = 0; w->worker && i < w->n; i++) {
        if (!w->worker[i].pid) continue;
        kill(w->worker[i].pid, SIGKILL);
        worker_end(w, i);
    }
    if (w->shared) munmap(w->shared, w->shared_bytes);
    kvl_free(w->unit);
    kvl_free(w->left);
    kvl_free(w->worker);
    kvl_free(w->poll);
}

/* Groups that have all samples but not all cell records: cut off between two commits. */
static int workers_finished(struct workers *w)
{
    for (size_t i = 0; i < w->r->work->n_groups; i++) {
        const struct kvl_group *g = &w->r->work->group[i];
        if (g->mine && !g->speed && !w->speed && w->left[i] == 0)
            KVL_TRY(kvl_runner_finish(w->r, g, w->err));
    }
    return KVL_OK;
}

int kvl_runner_workers(struct kvl_runner *r, bool speed, struct kvl_err *err)
{
    struct workers w = { .r = r, .n = r->jobs.n, .threads = r->jobs.threads, .err = err };
    w.speed = speed;
    w.limits = kvl_limits_of(r);
    if (speed) { /* alone */
        w.n = 1;
        w.threads = r->info->threads;
    }
    struct sigaction pause = { .sa_handler = workers_on_pause }, before;
    sigemptyset(&pause.sa_mask);
    sigaction(SIGTSTP, &pause, &before);
    if (r->jobs.watched) kvl_harm_inherit();
    kvl_stop_watch(false);
    int rc = workers_memory(&w);
    if (rc == KVL_OK) workers_plan(&w);
    if (rc == KVL_OK) rc = workers_finished(&w);
    if (rc == KVL_OK) rc = workers_loop(&w);
    workers_free(&w);
    kvl_stop_watch(true);
    sigaction(SIGTSTP, &before, NULL);
    return rc;
}
