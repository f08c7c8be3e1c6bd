/* From axes to cells. */
#include "sweep_plan.h"

#include "cell_key.h"
#include "child.h"
#include "crash_line.h"
#include "machine.h"
#include "plans.h"
#include "policy_spec.h"

#include "kvl/fpenv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plan {
    struct kvl_work *w;
    const struct kvl_where *where;
    struct kvl_buf cells, groups; /* arrays while they grow */
    struct kvl_buf cannot;        /* what tasks said that cannot make what is asked for */
    const struct kvl_point *last; /* of these tasks */
    struct kvl_err *err;
};

static int plan_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "out of memory for the cells of the sweep");
}

/* ---- names ------------------------------------------------------------------------------------- */

static int plan_name(const struct plan *p, struct kvl_cell *c)
{
    struct kvl_buf b = { 0 };
    int rc = kvl_cell_key(p->w, p->where, c, &b);
    if (rc != KVL_OK) {
        kvl_buf_free(&b);
        return plan_memory(p->err);
    }
    /* Without the room that it grew in: there may be very many. */
    c->key = realloc(b.data, b.len + 1);
    if (!c->key) c->key = b.data;
    kvl_cell_id(c->key, c->id);
    return KVL_OK;
}

/* By key; equal ones in the order of the sweep. */
static int plan_order(const void *a, const void *b, void *cells)
{
    const struct kvl_cell *c = cells;
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    int order = strcmp(c[x].key, c[y].key);
    return order ? order : (x > y) - (x < y);
}

static void plan_free_cell(struct kvl_cell *c)
{
    kvl_free(c->refused);
    kvl_free(c->key);
}

/* Takes out the cells that `twice` marks, and groups that have no other. */
static void plan_drop(struct kvl_work *w, const bool *twice)
{
    size_t n_cells = 0, n_groups = 0;
    for (size_t i = 0; i < w->n_groups; i++) {
        struct kvl_group g = w->group[i];
        size_t first = n_cells;
        for (size_t c = g.first; c < g.first + g.n; c++) {
            if (twice[c])
                plan_free_cell(&w->cell[c]);
            else
                w->cell[n_cells++] = w->cell[c];
        }
        g.first = first;
        g.n = n_cells - first;
        if (g.n > 0) w->group[n_groups++] = g;
    }
    w->n_cells = n_cells;
    w->n_groups = n_groups;
}

/* Names the cells; of those with equal keys, in whatever groups, the first one stays. */
static int plan_name_all(const struct plan *p)
{
    struct kvl_work *w = p->w;
    size_t *by_key = kvl_alloc(w->n_cells, sizeof *by_key);
    bool *twice = kvl_alloc(w->n_cells, sizeof *twice);
    int rc = by_key && twice ? KVL_OK : plan_memory(p->err);
    for (size_t i = 0; i < w->n_cells && rc == KVL_OK; i++) {
        by_key[i] = i;
        rc = plan_name(p, &w->cell[i]);
    }
    if (rc == KVL_OK) {
        qsort_r(by_key, w->n_cells, sizeof *by_key, plan_order, w->cell);
        for (size_t i = 1; i < w->n_cells; i++)
            twice[by_key[i]] = strcmp(w->cell[by_key[i - 1]].key, w->cell[by_key[i]].key) == 0;
        plan_drop(w, twice);
    }
    kvl_free(by_key);
    kvl_free(twice);
    return rc;
}

/* ---- one cell -------------------------------------------------------------------------------- */

static struct kvl_cell *plan_cells(const struct plan *p)
{
    return (struct kvl_cell *)(void *)p->cells.data;
}

static size_t plan_n_cells(const struct plan *p)
{
    return p->cells.len / sizeof(struct kvl_cell);
}

/* A text that is read from its first token on is read by the method itself where it can. */
static struct kvl_plan_for plan_for(const struct kvl_cell *c)
{
    const struct kvl_reading *r = c->speed ? NULL : kvl_point_reading(c->task);
    struct kvl_plan_for f = { .policy = c->policy,
                              .budget_tok = c->budget_tok,
                              .context_tok = r ? kvl_reading_before(r, c->length) : c->length,
                              .own = c->policy->own };
    if (r && r->mode != KVL_READ_PREFILL) f.own |= c->policy->policy->prefill != KVL_PREFILL_SHARED;
    return f;
}

