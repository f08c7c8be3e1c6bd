/* Memory of the GPU: what was allocated, where an address lies, what waits to be freed.
 *
 * Freeing waits for all work that may still use the memory.  Waiting at every free would cost more than the
 * memory is worth: freed ranges stay in a list until somebody waits anyway, or until memory is short.
 *
 * SHARED and TABLE memory is there twice, and its address is the host's; twin.cu makes the copies.  The host's side is
 * pinned, but for that of large tables: the host never touches most of it, and pages of ordinary memory come when they
 * are touched. */
#include "twin.cuh"

#include <string.h>
#include <sys/mman.h>

struct memory_free {
    void *p;
    size_t bytes;
    enum kvl_place place;
};

/* Ranges ascend and do not overlap. */
static struct {
    struct memory_range *range;
    int32_t n, cap;
    struct memory_free *free;
    int32_t n_free, cap_free;
} memory;

/* Room for `need` items where n are. */
static int memory_grow(void **data, int32_t *cap, int32_t n, int32_t need, size_t item)
{
    if (need <= *cap) return KVL_OK;
    int32_t more = need + need / 2 + 64;
    void *wider = kvl_alloc((size_t)more, item);
    if (!wider) return KVL_ENOMEM;
    if (n > 0) memcpy(wider, *data, (size_t)n * item);
    kvl_free(*data);
    *data = wider;
    *cap = more;
    return KVL_OK;
}

/* Index of the first range above p. */
static int32_t memory_above(const void *p)
{
    int32_t lo = 0, hi = memory.n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)memory.range[mid].base <= (uintptr_t)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct memory_range *kvl_cuda_range(const void *p)
{
    int32_t i = memory_above(p) - 1;
    if (i < 0) return NULL;
    struct memory_range *r = &memory.range[i];
    return (uintptr_t)p - (uintptr_t)r->base < r->bytes ? r : NULL;
}

void *kvl_cuda_find(const void *p, size_t bytes, enum kvl_place *place)
{
    const struct memory_range *r = kvl_cuda_range(p);
    *place = KVL_PLACE_HOST;
    if (!r) return NULL;
    size_t at = (size_t)((uintptr_t)p - (uintptr_t)r->base);
    assert(bytes <= r->bytes - at);
    (void)bytes;
    *place = r->place;
    return r->device + at;
}

int kvl_cuda_each_range(int (*visit)(struct memory_range *r))
{
    for (int32_t i = 0; i < memory.n; i++) KVL_TRY(visit(&memory.range[i]));
    return KVL_OK;
}

/* Room was made before. */
static void memory_insert(struct memory_range range)
{
    int32_t at = memory_above(range.base);
    memmove(memory.range + at + 1, memory.range + at,
            (size_t)(memory.n - at) * sizeof *memory.range);
    memory.range[at] = range;
    memory.n++;
}

static void memory_remove(struct memory_range *r)
{
    int32_t at = (int32_t)(r - memory.range);
    memory.n--;
    memmove(r, r + 1, (size_t)(memory.n - at) * sizeof *r);
}

/* For one more range, in both lists: each waits to be freed one day, both sides of it. */
static int memory_room(void)
{
    void *range = memory.range, *list = memory.free;
    int rc = memory_grow(&range, &memory.cap, memory.n, memory.n + 1, sizeof *memory.range);
    memory.range = static_cast<struct memory_range *>(range);
    if (rc == KVL_OK)
        rc = memory_grow(&list, &memory.cap_free, memory.n_free, 2 * (memory.n + 1) + memory.n_free,
                         sizeof *memory.free);
    memory.free = static_cast<struct memory_free *>(list);
    return rc;
}

static cudaError_t memory_take(enum kvl_place place, size_t bytes, void **out)
{
    if (place == KVL_PLACE_DEVICE) return cudaMalloc(out, bytes);
    if (place == KVL_PLACE_HOST) {
        *out = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return *out == MAP_FAILED ? cudaErrorMemoryAllocation : cudaSuccess;
    }
    return cudaHostAlloc(out, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
}

static cudaError_t memory_give(enum kvl_place place, void *p, size_t bytes)
{
    if (place == KVL_PLACE_HOST) return munmap(p, bytes) == 0 ? cudaSuccess : cudaErrorUnknown;
    return place == KVL_PLACE_PINNED ? cudaFreeHost(p) : cudaFree(p);
}

static void memory_count(enum kvl_place place, size_t bytes)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    rt->place_bytes[place] += bytes;
    rt->peak_bytes[place] = KVL_MAX(rt->peak_bytes[place], rt->place_bytes[place]);
}

