/* rows.h - benchmarks whose samples are rows of JSON files: one table row says how each is read.
 *
 * A benchmark is a struct kvl_rows_kind (where its files are, how its fields are called) and a list of struct
 * kvl_rows_set (its tasks: file, prompt, scorer).  A prompt is a text with {fields}: members of the row, or
 * names that the kind works out.  What stands up to {context} and the context itself are the sample's context,
 * the rest is its question, so that questions about one context share its prefill.
 *
 * A prompt of more tokens than the length is cut in the middle, as LongBench and InfiniteBench do: of the
 * tokens of the whole prompt the first and the last half stay, as text, which is tokenised again.  Evidence is
 * looked for before and after; where it stood in what was cut off, the question says so.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_ROWS_H
#define KVL_ROWS_H

#include "jtext.h"
#include "kvl/task.h"
#include "plainfile.h"
#include "scorers.h"

enum kvl_rows_order { KVL_ROWS_AUTO = 0, KVL_ROWS_FILE, KVL_ROWS_SHUFFLED };
enum kvl_rows_cut { KVL_ROWS_MIDDLE = 0, KVL_ROWS_END, KVL_ROWS_NONE };

/* Options of every benchmark; a task's own struct begins with it. */
struct kvl_rows_opts {
    char dir[KVL_OPT_PATH_SIZE];
    int32_t name, order, control, truncate, max_new;
    struct kvl_buf *odd; /* no option: rows that cannot be used become lines here; NULL: an error */
};
extern const char *const kvl_rows_orders[];    /* auto, file, shuffled */
extern const char *const kvl_rows_controls[];  /* none, no_context */
extern const char *const kvl_rows_truncates[]; /* middle, end, none */

#define KVL_ROWS_OPTIONS(tag, first, names, cut)                                                   \
    { .name = "dir",                                                                               \
      .type = KVL_OPT_PATH,                                                                        \
      .off = offsetof(struct tag, dir),                                                            \
      .def = "",                                                                                   \
      .help = "folder with the benchmark's files, relative to where the program runs" },           \
        { .name = "name",                                                                          \
          .alias = "names",                                                                        \
          .type = KVL_OPT_ENUM,                                                                    \
          .off = offsetof(struct tag, name),                                                       \
          .def = (first),                                                                          \
          .choices = (names),                                                                      \
          .help = "task of the benchmark; all: those whose files are there" },                     \
        { .name = "order",                                                                         \
          .type = KVL_OPT_ENUM,                                                                    \
          .off = offsetof(struct tag, order),                                                      \
          .def = "auto",                                                                           \
          .choices = kvl_rows_orders,                                                              \
          .help =                                                                                  \
              "rows as the file has them, or shuffled, always alike; auto: shuffled where the "    \
              "file is sorted by depth" },                                                         \
        { .name = "control",                                                                       \
          .type = KVL_OPT_ENUM,                                                                    \
          .off = offsetof(struct tag, control),                                                    \
          .def = "none",                                                                           \
          .choices = kvl_rows_controls,                                                            \
          .help =                                                                                  \
              "no_context: the prompt without the context, once for all policies: what can be "    \
              "answered without it" },                                                             \
        { .name = "truncate",                                                                      \
          .type = KVL_OPT_ENUM,                                                                    \
          .off = offsetof(struct tag, truncate),                                                   \
          .def = (cut),                                                                            \
          .choices = kvl_rows_truncates,                                                           \
          .help = "what is cut off a prompt that is longer than the length" },                     \
    {                                                                                              \
        .name = "max_new", .type = KVL_OPT_INT, .off = offsetof(struct tag, max_new),              \
        .def = "auto", .min = 1, .max = 65536, .help = "tokens to generate; auto: the benchmark's" \
    }

enum kvl_rows_flags {
    KVL_ROWS_FIRST_LINE = 1, /* of a prediction the first line counts */
    KVL_ROWS_BY_DEPTH = 2,   /* rows are sorted by depth: auto order is shuffled */
    KVL_ROWS_EXACT = 4,      /* the answer stands in the context once, where it is asked for */
    KVL_ROWS_NOWHERE = 8,    /* it need not stand there: no evidence */
    KVL_ROWS_LETTER = 16,    /* answers are the option and its letter */
    KVL_ROWS_OWN = 32,       /* the prompt is freed when the file is closed */
    KVL_ROWS_DEPTHS = 64,    /* the depth of a request says where the answer is put */
    KVL_ROWS_RAW = 128,      /* examples or code: no chat template, as published */
    KVL_ROWS_USERS = 256,    /* a file of the user's: answers that every text has are refused */
    KVL_ROWS_LISTED = 512,   /* the scripts make a list of one answer */
};

/* Questions of a task that are another kind by their field `task`; the list ends with a task of NULL. */
struct kvl_rows_part {
    const char *task;
    int32_t max_new;
    enum kvl_scorer scorer;
};

