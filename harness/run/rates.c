/* Rates: from outcomes to what is left. */
#include "rates.h"

#include <math.h>
#include <stdlib.h>

/* ---- what is known --------------------------------------------------------------------------- */

/* Of one answer, text or timed cell. */
static struct kvl_rate rate_of_cell(const struct kvl_work *w, const struct kvl_cell *c)
{
    const struct kvl_sweep *s = w->sweep;
    double cost = kvl_cell_context_cost(w, c);
    if (!c->speed && !kvl_point_reading(c->task))
        cost = cost / s->questions - kvl_cell_pass_cost(w, c) * s->quality.questions / s->questions;
    return (struct kvl_rate){ .task = c->task,
                              .policy = c->policy,
                              .protocol = (int)c->protocol,
                              .timed = c->speed,
                              .budget_tok = c->budget_tok ? c->budget_tok : c->length,
                              .length = c->length,
                              .cost = cost };
}

static struct kvl_rate rate_of_prefill(const struct kvl_work *w, const struct kvl_group *g)
{
    return (struct kvl_rate){ .task = g->task,
                              .timed = g->speed,
                              .length = g->length,
                              .cost = kvl_group_context_cost(w, g) };
}

/* An earlier repeat of a timed cell; repeats of a length stand together. */
static struct kvl_rate *rate_repeated(const struct kvl_rates *t, const struct kvl_rate *rate)
{
    for (size_t i = t->n; rate->timed && i-- > 0;) {
        struct kvl_rate *a = &t->rate[i];
        if (!a->timed || a->length != rate->length) break;
        if (a->task == rate->task && a->policy == rate->policy && a->budget_tok == rate->budget_tok)
            return a;
    }
    return NULL;
}

static int rate_add(struct kvl_rates *t, struct kvl_rate rate, double ns, double n,
                    struct kvl_err *err)
{
    if (!(ns > 0.0) || !(n > 0.0)) return KVL_OK;
    struct kvl_rate *repeated = rate_repeated(t, &rate);
    t->ns += ns;
    if (repeated) {
        repeated->ns = (repeated->ns * repeated->n + ns) / (repeated->n + n);
        repeated->n += n;
        return KVL_OK;
    }
    if (t->n == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 256;
        struct kvl_rate *grown = realloc(t->rate, cap * sizeof *grown);
        if (!grown) return kvl_fail(err, KVL_ENOMEM, "out of memory for %zu rates", cap);
        t->rate = grown;
        t->cap = cap;
    }
    rate.ns = ns / n;
    rate.n = n;
    t->rate[t->n++] = rate;
    return KVL_OK;
}

void kvl_rates_free(struct kvl_rates *t)
{
    free(t->rate);
    *t = (struct kvl_rates){ 0 };
}

static bool is_own(const struct kvl_runner *r, size_t cell)
{
    const struct kvl_planned *planned = r->work->cell[cell].planned;
    return planned && kvl_planned_own_prefill(planned);
}

/* What is known of a cell in one context; prefill_ns NaN: of none. */
struct times {
    double ns, n, prefill_ns;
};

static struct times times_of(const struct kvl_runner *r, size_t cell, int32_t context)
{
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    const json_t *text = json_array_get(p->text, (size_t)context);
    int32_t questions = r->work->sweep->questions;
    struct times t = { .prefill_ns = (double)NAN };
    if (json_is_object(text)) {
        t.ns = json_number_value(json_object_get(text, "wall_ns"));
        t.n = t.ns > 0.0;
        t.prefill_ns = json_number_value(json_object_get(text, "prefill_ns"));
    }
    for (int32_t q = 0; p->outcome && q < questions; q++) {
        const struct kvl_outcome *o = &p->outcome[context * questions + q];
        if (!o->have || o->failed || !(o->wall_ns > 0.0)) continue;
        t.ns += o->wall_ns;
        t.n += 1.0;
        t.prefill_ns = o->prefill_ns;
    }
    return t;
}

/* What the prefill took that cells of a group share, whichever of them says so; 0: none does. */
static double shared_ns(const struct kvl_runner *r, const struct kvl_group *g, int32_t context)
{
    for (size_t i = g->first; i < g->first + g->n; i++) {
        double ns =
            g->speed ? r->state->cell[i].timed_prefill_ns : times_of(r, i, context).prefill_ns;
        if (!is_own(r, i) && ns > 0.0) return ns;
    }
    return 0.0;
}

