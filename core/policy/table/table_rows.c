/* Tables of a policy: rows per unit and lane, grown by the engine.
 *
 * The rows of a layer lie in two pieces: `base`, which relatives share and which is never written, and `tail`,
 * this session's own.  A fork gives everything to the base and copies nothing; a session that writes row r
 * then moves rows r and up to its own tail.  A method that only adds rows (Quest writes the newest page)
 * so pays for what it writes, however long the context is; one that writes anywhere (kvl_table_all) gets
 * all rows of a layer in its tail at its first write.  A tail that has outgrown its base becomes, with
 * it, a new base when it is shared: doubling, so that forks of forks copy little.
 *
 * Rows of a live table (KVL_UNIT_LIVE) lie column by column, each column as a lane of its own, and
 * close ranks when tokens are evicted: they cost what is live, not what has been.
 *
 * A lane table (KVL_UNIT_LANE) has one row, however long: it never grows. */
#include "policy_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { META_SLACK = 16, META_HUGE = 2 << 20 };

struct kvl_row_base {
    const struct kvl_device *dev;
    int32_t n_refs;
    int32_t n_rows, cap_rows; /* n_rows when it was frozen */
    bool context;             /* what attach built, nothing else */
    void *data;               /* [lanes][cap_rows][row] */
};

/* Rows of one layer: 0 .. n_base - 1 in base, n_base and up in tail. */
struct kvl_row_plane {
    struct kvl_row_base *base; /* NULL = none */
    int32_t n_base;            /* at most base->n_rows */
    int32_t cap_tail;
    void *tail;      /* [lanes][cap_tail][row], zero where nothing was written */
    bool blank;      /* attach wrote none of its rows */
    int32_t *n_live; /* [n_kv_heads] of a live table: rows of each lane, and zeros after them */
};

static bool is_live(const struct kvl_row_table *t)
{
    return t->decl.unit == KVL_UNIT_LIVE;
}

/* Zeroed memory; large tables are read as fast as memory allows, on huge pages where there are any. */
static void *rows_alloc(const struct kvl_row_table *t, int32_t n_rows)
{
    size_t bytes;
    if (kvl_mul_size(t->n_lanes * (size_t)n_rows, t->row_bytes, &bytes) != KVL_OK) return NULL;
    if (t->dev->discrete) return t->dev->alloc(KVL_PLACE_TABLE, KVL_MAX(bytes, 1), 1);
    if (bytes < META_HUGE || bytes > SIZE_MAX - META_HUGE) return kvl_alloc(bytes, 1);
    size_t whole = (bytes + META_HUGE - 1) / META_HUGE * META_HUGE;
    void *p = aligned_alloc(META_HUGE, whole);
    if (!p) return NULL;
    (void)madvise(p, whole, MADV_HUGEPAGE);
    memset(p, 0, bytes);
    return p;
}

static void rows_free(const struct kvl_device *dev, void *rows)
{
    if (dev->discrete)
        dev->free(KVL_PLACE_TABLE, rows);
    else
        kvl_free(rows);
}

/* Rows from .. from + n - 1 of every lane, from `src` with room for src_rows to row `to` of `dst`; after what
 * operators were given, and done when it returns: the old rows may be freed next. */
static int rows_copy(const struct kvl_row_table *t, void *dst, int32_t dst_rows, int32_t to,
                     const void *src, int32_t src_rows, int32_t from, int32_t n)
{
    for (size_t lane = 0; n > 0 && lane < t->n_lanes; lane++)
        KVL_TRY(t->dev->copy((uint8_t *)dst + (lane * (size_t)dst_rows + (size_t)to) * t->row_bytes,
                             (const uint8_t *)src +
                                 (lane * (size_t)src_rows + (size_t)from) * t->row_bytes,
                             (size_t)n * t->row_bytes, KVL_STREAM_MAIN));
    return n > 0 ? t->dev->rest() : KVL_OK;
}

