/* Prompts that are cut to a length, byte for byte as LongBench's script cuts them (tests/tokenizers/cuts.py). */
#include "kvl/task.h"
#include "kvl/tokenizer.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER KVL_SOURCE_DIR "/tests/tokenizers/"

extern const struct kvl_task *const kvl_task_longbench;

/* trec.jsonl of one row, in a folder of its own. */
static void write_row(const char *dir, const char *context, const char *input)
{
    char path[64];
    json_t *row = json_pack("{s:s, s:s, s:[s], s:[s], s:s, s:s, s:i, s:s}", "input", input,
                            "context", context, "answers", "x", "all_classes", "x", "dataset",
                            "trec", "language", "en", "length", 1, "_id", "1");
    char *line = json_dumps(row, JSON_COMPACT);
    snprintf(path, sizeof path, "%s/trec.jsonl", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", line);
    assert_int_equal(fclose(f), 0);
    free(line);
    json_decref(row);
}

static char *cut(const char *dir, const struct kvl_tokenizer *t, int32_t length)
{
    const struct kvl_task *task = kvl_task_longbench;
    double opts[2048];
    char options[128];
    struct kvl_task_source *source;
    struct kvl_sample s = { 0 };
    struct kvl_buf text = { 0 };
    struct kvl_err err = { 0 };
    assert_true(task->opts_size <= sizeof opts);
    snprintf(options, sizeof options, "dir=%s,name=trec", dir);
    kvl_opt_defaults(task->opts, opts, NULL);
    if (kvl_opt_parse(task->opts, opts, options, &err) != KVL_OK ||
        task->open(opts, &source, &err) != KVL_OK)
        fail_msg("%s", err.msg);
    struct kvl_task_request req = { .tokenizer = t,
                                    .length_tok = length,
                                    .depth = -1.0,
                                    .n_questions = 1,
                                    .opts = opts,
                                    .source = source };
    if (task->generate(&req, &s, &err) != KVL_OK) fail_msg("%s", err.msg);
    kvl_buf_printf(&text, "%s%s", s.context, s.question[0].text);
    kvl_sample_free(&s);
    task->close(source);
    return text.data;
}

static void test_cuts(void **state)
{
    char dir[] = "/tmp/kvl-cuts-XXXXXX", path[64], name[512] = "";
    json_error_t e;
    json_t *all = json_load_file(FOLDER "cuts.json", 0, &e), *row;
    struct kvl_tokenizer *t = NULL;
    struct kvl_err err = { 0 };
    size_t i;
    int wrong = 0;
    (void)state;
    if (!all) fail_msg("%s", e.text);
    assert_non_null(mkdtemp(dir));
    json_array_foreach(json_object_get(all, "cuts"), i, row)
    {
        const char *folder = json_string_value(json_array_get(row, 0));
        size_t context = (size_t)json_integer_value(json_array_get(row, 1));
        int32_t length = (int32_t)json_integer_value(json_array_get(row, 3));
        const char *want = json_string_value(json_array_get(row, 4));
        if (!strstr(name, folder)) {
            kvl_tokenizer_destroy(t);
            snprintf(name, sizeof name, FOLDER "%s", folder);
            if (kvl_tokenizer_from_hf(name, &t, &err) != KVL_OK) fail_msg("%s", err.msg);
        }
        write_row(dir, json_string_value(json_array_get(json_object_get(all, "contexts"), context)),
                  json_string_value(json_array_get(row, 2)));
        char *got = cut(dir, t, length);
        if (strcmp(got, want) != 0) {
            size_t at = 0;
            while (got[at] && got[at] == want[at]) at++;
            print_message("%s, context %zu, %d tokens, byte %zu: \"%.40s\", want \"%.40s\"\n",
                          folder, context, length, at, got + at, want + at);
            wrong++;
        }
        free(got);
    }
    assert_int_equal(wrong, 0);
    snprintf(path, sizeof path, "%s/trec.jsonl", dir);
    unlink(path);
    rmdir(dir);
    kvl_tokenizer_destroy(t);
    json_decref(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cuts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
