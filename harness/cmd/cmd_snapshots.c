/* kvlab snapshots: a folder of prefilled contexts. */
#include "args.h"
#include "cmds.h"
#include "show.h"
#include "snapshot_folder.h"

#include "kvl/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SNAPSHOTS_SIZE = 0x300, SNAPSHOTS_DAYS, SNAPSHOTS_DELETE };

struct snapshots_args {
    struct kvl_args base;
    char **word;
    size_t n_words;
    int64_t max_bytes, days;
    bool delete;
};

static const struct argp_option snapshots_options[] = {
    { "max-size", SNAPSHOTS_SIZE, "SIZE", 0, "prune: until at most so much is left (500M, 200G)",
      0 },
    { "days", SNAPSHOTS_DAYS, "N", 0, "prune: what was not used for so many days", 0 },
    { "delete", SNAPSHOTS_DELETE, NULL, 0, "verify: remove those that are damaged", 0 },
    { 0 }
};

static error_t snapshots_parse(int key, char *arg, struct argp_state *state)
{
    struct snapshots_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case SNAPSHOTS_SIZE: rc = kvl_size_parse("--max-size", arg, &a->max_bytes, a->base.err); break;
    case SNAPSHOTS_DAYS:
        if (kvl_parse_i64(arg, &a->days) != KVL_OK || a->days < 1 || a->days > 36500)
            rc = kvl_fail(a->base.err, KVL_EINVAL, "--days: \"%s\": want a number from 1 on", arg);
        break;
    case SNAPSHOTS_DELETE: a->delete = true; break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->word, &a->n_words); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp snapshots_argp = {
    .options = snapshots_options,
    .parser = snapshots_parse,
    .args_doc = "list DIR\nverify DIR\nprune DIR",
    .doc = "The folder of sweep --snapshots, which several machines may use at once, also while "
           "this runs.  list: sizes, "
           "last uses, and what each is of.  verify: reads every byte; exit code 4 when some are "
           "damaged.  prune: removes "
           "what was used longest ago, and what killed processes left."
};

static void snapshots_line(const struct kvl_snapshot_entry *e, const char *what)
{
    char when[32] = "?";
    struct tm tm;
    time_t used = (time_t)e->used_s;
    const char *slash = strrchr(e->path, '/');
    if (gmtime_r(&used, &tm)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    printf("%10.1f MiB  %s  %.16s  %s\n", (double)e->bytes / 0x1p20, when,
           slash ? slash + 1 : e->path, what);
}

/* The lines of a key as one. */
static void snapshots_key(char *key)
{
    for (char *c = key; c && *c; c++)
        if (*c == '\n') *c = ';';
    if (key) kvl_show_line(key);
}

static int snapshots_list(const struct kvl_snapshot_folder *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) {
        struct kvl_buf key = { 0 };
        struct kvl_err why = { 0 };
        const struct kvl_snapshot_entry *e = &f->entry[i];
        int rc = e->part ? KVL_OK : kvl_snapshot_key_of(e->path, &key, &why);
        if (key.data) snapshots_key(key.data);
        snapshots_line(e, e->part        ? "being written, or left by a killed process"
                          : rc == KVL_OK ? key.data
                                         : why.msg);
        n += !e->part;
        kvl_buf_free(&key);
    }
    printf("%zu snapshots, %.1f MiB\n", n, (double)f->bytes / 0x1p20);
    return KVL_OK;
}

static int snapshots_verify(const struct snapshots_args *a, const struct kvl_snapshot_folder *f,
                            struct kvl_err *err)
{
    size_t n = 0, bad = 0, gone = 0;
    for (size_t i = 0; i < f->n; i++) {
        struct kvl_buf key = { 0 };
        struct kvl_err why = { 0 };
        if (f->entry[i].part) continue;
        bool there = access(f->entry[i].path, F_OK) == 0; /* pruned meanwhile */
        n += there;
        if (there && kvl_snapshot_check(f->entry[i].path, &key, &why) != KVL_OK) {
            bad++;
            printf("%s\n", why.msg);
            gone += a->delete &&unlink(f->entry[i].path) == 0;
        }
        kvl_buf_free(&key);
    }
    printf("%zu snapshots, %zu damaged, %zu of these removed\n", n, bad, gone);
    if (bad == gone) return KVL_OK;
    return kvl_fail(
        err, KVL_EIO,
        "%zu of %zu snapshots are damaged; --delete removes them, sweeps make them again",
        bad - gone, n);
}

static int snapshots_prune(const struct snapshots_args *a, struct kvl_err *err)
{
    struct kvl_snapshot_folder_gone gone;
    KVL_TRY(kvl_snapshot_folder_prune(a->word[1], a->max_bytes, a->days * 24 * 3600, &gone, err));
    printf("%zu files, %.1f MiB removed\n", gone.n, (double)gone.bytes / 0x1p20);
    return KVL_OK;
}

static int snapshots_run(const struct snapshots_args *a, struct kvl_err *err)
{
    struct kvl_snapshot_folder f;
    const char *verb = a->n_words ? a->word[0] : "";
    bool list = strcmp(verb, "list") == 0, verify = strcmp(verb, "verify") == 0;
    if (!list && !verify && strcmp(verb, "prune") != 0)
        return kvl_fail(err, KVL_EINVAL, "snapshots \"%s\": want list, verify or prune", verb);
    if (a->n_words != 2)
        return kvl_fail(err, KVL_EINVAL, "%s: %zu folders, want one", verb, a->n_words - 1);
    if (!list && !verify) return snapshots_prune(a, err);
    KVL_TRY(kvl_snapshot_folder_read(a->word[1], &f, err));
    int rc = list ? snapshots_list(&f) : snapshots_verify(a, &f, err);
    kvl_snapshot_folder_free(&f);
    return rc;
}

int cmd_snapshots(int argc, char **argv, struct kvl_err *err)
{
    struct snapshots_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&snapshots_argp, argc, argv, &a, &done, err));
    return done ? KVL_OK : snapshots_run(&a, err);
}
