/* What the compiler's calls before loads and stores are checked with: cuda_host_races.h. */
#ifdef KVL_EMU_RACES
#include "cuda_host_races.h"
#include "cuda_host_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <unordered_map>

extern "C" unsigned char __executable_start[], _end[];
extern "C" unsigned char __start_kvl_shared[] __attribute__((weak)),
    __stop_kvl_shared[] __attribute__((weak));

namespace
{
enum {
    WORD = 4,
    PAGE = 4096,
    CACHE = 256,
    SHARED_BYTES = 227 * 1024,
    LANES = 32,
    MAX_THREADS = 1024
};

/* Of a word of four bytes, or of one.  block: its number since the process began, 0 for none; epoch: barriers of the
 * block; stamp: meetings of the warp.  Readers: those of the last block that read, in its last epoch. */
struct cell {
    uint32_t write_block, write_at, read_block, read_at;
    uint32_t read_warps, read_lanes; /* lanes: of the last warp, in its last stamp */
    uint16_t write_epoch, write_stamp, read_epoch, read_stamp;
    uint16_t write_thread, read_warp;
    bool atomic, many_atomic; /* the last store; by several threads in the epoch */
    bool many_blocks;         /* of one launch have read */
};

/* Of a word there is one cell until an access is to a part of it. */
struct page {
    struct cell word[PAGE / WORD];
    bool split[PAGE / WORD];
    struct cell byte[PAGE]; /* of words that are split */
};

/* What a thread had done before its fence, and what its block had before the barrier before that, holds for whoever
 * comes to the same atomic later. */
struct release {
    uint32_t block;
    uint16_t epoch, thread;
};
struct acquired {
    const std::vector<struct release> *from;
    size_t n;
    uint16_t epoch, thread; /* when, and who: others know it behind a barrier */
};

bool on, watching; /* a thread runs; this launch is looked at */
const struct kvl_emu_kernel *kernel;
std::unordered_map<const void *, unsigned> &n_launches =
    *new std::unordered_map<const void *, unsigned>();
uint32_t block, launch_first;
uint16_t epoch;
uint16_t stamp[MAX_THREADS / LANES];
uint16_t knows[MAX_THREADS]
              [LANES]; /* what a lane did before this stamp has happened, for the thread */
uint32_t fence_block[MAX_THREADS];
uint16_t fence_epoch[MAX_THREADS];
int me;
const unsigned char *stack;
size_t stack_bytes;

/* Of global memory. */
std::unordered_map<uintptr_t, struct page *> &pages =
    *new std::unordered_map<uintptr_t, struct page *>();
std::vector<struct page *> &spare = *new std::vector<struct page *>();
uintptr_t cache_number[CACHE];
struct page *cache_page[CACHE];
std::unordered_map<uintptr_t, std::vector<struct release>> &released =
    *new std::unordered_map<uintptr_t, std::vector<struct release>>();
std::vector<struct acquired> &got = *new std::vector<struct acquired>();

/* A store where another thread has stored: a race only if it changes something, which shows when it is done. */
struct {
    const unsigned char *p;
    size_t n;
    unsigned char was[16];
    struct cell before;
    uint32_t at;
} pending;

/* ---- reports ------------------------------------------------------------------------------------------ */

void say_place(const char *what, uint32_t at)
{
    char command[256], text[400] = "?";
    snprintf(command, sizeof command, "addr2line -e /proc/%d/exe 0x%x 2>/dev/null", (int)getpid(),
             at);
    FILE *f = popen(command, "r");
    if (f) {
        if (!fgets(text, sizeof text, f)) strcpy(text, "?");
        pclose(f);
    }
    text[strcspn(text, "\n")] = '\0';
    fprintf(stderr, "cuda_host:   %s %s\n", what, text);
}

bool is_dynamic(const unsigned char *p)
{
    return p >= kvl_emu_shared && p < kvl_emu_shared + SHARED_BYTES;
}
bool is_static(const unsigned char *p)
{
    return p >= __start_kvl_shared && p < __stop_kvl_shared;
}

const char *memory_of(const unsigned char *p)
{
    return is_dynamic(p)  ? "dynamic shared memory"
           : is_static(p) ? "shared memory"
                          : "global memory";
}

[[noreturn]] void race(const unsigned char *p, const char *now, uint32_t at, const char *then,
                       const struct cell *c, bool wrote)
{
    uint32_t other = wrote ? c->write_block : c->read_block;
    on = false;
    fprintf(stderr, "cuda_host: race in %s at %p, kernel %s, thread %d of block (%u, %u, %u)\n",
            memory_of(p), (const void *)p, kernel->name, me, blockIdx.x, blockIdx.y, blockIdx.z);
    say_place(now, at);
    say_place(then, wrote ? c->write_at : c->read_at);
    if (other != block)
        fprintf(stderr, "cuda_host:   the latter by another block\n");
    else if (wrote)
        fprintf(stderr, "cuda_host:   the latter by thread %d\n", c->write_thread);
    else
        fprintf(stderr, "cuda_host:   the latter by warp %d (warps %08x)\n", c->read_warp,
                c->read_warps);
    kvl_emu_die("nothing orders these two: a barrier, __syncwarp or a fence is missing");
}

[[noreturn]] void unset(const unsigned char *p, uint32_t at)
{
    on = false;
    fprintf(stderr, "cuda_host: %s at %p is read before it is written, %s\n", memory_of(p),
            (const void *)p, kvl_emu_where());
    say_place("loads", at);
    kvl_emu_die("no thread of this block has stored there");
}

/* ---- what is ordered ---------------------------------------------------------------------------------- */

/* What lane `lane` of this thread's warp did at `s` comes before. */
bool lane_before(int lane, uint16_t s)
{
    return lane == me % LANES || s < knows[me][lane];
}

bool write_before(const struct cell *c)
{
    if (c->write_epoch < epoch) return true;
    if (c->many_atomic) return false;
    return c->write_thread / LANES == me / LANES &&
           lane_before(c->write_thread % LANES, c->write_stamp);
}

bool reads_before(const struct cell *c)
{
    if (c->read_epoch < epoch) return true;
    if (c->read_warps & ~(1u << me / LANES)) return false;
    for (int lane = 0; lane < LANES; lane++)
        if (c->read_lanes >> lane & 1u && !lane_before(lane, c->read_stamp)) return false;
    return true;
}

/* What another block of this launch did, in its epoch e; thread -1: any. */
bool block_before(uint32_t other, uint16_t e, int thread)
{
    for (const struct acquired &a : got) {
        if (a.thread != me && a.epoch >= epoch) continue;
        for (size_t i = 0; i < a.n; i++) {
            const struct release *r = &(*a.from)[i];
            if (r->block == other && (e < r->epoch || (e == r->epoch && thread == r->thread)))
                return true;
        }
    }
    return false;
}

/* first: the oldest block that shares the memory; those before are over. */
bool settled_write(const struct cell *c, uint32_t first)
{
    if (c->write_block < first) return true;
    return c->write_block == block ? write_before(c)
                                   : block_before(c->write_block, c->write_epoch, c->write_thread);
}

bool settled_reads(const struct cell *c, uint32_t first)
{
    if (c->read_block < first) return true;
    if (first == launch_first && c->many_blocks && got.empty()) return false;
    return c->read_block == block ? reads_before(c)
                                  : block_before(c->read_block, c->read_epoch, -1);
}

/* ---- one byte ----------------------------------------------------------------------------------------- */

void note_write(struct cell *c, uint32_t at, bool atomic)
{
    c->many_atomic = atomic && c->write_block == block && c->write_epoch == epoch && c->atomic &&
                     (c->many_atomic || c->write_thread != me);
    c->write_block = block;
    c->write_epoch = epoch;
    c->write_stamp = stamp[me / LANES];
    c->write_thread = (uint16_t)me;
    c->write_at = at;
    c->atomic = atomic;
}

void note_read(struct cell *c, uint32_t at)
{
    uint16_t warp = (uint16_t)(me / LANES);
    if (c->read_block != block || c->read_epoch != epoch) {
        c->many_blocks =
            c->read_block >= launch_first && (c->many_blocks || c->read_block != block);
        c->read_block = block;
        c->read_epoch = epoch;
        c->read_warps = 0;
        c->read_warp = 0xffff;
    }
    if (c->read_warp != warp || c->read_stamp != stamp[warp]) c->read_lanes = 0;
    c->read_warp = warp;
    c->read_stamp = stamp[warp];
    c->read_warps |= 1u << warp;
    c->read_lanes |= 1u << me % LANES;
    c->read_at = at;
}

void settle(void)
{
    if (!pending.p) return;
    const unsigned char *p = pending.p;
    pending.p = nullptr;
    if (memcmp(p, pending.was, pending.n) != 0)
        race(p, "stores", pending.at, "stored", &pending.before, true);
}

/* ---- where bytes have their cells --------------------------------------------------------------------- */

/* Of shared memory: first what is dynamic. */
struct page *shared_pages(void)
{
    static struct page *p;
    size_t bytes = SHARED_BYTES + (size_t)(__stop_kvl_shared - __start_kvl_shared);
    if (!p) p = (struct page *)calloc(bytes / PAGE + 2, sizeof *p);
    if (!p) kvl_emu_die("no memory");
    return p;
}

struct page *new_page(void)
{
    struct page *p = spare.empty() ? (struct page *)malloc(sizeof *p) : spare.back();
    if (!p) kvl_emu_die("no memory");
    if (!spare.empty()) spare.pop_back();
    memset(p->word, 0, sizeof p->word);
    memset(p->split, 0, sizeof p->split);
    return p;
}

struct page *global_page(uintptr_t number)
{
    if (cache_number[number % CACHE] != number) {
        struct page *&p = pages[number];
        if (!p) p = new_page();
        cache_page[number % CACHE] = p;
        cache_number[number % CACHE] = number;
    }
    return cache_page[number % CACHE];
}

/* An access to n bytes. */
struct access {
    const unsigned char *p;
    size_t n;
    uint32_t at;
    struct page *pages; /* of shared memory, or nullptr */
    uintptr_t offset;   /* there; of global memory the address */
    uint32_t first;     /* block that shares the memory */
};

/* False: no other thread can see these bytes. */
bool access_of(const unsigned char *p, size_t n, uint32_t at, struct access *a)
{
    if ((size_t)(p - stack) < stack_bytes) return false;
    *a = { p, n, at, shared_pages(), 0, block };
    if (is_dynamic(p)) {
        a->offset = (uintptr_t)(p - kvl_emu_shared);
    } else if (is_static(p)) {
        a->offset = (uintptr_t)(p - __start_kvl_shared) + (uintptr_t)__start_kvl_shared % WORD +
                    (SHARED_BYTES + WORD) / WORD * WORD;
    } else {
        if (p >= __executable_start && p < _end) return false;
        a->pages = nullptr;
        a->offset = (uintptr_t)p;
        a->first = launch_first;
    }
    return true;
}

/* look(cell, its first byte) for all cells of an access. */
template <class F> void each_cell(const struct access *a, F look)
{
    for (size_t i = 0, n; i < a->n; i += n) {
        uintptr_t at = a->offset + i, in_page = at % PAGE, word = in_page / WORD;
        struct page *g = a->pages ? a->pages + at / PAGE : global_page(at / PAGE);
        n = WORD - at % WORD < a->n - i ? WORD - at % WORD : a->n - i;
        if (n == WORD && !g->split[word]) {
            look(&g->word[word], a->p + i);
            continue;
        }
        for (int k = 0; !g->split[word] && k < WORD; k++) g->byte[word * WORD + k] = g->word[word];
        g->split[word] = true;
        for (size_t k = 0; k < n; k++) look(&g->byte[in_page + k], a->p + i + k);
    }
}

/* ---- one access --------------------------------------------------------------------------------------- */

void load(const unsigned char *p, size_t n, uint32_t at)
{
    struct access a;
    if (!access_of(p, n, at, &a)) return;
    bool must_be_set = is_static(p);
    each_cell(&a, [&](struct cell *c, const unsigned char *q) {
        if (!settled_write(c, a.first)) race(q, "loads", at, "stored", c, true);
        if (must_be_set && c->write_block != block) unset(q, at);
        note_read(c, at);
    });
}

void store(const unsigned char *p, size_t n, uint32_t at)
{
    struct access a;
    if (!access_of(p, n, at, &a)) return;
    each_cell(&a, [&](struct cell *c, const unsigned char *q) {
        if (!settled_reads(c, a.first)) race(q, "stores", at, "loaded", c, false);
        if (!settled_write(c, a.first) && !pending.p) {
            if (n > sizeof pending.was) race(q, "stores", at, "stored", c, true);
            pending.p = p;
            pending.n = n;
            memcpy(pending.was, p, n);
            pending.before = *c;
            pending.at = at;
        }
        note_write(c, at, false);
    });
}

void atomic(const unsigned char *p, size_t n, uint32_t at)
{
    struct access a;
    auto change = [&](struct cell *c, const unsigned char *q) {
        if (!settled_reads(c, a.first)) race(q, "changes", at, "loaded", c, false);
        if (!c->atomic && !settled_write(c, a.first)) race(q, "changes", at, "stored", c, true);
        note_write(c, at, true);
    };
    if (access_of(p, n, at, &a))
        each_cell(&a, change); /* not of a __device__ variable, which orders all the same */
    std::vector<struct release> &r = released[(uintptr_t)p];
    if (!r.empty()) got.push_back({ &r, r.size(), epoch, (uint16_t)me });
    if (fence_block[me] == block) r.push_back({ block, fence_epoch[me], (uint16_t)me });
}

uint32_t place(const void *at)
{
    return (uint32_t)((const unsigned char *)at - __executable_start) - 1;
}

bool dropped(const char *file, int line)
{
    static const char *drop = getenv("KVL_EMU_DROP");
    char here[300];
    if (!drop) return false;
    const char *name = strrchr(file, '/');
    snprintf(here, sizeof here, "%s:%d", name ? name + 1 : file, line);
    return strcmp(here, drop) == 0;
}
} // namespace

