/* The GPU's memory: one range of addresses that the host may not touch while no work runs, and a table of
 * what was allocated there and in pinned memory. */
#include "cuda_host_impl.h"

#include <map>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace
{
const size_t GAP = 256; /* between allocations: nobody's */
/* The guard opens and closes the used part around every kernel, which costs time per page of it: huge pages. */
const size_t STEP = (size_t)2 << 20;

struct allocation {
    size_t bytes, room; /* asked for; taken, with the gap */
    enum kvl_emu_place place;
    bool registered; /* the caller's own memory */
};

unsigned char *arena;
size_t arena_bytes, end_bytes, used_bytes, limit_bytes; /* used: whole steps, what is opened */
bool guard = true;
int opened;
/* Not destroyed at the end: others may still call. */
std::map<uintptr_t, struct allocation> &table = *new std::map<uintptr_t, struct allocation>();
std::map<uintptr_t, size_t> &holes = *new std::map<uintptr_t, size_t>();
struct sigaction before;
bool handling;

size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- pages of managed memory ------------------------------------------------------------------------ */

/* Where each page was touched last.  While one side runs, pages of the other are closed: the first touch opens a page,
 * and is what would move it between the host and a GPU. */
bool watch;
std::map<uintptr_t, std::vector<bool>> &managed = *new std::map<uintptr_t, std::vector<bool>>();

/* Closes what the other side has; opens the rest.  on: the device runs. */
void pages_turn(bool on, bool all)
{
    for (auto &m : managed) {
        size_t n = m.second.size();
        for (size_t i = 0, j; i < n; i = j) {
            for (j = i + 1; j < n && m.second[j] == m.second[i];) j++;
            bool open = all || m.second[i] == on;
            mprotect((void *)(m.first + i * page_bytes()), (j - i) * page_bytes(),
                     open ? PROT_READ | PROT_WRITE : PROT_NONE);
        }
    }
}

/* Whether p lies in a page that the other side has; the page moves. */
bool pages_move(const void *p)
{
    auto at = managed.upper_bound((uintptr_t)p);
    if (!watch || at == managed.begin()) return false;
    --at;
    size_t i = ((uintptr_t)p - at->first) / page_bytes();
    bool on = opened > 0;
    if (i >= at->second.size() || at->second[i] == on) return false;
    at->second[i] = on;
    kvl_emu_count.n_moves++;
    mprotect((void *)(at->first + i * page_bytes()), page_bytes(), PROT_READ | PROT_WRITE);
    return true;
}

std::map<uintptr_t, struct allocation>::iterator find(const void *p);

/* ---- the guard -------------------------------------------------------------------------------------- */

void on_fault(int signal, siginfo_t *info, void *context)
{
    const unsigned char *p = (const unsigned char *)info->si_addr;
    char text[700] = "";
    if (pages_move(p)) return;
    const char *where = kvl_emu_where();
    if (*where) {
        snprintf(text, sizeof text, "cuda_host: address %p, %s\n", (const void *)p, where);
    } else if (arena && p >= arena && p < arena + arena_bytes) {
        auto at = table.upper_bound((uintptr_t)p);
        size_t off = 0, bytes = 0;
        if (at != table.begin()) {
            --at;
            off = (uintptr_t)p - at->first;
            bytes = at->second.bytes;
        }
        snprintf(
            text, sizeof text,
            "cuda_host: the host touched the device's memory at %p (byte %zu of an allocation of "
            "%zu)\n",
            (const void *)p, off, bytes);
    } else if (find(p) != table.end()) {
        snprintf(text, sizeof text,
                 "cuda_host: the host touched its side of memory at %p that the device has\n",
                 (const void *)p);
    }
    if (*text && write(2, text, strlen(text)) < 0) _exit(3);
    handling = false;
    /* Once more, for whoever handled it before. */
    sigaction(signal, &before, nullptr);
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
}

/* Test programs change the handler too: ours goes before whatever is there. */
void handle_faults(void)
{
    static unsigned char *stack;
    struct sigaction have, want;
    sigaction(SIGSEGV, nullptr, &have);
    if (handling && have.sa_flags & SA_SIGINFO && have.sa_sigaction == on_fault) return;
    if (!stack) {
        stack_t s, old;
        stack = (unsigned char *)malloc(65536);
        memset(&s, 0, sizeof s);
        s.ss_sp = stack;
        s.ss_size = 65536;
        if (stack && sigaltstack(nullptr, &old) == 0 && old.ss_flags & SS_DISABLE)
            sigaltstack(&s, nullptr);
    }
    before = have;
    memset(&want, 0, sizeof want);
    want.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    want.sa_sigaction = on_fault;
    sigaction(SIGSEGV, &want, nullptr);
    handling = true;
}

void protect(bool on)
{
    if (used_bytes > 0 && mprotect(arena, used_bytes, on ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
        kvl_emu_die("mprotect does not work");
}

size_t environment_bytes(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? (size_t)strtoull(text, nullptr, 10) : otherwise;
}

void open_arena(void)
{
    const char *g = getenv("KVL_EMU_GUARD");
    size_t bytes = environment_bytes("KVL_EMU_MEMORY", (size_t)8 << 30);
    guard = !(g && *g == '0');
    limit_bytes = bytes;
    arena_bytes = (bytes < ((size_t)8 << 30) ? (size_t)8 << 30 : bytes) + ((size_t)1 << 30);
    void *p = mmap(nullptr, arena_bytes + STEP, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) kvl_emu_die("no addresses for the device's memory");
    arena = (unsigned char *)(((uintptr_t)p + STEP - 1) / STEP * STEP);
    madvise(arena, arena_bytes, MADV_HUGEPAGE); /* where there are none, small pages do */
}

/* ---- allocation ------------------------------------------------------------------------------------- */

/* First fit; 0: no room. */
uintptr_t arena_take(size_t room)
{
    for (auto h = holes.begin(); h != holes.end(); ++h) {
        if (h->second < room) continue;
        uintptr_t at = h->first;
        size_t rest = h->second - room;
        holes.erase(h);
        if (rest > 0) holes[at + room] = rest;
        return at;
    }
    if (end_bytes + room > arena_bytes) return 0;
    size_t start = end_bytes, need;
    end_bytes += room;
    need = (end_bytes + STEP - 1) / STEP * STEP;
    if (need > used_bytes) {
        used_bytes = need;
        if (opened || !guard) protect(false);
    }
    return (uintptr_t)arena + start;
}

void arena_give(uintptr_t at, size_t room)
{
    auto next = holes.upper_bound(at);
    if (next != holes.end() && at + room == next->first) {
        room += next->second;
        next = holes.erase(next);
    }
    if (next != holes.begin()) {
        auto prev = std::prev(next);
        if (prev->first + prev->second == at) {
            prev->second += room;
            return;
        }
    }
    holes[at] = room;
}

std::map<uintptr_t, struct allocation>::iterator find(const void *p)
{
    auto at = table.upper_bound((uintptr_t)p);
    if (at == table.begin()) return table.end();
    --at;
    return (uintptr_t)p < at->first + (at->second.bytes ? at->second.bytes : 1) ? at : table.end();
}

cudaError_t host_take(void **p, size_t bytes, enum kvl_emu_place place)
{
    if (!p) return kvl_emu_return(cudaErrorInvalidValue);
    if (kvl_emu_spoils_capture(true)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    void *m = nullptr;
    size_t pages = (bytes + page_bytes() - 1) / page_bytes();
    if (posix_memalign(&m, page_bytes(), pages * page_bytes()) != 0)
        return kvl_emu_return(cudaErrorMemoryAllocation);
    memset(m, 0xff, bytes);
    if (place == KVL_EMU_MANAGED) {
        managed[(uintptr_t)m] = std::vector<bool>(pages, false);
        kvl_emu_count.managed_bytes += (int64_t)bytes;
    }
    table[(uintptr_t)m] = { bytes, bytes, place, false };
    kvl_emu_count.host_bytes += (int64_t)bytes;
    kvl_emu_count.n_host_allocs++;
    *p = m;
    return cudaSuccess;
}

cudaError_t host_give(std::map<uintptr_t, struct allocation>::iterator at)
{
    kvl_emu_drain_all();
    kvl_emu_count.host_bytes -= (int64_t)at->second.bytes;
    kvl_emu_count.n_host_allocs--;
    if (managed.count(at->first)) {
        mprotect((void *)at->first, managed[at->first].size() * page_bytes(),
                 PROT_READ | PROT_WRITE);
        managed.erase(at->first);
        kvl_emu_count.managed_bytes -= (int64_t)at->second.bytes;
    }
    free((void *)at->first);
    table.erase(at);
    return cudaSuccess;
}
} // namespace

void kvl_emu_open(void)
{
    if (opened++ > 0) return;
    if (guard) protect(false);
    if (watch) pages_turn(true, false);
}

void kvl_emu_close(void)
{
    if (--opened > 0) return;
    if (guard) protect(true);
    if (watch) pages_turn(false, false);
    if (guard || watch) handle_faults();
}

void kvl_emu_watch(int on)
{
    watch = on != 0;
    pages_turn(opened > 0, !watch);
    if (watch) handle_faults();
}

bool kvl_emu_place_of(const void *p, size_t bytes, enum kvl_emu_place *place)
{
    auto at = find(p);
    *place = KVL_EMU_PAGEABLE;
    if (at == table.end()) return !kvl_emu_on_device(p);
    *place = at->second.place;
    return (uintptr_t)p - at->first + bytes <= at->second.bytes;
}

int kvl_emu_on_device(const void *p)
{
    return arena && (const unsigned char *)p >= arena &&
           (const unsigned char *)p < arena + arena_bytes;
}

void kvl_emu_memory_limit(size_t bytes)
{
    limit_bytes = bytes ? bytes : arena_bytes;
}

cudaError_t kvl_emu_malloc(void **p, size_t bytes)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_MALLOC);
    if (e != cudaSuccess) return e;
    if (!p) return kvl_emu_return(cudaErrorInvalidValue);
    if (kvl_emu_spoils_capture(true)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (!arena) open_arena();
    if (bytes > limit_bytes || (size_t)kvl_emu_count.device_bytes > limit_bytes - bytes)
        return kvl_emu_return(cudaErrorMemoryAllocation);
    size_t room = (bytes + 255) / 256 * 256 + GAP;
    uintptr_t at = arena_take(room);
    if (!at) return kvl_emu_return(cudaErrorMemoryAllocation);
    table[at] = { bytes, room, KVL_EMU_DEVICE, false };
    kvl_emu_open();
    KVL_EMU_UNPOISON((void *)at, bytes);
    memset((void *)at, 0xff, bytes);
    KVL_EMU_POISON((unsigned char *)at + bytes, room - bytes);
    kvl_emu_close();
    kvl_emu_count.device_bytes += (int64_t)bytes;
    kvl_emu_count.n_device_allocs++;
    if (kvl_emu_count.device_bytes > kvl_emu_count.device_peak_bytes)
        kvl_emu_count.device_peak_bytes = kvl_emu_count.device_bytes;
    *p = (void *)at;
    return cudaSuccess;
}

cudaError_t kvl_emu_malloc_managed(void **p, size_t bytes)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_MALLOC);
    return e != cudaSuccess ? e : host_take(p, bytes, KVL_EMU_MANAGED);
}