static int plan_create(const struct plan *p, const struct kvl_plan_for *f, struct kvl_planned **out,
                       struct kvl_err *err)
{
    return (f->own ? kvl_planned_create_own : kvl_planned_create)(
        f->policy->policy, kvl_model_shape(p->w->model), f->policy->options, f->budget_tok,
        f->context_tok, out, err);
}

/* A policy is asked for a plan, to know that it answers. */
struct asked {
    const struct plan *p;
    const struct kvl_plan_for *of;
};

/* A plan is arithmetic on a few numbers; a context of a million tokens takes seconds. */
enum { PLAN_POLICY_S = 60, PLAN_TASK_S = 3600 };

/* What a plug-in has time for; no more than a cell has. */
static double plan_limit_s(const struct kvl_sweep *s, double most)
{
    return s->cell_limit_s > 0 ? fmin(s->cell_limit_s, most) : most;
}

static int plan_ask(const void *user, void *out, struct kvl_err *err)
{
    const struct asked *a = user;
    struct kvl_planned *planned = NULL;
    (void)out;
    int rc = plan_create(a->p, a->of, &planned, err);
    kvl_planned_destroy(planned);
    return rc;
}

/* A policy of a plug-in is asked in a process of its own first, which it may crash; not once there are
 * threads, which do not survive a fork: it might wait for them. */
static int plan_safely(const struct plan *p, const struct kvl_plan_for *f, struct kvl_planned **out,
                       struct kvl_err *err)
{
    char who[96];
    snprintf(who, sizeof who, "the plan of policy %s", f->policy->policy->name);
    struct asked asked = { p, f };
    struct kvl_child apart = { plan_ask, &asked, NULL, 0, KVL_EPOLICY, who, NULL, true, 0 };
    apart.limit_s = plan_limit_s(p->w->sweep, PLAN_POLICY_S);
    if (f->policy->foreign && kvl_machine_threads() <= 1) KVL_TRY(kvl_child_run(&apart, err));
    return plan_create(p, f, out, err);
}

/* The plan that an earlier cell had, or a new one. */
static int plan_take(const struct plan *p, struct kvl_cell *c, struct kvl_err *err)
{
    struct kvl_plan_for f = plan_for(c);
    struct kvl_planned *planned = NULL;
    if ((c->planned = kvl_plans_find(p->w->plans, &f))) return KVL_OK;
    kvl_guard_policy(c->policy->policy->name);
    int rc = plan_safely(p, &f, &planned, err);
    kvl_guard_policy(NULL);
    if (rc == KVL_OK) rc = kvl_plans_add(p->w->plans, &f, planned, err);
    if (rc == KVL_OK) c->planned = planned;
    return rc;
}

static int plan_refused(struct kvl_cell *c, int rc, const struct kvl_err *why, struct kvl_err *err)
{
    c->planned = NULL;
    if (!c->refused) c->refused = kvl_alloc(1, sizeof *c->refused);
    if (!c->refused) return plan_memory(err);
    *c->refused = *why;
    c->refused->code = rc;
    return KVL_OK;
}

/* Asks the policy; what it refuses becomes an error record, not a failure of the sweep. */
static int plan_policy(const struct plan *p, struct kvl_group *g, struct kvl_cell *c)
{
    struct kvl_work *w = p->w;
    struct kvl_err why = { 0 };
    int rc = plan_take(p, c, &why);
    if (rc == KVL_OK) rc = kvl_planned_serves(c->planned, w->sweep->kv_type, &why);
    if (rc == KVL_OK)
        rc = kvl_observer_set_merge(&g->observers, kvl_planned_observers(c->planned), &why);
    if (rc != KVL_OK) return plan_refused(c, rc, &why, p->err);
    w->raw_keys = w->raw_keys || kvl_planned_raw_keys(c->planned);
    w->window = KVL_MAX(w->window, kvl_planned_observers(c->planned)->window);
    return KVL_OK;
}

