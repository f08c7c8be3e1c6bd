/* config.h - a sweep as the user wrote it: axes, exclusions, where the log goes.
 *
 * harness/sweeps/README.md has the keys, settings.def what they are; harness/sweeps/ has sweeps.
 *
 * Everything is checked before anything runs; a failure is KVL_EINVAL with file, line and key.
 */
#ifndef KVL_CONFIG_H
#define KVL_CONFIG_H

#include "args.h"
#include "kvl/model.h"
#include "registry.h"
#include "yamldoc.h"

enum kvl_protocol {
    KVL_QUESTION_IN_PREFILL = 0,
    KVL_QUESTION_AFTER_COMPRESS,
    KVL_QUESTION_AS_DECODE,
    KVL_MULTI_TURN, /* questions of a context one after the other, each behind the right answers before it */
    KVL_N_PROTOCOLS,
    KVL_TEACHER_FORCED = KVL_N_PROTOCOLS, /* a text is read, nothing is asked: never chosen */
};
const char *kvl_protocol_name(enum kvl_protocol p);

#define KVL_DEPTH_SPREAD (-1.0)

/* A task or policy with options. */
struct kvl_point {
    const struct kvl_task *task; /* one of the two is set */
    const struct kvl_policy *policy;
    char *options; /* task: all of them; policy: the explicit ones, in table order */
    void *opts;    /* task: its options struct; policy: NULL */
    char *
        key; /* task: its options, in which files are known by their contents, not by their names */
    bool raw;      /* task: no chat template is put around its prompts */
    uint64_t code; /* hash of its sources, or of the shared object that it came from */
    uint64_t data; /* task: hash of the files that it reads, 0 = none */
    struct kvl_task_source *source; /* task: what it read, NULL = its contexts are made */
    bool foreign;                   /* from a plug-in: its code may crash */
    int32_t line;                   /* of the sweep's file; 0: from elsewhere */
    bool own;                       /* policy: `prefill: own`, it reads the context itself */
};

/* How the text of a task without questions is read; NULL: the task asks questions. */
const struct kvl_reading *kvl_point_reading(const struct kvl_point *task);

/* Contexts and, of one of them, questions that cells of a task have: as many as the sweep wants, or what
 * the task's files hold. */
struct kvl_sweep;
int32_t kvl_point_contexts(const struct kvl_sweep *s, const struct kvl_point *task);
int32_t kvl_point_questions(const struct kvl_sweep *s, const struct kvl_point *task,
                            int32_t context);

/* Which text of the task's files a context is of: several contexts are parts of one where it has more questions
 * than the sweep asks of a context.  Its own number where contexts are made. */
int32_t kvl_point_text(const struct kvl_sweep *s, const struct kvl_point *task, int32_t context);

/* A growable list; items are freed by kvl_sweep_free. */
struct kvl_points {
    struct kvl_point *v;
    size_t n;
};
struct kvl_ints {
    int32_t *v;
    size_t n;
};
struct kvl_doubles {
    double *v;
    size_t n;
};
struct kvl_texts {
    char **v;
    size_t n;
};

/* Types of keys and values; in the order given, none twice. */
enum { KVL_KV_AXIS = 16 };
struct kvl_kv_types {
    enum kvl_kv_type v[KVL_KV_AXIS];
    int32_t n;
};
static inline bool kvl_kv_types_have(const struct kvl_kv_types *types, enum kvl_kv_type type)
{
    for (int32_t i = 0; i < types->n; i++)
        if (types->v[i] == type) return true;
    return false;
}

/* A rule without a key applies to every value of it; a cell is left out when all keys match. */
struct kvl_exclude {
    struct kvl_texts policies, tasks, protocols, budgets;
    struct kvl_ints lengths;
    struct kvl_doubles depths;
    struct kvl_kv_types kv_types;
};

struct kvl_speed {
    bool on;
    struct kvl_points task; /* one */
    struct kvl_points policies;
    struct kvl_ints lengths;
    struct kvl_texts budgets;
    int32_t steps, warmup, repeats;
};

