/* What a policy reports of itself: kept within bounds, and means over sessions. */
#include "conformance/rig.h"

#include "record_method.h"

enum { N_CTX = 20 };

/* ---- a policy that says what it is told to --------------------------------------------------- */

enum plot_what { PLAIN, MANY, TWICE, NAMES, NOT_FINITE, NOTES, FAILS };

static struct {
    enum plot_what what;
} plot;

static int plot_numbers(struct kvl_report *r, int n)
{
    char name[32];
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "n_%d", i);
        KVL_TRY(kvl_report_num(r, name, i));
    }
    return KVL_OK;
}

static int plot_names(struct kvl_report *r)
{
    static const char *const names[] = {
        "",    "Hits", "9th", "a b",
        "a=b", "\xff", "a\n", "a234567890123456789012345678901234567890_" /* 41 */
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        KVL_TRY(kvl_report_num(r, names[i], 1));
    KVL_TRY(kvl_report_num(r, NULL, 1));
    KVL_TRY(kvl_report_num(r, "a23456789012345678901234567890123456789_", 1)); /* 40 */
    return kvl_report_num(r, "z_9.x", 2);
}

static int plot_notes(struct kvl_report *r)
{
    char text[KVL_METHOD_NOTE + 2];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    KVL_TRY(kvl_report_note(r, text)); /* one too long */
    KVL_TRY(kvl_report_note(r, "two\nlines"));
    KVL_TRY(kvl_report_note(r, ""));
    KVL_TRY(kvl_report_note(r, NULL));
    for (int i = 0; i < 20; i++) {
        snprintf(text, sizeof text, "note %d", i);
        KVL_TRY(kvl_report_note(r, text));
    }
    return KVL_OK;
}

static int plot_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    switch (plot.what) {
    case PLAIN:
        KVL_TRY(kvl_report_num(r, "hits", 3));
        KVL_TRY(kvl_report_num(r, "share", 0.1));
        return kvl_report_note(r, "hits are {hits}");
    case MANY: return plot_numbers(r, 1000);
    case TWICE: KVL_TRY(plot_numbers(r, 2)); return plot_numbers(r, 2);
    case NAMES: return plot_names(r);
    case NOT_FINITE:
        KVL_TRY(kvl_report_num(r, "nan", (double)NAN));
        KVL_TRY(kvl_report_num(r, "inf", (double)INFINITY));
        return kvl_report_num(r, "one", 1);
    case NOTES: return plot_notes(r);
    default: break;
    }
    KVL_TRY(kvl_report_num(r, "before", 1));
    return kvl_fail(ctx->err, KVL_EPOLICY, "no numbers today");
}

static const struct kvl_policy plot_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "plot",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_BOUND,
    .report = plot_report,
};

/* The record of what the policy says. */
static json_t *said(enum plot_what what)
{
    struct rig r;
    int32_t id[N_CTX];
    struct kvl_method m = { 0 };
    plot.what = what;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .seed = 3 } });
    rig_tokens(id, N_CTX, 4);
    struct rig_run run = { .policy = &plot_policy, .id = id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    RIG_OK(&r.err, kvl_method_take(rs.s, &m, &r.err));
    json_t *record = kvl_record_method(&m);
    assert_non_null(record);
    kvl_method_free(&m);
    rig_end(&rs);
    rig_close(&r);
    return record;
}

static void expect(json_t *got, const char *want)
{
    json_error_t e;
    json_t *w = json_loads(want, 0, &e);
    if (!w) fail_msg("%s: %s", want, e.text);
    if (!json_equal(got, w)) fail_msg("want %s, got %s", want, json_dumps(got, JSON_COMPACT));
    json_decref(w);
    json_decref(got);
}

/* ---- one session ------------------------------------------------------------------------------ */

static void test_plain(void **state)
{
    (void)state;
    expect(said(PLAIN), "{\"method\": {\"hits\": 3.0, \"share\": 0.1}, "
                        "\"notes\": [\"hits are {hits}\"]}");
    struct kvl_method none = { 0 };
    expect(kvl_record_method(&none), "{\"method\": null, \"notes\": null}");
}

