/* Selections that serve several layers or steps, as a policy declared.
 *
 * An entry serves layers layer_first..layer_last at steps from..until.  In a block all rows of a
 * layer run before the next layer, so that entries of later rows are there already when an earlier
 * row asks: `from` keeps it from seeing them.  Where several entries serve, the latest counts, as
 * it would if the tokens came one by one. */
#include "policy_impl.h"

#include <string.h>

struct kvl_shared_sel {
    struct kvl_shared_sel *next; /* of those not in use */
    int32_t n_refs;
    struct kvl_segment seg[KVL_MAX_SEGMENTS];
    int32_t n_seg;
    struct kvl_arena mem; /* lists and items */
};

/* An entry without users keeps its memory for the next one: a steady state allocates nothing. */
static void shared_unref(struct kvl_host *host, struct kvl_shared_sel *sh)
{
    if (--sh->n_refs > 0) return;
    kvl_arena_reset(&sh->mem);
    sh->next = host->unused;
    host->unused = sh;
}

/* Taken from those that wait, whose memory is large enough after a few steps. */
static struct kvl_shared_sel *shared_get(struct kvl_host *host)
{
    struct kvl_shared_sel *sh = host->unused;
    if (!sh) return kvl_alloc(1, sizeof *sh);
    host->unused = sh->next;
    return sh;
}

static void shared_free(struct kvl_shared_sel *sh)
{
    if (!sh) return;
    kvl_arena_free(&sh->mem);
    kvl_free(sh);
}

/* Into the entry's own arena: the step arena is gone with the layer. */
static void *shared_copy(struct kvl_shared_sel *sh, const void *data, size_t n, size_t item)
{
    void *p = kvl_arena_get(&sh->mem, n + 1, item);
    if (p && n > 0) memcpy(p, data, n * item);
    return p;
}

/* Lists deep, scores not at all: what was chosen is all that the other layers need. */
static int shared_fill(struct kvl_shared_sel *sh, const struct kvl_sel *sel)
{
    sh->n_seg = sel->n_seg;
    for (int32_t i = 0; i < sel->n_seg; i++) {
        struct kvl_segment *g = &sh->seg[i];
        *g = sel->seg[i];
        if (!g->list) continue;
        g->list = shared_copy(sh, g->list, (size_t)g->n_lists, sizeof *g->list);
        if (!g->list) return KVL_ENOMEM;
        for (int32_t j = 0; j < g->n_lists; j++) {
            struct kvl_sel_list *l = &g->list[j];
            l->item = shared_copy(sh, l->item, (size_t)l->n, sizeof *l->item);
            if (l->range) {
                l->range = shared_copy(sh, l->range, (size_t)l->n_ranges, sizeof *l->range);
                if (!l->range) return KVL_ENOMEM;
            }
            if (l->log_weight)
                l->log_weight =
                    shared_copy(sh, l->log_weight, (size_t)l->n + 1, sizeof *l->log_weight);
            if (!l->item) return KVL_ENOMEM;
        }
    }
    return KVL_OK;
}

/* Entries that no later step can use make room; all steps of the running block are s->index or
 * later. */
static void share_prune(struct kvl_session *s)
{
    struct kvl_host *host = &s->host;
    int32_t n = 0;
    for (int32_t i = 0; i < host->n_share; i++) {
        if (host->share[i].until < s->index)
            shared_unref(host, host->share[i].sel);
        else
            host->share[n++] = host->share[i];
    }
    host->n_share = n;
}

/* Grows to what a block needs: each of its rows may leave an entry. */
static int share_room(struct kvl_host *host)
{
    if (host->n_share < host->cap_share) return KVL_OK;
    int32_t cap = host->cap_share ? 2 * host->cap_share : 16;
    struct kvl_share *more = kvl_alloc((size_t)cap, sizeof *more);
    if (!more) return KVL_ENOMEM;
    if (host->n_share > 0) memcpy(more, host->share, (size_t)host->n_share * sizeof *more);
    kvl_free(host->share);
    host->share = more;
    host->cap_share = cap;
    return KVL_OK;
}

