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
enum { MAX_THREADS = 1024, STACK_BYTES = 512 * 1024, SHARED_BYTES = 227 * 1024 };

struct fiber {
    void *sp;
    unsigned char *stack; /* nullptr: the one that called */
    const void *bottom;
    size_t bytes;
    void *fake; /* AddressSanitizer's */
#if !defined(__x86_64__) && !defined(__aarch64__)
    ucontext_t context;
#endif
};

enum thread_state { FRESH, READY, AT_BARRIER, AT_WARP, ENDED };
struct thread {
    enum thread_state state;
    struct fiber *fiber;
    const char *file;
    int line, kind, from;
    unsigned mask;
    uint64_t value, result;
};

struct fiber outside;
struct fiber *now = &outside;
bool left_outside;
struct fiber *idle[MAX_THREADS + 1]; /* with nothing to do */
int n_idle;

const struct kvl_emu_kernel *kernel;
const std::function<void()> *kernel_body;
struct thread threads[MAX_THREADS];
uint3 index_of[MAX_THREADS];
int n_threads, current, n_ended;
int start[MAX_THREADS], n_started; /* the order in which threads begin */
int ready[MAX_THREADS], ready_head, n_ready;
int n_at_barrier, barrier_count, first_at_barrier;
unsigned at_warp[MAX_THREADS / 32]; /* lanes that wait for others of their warp */

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
    void **top = (void **)(f->stack + STACK_BYTES);
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
    void **sp = (void **)(f->stack + STACK_BYTES - 160);
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
#else
    (void)fake;
#endif
    left_outside = false;
}

void switch_to(struct fiber *to)
{
    struct fiber *from = now;
    if (to == from) return;
    now = to;
    left_outside = from == &outside;
#ifdef KVL_EMU_ASAN
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
    if (n_idle > 0) return idle[--n_idle];
    struct fiber *f = new struct fiber();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(nullptr, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) kvl_emu_die("no memory for a stack");
    f->stack = (unsigned char *)p + page;
    f->bottom = f->stack;
    f->bytes = STACK_BYTES;
    fiber_prepare(f);
    return f;
}

/* ---- scheduling ------------------------------------------------------------------------------------- */

void make_ready(int t)
{
    threads[t].state = READY;
    ready[(ready_head + n_ready++) % MAX_THREADS] = t;
}

/* All of `list` in an order of its own. */
void make_all_ready(const int *list, int n)
{
    int first = (int)kvl_emu_below((uint64_t)n), step = kvl_emu_below(2) ? 1 : n - 1;
    for (int i = 0, at = first; i < n; i++, at = (at + step) % n) make_ready(list[at]);
}

[[noreturn]] void stuck(void)
{
    static const char *const names[] = { "not begun", "ready", "at a barrier",
                                         "at a warp primitive", "ended" };
    int shown = 0;
    fprintf(stderr, "cuda_host: deadlock in kernel %s, block (%u, %u, %u)\n", kernel->name,
            blockIdx.x, blockIdx.y, blockIdx.z);
    for (int t = 0, first = 0; t < n_threads; t++) {
        const struct thread *a = &threads[first],
                            *b = t + 1 < n_threads ? &threads[t + 1] : nullptr;
        if (b && a->state == b->state &&
            (a->state == ENDED || (a->line == b->line && a->mask == b->mask)))
            continue;
        if (shown++ < 24) {
            fprintf(stderr, "cuda_host:   threads %d .. %d: %s", first, t, names[a->state]);
            if (a->state == AT_BARRIER || a->state == AT_WARP)
                fprintf(stderr, ", %s:%d", a->file, a->line);
            if (a->state == AT_WARP) fprintf(stderr, ", lanes %08x", a->mask);
            fputc('\n', stderr);
        }
        first = t + 1;
    }
    kvl_emu_die("the threads above wait for others that never come");
}

/* Another thread goes on; comes back when this fiber has something to do. */
void leave(void)
{
    kvl_emu_race_stop();
    bool fresh = n_started < n_threads;
    if (fresh && (n_ready == 0 || kvl_emu_below(4) == 0)) {
        switch_to(fiber_get());
    } else if (n_ready > 0) {
        int t = ready[ready_head];
        ready_head = (ready_head + 1) % MAX_THREADS;
        n_ready--;
        switch_to(threads[t].fiber);
    } else if (n_ended == n_threads) {
        switch_to(&outside);
    } else {
        stuck();
    }
}

void set_current(int t)
{
    current = t;
    threadIdx = index_of[t];
    kvl_emu_race_thread(t, now->stack, STACK_BYTES);
}

void wait_as(int t, enum thread_state state)
{
    threads[t].state = state;
    leave();
    set_current(t);
}