/* Rows that a layer has: of a live table, those of its longest lane. */
static int32_t plane_rows(const struct kvl_row_table *t, const struct kvl_row_plane *p)
{
    int32_t n = is_live(t) ? 0 : t->n_rows;
    for (int32_t h = 0; is_live(t) && h < t->n_kv_heads; h++) n = KVL_MAX(n, p->n_live[h]);
    return n;
}

/* A base goes with the last session that reads it, however long the one that wrote it is gone. */
static void base_unref(struct kvl_row_base *b)
{
    if (!b || --b->n_refs > 0) return;
    rows_free(b->dev, b->data);
    kvl_free(b);
}

/* ---- life ------------------------------------------------------------------------------------- */

static int table_planes(struct kvl_row_table *t)
{
    t->plane = kvl_alloc((size_t)t->decl.n_layers, sizeof *t->plane);
    if (!t->plane) return KVL_ENOMEM;
    for (int32_t i = 0; is_live(t) && i < t->decl.n_layers; i++) {
        struct kvl_row_plane *p = &t->plane[i];
        p->n_live = kvl_alloc((size_t)t->n_kv_heads, sizeof *p->n_live);
        if (!p->n_live) return KVL_ENOMEM;
        for (int32_t h = 0; h < t->n_kv_heads; h++) p->n_live[h] = t->n_rows;
    }
    return KVL_OK;
}

int kvl_row_table_create(const struct kvl_engine *e, const struct kvl_row_decl *decl, int32_t n_pos,
                         struct kvl_row_table **out)
{
    struct kvl_row_table *t = kvl_alloc(1, sizeof *t);
    if (!t) return KVL_ENOMEM;
    *t = kvl_row_table_shape(decl, e->model->shape.n_kv_heads, kvl_store_desc(e->store)->type,
                             n_pos);
    t->dev = e->dev;
    if (table_planes(t) != KVL_OK) {
        kvl_row_table_destroy(t);
        return KVL_ENOMEM;
    }
    *out = t;
    return KVL_OK;
}

void kvl_row_table_destroy(struct kvl_row_table *t)
{
    if (!t) return;
    for (int32_t i = 0; t->plane && i < t->decl.n_layers; i++) {
        base_unref(t->plane[i].base);
        rows_free(t->dev, t->plane[i].tail);
        kvl_free(t->plane[i].n_live);
    }
    kvl_free(t->plane);
    kvl_free(t);
}

/* Counts only. Memory comes when a hook asks for the rows, since many layers never do. */
void kvl_row_table_append(struct kvl_row_table *t, int32_t layer, int32_t n_pos)
{
    t->n_rows = KVL_MAX(t->n_rows, kvl_row_decl_rows(&t->decl, n_pos));
    int32_t at = t->decl.at ? t->decl.at[layer] : layer;
    for (int32_t h = 0; is_live(t) && at >= 0 && h < t->n_kv_heads; h++) t->plane[at].n_live[h]++;
}

/* What the method needs, shared rows too: a fork reports as much as its parent. */
size_t kvl_row_table_bytes(const struct kvl_row_table *t)
{
    size_t rows = 0;
    if (!is_live(t))
        return (size_t)t->decl.n_layers * t->n_lanes * (size_t)t->n_rows * t->row_bytes;
    for (int32_t i = 0; i < t->decl.n_layers; i++)
        for (int32_t h = 0; h < t->n_kv_heads; h++) rows += (size_t)t->plane[i].n_live[h];
    return rows * (size_t)t->decl.row_elems * t->row_bytes;
}

/* ---- pieces ----------------------------------------------------------------------------------- */