static int plan_add_cell(struct plan *p, struct kvl_group *g, struct kvl_cell c)
{
    c.device = p->w->sweep->device;
    c.chat = kvl_group_prompt(p->w, g)->name;
    KVL_TRY(plan_policy(p, g, &c));
    if (kvl_buf_add(&p->cells, &c, sizeof c) != KVL_OK) {
        plan_free_cell(&c);
        return plan_memory(p->err);
    }
    g->n++;
    return KVL_OK;
}

/* ---- axes ------------------------------------------------------------------------------------ */

static bool plan_text_in(const struct kvl_texts *t, const char *text)
{
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->v[i], text) == 0) return true;
    return t->n == 0;
}

static bool plan_int_in(const struct kvl_ints *t, int32_t v)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i] == v) return true;
    return t->n == 0;
}

static bool plan_double_in(const struct kvl_doubles *t, double v)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->v[i] <= v && t->v[i] >= v) return true;
    return t->n == 0;
}

static bool plan_excluded(const struct kvl_sweep *s, const struct kvl_cell *c)
{
    for (size_t i = 0; i < s->n_exclude; i++) {
        const struct kvl_exclude *r = &s->exclude[i];
        /* A speed cell has no protocol: a rule about protocols does not mean it. */
        bool protocol = c->speed ? r->protocols.n == 0
                                 : plan_text_in(&r->protocols, kvl_protocol_name(c->protocol));
        if (protocol && plan_text_in(&r->policies, c->policy->policy->name) &&
            plan_text_in(&r->tasks, c->task->task->name) && plan_text_in(&r->budgets, c->budget) &&
            plan_int_in(&r->lengths, c->length) && plan_double_in(&r->depths, c->depth) &&
            (r->kv_types.n == 0 || kvl_kv_types_have(&r->kv_types, s->kv_type)))
            return true;
    }
    return false;
}

/* The cell under every budget; a policy that has no use for one gets one cell. */
static int plan_budgets(struct plan *p, struct kvl_group *g, struct kvl_cell c,
                        const struct kvl_texts *budgets)
{
    const struct kvl_sweep *s = p->w->sweep;
    if (kvl_policy_ignores_budget(c.policy->policy)) {
        c.budget = "-";
        return plan_excluded(s, &c) ? KVL_OK : plan_add_cell(p, g, c);
    }
    for (size_t i = 0; i < budgets->n; i++) {
        c.budget = budgets->v[i];
        KVL_TRY(kvl_budget_parse(c.budget, c.length, &c.budget_tok, p->err));
        if (!plan_excluded(s, &c)) KVL_TRY(plan_add_cell(p, g, c));
    }
    return KVL_OK;
}

static int plan_add_group(struct plan *p, const struct kvl_group *g)
{
    if (g->n == 0) return KVL_OK;
    return kvl_buf_add(&p->groups, g, sizeof *g) == KVL_OK ? KVL_OK : plan_memory(p->err);
}

/* What no policy changes is answered once: by `full` where the sweep has it. */
static int plan_control_group(struct plan *p, struct kvl_group *g)
{
    const struct kvl_sweep *s = p->w->sweep;
    size_t i = 0;
    while (i < s->policies.n && strcmp(s->policies.v[i].policy->name, "full") != 0) i++;
    struct kvl_cell c = { .task = g->task,
                          .policy = &s->policies.v[i < s->policies.n ? i : 0],
                          .length = g->length,
                          .depth = g->depth,
                          .protocol = (enum kvl_protocol)s->protocols.v[0] };
    struct kvl_texts first = { s->budgets.v, s->budgets.n ? 1 : 0 };
    KVL_TRY(plan_budgets(p, g, c, &first));
    return plan_add_group(p, g);
}