void fiber_main(void)
{
    arrived(nullptr);
    for (;;) {
        while (n_started < n_threads) {
            int t = start[n_started++];
            threads[t].fiber = now;
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
    memset(at_warp, 0, sizeof at_warp);
    n_started = n_ended = n_ready = ready_head = n_at_barrier = barrier_count = 0;
    switch_to(fiber_get());
}

void open_shared(size_t bytes)
{
    static unsigned char *memory;
    if (!memory) memory = (unsigned char *)aligned_alloc(256, SHARED_BYTES + 256);
    if (!memory) kvl_emu_die("no memory");
    kvl_emu_shared = memory + 16; /* no more aligned than a GPU promises */
    (void)bytes;
    KVL_EMU_UNPOISON(memory, SHARED_BYTES + 256);
    KVL_EMU_POISON(memory, 16);
    KVL_EMU_POISON(kvl_emu_shared + bytes, SHARED_BYTES + 240 - bytes);
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
    struct thread *self = &threads[t];
    self->file = file;
    self->line = line;
    self->kind = kind;
    self->mask = 0;
    if (n_at_barrier == 0) {
        first_at_barrier = t;
    } else {
        const struct thread *o = &threads[first_at_barrier];
        if (o->line != line || o->kind != kind || (o->file != file && strcmp(o->file, file) != 0))
            kvl_emu_die("two barriers at once, %s:%d (thread %d) and %s:%d, %s", o->file, o->line,
                        first_at_barrier, file, line, kvl_emu_where());
    }
    barrier_count += predicate != 0;
    kvl_emu_count.n_barriers++;
    if (++n_at_barrier == n_threads) {
        for (int i = 0; i < n_threads; i++) threads[i].result = (uint64_t)barrier_count;
        n_at_barrier = barrier_count = 0;
        kvl_emu_race_barrier(file, line);
        make_all_ready(start, n_threads);
        leave();
        set_current(t);
    } else {
        wait_as(t, AT_BARRIER);
    }
    return (int)self->result;
}

/* ---- warps ------------------------------------------------------------------------------------------ */

namespace
{
unsigned warp_result_bits(const struct thread *w, unsigned mask, int lane, bool match)
{
    unsigned bits = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1u && (match ? w[i].value == w[lane].value : w[i].value != 0))
            bits |= 1u << i;
    return bits;
}

/* All lanes of the mask are there: what each of them gets. */
void warp_results(struct thread *w, int kind, unsigned mask)
{
    unsigned bits = kind == KVL_EMU_BALLOT ? warp_result_bits(w, mask, 0, false) : 0;
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1u)) continue;
        if (kind == KVL_EMU_SHFL) {
            if (!(mask >> w[i].from & 1u))
                kvl_emu_die("lane %d reads lane %d, which is not in the mask %08x, %s:%d, %s", i,
                            w[i].from, mask, w[i].file, w[i].line, kvl_emu_where());
            w[i].result = w[w[i].from].value;
        } else {
            w[i].result = kind == KVL_EMU_MATCH ? warp_result_bits(w, mask, i, true) : bits;
        }
    }
}
} // namespace

uint64_t kvl_emu_warp_op(enum kvl_emu_warp kind, unsigned mask, uint64_t value, int from,
                         const char *file, int line)
{
    int t = current, base = t & ~31, lane = t & 31, list[32], n = 0;
    struct thread *w = &threads[base], *self = &threads[t];
    unsigned *waiting = &at_warp[base / 32];
    if (!(mask >> lane & 1u))
        kvl_emu_die("a lane that is not in its mask %08x, %s:%d, %s", mask, file, line,
                    kvl_emu_where());
    if (base + 32 > n_threads && mask >> (n_threads - base))
        kvl_emu_die("a mask %08x with lanes that do not exist, %s:%d, %s", mask, file, line,
                    kvl_emu_where());
    self->file = file;
    self->line = line;
    self->kind = kind;
    self->mask = mask;
    self->value = value;
    self->from = from;
    kvl_emu_count.n_warp_ops++;
    *waiting |= 1u << lane;
    if ((*waiting & mask) != mask) {
        wait_as(t, AT_WARP);
        return self->result;
    }
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1u)) continue;
        list[n++] = base + i;
        if (w[i].mask != mask || w[i].kind != kind || w[i].line != line)
            kvl_emu_die("lane %d at %s:%d, mask %08x, and lane %d at %s:%d, mask %08x, %s", i,
                        w[i].file, w[i].line, w[i].mask, lane, file, line, mask, kvl_emu_where());
    }
    *waiting &= ~mask;
    warp_results(w, kind, mask);
    if (kind == KVL_EMU_SYNCWARP) kvl_emu_race_warp(base, mask, file, line);
    make_all_ready(list, n);
    leave();
    set_current(t);
    return self->result;
}

unsigned kvl_emu_lanes(void)
{
    unsigned lanes = 0;
    for (int t = current & ~31; t < (current & ~31) + 32 && t < n_threads; t++)
        if (threads[t].state != ENDED) lanes |= 1u << (t & 31);
    return lanes;
}