/* A task of a benchmark; the list ends with a name of NULL. */
struct kvl_rows_set {
    const char *name;
    const char *file;   /* what paths of the kind have for %s; NULL: the name */
    const char *prompt; /* NULL: {context}{question} */
    int32_t max_new;    /* 0: as the answer has, and some */
    enum kvl_scorer scorer;
    uint32_t flags;   /* enum kvl_rows_flags */
    const char *mark; /* the question is what stands from the last of these on, parted by '|' */
    const char *
        opens; /* the answer prefix is what stands from the last of these on, where no field has it */
    const char *classes;               /* of the scorer where rows have none, parted by ',' */
    const struct kvl_rows_part *parts; /* NULL: all questions are of one kind */
    /* Of the questions of a row those behind the first one: what follows the answer before them.  NULL: as the
     * first one. */
    const char *later;
    const char
        *unofficial; /* why the official script gives another number; NULL: it gives this one */
};

/* A list of tasks, #define LIST(X) X("name", .member = ...) ..., as sets and as choices of an option. */
#define KVL_ROWS_SET(text, ...)  { .name = text, __VA_ARGS__ },
#define KVL_ROWS_NAME(text, ...) text,

struct kvl_row; /* being read */

/* How a benchmark's files are read.  Field names may be paths, a.b, and NULL where there is none. */
struct kvl_rows_kind {
    const char *name;
    const char *paths[5]; /* in the folder; %s = the set's file */
    const char *context, *question, *answers, *choices, *id;
    const char *prefix;   /* a field with the answer prefix, which stands behind the prompt */
    const char *needs[4]; /* fields that must be there, beside those of prompt and answer */
    const char *evidence; /* a field with the texts that an answer needs; NULL: the answers */
    const char *turns;    /* a list of questions about the context, each with fields of its own */
    const char *classes;
    const char *keep[8]; /* fields that exports need, copied as they are */
    bool typed;    /* scripts take the answers as the file has them: a text, a number, a list */
    bool around;   /* the text is cut to the length, and a chat template comes around it */
    bool odd_back; /* of an odd length the half behind has the token more */
    bool
        halves; /* the script makes texts of both halves of a cut prompt by themselves (LongBench) */
    /* Text of a {name} that no row has, for a prompt; KVL_EINVAL: not known. */
    int (*field)(const struct kvl_row *r, const char *name, struct kvl_buf *out);
    /* Adds the answers, each NUL-terminated; NULL: what `answers` has. */
    int (*gold)(const struct kvl_row *r, struct kvl_buf *out, int32_t *n);
    /* Adds the texts that an answer needs, likewise; NULL: what `evidence` has. */
    int (*proof)(const struct kvl_row *r, struct kvl_buf *out, int32_t *n);
    /* Rows that the set has; NULL: all. */
    bool (*wants)(const struct kvl_row *r);
};

/* A question of a row. */
struct kvl_row {
    const struct kvl_rows_kind *kind;
    const struct kvl_rows_set *set;
    struct kvl_jtext row, turn; /* turn: n = 0 where rows have none */
    int32_t line, i_turn;
    double depth; /* of the request; of KVL_ROWS_DEPTHS */
};
/* A field of the turn, else of the row. */
struct kvl_jtext kvl_row_field(const struct kvl_row *r, const char *path);
/* Appends its text; KVL_EINVAL where it is missing. */
int kvl_row_text(const struct kvl_row *r, const char *path, struct kvl_buf *out);
/* Fills {fields} of a pattern. */
int kvl_row_fill(const struct kvl_row *r, const char *pattern, size_t n, struct kvl_buf *out,
                 struct kvl_err *err);
/* Of a file of the user's: KVL_EINVAL where nonsense scores, too, since an answer is empty or a pattern matches
 * everything.  A benchmark's own script gives such rows what it gives.  `json`: as the row is scored. */
int kvl_row_misses(const struct kvl_row *r, const char *json, struct kvl_err *err);
/* Answers of a list or a single value, lists in it taken apart. */
int kvl_row_answers(struct kvl_jtext v, struct kvl_buf *out, int32_t *n);

/* ---- a task's hooks: call these with its kind and sets ------------------------------------------- */

int kvl_rows_open(const struct kvl_rows_kind *kind, const struct kvl_rows_set *set,
                  const struct kvl_rows_opts *opts, const char *path, struct kvl_task_source **out,
                  struct kvl_err *err);
void kvl_rows_close(struct kvl_task_source *source);
int kvl_rows_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                      struct kvl_err *err);
/* By what the question's row says. */
void kvl_rows_score(const struct kvl_question *q, const char *prediction,
                    struct kvl_task_score *out);

/* A task of rows with no options of its own: `stem`_kind and `stem`_sets (of KVL_ROWS_SET) are there, and
 * `stem`_names; `cut` is what is cut off by itself. */
