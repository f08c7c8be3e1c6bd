/* results.h - logs as results: one entry per point of a sweep, its accuracy and its speed together.
 *
 * Cells are joined with the speed records of the same model file, KV type, length, policy, options,
 * budget, execution and device, of their own task if it was timed (a speed record knows no protocol,
 * so that it serves all of them), and of one machine and thread count: those of the cell's run, else
 * those of the latest record.  Speed of another machine or thread count stands for itself.  A record
 * that occurs again (merged logs, a repeated cell) replaces the earlier one of the same point, whatever
 * code both are of.  Cells
 * of one point that differ in the number of contexts or questions are not shown beside each other:
 * the one with the most samples stands for the point.
 *
 * Thread-safe: no; the results belong to one thread.
 */
#ifndef KVL_RESULTS_H
#define KVL_RESULTS_H

#include "json.h"
#include "log.h"
#include "stats.h"

/* Policies that bound a comparison instead of taking part; they stand first or last everywhere. */
enum kvl_bound { KVL_BOUND_FULL, KVL_BOUND_NONE, KVL_BOUND_RANDOM, KVL_BOUND_ORACLE };

/* One point.  Strings are borrowed from the records, "" when a record lacks them; numbers are NaN
 * then.  A point with speed records alone has protocol "" and no accuracy. */
struct kvl_result {
    json_t *record; /* of the cell, or of its first speed record */
    const char *id, *model, *task, *task_options, *protocol, *policy, *options, *budget;
    const char *asked; /* options that were given; all of them in older logs */
    const char *exec, *prefill, *device, *code, *run;
    const char *chat, *system;        /* template and its system text; "" without */
    const char *sampling;             /* "" for greedy answers */
    const char *model_hash, *kv_type; /* of the run's model file and store */
    const char *prefill_type, *decode_act, *prefill_kv;
    const char *host;         /* of the speed, or of the run of a cell without any */
    double threads;           /* likewise */
    const char *gpu, *driver; /* of the run; "" on the CPU */
    char *set;   /* what tells its block from others of that model: ", seed 3"; else "" */
    char *label; /* policy, with the options that tell it from others of the same policy */
    char *shown; /* the label in figures: with a star where any result of the label is stale */
    char *
        task_label; /* task, with the options that are not the task's defaults, and what its scores are not */
    enum kvl_bound bound;
    bool is_text; /* a cell of texts: no accuracy, but nll and ppl */
    bool is_cell;
    bool stale;      /* its answers or its speed are of other code than the newest runs */
    bool outdone;    /* another cell of the same point has more samples */
    int64_t version; /* of the policy */
    double length_tok, depth, budget_tok, seed;
    struct kvl_interval official, strict; /* of scores: by icc, not the record's */
    double recall;                        /* of retrieving lanes (lane_recall.h); NaN: not known */
    struct kvl_interval recall_best;      /* of the best layer */
    struct kvl_interval nll, ppl;         /* nats per token; its exponential */
    /* Beside full attention on the same tokens, of texts or of reference passes of questions: KL in nats, and the share
     * of tokens of which the best next one is the same; NaN: not compared */
    struct kvl_interval kl, top1;
    bool over_blocks; /* their interval is over stretches of one text */
    double n, n_eff, n_contexts, n_errors, n_tok;
    double n_planned; /* answers or texts of an unfinished cell in the end; NaN: it is finished */
    double icc; /* correlation of official scores within contexts, over the cells of the task */
/* What was observed of its sessions (log/fields.def); the tiers' numbers NaN where nothing was in the host's. */
#define OBSERVED(member, ...) double member;
#define TIER(member, ...)     double member;
#include "fields.def"
    /* Tokens per lane that attention read, mean over all layers, dense ones included; of the selecting layers
     * alone where the log does not tell the model's shape. */
    double read_tok;
    double chance, prefill_tok_per_s;
    struct kvl_interval decode; /* tokens per second: median, least and most over the repeats */
    double
        attention_ns; /* of all timed steps, choosing and bookkeeping included: median over the repeats */
    double
        waits; /* of the host for a GPU, per token: median over the repeats; NaN: not timed on one */
    size_t n_speed;
};

/* A sample without its text; `cell` is kvl_result_key of the cell's id, `point` and `run` those of its point
 * and its run. */
struct kvl_result_sample {
    uint64_t cell, point, run;
    int64_t context, question;
    int64_t text;            /* that the context is of: the observation */
    double official, strict; /* NaN when it failed */
    double nll;              /* of a text; NaN when it failed or is none */
    double recall;           /* best layer; NaN when it is not known */
    double depth;            /* of the evidence, 0 to 1; NaN when it is not known */
    double retrieved;        /* of retrieving lanes, likewise: kvl_results_load_lanes alone */
    uint64_t prompt;         /* hash of the tokens of the prompt; 0: an older log */
    const char *error;       /* why it failed, a key of `failures`; NULL when it did not */
    size_t order;            /* in the log */
};

/* The option of a task that leaves contexts out. */
#define KVL_CONTROL_NO_CONTEXT "control=no_context"

