/* kvlab inspect: what a model or a log is. */
#include "args.h"
#include "cmds.h"
#include "inspect_model.h"
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct inspect_args {
    struct kvl_args base;
    const char *file;
    bool all;
};

enum { INSPECT_KEY_ALL = 0x100 };
static const struct argp_option inspect_options[] = {
    { "all", INSPECT_KEY_ALL, NULL, 0, "every key and tensor of a model, too", 0 },
    { 0 },
};

static error_t inspect_parse(int key, char *arg, struct argp_state *state)
{
    struct inspect_args *a = state->input;
    if (key == INSPECT_KEY_ALL) {
        a->all = true;
        return 0;
    }
    if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    if (a->file)
        return kvl_args_fail(&a->base,
                             kvl_fail(a->base.err, KVL_EINVAL, "%s: one FILE is enough", arg));
    a->file = arg;
    return 0;
}

static const struct argp inspect_argp = {
    .options = inspect_options,
    .parser = inspect_parse,
    .args_doc = "FILE",
    .doc = "What a model is (a GGUF file, a folder with config.json and *.safetensors), what "
           "memory it takes and "
           "whether it runs; or the records of a log by kind."
};

/* kind -> number of records */
static int inspect_count(json_t *record, void *user, struct kvl_err *err)
{
    const char *kind = kvl_json_text(record, "kind");
    json_int_t n = json_integer_value(json_object_get(user, kind));
    if (json_object_set_new(user, kind, json_integer(n + 1)) == 0) return KVL_OK;
    return kvl_fail(err, KVL_ENOMEM, "no memory to count records");
}

static int inspect_log(const char *path, struct kvl_err *err)
{
    json_t *kinds = json_object();
    struct kvl_log_health h = { 0 };
    int rc = kvl_log_read(path, inspect_count, kinds, &h, err);
    const char *kind;
    json_t *n;
    if (rc == KVL_OK) {
        printf("log of %llu records in %llu groups, %llu bytes (%llu as text)%s\n",
               (unsigned long long)h.n_records, (unsigned long long)h.n_groups,
               (unsigned long long)h.bytes, (unsigned long long)h.text_bytes,
               h.n_damage || h.n_bad_lines ? ", not whole:" : ", whole");
        kvl_report_damage(&h, stdout);
        json_object_foreach(kinds, kind, n) printf(
            "  %-8s %" JSON_INTEGER_FORMAT "\n", kind[0] ? kind : "(none)", json_integer_value(n));
    }
    json_decref(kinds);
    kvl_log_health_free(&h);
    return rc;
}

/* A folder of Hugging Face's form, or its config.json. */
static int inspect_is_folder(const char *path, bool *out, struct kvl_err *err)
{
    static const char name[] = "config.json";
    struct stat st;
    size_t len = strlen(path), n = sizeof name - 1;
    if (stat(path, &st) != 0)
        return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", path, strerror(errno));
    *out = S_ISDIR(st.st_mode) || (len >= n && strcmp(path + len - n, name) == 0);
    return KVL_OK;
}

int cmd_inspect(int argc, char **argv, struct kvl_err *err)
{
    struct inspect_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&inspect_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (!a.file) return kvl_fail(err, KVL_EINVAL, "no file given, want a model or a log");
    bool folder;
    KVL_TRY(inspect_is_folder(a.file, &folder, err));
    if (folder) return kvl_inspect_model(a.file, a.all, err);
    FILE *f = fopen(a.file, "rb");
    if (!f) return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", a.file, strerror(errno));
    static const char zstd[4] = { '\x28', '\xb5', '\x2f', '\xfd' };
    char magic[4] = "";
    size_t n = fread(magic, 1, sizeof magic, f);
    fclose(f);
    if (n == sizeof magic && memcmp(magic, "GGUF", 4) == 0)
        return kvl_inspect_model(a.file, a.all, err);
    int rc = inspect_log(a.file, err);
    if (rc != KVL_ELOG || memcmp(magic, zstd, sizeof zstd) == 0) return rc;
    kvl_err_clear(err); /* what opens a model tells other files by name */
    return kvl_inspect_model(a.file, a.all, err);
}