static int rates_group(struct kvl_rates *t, const struct kvl_runner *r, const struct kvl_group *g,
                       struct kvl_err *err)
{
    double ns = 0.0, n = 0.0;
    for (int32_t c = 0; c < (g->speed ? 1 : r->work->sweep->contexts); c++) {
        double one = shared_ns(r, g, c);
        ns += one;
        n += one > 0.0;
    }
    return rate_add(t, rate_of_prefill(r->work, g), ns, n, err);
}

static int rates_cell(struct kvl_rates *t, const struct kvl_runner *r, size_t cell,
                      struct kvl_err *err)
{
    const struct kvl_cell *c = &r->work->cell[cell];
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    bool own = is_own(r, cell);
    double ns = p->timed_ns, n = ns > 0.0;
    if (own) ns += p->timed_prefill_ns;
    for (int32_t k = 0; !c->speed && k < r->work->sweep->contexts; k++) {
        struct times one = times_of(r, cell, k);
        ns += one.ns + (own && one.prefill_ns > 0.0 ? one.prefill_ns : 0.0);
        n += one.n;
    }
    return rate_add(t, rate_of_cell(r->work, c), ns, n, err);
}

int kvl_rates_read(struct kvl_rates *t, const struct kvl_runner *r, struct kvl_err *err)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (!g->mine) continue;
        KVL_TRY(rates_group(t, r, g, err));
        for (size_t c = g->first; c < g->first + g->n; c++) KVL_TRY(rates_cell(t, r, c, err));
    }
    return KVL_OK;
}

/* ---- what one takes -------------------------------------------------------------------------- */

static double apart(int32_t a, int32_t b)
{
    return fabs(log((double)KVL_MAX(a, 1)) - log((double)KVL_MAX(b, 1)));
}

/* All but task and length. */
static bool rate_same(const struct kvl_rate *a, const struct kvl_rate *b)
{
    return a->policy == b->policy && a->protocol == b->protocol && a->timed == b->timed &&
           (!a->policy || a->budget_tok == b->budget_tok || a->budget_tok == a->length);
}

/* Prefills are alike whatever they are for; of another policy nothing is. */
static double rate_apart(const struct kvl_rate *a, const struct kvl_rate *b)
{
    if (a->policy != b->policy) return HUGE_VAL;
    return 100.0 * (a->timed != b->timed) + 100.0 * (a->protocol != b->protocol) +
           10.0 * apart(a->budget_tok, b->budget_tok) + 3.0 * (a->task != b->task) +
           apart(a->length, b->length);
}

static const struct kvl_rate *rate_nearest(const struct kvl_rates *t, const struct kvl_rate *want)
{
    const struct kvl_rate *best = NULL;
    double least = HUGE_VAL;
    for (size_t i = 0; i < t->n; i++) {
        double d = rate_apart(&t->rate[i], want);
        if (!(d < least)) continue;
        least = d;
        best = &t->rate[i];
    }
    return best;
}

/* What grows along a line with the length: a prefill does so per token. */
static double rate_linear(const struct kvl_rate *a)
{
    return a->policy ? a->ns : a->ns / a->length;
}

/* The ratio of a length to that of `at`, by a task that was run at the latter and another; NaN: none was.
 * Nothing grows faster than the length, or shrinks with it. */
static double rate_line(const struct kvl_rates *t, const struct kvl_rate *at, int32_t length)
{
    double nearest = HUGE_VAL, ratio = (double)NAN, most = (double)length / at->length;
    for (size_t i = 0; i < t->n; i++) {
        const struct kvl_rate *a = &t->rate[i];
        if (a->length != at->length || !rate_same(a, at)) continue;
        for (size_t k = 0; k < t->n; k++) {
            const struct kvl_rate *b = &t->rate[k];
            if (b->length == a->length || b->task != a->task || !rate_same(b, a)) continue;
            if (!(apart(b->length, length) < nearest)) continue;
            nearest = apart(b->length, length);
            double slope = (rate_linear(b) - rate_linear(a)) / (b->length - a->length);
            ratio = 1.0 + slope * (length - a->length) / rate_linear(a);
        }
    }
    if (isnan(ratio)) return ratio;
    return most > 1.0 ? fmin(fmax(ratio, 1.0), most) : fmax(fmin(ratio, 1.0), most);
}

