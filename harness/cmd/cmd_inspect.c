/* kvlab inspect: what a GGUF file or a log holds. */
#include "args.h"
#include "cmds.h"
#include "report.h"

#include "kvl/chat.h"

/* The one private header of core that the program uses: the file format is of interest to nobody
 * else. */
#include "kvl/gguf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect_args {
    struct kvl_args base;
    const char *file;
};

static error_t inspect_parse(int key, char *arg, struct argp_state *state)
{
    struct inspect_args *a = state->input;
    if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    if (a->file)
        return kvl_args_fail(&a->base,
                             kvl_fail(a->base.err, KVL_EINVAL, "%s: one FILE is enough", arg));
    a->file = arg;
    return 0;
}

static const struct argp inspect_argp = {
    .parser = inspect_parse,
    .args_doc = "FILE",
    .doc = "Metadata and tensors of a GGUF file, or the records of a log by kind."
};

/* Which chat template sweeps and `generate --chat auto` would use. */
static int inspect_chat(const struct kvl_gguf *g, struct kvl_err *err)
{
    static const char key[] = "tokenizer.chat_template";
    struct kvl_str text;
    if (!kvl_gguf_has(g, key)) {
        puts("chat template: none; prompts are raw text");
        return KVL_OK;
    }
    KVL_TRY(kvl_gguf_str(g, key, &text, err));
    char *copy = strndup(text.s, text.len);
    if (!copy) return kvl_fail(err, KVL_ENOMEM, "no memory for the chat template");
    const struct kvl_chat *chat = kvl_chat_recognise(copy);
    printf("chat template: %s\n",
           chat ? kvl_chat_name(chat) : "of no family that is known; want chat: none, or a name");
    free(copy);
    return KVL_OK;
}

static int inspect_gguf(const char *path, struct kvl_err *err)
{
    struct kvl_gguf *g;
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_gguf_open(path, &g, err));
    int rc = kvl_gguf_describe(g, &text);
    if (rc == KVL_OK && text.len) {
        fputs(text.data, stdout);
        rc = inspect_chat(g, err);
    } else if (rc != KVL_OK) {
        kvl_fail(err, rc, "%s: no memory to describe it", path);
    }
    kvl_buf_free(&text);
    kvl_gguf_close(g);
    return rc;
}

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

int cmd_inspect(int argc, char **argv, struct kvl_err *err)
{
    struct inspect_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&inspect_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (!a.file) return kvl_fail(err, KVL_EINVAL, "no file given, want a GGUF file or a log");
    FILE *f = fopen(a.file, "rb");
    if (!f) return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", a.file, strerror(errno));
    char magic[4] = "";
    size_t n = fread(magic, 1, sizeof magic, f);
    fclose(f);
    if (n == sizeof magic && memcmp(magic, "GGUF", 4) == 0) return inspect_gguf(a.file, err);
    return inspect_log(a.file, err);
}
