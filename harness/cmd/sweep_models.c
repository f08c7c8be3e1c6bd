/* Models of a sweep and types of their keys and values, each in a process of its own. */
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
    struct kvl_sweep_part part;
};

size_t kvl_sweep_n_parts(const struct kvl_sweep *s)
{
    return KVL_MAX(s->models.n, (size_t)1) * (size_t)KVL_MAX(s->kv_types.n, 1);
}

static struct kvl_sweep_part part_at(const struct kvl_sweep *s, size_t i)
{
    size_t n = (size_t)KVL_MAX(s->kv_types.n, 1);
    return (struct kvl_sweep_part){
        .model = s->models.n ? s->models.v[i / n] : s->model,
        .kv_type = s->kv_types.n ? s->kv_types.v[i % n] : s->kv_type,
        .last_type = i % n == n - 1,
    };
}

/* "model, kv_type q8_0", or the one of the two that is an axis. */
struct kvl_sweep_part_name kvl_sweep_part_name(const struct kvl_sweep *s,
                                               const struct kvl_sweep_part *p)
{
    struct kvl_sweep_part_name name;
    const struct kvl_kv_name type = kvl_kv_name(p->kv_type);
    if (!s->kv_types.n)
        snprintf(name.text, sizeof name.text, "%s", p->model);
    else if (!s->models.n)
        snprintf(name.text, sizeof name.text, "kv_type %s", type.text);
    else
        snprintf(name.text, sizeof name.text, "%.400s, kv_type %s", p->model, type.text);
    return name;
}

/* In the child. */
static int part_run(const void *user, void *out, struct kvl_err *err)
{
    const struct one *o = user;
    kvl_stop_watch(true);
    int rc = o->m->run(o->m->user, &o->part, out, err);
    fflush(stdout);
    return rc;
}

static int part_apart(const struct kvl_sweep_models *m, size_t i, struct kvl_sweep_done *done,
                      struct kvl_err *err)
{
    struct one o = { m, part_at(m->sweep, i) };
    const struct kvl_sweep_part_name name = kvl_sweep_part_name(m->sweep, &o.part);
    struct kvl_child apart = { .run = part_run,
                               .user = &o,
                               .out = done,
                               .bytes = sizeof *done,
                               .died = KVL_EMODEL,
                               .who = name.text,
                               .stop = kvl_stop_flag() };
    return kvl_child_run(&apart, err);
}

/* The log itself, or whoever started the sweep: no other model or type would fare better. */
static bool part_ends_all(int rc)
{
    return rc == KVL_ESTOP || rc == KVL_ELOG || rc == KVL_EIO;
}

/* What failed before, and says the same, is in the log. */
struct known {
    const char *model, *type, *message;
    bool found;
};

static bool known_is(const json_t *record, const char *field, const char *want)
{
    const char *text = json_string_value(json_object_get(record, field));
    return want ? text && strcmp(text, want) == 0 : !text;
}

static int known_read(json_t *record, void *user, struct kvl_err *err)
{
    struct known *k = user;
    (void)err;
    k->found |= json_object_get(record, "message") && known_is(record, "model", k->model) &&
                known_is(record, "kv_type", k->type) && known_is(record, "message", k->message);
    return KVL_OK;
}

/* A log is not made for failures alone. */
static int part_record(const struct kvl_sweep_models *m, size_t i, const struct kvl_err *why,
                       struct kvl_err *err)
{
    struct kvl_log *log;
    const struct kvl_sweep_part p = part_at(m->sweep, i);
    const struct kvl_kv_name type = kvl_kv_name(p.kv_type);
    struct known known = { p.model, m->sweep->kv_types.n ? type.text : NULL, why->msg, false };
    if (!m->log || access(m->log, F_OK) != 0) return KVL_OK;
    KVL_TRY(kvl_log_open(m->log, known_read, &known, NULL, &log, err));
    int rc = KVL_OK;
    if (!known.found) {
        json_t *record =
            kvl_record_model_error(kvl_log_run(log), p.model, known.type, why->code, why->msg);
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

/* Failures are recorded at the end: the first one may be of the part that makes no log. */
static int parts_record(const struct kvl_sweep_models *m, const struct kvl_err *why,
                        struct kvl_err *err)
{
    for (size_t i = 0; i < kvl_sweep_n_parts(m->sweep); i++)
        if (why[i].code != KVL_OK) KVL_TRY(part_record(m, i, &why[i], err));
    return KVL_OK;
}

static int parts_run(const struct kvl_sweep_models *m, struct kvl_err *why,
                     struct kvl_sweep_done *sum, size_t *n_failed, struct kvl_err *err)
{
    size_t n = kvl_sweep_n_parts(m->sweep), first = n;
    const char *what = m->sweep->models.n ? "models" : "kv_type";
    for (size_t i = 0; i < n; i++) {
        struct kvl_sweep_done done = { 0 };
        int rc = part_apart(m, i, &done, &why[i]);
        done_add(sum, &done);
        if (rc == KVL_OK) continue;
        if (part_ends_all(rc)) return kvl_fail(err, rc, "%s", why[i].msg);
        why[i].code = rc;
        fprintf(stderr, "kvlab: %s: %s\n", what, why[i].msg);
        if (first == n) first = i;
        ++*n_failed;
    }
    if (*n_failed == n)
        return kvl_fail(err, why[first].code, "every %s fails; the first one: %s",
                        m->sweep->models.n ? "model" : "type of keys and values", why[first].msg);
    return parts_record(m, why, err);
}

int kvl_sweep_models(const struct kvl_sweep_models *m, struct kvl_sweep_done *sum, size_t *n_failed,
                     struct kvl_err *err)
{
    size_t n = kvl_sweep_n_parts(m->sweep);
    struct kvl_err *why = kvl_alloc(n, sizeof *why);
    *sum = (struct kvl_sweep_done){ 0 };
    *n_failed = 0;
    if (!why) return kvl_fail(err, KVL_ENOMEM, "out of memory for the %zu parts of a sweep", n);
    kvl_stop_install();
    kvl_stop_watch(false); /* those that run see to themselves */
    int rc = parts_run(m, why, sum, n_failed, err);
    kvl_free(why);
    return rc;
}
