/* Blocks and threads: each thread of a block is a fiber of its own once it has to wait.
 *
 * A fiber runs one thread after the other as long as none of them waits, so kernels without barriers cost a
 * function call per thread.  A thread that waits keeps its fiber; another goes on with what is left. */
#include "cuda_host_impl.h"
#include "cuda_host_races.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned char *kvl_emu_shared;

namespace
{
enum {
    MAX_THREADS = 1024,
    STACK_BYTES = 512 * 1024,
    SHARED_BYTES = 227 * 1024,
    GUARD_BYTES = 32 * 1024,
    GUARD = 0xa5
};

struct fiber {
    void *sp;
    unsigned char *stack; /* nullptr: the one that called */
    size_t shift; /* of its top, so that the stacks of a warp do not share lines of a cache */
    const void *bottom;
    size_t bytes;
    void *fake; /* AddressSanitizer's */
#if !defined(__x86_64__) && !defined(__aarch64__)
    ucontext_t context;
#endif
};

enum thread_state { FRESH, BEGUN, AT_BARRIER, AT_WARP, ENDED };
struct thread {
    enum thread_state state; /* at warp primitives what `waiting` of the warp says instead */
    struct fiber *fiber;
};

/* What the lanes of a warp brought to a primitive, kept short: half of the time goes by there. */
struct warp {
    unsigned waiting, is; /* lanes that wait for others; that exist */
    uint64_t key[32];     /* mask, line and kind: the same of lanes that meet */
    uint64_t value[32], result[32];
    int from[32];
    const char *file[32];
};

struct fiber outside;
struct fiber *now = &outside;
#ifdef KVL_EMU_ASAN
bool left_outside;
#endif
struct fiber *idle[MAX_THREADS + 1]; /* with nothing to do */
int n_idle;

const struct kvl_emu_kernel *kernel;
const std::function<void()> *kernel_body;
struct thread threads[MAX_THREADS];
uint3 index_of[MAX_THREADS];
int n_threads, current, n_ended;
int start[MAX_THREADS], n_started; /* the order in which threads begin */
struct fiber *ready[MAX_THREADS];  /* whose threads may go on */
unsigned ready_head, n_ready;
int n_at_barrier, barrier_count, first_at_barrier;
struct {
    const char *file;
    int line, kind;
} at_barrier;
int barrier_result; /* of the last one: nobody is at the next before all have seen it */
struct warp warps[MAX_THREADS / 32];

/* ---- switching -------------------------------------------------------------------------------------- */

extern "C" void kvl_emu_switch(void **from, void *to);
void fiber_main(void);

#if defined(__x86_64__)
__asm__(".text\n.globl kvl_emu_switch\n.type kvl_emu_switch,@function\nkvl_emu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size kvl_emu_switch,.-kvl_emu_switch\n");
void fiber_prepare(struct fiber *f)
{
    void **top = (void **)(f->stack + STACK_BYTES - f->shift);
    *--top = nullptr; /* the stack is 16-byte aligned where fiber_main is called from */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->sp = top;
}
#elif defined(__aarch64__)
__asm__(".text\n.globl kvl_emu_switch\n.type kvl_emu_switch,%function\nkvl_emu_switch:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp,#0]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp,#0]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n.size kvl_emu_switch,.-kvl_emu_switch\n");
void fiber_prepare(struct fiber *f)
{
    void **sp = (void **)(f->stack + STACK_BYTES - f->shift - 160);
    for (int i = 0; i < 20; i++) sp[i] = nullptr;
    sp[11] = (void *)fiber_main; /* x30 */
    f->sp = sp;
}
#else
void fiber_prepare(struct fiber *f)
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
}
#endif

/* The sanitizer learns the stack that was left, for the way back to it. */
void arrived(void *fake)
{
#ifdef KVL_EMU_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(fake, &bottom, &bytes);
    if (left_outside) {
        outside.bottom = bottom;
        outside.bytes = bytes;
    }
    left_outside = false;
#else
    (void)fake;
#endif
}

void switch_to(struct fiber *to)
{
    struct fiber *from = now;
    if (to == from) return;
    now = to;
#ifdef KVL_EMU_ASAN
    left_outside = from == &outside;
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    kvl_emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    arrived(from->fake);
}