struct kvl_results {
    struct kvl_result *result; /* in the order of a table: blocks, bounds, labels, budgets */
    size_t n;                  /* of the tables */
    size_t n_all;              /* behind those: cells of the same points with fewer samples */
    struct kvl_result_sample *sample; /* by cell, context, question; the latest of each */
    size_t n_samples, n_failed_samples;
    json_t *failures;               /* object: message -> how many samples failed with it */
    size_t n_partial;               /* cells that are told so far as they are there */
    size_t n_unfinished;            /* cells that have samples but neither cell nor error record */
    size_t n_stopped;               /* cells that have an error record and no result after it */
    size_t n_speed;                 /* speed records */
    json_t *runs, *errors, *speeds; /* arrays of records; errors: of cells without a later result */
    json_t *analyses;               /* object: id -> the latest record of that analysis */
    json_t *code;                   /* `sources` of the runs, of each name the newest */
    json_t *newest_run;             /* borrowed from `runs`; NULL when there is none */
    bool some;                      /* read of some cells alone: what is left out is not missing */
    bool has_no_context;            /* some result has KVL_CONTROL_NO_CONTEXT */
    size_t n_setups;                /* machines and thread counts that speed was measured with */
    struct kvl_log_health health;
};

/* Reads all files behind `words`.  Errors as kvl_log_paths and kvl_log_read. */
int kvl_results_load(char *const *words, size_t n_words, struct kvl_results *out,
                     struct kvl_err *err);
/* The same, and `retrieved` of samples: while it reads that takes 4 bytes per sample and lane. */
int kvl_results_load_lanes(char *const *words, size_t n_words, struct kvl_results *out,
                           struct kvl_err *err);
/* As kvl_results_load, of the cells alone that `keep` wants; NULL wants all. */
typedef bool (*kvl_results_keep_fn)(const char *cell, const void *user);
int kvl_results_load_some(char *const *words, size_t n_words, kvl_results_keep_fn keep,
                          const void *user, struct kvl_results *out, struct kvl_err *err);
void kvl_results_free(struct kvl_results *r);

/* Whether the record of a result is of other code than the newest runs: of another engine, method or
 * task than they had. */
bool kvl_record_stale(const struct kvl_results *r, const json_t *record);
/* Whether any result that tables show is; what its star means. */
bool kvl_results_stale(const struct kvl_results *r);
#define KVL_STALE_NOTE "answered or timed by other code than that of the newest run"

uint64_t kvl_result_key(const char *id);
/* `mean` (or what it is called), `lo` and `hi` of a record.  What has no width is no interval: older logs have such. */
struct kvl_interval kvl_interval_of(const json_t *o, const char *mean);
enum kvl_bound kvl_bound_of(const char *policy);
/* Parts of what makes a block; what both results must share but for policy, options, budget and type of keys and
 * values. */
enum kvl_block_key {
    KVL_BLOCK_TASK = 1,
    KVL_BLOCK_PROTOCOL = 2,
    KVL_BLOCK_LENGTH = 4,
    KVL_BLOCK_DEPTH = 8,
};
/* Order of the blocks of two results, 0 when it is the same one; keys in `skip` do not count. */
int kvl_result_block_cmp(const struct kvl_result *a, const struct kvl_result *b, unsigned skip);
/* Whether the cells are over the same contexts, whatever the protocol; and an order of those that are not.  Contexts
 * that are made depend on seed, task, options, length and depth; those of files on the files' contents alone: cut to
 * another length, or asked otherwise, they are the same texts. */
int kvl_result_contexts_cmp(const struct kvl_result *a, const struct kvl_result *b);
/* The part of that order that no key skips: model, its file, seed, device. */
int kvl_result_set_cmp(const struct kvl_result *a, const struct kvl_result *b);
/* The part that counts for speed: threads and machine. */
int kvl_result_setup_cmp(const struct kvl_result *a, const struct kvl_result *b);
/* Whether two times may be divided by each other: device, machine, threads, GPU and driver are the same. */
bool kvl_result_same_setup(const struct kvl_result *a, const struct kvl_result *b);
/* Order of the types of keys and values: f16 stands before those that lose more. */
int kvl_result_kv_cmp(const struct kvl_result *a, const struct kvl_result *b);
/* Order inside a block: bounds, types of keys and values, labels, budgets; 0 when it is the same row. */
int kvl_result_row_cmp(const struct kvl_result *a, const struct kvl_result *b);
/* The samples of a cell: *n of them. */
const struct kvl_result_sample *kvl_result_samples(const struct kvl_results *r,
                                                   const struct kvl_result *cell, size_t *n);

/* True when `s`, the s->order-th record of a sample or a text in the logs, is the latest of its question. */
bool kvl_result_sample_kept(const struct kvl_results *r, const struct kvl_result_sample *s);

/* Marks the cells that are not to be shown: of those that differ in contexts, questions or versions of
 * the task alone, the one with the most samples, then the latest, stays.  Returns how many it marked (labels.c;
 * done by load). */
size_t kvl_results_outdone(struct kvl_results *r);
/* Gives every result its label and puts the results in order (labels.c; done by load). */
int kvl_results_label(struct kvl_results *r, struct kvl_err *err);

/* Name of the model of a run, "" when the log has no such run. */
const char *kvl_result_model(const struct kvl_results *r, const char *run);
/* What keys and values of a run are stored as, likewise. */
const char *kvl_result_kv_type(const struct kvl_results *r, const char *run);

#endif
