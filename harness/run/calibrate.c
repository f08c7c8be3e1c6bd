/* A sweep in little. */
#include "calibrate.h"

#include "worker.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The lengths at most.  A second length begins only where it is done in time, as the first one tells.  A batch is known
 * when it is done: smaller ones, so that some are when the time is over. */
enum {
    CALIBRATE_BUDGETS = 3,
    CALIBRATE_TOK = 1024,
    CALIBRATE_MORE_TOK = 4096,
    CALIBRATE_BATCH = 16
};

/* What stops the little sweep: a signal, or that its time is over.  Its runner polls `stop` alone. */
struct calibrate_watch {
    const volatile int *signal;
    volatile int stop;
    bool ended; /* the little sweep is; atomic */
    uint64_t until_ns;
    pthread_t thread;
};

struct calibration {
    struct kvl_sweep s; /* a copy: what it points to is the sweep's */
    int32_t length[2];
    double depth; /* its only one */
    char *budget[CALIBRATE_BUDGETS];
    struct kvl_work *work;
    struct kvl_state state;
    struct kvl_run_info info;
    struct kvl_runner r;
    struct calibrate_watch watch;
    uint64_t t0;
    bool cut; /* of the first length something was not run */
    struct kvl_err *err;
};

static void calibrate_look(struct calibrate_watch *w)
{
    int stop = *w->signal;
    if (!stop && kvl_now_ns() >= w->until_ns) stop = SIGALRM;
    if (stop) __atomic_store_n(&w->stop, stop, __ATOMIC_RELAXED);
}

static void *calibrate_watch(void *user)
{
    const struct timespec nap = { .tv_nsec = 10 * 1000 * 1000 };
    struct calibrate_watch *w = user;
    for (; !__atomic_load_n(&w->ended, __ATOMIC_RELAXED) && !w->stop; calibrate_look(w))
        nanosleep(&nap, NULL);
    return NULL;
}

static void calibrate_lengths(const struct kvl_sweep *s, int32_t *shortest, int32_t *longest)
{
    *shortest = INT32_MAX;
    *longest = 0;
    for (size_t i = 0; i < s->lengths.n; i++) {
        *shortest = KVL_MIN(*shortest, s->lengths.v[i]);
        *longest = KVL_MAX(*longest, s->lengths.v[i]);
    }
}

/* A sweep that only times is asked what it times. */
static void calibrate_asked(struct kvl_sweep *s)
{
    if (s->tasks.n == 0) s->tasks = s->speed.task;
    if (s->lengths.n == 0) s->lengths = s->speed.lengths;
    if (s->policies.n == 0) s->policies = s->speed.policies;
    if (s->budgets.n == 0) s->budgets = s->speed.budgets;
    s->contexts = 1;
    s->speed.on = false;
    s->quality.questions = 0;
}

/* Answers that decode together share the reading of weights.  As many questions as fill a batch with all policies and
 * budgets: few policies have as many answers together then as in the sweep. */
static void calibrate_questions(struct kvl_sweep *s)
{
    size_t cells = KVL_MAX(s->policies.n, 1) * KVL_MAX(s->budgets.n, 1);
    s->batch = KVL_MIN(s->batch, (int32_t)CALIBRATE_BATCH);
    int32_t fill = (int32_t)KVL_MAX((size_t)s->batch / cells, 1);
    s->questions = KVL_MIN(s->questions, fill);
}

/* Of very many budgets the first, the middle and the last one. */
static void calibrate_budgets(struct calibration *c)
{
    struct kvl_texts *b = &c->s.budgets;
    if (b->n <= CALIBRATE_BUDGETS) return;
    c->budget[0] = b->v[0];
    c->budget[1] = b->v[b->n / 2];
    c->budget[2] = b->v[b->n - 1];
    *b = (struct kvl_texts){ c->budget, CALIBRATE_BUDGETS };
}

static int calibrate_plan(struct calibration *c, const struct kvl_runner *like)
{
    const struct kvl_run_info *info = like->info;
    const struct kvl_where where = { info->machine->host, info->threads, NULL };
    int32_t shortest, longest;
    c->s = *like->work->sweep;
    calibrate_asked(&c->s);
    calibrate_budgets(c);
    calibrate_questions(&c->s);
    calibrate_lengths(&c->s, &shortest, &longest);
    c->length[0] = KVL_MIN(shortest, CALIBRATE_TOK);
    c->length[1] = KVL_MIN(longest, CALIBRATE_MORE_TOK);
    c->depth = c->s.depths.v[0];
    c->s.depths = (struct kvl_doubles){ &c->depth, 1 };
    c->s.lengths = (struct kvl_ints){ c->length, c->length[1] > c->length[0] ? 2 : 1 };
    KVL_TRY(
        kvl_work_create(&c->s, like->work->model, &where, like->allow_overlong, &c->work, c->err));
    return kvl_state_create(c->work, false, false, &c->state, c->err);
}

