/* needlebench - the single needle of NeedleBench (OpenCompass; Li et al. 2024), English and Chinese.
 *
 * Files: needles.jsonl with needle, retrieval_question, arg2 and language; PaulGrahamEssays.jsonl (English) and
 * zh_finance.jsonl (Chinese) with text.  The needle goes where its depth says, inside of a sentence if need be.
 * official is version 1's score (a fifth of how alike the texts are where the key word is missing), strict
 * version 2's.
 *
 * Deviations: lengths are those of the model's tokenizer (there: of GPT-4's), contexts begin with the i-th text
 * and take the i-th needle (there: both shuffled by Python's generator), the prompt is version 2's.
 */
#include "haystack.h"
#include "jlines.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { NEEDLEBENCH_EN = 0, NEEDLEBENCH_ZH };
static const char *const needlebench_names[] = { "en", "zh", NULL };

struct needlebench_opts {
    char dir[KVL_OPT_PATH_SIZE];
    int32_t name, max_new;
};

static const struct kvl_opt needlebench_options[] = {
    { .name = "dir",
      .type = KVL_OPT_PATH,
      .off = offsetof(struct needlebench_opts, dir),
      .def = "",
      .help = "folder with the files, relative to where the program runs" },
    { .name = "name",
      .alias = "names",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct needlebench_opts, name),
      .def = "en",
      .choices = needlebench_names,
      .help = "language of needle and haystack" },
    { .name = "max_new",
      .type = KVL_OPT_INT,
      .off = offsetof(struct needlebench_opts, max_new),
      .def = "100",
      .min = 1,
      .max = 4096,
      .help = "tokens to generate" },
    { 0 },
};

struct needlebench {
    struct kvl_haystack hay;
    struct kvl_plainfile needles;
    struct kvl_buf row; /* struct kvl_jtext, of the language */
    int32_t n;
    int32_t *group;
};

static void needlebench_close(struct kvl_task_source *source)
{
    struct needlebench *n = (struct needlebench *)source;
    if (!n) return;
    kvl_plainfile_close(&n->needles);
    kvl_buf_free(&n->row);
    kvl_haystack_free(&n->hay);
    kvl_free(n->group);
    kvl_free(n);
}

/* What a row of the needles or of the texts is for. */
struct needlebench_take {
    struct needlebench *n;
    int (*row)(struct needlebench *, struct kvl_jtext, bool zh);
    bool zh;
    struct kvl_err *err;
};

static int needlebench_take(void *user, struct kvl_jtext v, int32_t line)
{
    const struct needlebench_take *t = user;
    int rc = t->row(t->n, v, t->zh);
    if (rc == KVL_EINVAL)
        return kvl_fail(t->err, rc, "line %d: lacks text, needle, retrieval_question or arg2",
                        line);
    return rc == KVL_OK ? rc : kvl_fail(t->err, rc, "out of memory for texts");
}

static int needlebench_rows(const struct kvl_plainfile *f, struct needlebench *n,
                            int (*row)(struct needlebench *, struct kvl_jtext, bool zh), bool zh,
                            struct kvl_err *err)
{
    struct needlebench_take take = { n, row, zh, err };
    const struct kvl_jlines lines = { needlebench_take, NULL, &take, err };
    int rc = kvl_jlines_each(f->data, f->len, &lines);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "%s", f->path);
}

static int needlebench_text(struct needlebench *n, struct kvl_jtext v, bool zh)
{
    struct kvl_jtext text = kvl_jtext_member(v, "text");
    struct kvl_buf plain = { 0 };
    (void)zh;
    if (!kvl_jtext_is_string(text)) return KVL_EINVAL;
    int rc = kvl_jtext_add(text, &plain);
    if (rc == KVL_OK) rc = kvl_haystack_add(&n->hay, plain.data, plain.len);
    kvl_buf_free(&plain);
    return rc;
}

static int needlebench_needle(struct needlebench *n, struct kvl_jtext v, bool zh)
{
    struct kvl_jtext language = kvl_jtext_member(v, "language");
    const char *want = zh ? "\"Chinese\"" : "\"English\"";
    if (language.n != strlen(want) || memcmp(language.s, want, language.n) != 0) return KVL_OK;
    static const char *const fields[] = { "needle", "retrieval_question", "arg2" };
    for (size_t i = 0; i < 3; i++)
        if (kvl_jtext_is_null(kvl_jtext_member(v, fields[i]))) return KVL_EINVAL;
    n->n++;
    n->hay.base.hash = XXH3_64bits_withSeed(v.s, v.n, n->hay.base.hash);
    return kvl_buf_add(&n->row, &v, sizeof v);
}

static int needlebench_read(struct needlebench *n, const struct needlebench_opts *o,
                            struct kvl_err *err)
{
    char path[KVL_OPT_PATH_SIZE + 32];
    bool zh = o->name == NEEDLEBENCH_ZH;
    struct kvl_plainfile hay;
    if (!o->dir[0])
        return kvl_fail(err, KVL_EINVAL, "dir is missing, want the folder of the files");
    snprintf(path, sizeof path, "%s/needles.jsonl", o->dir);
    KVL_TRY(kvl_plainfile_open(path, &n->needles, err));
    snprintf(path, sizeof path, "%s/%s", o->dir,
             zh ? "zh_finance.jsonl" : "PaulGrahamEssays.jsonl");
    KVL_TRY(kvl_plainfile_open(path, &hay, err));
    int rc = needlebench_rows(&hay, n, needlebench_text, zh, err);
    if (rc == KVL_OK) rc = needlebench_rows(&n->needles, n, needlebench_needle, zh, err);
    if (rc == KVL_OK && (n->n == 0 || n->hay.n_texts == 0))
        rc = kvl_fail(err, KVL_EINVAL, "%s: no %s in it", n->n ? hay.path : n->needles.path,
                      n->n ? "text" : "needle of the language");
    kvl_plainfile_close(&hay);
    return rc;
}