/* Makes the tail begin at row `first` or before and end at the table's last row. */
static int plane_reach(const struct kvl_row_table *t, struct kvl_row_plane *p, int32_t first)
{
    /* The tail only ever begins earlier: rows of the base that it took over may have been written
     * since. */
    int32_t begin = KVL_MIN(first, p->n_base), need = plane_rows(t, p) - begin;
    bool wide = is_live(t) && p->cap_tail > 2 * need + 4 * META_SLACK; /* after a cut */
    if (begin == p->n_base && need <= p->cap_tail && !wide) return KVL_OK;
    /* The context comes at once and needs no room to grow in; tokens come one by one. */
    bool grows = (p->cap_tail > 0 || p->base) && t->decl.unit != KVL_UNIT_LANE;
    /* By a quarter, so that rows that come one by one are copied a few times each. */
    int32_t cap = grows ? need + need / 4 + META_SLACK : need;
    int32_t n_base = p->n_base - begin;
    void *tail = rows_alloc(t, cap);
    if (!tail) return KVL_ENOMEM;
    int rc = KVL_OK;
    if (p->base) rc = rows_copy(t, tail, cap, 0, p->base->data, p->base->cap_rows, begin, n_base);
    if (rc == KVL_OK && p->tail)
        rc = rows_copy(t, tail, cap, n_base, p->tail, p->cap_tail, 0,
                       KVL_MIN(p->cap_tail, cap - n_base));
    rows_free(t->dev, rc == KVL_OK ? p->tail : tail);
    KVL_TRY(rc);
    p->tail = tail;
    p->cap_tail = cap;
    p->n_base = begin;
    if (begin > 0) return KVL_OK;
    base_unref(p->base);
    p->base = NULL;
    return KVL_OK;
}

/* All rows to the base, where the tail is as long as it is; else it stays a tail.  They become one piece first, since
 * a base has one address: a copy, but each row is copied once for every doubling of the table. */
static int plane_freeze(const struct kvl_row_table *t, struct kvl_row_plane *p)
{
    int32_t n_rows = plane_rows(t, p);
    if (p->cap_tail == 0 || n_rows - p->n_base <= p->n_base) return KVL_OK;
    KVL_TRY(plane_reach(t, p, 0));
    struct kvl_row_base *base = kvl_alloc(1, sizeof *base);
    if (!base) return KVL_ENOMEM;
    *base = (struct kvl_row_base){
        .dev = t->dev, .n_refs = 1, .n_rows = n_rows, .cap_rows = p->cap_tail, .data = p->tail
    };
    *p = (struct kvl_row_plane){
        .base = base, .n_base = n_rows, .blank = p->blank, .n_live = p->n_live
    };
    return KVL_OK;
}

/* The tail is copied, the base is shared: a fork costs what was written since the last one. */
static int plane_fork(const struct kvl_row_table *t, const struct kvl_row_plane *from,
                      struct kvl_row_plane *to)
{
    if (from->tail) {
        void *tail = rows_alloc(t, from->cap_tail);
        if (!tail) return KVL_ENOMEM;
        to->tail = tail;
        to->cap_tail = from->cap_tail;
        KVL_TRY(
            rows_copy(t, tail, from->cap_tail, 0, from->tail, from->cap_tail, 0, from->cap_tail));
    }
    if (is_live(t)) memcpy(to->n_live, from->n_live, (size_t)t->n_kv_heads * sizeof *to->n_live);
    to->blank = from->blank;
    to->base = from->base;
    to->n_base = from->n_base;
    if (to->base) to->base->n_refs++;
    return KVL_OK;
}

/* The parent gives its rows to a base first, so that both read the same memory from here on. */
int kvl_row_table_fork(const struct kvl_engine *e, struct kvl_row_table *from,
                       struct kvl_row_table **out)
{
    struct kvl_row_table *t;
    KVL_TRY(kvl_row_table_create(e, &from->decl, 0, &t));
    t->n_rows = from->n_rows;
    for (int32_t i = 0; i < t->decl.n_layers; i++) {
        int rc = plane_freeze(from, &from->plane[i]);
        if (rc == KVL_OK) rc = plane_fork(from, &from->plane[i], &t->plane[i]);
        if (rc == KVL_OK) continue;
        kvl_row_table_destroy(t);
        return rc;
    }
    *out = t;
    return KVL_OK;
}