struct fiber *fiber_get(void)
{
    static size_t n_made;
    if (n_idle > 0) return idle[--n_idle];
    struct fiber *f = new struct fiber();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) kvl_emu_die("no memory for a stack");
    f->stack = (unsigned char *)p + page;
    f->bottom = f->stack;
    f->bytes = STACK_BYTES;
    f->shift = n_made++ % 64 * 448; /* seven lines further each time */
    fiber_prepare(f);
    return f;
}

/* ---- scheduling ------------------------------------------------------------------------------------- */

/* All of `list` in an order of its own; soon: before those that are ready already. */
void make_all_ready(const int *list, int n, bool soon)
{
    int at = (int)kvl_emu_below((uint64_t)n), step = kvl_emu_below(2) ? 1 : -1;
    if (soon) ready_head -= (unsigned)n;
    unsigned to = soon ? ready_head : ready_head + n_ready;
    for (int i = 0; i < n; i++) {
        ready[to++ % MAX_THREADS] = threads[list[at]].fiber;
        at += step;
        at = at == n ? 0 : at < 0 ? n - 1 : at;
    }
    n_ready += (unsigned)n;
}

struct place {
    enum thread_state state;
    const char *file;
    int line;
    unsigned mask;
};

struct place place_of(int t)
{
    const struct warp *w = &warps[t / 32];
    int lane = t % 32;
    if (w->waiting >> lane & 1u)
        return { AT_WARP, w->file[lane], (int)((uint32_t)w->key[lane] >> 4),
                 (unsigned)(w->key[lane] >> 32) };
    if (threads[t].state == AT_BARRIER) return { AT_BARRIER, at_barrier.file, at_barrier.line, 0 };
    return { threads[t].state, "", 0, 0 };
}

[[noreturn]] void stuck(void)
{
    static const char *const names[] = { "not begun", "begun", "at a barrier",
                                         "at a warp primitive", "ended" };
    int shown = 0;
    fprintf(stderr, "cuda_host: deadlock in kernel %s, block (%u, %u, %u)\n", kernel->name,
            blockIdx.x, blockIdx.y, blockIdx.z);
    for (int t = 0, first = 0; t < n_threads; t++) {
        struct place a = place_of(first), b = t + 1 < n_threads ? place_of(t + 1) : place{};
        if (t + 1 < n_threads && a.state == b.state && a.line == b.line && a.mask == b.mask)
            continue;
        if (shown++ < 24) {
            fprintf(stderr, "cuda_host:   threads %d .. %d: %s", first, t, names[a.state]);
            if (a.line > 0) fprintf(stderr, ", %s:%d", a.file, a.line);
            if (a.state == AT_WARP) fprintf(stderr, ", lanes %08x", a.mask);
            fputc('\n', stderr);
        }
        first = t + 1;
    }
    kvl_emu_die("the threads above wait for others that never come");
}

__attribute__((noinline)) void leave_otherwise(void)
{
    if (n_started < n_threads)
        switch_to(fiber_get());
    else if (n_ended == n_threads)
        switch_to(&outside);
    else
        stuck();
}

/* Another thread goes on; comes back when this fiber has something to do. */
inline void leave(void)
{
    kvl_emu_race_stop();
    if (n_ready == 0 || (n_started < n_threads && kvl_emu_below(16) == 0)) {
        leave_otherwise();
        return;
    }
    struct fiber *to = ready[ready_head++ % MAX_THREADS];
    if (--n_ready > 1) { /* the one after the next: stacks of a block do not all fit a cache */
        const char *top = (const char *)ready[(ready_head + 1) % MAX_THREADS]->sp;
        __builtin_prefetch(top);
        __builtin_prefetch(top + 64);
    }
    switch_to(to);
}

void set_current(int t)
{
    current = t;
    threadIdx = index_of[t];
    kvl_emu_race_thread(t, now->stack, STACK_BYTES);
}

void fiber_main(void)
{
    arrived(nullptr);
    for (;;) {
        while (n_started < n_threads) {
            int t = start[n_started++];
            threads[t] = { BEGUN, now };
            set_current(t);
            (*kernel_body)();
            kvl_emu_race_stop();
            threads[t].state = ENDED;
            n_ended++;
        }
        idle[n_idle++] = now;
        leave();
    }
}

void shuffle(int *v, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = (int)kvl_emu_below((uint64_t)i + 1), x = v[i];
        v[i] = v[j];
        v[j] = x;
    }
}

