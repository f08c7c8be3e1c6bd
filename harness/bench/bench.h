/* bench.h - what the parts of `kvlab bench` share: one run, its rounds, its results.
 *
 * A measurement is a number of rounds.  In each round all sides of a comparison run one after the
 * other, and ratios are taken round by round: what disturbs a machine for a second disturbs both
 * sides.  A result is the median of the rounds with the smallest and the largest.
 *
 * Parts write lines (bench_emit): printed as they come, as JSON where asked for, and kept.  Progress goes to standard
 * error.  tests/bench/goals makes tables of them, against what was aimed at and what others reach.
 */
#ifndef KVL_BENCH_H
#define KVL_BENCH_H

#include "bench_model.h"
#include "kvl/model.h"
#include "kvl/tokenizer.h"
#include "machine.h"
#include "registry.h"

#include <stdio.h>

enum {
    BENCH_MAX_ROUNDS = 99,
    BENCH_MAX_LIST = 16,
    BENCH_MAX_EXTRA = 16,
    BENCH_STEPS = 3, /* tokens of a decode window, at least */
};

enum bench_part {
    BENCH_MACHINE = 1 << 0,
    BENCH_OPS = 1 << 1,
    BENCH_TOKEN = 1 << 2,
    BENCH_POLICY = 1 << 3,
    BENCH_SWEEP = 1 << 4,
    BENCH_PREFILL = 1 << 5,
    BENCH_METHODS = 1 << 6,
    BENCH_GPU = 1 << 7,
    BENCH_DEFAULT =
        BENCH_MACHINE | BENCH_OPS | BENCH_TOKEN | BENCH_POLICY | BENCH_SWEEP | BENCH_PREFILL,
};

struct bench_list {
    int32_t v[BENCH_MAX_LIST];
    int32_t n;
};

struct bench_config {
    uint32_t parts;
    const char *shape_name, *weight_type;
    const struct bench_shape
        *shape; /* by its name, or another one; NULL: `model` is a file of the user */
    enum kvl_wtype weights;
    const char *model;
    struct bench_list threads, depths;
    int32_t rounds, budget_tok;
    enum kvl_kv_type kv_type;
    enum kvl_decode_act decode_act;
    const char *policies;  /* "a,b"; NULL = the usual ones */
    const char *device;    /* "cuda", "hybrid"; NULL: the CPU */
    const char *json_path; /* NULL: none */
    const char *report;    /* of methods, as Markdown; NULL: none */
    const char *text; /* a file that the model reads as context; NULL: random keys and values */
    bool quick, kv_given;
    bool keep_model; /* a generated one stays on the disk until the end */
    int32_t own_tok; /* longest context that a method reads itself; 0: 16384 */
};

/* What results are results of; strings are borrowed, weights NULL where the model is a user's file. */
struct bench_origin {
    struct kvl_machine machine;
    const char *model, *weights, *version, *git, *compiler;
    struct {
        char name[128], driver[64]; /* empty: the CPU */
    } device;
    char date[16]; /* where there is a device */
};

/* Of the rounds of one measurement. */
struct bench_spread {
    double mid, lo, hi;
};

struct bench_line {
    const char *part, *what, *unit;
    const char *policy; /* NULL: without one */
    int32_t threads;    /* 0: does not matter */
    int32_t depth;      /* tokens before; -1: does not matter */
    struct bench_spread value;
    const char *against; /* what `ratio` is a ratio to; NULL: none */
    struct bench_spread ratio;
    struct {
        const char *name;
        double value;
    } extra[BENCH_MAX_EXTRA]; /* medians, into the JSON line */
    int32_t n_extra;
};