/* A layer whose rows attach never wrote is blank: it can be shared without having memory. */
int kvl_row_table_freeze(struct kvl_row_table *t)
{
    for (int32_t i = 0; i < t->decl.n_layers; i++) {
        struct kvl_row_plane *p = &t->plane[i];
        KVL_TRY(plane_freeze(t, p));
        p->blank = !p->base;
        if (p->base) p->base->context = true;
    }
    return KVL_OK;
}

static bool plane_serves(const struct kvl_row_plane *p, int32_t n_rows)
{
    return p->blank || (p->base && p->base->context && p->base->n_rows == n_rows);
}

/* A base is never written: it holds what attach built, whatever its sessions did since.  All layers are looked at before
 * the first one changes; live rows are of what a budget left, and never shared. */
bool kvl_row_table_share(const struct kvl_row_table *from, struct kvl_row_table *to)
{
    const struct kvl_row_decl *a = &from->decl, *b = &to->decl;
    if (is_live(from) || a->unit != b->unit || a->unit_tok != b->unit_tok ||
        a->row_elems != b->row_elems || a->per_layer != b->per_layer ||
        a->n_layers != b->n_layers || a->elem != b->elem || from->type != to->type)
        return false;
    for (int32_t i = 0; i < a->n_layers; i++)
        if (!plane_serves(&from->plane[i], to->n_rows)) return false;
    for (int32_t i = 0; i < a->n_layers; i++) {
        struct kvl_row_plane *p = &to->plane[i];
        base_unref(p->base);
        rows_free(to->dev, p->tail);
        *p = (struct kvl_row_plane){ .blank = true };
        if (from->plane[i].blank) continue;
        *p = (struct kvl_row_plane){ .base = from->plane[i].base, .n_base = to->n_rows };
        p->base->n_refs++;
    }
    return true;
}

/* ---- eviction --------------------------------------------------------------------------------- */

/* Waits with others for kvl_row_table_settle, which comes before the next row is written; lists are in the arena of
 * lists. */
static int lane_rows_later(struct kvl_engine *e, const struct kvl_rows_lane *l,
                           struct kvl_rows_run *run)
{
    struct kvl_rows_move *m = kvl_arena_get(&e->late_lists, 1, sizeof *m);
    if (!m) return KVL_ENOMEM;
    *m = (struct kvl_rows_move){ .next = e->rows_moves, .lane = *l, .run = run };
    e->rows_moves = m;
    e->n_rows_moves++;
    e->n_rows_runs += l->n_runs;
    return KVL_OK;
}

/* Columns close ranks as lanes do. On a device all lanes of a step go in one launch (kvl_row_table_settle). */
static int table_drop(struct kvl_session *s, struct kvl_row_table *t, struct kvl_row_plane *p,
                      int32_t kv_head, int32_t n_live, const int32_t *gone, int32_t n_gone)
{
    struct kvl_engine *e = s->engine;
    bool blank = p->cap_tail == 0 && !p->base; /* no row was written so far */
    if (blank) return KVL_OK;
    /* Runs are parted by tokens that go, and each holds one that stays. */
    size_t most = (size_t)KVL_MIN(n_gone, n_live - n_gone) + 1;
    struct kvl_rows_run *run = kvl_arena_get(&e->late_lists, most, sizeof *run);
    /* Shared rows are copied now: ranks close in place. */
    if (!run || plane_reach(t, p, 0) != KVL_OK) return KVL_ENOMEM;
    struct kvl_rows_lane l = { .column_bytes = (size_t)p->cap_tail * t->row_bytes,
                               .elem_bytes = (int32_t)t->row_bytes,
                               .n_columns = t->decl.row_elems,
                               .n_runs = kvl_lane_runs(gone, n_gone, n_live, run),
                               .n_kept = n_live - n_gone,
                               .n_live = n_live };
    l.data = (uint8_t *)p->tail + (size_t)(kv_head * l.n_columns) * l.column_bytes;
    if (t->dev->rows_keep) return lane_rows_later(e, &l, run);
    /* The CPU moves at once. The arena may hold evictions that wait for the end of the step: then
     * its memory stays. */
    kvl_lane_rows_keep(&l, run);
    if (!e->late_first) kvl_arena_reset(&e->late_lists);
    return KVL_OK;
}

