/* jsonl - questions of a JSON file of yours: fields by name, a prompt, a scorer.
 *
 * The file has an object a line, or is one array of objects; plain, or packed by gzip or zstd.
 */
#include "rows.h"

#include <string.h>

struct jsonl_opts {
    struct kvl_rows_opts rows; /* dir = the file */
    char prompt[KVL_OPT_PATH_SIZE];
    char context[KVL_OPT_STR_SIZE], question[KVL_OPT_STR_SIZE], answers[KVL_OPT_STR_SIZE];
    char answer_prefix[KVL_OPT_STR_SIZE];
    char choices[KVL_OPT_STR_SIZE], id[KVL_OPT_STR_SIZE], evidence[KVL_OPT_STR_SIZE];
    char turns[KVL_OPT_STR_SIZE], split[KVL_OPT_STR_SIZE];
    int32_t score;
    bool first_line;
};

#define JSONL_FIELD(member, text, what)                                                            \
    {                                                                                              \
        .name = #member, .type = KVL_OPT_STR, .off = offsetof(struct jsonl_opts, member),          \
        .def = (text), .help = what                                                                \
    }

static const struct kvl_opt jsonl_options[] = {
    { .name = "file",
      .type = KVL_OPT_PATH,
      .off = offsetof(struct jsonl_opts, rows.dir),
      .def = "",
      .help = "the file, relative to where the program runs" },
    { .name = "prompt",
      .type = KVL_OPT_PATH,
      .off = offsetof(struct jsonl_opts, prompt),
      .def = "{context}\\n\\n{question}\\nAnswer:",
      .help = "text with {context}, {question}, {choices} and other {fields}; \\n is a line end; "
              "@file: the contents of a file" },
    JSONL_FIELD(context, "context",
                "field with the context; a.b looks into objects, a.0 into lists"),
    JSONL_FIELD(question, "question", "field with the question"),
    JSONL_FIELD(answers, "answers", "field with the answer: a text, a number or a list of them"),
    JSONL_FIELD(answer_prefix, "",
                "field with what the answer begins with: it follows the prompt, and in a chat "
                "template it begins the turn of the model"),
    JSONL_FIELD(choices, "",
                "field with a list of choices, of which {choices} makes lines A., B., ..."),
    JSONL_FIELD(id, "id", "field that tells rows apart in exports"),
    JSONL_FIELD(evidence, "",
                "field with the texts of the context that an answer needs; empty: the answers, as "
                "weak evidence"),
    JSONL_FIELD(turns, "", "field with a list of objects: questions about one context"),
    JSONL_FIELD(split, "",
                "text that the question begins with, where the context's field has both"),
    { .name = "score",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct jsonl_opts, score),
      .def = "f1",
      .choices = kvl_scorer_names,
      .help = "how answers are scored" },
    { .name = "first_line",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct jsonl_opts, first_line),
      .def = "false",
      .help = "of a prediction the first line alone is scored" },
    { .name = "order",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct jsonl_opts, rows.order),
      .def = "auto",
      .choices = kvl_rows_orders,
      .help = "rows as the file has them (auto, too), or shuffled, always alike" },
    { .name = "control",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct jsonl_opts, rows.control),
      .def = "none",
      .choices = kvl_rows_controls,
      .help = "no_context: the prompt without the context, once for all policies" },
    { .name = "truncate",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct jsonl_opts, rows.truncate),
      .def = "middle",
      .choices = kvl_rows_truncates,
      .help = "what is cut off a prompt that is longer than the length" },
    { .name = "max_new",
      .type = KVL_OPT_INT,
      .off = offsetof(struct jsonl_opts, rows.max_new),
      .def = "auto",
      .min = 1,
      .max = 65536,
      .help = "tokens to generate; auto: those of the answer and 2" },
    { 0 },
};

/* The prompt's text: a file as it is, else with \n as line ends. */
static int jsonl_prompt(const struct jsonl_opts *o, struct kvl_buf *out, struct kvl_err *err)
{
    if (o->prompt[0] == '@') return kvl_read_file(o->prompt + 1, 1 << 20, out, err);
    int rc = kvl_buf_adds(out, "");
    for (const char *c = o->prompt; *c && rc == KVL_OK; c++) {
        bool end = c[0] == '\\' && c[1] == 'n';
        rc = end ? kvl_buf_adds(out, "\n") : kvl_buf_add(out, c, 1);
        c += end;
    }
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for a prompt");
}

static const char *jsonl_name(const char *field)
{
    return field[0] ? field : NULL;
}

static int jsonl_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)
{
    const struct jsonl_opts *o = opts;
    struct kvl_buf prompt = { 0 };
    if (!o->rows.dir[0])
        return kvl_fail(err, KVL_EINVAL, "file is missing, want a file of JSON lines");
    KVL_TRY(jsonl_prompt(o, &prompt, err));
    struct kvl_rows_kind kind = { .name = "jsonl",
                                  .context = jsonl_name(o->context),
                                  .question = jsonl_name(o->question),
                                  .answers = jsonl_name(o->answers),
                                  .prefix = jsonl_name(o->answer_prefix),
                                  .choices = jsonl_name(o->choices),
                                  .evidence = jsonl_name(o->evidence),
                                  .turns = jsonl_name(o->turns),
                                  .classes = "all_classes",
                                  .id = jsonl_name(o->id),
                                  .keep = { "length" } };
    struct kvl_rows_set set = { .name = "jsonl",
                                .prompt = prompt.data,
                                .scorer = (enum kvl_scorer)o->score,
                                .flags = KVL_ROWS_OWN | KVL_ROWS_USERS |
                                         (o->first_line ? KVL_ROWS_FIRST_LINE : 0u),
                                .mark = jsonl_name(o->split) };
    bool letter = o->score == KVL_SCORE_CHOICE || o->score == KVL_SCORE_CODE_DEBUG;
    if (letter && kind.choices) set.flags |= KVL_ROWS_LETTER;
    return kvl_rows_open(&kind, &set, &o->rows, o->rows.dir, out, err);
}

static double jsonl_chance(const void *opts)
{
    return kvl_scorer_chance((enum kvl_scorer)((const struct jsonl_opts *)opts)->score);
}

static const struct kvl_task jsonl = {
    .abi = KVL_TASK_ABI,
    .size = sizeof jsonl,
    .name = "jsonl",
    .title = "Questions of a JSON file",
    .paper = "none: a file of yours",
    .help = "contexts, questions and answers by the names of their fields",
    .version = 1,
    .opts = jsonl_options,
    .opts_size = sizeof(struct jsonl_opts),
    .generate = kvl_rows_generate,
    .score = kvl_rows_score,
    .chance = jsonl_chance,
    .open = jsonl_open,
    .close = kvl_rows_close,
};

KVL_TASK_EXPORT(jsonl)