/* Of all that are known.  Where answers are and no prefill of theirs is, contexts come from
 * snapshots. */
static double rate_mean(const struct kvl_rates *t, const struct kvl_rate *want)
{
    double ns = 0.0, cost = 0.0;
    if (!want->policy && t->n > 0) return 0.0;
    for (size_t i = 0; i < t->n; i++) {
        if (!t->rate[i].policy != !want->policy) continue;
        ns += t->rate[i].ns * t->rate[i].n;
        cost += t->rate[i].cost * t->rate[i].n;
    }
    return want->cost * ns / cost;
}

/* Threads count for prefills: timed ones have all of them. */
static double rate_one(const struct kvl_rates *t, const struct kvl_runner *r,
                       const struct kvl_rate *want)
{
    const struct kvl_rate *near = rate_nearest(t, want);
    if (!near) return rate_mean(t, want);
    double ns = near->ns, line = rate_line(t, near, want->length);
    if (near->timed != want->timed && want->policy) line = (double)NAN;
    if (near->length != want->length && !isnan(line))
        ns *= want->policy ? line : line * want->length / near->length;
    else
        ns *= want->cost / near->cost;
    if (!want->policy && near->timed != want->timed)
        ns *= (double)KVL_MAX(r->jobs.threads, 1) / kvl_ops_threads();
    return ns;
}

/* ---- what is left ---------------------------------------------------------------------------- */

/* Answers, texts or times that a cell lacks; passes apart. */
static double left_of_cell(const struct kvl_runner *r, size_t cell, double *passes)
{
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    const struct kvl_sweep *s = r->work->sweep;
    double n = 0.0;
    *passes = 0.0;
    if (!r->work->cell[cell].planned || p->done || p->failed) return 0.0;
    if (r->work->cell[cell].speed) return 1.0;
    for (int32_t c = 0; c < s->contexts; c++) {
        n += p->text && json_is_null(json_array_get(p->text, (size_t)c));
        for (int32_t q = 0; p->outcome && q < s->questions; q++)
            n += !p->outcome[c * s->questions + q].have;
        for (int32_t q = 0; p->quality && q < s->quality.questions; q++)
            *passes += !p->quality[c * s->quality.questions + q].have;
    }
    return n;
}

static double left_of_group(const struct kvl_runner *r, const struct kvl_group *g)
{
    double n = 0.0;
    int32_t contexts = g->speed ? 1 : r->work->sweep->contexts;
    if (g == r->timing) return 0.0; /* its prefill is there */
    for (int32_t c = 0; c < contexts; c++) n += kvl_state_shares(r->state, g, c);
    return n;
}

struct kvl_rates_left kvl_rates_left(const struct kvl_rates *t, const struct kvl_runner *r)
{
    struct kvl_rates_left left = { 0 };
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        if (!g->mine) continue;
        double *ns = g->speed ? &left.timed_ns : &left.ns, n = left_of_group(r, g), passes;
        struct kvl_rate one = rate_of_prefill(r->work, g);
        if (n > 0.0) *ns += n * rate_one(t, r, &one);
        for (size_t c = g->first; c < g->first + g->n; c++) {
            n = left_of_cell(r, c, &passes);
            if (!(n > 0.0) && !(passes > 0.0)) continue;
            one = rate_of_cell(r->work, &r->work->cell[c]);
            n += passes * kvl_cell_pass_cost(r->work, &r->work->cell[c]) / one.cost;
            *ns += n * rate_one(t, r, &one);
        }
    }
    return left;
}

bool kvl_rates_know(const struct kvl_rates *t, const struct kvl_runner *r)
{
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        for (size_t c = g->first; g->mine && c < g->first + g->n; c++) {
            double passes;
            struct kvl_rate one = rate_of_cell(r->work, &r->work->cell[c]);
            if (one.timed || !(left_of_cell(r, c, &passes) > 0.0)) continue;
            if (!rate_nearest(t, &one)) return false;
        }
    }
    return t->n > 0;
}