int kvl_row_table_drop(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t n_live,
                       const int32_t *gone, int32_t n_gone)
{
    for (int32_t i = 0; i < s->planned->p.n_tables; i++) {
        struct kvl_row_table *t = s->host.table[i];
        int32_t at = t->decl.at ? t->decl.at[layer] : layer;
        if (!is_live(t) || at < 0) continue;
        struct kvl_row_plane *p = &t->plane[at];
        if (table_drop(s, t, p, kv_head, n_live, gone, n_gone) != KVL_OK)
            return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory for table %d", i);
        p->n_live[kv_head] = n_live - n_gone;
    }
    return KVL_OK;
}

/* Rows follow the tokens of an eviction.  What all layers evicted in a step goes to the device as one launch: the lists
 * lie in the arena of what is late, since the device reads them after the step's own memory is reused. */
int kvl_row_table_settle(struct kvl_engine *e, struct kvl_err *err)
{
    if (e->n_rows_moves == 0) return KVL_OK;
    struct kvl_rows_lane *lane =
        kvl_arena_get(&e->late_lists, (size_t)e->n_rows_moves, sizeof *lane);
    struct kvl_rows_run *run =
        kvl_arena_get(&e->late_lists, (size_t)e->n_rows_runs + 1, sizeof *run);
    if (!lane || !run) return kvl_fail(err, KVL_ENOMEM, "out of memory to evict");
    struct kvl_rows_keep_args a = { .lane = lane, .run = run };
    for (const struct kvl_rows_move *m = e->rows_moves; m; m = m->next) {
        lane[a.n_lanes] = m->lane;
        lane[a.n_lanes++].first_run = a.n_runs;
        memcpy(run + a.n_runs, m->run, (size_t)m->lane.n_runs * sizeof *run);
        a.n_runs += m->lane.n_runs;
    }
    e->rows_moves = NULL;
    e->n_rows_moves = e->n_rows_runs = 0;
    e->pending = true;
    int rc = e->dev->rows_keep(&a);
    if (!e->late_first) kvl_arena_reset(&e->late_lists);
    return kvl_engine_failed(e, "rows of tables", rc, err);
}

/* ---- what policies call --------------------------------------------------------------------------- */

/* The rows of one layer of a table; *plane is NULL after a refusal. */
static int find_plane(const struct kvl_pctx *ctx, int32_t handle, int32_t layer,
                      struct kvl_row_table **t, struct kvl_row_plane **plane)
{
    const struct kvl_session *s = ctx->host->session;
    if (handle < 0 || handle >= s->planned->p.n_tables || layer < 0 ||
        layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d of layer %d, want a handle from plan",
                        handle, layer);
    *t = ctx->host->table[handle];
    layer = kvl_layer_of(ctx, layer);
    int32_t at = (*t)->decl.at ? (*t)->decl.at[layer] : layer;
    if (at < 0)
        return kvl_fail(ctx->err, KVL_EPOLICY, "table %d has no rows in layer %d, by plan", handle,
                        layer);
    *plane = &(*t)->plane[at];
    return KVL_OK;
}

/* Rows that count as read when a hook takes a view of a layer to choose: one that selects sees all,
 * one that evicts those of live tokens. */