#define KVL_ROWS_TASK(stem, first, cut, about, article, what)                                      \
    static const struct kvl_opt stem##_options[] = {                                               \
        KVL_ROWS_OPTIONS(kvl_rows_opts, first, stem##_names, cut),                                 \
        { 0 },                                                                                     \
    };                                                                                             \
    static int stem##_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)    \
    {                                                                                              \
        const struct kvl_rows_opts *o = opts;                                                      \
        return kvl_rows_open(&stem##_kind, &stem##_sets[o->name], o, NULL, out, err);              \
    }                                                                                              \
    static double stem##_chance(const void *opts)                                                  \
    {                                                                                              \
        return kvl_scorer_chance(stem##_sets[((const struct kvl_rows_opts *)opts)->name].scorer);  \
    }                                                                                              \
    static const char *stem##_unofficial(const void *opts)                                         \
    {                                                                                              \
        return stem##_sets[((const struct kvl_rows_opts *)opts)->name].unofficial;                 \
    }                                                                                              \
    static bool stem##_raw(const void *opts)                                                       \
    {                                                                                              \
        return stem##_sets[((const struct kvl_rows_opts *)opts)->name].flags & KVL_ROWS_RAW;       \
    }                                                                                              \
    const struct kvl_rows_list kvl_rows_##stem = { &stem##_kind, stem##_sets, stem##_names };      \
    static const struct kvl_task stem = {                                                          \
        .abi = KVL_TASK_ABI,                                                                       \
        .size = sizeof stem,                                                                       \
        .name = #stem,                                                                             \
        .title = about,                                                                            \
        .paper = article,                                                                          \
        .help = what,                                                                              \
        .version = 3,                                                                              \
        .opts = stem##_options,                                                                    \
        .opts_size = sizeof(struct kvl_rows_opts),                                                 \
        .generate = kvl_rows_generate,                                                             \
        .score = kvl_rows_score,                                                                   \
        .chance = stem##_chance,                                                                   \
        .raw = stem##_raw,                                                                         \
        .open = stem##_open,                                                                       \
        .close = kvl_rows_close,                                                                   \
        .unofficial = stem##_unofficial,                                                           \
    }

/* The tasks of a benchmark whose predictions are scored without its files. */
struct kvl_rows_list {
    const struct kvl_rows_kind *kind;
    const struct kvl_rows_set *set;
    const char *const *name; /* of each set; NULL at the end */
};
extern const struct kvl_rows_list kvl_rows_longbench, kvl_rows_longbench_v2, kvl_rows_infinitebench,
    kvl_rows_ruler, kvl_rows_scbench, kvl_rows_kv_files, kvl_rows_clongeval,
    kvl_rows_two_stage_file, kvl_rows_mrcr, kvl_rows_helmet;

/* ---- what rows.c, rows_prompt.c and readers of other files share --------------------------------- */

struct kvl_file_rows {
    struct kvl_task_source base;
    struct kvl_rows_kind kind;
    struct kvl_rows_set set;
    const struct kvl_rows_opts *opts;
    struct kvl_plainfile file;
    struct kvl_row *item; /* [n], group by group */
    int32_t n;
    int32_t *size; /* base.group */
};

int kvl_row_gold(const struct kvl_row *r, struct kvl_buf *out, int32_t *n, struct kvl_err *err);
/* Scorer and tokens to generate: the set's, else its part's.  `task` is NULL where the set has none of the row's. */
struct kvl_rows_part kvl_row_part(const struct kvl_row *r);
/* The answer as the scripts put it before a later question. */
int kvl_row_said(const struct kvl_row *r, struct kvl_buf *out);
/* kvl_question.row */
int kvl_row_json(const struct kvl_row *r, const struct kvl_buf *gold, int32_t n,
                 struct kvl_buf *out, struct kvl_err *err);
int kvl_row_score(const char *json, const char *prediction, struct kvl_answer_score *out,
                  struct kvl_err *err);
const char *kvl_rows_prompt(const struct kvl_rows_set *set);
/* Bytes of a prompt before {context}. */
size_t kvl_rows_head(const char *prompt);

/* A prompt before it is tokenised. */
struct kvl_file_prompt {
    const char *name;       /* of the task, for messages */
    struct kvl_buf context; /* text up to the end of the context ... */
    size_t begin;           /* ... which begins here */
    struct kvl_buf *tail;   /* [n] what follows it, a question each */
    size_t common;          /* bytes at the begin of all tails that are alike */
    size_t *n_prefix;       /* [n] bytes of the answer prefix at the end of each; NULL: none */
    size_t *n_apart;        /* [n] white space of the pattern that each begins with; NULL: none */
    int32_t n;
    int32_t truncate; /* enum kvl_rows_cut */
    bool as_cut;      /* a text that was cut may be a few tokens longer than the length */
    bool odd_back;    /* of kvl_rows_kind */
    bool halves;      /* likewise */
    double depth;     /* of kvl_row, for the caller's own use */
    struct kvl_buf
        *evidence;       /* [n] answers that are evidence, each with a NUL behind it; NULL: none */
    int32_t *n_evidence; /* [n] */
};
/* Makes context, tokens and questions (text, evidence, depth) of a sample; everything else of them is the
 * caller's. */
int kvl_file_prompt_sample(const struct kvl_task_request *req, struct kvl_file_prompt *p,
                           struct kvl_sample *out, struct kvl_err *err);
void kvl_file_prompt_free(struct kvl_file_prompt *p);

#endif
