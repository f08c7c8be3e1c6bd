/* Memory of both sides: host memory with a twin on the device, and who has each grain of it.
 *
 *   HOST    the host alone: operators that read it get a copy first
 *   FRESH   nobody: as HOST, but operators that begin to write a grain do not bring its other bytes along
 *   BOTH    both the same
 *   DEVICE  the device alone: the host gets a copy before it looks
 *
 * SHARED memory becomes the host's with sync.  TABLE memory stays where it is until `host` asks for it; what that allowed
 * the host to write (OPEN) is the host's again after every operator of ops_now that wrote it.  So every byte that travels
 * is one that the other side was about to touch.  No page moves by itself, as those of managed memory would, and a GPU
 * that is full is out of memory instead of slow.
 *
 * The emulation finds a host that touches what it does not have: whole pages are closed, parts of a page are full of ones,
 * which are NaNs, and a byte that is another when the host gets it back, or when operators read it, was written. */
#include "twin.cuh"

#ifdef KVL_CUDA_HOST
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#endif
#include <string.h>

enum { GRAIN = 64 }; /* bytes */
enum { GRAIN_HOST = 0, GRAIN_FRESH, GRAIN_BOTH, GRAIN_DEVICE, GRAIN_SIDE = 3, GRAIN_OPEN = 4 };

static bool twin_opened; /* some range has open grains */

size_t kvl_cuda_twin_bytes(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

#ifdef KVL_CUDA_HOST
/* ---- what the emulation sees -------------------------------------------------------------------------- */

/* Of a grain; never 0, which is of one that nobody looked at. */
static uint32_t seen_hash(const struct memory_range *r, size_t grain)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < GRAIN; i++) h = (h ^ r->base[grain * GRAIN + i]) * 16777619u;
    return h | 1;
}

static bool seen_untouched(const struct memory_range *r, size_t grain)
{
    const uint8_t *p = r->base + grain * GRAIN;
    int side = r->grain[grain] & GRAIN_SIDE;
    if (side == GRAIN_BOTH) return r->seen[grain] == 0 || r->seen[grain] == seen_hash(r, grain);
    if (side != GRAIN_DEVICE) return true;
    for (size_t i = 0; i < GRAIN; i++)
        if (p[i] != 0xff) return false;
    return true;
}

/* Whether the device alone has a whole page. */
static bool seen_closed(const struct memory_range *r, size_t first, size_t each)
{
    size_t i = first, n = r->bytes / GRAIN;
    while (i < first + each && i < n && (r->grain[i] & GRAIN_SIDE) == GRAIN_DEVICE) i++;
    return i == first + each;
}