static int64_t rows_to_read(const struct kvl_session *s, const struct kvl_row_table *t,
                            int32_t layer)
{
    int64_t sum = 0;
    if (is_live(t)) {
        const int32_t *n_live = t->plane[t->decl.at ? t->decl.at[layer] : layer].n_live;
        for (int32_t h = 0; h < t->n_kv_heads; h++) sum += (int64_t)n_live[h] * t->decl.row_elems;
        return sum;
    }
    for (size_t h = 0; h < t->n_lanes; h++) {
        int32_t n_rows = kvl_row_decl_rows(&t->decl, s->host.n_visible);
        /* Rows of the whole layer are counted by the first lane. */
        int32_t n_live = kvl_seq_len(s->seq, layer, (int32_t)h);
        sum += s->host.phase == HOOK_EVICT ? KVL_MIN(n_rows, n_live) : n_rows;
    }
    return sum;
}

/* What a hook reads of tables is the method's cost beside keys and values: index_read_bytes. */
static void count_rows(const struct kvl_pctx *ctx, const struct kvl_row_table *t, int64_t n_rows)
{
    ctx->host->session->count.index_read_bytes += n_rows * (int64_t)t->row_bytes;
}

/* A layer's rows as callers see them, without their places. */
static struct kvl_rows rows_shape(const struct kvl_row_table *t, int32_t n_rows)
{
    size_t elem = kvl_row_elem_bytes(t);
    return (struct kvl_rows){ .row_bytes = (size_t)t->decl.row_elems * elem,
                              .elem_bytes = elem,
                              .n_rows = n_rows,
                              .row_elems = t->decl.row_elems,
                              .unit = t->decl.unit,
                              .unit_tok = t->decl.unit_tok,
                              .elem = t->decl.elem,
                              .type = t->type };
}

/* From one kv head to the next where rows have room for `cap` of them. */
static size_t head_bytes(const struct kvl_row_table *t, int32_t cap)
{
    size_t elem = kvl_row_elem_bytes(t);
    return t->decl.per_layer ? 0 : (size_t)cap * (size_t)t->decl.row_elems * elem;
}

/* Rows `first` and up in one piece: what comes before may stay shared. */
int kvl_table_operand_out(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                          struct kvl_rows *out)
{
    struct kvl_row_table *t;
    struct kvl_row_plane *p;
    KVL_TRY(find_plane(ctx, table, layer, &t, &p));
    int32_t n_rows = plane_rows(t, p);
    if (first < 0 || first > n_rows)
        return kvl_fail(ctx->err, KVL_EPOLICY, "rows from %d on of table %d, which has %d", first,
                        table, n_rows);
    if (plane_reach(t, p, first) != KVL_OK)
        return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for the %d rows of table %d", n_rows,
                        table);
    *out = rows_shape(t, n_rows - first);
    out->column_bytes = is_live(t) ? (size_t)p->cap_tail * t->row_bytes : 0;
    out->part[0].data =
        p->tail ? (uint8_t *)p->tail + (size_t)(first - p->n_base) * t->row_bytes : NULL;
    out->part[0].head_bytes = head_bytes(t, p->cap_tail);
    out->part[0].n_rows = n_rows - first;
    return KVL_OK;
}

/* The host may look at n parts of rows, and write them if `writes`: on a GPU they come over when the hook looks. */
static int rows_hand(const struct kvl_pctx *ctx, int32_t table, const struct kvl_rows *rows,
                     int32_t n, bool writes)
{
    const struct kvl_row_table *t = ctx->host->table[table];
    struct kvl_pieces given[2];
    for (int32_t i = 0; i < n; i++) {
        bool none = !rows->part[i].data || rows->part[i].n_rows == 0;
        given[i] = (struct kvl_pieces){ .data = rows->part[i].data,
                                        .bytes = (size_t)rows->part[i].n_rows * t->row_bytes,
                                        .stride = rows->column_bytes > 0 ? rows->column_bytes
                                                                         : rows->part[i].head_bytes,
                                        .n = none ? 0 : t->n_lanes,
                                        .writes = writes };
    }
    return kvl_hand(ctx->host->session, given, n, ctx->err);
}