struct bench {
    struct bench_config config;
    struct kvl_registry *registry;
    struct bench_origin origin;
    /* Another program's figure for what is measured, 0: it has none; NULL: there is no other. */
    double (*peer)(const struct bench *b, const char *what, const char *variant, int32_t depth);
    const struct kvl_device *device; /* NULL: the CPU */
    struct kvl_model *model;
    char *model_path;          /* of the model in use, a temporary file where it was generated */
    struct kvl_buf text;       /* of --text */
    struct kvl_tokens context; /* the same as tokens; none: contexts are random numbers */
    FILE *json;                /* NULL: none */
    float *stream;             /* [n_stream], 64-byte aligned, huge pages */
    size_t n_stream;
    struct bench_line *line;
    size_t n_lines, cap_lines;
    struct kvl_buf skipped; /* what was left out, one text a line */
    struct kvl_err *err;
};

/* ---- bench.c -------------------------------------------------------------------------------------- */

/* Three digits that count, at most three of them behind the point: "1020", "52.3", "0.566". */
enum { BENCH_DIGITS = 32 };
void bench_digits(double v, char out[BENCH_DIGITS]);
/* Median, smallest and largest of v [n]; v is sorted. */
struct bench_spread bench_spread(double *v, int32_t n);
/* Of a[i] / b[i]; v is not changed. */
struct bench_spread bench_ratio(const double *a, const double *b, int32_t n);

/* Prints and keeps a result; strings are not copied. */
int bench_emit(struct bench *b, const struct bench_line *line);
/* Keeps a result that was printed by who made it. */
int bench_keep(struct bench *b, const struct bench_line *line);
/* The line of these, or NULL; policy NULL, threads 0 and depth -1 match as in the line. */
const struct bench_line *bench_find(const struct bench *b, const char *what, const char *policy,
                                    int32_t threads, int32_t depth);
void bench_extra(struct bench_line *line, const char *name, double value);
void bench_say(const char *fmt, ...) KVL_PRINTF(1, 2); /* progress, to standard error */
int bench_skip(struct bench *b, const char *fmt, ...) KVL_PRINTF(2, 3); /* said, and remembered */
int bench_stopped(struct bench *b); /* KVL_ESTOP once a signal came */
/* Memory that this machine could still give. */
size_t bench_memory_free(void);
/* Resident memory of this process: now, or the most since the last reset (0: cannot be known). */
size_t bench_rss(void);
size_t bench_rss_peak(void);
bool bench_rss_reset(void);

/* ---- bench_machine.c ------------------------------------------------------------------------------- */

/* Memory in huge pages, as weights, stored tokens and tables lie in; to be given to free. */
void *bench_huge(size_t bytes);
/* Bytes per second of one read of the buffer by `threads` threads, now. */
double bench_stream(struct bench *b, int32_t threads);
int bench_machine(struct bench *b);

/* OpenBLAS, found when it is first asked for; NULL: there is none. */
struct bench_blas {
    /* C [m][n] = A [m][k] B [n][k]^T, row-major */
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*set_threads)(int n);
    char *(*core_name)(void);
};
const struct bench_blas *bench_blas(void);
void bench_sgemm(const struct bench_blas *blas, int32_t m, int32_t n, int32_t k, const float *a,
                 const float *w, float *c);

/* ---- the parts --------------------------------------------------------------------------------------- */

int bench_ops(struct bench *b);
int bench_token(struct bench *b);
int bench_policy(struct bench *b);
/* Whether its policies and their options are right: before there is a model, what can be said then. */
int bench_policy_check(struct bench *b);
/* A line per method: `kvlab bench methods`. */
int bench_methods(struct bench *b);
int bench_methods_check(struct bench *b);
/* What a token costs under a method: medians over the rounds, counts of one token. */
struct bench_method_cost {
    double meta_ms, select_ms, attend_ms, evict_ms, fetch_ms;
    double busy_ms;                      /* of a token: processor time where there is one thread */
    double full_ms;                      /* the same of full attention, by turns with it */
    struct bench_spread token_ms, speed; /* speed: times that of full attention */
    double kv_bytes, index_bytes, fetch_bytes, attended_tok;
    double dense_tok;        /* of attended_tok: in layers that the method leaves dense */
    double selects, fetches; /* calls: of `select`, from the host */
    double attach_ms, table_bytes, device_bytes, host_bytes;
    double full_bytes; /* that full attention reads at this depth */
    double
        bytes_speed; /* what speed would be if a token took as long as its bytes and the weights' */
};
struct bench_method_at {
    const char *word, *name; /* with its options; of the policy */
    int32_t threads, depth;
};
struct bench_method_sink {
    int (*row)(void *user, const struct bench_method_at *at, const struct bench_method_cost *c);
    int (*left_out)(void *user, const struct bench_method_at *at, const char *why);
    void *user;
};
/* Every method of the configuration at a depth, full attention first. */
int bench_methods_at(struct bench *b, int32_t threads, int32_t depth,
                     const struct bench_method_sink *sink);