/* ---- what the emulation tells ------------------------------------------------------------------------- */

void kvl_emu_race_grid(const struct kvl_emu_kernel *k)
{
    static const char *text = getenv("KVL_EMU_EVERY");
    unsigned every = text && atoi(text) > 0 ? (unsigned)atoi(text) : 1;
    kernel = k;
    watching = n_launches[k->fn]++ % every == 0;
    launch_first = block + 1;
    for (auto &p : pages) spare.push_back(p.second);
    pages.clear();
    released.clear();
    memset(cache_number, 0, sizeof cache_number);
}

void kvl_emu_race_block(void)
{
    block++;
    epoch = 1;
    for (uint16_t &s : stamp) s = 1;
    memset(knows, 0, sizeof knows);
    got.clear();
}

void kvl_emu_race_thread(int thread, const unsigned char *its_stack, size_t bytes)
{
    me = thread;
    stack = its_stack;
    stack_bytes = bytes;
    on = watching;
}

void kvl_emu_race_stop(void)
{
    settle();
    on = false;
}

void kvl_emu_race_barrier(const char *file, int line)
{
    if (dropped(file, line)) return;
    if (++epoch == 0) kvl_emu_die("more barriers than the checker of races counts");
}

void kvl_emu_race_warp(int base, unsigned mask, const char *file, int line)
{
    uint16_t all[LANES] = { 0 };
    if (dropped(file, line)) return;
    if (++stamp[base / LANES] == 0) kvl_emu_die("more meetings of a warp than are counted");
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; mask >> lane & 1u && i < LANES; i++)
            if (knows[base + lane][i] > all[i]) all[i] = knows[base + lane][i];
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1u) all[i] = stamp[base / LANES];
    for (int lane = 0; lane < LANES; lane++)
        if (mask >> lane & 1u) memcpy(knows[base + lane], all, sizeof all);
}

