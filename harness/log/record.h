/* record.h - records as JSON, field by field as in results/README.md.
 *
 * Builders return a new reference, or NULL when memory is short.
 */
#ifndef KVL_RECORD_H
#define KVL_RECORD_H

#include "device_probe.h"
#include "fields.h"
#include "jobs.h"
#include "machine.h"
#include "measured.h"
#include "record_method.h"
#include "sweep_plan.h"

#include <jansson.h>

/* A stage of an answer. */
struct kvl_outcome_sub {
    char name[24];
    double value;
};

/* The numbers of the map `tiers`: what moved between the tiers and what is held where. */
enum {
#define TIER(member, ...) KVL_TIER_##member,
#include "fields.def"
    KVL_N_TIERS
};

/* What is known of a sample, and its cell's record is made of; numbers are NaN where there are none.  The numbers
 * that have no line here are rows of fields.def. */
struct kvl_outcome {
    bool have;   /* a sample was committed */
    bool failed; /* it has no score */
    bool absent; /* there is no such question: files end, and groups of questions do */
    bool lost;   /* its evidence was cut off */
    bool weak;   /* its evidence is where the answer's text stands */
#define OUTCOME(name, ...)    double name;
#define OBSERVED(member, ...) double member;
#include "fields.def"
    struct kvl_outcome_sub sub[KVL_TASK_SUBS];
    int32_t n_sub;
    double tiers[KVL_N_TIERS]; /* all 0 where nothing is in the host tier */
    struct kvl_method method;
};

enum {
    KVL_OUTCOME_NUMBERS = 0
#define OUTCOME(...)  +1
#define OBSERVED(...) +1
#include "fields.def"
};
/* No number at all. */
struct kvl_outcome kvl_outcome_none(void);
/* Where its numbers are, but stages and tiers. */
void kvl_outcome_numbers(struct kvl_outcome *o, double *out[KVL_OUTCOME_NUMBERS]);
/* Fills in what was counted of a session under a policy. */
struct kvl_counters;
void kvl_outcome_observe(struct kvl_outcome *o, const struct kvl_counters *n,
                         const struct kvl_kv_bytes *b);

struct kvl_quality_layers {
    double recall[KVL_QUALITY_TOPS], mass, error;
};

/* What a quality record amounts to: means over its steps, layers and heads; NaN where there are
 * none. */
struct kvl_quality_means {
    bool have;
    bool failed;
    bool absent;                             /* there is no such question */
    struct kvl_quality_layers select, dense; /* dense: layers that the policy left so */
    double kl, same;                         /* over steps */
};

/* A sample before it is a record; pointers are borrowed. */
struct kvl_answer {
    const struct kvl_cell *cell;
    const struct kvl_question *q;
    const struct kvl_ask *ask; /* [n]; the first one is shown where one is */
    int32_t n;
    json_t *answers;        /* of several (kvl_record_answers); else NULL */
    const char *prediction; /* raw bytes, NUL-terminated */
    size_t prediction_len;
    int32_t context, question, context_tok, question_tok;
    int32_t text; /* kvl_point_text of the context */
    uint64_t seed;
    uint64_t prompt; /* hash of its tokens */
    bool joint;      /* context and question tokenise to the same tokens together */
    struct kvl_outcome outcome;
};

/* What stands in a speed record beside its cell. */
struct kvl_timing {
    const uint64_t *step_ns; /* [n_steps] */
    int32_t n_steps, threads;
    const char *host;
    double prefill_ns;                       /* NaN: it came from a snapshot */
    uint64_t attach_ns, replay_ns, first_ns; /* first: the first decode step */
    struct kvl_counters count;               /* of the timed steps */
    struct kvl_kv_bytes bytes;
    struct kvl_method method;
    int64_t weight_bytes_per_tok;
    bool gpu; /* what follows is known: of the timed steps, and of the process so far */
    struct kvl_device_traffic traffic;
    struct kvl_device_memory memory;
};

/* How much a sweep (of this shard) holds, and how much of it the log had when the run began. */
struct kvl_run_amount {
    int64_t cells, cells_before; /* timed ones included; before: without failed ones */
    int64_t answers, answers_before;
};

struct kvl_run_info {
    int argc;
    char **argv;
    const struct kvl_work *work;
    const struct kvl_machine *machine;
    const struct kvl_store_desc *store;
    int32_t threads, chunk_tok;
    struct kvl_jobs jobs;
    const struct kvl_probed *gpu; /* NULL: the model runs on the CPU */
    struct kvl_run_amount amount; /* zeros: not a sweep of cells */
};

/* The code that the cells of a sweep are of: `sources` of its run record. */
json_t *kvl_record_sources(const struct kvl_sweep *s);
json_t *kvl_record_run(const char *run, const struct kvl_run_info *info);
json_t *kvl_record_sample(const char *run, const struct kvl_answer *a);
/* Adds one of several answers to a list (NULL: a new one), which is stolen; NULL: no memory. */
json_t *kvl_record_answers(json_t *list, const struct kvl_ask *ask, const struct kvl_buf *text,
                           const struct kvl_outcome *o);
/* outcome [contexts * questions] of the cell and quality [contexts * s->quality.questions],
 * complete. */
json_t *kvl_record_cell(const char *run, const struct kvl_sweep *s, const struct kvl_cell *c,
                        const struct kvl_outcome *outcome, const struct kvl_quality_means *quality);
/* What an unfinished cell has of `planned` answers or texts: `so_far` (stolen) as its own record. */
json_t *kvl_record_partial(const char *run, const struct kvl_cell *c, int64_t planned,
                           json_t *so_far);
/* error NULL: none. */
json_t *kvl_record_quality(const char *run, const struct kvl_cell *c, int32_t context,
                           int32_t question, const struct kvl_quality *want,
                           const struct kvl_quality_result *result, const char *error);
/* Whether a quality record, or the `quality` of a cell's, is of the passes that are wanted. */
bool kvl_quality_fits(const json_t *quality, const struct kvl_quality *want);
/* The means of a committed quality record. */
void kvl_quality_of(const json_t *quality, struct kvl_quality_means *out);
json_t *kvl_record_speed(const char *run, const struct kvl_cell *c, const struct kvl_sweep *s,
                         const struct kvl_timing *t);
/* cell NULL, context or question -1: null. */
json_t *kvl_record_error(const char *run, const struct kvl_cell *c, int32_t context,
                         int32_t question, int status, const char *message);

/* A model of a sweep of several, or a type of its keys and values (NULL: the sweep has one), that did not run at all. */
json_t *kvl_record_model_error(const char *run, const char *model, const char *kv_type, int status,
                               const char *message);

/* The numbers of a committed sample, back from its record; `out` is replaced: zeroed, or of an earlier
 * one. */
void kvl_outcome_of(const json_t *sample, struct kvl_outcome *out);
/* What it owns; it is none then. */
void kvl_outcome_free(struct kvl_outcome *o);

#endif
