/* kvl/task.h - a task: a generator of contexts with questions whose answers and evidence are known,
 * and a scorer.
 *
 * One file in datasets/ defines one constant object and ends with KVL_TASK_EXPORT(object); the
 * build finds it.  Compiled with -DKVL_PLUGIN into a shared object, the same source loads with
 * --task-plugin x.so.  `generate` is pure: the same request gives the same bytes on every machine.
 *
 * The prompt is context text followed by question text.  The context is exactly the number of
 * tokens asked for (BOS included) under the tokenizer of the request.  A question's text ends with
 * the answer prefix, so that the model continues it with `answer`.  In a chat template the question stands
 * in the turn of the user, and the answer prefix is where the model's own turn begins.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_TASK_H
#define KVL_TASK_H

#include "kvl/base.h"
#include "kvl/opt.h"
#include "kvl/rng.h"
#include "kvl/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVL_TASK_ABI 6

/* What a task reads that has its contexts from files (kvl_task.open): groups of questions about one
 * context each.  `index` of a request counts parts of groups: a group of n questions is
 * n / n_questions requests, rounded up, so that every question is asked whatever n_questions is. */
struct kvl_task_source {
    uint64_t hash;        /* of all that was read: contents, not names */
    const int32_t *group; /* [n_groups] questions of each */
    int32_t n_groups;
    bool depths;  /* requests have a depth: what is asked for is put there */
    bool control; /* contexts are left out: the same for every policy */
    bool around; /* a chat template comes around a text of the length; false: it counts within it */
};

struct kvl_task_request {
    const struct kvl_tokenizer *tokenizer;
    int32_t
        length_tok; /* exact length of the context in tokens, BOS included; of a task with a source
                           the most that context and question may have */
    double depth;   /* where the asked item lies, 0 = start, 1 = end; < 0 = items spread evenly,
                            question i asks the i-th stratum in shuffled order */
    int32_t before_tok,
        after_tok;       /* tokens of a chat template that count within a length: `length_tok` is
                                      without those before the context, with those behind the question */
    int32_t n_questions; /* wanted; a task that cannot ask that many says so (KVL_EINVAL) */
    uint64_t seed;       /* of this sample: a hash of what it is */
    int32_t index;       /* of this sample among those of its kind: 0, 1, ...; for tasks that read a
                            file from front to back */
    const void *opts;    /* the task's own options struct */
    const struct kvl_task_source *source; /* of a task with `open`, else NULL */
};

/* How a task without questions is read, token by token, and what for. */
enum kvl_read_mode {
    KVL_READ_PREFILL = 0, /* one dense prefill; the last `tokens` are decoded */
    KVL_READ_CHUNK,       /* `chunk` tokens at a time */
    KVL_READ_DECODE,      /* one token at a time */
};

/* The options struct of a task without questions begins with this. */
struct kvl_reading {
    int32_t mode; /* enum kvl_read_mode */
    int32_t tokens, chunk;
    char text[KVL_OPT_STR_SIZE]; /* a file; "" = a text of our own */
};

/* Bytes [begin, end) of the context. */
struct kvl_span {
    size_t begin, end;
};

enum kvl_evidence_kind {
    KVL_EVIDENCE_ALL = 0, /* every span of the group is needed */
    KVL_EVIDENCE_ANY = 1, /* one span of the group is enough */
};

/* Spans needed to answer, in order of use. */
struct kvl_evidence {
    enum kvl_evidence_kind kind;
    struct kvl_span span[4];
    int32_t n_spans;
    /* "" = needed at every answer step.  Otherwise needed only at the steps that run once the answer
     * generated so far holds this text with no letter or digit next to it (two_stage_retr: the sum,
     * before which nobody can know the entry); at no step when it never does. */
    char after[24];
};

enum kvl_question_flags {
    KVL_EVIDENCE_WEAK = 1, /* where the answer's text stands, which need not be why it is right */
    KVL_EVIDENCE_LOST = 2, /* it stood in what was cut off */
};