/* The first n_rows rows of every kv head, in as many pieces as they lie in: nothing is copied. */
int kvl_table_operand(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                      struct kvl_rows *out)
{
    struct kvl_row_table *t;
    struct kvl_row_plane *p;
    KVL_TRY(find_plane(ctx, table, layer, &t, &p));
    if (is_live(t))
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "table %d has rows of live tokens, which come in one piece: want "
                        "kvl_table_all",
                        table);
    if (n_rows < 0 || n_rows > t->n_rows)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d rows of table %d, which has %d", n_rows, table,
                        t->n_rows);
    /* Makes room for rows that were appended since; none leaves the base. */
    if (plane_reach(t, p, p->n_base) != KVL_OK)
        return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for the %d rows of table %d",
                        t->n_rows, table);
    *out = rows_shape(t, n_rows);
    out->part[0].n_rows = KVL_MIN(p->n_base, n_rows);
    out->part[1].n_rows = n_rows - out->part[0].n_rows;
    if (out->part[0].n_rows > 0) {
        out->part[0].data = p->base->data;
        out->part[0].head_bytes = head_bytes(t, p->base->cap_rows);
    }
    out->part[1].data = p->tail;
    out->part[1].head_bytes = head_bytes(t, p->cap_tail);
    return KVL_OK;
}

/* The host may write all of it, so on a GPU it gets all of it when it looks. */
int kvl_table_write(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t first,
                    struct kvl_rows *out)
{
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, first, out));
    return rows_hand(ctx, table, out, 1, true);
}

/* In hooks that build or observe nothing is counted: they write, and writing is no reading. */
int kvl_table_all(const struct kvl_pctx *ctx, int32_t table, int32_t layer, struct kvl_rows *out)
{
    KVL_TRY(kvl_table_operand_out(ctx, table, layer, 0, out));
    const struct kvl_row_table *t = ctx->host->table[table];
    if (ctx->host->phase == HOOK_SELECT || ctx->host->phase == HOOK_EVICT)
        count_rows(ctx, t, rows_to_read(ctx->host->session, t, kvl_layer_of(ctx, layer)));
    return rows_hand(ctx, table, out, 1, true);
}

int kvl_table_peek(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                   struct kvl_rows *out)
{
    KVL_TRY(kvl_table_operand(ctx, table, layer, n_rows, out));
    return rows_hand(ctx, table, out, 2, false);
}

int kvl_table_read_operand(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                           struct kvl_rows *out)
{
    KVL_TRY(kvl_table_operand(ctx, table, layer, n_rows, out));
    const struct kvl_row_table *t = ctx->host->table[table];
    count_rows(ctx, t, (int64_t)n_rows * (int64_t)t->n_lanes);
    return KVL_OK;
}

int kvl_table_read(const struct kvl_pctx *ctx, int32_t table, int32_t layer, int32_t n_rows,
                   struct kvl_rows *out)
{
    KVL_TRY(kvl_table_read_operand(ctx, table, layer, n_rows, out));
    return rows_hand(ctx, table, out, 2, false);
}

/* For reads that only the method knows: some channels, some buckets. */
int kvl_table_count(const struct kvl_pctx *ctx, int32_t table, int64_t n_elems)
{
    if (table < 0 || table >= ctx->host->session->planned->p.n_tables || n_elems < 0)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "%lld elements of table %d, want 0 or more, and a handle from plan",
                        (long long)n_elems, table);
    const struct kvl_row_table *t = ctx->host->table[table];
    size_t bytes = kvl_row_elem_bytes(t);
    ctx->host->session->count.index_read_bytes += n_elems * (int64_t)bytes;
    return KVL_OK;
}
