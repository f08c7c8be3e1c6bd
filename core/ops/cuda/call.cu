/* One call of an operator: its arguments on the device, its temporary memory, its end.
 *
 * Temporary memory is a stack that every call empties: the work of a stream runs in order, so that a call
 * cannot write over what the one before still reads.  A call that needs more than there is takes a further
 * piece; the next call finds them as one, so that decode does not allocate. */
#include "kv_rows.cuh"
#include "runtime.cuh"

#include <string.h>

enum { TEMP_PIECES = 32, TEMP_MIN_BYTES = 1 << 20, TEMP_ALIGN = 256 };

struct temp_piece {
    uint8_t *base;
    size_t bytes;
};

static struct {
    struct temp_piece piece[TEMP_PIECES];
    int32_t n;
    size_t used; /* of the last piece */
} temp;

static size_t temp_total(void)
{
    size_t total = 0;
    for (int32_t i = 0; i < temp.n; i++) total += temp.piece[i].bytes;
    return total;
}

static int temp_add(size_t bytes)
{
    void *base;
    if (temp.n == TEMP_PIECES) return KVL_ENOMEM; /* pieces are small only where memory is short */
    KVL_TRY(kvl_cuda_alloc(KVL_PLACE_DEVICE, bytes, &base));
    temp.piece[temp.n++] = { static_cast<uint8_t *>(base), bytes };
    temp.used = 0;
    return KVL_OK;
}

/* Several pieces become one; the largest of them, where memory is short. */
static int temp_reset(void)
{
    temp.used = 0;
    if (temp.n < 2) return KVL_OK;
    struct temp_piece best = { NULL, temp_total() };
    void *base = NULL;
    int rc = kvl_cuda_alloc(KVL_PLACE_DEVICE, best.bytes, &base);
    if (rc == KVL_EDEVICE) return rc;
    best.base = static_cast<uint8_t *>(base);
    int32_t keep = -1;
    for (int32_t i = 0; rc != KVL_OK && i < temp.n; i++)
        if (keep < 0 || temp.piece[i].bytes > temp.piece[keep].bytes) keep = i;
    if (keep >= 0) best = temp.piece[keep];
    for (int32_t i = 0; i < temp.n; i++)
        if (i != keep) kvl_cuda_release(KVL_PLACE_DEVICE, temp.piece[i].base);
    temp.piece[0] = best;
    temp.n = 1;
    return KVL_OK;
}

static int temp_take(size_t bytes, void **out)
{
    bytes = (bytes + TEMP_ALIGN - 1) / TEMP_ALIGN * TEMP_ALIGN;
    if (temp.n == 0 || bytes > temp.piece[temp.n - 1].bytes - temp.used) {
        /* As much again as there is, so that pieces stay few; just enough where that is too much. */
        size_t want = KVL_MAX(KVL_MAX(bytes, temp_total()), (size_t)TEMP_MIN_BYTES);
        int rc = temp_add(want);
        if (rc == KVL_ENOMEM && bytes < want) rc = temp_add(bytes);
        KVL_TRY(rc);
    }
    *out = temp.piece[temp.n - 1].base + temp.used;
    temp.used += bytes;
    return KVL_OK;
}

int kvl_cuda_temp_open(void)
{
    return temp.n > 0 ? KVL_OK : temp_add(TEMP_MIN_BYTES);
}

void kvl_cuda_begin(struct kvl_cuda_call *c)
{
    c->n_out = 0;
    c->staged = c->tells = false;
    c->rc = kvl_cuda_ready();
    if (c->rc == KVL_OK) c->rc = kvl_cuda_step_pace();
    if (c->rc == KVL_OK) c->rc = temp_reset();
}

void *kvl_cuda_temp_bytes(struct kvl_cuda_call *c, size_t bytes)
{
    void *p = NULL;
    if (c->rc == KVL_OK) c->rc = temp_take(KVL_MAX(bytes, (size_t)1), &p);
    return c->rc == KVL_OK ? p : NULL;
}