/* The only note is the line that says that something is missing. */
static void expect_cut(json_t *record, size_t n_numbers, size_t n_notes)
{
    json_t *notes = json_object_get(record, "notes");
    assert_int_equal(json_object_size(json_object_get(record, "method")), n_numbers);
    assert_int_equal(json_array_size(notes), n_notes + 1);
    const char *line = json_string_value(json_array_get(notes, n_notes));
    assert_non_null(strstr(line, "not kept whole"));
    assert_null(strchr(line, '\n'));
}

static void test_bounds(void **state)
{
    (void)state;
    json_t *r = said(MANY);
    expect_cut(r, KVL_METHOD_NAMES, 0);
    assert_non_null(json_object_get(json_object_get(r, "method"), "n_63"));
    json_decref(r);
    r = said(TWICE);
    expect_cut(r, 2, 0);
    json_decref(r);
    r = said(NAMES);
    expect_cut(r, 2, 0);
    json_decref(r);
    r = said(NOTES);
    expect_cut(r, 0, KVL_METHOD_NOTES);
    assert_true(json_is_null(json_object_get(r, "method")));
    assert_string_equal(json_string_value(json_array_get(json_object_get(r, "notes"), 0)),
                        "note 0");
    json_decref(r);
}

/* What is not known is not there, and nothing is wrong with that. */
static void test_not_finite(void **state)
{
    (void)state;
    expect(said(NOT_FINITE), "{\"method\": {\"one\": 1.0}, \"notes\": null}");
}

/* A report that fails is a line, not the end of the answer. */
static void test_fails(void **state)
{
    (void)state;
    json_t *r = said(FAILS);
    const char *line = json_string_value(json_array_get(json_object_get(r, "notes"), 0));
    assert_non_null(line);
    assert_non_null(strstr(line, "its report failed: "));
    assert_non_null(strstr(line, "no numbers today"));
    json_decref(r);
}

/* ---- many sessions ---------------------------------------------------------------------------- */

static void add(struct kvl_method_sum *all, const char *text)
{
    struct kvl_method m = { 0 };
    json_t *record = json_loads(text, 0, NULL);
    assert_non_null(record);
    kvl_method_of(record, &m);
    kvl_method_of(record, &m); /* replaces what was there */
    json_decref(record);
    kvl_method_add(all, &m);
    kvl_method_free(&m);
}

/* A number is a mean over those that have it. */
static void test_means(void **state)
{
    struct kvl_method_sum all = { 0 };
    (void)state;
    add(&all, "{\"method\": {\"a\": 1.0, \"b\": 5.0}, \"notes\": [\"x\", \"y\"]}");
    add(&all, "{\"method\": {\"a\": 2.0}, \"notes\": [\"x\"]}");
    add(&all, "{\"method\": null, \"notes\": null}");
    add(&all, "{}");
    add(&all, "{\"method\": {\"a\": 6.0, \"c\": \"no number\"}, \"notes\": [7]}");
    expect(kvl_record_method_sum(&all), "{\"method\": {\"a\": 3.0, \"b\": 5.0}, "
                                        "\"notes\": {\"x\": 2, \"y\": 1}}");
    assert_null(all.sum);
    expect(kvl_record_method_sum(&all), "{\"method\": null, \"notes\": null}");
}

/* Sessions that each say something else do not grow a record without end. */
static void test_union(void **state)
{
    struct kvl_method_sum all = { 0 };
    char text[128];
    (void)state;
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "{\"method\": {\"n%d\": 1.0}, \"notes\": [\"note %d\"]}", i, i);
        add(&all, text);
    }
    json_t *r = kvl_record_method_sum(&all);
    assert_int_equal(json_object_size(json_object_get(r, "method")), KVL_METHOD_NAMES);
    assert_int_equal(json_object_size(json_object_get(r, "notes")), 2 * KVL_METHOD_NOTES);
    json_decref(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_fails),
        cmocka_unit_test(test_means),      cmocka_unit_test(test_union),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
