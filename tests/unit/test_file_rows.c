/* Tasks that read benchmarks' files: files in the official form, made here, and what the official scripts
 * make of them. */
#include "rows.h"
#include "task_maker.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char folder[64];

static int make_folder(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/kvl-rows-XXXXXX");
    return mkdtemp(folder) ? open_tokenizers(state) : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) ? -1 : close_tokenizers(state);
}

static const char *at(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(at(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

/* ---- a task that is open ----------------------------------------------------------------------------- */

struct open_task {
    const struct kvl_task *task;
    double opts[2048];
    struct kvl_task_source *source;
};

static int try_open(struct open_task *o, const struct kvl_task *task, const char *options,
                    struct kvl_err *err)
{
    *o = (struct open_task){ .task = task };
    assert_true(task->opts_size <= sizeof o->opts);
    assert_int_equal(kvl_opt_defaults(task->opts, o->opts, err), KVL_OK);
    KVL_TRY(kvl_opt_parse(task->opts, o->opts, options, err));
    return task->open(o->opts, &o->source, err);
}

/* %s in the options is the folder. */
static void must_open(struct open_task *o, const struct kvl_task *task, const char *format)
{
    char options[512];
    struct kvl_err err = { 0 };
    const char *mark = strstr(format, "%s");
    snprintf(options, sizeof options, "%.*s%s%s", mark ? (int)(mark - format) : 0, format,
             mark ? folder : "", mark ? mark + 2 : format);
    if (try_open(o, task, options, &err) != KVL_OK) fail_msg("%s", err.msg);
}

static void must_refuse(const struct kvl_task *task, const char *format, int code,
                        const char *const *says)
{
    struct open_task o;
    char options[512];
    struct kvl_err err = { 0 };
    const char *mark = strstr(format, "%s");
    snprintf(options, sizeof options, "%.*s%s%s", mark ? (int)(mark - format) : 0, format,
             mark ? folder : "", mark ? mark + 2 : format);
    assert_int_equal(try_open(&o, task, options, &err), code);
    for (; *says; says++)
        if (!strstr(err.msg, *says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, *says);
    assert_null(strchr(err.msg, '\n'));
}

static int try_sample(const struct open_task *o, int32_t i_tokenizer, int32_t length, int32_t index,
                      int32_t questions, struct kvl_sample *s, struct kvl_err *err)
{
    struct kvl_task_request req = { .tokenizer = tokenizers[i_tokenizer].t,
                                    .length_tok = length,
                                    .depth = -1.0,
                                    .n_questions = questions,
                                    .index = index,
                                    .opts = o->opts,
                                    .source = o->source };
    return o->task->generate(&req, s, err);
}

static struct kvl_sample must_sample(const struct open_task *o, int32_t i_tokenizer, int32_t length,
                                     int32_t index, int32_t questions)
{
    struct kvl_sample s = { 0 };
    struct kvl_err err = { 0 };
    if (try_sample(o, i_tokenizer, length, index, questions, &s, &err) != KVL_OK)
        fail_msg("%s: %s", tokenizers[i_tokenizer].name, err.msg);
    assert_true(s.tokens.n <= length);
    return s;
}

/* Context and question as the model reads them. */
static void must_read(const struct kvl_sample *s, int32_t question, const char *want)
{
    struct kvl_buf text = { 0 };
    assert_int_equal(kvl_buf_printf(&text, "%s%s", s->context, s->question[question].text), KVL_OK);
    assert_string_equal(text.data, want);
    kvl_buf_free(&text);
}

static void must_score(const struct open_task *o, const struct kvl_sample *s, const char *said,
                       double official)
{
    struct kvl_task_score score;
    o->task->score(&s->question[0], said, &score);
    if (!(fabs(score.official - official) < 1e-9))
        fail_msg("\"%s\" scores %g, want %g", said, score.official, official);
}

static void close_task(struct open_task *o)
{
    o->task->close(o->source);
    o->source = NULL;
}

/* ---- files -------------------------------------------------------------------------------------------- */

static const char two_rows[] =
    "\xef\xbb\xbf{\"context\": \"A caf\\u00e9 \\ud83d\\ude00 \\ud83d!\", \"question\": \"Q?\", "
    "\"answers\": [\"yes\", 7], \"x\": NaN}\r\n"
    "\r\n"
    "{\"answers\": 12.50, \"question\": \"\\\"\\\\\\n\", \"context\": \"zero\\u0000end\"}";

static void check_two_rows(const char *options)
{
    struct open_task o;
    must_open(&o, kvl_task_jsonl, options);
    assert_int_equal(o.source->n_groups, 2);
    struct kvl_sample s = must_sample(&o, 0, 4096, 0, 1);
    must_read(&s, 0, "A caf\xc3\xa9 \xf0\x9f\x98\x80 \xef\xbf\xbd!\n\nQ?\nAnswer:");
    assert_string_equal(s.question[0].gold, "yes");
    must_score(&o, &s, "7", 1.0);
    kvl_sample_free(&s);
    s = must_sample(&o, 0, 4096, 1, 1);
    must_read(&s, 0,
              "zero\xef\xbf\xbd"
              "end\n\n\"\\\n\nAnswer:");
    assert_string_equal(s.question[0].gold, "12.50");
    kvl_sample_free(&s);
    close_task(&o);
}

/* Byte order mark, CRLF, empty lines, surrogates, a lone one, a zero byte, NaN, answers of any type. */
static void test_plain(void **state)
{
    (void)state;
    write_text("two.jsonl", two_rows);
    check_two_rows("file=%s/two.jsonl");
}

static void test_packed(void **state)
{
    char packed[1024];
    (void)state;
    gzFile gz = gzopen(at("two-gz.jsonl.gz"), "wb");
    assert_int_equal(gzwrite(gz, two_rows, sizeof two_rows - 1), sizeof two_rows - 1);
    assert_int_equal(gzclose(gz), Z_OK);
    check_two_rows("file=%s/two-gz.jsonl");
    size_t n = ZSTD_compress(packed, sizeof packed, two_rows, sizeof two_rows - 1, 3);
    assert_false(ZSTD_isError(n));
    write_bytes("two-zst.jsonl.zst", packed, n);
    check_two_rows("file=%s/two-zst.jsonl");
    write_bytes("short.zst", packed, n - 9);
    must_refuse(kvl_task_jsonl, "file=%s/short.zst", KVL_EIO,
                (const char *const[]){ "short.zst", "damaged zstd", NULL });
    write_bytes("table.parquet", "PAR1xxxx", 8);
    must_refuse(kvl_task_jsonl, "file=%s/table.parquet", KVL_EIO,
                (const char *const[]){ "table.parquet", "parquet", "pandas", NULL });
}

static void test_array(void **state)
{
    struct open_task o;
    (void)state;
    write_text("array.json", "[ {\"context\":\"a\",\"question\":\"b\",\"answers\":\"c\"},\n"
                             "  {\"context\":\"d\",\"question\":\"e\",\"answers\":[[\"f\"]]} ]\n");
    must_open(&o, kvl_task_jsonl, "file=%s/array.json");
    assert_int_equal(o.source->n_groups, 2);
    struct kvl_sample s = must_sample(&o, 0, 4096, 1, 1);
    must_read(&s, 0, "d\n\ne\nAnswer:");
    assert_string_equal(s.question[0].gold, "f");
    kvl_sample_free(&s);
    close_task(&o);
}

/* A line of 7 MB with a backslash every 18 bytes: the time must not grow with the square of it. */
static void test_long_line(void **state)
{
    struct open_task o;
    struct kvl_buf b = { 0 };
    (void)state;
    assert_int_equal(kvl_buf_adds(&b, "{\"question\":\"q\",\"answers\":\"needle\",\"context\":\""),
                     0);
    for (int i = 0; i < 400000; i++) assert_int_equal(kvl_buf_adds(&b, "sixteen letters.\\n"), 0);
    assert_int_equal(kvl_buf_adds(&b, " the needle.\"}\n"), 0);
    write_bytes("long.jsonl", b.data, b.len);
    kvl_buf_free(&b);
    must_open(&o, kvl_task_jsonl, "file=%s/long.jsonl");
    struct kvl_sample s = must_sample(&o, 0, 1000, 0, 1);
    assert_int_equal(s.question[0].flags, KVL_EVIDENCE_WEAK);
    assert_int_equal(s.question[0].n_evidence, 1);
    kvl_sample_free(&s);
    close_task(&o);
}

/* File, line and field. */
static void test_refused(void **state)
{
    static const struct {
        const char *text, *options;
        const char *says[4];
    } rows[] = {
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":\"c\"}\n{\"context\":\"a\",}\n",
          "file=%s/bad.jsonl",
          { "bad.jsonl", "line 2", "byte 16" } },
        { "{\"context\":\"a\",\"answers\":\"c\"}",
          "file=%s/bad.jsonl",
          { "line 1", "\"question\"" } },
        { "{\"context\":\"a\",\"question\":\"b\"}",
          "file=%s/bad.jsonl",
          { "line 1", "\"answers\"" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":[]}",
          "file=%s/bad.jsonl",
          { "line 1", "\"answers\"" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":{}}",
          "file=%s/bad.jsonl",
          { "line 1", "\"answers\"" } },
        { "{\"question\":\"b\",\"answers\":\"c\"}",
          "file=%s/bad.jsonl",
          { "line 1", "\"context\"" } },
        { "7\n", "file=%s/bad.jsonl", { "line 1", "no object" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":[\"c\", \"\"]}",
          "file=%s/bad.jsonl,score=substring",
          { "line 1", "\"answers\"", "any text is right" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":[\"\"]}",
          "file=%s/bad.jsonl,score=all_substrings",
          { "line 1", "\"answers\"", "any text is right" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":[\"x*\"]}",
          "file=%s/bad.jsonl,score=regex",
          { "line 1", "\"answers\"", "any text is right" } },
        { "\n {\"context\":\"caf\xe9\",\"question\":\"b\",\"answers\":\"c\"}",
          "file=%s/bad.jsonl",
          { "line 2", "byte 17", "0xe9" } },
        { "[{\"context\":\"a\",\"question\":\"b\",\"answers\":\"c\"},{\"context\":\"\xc3(\"}]",
          "file=%s/bad.jsonl",
          { "line 2", "byte 13", "0xc3" } },
        { "", "file=%s/bad.jsonl", { "no rows" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":\"c\"}",
          "file=%s/bad.jsonl,score=number",
          { "line 1", "number", "\"c\"" } },
        { "{\"context\":\"a\",\"question\":\"b\",\"answers\":\"c\"}",
          "file=%s/none.jsonl",
          { "none.jsonl", "No such file", ".gz" } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text("bad.jsonl", rows[i].text);
        int code = strstr(rows[i].options, "none") ? KVL_EIO : KVL_EINVAL;
        must_refuse(kvl_task_jsonl, rows[i].options, code, rows[i].says);
    }
    must_refuse(kvl_task_jsonl, "", KVL_EINVAL, (const char *const[]){ "file is missing", NULL });
    must_refuse(kvl_task_longbench, "", KVL_EINVAL,
                (const char *const[]){ "dir is missing", NULL });
    must_refuse(kvl_task_longbench, "dir=%s,name=musique", KVL_EIO,
                (const char *const[]){ "musique.jsonl", NULL });
}

/* ---- groups ---------------------------------------------------------------------------------------------- */

static void write_shared(void)
{
    write_text("shared.jsonl", "{\"context\":\"one\",\"question\":\"1\",\"answers\":\"a\"}\n"
                               "{\"context\":\"two\",\"question\":\"2\",\"answers\":\"b\"}\n"
                               "{\"context\":\"one\",\"question\":\"3\",\"answers\":\"c\"}\n"
                               "{\"context\":\"one\",\"question\":\"4\",\"answers\":\"d\"}\n");
}

/* Questions about one context stand together, as many as are asked for at once. */
static void test_groups(void **state)
{
    static const char *const asked[] = { "1\nAnswer:", "3\nAnswer:", "4\nAnswer:", "2\nAnswer:" };
    struct open_task o;
    (void)state;
    write_shared();
    must_open(&o, kvl_task_jsonl, "file=%s/shared.jsonl");
    assert_int_equal(o.source->n_groups, 2);
    assert_int_equal(o.source->group[0], 3);
    assert_int_equal(o.source->group[1], 1);
    for (int32_t n = 1; n <= 4; n++)
        for (int32_t index = 0, i = 0; i < 4; index++) {
            struct kvl_sample s = must_sample(&o, 0, 1000, index, n);
            assert_true(s.n_questions <= n);
            for (int32_t q = 0; q < s.n_questions; q++) {
                const char *text = s.question[q].text;
                assert_string_equal(text + strlen(text) - strlen(asked[i]), asked[i]);
                i++;
            }
            kvl_sample_free(&s);
        }
    struct kvl_sample s;
    struct kvl_err err = { 0 };
    assert_int_equal(try_sample(&o, 0, 1000, 4, 1, &s, &err), KVL_EINVAL);
    close_task(&o);
}

/* The same order always, groups stay together, and the hash is that of the contents. */
static void test_order(void **state)
{
    struct open_task a, b, c;
    (void)state;
    write_shared();
    must_open(&a, kvl_task_jsonl, "file=%s/shared.jsonl,order=shuffled");
    must_open(&b, kvl_task_jsonl, "file=%s/shared.jsonl,order=shuffled");
    assert_int_equal(a.source->group[0] + a.source->group[1], 4);
    assert_int_equal(a.source->group[0], b.source->group[0]);
    assert_true(a.source->hash == b.source->hash);
    write_text("shared.jsonl", "{\"context\":\"one\",\"question\":\"1\",\"answers\":\"a\"}\n");
    must_open(&c, kvl_task_jsonl, "file=%s/shared.jsonl,order=shuffled");
    assert_true(a.source->hash != c.source->hash);
    close_task(&a);
    close_task(&b);
    close_task(&c);
}

static void test_turns(void **state)
{
    struct open_task o;
    (void)state;
    write_text("turns.jsonl",
               "{\"id\":3,\"context\":\"one\",\"multi_turns\":[{\"input\":\"1\",\"answer\":\"a\"},"
               "{\"input\":\"2\",\"answer\":5}]}\n");
    must_open(&o, kvl_task_jsonl,
              "file=%s/turns.jsonl,turns=multi_turns,question=input,answers=answer");
    assert_int_equal(o.source->group[0], 2);
    struct kvl_sample s = must_sample(&o, 0, 1000, 0, 8);
    assert_int_equal(s.n_questions, 2);
    assert_non_null(strstr(s.question[1].row, "\"turn\":1"));
    assert_non_null(strstr(s.question[1].row, "\"id\":3"));
    assert_non_null(strstr(s.question[1].row, "\"gold\":[\"5\"]"));
    kvl_sample_free(&s);
    close_task(&o);
}

/* ---- the cut ------------------------------------------------------------------------------------------------ */

static void write_numbers(const char *answer)
{
    struct kvl_buf b = { 0 };
    assert_int_equal(kvl_buf_adds(&b, "{\"question\":\"q\",\"answers\":\""), 0);
    assert_int_equal(kvl_buf_printf(&b, "%s\",\"context\":\"", answer), 0);
    for (int i = 100; i < 300; i++) assert_int_equal(kvl_buf_printf(&b, "n%d ", i), 0);
    assert_int_equal(kvl_buf_adds(&b, "\"}\n"), 0);
    write_bytes("numbers.jsonl", b.data, b.len);
    kvl_buf_free(&b);
}

/* What LongBench's script does, by hand: tokens of the whole prompt, halves, texts of both, joined. */
static void halves(int32_t i_tokenizer, const char *prompt, int32_t length, struct kvl_buf *out)
{
    const struct kvl_tokenizer *t = tokenizers[i_tokenizer].t;
    struct kvl_tokens all = { 0 };
    assert_int_equal(kvl_encode(t, prompt, strlen(prompt), KVL_ENCODE_BOS, &all, NULL), KVL_OK);
    int32_t half = length / 2;
    assert_true(all.n > length);
    assert_int_equal(kvl_decode(t, all.id, half, false, true, out, NULL), KVL_OK);
    assert_int_equal(kvl_decode(t, all.id + all.n - half, half, false, false, out, NULL), KVL_OK);
    kvl_tokens_free(&all);
}

static void test_middle(void **state)
{
    (void)state;
    write_numbers("n101");
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t length = 60; length < 110; length += 7) {
            struct open_task o;
            struct kvl_buf want = { 0 }, whole = { 0 };
            must_open(&o, kvl_task_jsonl, "file=%s/numbers.jsonl");
            struct kvl_sample s = must_sample(&o, k, 100000, 0, 1);
            assert_int_equal(kvl_buf_printf(&whole, "%s%s", s.context, s.question[0].text), KVL_OK);
            kvl_sample_free(&s);
            halves(k, whole.data, length, &want);
            s = must_sample(&o, k, length, 0, 1);
            struct kvl_tokens again = { 0 };
            kvl_encode(tokenizers[k].t, want.data, want.len, KVL_ENCODE_BOS, &again, NULL);
            if (again.n <= length) must_read(&s, 0, want.data);
            kvl_tokens_free(&again);
            kvl_sample_free(&s);
            kvl_buf_free(&want);
            kvl_buf_free(&whole);
            close_task(&o);
        }
}

/* Evidence that is cut off is said to be lost; what is left is where it is said to be. */
static void test_lost(void **state)
{
    static const struct {
        const char *answer, *options;
        bool lost;
    } rows[] = {
        { "n101", "file=%s/numbers.jsonl", false },
        { "n298", "file=%s/numbers.jsonl", false },
        { "n200", "file=%s/numbers.jsonl", true },
        { "n298", "file=%s/numbers.jsonl,truncate=end", true },
        { "n10", "file=%s/numbers.jsonl", false }, /* no word of the context: never was there */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct open_task o;
        write_numbers(rows[i].answer);
        must_open(&o, kvl_task_jsonl, rows[i].options);
        struct kvl_sample s = must_sample(&o, 0, 120, 0, 1);
        const struct kvl_question *q = &s.question[0];
        assert_int_equal((q->flags & KVL_EVIDENCE_LOST) != 0, rows[i].lost);
        if (q->n_evidence > 0) check_span(&s, q->evidence[0].span[0], rows[i].answer);
        assert_true((q->n_evidence > 0) == (!rows[i].lost && strlen(rows[i].answer) == 4));
        kvl_sample_free(&s);
        close_task(&o);
    }
}

/* A question that leaves no room, and a prompt that must not be cut. */
static void test_too_long(void **state)
{
    struct open_task o;
    struct kvl_sample s;
    struct kvl_err err = { 0 };
    (void)state;
    write_numbers("x");
    must_open(&o, kvl_task_jsonl, "file=%s/numbers.jsonl");
    assert_int_equal(try_sample(&o, 0, 8, 0, 1, &s, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "8 tokens"));
    close_task(&o);
    kvl_err_clear(&err);
    must_open(&o, kvl_task_jsonl, "file=%s/numbers.jsonl,truncate=none");
    assert_int_equal(try_sample(&o, 0, 100, 0, 1, &s, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "truncate=none"));
    close_task(&o);
}

/* Parts that are tokenised by themselves have the tokens of the whole. */
static void test_border(void **state)
{
    (void)state;
    write_numbers("n200");
    for (int32_t k = 0; k < n_tokenizers; k++) {
        struct open_task o;
        must_open(&o, kvl_task_jsonl, "file=%s/numbers.jsonl");
        struct kvl_sample s = must_sample(&o, k, 100000, 0, 1);
        struct want w = { .i_tokenizer = k };
        struct kvl_buf text = { 0 };
        assert_int_equal(kvl_buf_printf(&text, "%s%s", s.context, s.question[0].text), KVL_OK);
        struct kvl_tokens all = encode(&w, text.data, KVL_ENCODE_BOS);
        struct kvl_tokens rest = encode(&w, s.question[0].text, KVL_ENCODE_CONTINUE);
        assert_int_equal(all.n, s.tokens.n + rest.n);
        assert_memory_equal(all.id, s.tokens.id, (size_t)s.tokens.n * sizeof *all.id);
        assert_memory_equal(all.id + s.tokens.n, rest.id, (size_t)rest.n * sizeof *rest.id);
        kvl_tokens_free(&all);
        kvl_tokens_free(&rest);
        kvl_buf_free(&text);
        kvl_sample_free(&s);
        close_task(&o);
    }
}

/* ---- benchmarks -------------------------------------------------------------------------------------------------- */

struct form {
    const struct kvl_task *task;
    const char *file, *row, *options, *prompt;
    int32_t max_new;
    const char *right, *wrong;
};

static void check_forms(const struct form *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct open_task o;
        char *slash = strchr(rows[i].file, '/');
        if (slash) {
            char dir[64];
            snprintf(dir, sizeof dir, "%.*s", (int)(slash - rows[i].file), rows[i].file);
            (void)mkdir(at(dir), 0755);
        }
        write_text(rows[i].file, rows[i].row);
        must_open(&o, rows[i].task, rows[i].options);
        struct kvl_sample s = must_sample(&o, 0, 100000, 0, 1);
        if (rows[i].prompt) must_read(&s, 0, rows[i].prompt);
        assert_int_equal(s.question[0].max_new_tok, rows[i].max_new);
        must_score(&o, &s, rows[i].right, 1.0);
        must_score(&o, &s, rows[i].wrong, 0.0);
        kvl_sample_free(&s);
        close_task(&o);
    }
}

static void test_longbench(void **state)
{
    const struct form rows[] = {
        { kvl_task_longbench, "hotpotqa.jsonl",
          "{\"input\": \"Who?\", \"context\": \"Passage 1:\\nBob.\", \"answers\": [\"Bob\", "
          "\"B.\"], "
          "\"length\": 3, \"dataset\": \"hotpotqa\", \"language\": \"en\", \"all_classes\": null, "
          "\"_id\": \"f0\"}\n",
          "dir=%s,name=hotpotqa",
          "Answer the question based on the given passages. Only give me the answer and do not "
          "output any other words.\n\nThe following are given passages.\nPassage "
          "1:\nBob.\n\nAnswer "
          "the question based on the given passages. Only give me the answer and do not output any "
          "other words.\n\nQuestion: Who?\nAnswer:",
          32, " The Bob", "Alice" },
        { kvl_task_longbench, "trec_e.jsonl",
          "{\"input\": \"Question: x\\nType:\", \"context\": \"Question: y\\nType: Date\", "
          "\"answers\": [\"Date\"], \"length\": 3, \"all_classes\": [\"Date\", \"Place\"], "
          "\"_id\": "
          "\"f0\"}\n",
          "dir=%s,name=trec_e",
          "Please determine the type of the question below. Here are some examples of "
          "questions.\n\nQuestion: y\nType: Date\nQuestion: x\nType:",
          64, "\nDate\nPlace", "Place\nDate" },
    };
    (void)state;
    check_forms(rows, sizeof rows / sizeof *rows);
}

static void test_infinitebench(void **state)
{
    const struct form rows[] = {
        { kvl_task_infinitebench, "passkey.jsonl",
          "{\"id\": 0, \"context\": \"The pass key is 07143. Remember it. 07143 is the pass "
          "key.\\n\", "
          "\"input\": \"What is the pass key?\", \"answer\": [\"07143\"], \"len\": 1, "
          "\"options\": []}\n",
          "dir=%s,name=passkey",
          "There is an important info hidden inside a lot of irrelevant text. Find it and memorize "
          "it. I will quiz you about the important information.\n\nThe pass key is 07143. Remember "
          "it. 07143 is the pass key.\n\n\nWhat is the pass key?\n\nThe pass key is",
          6, " 07143.", " 7143" },
        { kvl_task_infinitebench, "longbook_choice_eng.jsonl",
          "{\"id\": 0, \"context\": \"Book.\", \"input\": \"Who?\", \"answer\": [\"Bo\"], "
          "\"options\": "
          "[\"Al\", \"Bo\", \"Cy\", \"Di\"]}\n",
          "dir=%s,name=longbook_choice_eng",
          "Read the book and answer the question.\n\nBook.\n\nQuestion: Who?\nA. Al\nB. Bo\nC. "
          "Cy\nD. "
          "Di\n\nThe letter of the correct answer is",
          40, "B", "C" },
        { kvl_task_infinitebench, "math_find.jsonl",
          "{\"id\": 0, \"context\": \"[1, 2]\", \"input\": \"You should answer. The largest number "
          "of "
          "the list is:\", \"answer\": 2, \"options\": \"\"}\n",
          "dir=%s,name=math_find",
          "What is the largest number in the following list?\n\n[1, 2]\n\nYou should answer. The "
          "largest number of the list is:",
          3, " 2", " 3" },
        { kvl_task_infinitebench, "code_run.jsonl",
          "{\"id\": 0, \"context\": \"def func_3(x):\", \"input\": \"Please give me the exact "
          "number "
          "of the return value of func_3(-7).\", \"answer\": -4, \"options\": \"\"}\n",
          "dir=%s,name=code_run",
          "There is a function called func_3 in the following Python code.\n\ndef "
          "func_3(x):\n\nPlease compute the exact value of func_3(-7). The value of func_3(-7) is",
          5, " -4.", "4" },
        { kvl_task_infinitebench, "math_calc.jsonl",
          "{\"id\": 0, \"context\": \"1 + 2\", \"input\": \"\", \"answer\": [[1, 3]], \"options\": "
          "\"\"}\n",
          "dir=%s,name=math_calc",
          "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 + "
          "4\nValues: [1, 4, 8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, 3]\n\nExpression: "
          "1 + "
          "2\nValues:",
          30000, "[1, 3]", "[3]" },
    };
    (void)state;
    check_forms(rows, sizeof rows / sizeof *rows);
}

#define NIAH                                                                                       \
    "A special magic number is hidden.\\nOne of the special magic numbers for long-fox is: "       \
    "1234567.\\nWhat is the special magic number for long-fox mentioned in the provided text?"

static void test_ruler(void **state)
{
    const struct form rows[] = {
        { kvl_task_ruler, "niah_single_1/validation.jsonl",
          "{\"index\": 0, \"input\": \"" NIAH "\", \"outputs\": [\"1234567\"], \"length\": 9, "
          "\"answer_prefix\": \" The number is\", \"token_position_answer\": 3}\n",
          "dir=%s,name=niah_single_1",
          "A special magic number is hidden.\nOne of the special magic numbers for long-fox is: "
          "1234567.\nWhat is the special magic number for long-fox mentioned in the provided text? "
          "The number is",
          128, " 1234567.", "123456" },
        { kvl_task_ruler, "niah_single_2/validation.jsonl",
          "{\"index\": 0, \"input\": \"" NIAH "\", \"outputs\": [\"1234567\"], \"length\": 9}\n",
          "dir=%s,name=niah_single_2",
          "A special magic number is hidden.\nOne of the special magic numbers for long-fox is: "
          "1234567.\nWhat is the special magic number for long-fox mentioned in the provided text?",
          128, " 1234567.", "123456" },
    };
    struct open_task o;
    (void)state;
    check_forms(rows, sizeof rows / sizeof *rows);
    must_open(&o, kvl_task_ruler, "dir=%s,name=niah_single_1");
    struct kvl_sample s = must_sample(&o, 0, 100000, 0, 1);
    const struct kvl_question *q = &s.question[0];
    assert_int_equal(strncmp(q->text, "\nWhat is", 8), 0);
    assert_int_equal(q->flags, 0);
    check_span(&s, q->evidence[0].span[0], "1234567");
    kvl_sample_free(&s);
    close_task(&o);
    must_open(&o, kvl_task_ruler, "dir=%s,name=niah_single_1,control=no_context");
    assert_true(o.source->control);
    s = must_sample(&o, 0, 100000, 0, 1);
    assert_null(strstr(s.context, "1234567"));
    kvl_sample_free(&s);
    close_task(&o);
}

/* The answer prefix by a field of the row, or at the end of the input of older files, by task. */
static void test_ruler_prefix(void **state)
{
    static const struct {
        const char *name, *input, *field, *prefix;
    } rows[] = {
        { "niah_single_3", NIAH, " The special magic number for long-fox is",
          " The special magic number for long-fox is" },
        { "niah_single_3", NIAH " The special magic number for long-fox is", NULL,
          " The special magic number for long-fox is" },
        { "niah_single_3", NIAH, NULL, "" },
        { "niah_multiquery",
          "Some special magic numbers are hidden.\\nWhat are all the special magic numbers for a, "
          "and b? The special magic numbers for a, and b are",
          NULL, " The special magic numbers for a, and b are" },
        { "vt",
          "VAR A = 1\\nQuestion: Find all. Answer: A\\n\\nVAR B = 2\\nQuestion: Find all. Answer: "
          "They are: ",
          NULL, " Answer: They are: " },
        { "cwe", "1. a\\nQuestion: Which? Answer: They are: 1. b\\n2. c\\nQuestion: Which?",
          " Answer: The top 10 are:", " Answer: The top 10 are:" },
        { "fwe", "a b\\nQuestion: Which?", " Answer: They are:", " Answer: They are:" },
        { "qa_1",
          "Documents. Answer: no.\\n\\nAnswer the question based on them.\\n\\nQuestion: Who? "
          "Answer:",
          NULL, " Answer:" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct open_task o;
        char text[1024], name[64];
        snprintf(text, sizeof text,
                 "{\"index\": 0, \"input\": \"%s\", \"outputs\": [\"1234567\"]%s%s%s}\n",
                 rows[i].input, rows[i].field ? ", \"answer_prefix\": \"" : "",
                 rows[i].field ? rows[i].field : "", rows[i].field ? "\"" : "");
        snprintf(name, sizeof name, "%s.jsonl", rows[i].name);
        write_text(name, text);
        snprintf(name, sizeof name, "dir=%%s,name=%s", rows[i].name);
        must_open(&o, kvl_task_ruler, name);
        for (int32_t k = 0; k < n_tokenizers; k++) {
            struct kvl_sample s = must_sample(&o, k, 100000, 0, 1);
            const struct kvl_question *q = &s.question[0];
            assert_int_equal(q->n_prefix, strlen(rows[i].prefix));
            assert_string_equal(q->text + strlen(q->text) - q->n_prefix, rows[i].prefix);
            kvl_sample_free(&s);
        }
        close_task(&o);
    }
}

/* As run_generation.py writes it: sessions by their dates, as JSON of Python or as text, marks left out. */
static const char lme_row[] =
    "[{\"question_id\": \"q1\", \"question_type\": \"multi-session\", \"question\": \"Which "
    "pet?\", "
    "\"answer\": \"a cat\", \"question_date\": \"2023/05/30 (Tue) 23:40\", "
    "\"haystack_dates\": [\"2023/05/21 (Sun) 10:00\", \"2023/05/20 (Sat) 02:21\"], "
    "\"haystack_session_ids\": [\"s_2\", \"answer_1\"], \"haystack_sessions\": [[{\"role\": "
    "\"user\", "
    "\"content\": \" Hi\\u00e9 \\ud83d\\ude00\\n\"}], [{\"role\": \"user\", \"content\": \"I have "
    "a "
    "\\\"cat\\\".\", \"has_answer\": true}, {\"role\": \"assistant\", \"content\": \"Nice.\", "
    "\"has_answer\": "
    "false}]], \"answer_session_ids\": [\"answer_1\"]}]";

#define LME_HEAD                                                                                   \
    "I will give you several history chats between you and a user. Please answer the question "    \
    "based on the relevant chat history."
#define LME_ASK "\n\nCurrent Date: 2023/05/30 (Tue) 23:40\nQuestion: Which pet?\n"

static void check_lme(const char *options, const char *prompt, const char *evidence)
{
    struct open_task o;
    must_open(&o, kvl_task_longmemeval, options);
    struct kvl_sample s = must_sample(&o, 0, 4096, 0, 1);
    must_read(&s, 0, prompt);
    const struct kvl_question *q = &s.question[0];
    assert_int_equal(q->n_evidence, 1);
    assert_int_equal(q->flags, 0);
    check_span(&s, q->evidence[0].span[0], evidence);
    must_score(&o, &s, "a cat", 1.0);
    kvl_sample_free(&s);
    close_task(&o);
}

static void test_longmemeval(void **state)
{
    struct open_task o;
    (void)state;
    write_text("longmemeval_s.json", lme_row);
    check_lme(
        "dir=%s",
        LME_HEAD
        "\n\n\nHistory Chats:\n\n"
        "\n### Session 1:\nSession Date: 2023/05/20 (Sat) 02:21\nSession Content:\n\n"
        "[{\"role\": \"user\", \"content\": \"I have a \\\"cat\\\".\"}, {\"role\": \"assistant\", "
        "\"content\": \"Nice.\"}]\n"
        "\n### Session 2:\nSession Date: 2023/05/21 (Sun) 10:00\nSession Content:\n\n"
        "[{\"role\": \"user\", \"content\": \" Hi\\u00e9 \\ud83d\\ude00\\n\"}]\n" LME_ASK "Answer:",
        "{\"role\": \"user\", \"content\": \"I have a \\\"cat\\\".\"}");
    check_lme("dir=%s,history=nl,reading=con,score=substring",
              LME_HEAD
              " Answer the question step by step: first extract all the relevant information, and "
              "then reason over the information to get the answer.\n\n\nHistory Chats:\n\n"
              "\n### Session 1:\nSession Date: 2023/05/20 (Sat) 02:21\nSession Content:\n\n\n"
              "user: I have a \"cat\".\n\nassistant: Nice.\n"
              "\n### Session 2:\nSession Date: 2023/05/21 (Sun) 10:00\nSession Content:\n\n\n"
              "user: Hi\u00e9 \U0001f600\n" LME_ASK "Answer (step by step):",
              "user: I have a \"cat\".");
    must_open(&o, kvl_task_longmemeval, "dir=%s,reading=con");
    struct kvl_sample s = must_sample(&o, 0, 4096, 0, 1);
    assert_int_equal(s.question[0].max_new_tok, 800);
    must_score(&o, &s, "the cat, I think", 0.5); /* cat i think: 1 / 3 and 1 / 1 */
    kvl_sample_free(&s);
    close_task(&o);
    /* The end of a history is cut: evidence in its first session stays. */
    must_open(&o, kvl_task_longmemeval, "dir=%s");
    int32_t whole = 0;
    s = must_sample(&o, 0, 4096, 0, 1);
    for (whole = s.tokens.n; s.question[0].n_evidence; whole -= 8) {
        kvl_sample_free(&s);
        s = must_sample(&o, 0, whole, 0, 1);
    }
    assert_null(strstr(s.context, "Session 2"));
    assert_int_equal(s.question[0].flags, KVL_EVIDENCE_LOST);
    kvl_sample_free(&s);
    close_task(&o);
    write_text("longmemeval_m_cleaned.json", "[{\"question\": \"q\", \"answer\": 3}]");
    must_refuse(kvl_task_longmemeval, "dir=%s,name=m", KVL_EINVAL,
                (const char *const[]){ "line 1", "\"haystack_sessions\" is missing", NULL });
}

static void test_helmet(void **state)
{
    const struct form rows[] = {
        { kvl_task_helmet, "json_kv/test_k105_dep6.jsonl",
          "{\"context\": \"JSON data:\\n{\\\"k\\\": \\\"v-7\\\"}\", \"question\": \"k\", "
          "\"answer\": "
          "\"v-7\", \"num_kvs\": 1, \"demos\": [[\"a\", \"1\"], [\"b\", \"2\"], [\"c\", \"3\"]]}\n",
          "dir=%s,name=json_kv_8k",
          "JSON data:\n{\"k\": \"v-7\"}\n\nExtract the value corresponding to the specified key in "
          "the "
          "JSON object below.\n\nKey: a\nCorresponding value: 1\n\nKey: b\nCorresponding value: "
          "2\n\nKey: k\nCorresponding value:",
          100, "It is V7.", "7" },
        { kvl_task_helmet, "niah_multivalue.jsonl",
          "{\"context\": \"One of the special magic numbers for x is: 12.\", \"query\": \"x\", "
          "\"type_needle_v\": \"numbers\", \"outputs\": [\"12\"]}\n",
          NULL,
          "Some special magic numbers are hidden within the following text. Make sure to memorize "
          "it. I will quiz you about the numbers afterwards.\nOne of the special magic numbers for "
          "x "
          "is: 12.\nWhat are all the special magic numbers for x mentioned in the provided "
          "text?\nThe special magic numbers for x mentioned in the provided text are",
          50, "12", "1" },
    };
    struct open_task o;
    (void)state;
    check_forms(rows, 1);
    must_open(&o, kvl_task_helmet, "dir=%s,name=json_kv_8k");
    struct kvl_sample s = must_sample(&o, 0, 4096, 0, 1);
    const struct kvl_question *q = &s.question[0];
    assert_string_equal(q->text + strlen(q->text) - q->n_prefix, "\nCorresponding value:");
    check_span(&s, q->evidence[0].span[0], "v-7");
    assert_int_equal(q->flags, 0);
    kvl_sample_free(&s);
    close_task(&o);
    (void)mkdir(at("ruler"), 0755);
    (void)mkdir(at("ruler/niah_multivalue"), 0755);
    write_text("ruler/niah_multivalue/validation_16384.jsonl", rows[1].row);
    must_open(&o, kvl_task_helmet, "dir=%s,name=niah_mv_16k");
    s = must_sample(&o, 0, 4096, 0, 1);
    must_read(&s, 0, rows[1].prompt);
    assert_int_equal(s.question[0].max_new_tok, rows[1].max_new);
    assert_string_equal(s.question[0].text + strlen(s.question[0].text) - s.question[0].n_prefix,
                        "\nThe special magic numbers for x mentioned in the provided text are");
    must_score(&o, &s, rows[1].right, 1.0);
    kvl_sample_free(&s);
    close_task(&o);
}

/* Turns of two kinds, each with its own scorer and length. */
static void test_scbench_parts(void **state)
{
    struct open_task o;
    struct kvl_task_score score;
    (void)state;
    write_text("scbench_repoqa_and_kv.jsonl",
               "{\"id\": 1, \"context\": \"def f(): pass\\n{\\\"k\\\": \\\"v7\\\"}\", "
               "\"multi_turns\": [{\"input\": "
               "\"Which function?\", \"answer\": \"def f(): pass\", \"task\": \"scbench_repoqa\"}, "
               "{\"input\": "
               "\" Key k\", \"answer\": \"v7\", \"task\": \"scbench_kv\"}]}\n");
    must_open(&o, kvl_task_scbench, "dir=%s,name=repoqa_and_kv");
    struct kvl_sample s = must_sample(&o, 0, 4096, 0, 2);
    /* White space of the pattern parts questions, that of the file is theirs. */
    assert_string_equal(s.question[0].turn, "Which function?");
    assert_string_equal(s.question[1].turn, " Key k");
    assert_int_equal(s.question[0].max_new_tok, 1024);
    assert_int_equal(s.question[1].max_new_tok, 80);
    o.task->score(&s.question[0], "def f(): pas", &score);
    assert_true(score.official > 0.9 && score.official < 1.0);
    o.task->score(&s.question[1], "it is v7!", &score);
    assert_float_equal(score.official, 1.0, 0.0);
    kvl_sample_free(&s);
    close_task(&o);
    write_text("scbench_summary_with_needles.jsonl",
               "{\"context\": \"a\", \"multi_turns\": [{\"input\": \"b\", \"answer\": \"c\", "
               "\"task\": \"x\"}]}");
    must_refuse(kvl_task_scbench, "dir=%s,name=summary_with_needles", KVL_EINVAL,
                (const char *const[]){ "line 1", "\"task\"", "scbench_summary", NULL });
}

static void test_others(void **state)
{
    const struct form rows[] = {
        { kvl_task_longbench_v2, "data.json",
          "[{\"_id\": \"a\", \"domain\": \"d\", \"sub_domain\": \"s\", \"difficulty\": \"easy\", "
          "\"length\": \"short\", \"question\": \" Who? \", \"choice_A\": \"Al\", \"choice_B\": "
          "\"Bo\", \"choice_C\": \"Cy\", \"choice_D\": \"Di\\n\", \"answer\": \"B\", \"context\": "
          "\"\\nText.\\n\"},\n{\"_id\": \"b\", \"difficulty\": \"hard\", \"length\": \"long\", "
          "\"question\": \"Q\", \"choice_A\": \"1\", \"choice_B\": \"2\", \"choice_C\": \"3\", "
          "\"choice_D\": \"4\", \"answer\": \"C\", \"context\": \"T\"}]",
          "dir=%s,name=short",
          "Please read the following text and answer the question below.\n\n<text>\nText.\n</text>"
          "\n\nWhat is the correct answer to this question: Who?\nChoices:\n(A) Al\n(B) Bo\n(C) "
          "Cy\n"
          "(D) Di\n\nFormat your response as follows: \"The correct answer is (insert answer "
          "here)\".",
          128, "The correct answer is (B).", "B" },
        { kvl_task_scbench, "scbench_kv.jsonl",
          "{\"id\": 0, \"context\": \"JSON data:\\n{\\\"k\\\": \\\"v7\\\"}\", \"multi_turns\": "
          "[{\"input\": \"Key: k\", \"answer\": \"v7\"}, {\"input\": \"Key: l\", \"answer\": "
          "\"v8\"}]}\n",
          "dir=%s,name=kv",
          "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON "
          "data:\n{\"k\": \"v7\"}\n\nKey: k",
          150, "xv7", "v8" },
        { kvl_task_scbench, "scbench_mf.jsonl",
          "{\"id\": 0, \"context\": [1,2, 7], \"multi_turns\": [{\"input\": \"The largest number "
          "is: \", \"answer\": 7}]}\n",
          "dir=%s,name=mf",
          "What is the largest number?\n\n[1, 2, 7]\n\nThe largest number is: ", 5, "7.0", "2" },
        { kvl_task_kv_files, "kv-retrieval-75_keys.jsonl",
          "{\"ordered_kv_records\": [[\"a\", \"1a\"], [\"b\", \"2b\"], [\"c\", \"3c\"]], \"key\": "
          "\"a\", \"value\": \"1a\"}\n",
          "dir=%s,name=75",
          "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON "
          "data:\n{\"b\": \"2b\",\n \"a\": \"1a\",\n \"c\": \"3c\"}\n\nKey: \"a\"\nCorresponding "
          "value:",
          100, "It is 1A", "2b" },
        { kvl_task_clongeval, "small.jsonl",
          "{\"id\": 1, \"context\": \"{x}\", \"query\": \"k1\", \"answer\": \"北京。\"}\n",
          "dir=%s,name=small",
          "请提取下面 JSON "
          "对象中指定键对应的值。只输出对应键的值，不输出任何其他文字。Json数据如下：\n\n{x}\n\n"
          "键：k1\n值：",
          400, "北京，键：x", "上海" },
        { kvl_task_two_stage_file, "2stage.jsonl",
          "{\"prompt\": \"Task. The Dict is {0: 'red', 1: 'blue'}\\nThe equation is 1 + 0 = "
          "?\\nMUST "
          "x\", \"answers\": [\"blue\"]}\n",
          "dir=%s", "Task. The Dict is {0: 'red', 1: 'blue'}\nThe equation is 1 + 0 = ?\nMUST x",
          200, "1, so Blue", "red" },
        { kvl_task_babilong, "qa4/2k.json",
          "[{\"input\": \"Page. The garden is west of the office.\", \"question\": \"What is west "
          "of "
          "the office?\", \"target\": \"garden\"}]",
          "dir=%s,name=qa4,size=2k", NULL, 20, "Garden. It is", "garden or kitchen" },
        { kvl_task_mrcr, "2needle.jsonl",
          "{\"prompt\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"poem\\\"}, "
          "{\\\"role\\\": "
          "\\\"assistant\\\", \\\"content\\\": \\\"sea\\\"}, {\\\"role\\\": \\\"user\\\", "
          "\\\"content\\\": \\\"again, with k3\\\"}]\", \"answer\": \"k3sea\", "
          "\"random_string_to_prepend\": \"k3\"}\n",
          "dir=%s", "User: poem\nAssistant: sea\nUser: again, with k3\nAssistant:", 8, "k3sea",
          "sea" },
    };
    (void)state;
    check_forms(rows, sizeof rows / sizeof *rows);
}

/* The pair lies where the depth of the request says. */
static void test_depths(void **state)
{
    struct open_task o;
    struct kvl_err err = { 0 };
    (void)state;
    write_text(
        "kv-retrieval-75_keys.jsonl",
        "{\"ordered_kv_records\": [[\"a\", \"1a\"], [\"b\", \"2b\"], [\"c\", \"3c\"]], \"key\": "
        "\"b\", \"value\": \"2b\"}\n");
    must_open(&o, kvl_task_kv_files, "dir=%s,name=75");
    assert_true(o.source->depths);
    static const char *const lists[] = { "{\"b\": \"2b\",\n \"a\": \"1a\",\n \"c\": \"3c\"}",
                                         "{\"a\": \"1a\",\n \"b\": \"2b\",\n \"c\": \"3c\"}",
                                         "{\"a\": \"1a\",\n \"c\": \"3c\",\n \"b\": \"2b\"}" };
    for (int32_t i = 0; i < 3; i++) {
        struct kvl_sample s;
        struct kvl_task_request req = { .tokenizer = tokenizers[0].t,
                                        .length_tok = 4096,
                                        .depth = i / 2.0,
                                        .n_questions = 1,
                                        .opts = o.opts,
                                        .source = o.source };
        if (o.task->generate(&req, &s, &err) != KVL_OK) fail_msg("%s", err.msg);
        assert_non_null(strstr(s.context, lists[i]));
        check_span(&s, s.question[0].evidence[0].span[0], "2b");
        assert_int_equal(s.question[0].flags, 0);
        kvl_sample_free(&s);
    }
    close_task(&o);
}

/* ---- haystacks ---------------------------------------------------------------------------------------- */

static void write_texts(void)
{
    struct kvl_buf b = { 0 };
    (void)mkdir(at("texts"), 0755);
    for (int i = 0; i < 400; i++)
        assert_int_equal(kvl_buf_printf(&b, "Word%d and word%d. ", i, 3 * i), 0);
    write_bytes("texts/b.txt", b.data, b.len);
    write_text("texts/a.txt", "First comes this text. ");
    write_text("texts/notes.md", "Not this one.");
    b.len = 0;
    for (int i = 0; i < 30; i++)
        assert_int_equal(kvl_buf_printf(&b, "{\"text\": \"\u7ecf\u6d4e%d\u3002\"}\n", i), 0);
    write_bytes("zh_finance.jsonl", b.data, b.len);
    write_text("PaulGrahamEssays.jsonl", "{\"text\": \"An essay about work.\"}\n");
    write_text(
        "needles.jsonl",
        "{\"needle\": \"The hidden gold lies on Mars.\", \"retrieval_question\": \"Where?\", "
        "\"arg2\": \"Mars\", \"language\": \"English\"}\n{\"needle\": "
        "\"\u91d1\u5728\u706b\u661f\", "
        "\"retrieval_question\": \"\u54ea\uff1f\", \"arg2\": \"\u706b\u661f\", \"language\": "
        "\"Chinese\"}\n");
    kvl_buf_free(&b);
}

/* As long as asked for but for a few tokens, the needle where its depth says and the answer in it. */
static void check_haystack(const struct kvl_task *task, const char *options, const char *answer)
{
    struct open_task o;
    must_open(&o, task, options);
    assert_true(o.source->depths);
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t d = 0; d <= 4; d++) {
            struct kvl_sample s;
            struct kvl_err err = { 0 };
            struct kvl_task_request req = { .tokenizer = tokenizers[k].t,
                                            .length_tok = 700,
                                            .depth = d / 4.0,
                                            .n_questions = 1,
                                            .seed = 5,
                                            .opts = o.opts,
                                            .source = o.source };
            if (task->generate(&req, &s, &err) != KVL_OK) fail_msg("%s", err.msg);
            const struct kvl_question *q = &s.question[0];
            struct want w = { .i_tokenizer = k };
            struct kvl_tokens rest = encode(&w, q->text, KVL_ENCODE_CONTINUE);
            assert_in_range(s.tokens.n + rest.n, 690, 700);
            check_span(&s, q->evidence[0].span[0], answer ? answer : q->gold);
            assert_true(fabs(q->depth - d / 4.0) < 0.25);
            must_score(&o, &s, q->answer, 1.0);
            kvl_tokens_free(&rest);
            kvl_sample_free(&s);
        }
    close_task(&o);
}

static void test_haystacks(void **state)
{
    struct open_task a, b;
    (void)state;
    write_texts();
    check_haystack(kvl_task_niah_files, "dir=%s/texts", NULL);
    check_haystack(kvl_task_niah_files, "dir=%s/texts,needle=classic",
                   "eat a sandwich and sit in Dolores Park");
    check_haystack(kvl_task_needlebench, "dir=%s,name=en", "Mars");
    check_haystack(kvl_task_needlebench, "dir=%s,name=zh", "火星");
    must_open(&a, kvl_task_niah_files, "dir=%s/texts");
    assert_int_equal(a.source->n_groups, 2);
    struct kvl_sample s = must_sample(&a, 0, 700, 0, 1);
    assert_memory_equal(strstr(s.context, "<book> ") + 7, "First comes this text. Word0", 28);
    kvl_sample_free(&s);
    write_text("texts/a.txt", "First comes that text. ");
    must_open(&b, kvl_task_niah_files, "dir=%s/texts");
    assert_true(a.source->hash != b.source->hash);
    close_task(&a);
    close_task(&b);
    must_refuse(kvl_task_niah_files, "dir=%s/none", KVL_EIO,
                (const char *const[]){ "none", "No such file", NULL });
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),         cmocka_unit_test(test_packed),
        cmocka_unit_test(test_array),         cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_groups),
        cmocka_unit_test(test_order),         cmocka_unit_test(test_turns),
        cmocka_unit_test(test_middle),        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_too_long),      cmocka_unit_test(test_border),
        cmocka_unit_test(test_longbench),     cmocka_unit_test(test_infinitebench),
        cmocka_unit_test(test_ruler),         cmocka_unit_test(test_ruler_prefix),
        cmocka_unit_test(test_longmemeval),   cmocka_unit_test(test_helmet),
        cmocka_unit_test(test_scbench_parts), cmocka_unit_test(test_others),
        cmocka_unit_test(test_depths),        cmocka_unit_test(test_haystacks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
