/* Layout: W stays as the file has it, row after row.  One thread reads it as one stream, in order,
 * since the processor's prefetching follows a single stream best: rows of F32, F16 and BF16 are
 * multiplied one by one (kern_gemv.h), and so are rows in blocks of 256 (kern_gemvk.h), and in blocks of 32, eight at a
 * time, two rows for what is left (kern_gemvq.h); rows of a type without kernels are widened and multiplied as F32.
 * Threads take runs of rows.
 *
 * Limit: reading W once.  One core reads F32, F16 and BF16 as fast as a plain streaming read; of block
 * types it reaches 0.3 to 0.9, fewer bits less: unpacking and multiplying take the time.  x in 8 bits
 * (q8, kern_gemvb.h) is faster, and gives other answers.
 */
#include "cpu.h"

#include <assert.h>
#include <omp.h>

enum { GEMV_CHAIN = 8 };

/* All products of a call, without what is made of them: they share x, so that it is packed once, and one team. */
struct gemv_plan {
    struct kvl_gemv_args plain[GEMV_CHAIN];
    const struct kvl_gemv_args *a; /* the first one */
    size_t aside;                  /* floats of products that do not go to y at once */
    const struct kvl_kern *kern;
    int threads;
    int32_t step;         /* rows of W per item */
    struct kvl_gemv_x *x; /* [n], or NULL: no type takes integers */
    float *scratch;       /* NULL: none is wanted */
    size_t thread_floats;
};

static int64_t gemv_rows(const struct kvl_gemv_args *a)
{
    int64_t rows = 0;
    for (; a; a = a->next) rows += a->w->n_rows;
    return rows;
}

static int32_t gemv_items(const struct gemv_plan *p, const struct kvl_gemv_args *a)
{
    return (a->w->n_rows + p->step - 1) / p->step;
}

/* What of x the products want. */
struct gemv_wants {
    bool q8;
    bool q, bytes; /* by blocks of 32 */
    bool k, b;     /* by blocks of 256: 16 bits, 8 */
};

/* And the largest scratch of all. */
static struct gemv_wants gemv_wants(struct gemv_plan *p)
{
    struct gemv_wants want = { .q8 = p->a->q8 };
    for (const struct kvl_gemv_args *a = p->a; a; a = a->next) {
        const struct kvl_wtype_row *t = kvl_wtype_find((uint32_t)a->w->type);
        size_t floats = p->kern->gemv_scratch(a->w->type, a->w->n_cols);
        p->thread_floats = KVL_MAX(p->thread_floats, (floats + 15) / 16 * 16);
        if (!t->x_int16) continue;
        const bool bytes = p->kern->gemv_bytes(t->type, a->q8);
        want.bytes |= t->block == 32 && bytes;
        want.q |= t->block == 32 && !bytes;
        want.k |= t->block == 256 && !a->q8;
        want.b |= t->block == 256 && a->q8;
    }
    return want;
}

/* The next n bytes, where they are wanted; `to` may be NULL. */
static void *gemv_take(uint8_t *to, size_t *at, bool wanted, size_t n)
{
    void *here = to ? to + *at : NULL;
    if (!wanted) return NULL;
    *at += (n + 63) / 64 * 64;
    return here;
}

/* Where the integers of a row lie from `to` on; returns how many bytes they take. */
static size_t gemv_row(struct kvl_gemv_x *x, struct gemv_wants want, size_t n_cols, uint8_t *to)
{
    size_t at = 0;
    const size_t units = (size_t)kvl_gemv_units((int32_t)(n_cols / 32)), slots = units * 8;
    const bool small = want.q || want.bytes;
    *x = (struct kvl_gemv_x){ 0 };
    x->q = gemv_take(to, &at, want.q, slots * 32 * sizeof *x->q);
    x->hi = gemv_take(to, &at, want.bytes, slots * 32);
    x->lo = gemv_take(to, &at, want.bytes && !want.q8, slots * 32);
    x->scale = gemv_take(to, &at, small, slots * sizeof *x->scale);
    x->sum = gemv_take(to, &at, small, slots * sizeof *x->sum);
    x->start = gemv_take(to, &at, small, slots * sizeof *x->start);
    x->k = gemv_take(to, &at, want.k, n_cols / 256 * sizeof *x->k);
    x->b = gemv_take(to, &at, want.b, n_cols / 256 * sizeof *x->b);
    return at;
}

/* Row i of x as integers, at `at`; returns the end. */
static uint8_t *gemv_pack_row(struct gemv_plan *p, struct gemv_wants want, size_t i, uint8_t *at)
{
    struct kvl_gemv_x *x = &p->x[i];
    size_t n_cols = (size_t)p->a->w->n_cols;
    const float *from = p->a->x + i * n_cols;
    at += gemv_row(x, want, n_cols, at);
    if (x->k) p->kern->gemvk_pack(x->k, from, (int32_t)(n_cols / 256));
    if (x->b) p->kern->gemvb_pack(x->b, from, (int32_t)(n_cols / 256));
    if (x->scale) p->kern->gemv_pack(x, from, (int32_t)(n_cols / 32), want.q8);
    return at;
}

