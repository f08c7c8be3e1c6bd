/* sweep_plan.h - the cells of a sweep: the product of its axes, in groups that share contexts.
 *
 * A cell's key is the canonical text of everything that may change its answers (for a speed cell:
 * its times), its code included; code.h makes its id of it.  The same sweep gives the same cells in the same order
 * everywhere; cells with equal keys are one cell.
 */
#ifndef KVL_PLAN_H
#define KVL_PLAN_H

#include "code.h"
#include "config.h"
#include "kvl/model.h"
#include "prompt.h"

struct kvl_cell {
    char *key;
    char id[KVL_CELL_ID];
    const struct kvl_point *task, *policy; /* of the sweep */
    int32_t length;
    double depth; /* KVL_DEPTH_SPREAD or 0..1 */
    enum kvl_protocol protocol;
    const char *budget;                /* as written; "-" = none */
    int32_t budget_tok;                /* 0 = none */
    const struct kvl_planned *planned; /* of `plans`; NULL: refused */
    struct kvl_err *refused;           /* why; NULL: it is not */
    double chance;                     /* of its task (kvl/task.h); NAN: it has none */
    const char *device;                /* the sweep's */
    const char *chat;                  /* template of its prompts; "none" */
    bool speed;
    int32_t repeat; /* of a speed cell */
};

/* Cells that are answered from the same contexts: one task, length and depth; or the speed cells of
 * one length. */
struct kvl_group {
    const struct kvl_point *task;
    int32_t length;
    double depth;
    bool speed;
    size_t first, n;                   /* cells */
    int32_t shard;                     /* whose it is; -1: nobody's, see kvl_only */
    bool mine;                         /* of this shard */
    struct kvl_observer_set observers; /* what prefills must keep for its cells */
};

struct kvl_shard {
    int32_t index, count; /* count 0 or 1 = everything */
    const char *from;     /* the flag or variable that said so; NULL: nothing did */
};

struct kvl_plans;
/* Times want machines of one kind; accuracy may come from any. */
enum kvl_only { KVL_ONLY_ALL, KVL_ONLY_ACCURACY, KVL_ONLY_SPEED };

struct kvl_work {
    const struct kvl_sweep *sweep; /* borrowed, as is the model */
    struct kvl_model *model;
    struct kvl_prompt raw, asks; /* of what is read or timed, and of what is asked */
    struct kvl_cell *cell;
    size_t n_cells;
    struct kvl_plans *plans; /* of its cells: one for all that would have the same */
    struct kvl_group *group;
    size_t n_groups;
    bool raw_keys;  /* what the engine must keep for any of the cells */
    int32_t window; /* longest observation window of any of them */
    struct kvl_shard shard;
    enum kvl_only only; /* set before kvl_work_shard */
};

/* What a speed cell's key has beside the model. */
struct kvl_where {
    const char *host;
    int32_t threads;
    const char *gpu; /* its name; NULL: the model runs on the CPU */
};

/* KVL_EINVAL: a context, its question and answer do not fit the model's context (unless
 * allow_overlong), or a task cannot make what is asked for; with the key of the sweep. */
int kvl_work_create(const struct kvl_sweep *sweep, struct kvl_model *model,
                    const struct kvl_where *where, bool allow_overlong, struct kvl_work **out,
                    struct kvl_err *err);
void kvl_work_destroy(struct kvl_work *w);

/* Leaves this shard its groups: those that are asked for (kvl_only) are dealt out by cost, the largest first. */
int kvl_work_shard(struct kvl_work *w, struct kvl_shard shard, struct kvl_err *err);
/* What all shards must agree on: the cells, without machine and code, and whose they are. */
enum { KVL_PLAN_HASH = 17 };
int kvl_work_plan(const struct kvl_work *w, char out[KVL_PLAN_HASH], struct kvl_err *err);
/* "i/n" with 0 <= i < n.  "none": everything.  "auto" or NULL: what KVLAB_SHARD says, in the same words; else the task
 * of a Slurm array, the process of srun, the rank of MPI or the index of a Kubernetes job, where there are several;
 * else everything.  "auto/n": of these the number, which KVLAB_SHARD_OFFSET is added to, and it is one of n. */
int kvl_shard_parse(const char *text, struct kvl_shard *out, struct kvl_err *err);

/* The code that a result of the sweep depends on; `method`: kvl_point.code of its policy, or
 * kvl_code_analysis. */
struct kvl_code kvl_cell_code(const struct kvl_sweep *s, const struct kvl_point *task,
                              uint64_t method);

/* Seed of one context: the same in every sweep, whatever else that sweep holds. */
uint64_t kvl_context_seed(const struct kvl_sweep *s, const struct kvl_point *task, int32_t length,
                          double depth, int32_t context);
/* Whether any of its cells asks its questions in turns. */
bool kvl_group_turns(const struct kvl_work *w, const struct kvl_group *g);
/* What stands around its contexts. */
const struct kvl_prompt *kvl_group_prompt(const struct kvl_work *w, const struct kvl_group *g);
/* One context with its questions, the template before it. */
int kvl_context_generate(const struct kvl_work *w, const struct kvl_group *g, int32_t context,
                         struct kvl_sample *out, struct kvl_err *err);

/* Tokens of a text of `length_tok` that are read before the policy starts: what is predicted
 * under it begins behind the one after them. */
int32_t kvl_reading_before(const struct kvl_reading *r, int32_t length_tok);

/* Tokens that a group prefills (contexts, questions), samples that it answers, tokens that it
 * predicts. */
struct kvl_estimate {
    int64_t prefill_tok, n_samples, n_quality, n_text_tok, n_speed_tok;
};
void kvl_group_estimate(const struct kvl_work *w, const struct kvl_group *g,
                        struct kvl_estimate *out);
/* Cost of a prefill, of the one that a group shares per context (0: nothing shares any), of one
 * cell's answers and reference passes from a context, and of one such pass.  In tokens that see
 * no other: prefills grow with the square of the length as soon as attention counts beside the
 * model's weights. What a unit takes in seconds is measured (rates.h, progress.h). */
double kvl_prefill_cost(const struct kvl_work *w, int32_t n_tok);
double kvl_group_context_cost(const struct kvl_work *w, const struct kvl_group *g);
/* What a cell does in one context: tokens that it decodes under its policy, how often that is attached, reference
 * passes. */
struct kvl_cell_steps {
    double steps, attaches, passes;
};
struct kvl_cell_steps kvl_cell_steps(const struct kvl_work *w, const struct kvl_cell *c);
double kvl_cell_context_cost(const struct kvl_work *w, const struct kvl_cell *c);
double kvl_cell_pass_cost(const struct kvl_work *w, const struct kvl_cell *c);

/* Prints the groups that have cells left [n_cells], these one by one where they are few or `cells` asks for it, and
 * the estimate of the whole (--dry-run). */
void kvl_work_print(const struct kvl_work *w, const bool *left, bool cells);

#endif