const void *kvl_cuda_upload_bytes(struct kvl_cuda_call *c, const void *host, size_t bytes)
{
    const void *twin = NULL;
    if (c->rc == KVL_OK) c->rc = kvl_cuda_step_put(host, bytes, &twin);
    if (twin) return twin;
    void *p = kvl_cuda_temp_bytes(c, bytes);
    if (p) c->rc = kvl_cuda_ring_upload(p, host, bytes, KVL_STREAM_MAIN);
    return c->rc == KVL_OK ? p : NULL;
}

const void *kvl_cuda_in_bytes(struct kvl_cuda_call *c, const void *p, size_t bytes)
{
    enum kvl_place place;
    if (!p || c->rc != KVL_OK) return NULL;
    if (bytes == 0) return p;
    const void *device = kvl_cuda_find(p, bytes, &place);
    if (device && kvl_cuda_is_twin(place)) c->rc = kvl_cuda_twin_in(p, bytes);
    if (c->rc != KVL_OK) return NULL;
    if (device) return device;
    c->staged = true;
    return kvl_cuda_upload_bytes(c, p, bytes);
}

bool kvl_cuda_has(const void *p)
{
    enum kvl_place place;
    return kvl_cuda_find(p, 1, &place) != NULL;
}

void *kvl_cuda_out_bytes(struct kvl_cuda_call *c, void *p, size_t bytes, bool keep)
{
    enum kvl_place place;
    if (!p || c->rc != KVL_OK) return NULL;
    if (bytes == 0) return p;
    void *device = kvl_cuda_find(p, bytes, &place);
    if (device) {
        assert(place != KVL_PLACE_HOST); /* mirrors are read */
        if (kvl_cuda_is_twin(place)) c->rc = kvl_cuda_twin_out(p, bytes, keep);
        if (c->rc != KVL_OK) return NULL;
        if (place == KVL_PLACE_PINNED) kvl_cuda_rt.traffic.d2h_bytes += (int64_t)bytes;
        return device;
    }
    assert(c->n_out < KVL_CUDA_STAGED);
    c->staged = true;
    device = kvl_cuda_temp_bytes(c, bytes);
    if (device && keep) c->rc = kvl_cuda_upload_to(device, p, bytes, KVL_STREAM_MAIN);
    if (c->rc != KVL_OK) return NULL;
    c->out[c->n_out].host = p;
    c->out[c->n_out].device = device;
    c->out[c->n_out++].bytes = bytes;
    return device;
}

int32_t *kvl_cuda_mark(struct kvl_cuda_call *c)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (c->rc != KVL_OK) return NULL;
    c->tells = c->staged || rt->now;
    if (c->tells) return rt->marks + KVL_DEVICE_MARKS;
    rt->n_marks = KVL_MAX(rt->n_marks, rt->mark_row + 1);
    return rt->marks + rt->mark_row;
}

/* Waits; the call's own mark does not stay for the next one, whatever became of this one. */
static void call_wait(struct kvl_cuda_call *c)
{
    int32_t *own = kvl_cuda_rt.marks + KVL_DEVICE_MARKS;
    int rc = kvl_cuda_wait(KVL_STREAM_MAIN);
    if (c->rc == KVL_OK) c->rc = rc;
    if (!c->tells) return;
    if (c->rc == KVL_OK && *own != 0) c->rc = KVL_ENUMERIC;
    *own = 0;
}

int kvl_cuda_end(struct kvl_cuda_call *c)
{
    if (c->rc == KVL_OK) c->rc = kvl_cuda_check(cudaGetLastError(), "starting kernels");
    if (c->rc == KVL_OK && kvl_cuda_rt.checks) c->rc = kvl_cuda_wait(KVL_STREAM_MAIN);
    for (int32_t i = 0; c->rc == KVL_OK && i < c->n_out; i++)
        c->rc =
            kvl_cuda_download(c->out[i].host, c->out[i].device, c->out[i].bytes, KVL_STREAM_MAIN);
    if (c->tells || (c->rc == KVL_OK && c->n_out > 0)) call_wait(c);
    return c->rc;
}

int kvl_cuda_fetch(struct kvl_cuda_call *c, void *host, const void *device, size_t bytes)
{
    if (c->rc == KVL_OK) c->rc = kvl_cuda_check(cudaGetLastError(), "starting kernels");
    if (c->rc == KVL_OK) c->rc = kvl_cuda_download(host, device, bytes, KVL_STREAM_MAIN);
    if (c->rc == KVL_OK) c->rc = kvl_cuda_wait(KVL_STREAM_MAIN);
    return c->rc;
}