/* Warps in any order, and the lanes of each. */
void order_threads(void)
{
    int n_warps = (n_threads + 31) / 32, warp[MAX_THREADS / 32], n = 0;
    for (int w = 0; w < n_warps; w++) warp[w] = w;
    shuffle(warp, n_warps);
    for (int w = 0; w < n_warps; w++) {
        int first = n;
        for (int t = warp[w] * 32; t < warp[w] * 32 + 32 && t < n_threads; t++) start[n++] = t;
        shuffle(start + first, n - first);
    }
}

void run_block(unsigned x, unsigned y, unsigned z)
{
    blockIdx = { x, y, z };
    memset(kvl_emu_shared, 0xff, kernel->shared_bytes);
    kvl_emu_race_block();
    for (int t = 0; t < n_threads; t++) threads[t].state = FRESH;
    order_threads();
    for (int t = 0; t < n_threads; t += 32) {
        warps[t / 32].waiting = 0;
        warps[t / 32].is = n_threads - t < 32 ? (1u << (n_threads - t)) - 1 : 0xffffffffu;
    }
    n_started = n_ended = n_at_barrier = barrier_count = 0;
    n_ready = ready_head = 0;
    switch_to(fiber_get());
}

/* Bytes behind shared memory that nobody may write. */
size_t guard_of(size_t bytes)
{
    size_t left = bytes < SHARED_BYTES ? SHARED_BYTES - bytes : 0;
    return left < GUARD_BYTES ? left : (size_t)GUARD_BYTES;
}

void open_shared(size_t bytes)
{
    static unsigned char *memory;
    if (!memory) memory = (unsigned char *)aligned_alloc(256, SHARED_BYTES + 256);
    if (!memory) kvl_emu_die("no memory");
    kvl_emu_shared = memory + 16; /* no more aligned than a GPU promises */
    (void)bytes;
    KVL_EMU_UNPOISON(memory, SHARED_BYTES + 256);
    memset(kvl_emu_shared + bytes, GUARD, guard_of(bytes));
    KVL_EMU_POISON(memory, 16);
    KVL_EMU_POISON(kvl_emu_shared + bytes, SHARED_BYTES + 240 - bytes);
}

/* Dynamic shared memory ends where the launch said. */
void close_shared(size_t bytes)
{
    const unsigned char *end = kvl_emu_shared + bytes;
    size_t n = guard_of(bytes);
    KVL_EMU_UNPOISON(end, n);
    for (size_t i = 0; i < n; i++)
        if (end[i] != GUARD) kvl_emu_die("a kernel writes behind its shared memory");
}

/* A step that visits every block once, in an order of its own. */
uint64_t coprime(uint64_t n)
{
    uint64_t step = kvl_emu_below(n) | 1;
    for (;; step += 2) {
        uint64_t a = n, b = step;
        while (b) {
            uint64_t r = a % b;
            a = b;
            b = r;
        }
        if (a == 1) return step % n;
    }
}
} // namespace

void kvl_emu_grid(const struct kvl_emu_kernel *k, const std::function<void()> &body)
{
    if (kernel) kvl_emu_die("kernel %s is launched by kernel %s", k->name, kernel->name);
    kernel = k;
    kernel_body = &body;
    gridDim = k->grid;
    blockDim = k->block;
    n_threads = 0;
    for (unsigned z = 0; z < k->block.z; z++)
        for (unsigned y = 0; y < k->block.y; y++)
            for (unsigned x = 0; x < k->block.x; x++) index_of[n_threads++] = { x, y, z };
    open_shared(k->shared_bytes);
    kvl_emu_race_grid(k);
    uint64_t n = (uint64_t)k->grid.x * k->grid.y * k->grid.z;
    uint64_t at = kvl_emu_below(n), step = coprime(n);
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n)
        run_block((unsigned)(at % k->grid.x), (unsigned)(at / k->grid.x % k->grid.y),
                  (unsigned)(at / k->grid.x / k->grid.y));
    close_shared(k->shared_bytes);
    kernel = nullptr;
    kvl_emu_count.n_kernels_run++;
}

const char *kvl_emu_where(void)
{
    static char text[512];
    if (!kernel) return "";
    snprintf(text, sizeof text, "in kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
             kernel->name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
             threadIdx.z);
    return text;
}

/* ---- barriers --------------------------------------------------------------------------------------- */