/* Pages that some grains of g lie in: open, or closed where the device alone has the whole page. */
static void seen_pages(const struct memory_range *r, struct memory_grains g, bool close)
{
    size_t each = (size_t)sysconf(_SC_PAGESIZE) / GRAIN;
    for (size_t at = g.first / each * each, end; at < g.end; at = end) {
        bool closed = close && seen_closed(r, at, each);
        end = at + each;
        while (end < g.end && (close && seen_closed(r, end, each)) == closed) end += each;
        if (mprotect(r->base + at * GRAIN, (end - at) * GRAIN,
                     closed ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
            abort();
    }
}

static void seen_check(const struct memory_range *r, struct memory_grains g)
{
    for (size_t i = g.first; i < g.end; i++) {
        if (seen_untouched(r, i)) continue;
        fprintf(stderr, "twin: the host wrote to %p, which the device has\n",
                static_cast<void *>(r->base + i * GRAIN));
        abort();
    }
}

/* Before operators read grains: of those that both sides have. */
static void seen_read(const struct memory_range *r, struct memory_grains g)
{
    for (size_t i = g.first; i < g.end; i++)
        if ((r->grain[i] & GRAIN_SIDE) == GRAIN_BOTH) seen_check(r, { i, i + 1 });
}

/* Before grains go to another side. */
static void seen_leave(const struct memory_range *r, struct memory_grains g)
{
    if (g.first >= g.end) return;
    seen_pages(r, g, false);
    seen_check(r, g);
}

static void seen_set(const struct memory_range *r, struct memory_grains g, int kind, bool copied)
{
    seen_pages(r, g, false);
    for (size_t i = g.first; i < g.end; i++)
        r->seen[i] = kind == GRAIN_BOTH && copied ? seen_hash(r, i) : 0;
    if (kind == GRAIN_DEVICE) memset(r->base + g.first * GRAIN, 0xff, (g.end - g.first) * GRAIN);
    seen_pages(r, g, true);
}

/* What was fetched is there now. */
static void seen_fetched(const struct memory_range *r, struct memory_grains g)
{
    for (size_t i = g.first; i < g.end; i++)
        if ((r->grain[i] & GRAIN_SIDE) == GRAIN_BOTH && r->seen[i] == 0)
            r->seen[i] = seen_hash(r, i);
}
#endif

/* ---- grains ------------------------------------------------------------------------------------------ */

static struct memory_grains twin_grains(const struct memory_range *r, const void *p, size_t bytes)
{
    size_t at = (size_t)((uintptr_t)p - (uintptr_t)r->base);
    return { at / GRAIN, (at + bytes + GRAIN - 1) / GRAIN };
}

static struct memory_grains twin_cut(struct memory_grains a, struct memory_grains b)
{
    struct memory_grains c = { KVL_MAX(a.first, b.first), KVL_MIN(a.end, b.end) };
    c.first = KVL_MIN(c.first, c.end);
    return c;
}

static void twin_widen(struct memory_grains *g, struct memory_grains by)
{
    if (g->first >= g->end)
        *g = by;
    else
        *g = { KVL_MIN(g->first, by.first), KVL_MAX(g->end, by.end) };
}

/* None of `gone` is meant any more; what would be two pieces stays as it was. */
static void twin_narrow(struct memory_grains *g, struct memory_grains gone)
{
    if (gone.first <= g->first && gone.end >= g->end)
        *g = {};
    else if (gone.first <= g->first && gone.end > g->first)
        g->first = gone.end;
    else if (gone.end >= g->end && gone.first < g->end)
        g->end = gone.first;
}

/* Whether the host has grains of this kind for good. */
static bool twin_stays(const struct memory_range *r, int kind)
{
    return kind <= GRAIN_FRESH || (kind == GRAIN_BOTH && r->place == KVL_PLACE_TABLE);
}

/* `copied`: the host's side is as the device's will be. */
static void twin_set(struct memory_range *r, struct memory_grains g, int kind, bool copied)
{
    (void)copied;
    if (g.first >= g.end) return;
    for (size_t i = g.first; i < g.end; i++)
        r->grain[i] = (uint8_t)((r->grain[i] & GRAIN_OPEN) | kind);
    if (kind <= GRAIN_FRESH)
        twin_widen(&r->host, g);
    else
        twin_narrow(&r->host, g);
    if (twin_stays(r, kind))
        twin_narrow(&r->away, g);
    else
        twin_widen(&r->away, g);
#ifdef KVL_CUDA_HOST
    seen_set(r, g, kind, copied);
#endif
}

static void twin_mark(struct memory_range *r, struct memory_grains g, int kind)
{
#ifdef KVL_CUDA_HOST
    seen_leave(r, g);
#endif
    twin_set(r, g, kind, true);
}

int kvl_cuda_twin_open(struct memory_range *r)
{
    size_t n = r->bytes / GRAIN;
    bool table = r->place == KVL_PLACE_TABLE;
    r->grain = static_cast<uint8_t *>(kvl_alloc(n, 1));
    if (!r->grain) return KVL_ENOMEM;
#ifdef KVL_CUDA_HOST
    r->seen = static_cast<uint32_t *>(kvl_alloc(n, sizeof *r->seen));
#endif
    twin_set(r, { 0, n }, table ? GRAIN_BOTH : GRAIN_HOST, true);
    return KVL_OK;
}

void kvl_cuda_twin_close(struct memory_range *r)
{
#ifdef KVL_CUDA_HOST
    seen_pages(r, { 0, r->bytes / GRAIN }, false);
    kvl_free(r->seen);
#endif
    kvl_free(r->grain);
    r->grain = NULL;
}

/* Whether the host alone, or the device alone, has a grain. */
static bool twin_is(const struct memory_range *r, size_t grain, bool device)
{
    int side = r->grain[grain] & GRAIN_SIDE;
    return device ? side == GRAIN_DEVICE : side <= GRAIN_FRESH;
}

/* The first run of grains in *g that one side alone has, which *g then begins behind; false: there is none. */
static bool twin_run(const struct memory_range *r, struct memory_grains *g, bool device,
                     struct memory_grains *run)
{
    size_t at = g->first;
    while (at < g->end && !twin_is(r, at, device)) at++;
    *run = { at, at };
    while (run->end < g->end && twin_is(r, run->end, device)) run->end++;
    g->first = run->end;
    return run->first < run->end;
}

/* ---- copies ------------------------------------------------------------------------------------------- */

/* What the host alone has.  Of an operator that is waited for, and where the host may write, it stays the host's. */
static int twin_push(struct memory_range *r, struct memory_grains g)
{
    struct memory_grains run;
    g = twin_cut(g, r->host);
    while (twin_run(r, &g, false, &run)) {
        KVL_TRY(kvl_cuda_upload_to(r->device + run.first * GRAIN, r->base + run.first * GRAIN,
                                   (run.end - run.first) * GRAIN, KVL_STREAM_MAIN));
        if (kvl_cuda_rt.now && r->place == KVL_PLACE_SHARED) continue;
        for (size_t at = run.first, end; at < run.end; at = end) {
            int open = r->grain[at] & GRAIN_OPEN;
            for (end = at; end < run.end && (r->grain[end] & GRAIN_OPEN) == open;) end++;
            if (!open) twin_mark(r, { at, end }, GRAIN_BOTH);
        }
    }
    return KVL_OK;
}

/* What the device alone has, of TABLE memory where the host asked for it (open) or everywhere.  The host has it when MAIN
 * has run. */
static int twin_fetch(struct memory_range *r, struct memory_grains g, bool open, bool *under_way)
{
    struct memory_grains run;
    g = twin_cut(g, r->away);
    while (twin_run(r, &g, true, &run)) {
        size_t end = run.first, last = run.end;
        for (size_t at = run.first; at < last; at = end) {
            bool wanted = !open || (r->grain[at] & GRAIN_OPEN);
            for (end = at; end < last && wanted == (!open || (r->grain[end] & GRAIN_OPEN));) end++;
            if (!wanted) continue;
#ifdef KVL_CUDA_HOST
            seen_leave(r, { at, end });
#endif
            KVL_TRY(kvl_cuda_download(r->base + at * GRAIN, r->device + at * GRAIN,
                                      (end - at) * GRAIN, KVL_STREAM_MAIN));
            *under_way = true;
            twin_set(r, { at, end }, open || r->place == KVL_PLACE_SHARED ? GRAIN_HOST : GRAIN_BOTH,
                     false);
        }
    }
    return KVL_OK;
}

/* ---- what others call ---------------------------------------------------------------------------------- */

int kvl_cuda_twin_in(const void *p, size_t bytes)
{
    struct memory_range *r = kvl_cuda_range(p);
#ifdef KVL_CUDA_HOST
    seen_read(r, twin_grains(r, p, bytes));
#endif
    return twin_push(r, twin_grains(r, p, bytes));
}

/* What a grain at an end has beside the bytes that are written stays. */
int kvl_cuda_twin_out(void *p, size_t bytes, bool keep)
{
    struct memory_range *r = kvl_cuda_range(p);
    struct memory_grains g = twin_grains(r, p, bytes);
    size_t head = (uintptr_t)p % GRAIN, tail = ((uintptr_t)p + bytes) % GRAIN;
    if (g.first == g.end) return KVL_OK;
    bool new_head = (r->grain[g.first] & GRAIN_SIDE) == GRAIN_FRESH;
    bool new_tail = (r->grain[g.end - 1] & GRAIN_SIDE) == GRAIN_FRESH;
    if (keep) KVL_TRY(twin_push(r, g));
    if (head && !new_head) KVL_TRY(twin_push(r, { g.first, g.first + 1 }));
    if (tail && !new_tail) KVL_TRY(twin_push(r, { g.end - 1, g.end }));
    twin_mark(r, g, GRAIN_DEVICE);
    if (kvl_cuda_rt.now && r->place == KVL_PLACE_TABLE) kvl_cuda_rt.pull_tables = true;
    return KVL_OK;
}

bool kvl_cuda_twin_is_host(const void *p, size_t bytes)
{
    const struct memory_range *r = kvl_cuda_range(p);
    struct memory_grains g = twin_cut(twin_grains(r, p, bytes), r->away), run;
    return !twin_run(r, &g, true, &run);
}

/* SHARED memory is the host's, who may write it. */
static int twin_pull_one(struct memory_range *r)
{
    bool table = r->place == KVL_PLACE_TABLE, ignored;
    if (!kvl_cuda_is_twin(r->place) || r->away.first >= r->away.end) return KVL_OK;
    if (table)
        return kvl_cuda_rt.pull_tables ? twin_fetch(r, twin_cut(r->away, r->open), true, &ignored)
                                       : KVL_OK;
    KVL_TRY(twin_fetch(r, r->away, false, &ignored));
    for (size_t i = r->away.first, end = r->away.end; i < end; i++)
        if ((r->grain[i] & GRAIN_SIDE) == GRAIN_BOTH) twin_mark(r, { i, i + 1 }, GRAIN_HOST);
    r->away = {};
    return KVL_OK;
}

int kvl_cuda_twin_pull(void)
{
    KVL_TRY(kvl_cuda_each_range(twin_pull_one));
    kvl_cuda_rt.pull_tables = false;
    return KVL_OK;
}

/* The i-th piece; NULL: all memory there is the host's. */
static struct memory_range *twin_piece(const struct kvl_pieces *list, size_t i,
                                       struct memory_grains *g)
{
    const uint8_t *p = list->data + i * list->stride;
    struct memory_range *r = list->bytes > 0 ? kvl_cuda_range(p) : NULL;
    if (!r || !kvl_cuda_is_twin(r->place)) return NULL;
    *g = twin_grains(r, p, list->bytes);
    return r;
}

/* Once it has been fetched. */
static void twin_give(struct memory_range *r, struct memory_grains g, bool writes)
{
#ifdef KVL_CUDA_HOST
    seen_fetched(r, g);
#endif
    if (!writes) return;
    twin_mark(r, g, GRAIN_HOST);
    for (size_t i = g.first; i < g.end; i++) r->grain[i] |= GRAIN_OPEN;
    twin_widen(&r->open, g);
    twin_opened = true;
}

int kvl_cuda_twin_host(const struct kvl_pieces *list, int32_t n)
{
    bool under_way = false;
    struct memory_range *r;
    struct memory_grains g;
    KVL_TRY(kvl_cuda_ready());
    for (int32_t l = 0; l < n; l++)
        for (size_t i = 0; i < list[l].n; i++)
            if ((r = twin_piece(&list[l], i, &g))) KVL_TRY(twin_fetch(r, g, false, &under_way));
    if (under_way) KVL_TRY(kvl_cuda_wait(KVL_STREAM_MAIN));
    for (int32_t l = 0; l < n; l++)
        for (size_t i = 0; i < list[l].n; i++)
            if ((r = twin_piece(&list[l], i, &g))) twin_give(r, g, list[l].writes);
    return KVL_OK;
}

static int twin_settle_one(struct memory_range *r)
{
    for (size_t i = r->open.first; i < r->open.end; i++) r->grain[i] &= GRAIN_SIDE;
    r->open = {};
    return KVL_OK;
}

void kvl_cuda_twin_settle(void)
{
    if (twin_opened) (void)kvl_cuda_each_range(twin_settle_one);
    twin_opened = false;
}

void kvl_cuda_twin_fresh(void *p, size_t bytes, bool ahead)
{
    struct memory_range *r = kvl_cuda_range(p);
    if (!r || r->place != KVL_PLACE_SHARED) return;
    twin_mark(r, twin_grains(r, p, bytes), ahead ? GRAIN_FRESH : GRAIN_HOST);
}
