/* Filter layers by what they capture. */
#include "kvl/model_tables.h"

#include <math.h>

/* value[i][d]: the best sum over the layers from i on when layer i is a filter and at most d of them are
 * dense; -1: there is none.  next[i][d]: the filter behind it, n = none. */
struct filters {
    const double *capture;
    int32_t n, dense, wait;
    double *value;
    int32_t *next;
};

static size_t filters_at(const struct filters *f, int32_t layer, int32_t dense)
{
    return (size_t)layer * (size_t)(f->dense + 1) + (size_t)dense;
}

/* Filter i with `dense` dense layers left for it and those behind it. */
static void filters_solve(struct filters *f, int32_t i, int32_t dense)
{
    int32_t own = 1 + f->wait;
    double sum = own, best = -1.0;
    int32_t next = f->n;
    /* Ties go to the lower next filter, which is met first. */
    for (int32_t end = i + own; dense >= own && end < f->n; end++) {
        sum += f->capture[(size_t)i * (size_t)f->n + (size_t)end]; /* layer `end` reads the list */
        bool last = end + 1 == f->n;
        double rest = last ? 0.0 : f->value[filters_at(f, end + 1, dense - own)];
        if (rest < 0.0 || sum + rest <= best) continue;
        best = sum + rest;
        next = end + 1;
    }
    f->value[filters_at(f, i, dense)] = best;
    f->next[filters_at(f, i, dense)] = next;
}

/* The first filter; -1: none. */
static int32_t filters_first(const struct filters *f)
{
    double best = -1.0;
    int32_t first = -1;
    for (int32_t i = 0; i < f->n && i <= f->dense; i++) {
        double v = f->value[filters_at(f, i, f->dense - i)];
        if (v < 0.0 || i + v <= best) continue;
        best = i + v;
        first = i;
    }
    return first;
}

static double filters_mark(const struct filters *f, int32_t first, uint8_t *filter)
{
    double sum = 0.0;
    int32_t n_sparse = 0, dense = f->dense - first;
    for (int32_t i = 0; i < f->n; i++) filter[i] = 0;
    for (int32_t i = first, next; i < f->n; i = next) {
        next = f->next[filters_at(f, i, dense)];
        dense -= 1 + f->wait;
        filter[i] = 1;
        for (int32_t l = i + 1 + f->wait; l < next; l++, n_sparse++)
            sum += f->capture[(size_t)i * (size_t)f->n + (size_t)l];
    }
    return n_sparse ? sum / n_sparse : (double)NAN;
}

int kvl_filter_layers(const double *capture, int32_t n, int32_t dense, int32_t wait,
                      uint8_t *filter, double *sparse, struct kvl_err *err)
{
    struct filters f = { .capture = capture, .n = n, .dense = dense, .wait = wait };
    size_t states = (size_t)n * (size_t)(dense + 1);
    f.value = kvl_alloc(states, sizeof *f.value);
    f.next = kvl_alloc(states, sizeof *f.next);
    int rc = KVL_ENOMEM;
    if (f.value && f.next) {
        for (int32_t i = n - 1; i >= 0; i--)
            for (int32_t d = 0; d <= dense; d++) filters_solve(&f, i, d);
        int32_t first = filters_first(&f);
        rc = first < 0 ? KVL_EINVAL : KVL_OK;
        if (first >= 0) *sparse = filters_mark(&f, first, filter);
    }
    kvl_free(f.value);
    kvl_free(f.next);
    if (rc == KVL_EINVAL)
        return kvl_fail(err, rc,
                        "%d dense layers, %d waiting behind each filter: no set of filters of %d "
                        "layers, want %d to %d dense layers",
                        dense, wait, n, wait + 1, n - 1);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for filter layers");
}