enum { KVL_NUMBERS = 8 };
struct kvl_numbers {
    int32_t v[KVL_NUMBERS], n; /* ascending */
};

/* Reference passes: of the first questions of every context, their first answer steps. */
enum { KVL_QUALITY_TOPS = KVL_NUMBERS };
struct kvl_quality {
    int32_t questions; /* 0 = none */
    int32_t steps;
    struct kvl_numbers top;
};

/* What kvlab analyze looks at (analysis.h); its flags say what the values mean. */
enum kvl_analyze_what {
    KVL_ANALYZE_MASS = 1,
    KVL_ANALYZE_SIMILARITY = 2,
    KVL_ANALYZE_DRIFT = 4,
    KVL_ANALYZE_ALL = 7
};
enum { KVL_ANALYSIS_LAG = 64 /* the longest */ };
struct kvl_analyze {
    bool on;
    unsigned what; /* bits of enum kvl_analyze_what */
    struct kvl_numbers tokens, next;
    int32_t lag, dense_layers, wait_layers; /* 0 and -1: by the model */
};

/* Bits of enum kvl_analyze_what; 0: there is no analysis of this name.  *near: the nearest name, NULL
 * when none is near. */
unsigned kvl_analyze_find(const char *name, const char **near);
/* "mass", "similarity", "drift": of one bit. */
const char *kvl_analyze_name(unsigned what);

/* How answers are made; sampler.h says what the numbers mean. */
struct kvl_sampling {
    double temperature; /* 0: greedy, the others mean nothing */
    double top_p, min_p;
    int32_t top_k, n; /* n: answers to each question */
    uint64_t seed;
};

enum { KVL_ASK_MAX = 64 }; /* answers that decode together at most */

struct kvl_sweep {
    char *name, *file; /* file NULL: from flags */
    char *model, *log;
    struct kvl_texts models; /* two or more: an axis, of which `model` is one; else none */
    char *chat, *system;     /* NULL: auto, none */
    uint64_t seed;
    enum kvl_kv_type kv_type;
    struct kvl_kv_types kv_types; /* two or more: an axis, of which `kv_type` is one; else none */
    enum kvl_prefill_type prefill_type;
    enum kvl_decode_act decode_act;
    bool prefill_kv_host;
    bool windows_off;
    const char *device; /* as --device, without numbers */
    struct kvl_gpus gpus;
    int32_t threads; /* 0 = all cores */
    double
        cell_limit_s; /* of this run: how long a worker may be silent while a policy or task runs; 0 = no limit */
    int64_t
        cell_memory_bytes; /* of this run: that a worker may hold while one runs; 0 = no limit */
    int32_t contexts, questions, chunk_tok, kv_limit_mib, batch;
    int32_t max_tok; /* see kvl_engine_desc; 0: not given */
    struct kvl_points tasks, policies;
    struct kvl_ints lengths;
    struct kvl_doubles depths;
    struct kvl_ints protocols; /* enum kvl_protocol */
    struct kvl_texts budgets;
    struct kvl_exclude *exclude;
    size_t n_exclude;
    struct kvl_speed speed;
    struct kvl_quality quality;
    struct kvl_sampling sampling;
    struct kvl_analyze analyze;
    char *text;    /* the resolved configuration, as YAML */
    char hash[33]; /* XXH3-128 of text */
};

/* Reads `file` (NULL: nothing but the overrides, called `name`) with overrides from the command
 * line.  `out` is filled only on success. */
int kvl_sweep_load(const char *file, const char *name, const struct kvl_registry *registry,
                   struct kvl_yaml_override *overrides, size_t n_overrides, struct kvl_sweep *out,
                   struct kvl_err *err);
void kvl_sweep_free(struct kvl_sweep *s);

/* What a sweep says of its engine. */
struct kvl_engine_desc kvl_sweep_engine(const struct kvl_sweep *s);

/* What full attention reads that answers and texts are compared with (KL, what was read of its weights): of types
 * that lose more than 16 bits do, f16. */
enum kvl_kv_type kvl_kv_reference(enum kvl_kv_type type);

#endif