/* Items on their way are waited for: an entry outlives the arena that they would come to. */
int kvl_sel_save(struct kvl_sel *sel, const struct kvl_row *row)
{
    if (sel->share_steps == 0) return KVL_OK;
    struct kvl_host *host = &sel->s->host;
    KVL_TRY(kvl_sel_look(sel));
    share_prune(sel->s);
    struct kvl_shared_sel *sh = shared_get(host);
    if (!sh || shared_fill(sh, sel) != KVL_OK || share_room(host) != KVL_OK) {
        shared_free(sh);
        return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for a shared selection");
    }
    sh->n_refs = 1;
    host->share[host->n_share++] = (struct kvl_share){ sh, sel->layer, sel->share_layer, row->index,
                                                       row->index > INT32_MAX - sel->share_steps
                                                           ? INT32_MAX
                                                           : row->index + sel->share_steps - 1 };
    return KVL_OK;
}

/* Lists are borrowed from the entry, which stays as long as a step can use it. */
bool kvl_sel_load(struct kvl_sel *sel, const struct kvl_row *row)
{
    const struct kvl_host *host = &sel->s->host;
    const struct kvl_share *best = NULL;
    for (int32_t i = 0; i < host->n_share; i++) {
        const struct kvl_share *e = &host->share[i];
        bool serves = sel->layer >= e->layer_first && sel->layer <= e->layer_last &&
                      row->index >= e->from && row->index <= e->until;
        if (serves && (!best || e->from >= best->from)) best = e;
    }
    if (!best) return false;
    memcpy(sel->seg, best->sel->seg, sizeof sel->seg);
    sel->n_seg = best->sel->n_seg;
    return true;
}

/* Entries are counted references: neither side changes one, each lets go its own. */
int kvl_shares_fork(struct kvl_host *to, const struct kvl_host *from)
{
    if (from->n_share == 0) return KVL_OK;
    to->share = kvl_alloc((size_t)from->n_share, sizeof *to->share);
    if (!to->share) return KVL_ENOMEM;
    memcpy(to->share, from->share, (size_t)from->n_share * sizeof *to->share);
    to->n_share = to->cap_share = from->n_share;
    for (int32_t i = 0; i < to->n_share; i++) to->share[i].sel->n_refs++;
    return KVL_OK;
}

/* Entries in use and those that wait alike. */
void kvl_shares_free(struct kvl_host *host)
{
    for (int32_t i = 0; i < host->n_share; i++) shared_unref(host, host->share[i].sel);
    while (host->unused) {
        struct kvl_shared_sel *next = host->unused->next;
        shared_free(host->unused);
        host->unused = next;
    }
    kvl_free(host->share);
}

/* An entry like that of a selection that shares itself, so that rows of a block keep apart. */
int kvl_select_ahead(const struct kvl_pctx *ctx, const struct kvl_step *step, int32_t layer_first,
                     int32_t layer_last, const int32_t *pos, int32_t n)
{
    struct kvl_session *s = ctx->host->session;
    struct kvl_sel sel;
    if (layer_first <= step->layer || layer_last < layer_first ||
        layer_last >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "layer %d selects for layers %d to %d, want layers behind it, up to %d",
                        step->layer, layer_first, layer_last, ctx->shape->n_layers - 1);
    kvl_sel_init(&sel, s, kvl_layer_of(ctx, layer_first), step->pos + 1, ctx->err);
    KVL_TRY(kvl_sel_tokens(&sel, KVL_SCOPE_LAYER, 0, pos, n));
    KVL_TRY(kvl_sel_share(&sel, layer_last, 1));
    s->count.n_select++;
    return kvl_sel_save(&sel, &(struct kvl_row){ .s = s, .index = step->index, .pos = step->pos });
}