int kvl_emu_barrier(enum kvl_emu_barrier kind, int predicate, const char *file, int line)
{
    int t = current;
    if (n_at_barrier == 0) {
        first_at_barrier = t;
        at_barrier = { file, line, kind };
    } else if (at_barrier.line != line || at_barrier.kind != kind ||
               (at_barrier.file != file && strcmp(at_barrier.file, file) != 0)) {
        kvl_emu_die("two barriers at once, %s:%d (thread %d) and %s:%d, %s", at_barrier.file,
                    at_barrier.line, first_at_barrier, file, line, kvl_emu_where());
    }
    threads[t].state = AT_BARRIER;
    barrier_count += predicate != 0;
    kvl_emu_count.n_barriers++;
    if (++n_at_barrier == n_threads) {
        barrier_result = barrier_count;
        n_at_barrier = barrier_count = 0;
        kvl_emu_race_barrier(file, line);
        make_all_ready(start, n_threads, false);
    }
    leave();
    threads[t].state = BEGUN;
    set_current(t);
    return barrier_result;
}

/* ---- warps ------------------------------------------------------------------------------------------ */

namespace
{
unsigned warp_result_bits(const struct warp *w, unsigned mask, int lane, bool match)
{
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1u && (match ? w->value[i] == w->value[lane] : w->value[i] != 0))
            bits |= 1u << i;
    return bits;
}

void warp_shuffle(struct warp *w, unsigned mask)
{
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (!(mask >> w->from[i] & 1u))
            kvl_emu_die("lane %d reads lane %d, which is not in the mask %08x, %s:%d, %s", i,
                        w->from[i], mask, w->file[i], (int)((uint32_t)w->key[i] >> 4),
                        kvl_emu_where());
        w->result[i] = w->value[w->from[i]];
    }
}

/* All lanes of the mask are there: what each of them gets. */
void warp_results(struct warp *w, int kind, unsigned mask)
{
    if (kind == KVL_EMU_SHFL) {
        warp_shuffle(w, mask);
        return;
    }
    unsigned bits = kind == KVL_EMU_BALLOT ? warp_result_bits(w, mask, 0, false) : 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1u)
            w->result[i] = kind == KVL_EMU_MATCH ? warp_result_bits(w, mask, i, true) : bits;
}

[[noreturn]] void lanes_apart(int a, int b)
{
    struct place p = place_of(a), q = place_of(b);
    kvl_emu_die("lane %d at %s:%d, mask %08x, and lane %d at %s:%d, mask %08x, %s", a % 32, p.file,
                p.line, p.mask, b % 32, q.file, q.line, q.mask, kvl_emu_where());
}

/* The last lane of the mask has come. */
__attribute__((noinline)) void warp_meets(int t, enum kvl_emu_warp kind, unsigned mask)
{
    struct warp *w = &warps[t / 32];
    int list[32], n = 0, base = t & ~31;
    uint64_t key = w->key[t - base];
    for (unsigned left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        list[n++] = base + i;
        if (w->key[i] != key) lanes_apart(base + i, t);
    }
    w->waiting &= ~mask;
    kvl_emu_count.n_warp_ops += n;
    warp_results(w, kind, mask);
    if (kind == KVL_EMU_SYNCWARP)
        kvl_emu_race_warp(base, mask, w->file[t - base], (int)((uint32_t)key >> 4));
    make_all_ready(list, n, kvl_emu_below(4) > 0); /* its stacks are in the cache now */
}
} // namespace

uint64_t kvl_emu_warp_op(enum kvl_emu_warp kind, unsigned mask, uint64_t value, int from,
                         const char *file, int line)
{
    int t = current, lane = t & 31;
    struct warp *w = &warps[(unsigned)t / 32];
    if (!(mask >> lane & 1u))
        kvl_emu_die("a lane that is not in its mask %08x, %s:%d, %s", mask, file, line,
                    kvl_emu_where());
    if (mask & ~w->is)
        kvl_emu_die("a mask %08x with lanes that do not exist, %s:%d, %s", mask, file, line,
                    kvl_emu_where());
    w->key[lane] = (uint64_t)mask << 32 | (uint32_t)line << 4 | kind;
    w->value[lane] = value;
    w->from[lane] = from;
    w->file[lane] = file;
    w->waiting |= 1u << lane;
    if ((w->waiting & mask) == mask) warp_meets(t, kind, mask);
    leave();
    set_current(t);
    return w->result[lane];
}

unsigned kvl_emu_lanes(void)
{
    unsigned lanes = 0;
    for (int t = current & ~31; t < (current & ~31) + 32 && t < n_threads; t++)
        if (threads[t].state != ENDED) lanes |= 1u << (t & 31);
    return lanes;
}
