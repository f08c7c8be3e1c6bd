/* kvlab log: checks a log, copies what is whole of it, or makes one of several. */
#include "args.h"
#include "cmds.h"
#include "log_merge.h"
#include "report.h"

#include <stdio.h>
#include <string.h>

struct log_args {
    struct kvl_args base;
    char **word;
    size_t n_words;
    const char *out;
};

static const struct argp_option log_options[] = {
    { "out", 'o', "FILE", 0,
      "the new log of merge, and of repair (default there: LOG with .repaired before .zst)", 0 },
    { 0 }
};

static error_t log_parse(int key, char *arg, struct argp_state *state)
{
    struct log_args *a = state->input;
    if (key == 'o')
        a->out = arg;
    else if (key == ARGP_KEY_ARGS) {
        kvl_args_words(state, &a->word, &a->n_words);
    } else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp log_argp = {
    .options = log_options,
    .parser = log_parse,
    .args_doc = "check LOG...\nrepair LOG\nmerge LOG...",
    .doc = "check reads logs, verifies every group and lists what is damaged or missing; exit code "
           "5 when anything is.  repair writes the whole groups to a new file; the old one stays.  "
           "merge writes the "
           "records of whole logs, the shards of a sweep for example, to a new one, without those "
           "that stand twice; "
           "the logs stay."
};

static void log_summary(const struct kvl_log_health *h)
{
    printf("%llu file%s: %llu records in %llu groups, %llu bytes (%llu as text)",
           (unsigned long long)h->n_files, h->n_files == 1 ? "" : "s",
           (unsigned long long)h->n_records, (unsigned long long)h->n_groups,
           (unsigned long long)h->bytes, (unsigned long long)h->text_bytes);
    if (h->n_plain) printf(", %llu groups without a header", (unsigned long long)h->n_plain);
    puts(h->n_damage || h->n_bad_lines ? "" : ", whole");
    if (!h->n_repairs) return;
    printf("repaired %llu time%s, ", (unsigned long long)h->n_repairs,
           h->n_repairs == 1 ? "" : "s");
    if (h->lost_groups >= 0)
        printf("%lld group%s", (long long)h->lost_groups, h->lost_groups == 1 ? "" : "s");
    else
        fputs("some groups", stdout);
    if (h->lost_records >= 0) printf(" of %lld records", (long long)h->lost_records);
    printf(" (%llu bytes) were lost before\n", (unsigned long long)h->lost_bytes);
}

static int log_check(const struct log_args *a, struct kvl_err *err)
{
    struct kvl_log_paths paths = { 0 };
    struct kvl_log_health h = { 0 };
    KVL_TRY(kvl_log_paths(a->word + 1, a->n_words - 1, &paths, err));
    int rc = kvl_log_each((const char *const *)paths.path, paths.n, NULL, NULL, &h, err);
    if (rc == KVL_OK) {
        kvl_report_damage(&h, stdout);
        log_summary(&h);
    }
    if (rc == KVL_OK && (h.n_damage || h.n_bad_lines))
        rc = kvl_fail(err, KVL_ELOG,
                      "%zu stretches of damage, %llu bad lines; kvlab log repair copies the rest",
                      h.n_damage, (unsigned long long)h.n_bad_lines);
    kvl_log_health_free(&h);
    kvl_log_paths_free(&paths);
    return rc;
}

/* "a.jsonl.zst" -> "a.jsonl.repaired.zst" */
static int log_repaired_name(const char *path, struct kvl_buf *out)
{
    size_t n = strlen(path);
    if (n > 4 && strcmp(path + n - 4, ".zst") == 0) n -= 4;
    return kvl_buf_printf(out, "%.*s.repaired.zst", (int)n, path);
}

static int log_repair(const struct log_args *a, struct kvl_err *err)
{
    if (a->n_words != 2)
        return kvl_fail(err, KVL_EINVAL, "repair: %zu logs, want one", a->n_words - 1);
    struct kvl_buf name = { 0 };
    struct kvl_log_health h = { 0 };
    if (!a->out && log_repaired_name(a->word[1], &name) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for a file name");
    const char *to = a->out ? a->out : name.data;
    int rc = kvl_log_repair(a->word[1], to, &h, err);
    if (rc == KVL_OK) {
        kvl_report_damage(&h, stdout);
        printf("%s: %llu records in %llu groups\n", to, (unsigned long long)h.n_records,
               (unsigned long long)h.n_groups);
    }
    kvl_buf_free(&name);
    kvl_log_health_free(&h);
    return rc;
}

static void log_print_merged(const char *to, const struct kvl_log_merged *m,
                             const struct kvl_log_health *h)
{
    size_t i;
    json_t *line;
    printf("%s: %llu records of %zu runs, from %llu log%s of %llu", to,
           (unsigned long long)m->n_records, m->n_runs, (unsigned long long)h->n_files,
           h->n_files == 1 ? "" : "s", (unsigned long long)h->n_records);
    if (m->n_same) printf("; %llu stood there twice", (unsigned long long)m->n_same);
    if (m->n_again) printf("; %llu had been answered already", (unsigned long long)m->n_again);
    putchar('\n');
    json_array_foreach(m->missing, i, line) puts(json_string_value(line));
}

static int log_merge(const struct log_args *a, struct kvl_err *err)
{
    struct kvl_log_paths paths = { 0 };
    struct kvl_log_health h = { 0 };
    struct kvl_log_merged merged;
    if (!a->out) return kvl_fail(err, KVL_EINVAL, "merge: no new log, want --out FILE");
    KVL_TRY(kvl_log_paths(a->word + 1, a->n_words - 1, &paths, err));
    for (size_t i = 0; i < paths.n; i++)
        if (kvl_log_busy(paths.path[i]))
            fprintf(stderr, "kvlab: %s: is being written; what comes later is left out\n",
                    paths.path[i]);
    int rc = kvl_log_merge(&paths, a->out, &merged, &h, err);
    if (rc == KVL_OK) {
        log_print_merged(a->out, &merged, &h);
        kvl_log_merged_free(&merged);
    }
    kvl_log_health_free(&h);
    kvl_log_paths_free(&paths);
    return rc;
}

int cmd_log(int argc, char **argv, struct kvl_err *err)
{
    struct log_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&log_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    const char *verb = a.n_words ? a.word[0] : "";
    if (strcmp(verb, "check") == 0) return log_check(&a, err);
    if (strcmp(verb, "repair") == 0) return log_repair(&a, err);
    if (strcmp(verb, "merge") == 0) return log_merge(&a, err);
    return kvl_fail(err, KVL_EINVAL, "log \"%s\": want check, repair or merge", verb);
}