static int plan_quality_group(struct plan *p, const struct kvl_point *task, int32_t length,
                              double depth)
{
    const struct kvl_sweep *s = p->w->sweep;
    struct kvl_group g = {
        .task = task, .length = length, .depth = depth, .first = plan_n_cells(p), .mine = true
    };
    bool text = kvl_point_reading(task) != NULL;
    if (task->source && task->source->control) return plan_control_group(p, &g);
    for (size_t i = 0; i < (text ? 1 : s->protocols.n); i++)
        for (size_t j = 0; j < s->policies.n; j++) {
            struct kvl_cell c = { .task = task,
                                  .policy = &s->policies.v[j],
                                  .length = length,
                                  .depth = depth,
                                  .protocol = text ? KVL_TEACHER_FORCED
                                                   : (enum kvl_protocol)s->protocols.v[i] };
            KVL_TRY(plan_budgets(p, &g, c, &s->budgets));
        }
    return plan_add_group(p, &g);
}

/* Repeats of all policies and budgets in an order that no policy profits from. */
static void plan_shuffle(const struct plan *p, const struct kvl_group *g)
{
    struct kvl_cell *cells = plan_cells(p) + g->first;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_str(p->w->sweep->seed, "speed"), (uint64_t)g->length));
    for (size_t i = g->n; i > 1; i--) {
        size_t j = kvl_rng_below(&rng, (uint32_t)i);
        struct kvl_cell swap = cells[i - 1];
        cells[i - 1] = cells[j];
        cells[j] = swap;
    }
}

static int plan_speed_group(struct plan *p, int32_t length)
{
    const struct kvl_sweep *s = p->w->sweep;
    const struct kvl_speed *speed = &s->speed;
    const struct kvl_points *policies = speed->policies.n ? &speed->policies : &s->policies;
    const struct kvl_texts *budgets = speed->budgets.n ? &speed->budgets : &s->budgets;
    struct kvl_group g = { .task = speed->task.n ? &speed->task.v[0] : &s->tasks.v[0],
                           .length = length,
                           .depth = KVL_DEPTH_SPREAD,
                           .speed = true,
                           .first = plan_n_cells(p),
                           .mine = true };
    for (int32_t repeat = 0; repeat < speed->repeats; repeat++)
        for (size_t j = 0; j < policies->n; j++) {
            struct kvl_cell c = { .task = g.task,
                                  .policy = &policies->v[j],
                                  .length = length,
                                  .depth = g.depth,
                                  .speed = true,
                                  .repeat = repeat };
            KVL_TRY(plan_budgets(p, &g, c, budgets));
        }
    plan_shuffle(p, &g);
    return plan_add_group(p, &g);
}

static bool plan_without_depth(const struct kvl_point *task)
{
    return kvl_point_reading(task) || (task->source && !task->source->depths);
}

static int plan_all(struct plan *p)
{
    const struct kvl_sweep *s = p->w->sweep;
    for (size_t t = 0; t < s->tasks.n; t++)
        for (size_t l = 0; l < s->lengths.n; l++)
            if (plan_without_depth(&s->tasks.v[t]))
                KVL_TRY(plan_quality_group(p, &s->tasks.v[t], s->lengths.v[l], KVL_DEPTH_SPREAD));
            else
                for (size_t d = 0; d < s->depths.n; d++)
                    KVL_TRY(plan_quality_group(p, &s->tasks.v[t], s->lengths.v[l], s->depths.v[d]));
    for (size_t l = 0; s->speed.on && l < s->speed.lengths.n; l++)
        KVL_TRY(plan_speed_group(p, s->speed.lengths.v[l]));
    if (p->groups.len == 0)
        return kvl_fail(p->err, KVL_EINVAL, "%s: exclude: leaves out every cell",
                        s->file ? s->file : s->name);
    return KVL_OK;
}

/* ---- checks before anything runs ------------------------------------------------------------- */

bool kvl_group_turns(const struct kvl_work *w, const struct kvl_group *g)
{
    bool turns = false;
    for (size_t i = g->first; i < g->first + g->n; i++)
        turns |= w->cell[i].protocol == KVL_MULTI_TURN;
    return turns;
}

/* Tokens that follow the context at most: questions and answers, or the steps of a timed run. */
static int plan_tail_tok(const struct kvl_work *w, const struct kvl_group *g,
                         const struct kvl_sample *sample, int32_t *out, struct kvl_err *err)
{
    *out = w->sweep->speed.warmup + w->sweep->speed.steps;
    if (g->speed) return KVL_OK;
    const struct kvl_prompt *prompt = kvl_group_prompt(w, g);
    bool around = g->task->source && g->task->source->around;
    KVL_TRY(
        kvl_prompt_tail(prompt, sample, g->task->source != NULL, kvl_group_turns(w, g), out, err));
    if (around) *out += g->length - kvl_prompt_room(prompt, g->length);
    return KVL_OK;
}