/* One more product. */
static void gemv_plain(struct gemv_plan *p, int32_t *n, const struct kvl_gemv_args *of,
                       const struct kvl_weight *w)
{
    assert(*n < GEMV_CHAIN);
    p->plain[*n] =
        (struct kvl_gemv_args){ .y = of->y, .x = of->x, .w = w, .n = of->n, .q8 = of->q8 };
    if (*n > 0) p->plain[*n - 1].next = &p->plain[*n];
    ++*n;
}

static size_t gemv_floats(const struct kvl_gemv_args *a)
{
    return (size_t)a->n * (size_t)a->w->n_rows;
}

static void gemv_list(struct gemv_plan *p, const struct kvl_gemv_args *a)
{
    int32_t n = 0;
    for (; a; a = a->next) {
        gemv_plain(p, &n, a, a->w);
        if (a->up) gemv_plain(p, &n, a, a->up);
        p->aside += (a->up && a->add ? 2 : a->up || a->add ? 1 : 0) * gemv_floats(a);
    }
    p->a = p->plain;
}

/* Where products go that are added to y, and those of `up`. */
static void gemv_aside(struct gemv_plan *p, const struct kvl_gemv_args *a, float *at)
{
    for (struct kvl_gemv_args *q = p->plain; a; a = a->next, q++) {
        if (a->add) {
            q->y = at;
            at += gemv_floats(a);
        }
        if (!a->up) continue;
        (++q)->y = at;
        at += gemv_floats(a);
    }
}

static void gemv_bias(const struct kvl_gemv_args *a, float *y, const float *bias)
{
    size_t row = (size_t)a->w->n_rows;
    for (size_t i = 0; bias && i < (size_t)a->n; i++) kvl_kern()->add(y + i * row, bias, row);
}

/* What is made of the products. */
static int gemv_make(const struct gemv_plan *p, const struct kvl_gemv_args *a)
{
    for (const struct kvl_gemv_args *q = p->plain; a; a = a->next, q++) {
        float *y = q->y;
        gemv_bias(a, y, a->bias);
        if (a->up) {
            gemv_bias(a, (++q)->y, a->up_bias);
            KVL_TRY(kvl_cpu_glu(&(struct kvl_glu_args){
                .y = y, .gate = y, .up = q->y, .n = gemv_floats(a), .act = a->act }));
        }
        if (a->add) kvl_kern()->add(a->y, y, gemv_floats(a));
    }
    return KVL_OK;
}

/* Integers of x, where they are wanted, and scratch: of threads, then what lies aside. */
static int gemv_pack(struct gemv_plan *p, const struct kvl_gemv_args *made)
{
    const struct kvl_gemv_args *a = p->a;
    const struct gemv_wants want = gemv_wants(p);
    struct kvl_gemv_x none;
    size_t n = (size_t)a->n, row = gemv_row(&none, want, (size_t)a->w->n_cols, NULL);
    size_t threads = (size_t)p->threads * p->thread_floats;
    if (row == 0 && p->thread_floats == 0 && p->aside == 0) return KVL_OK;
    size_t head = (n * sizeof *p->x + 63) / 64 * 64;
    uint8_t *at = kvl_cpu_scratch(head + n * row + (threads + p->aside) * sizeof(float));
    if (!at) return KVL_ENOMEM;
    if (row > 0) p->x = (struct kvl_gemv_x *)(void *)at;
    at += head;
    for (size_t i = 0; row > 0 && i < n; i++) at = gemv_pack_row(p, want, i, at);
    if (p->thread_floats > 0) p->scratch = (float *)(void *)at;
    gemv_aside(p, made, (float *)(void *)at + threads);
    return KVL_OK;
}

/* Item i of all products taken as one list. */
static void gemv_run(const struct gemv_plan *p, int32_t i)
{
    const struct kvl_gemv_args *a = p->a;
    for (; i >= gemv_items(p, a); a = a->next) i -= gemv_items(p, a);
    struct kvl_gemv_item it = { .a = a, .x = p->x, .row0 = i * p->step };
    it.row1 = KVL_MIN(it.row0 + p->step, a->w->n_rows);
    if (p->scratch) it.scratch = p->scratch + (size_t)omp_get_thread_num() * p->thread_floats;
    p->kern->gemv_item(&it);
}

int kvl_cpu_gemv(const struct kvl_gemv_args *a)
{
    struct gemv_plan p = { .kern = kvl_kern() };
    gemv_list(&p, a);
    int64_t n_rows = gemv_rows(p.a);
    int32_t n_items = 0;
    p.threads = kvl_team((double)a->n * (double)n_rows * a->w->n_cols / 16);
    p.step = (int32_t)(n_rows / (p.threads * 4) + 3) / 4 * 4; /* whole groups of 4 rows */
    p.step = KVL_MAX(p.step, 4);
    KVL_TRY(gemv_pack(&p, a));
    for (const struct kvl_gemv_args *q = p.a; q; q = q->next) {
        assert(q->n == a->n && q->x == a->x && q->w->n_cols == a->w->n_cols && q->q8 == a->q8);
        n_items += gemv_items(&p, q);
    }
#pragma omp parallel for schedule(dynamic) num_threads(p.threads) if (p.threads > 1)
    for (int32_t i = 0; i < n_items; i++) gemv_run(&p, i);
    return gemv_make(&p, a);
}