static int needlebench_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)
{
    struct needlebench *n = kvl_alloc(1, sizeof *n);
    if (!n) return kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
    int rc = needlebench_read(n, opts, err);
    if (rc == KVL_OK) n->group = kvl_alloc((size_t)n->n, sizeof *n->group);
    if (rc == KVL_OK && !n->group) rc = kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
    for (int32_t i = 0; rc == KVL_OK && i < n->n; i++) n->group[i] = 1;
    n->hay.base.group = n->group;
    n->hay.base.n_groups = n->n;
    n->hay.base.depths = true;
    if (rc == KVL_OK)
        *out = &n->hay.base;
    else
        needlebench_close(&n->hay.base);
    return rc;
}

/* Texts of a needle's row. */
struct needlebench_texts {
    struct kvl_buf needle, around, question, word;
};

static int needlebench_texts(struct kvl_jtext row, bool zh, struct needlebench_texts *t)
{
    struct kvl_buf asked = { 0 };
    int rc = kvl_jtext_add(kvl_jtext_member(row, "needle"), &t->needle);
    if (rc == KVL_OK) rc = kvl_buf_printf(&t->around, "\n%s\n", t->needle.data);
    if (rc == KVL_OK) rc = kvl_jtext_add(kvl_jtext_member(row, "arg2"), &t->word);
    if (rc == KVL_OK) rc = kvl_jtext_add(kvl_jtext_member(row, "retrieval_question"), &asked);
    if (rc == KVL_OK)
        rc = kvl_buf_printf(&t->question, zh ? "</文档>\n\n%s\n" : "</Document>\n\n%s\n",
                            asked.data);
    kvl_buf_free(&asked);
    return rc;
}

static int needlebench_question(const struct needlebench_opts *o, const struct needlebench_texts *t,
                                struct kvl_question *q)
{
    struct kvl_buf answer = { 0 }, gold = { 0 }, row = { 0 };
    int rc = kvl_buf_adds(&answer, t->needle.data);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, t->word.data);
    if (rc == KVL_OK)
        rc = kvl_buf_adds(&row, "{\"set\":\"needlebench\",\"scorer\":\"needlebench\",\"gold\":[");
    if (rc == KVL_OK) rc = kvl_jtext_quote(t->needle.data, t->needle.len, &row);
    if (rc == KVL_OK) rc = kvl_buf_adds(&row, ",");
    if (rc == KVL_OK) rc = kvl_jtext_quote(t->word.data, t->word.len, &row);
    if (rc == KVL_OK) rc = kvl_buf_adds(&row, "]}");
    q->answer = answer.data;
    q->gold = gold.data;
    q->row = row.data;
    q->max_new_tok = o->max_new;
    return rc;
}

static int needlebench_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                                struct kvl_err *err)
{
    const struct needlebench_opts *o = req->opts;
    const struct needlebench *n = (const struct needlebench *)req->source;
    struct needlebench_texts t = { 0 };
    struct kvl_sample s = { 0 };
    bool zh = o->name == NEEDLEBENCH_ZH;
    if (!n) return kvl_fail(err, KVL_EINVAL, "needlebench: its files are not open here");
    const struct kvl_jtext *rows = (const struct kvl_jtext *)(const void *)n->row.data;
    int rc = needlebench_texts(rows[req->index % n->n], zh, &t);
    struct kvl_needle needle = { .name = "needlebench",
                                 .before = zh ? "<文档>" : "<Document>",
                                 .text = t.around.data,
                                 .answer = t.word.data,
                                 .question = t.question.data,
                                 .depth =
                                     req->depth >= 0.0 ? req->depth : (req->index + 0.5) / n->n,
                                 .first = req->index };
    if (rc == KVL_OK) rc = kvl_haystack_sample(&n->hay, req, &needle, &s, err);
    if (rc == KVL_OK) rc = needlebench_question(o, &t, &s.question[0]);
    kvl_buf_free(&t.needle);
    kvl_buf_free(&t.around);
    kvl_buf_free(&t.question);
    kvl_buf_free(&t.word);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "needlebench: out of memory for texts") : rc;
}

static double needlebench_chance(const void *opts)
{
    (void)opts;
    return 0.0;
}

static const struct kvl_task needlebench = {
    .abi = KVL_TASK_ABI,
    .size = sizeof needlebench,
    .name = "needlebench",
    .title = "NeedleBench's single needle, from its files",
    .paper = "Li et al., NeedleBench, 2024",
    .help = "a fact at any depth of English or Chinese texts",
    .version = 1,
    .opts = needlebench_options,
    .opts_size = sizeof(struct needlebench_opts),
    .generate = needlebench_generate,
    .score = kvl_rows_score,
    .chance = needlebench_chance,
    .open = needlebench_open,
    .close = needlebench_close,
};

KVL_TASK_EXPORT(needlebench)
