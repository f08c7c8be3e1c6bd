/* niah_files - a needle in a haystack over a folder of texts (Kamradt 2023).
 *
 * The haystack is the *.txt files in the order of their names (there: of the file system), from the i-th on in
 * context i.  The needle goes behind the full stop before its place.  Its number is drawn for each context, or
 * it is the one that was published, which models know without the haystack.
 *
 * Deviations: the prompt is that of the KV-cache papers without its template; the score is whether the answer
 * is there (there: a language model's judgement; ROUGE-1 in the papers).
 */
#include "haystack.h"

#include <stdio.h>
#include <string.h>

enum { NIAH_FILES_NUMBER = 0, NIAH_FILES_CLASSIC };
static const char *const niah_files_needles[] = { "number", "classic", NULL };

struct niah_files_opts {
    char dir[KVL_OPT_PATH_SIZE];
    int32_t needle, max_new;
};

static const struct kvl_opt niah_files_options[] = {
    { .name = "dir",
      .type = KVL_OPT_PATH,
      .off = offsetof(struct niah_files_opts, dir),
      .def = "",
      .help = "folder of *.txt files, relative to where the program runs" },
    { .name = "needle",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct niah_files_opts, needle),
      .def = "number",
      .choices = niah_files_needles,
      .help = "number: seven random digits; classic: the sandwich in Dolores Park" },
    { .name = "max_new",
      .type = KVL_OPT_INT,
      .off = offsetof(struct niah_files_opts, max_new),
      .def = "50",
      .min = 1,
      .max = 4096,
      .help = "tokens to generate" },
    { 0 },
};

static int niah_files_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)
{
    const struct niah_files_opts *o = opts;
    struct kvl_haystack *h = kvl_alloc(1, sizeof *h);
    if (!h) return kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
    int rc = o->dir[0] ? kvl_haystack_folder(o->dir, ".txt", h, err)
                       : kvl_fail(err, KVL_EINVAL, "dir is missing, want a folder of texts");
    int32_t *group = rc == KVL_OK ? kvl_alloc((size_t)h->n_texts, sizeof *group) : NULL;
    if (rc == KVL_OK && !group) rc = kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
    for (int32_t i = 0; rc == KVL_OK && i < h->n_texts; i++) group[i] = 1;
    h->base.group = group;
    h->base.n_groups = h->n_texts;
    h->base.depths = true;
    if (rc == KVL_OK) {
        *out = &h->base;
        return KVL_OK;
    }
    kvl_haystack_free(h);
    kvl_free(h);
    return rc;
}

static void niah_files_close(struct kvl_task_source *source)
{
    struct kvl_haystack *h = (struct kvl_haystack *)source;
    if (!h) return;
    kvl_free((void *)(uintptr_t)h->base.group);
    kvl_haystack_free(h);
    kvl_free(h);
}

static int niah_files_question(const struct niah_files_opts *o, const char *answer,
                               struct kvl_question *q, struct kvl_err *err)
{
    struct kvl_buf said = { 0 }, gold = { 0 }, row = { 0 };
    int rc = kvl_buf_printf(&said, " %s", answer);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, answer);
    if (rc == KVL_OK)
        rc = kvl_buf_printf(&row, "{\"set\":\"niah\",\"scorer\":\"substring\",\"gold\":[\"%s\"]}",
                            answer);
    q->answer = said.data;
    q->gold = gold.data;
    q->row = row.data;
    q->max_new_tok = o->max_new;
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for answers");
}

static int niah_files_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    const struct niah_files_opts *o = req->opts;
    const struct kvl_haystack *h = (const struct kvl_haystack *)req->source;
    bool classic = o->needle == NIAH_FILES_CLASSIC;
    char number[8], text[128];
    struct kvl_sample s = { 0 };
    struct kvl_rng rng;
    if (!h) return kvl_fail(err, KVL_EINVAL, "niah_files: its folder is not open here");
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "needle"));
    snprintf(number, sizeof number, "%07u", 1000000 + kvl_rng_below(&rng, 9000000));
    snprintf(text, sizeof text, "\nThe number that opens the old gate is %s.\n", number);
    const char *answer = classic ? "eat a sandwich and sit in Dolores Park" : number;
    struct kvl_needle needle = {
        .name = "niah_files",
        .before = "This is a very long story book: <book> ",
        .text = classic ? "\nThe best thing to do in San Francisco is eat a sandwich and sit in "
                          "Dolores Park on a sunny day.\n"
                        : text,
        .answer = answer,
        .question = classic ? " </book>.\nBased on the content of the book, Question: What is the "
                              "best thing to do in San Francisco?\nAnswer:"
                            : " </book>.\nBased on the content of the book, Question: Which number "
                              "opens the old gate?\nAnswer:",
        .depth = req->depth >= 0.0 ? req->depth : (req->index + 0.5) / h->n_texts,
        .first = req->index,
        .sentence = true,
    };
    int rc = kvl_haystack_sample(h, req, &needle, &s, err);
    if (rc == KVL_OK) rc = niah_files_question(o, answer, &s.question[0], err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc;
}

static double niah_files_chance(const void *opts)
{
    (void)opts;
    return 0.0;
}

static const char *niah_files_unofficial(const void *opts)
{
    (void)opts;
    return "the benchmark lets a language model judge";
}

static const struct kvl_task niah_files = {
    .abi = KVL_TASK_ABI,
    .size = sizeof niah_files,
    .name = "niah_files",
    .title = "A needle in texts of yours",
    .paper = "Kamradt, Needle in a Haystack, 2023",
    .help = "a fact at any depth of a folder of texts",
    .version = 1,
    .opts = niah_files_options,
    .opts_size = sizeof(struct niah_files_opts),
    .generate = niah_files_generate,
    .score = kvl_rows_score,
    .chance = niah_files_chance,
    .open = niah_files_open,
    .close = niah_files_close,
    .unofficial = niah_files_unofficial,
};

KVL_TASK_EXPORT(niah_files)
