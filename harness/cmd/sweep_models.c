/* Models of a sweep, each in a process of its own. */
#include "sweep_models.h"

#include "child.h"
#include "log.h"
#include "record.h"
#include "stop.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct one {
    const struct kvl_sweep_models *m;
    const char *model;
};

/* In the child. */
static int model_run(const void *user, void *out, struct kvl_err *err)
{
    const struct one *o = user;
    kvl_stop_watch(true);
    int rc = o->m->run(o->m->user, o->model, out, err);
    fflush(stdout);
    return rc;
}

static int model_apart(const struct kvl_sweep_models *m, const char *model,
                       struct kvl_sweep_done *done, struct kvl_err *err)
{
    struct one o = { m, model };
    struct kvl_child apart = { .run = model_run,
                               .user = &o,
                               .out = done,
                               .bytes = sizeof *done,
                               .died = KVL_EMODEL,
                               .who = model,
                               .stop = kvl_stop_flag() };
    return kvl_child_run(&apart, err);
}

/* The log itself, or whoever started the sweep: no other model would fare better. */
static bool model_ends_all(int rc)
{
    return rc == KVL_ESTOP || rc == KVL_ELOG || rc == KVL_EIO;
}

/* What failed before, and says the same, is in the log. */
struct known {
    const char *model, *message;
    bool found;
};

static int known_read(json_t *record, void *user, struct kvl_err *err)
{
    struct known *k = user;
    (void)err;
    const char *model = json_string_value(json_object_get(record, "model"));
    const char *message = json_string_value(json_object_get(record, "message"));
    if (model && message && strcmp(model, k->model) == 0 && strcmp(message, k->message) == 0)
        k->found = true;
    return KVL_OK;
}

/* A log is not made for failures alone. */
static int model_record(const char *path, const char *model, const struct kvl_err *why,
                        struct kvl_err *err)
{
    struct kvl_log *log;
    struct known known = { model, why->msg, false };
    if (!path || access(path, F_OK) != 0) return KVL_OK;
    KVL_TRY(kvl_log_open(path, known_read, &known, NULL, &log, err));
    int rc = KVL_OK;
    if (!known.found) {
        json_t *record = kvl_record_model_error(kvl_log_run(log), model, why->code, why->msg);
        rc = record ? kvl_log_append(log, record, err)
                    : kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
        json_decref(record);
        if (rc == KVL_OK) rc = kvl_log_commit(log, err);
    }
    int closed = kvl_log_close(log, rc == KVL_OK ? err : NULL);
    return rc == KVL_OK ? closed : rc;
}

static void done_add(struct kvl_sweep_done *sum, const struct kvl_sweep_done *d)
{
    sum->n_samples += d->n_samples;
    sum->n_speed += d->n_speed;
    sum->n_errors += d->n_errors;
    sum->n_failed += d->n_failed;
}

/* Failures are recorded at the end: the first model may be the one that makes no log. */
static int models_record(const struct kvl_sweep_models *m, const struct kvl_err *why,
                         struct kvl_err *err)
{
    for (size_t i = 0; i < m->sweep->models.n; i++)
        if (why[i].code != KVL_OK)
            KVL_TRY(model_record(m->log, m->sweep->models.v[i], &why[i], err));
    return KVL_OK;
}

static int models_run(const struct kvl_sweep_models *m, struct kvl_err *why,
                      struct kvl_sweep_done *sum, size_t *n_failed, struct kvl_err *err)
{
    size_t n = m->sweep->models.n, first = n;
    for (size_t i = 0; i < n; i++) {
        struct kvl_sweep_done done = { 0 };
        int rc = model_apart(m, m->sweep->models.v[i], &done, &why[i]);
        done_add(sum, &done);
        if (rc == KVL_OK) continue;
        if (model_ends_all(rc)) return kvl_fail(err, rc, "%s", why[i].msg);
        why[i].code = rc;
        fprintf(stderr, "kvlab: models: %s\n", why[i].msg);
        if (first == n) first = i;
        ++*n_failed;
    }
    if (*n_failed == n)
        return kvl_fail(err, why[first].code, "every model fails; the first one: %s",
                        why[first].msg);
    return models_record(m, why, err);
}

int kvl_sweep_models(const struct kvl_sweep_models *m, struct kvl_sweep_done *sum, size_t *n_failed,
                     struct kvl_err *err)
{
    struct kvl_err *why = kvl_alloc(m->sweep->models.n, sizeof *why);
    *sum = (struct kvl_sweep_done){ 0 };
    *n_failed = 0;
    if (!why) return kvl_fail(err, KVL_ENOMEM, "out of memory for %zu models", m->sweep->models.n);
    kvl_stop_install();
    kvl_stop_watch(false); /* those that run see to themselves */
    int rc = models_run(m, why, sum, n_failed, err);
    kvl_free(why);
    return rc;
}