static double calibrate_s(const struct calibration *c)
{
    return (double)(kvl_now_ns() - c->t0) * 1e-9;
}

/* Groups of the first length, or of the second one and the first task.  One that fails does not stop
 * the others.  When the time is over what there is is what there is: no error. */
static int calibrate_run(struct calibration *c, bool longer)
{
    int rc = KVL_OK;
    struct kvl_err why = { 0 };
    for (size_t i = 0; i < c->work->n_groups; i++) {
        const struct kvl_group *g = &c->work->group[i];
        bool is_longer = g->length != c->length[0];
        if (is_longer != longer || (longer && g->task != c->work->group[0].task)) continue;
        kvl_err_clear(&why);
        int one = kvl_runner_answer(&c->r, g, 0, &why);
        bool stopped = one == KVL_ESTOP, over = stopped && !*c->watch.signal;
        c->cut |= stopped && !longer;
        if (over) break;
        if (one != KVL_OK) *c->err = why;
        if (stopped) return one;
        if (one != KVL_OK) rc = one;
    }
    return rc;
}

static int calibrate_lengths_in_turn(struct calibration *c)
{
    int rc = calibrate_run(c, false);
    double s = calibrate_s(c) * c->length[1] / c->length[0];
    return rc == KVL_OK && s < KVL_CALIBRATE_S ? calibrate_run(c, true) : rc;
}

static int calibrate_in_time(struct calibration *c)
{
    struct calibrate_watch *w = &c->watch;
    w->until_ns = c->t0 + (uint64_t)KVL_CALIBRATE_S * 1000000000u;
    calibrate_look(w);
    if (pthread_create(&w->thread, NULL, calibrate_watch, w) != 0)
        return kvl_fail(c->err, KVL_ENOMEM, "no thread for the time of a context");
    int rc = calibrate_lengths_in_turn(c);
    __atomic_store_n(&w->ended, true, __ATOMIC_RELAXED);
    pthread_join(w->thread, NULL);
    return rc;
}

static int calibrate_all(struct calibration *c)
{
    c->t0 = kvl_now_ns();
    KVL_TRY(kvl_runner_open(&c->r, c->err));
    c->info.store = kvl_store_desc(kvl_engine_store(c->r.engine));
    kvl_ops_set_threads(c->r.jobs.threads);
    int rc = calibrate_in_time(c);
    kvl_ops_set_threads(c->r.info->threads);
    kvl_runner_close(&c->r);
    return rc;
}

static int calibrate_nowhere(const char *lines, size_t len, void *user, struct kvl_err *err)
{
    (void)lines, (void)len, (void)user, (void)err;
    return KVL_OK;
}

/* The runner wants a log for its records; they go nowhere. */
static int calibrate_log(struct calibration *c)
{
    const char *folder = getenv("TMPDIR");
    char path[4096], lock[4096 + 8];
    snprintf(path, sizeof path, "%s/kvlab-calibrate-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0) return kvl_fail(c->err, KVL_EIO, "%s: cannot create", path);
    close(fd);
    int rc = kvl_log_open(path, NULL, NULL, NULL, &c->r.log, c->err);
    if (rc == KVL_OK) kvl_log_redirect(c->r.log, calibrate_nowhere, NULL);
    snprintf(lock, sizeof lock, "%s.lock", path);
    unlink(path);
    unlink(lock);
    return rc;
}

int kvl_calibrate(const struct kvl_runner *like, struct kvl_rates *rates, bool *whole,
                  struct kvl_err *err)
{
    struct calibration c = { .info = *like->info, .watch = { .signal = like->stop }, .err = err };
    int rc = calibrate_plan(&c, like);
    c.r = (struct kvl_runner){ .work = c.work,
                               .state = &c.state,
                               .info = &c.info,
                               .stop = &c.watch.stop,
                               .allow_overlong = like->allow_overlong,
                               .jobs = { .n = 1, .threads = like->jobs.threads } };
    c.r.progress.quiet = true;
    if (rc == KVL_OK) rc = calibrate_log(&c);
    if (rc == KVL_OK) {
        rc = calibrate_all(&c);
        int read = rc == KVL_ESTOP ? rc : kvl_rates_read(rates, &c.r, err);
        if (rc == KVL_OK) rc = read;
    }
    if (rc == KVL_OK) *whole = !c.cut;
    (void)kvl_log_close(c.r.log, NULL);
    kvl_state_free(&c.state);
    kvl_work_destroy(c.work);
    return rc;
}
