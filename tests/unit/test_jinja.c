/* The interpreter of chat templates beside jinja2. */
#include "jinja.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FOLDER KVL_SOURCE_DIR "/tests/tokenizers/"

static json_t *load_json(const char *path)
{
    json_error_t e;
    json_t *v = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!v) fail_msg("%s: %s", path, e.text);
    return v;
}

/* As tests/tokenizers/chats.py and jinja_pieces.py do. */
static int render(const json_t *text, struct kvl_buf *out, struct kvl_err *err)
{
    struct kvl_jinja *t;
    struct kvl_jinja_run *r;
    struct kvl_buf mark = { 0 };
    KVL_TRY(kvl_jinja_parse(json_string_value(text), json_string_length(text), &t, err));
    assert_int_equal(kvl_jinja_open(t, 100, &r, err), KVL_OK);
    struct jin_val messages = jin_list(r), m = jin_dict(r), none = { .type = JIN_NONE };
    jin_put(r, m, "role", jin_text(r, "user", 4, 0));
    jin_put(r, m, "content", jin_text(r, "Hi <x>", 6, 1));
    jin_push(r, messages, m);
    jin_set(r, "messages", messages);
    jin_set(r, "tools", none);
    jin_set(r, "documents", none);
    jin_set(r, "bos_token", jin_text(r, "<s>", 3, 0));
    int rc = kvl_jinja_render(r, out, &mark);
    if (rc == KVL_OK) assert_int_equal(out->len, mark.len);
    kvl_buf_free(&mark);
    kvl_jinja_close(r);
    kvl_jinja_free(t);
    return rc;
}

/* Rows [piece, text], the text null where jinja2 refuses the piece.  `free`: kvlab may refuse any. */
static void check(const char *path, const json_t *rows, bool may_refuse)
{
    const json_t *row;
    size_t i;
    int n = 0, wrong = 0, refused = 0;
    json_array_foreach(rows, i, row)
    {
        const json_t *text = json_array_get(row, 0), *want = json_array_get(row, 1);
        const char *wanted = json_is_string(want) ? json_string_value(want) : "an error";
        struct kvl_buf out = { 0 };
        struct kvl_err err = { 0 };
        bool done = render(text, &out, &err) == KVL_OK;
        bool same = done && json_is_string(want) && out.len == json_string_length(want) &&
                    (out.len == 0 || memcmp(out.data, wanted, out.len) == 0);
        n += same;
        refused += !done && json_is_string(want);
        if (done ? !same : json_is_string(want) && !may_refuse) {
            wrong++;
            print_message("%s\n   gives  %.*s%s\n   jinja2 %s\n", json_string_value(text),
                          (int)out.len, out.len ? out.data : "", err.msg, wanted);
        }
        if (getenv("KVL_JINJA_REFUSED") && !done && json_is_string(want))
            print_message("%s: %s\n", err.msg, json_string_value(text));
        kvl_buf_free(&out);
        kvl_err_clear(&err);
    }
    print_message("%s: %d texts as jinja2, %d wrong, %d refused that jinja2 renders\n", path, n,
                  wrong, refused);
    assert_true(wrong == 0 && n > refused);
}

/* What chat templates are made of: nothing of it is refused. */
static void test_language(void **state)
{
    json_t *all = load_json(FOLDER "chats.json");
    (void)state;
    check("chats.json", json_object_get(all, "language"), false);
    json_decref(all);
}

/* Anything: what is not known is refused, and what is rendered is what jinja2 renders. */
static void test_random(void **state)
{
    json_t *rows = load_json(FOLDER "jinja.json");
    (void)state;
    check("jinja.json", rows, true);
    json_decref(rows);
}

/* KVL_JINJA: a file of other pieces, by jinja_pieces.py SEED COUNT FILE. */
static void test_given(void **state)
{
    (void)state;
    if (!getenv("KVL_JINJA")) skip();
    json_t *rows = load_json(getenv("KVL_JINJA"));
    check(getenv("KVL_JINJA"), rows, true);
    json_decref(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