void kvl_emu_race_atomic(const void *p, size_t n, const void *from)
{
    if (!on) return;
    settle();
    atomic((const unsigned char *)p, n, place(from));
}

void kvl_emu_race_fence(void)
{
    fence_block[me] = block;
    fence_epoch[me] = epoch;
}

/* ---- what the compiler calls -------------------------------------------------------------------------- */

#define ACCESS(name, what, n)                                                                      \
    extern "C" void name(const void *p);                                                           \
    void name(const void *p)                                                                       \
    {                                                                                              \
        if (!on) return;                                                                           \
        settle();                                                                                  \
        what((const unsigned char *)p, n, place(__builtin_return_address(0)));                     \
    }
#define SIZE(n)                                                                                    \
    ACCESS(__tsan_read##n, load, n)                                                                \
    ACCESS(__tsan_write##n, store, n)                                                              \
    ACCESS(__tsan_unaligned_read##n, load, n)                                                      \
    ACCESS(__tsan_unaligned_write##n, store, n)
SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)
#define RANGE(name, what)                                                                          \
    extern "C" void name(const void *p, size_t n);                                                 \
    void name(const void *p, size_t n)                                                             \
    {                                                                                              \
        if (!on) return;                                                                           \
        settle();                                                                                  \
        what((const unsigned char *)p, n, place(__builtin_return_address(0)));                     \
    }
RANGE(__tsan_read_range, load)
RANGE(__tsan_write_range, store)
extern "C" void __tsan_init(void);
extern "C" void __tsan_func_entry(void *);
extern "C" void __tsan_func_exit(void *);
extern "C" void __tsan_vptr_update(void **, void *);
extern "C" void __tsan_vptr_read(void **);
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void *) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
#endif
