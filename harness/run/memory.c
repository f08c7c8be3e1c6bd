/* What a sweep has to hold. */
#include "memory.h"

#include "args.h"

#include <stdio.h>

enum {
    MEMORY_PROGRAM = 32 << 20
}; /* code, vocabulary, records: measured with models of 135 M and 7 M weights */

struct memory_ask {
    const struct kvl_runner *r;
    enum kvl_kv_type type;
    int32_t n_kv_heads;
    struct kvl_memory *out;
};

/* Tokens that are held at once when a cell is answered, at least. */
static int32_t memory_held(const struct kvl_cell *c)
{
    const struct kvl_reading *r = c->speed ? NULL : kvl_point_reading(c->task);
    bool evicts = c->policy->policy->caps & KVL_CAP_EVICTS;
    if (evicts && kvl_planned_own_prefill(c->planned)) return 0; /* as little as its budget */
    return r && evicts ? kvl_reading_before(r, c->length) : c->length;
}

/* Returns the longest of them; *chunk grows to the longest chunk that a policy reads its context in. */
static int32_t memory_longest(const struct kvl_runner *r, int32_t *chunk)
{
    int32_t longest = 0;
    for (size_t i = 0; i < r->work->n_groups; i++) {
        const struct kvl_group *g = &r->work->group[i];
        int32_t n = g->speed ? 1 : r->work->sweep->contexts;
        for (int32_t context = 0; g->mine && context < n; context++)
            for (size_t c = g->first; c < g->first + g->n; c++) {
                const struct kvl_cell *cell = &r->work->cell[c];
                if (!kvl_state_wants(r->state, context, c)) continue;
                longest = KVL_MAX(longest, memory_held(cell));
                if (kvl_planned_own_prefill(cell->planned))
                    *chunk =
                        KVL_MAX(*chunk, KVL_MIN(kvl_planned_chunk(cell->planned), cell->length));
            }
    }
    return longest;
}

size_t kvl_memory_room(size_t context_bytes)
{
    return KVL_MAX((size_t)256 << 20, context_bytes);
}

/* What a cell owns on top of the context that is shared: a context that its policy read and dropped nothing of, which its
 * answers fork, and what each of them has. */
struct memory_cell {
    size_t context, answer;
};

static struct memory_cell memory_cell(const struct memory_ask *a, const struct kvl_cell *c)
{
    const struct kvl_footprint *f = &a->out->footprint;
    bool evicts = c->policy->policy->caps & KVL_CAP_EVICTS;
    int64_t kept = evicts ? kvl_planned_budget(c->planned) : 0;
    if (kept == 0 || kept > c->length) kept = c->length; /* no budget: it may keep everything */
    size_t copy = (size_t)((kept + f->block_tok - 1) / f->block_tok) * f->block_bytes;
    return (struct memory_cell){
        .context = !evicts && kvl_planned_own_prefill(c->planned) ? copy : 0,
        .answer = (evicts ? copy : 0) +
                  kvl_planned_table_bytes(c->planned, a->n_kv_heads, a->type, c->length)
    };
}

/* Answers are batched until they own the room, and the one that passed it is in the batch.  Where no context is shared,
 * the one that is held whole is a policy's own. */
static void memory_context(const struct memory_ask *a, const struct kvl_group *g, int32_t context)
{
    const bool alone = g->speed || kvl_point_reading(g->task); /* one session at a time */
    const bool shared = kvl_state_shares(a->r->state, g, context);
    struct kvl_memory *m = a->out;
    for (int p = 0; p < KVL_N_PROTOCOLS; p++) {
        size_t all = 0, most = 0, whole = 0;
        for (size_t i = g->first; i < g->first + g->n; i++) {
            const struct kvl_cell *c = &a->r->work->cell[i];
            if ((int)c->protocol != p || !kvl_state_wants(a->r->state, context, i)) continue;
            struct memory_cell own = memory_cell(a, c);
            all += own.context + own.answer * (size_t)a->r->work->sweep->questions;
            most = KVL_MAX(most, own.answer + (shared ? own.context : 0));
            whole = KVL_MAX(whole, shared ? 0 : own.context);
        }
        all = alone ? most : KVL_MIN(all - whole, kvl_memory_room(m->footprint.kv_bytes) + most);
        m->cell_bytes = KVL_MAX(m->cell_bytes, most);
        m->own_bytes = KVL_MAX(m->own_bytes, all);
    }
}

static void memory_own(const struct memory_ask *a)
{
    const struct kvl_work *w = a->r->work;
    for (size_t i = 0; i < w->n_groups; i++)
        for (int32_t c = 0; w->group[i].mine && c < (w->group[i].speed ? 1 : w->sweep->contexts);
             c++)
            memory_context(a, &w->group[i], c);
}