/* Once more where memory is short and some waits to be freed. */
static int memory_get(enum kvl_place place, size_t bytes, void **out)
{
    int rc = kvl_cuda_check(memory_take(place, bytes, out), "allocating memory");
    if (rc != KVL_ENOMEM || memory.n_free == 0) return rc;
    KVL_TRY(kvl_cuda_rest());
    return kvl_cuda_check(memory_take(place, bytes, out), "allocating memory");
}

static void memory_later(enum kvl_place place, void *p, size_t bytes)
{
    memory.free[memory.n_free++] = { p, bytes, place };
}

enum { PINNED_TABLE = 16 << 20 }; /* bytes */

/* Of memory that is there twice. */
static enum kvl_place memory_host_side(const struct memory_range *r)
{
    bool ordinary = r->place == KVL_PLACE_TABLE && r->bytes > PINNED_TABLE;
    return ordinary ? KVL_PLACE_HOST : KVL_PLACE_PINNED;
}

/* The host's side of a range, zero, and who has what. */
static int memory_twin(struct memory_range *r)
{
    enum kvl_place place = memory_host_side(r);
    void *host;
    KVL_TRY(memory_get(place, r->bytes, &host));
    memory_count(place, r->bytes);
    if (place == KVL_PLACE_PINNED) memset(host, 0, r->bytes);
    r->base = static_cast<uint8_t *>(host);
    int rc = kvl_cuda_twin_open(r);
    if (rc != KVL_OK) memory_later(place, host, r->bytes);
    return rc;
}

int kvl_cuda_alloc(enum kvl_place place, size_t bytes, void **out)
{
    bool twin = kvl_cuda_is_twin(place);
    struct memory_range r = {};
    void *base;
    assert(place != KVL_PLACE_HOST && bytes > 0);
    if (twin) bytes = kvl_cuda_twin_bytes(bytes);
    KVL_TRY(memory_room());
    KVL_TRY(memory_get(twin ? KVL_PLACE_DEVICE : place, bytes, &base));
    memory_count(place, bytes);
    r.base = r.device = static_cast<uint8_t *>(base);
    r.bytes = bytes;
    r.place = place;
    int rc = twin ? memory_twin(&r) : KVL_OK;
    if (rc != KVL_OK) {
        memory_later(place, base, bytes);
        return rc;
    }
    memory_insert(r);
    *out = r.base;
    return KVL_OK;
}

void kvl_cuda_release(enum kvl_place place, void *p)
{
    if (!p) return;
    struct memory_range *r = kvl_cuda_range(p);
    assert(r && r->base == p && r->place == place);
    memory_later(place, r->device, r->bytes);
    if (kvl_cuda_is_twin(place)) {
        memory_later(memory_host_side(r), r->base, r->bytes);
        kvl_cuda_twin_close(r);
    }
    memory_remove(r);
}

int kvl_cuda_flush(void)
{
    int rc = KVL_OK;
    for (int32_t i = 0; i < memory.n_free; i++) {
        const struct memory_free *f = &memory.free[i];
        int one = kvl_cuda_check(memory_give(f->place, f->p, f->bytes), "freeing memory");
        if (rc == KVL_OK) rc = one;
        kvl_cuda_rt.place_bytes[f->place] -= f->bytes;
    }
    memory.n_free = 0;
    return rc;
}

int kvl_cuda_mirror(const void *p, size_t bytes)
{
    struct memory_range *r = kvl_cuda_range(p);
    if (r) {
        assert(r->place == KVL_PLACE_HOST && r->base == p && r->bytes == bytes);
        r->refs++;
        return KVL_OK;
    }
    if (bytes == 0) return KVL_OK;
    void *device;
    KVL_TRY(memory_room());
    KVL_TRY(memory_get(KVL_PLACE_DEVICE, bytes, &device));
    memory_count(KVL_PLACE_DEVICE, bytes);
    int rc = kvl_cuda_upload_to(device, p, bytes, KVL_STREAM_MAIN);
    if (rc != KVL_OK) {
        memory_later(KVL_PLACE_DEVICE, device, bytes);
        return rc;
    }
    uint8_t *base = const_cast<uint8_t *>(static_cast<const uint8_t *>(p));
    struct memory_range mirror = {};
    mirror.base = base;
    mirror.bytes = bytes;
    mirror.device = static_cast<uint8_t *>(device);
    mirror.refs = 1;
    memory_insert(mirror);
    return KVL_OK;
}

void kvl_cuda_unmirror(const void *p)
{
    struct memory_range *r = kvl_cuda_range(p);
    if (!r) return;
    assert(r->place == KVL_PLACE_HOST && r->base == p);
    if (--r->refs > 0) return;
    memory_later(KVL_PLACE_DEVICE, r->device, r->bytes);
    memory_remove(r);
}