/* Calls `each` for every policy of "a,b" or "a:x=1;b". */
int bench_policy_words(struct bench *b, const char *text,
                       int (*each)(struct bench *b, const char *word, void *user), void *user);
int bench_sweep(struct bench *b);
int bench_prefill(struct bench *b);
int bench_prefill_memory(struct bench *b);
/* The same questions of a device that is not the CPU; bench_gpu.h. */
int bench_gpu(struct bench *b);

/* ---- bench_session.c ----------------------------------------------------------------------------------- */

/* An engine and sessions filled to ascending depths, each a fork of the one before; with --text the model reads that
 * many tokens of it, again from its beginning where it is shorter. */
struct bench_depths {
    struct kvl_engine *engine;
    struct kvl_session *at[BENCH_MAX_LIST]; /* as `depth` */
    struct bench_list depth;
    float *logits; /* [n_vocab] */
};
struct bench_engine {
    const struct kvl_model *model;
    enum kvl_kv_type kv_type;
    bool bf16, raw_keys, prefill_kv_host, q8; /* q8: decode_act, whatever the bench was given */
    int32_t chunk_tok;                        /* 0: the engine's */
    struct kvl_observer_set observers;
};
/* Reads --text; makes it tokens, once there is a model. */
int bench_text_read(struct bench *b);
int bench_text_open(struct bench *b);
int bench_engine_open(struct bench *b, const struct bench_engine *want, struct kvl_engine **out);
int bench_depths_open(struct bench *b, const struct bench_engine *want,
                      const struct bench_list *depth, struct bench_depths *out);
void bench_depths_close(struct bench_depths *d);

/* What a decode window on a fork of `s` costs: the fork, a token to warm up, then at least n_steps
 * tokens and 0.1 s. */
struct bench_window {
    struct kvl_counters count; /* of n tokens */
    int32_t n;
    double token_s; /* per token */
    double cpu_s;   /* the same, of processor time */
    double waits;   /* of the host for the device, per token */
};
/* Reads n tokens of the context, token `first` and those behind it: of --text, or random ones. */
int bench_read_context(struct bench *b, struct kvl_session *s, int32_t first, int32_t n);
int bench_decode(struct bench *b, const struct kvl_session *s, float *logits, int32_t n_steps,
                 struct bench_window *out);
/* The same of n_steps tokens: what is counted does not depend on the machine's speed. */
int bench_decode_steps(struct bench *b, const struct kvl_session *s, float *logits, int32_t n_steps,
                       struct bench_window *out);
/* Prefills n tokens on a fork of `s`, or of an empty session; seconds. */
int bench_prefill_time(struct bench *b, struct kvl_engine *engine, const struct kvl_session *s,
                       int32_t n, double *seconds);

/* ---- bench_run.c ------------------------------------------------------------------------------------------- */

/* Sets an option by its name without dashes; the text is borrowed.  KVL_EINVAL: not its value. */
int bench_set(struct bench *b, const char *option, const char *text);
/* What results are results of: this machine and this build. */
void bench_origin(struct bench *b);
/* What was not said, then all that is wanted before the first measurement; what cannot work is said here. */
int bench_open(struct bench *b);
int bench_json_open(struct bench *b);
/* Measures the parts of the configuration. */
int bench_run(struct bench *b);
void bench_close(struct bench *b);

#endif