/* ---- lanes ---------------------------------------------------------------------------------------- */

/* Block addresses of a lane of host memory, whose blocks are staged. */
static const uint8_t *const *lane_stage(struct kvl_cuda_call *c, const struct kvl_lane *lane)
{
    const struct kvl_layout *l = lane->layout;
    int32_t n = kvl_ceil_div(lane->n_slots, l->block_tok);
    const uint8_t **blocks =
        static_cast<const uint8_t **>(kvl_alloc((size_t)n + 1, sizeof *blocks));
    if (!blocks) {
        c->rc = KVL_ENOMEM;
        return NULL;
    }
    for (int32_t b = 0; c->rc == KVL_OK && b < n; b++)
        blocks[b] = kvl_cuda_in(c, lane->blocks[b], l->bytes);
    const uint8_t *const *table = kvl_cuda_upload(c, blocks, (size_t)n);
    kvl_free(blocks);
    return table;
}

static const uint8_t *const *lane_blocks(struct kvl_cuda_call *c, const struct kvl_lane *lane)
{
    return lane->data || c->rc != KVL_OK ? lane->data : lane_stage(c, lane);
}

struct kvl_kept_lane kvl_cuda_kept(struct kvl_cuda_call *c, const struct kvl_lane *lane)
{
    const struct kvl_layout *l = lane->layout;
    struct kvl_kept_lane out = {};
    out.blocks = lane_blocks(c, lane);
    out.block_shift = l->block_shift;
    out.head_dim = l->head_dim;
    for (int part = 0; part < 3; part++) {
        out.type[part] = l->type[part];
        out.off[part] = (uint32_t)l->part_off[part];
        out.row[part] = (uint32_t)l->row_bytes[part];
    }
    return out;
}

static struct kvl_cuda_lane lane_of(struct kvl_cuda_call *c, const struct kvl_lane *lane)
{
    const struct kvl_layout *l = lane->layout;
    struct kvl_cuda_lane out = {};
    if (kvl_cuda_is_kept(l)) {
        const struct kvl_kept_lane kept = kvl_cuda_kept(c, lane);
        out.blocks = c->rc == KVL_OK ? kvl_cuda_rows_widen(c, &kept, l, lane->n_slots) : NULL;
    } else {
        out.blocks = lane_blocks(c, lane);
    }
    out.n_slots = lane->n_slots;
    out.block_shift = l->block_shift;
    out.head_dim = l->head_dim;
    out.type = kvl_cuda_type(l);
    for (int part = 0; part < 3; part++) out.off[part] = kvl_cuda_off(l, part);
    return out;
}

/* Lane i is list[i], or one[i] where there is no list. */
static const struct kvl_cuda_lane *lanes_upload(struct kvl_cuda_call *c,
                                                const struct kvl_lane *const *list,
                                                const struct kvl_lane *one, int32_t n)
{
    struct kvl_cuda_lane few[64], *all = few;
    if (c->rc != KVL_OK) return NULL;
    if (n > 64) all = static_cast<struct kvl_cuda_lane *>(kvl_alloc((size_t)n, sizeof *all));
    if (!all) {
        c->rc = KVL_ENOMEM;
        return NULL;
    }
    for (int32_t i = 0; i < n; i++) all[i] = lane_of(c, list ? list[i] : &one[i]);
    const struct kvl_cuda_lane *lanes = kvl_cuda_upload(c, all, (size_t)n);
    if (all != few) kvl_free(all);
    return lanes;
}

const struct kvl_cuda_lane *kvl_cuda_lanes(struct kvl_cuda_call *c, const struct kvl_lane *lane,
                                           int32_t n)
{
    return lanes_upload(c, NULL, lane, n);
}

const struct kvl_cuda_lane *kvl_cuda_lane_list(struct kvl_cuda_call *c,
                                               const struct kvl_lane *const *lane, int32_t n)
{
    return lanes_upload(c, lane, NULL, n);
}