struct kvl_question {
    char *text;          /* follows the context; ends with the answer prefix */
    char *answer;        /* what a perfect model appends to it */
    char *gold;          /* what the scorers compare with; a part of `answer` */
    int32_t max_new_tok; /* the tokenised answer fits, with room for an end mark */
    double depth;        /* achieved: begin of the evidence / length, both in tokens */
    struct kvl_evidence evidence[4];
    int32_t n_evidence;
    uint32_t flags; /* enum kvl_question_flags */
    char *row; /* a JSON object: what of the file `score` and exports need; NULL: not from a file */
    /* Bytes of the answer prefix, the white space before it included; 0 = the text has none. */
    size_t n_prefix;
    /* Behind the questions before it, of the same context: the right answer as it stands there (NULL: `answer`),
     * and what follows the answer before it where there is no chat template (NULL: `text`).  In a chat template the
     * user says `turn`, which ends as `text` does (NULL: `text` without the white space that it begins with). */
    char *said, *later, *turn;
};

/* Owned by the caller once generated; kvl_sample_free. */
struct kvl_sample {
    char *context;
    struct kvl_tokens tokens; /* of the context, BOS first where the file asks for one */
    struct kvl_question *question;
    int32_t n_questions;
};
KVL_API void kvl_sample_free(struct kvl_sample *s);

/* A stage of the answer that is scored by itself. */
struct kvl_task_sub {
    const char *name; /* static; a key in logs: lower case, digits, _ */
    double value;
};
enum { KVL_TASK_SUBS = 4 };

/* 0 or 1 here; tasks with partial credit use the range between. */
struct kvl_task_score {
    double official; /* compatible with the published scorer */
    double strict;   /* token-boundary exact */
    /* The same names in the same order for all questions of one options text; n_sub = 0: none. */
    struct kvl_task_sub sub[KVL_TASK_SUBS];
    int32_t n_sub;
};

struct kvl_task {
    uint32_t abi, size; /* KVL_TASK_ABI, sizeof(struct kvl_task) */
    const char *name;   /* = file name = key in CLI, log and plots */
    const char *title;
    const char *paper; /* where the task comes from */
    const char *help;
    uint32_t version; /* raised when generated bytes or scores change */
    const struct kvl_opt *opts;
    size_t opts_size;
    /* KVL_EINVAL when the request cannot be met (too short for the items, too many questions). */
    int (*generate)(const struct kvl_task_request *req, struct kvl_sample *out,
                    struct kvl_err *err);
    /* Writes all of *out.  NULL: the task asks nothing, what is measured is how well its text is
     * predicted.  `generate` then makes a context and no question. */
    void (*score)(const struct kvl_question *q, const char *prediction, struct kvl_task_score *out);
    /* Whether its prompts are raw text for every model, as published: few-shot and code tasks.  NULL: an
     * instruct model is asked in its chat template. */
    bool (*raw)(const void *opts);
    /* Probability that an answer picked without the context is right: the chance line. */
    double (*chance)(const void *opts);
    /* Tasks that read files: what they have.  NULL, both: contexts are made.  KVL_EINVAL with file, line
     * and field.  `close` takes NULL. */
    int (*open)(const void *opts, struct kvl_task_source **out, struct kvl_err *err);
    void (*close)(struct kvl_task_source *source);
    /* Why the benchmark's own script gives another number than `official` (static); NULL, both: it does not. */
    const char *(*unofficial)(const void *opts);
};

#ifdef KVL_PLUGIN
#define KVL_TASK_EXPORT(object)                                                                    \
    KVL_API extern const struct kvl_task *const kvl_plugin_task;                                   \
    const struct kvl_task *const kvl_plugin_task = &(object);
#else
#define KVL_TASK_EXPORT(object)                                                                    \
    extern const struct kvl_task *const kvl_task_##object;                                         \
    const struct kvl_task *const kvl_task_##object = &(object);
#endif

#ifdef __cplusplus
}
#endif

#endif