cudaError_t kvl_emu_host_alloc(void **p, size_t bytes)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_HOST_ALLOC);
    return e != cudaSuccess ? e : host_take(p, bytes, KVL_EMU_PINNED);
}

cudaError_t cudaFree(void *p)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess || !p) return e;
    if (kvl_emu_spoils_capture(true)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    auto at = table.find((uintptr_t)p);
    if (at == table.end() || at->second.place == KVL_EMU_PINNED)
        return kvl_emu_return(cudaErrorInvalidValue);
    if (at->second.place == KVL_EMU_MANAGED) return host_give(at);
    kvl_emu_drain_all();
    kvl_emu_open();
    memset(p, 0xff, at->second.bytes);
    KVL_EMU_POISON(p, at->second.bytes);
    kvl_emu_close();
    kvl_emu_count.device_bytes -= (int64_t)at->second.bytes;
    kvl_emu_count.n_device_allocs--;
    arena_give(at->first, at->second.room);
    table.erase(at);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess || !p) return e;
    if (kvl_emu_spoils_capture(true)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    auto at = table.find((uintptr_t)p);
    if (at == table.end() || at->second.place != KVL_EMU_PINNED || at->second.registered)
        return kvl_emu_return(cudaErrorInvalidValue);
    return host_give(at);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_HOST_ALLOC);
    if (e != cudaSuccess) return e;
    if (!p || bytes == 0 || kvl_emu_on_device(p)) return kvl_emu_return(cudaErrorInvalidValue);
    auto next = table.lower_bound((uintptr_t)p);
    if (find(p) != table.end() || (next != table.end() && next->first < (uintptr_t)p + bytes))
        return kvl_emu_return(cudaErrorHostMemoryAlreadyRegistered);
    table[(uintptr_t)p] = { bytes, bytes, KVL_EMU_PINNED, true };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    auto at = table.find((uintptr_t)p);
    if (at == table.end() || !at->second.registered)
        return kvl_emu_return(cudaErrorHostMemoryNotRegistered);
    kvl_emu_drain_all();
    table.erase(at);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    auto at = find(host);
    if (at == table.end() || at->second.place != KVL_EMU_PINNED)
        return kvl_emu_return(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    static const enum cudaMemoryType types[] = { cudaMemoryTypeUnregistered, cudaMemoryTypeHost,
                                                 cudaMemoryTypeManaged, cudaMemoryTypeDevice };
    enum kvl_emu_place place;
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    kvl_emu_place_of(p, 1, &place);
    a->type = types[place];
    a->device = place == KVL_EMU_PAGEABLE ? -2 : 0;
    a->devicePointer = place == KVL_EMU_PAGEABLE ? nullptr : (void *)(uintptr_t)p;
    a->hostPointer = place == KVL_EMU_DEVICE ? nullptr : a->devicePointer;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!arena) open_arena();
    size_t used = (size_t)kvl_emu_count.device_bytes;
    *total_bytes = limit_bytes;
    *free_bytes = used < limit_bytes ? limit_bytes - used : 0;
    return cudaSuccess;
}

/* Words that look like addresses, are mapped, and are none that a GPU may use. */
void kvl_emu_look_at(const struct kvl_emu_kernel *k, int index, const void *argument, size_t bytes)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        unsigned char there;
        memcpy(&word, (const unsigned char *)argument + i, 8);
        if (word < 0x500000000000u || word >> 48) continue;
        enum kvl_emu_place place;
        bool whole = kvl_emu_place_of((const void *)(uintptr_t)word, 0, &place);
        if (place != KVL_EMU_PAGEABLE || !whole) continue;
        uintptr_t start = (uintptr_t)word / page_bytes() * page_bytes();
        if (mincore((void *)start, 1, &there) != 0) continue;
        if (find((const void *)(uintptr_t)(word - 1)) != table.end())
            continue; /* one past an end */
        kvl_emu_die("kernel %s: argument %d holds %p, ordinary host memory", k->name, index,
                    (const void *)(uintptr_t)word);
    }
}