/* A context of a group, made to know that it can be. */
struct trial {
    const struct kvl_work *w;
    const struct kvl_group *g;
};

/* What it tells: tokens that follow the context, and the task's chance. */
struct tried {
    int32_t tail;
    double chance;
};

static int plan_chance(const struct kvl_point *task, double *out, struct kvl_err *err)
{
    *out = (double)NAN;
    if (!task->task->chance) return KVL_OK;
    kvl_guard_task(task->task->name);
    *out = task->task->chance(task->opts);
    kvl_guard_task(NULL);
    KVL_TRY(kvl_fp_kept(KVL_OK, KVL_ETASK, err));
    if (isnan(*out) || (*out >= 0.0 && *out <= 1.0)) return KVL_OK;
    return kvl_fail(err, KVL_ETASK, "task %s: a chance of %g, want a probability from 0 to 1",
                    task->task->name, *out);
}

/* *out: struct tried. */
static int plan_try(const void *user, void *out, struct kvl_err *err)
{
    const struct trial *t = user;
    struct tried *tried = out;
    struct kvl_sample sample = { 0 };
    /* Of a file the last context asks for the most. */
    bool text = kvl_point_reading(t->g->task) && !t->g->speed;
    KVL_TRY(kvl_context_generate(t->w, t->g, text ? t->w->sweep->contexts - 1 : 0, &sample, err));
    int rc = plan_tail_tok(t->w, t->g, &sample, &tried->tail, err);
    kvl_sample_free(&sample);
    if (rc == KVL_OK) rc = plan_chance(t->g->task, &tried->chance, err);
    return rc;
}

/* Its task broke its contract: error records, not a failure of the sweep. */
static int plan_refuse(struct kvl_work *w, const struct kvl_group *g, struct kvl_err *err)
{
    struct kvl_err why = *err;
    kvl_err_clear(err);
    for (size_t i = g->first; i < g->first + g->n; i++)
        KVL_TRY(plan_refused(&w->cell[i], why.code, &why, err));
    return KVL_OK;
}

/* Its task cannot make what is asked for: all such tasks are said together, each once. */
static int plan_cannot(struct plan *p, const struct kvl_group *g)
{
    const struct kvl_sweep *s = p->w->sweep;
    char line[16] = "", where[32] = "";
    if (p->last == g->task) {
        kvl_err_clear(p->err);
        return KVL_OK;
    }
    if (g->task->line) snprintf(line, sizeof line, ":%d", g->task->line);
    if (g->task->line) snprintf(where, sizeof where, "line %d: ", g->task->line);
    int rc = p->last ? kvl_buf_printf(&p->cannot, "; %s%s", where, p->err->msg)
                     : kvl_buf_printf(&p->cannot, "%s%s: %s: %s", s->file ? s->file : s->name, line,
                                      g->speed ? "speed" : "tasks", p->err->msg);
    p->last = g->task;
    kvl_err_clear(p->err);
    return rc == KVL_OK ? rc : plan_memory(p->err);
}

/* Generates a context: what a task cannot do is a configuration error, met before hours of
 * work.  One of a plug-in does it in a process of its own, which it may crash. */