/* The context once more, in the type that answers are compared with. */
static int memory_reference(struct kvl_engine_desc desc, int32_t length, struct kvl_footprint *all,
                            struct kvl_err *err)
{
    struct kvl_footprint f;
    desc.kv_type = kvl_kv_reference(desc.kv_type);
    KVL_TRY(kvl_footprint(&desc, length, &f, err));
    all->kv_bytes += f.kv_bytes;
    all->block_bytes += f.block_bytes;
    all->window_bytes += f.window_bytes;
    return KVL_OK;
}

int kvl_memory_plan(const struct kvl_runner *r, enum kvl_kv_type type, struct kvl_memory *out,
                    struct kvl_err *err)
{
    const struct kvl_work *w = r->work;
    struct kvl_engine_desc desc = { .model = w->model,
                                    .kv_type = type,
                                    .raw_keys = w->raw_keys,
                                    .chunk_tok = w->sweep->chunk_tok,
                                    .kv_limit_bytes = (size_t)w->sweep->kv_limit_mib << 20 };
    const char *device = w->sweep->device;
    struct kvl_memory m = { .length_tok = memory_longest(r, &desc.chunk_tok),
                            .on_device =
                                device && kvl_device_is_gpu(device) && !w->sweep->prefill_kv_host };
    KVL_TRY(kvl_footprint(&desc, m.length_tok, &m.footprint, err));
    memory_own(&(struct memory_ask){
        .r = r, .type = type, .n_kv_heads = kvl_model_shape(w->model)->n_kv_heads, .out = &m });
    if (kvl_work_compares(w)) KVL_TRY(memory_reference(desc, m.length_tok, &m.footprint, err));
    *out = m;
    return KVL_OK;
}

static double memory_gib(size_t bytes)
{
    return (double)bytes / 0x1p30;
}

/* On the CPU, mapped weights must stay where they are: a cache that is dropped is read from disk for every token. */
static int64_t memory_beside(const struct kvl_memory *m)
{
    const struct kvl_footprint *f = &m->footprint;
    return (int64_t)(m->cell_bytes + f->work_bytes +
                     (f->weights_cached && !m->on_device ? f->weight_bytes : 0));
}

int64_t kvl_memory_all(const struct kvl_memory *m)
{
    const struct kvl_footprint *f = &m->footprint;
    return (int64_t)(f->kv_bytes + f->work_bytes + f->weight_bytes + m->own_bytes + MEMORY_PROGRAM);
}

int64_t kvl_memory_fits_tok(const struct kvl_memory *m, int64_t free_bytes)
{
    return kvl_footprint_fits(&m->footprint, free_bytes - memory_beside(m));
}

bool kvl_memory_fits(const struct kvl_memory *m, int64_t free_bytes)
{
    return free_bytes <= 0 || (int64_t)m->footprint.kv_bytes + memory_beside(m) <= free_bytes;
}

const char *kvl_memory_smaller(const struct kvl_runner *r, int64_t free_bytes)
{
    static const struct {
        enum kvl_kv_type type;
        const char *text;
    } smaller[] = { { KVL_KV_F16, ", or --kv-type f16" },
                    { KVL_KV_Q8_0, ", or --kv-type q8_0" },
                    { KVL_KV_Q4_0, ", or --kv-type q4_0" } };
    const int32_t dim = kvl_model_shape(r->work->model)->head_dim;
    const size_t now = kvl_kv_slot_bytes(r->work->sweep->kv_type, dim, false);
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        struct kvl_memory m;
        if (kvl_kv_check(smaller[i].type, dim, NULL) != KVL_OK) continue;
        if (kvl_kv_slot_bytes(smaller[i].type, dim, false) >= now) continue;
        if (kvl_memory_plan(r, smaller[i].type, &m, NULL) != KVL_OK) continue;
        if (kvl_memory_fits(&m, free_bytes)) return smaller[i].text;
    }
    return NULL;
}

int kvl_memory_check(const struct kvl_memory *m, const struct kvl_sweep *s, int64_t free_bytes,
                     const char *what, const char *instead, struct kvl_err *err)
{
    const struct kvl_footprint *f = &m->footprint;
    char beside[64] = "";
    if (kvl_memory_fits(m, free_bytes)) return KVL_OK;
    if (memory_beside(m) >= 0.05 * 0x1p30)
        snprintf(beside, sizeof beside, ", weights, activations and what a method owns %.1f GiB",
                 memory_gib((size_t)memory_beside(m)));
    return kvl_fail(
        err, KVL_ENOMEM,
        "%s: lengths: %d tokens: their keys and values take %.1f GiB%s, %.1f GiB of %s are "
        "free: want at most %lld tokens%s",
        s->file ? s->file : s->name, m->length_tok, memory_gib(f->kv_bytes), beside,
        memory_gib((size_t)free_bytes), what, (long long)kvl_memory_fits_tok(m, free_bytes),
        instead);
}
