/* The plan beside the logs of shards. */
#include "plan_file.h"

#include "folders.h"
#include "outfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

enum { PLAN_FILE_MAX = 1 << 20 };

int kvl_plan_file_name(const char *log, const char *model, const char *kv_type, struct kvl_buf *out)
{
    static const char *const tails[] = { ".zst", ".jsonl" };
    size_t n = strlen(log);
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        size_t t = strlen(tails[i]);
        if (n > t && strncmp(log + n - t, tails[i], t) == 0) n -= t;
    }
    KVL_TRY(kvl_buf_add(out, log, n));
    if (model) KVL_TRY(kvl_buf_printf(out, ".%.8s", model));
    if (kv_type) KVL_TRY(kvl_buf_adds(out, "."));
    for (const char *p = kv_type; p && *p; p++) KVL_TRY(kvl_buf_add(out, *p == '/' ? "-" : p, 1));
    return kvl_buf_adds(out, ".plan.json");
}

static int plan_compare(const char *path, const struct kvl_work *w, const char *hash,
                        const struct kvl_buf *text, struct kvl_err *err)
{
    json_t *plan = json_loadb(text->data ? text->data : "", text->len, 0, NULL);
    const char *its = json_string_value(json_object_get(plan, "plan"));
    json_int_t shards = json_integer_value(json_object_get(plan, "shards"));
    static const char other[] =
        "another log (log: or --log), or remove this file with the logs of its shards";
    int rc = KVL_OK;
    if (!its || shards < 1)
        rc = kvl_fail(err, KVL_EINVAL, "%s: no plan of shards, want another log (log: or --log)",
                      path);
    else if (shards != w->shard.count)
        rc = kvl_fail(err, KVL_EINVAL,
                      "%s: its sweep is spread over %lld shards, this is shard %d of %d (%s): want "
                      "--shard i/%lld, %s",
                      path, (long long)shards, w->shard.index, w->shard.count, w->shard.from,
                      (long long)shards, other);
    else if (strcmp(its, hash) != 0)
        rc = kvl_fail(err, KVL_EINVAL,
                      "%s: its shards have plan %s, this sweep has %s: cells were added, removed "
                      "or dealt out "
                      "otherwise since; want the sweep as it was, %s",
                      path, its, hash, other);
    json_decref(plan);
    return rc;
}

static json_t *plan_record(const struct kvl_work *w, const char *hash)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:I}", "kind", "plan", "sweep", w->sweep->name,
                     "plan", hash, "shards", w->shard.count, "groups", (json_int_t)w->n_groups,
                     "cells", (json_int_t)w->n_cells);
}

static int plan_write(const char *path, const struct kvl_work *w, const char *hash, bool *placed,
                      struct kvl_err *err)
{
    int fd = -1;
    json_t *plan = plan_record(w, hash);
    if (!plan) return kvl_fail(err, KVL_ENOMEM, "no memory for %s", path);
    char *part = kvl_outfile_temp(path, 0666, &fd);
    bool good = part && json_dumpfd(plan, fd, JSON_INDENT(1)) == 0 && fsync(fd) == 0;
    json_decref(plan);
    int rc = good ? KVL_OK : kvl_fail(err, KVL_EIO, "%s: cannot write: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    if (part && rc == KVL_OK) rc = kvl_outfile_place(part, path, placed, err);
    if (part && !good) unlink(part);
    free(part);
    return rc;
}

int kvl_plan_file_check(const char *path, const struct kvl_work *w, bool write, struct kvl_err *err)
{
    char hash[KVL_PLAN_HASH];
    struct kvl_buf text = { 0 };
    bool placed = false;
    KVL_TRY(kvl_work_plan(w, hash, err));
    if (access(path, F_OK) != 0) {
        if (!write) return KVL_OK;
        KVL_TRY(kvl_make_folders(path, err));
        KVL_TRY(plan_write(path, w, hash, &placed, err));
        if (placed) return KVL_OK;
    }
    int rc = kvl_read_file(path, PLAN_FILE_MAX, &text, err);
    if (rc == KVL_OK) rc = plan_compare(path, w, hash, &text, err);
    kvl_buf_free(&text);
    return rc;
}