static int plan_check_group(struct plan *p, const struct kvl_group *g, bool allow_overlong)
{
    struct kvl_work *w = p->w;
    const char *file = w->sweep->file ? w->sweep->file : w->sweep->name;
    int32_t limit = kvl_model_shape(w->model)->n_ctx_train;
    char who[96];
    snprintf(who, sizeof who, "task %s", g->task->task->name);
    struct trial trial = { w, g };
    struct tried tried = { 0 };
    struct kvl_child apart = {
        plan_try, &trial, &tried, sizeof tried, KVL_ETASK, who, NULL, true, 0
    };
    apart.limit_s = plan_limit_s(w->sweep, PLAN_TASK_S);
    if (g->length > limit && !allow_overlong)
        return kvl_fail(p->err, KVL_EINVAL,
                        "%s: lengths: %d tokens, the model's context is %d: want less or "
                        "--allow-overlong",
                        file, g->length, limit);
    int rc = g->task->foreign ? kvl_child_run(&apart, p->err) : plan_try(&trial, &tried, p->err);
    if (rc == KVL_ETASK) return plan_refuse(w, g, p->err);
    if (rc == KVL_EINVAL) return plan_cannot(p, g);
    if (rc != KVL_OK) return kvl_fail_at(p->err, rc, "%s: %s", file, g->speed ? "speed" : "tasks");
    for (size_t i = g->first; i < g->first + g->n; i++) w->cell[i].chance = tried.chance;
    if (g->length + tried.tail > limit && !allow_overlong)
        return kvl_fail(p->err, KVL_EINVAL,
                        "%s: lengths: %d tokens and %d of question and answer, the model's context "
                        "is %d: want at most %d or --allow-overlong",
                        file, g->length, tried.tail, limit, limit - tried.tail);
    int32_t most = kvl_model_short_tok(w->model);
    if (kvl_work_turns_short(w) && g->length + tried.tail > most)
        return kvl_fail(
            p->err, KVL_EINVAL,
            "%s: lengths: %d tokens and %d of question and answer, max_tok %d turns heads "
            "by the factors for at most %d: want a larger max_tok, or none",
            file, g->length, tried.tail, w->sweep->max_tok, most);
    return KVL_OK;
}

static int plan_check(struct plan *p, bool allow_overlong)
{
    for (size_t i = 0; i < p->w->n_groups; i++)
        KVL_TRY(plan_check_group(p, &p->w->group[i], allow_overlong));
    return p->last ? kvl_fail(p->err, KVL_EINVAL, "%s", p->cannot.data) : KVL_OK;
}

/* What asks nothing needs no template, and is not refused for one. */
static int plan_prompts(const struct plan *p)
{
    struct kvl_work *w = p->w;
    const struct kvl_sweep *s = w->sweep;
    bool asks = false;
    for (size_t t = 0; t < s->tasks.n; t++) asks = asks || !s->tasks.v[t].raw;
    KVL_TRY(kvl_prompt_open(w->model, "none", NULL, &w->raw, p->err));
    return kvl_prompt_open(w->model,
                           asks && s->chat ? s->chat
                           : asks          ? "auto"
                                           : "none",
                           s->system, &w->asks, p->err);
}

/* ---- the whole ------------------------------------------------------------------------------- */

int kvl_work_create(const struct kvl_sweep *sweep, struct kvl_model *model,
                    const struct kvl_where *where, bool allow_overlong, struct kvl_work **out,
                    struct kvl_err *err)
{
    struct kvl_work *w = kvl_alloc(1, sizeof *w);
    struct plan p = { .w = w, .where = where, .err = err };
    if (!w) return plan_memory(err);
    w->sweep = sweep;
    w->model = model;
    int rc = plan_prompts(&p);
    if (rc == KVL_OK) rc = kvl_plans_create(&w->plans, err);
    if (rc == KVL_OK) rc = plan_all(&p);
    w->cell = plan_cells(&p);
    w->n_cells = plan_n_cells(&p);
    w->group = (struct kvl_group *)(void *)p.groups.data;
    w->n_groups = p.groups.len / sizeof(struct kvl_group);
    if (rc == KVL_OK) rc = plan_name_all(&p);
    if (rc == KVL_OK) rc = plan_check(&p, allow_overlong);
    kvl_buf_free(&p.cannot);
    if (rc == KVL_OK)
        *out = w;
    else
        kvl_work_destroy(w);
    return rc;
}

void kvl_work_destroy(struct kvl_work *w)
{
    if (!w) return;
    for (size_t i = 0; i < w->n_cells; i++) plan_free_cell(&w->cell[i]);
    kvl_plans_destroy(w->plans);
    kvl_prompt_close(&w->asks);
    kvl_prompt_close(&w->raw);
    kvl_free(w->cell);
    kvl_free(w->group);
    kvl_free(w);
}
