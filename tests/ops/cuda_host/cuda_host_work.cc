/* What is given to streams: launches, copies, fills; and what the device says of itself. */
#include "cuda_host_streams.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>

namespace
{
enum { SHARED_DEFAULT = 48 * 1024, SHARED_MOST = 227 * 1024, SHARED_OLDER = 99 * 1024 };

static int generation(void)
{
    const char *text = getenv("KVL_EMU_GENERATION");
    return text ? atoi(text) : 9;
}

/* Of a block: older generations have less. */
static int shared_most(void)
{
    return generation() < 9 ? SHARED_OLDER : SHARED_MOST;
}

/* Of kernels that asked for more. */
std::map<const void *, size_t> &shared_limits = *new std::map<const void *, size_t>();
int device_chosen;

int device_count(void)
{
    const char *devices = getenv("KVL_EMU_DEVICES");
    int n = devices ? atoi(devices) : 1;
    return n > 1 ? n : 1;
}

bool device_is(int device)
{
    return device >= 0 && device < device_count();
}
} // namespace

/* ---- launches ---------------------------------------------------------------------------------------- */

static cudaError_t launch_limits(const struct kvl_emu_kernel *k)
{
    auto limit = shared_limits.find(k->fn);
    size_t most = limit == shared_limits.end() ? (size_t)SHARED_DEFAULT : limit->second;
    uint64_t threads = (uint64_t)k->block.x * k->block.y * k->block.z;
    if (threads == 0 || threads > 1024 || k->block.z > 64) return cudaErrorInvalidConfiguration;
    if (k->grid.x == 0 || k->grid.y == 0 || k->grid.z == 0) return cudaErrorInvalidConfiguration;
    if (k->grid.x > 0x7fffffffu || k->grid.y > 65535 || k->grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    return k->shared_bytes > most ? cudaErrorInvalidValue : cudaSuccess;
}

void kvl_emu_launch(const struct kvl_emu_kernel *k, cudaStream_t stream,
                    const std::function<void()> &body)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_LAUNCH);
    if (e == cudaSuccess) e = launch_limits(k);
    if (e != cudaSuccess) {
        kvl_emu_return(e);
        return;
    }
    struct kvl_emu_kernel kernel = *k;
    kvl_emu_count.n_launches++;
    kvl_emu_return(kvl_emu_give(stream, KVL_EMU_NODE_KERNEL, k->fn, [kernel, body] {
        cudaError_t error;
        if (kvl_emu_fails(KVL_EMU_RUN, &error)) {
            kvl_emu_stick(error);
            return;
        }
        kvl_emu_grid(&kernel, body);
    }));
}

cudaError_t kvl_emu_func_attribute(const void *fn, enum cudaFuncAttribute attr, int value)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess || attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return e;
    if (value < 0 || value > shared_most()) return kvl_emu_return(cudaErrorInvalidValue);
    shared_limits[fn] = (size_t)value;
    return cudaSuccess;
}

cudaError_t kvl_emu_func_attributes(struct cudaFuncAttributes *a, const void *)
{
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 64;
    a->maxDynamicSharedSizeBytes = SHARED_DEFAULT;
    a->ptxVersion = a->binaryVersion = 90;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

/* ---- copies ------------------------------------------------------------------------------------------ */

namespace
{
struct copy {
    unsigned char *to;
    const unsigned char *from;
    size_t to_pitch, from_pitch, width, height;
    enum kvl_emu_place to_place, from_place;
};
} // namespace

static void count_copy(const struct copy *c)
{
    bool from = c->from_place == KVL_EMU_DEVICE, to = c->to_place == KVL_EMU_DEVICE;
    struct kvl_emu_counts *n = &kvl_emu_count;
    int64_t bytes = (int64_t)(c->width * c->height);
    *(from ? to ? &n->d2d_bytes : &n->d2h_bytes : to ? &n->h2d_bytes : &n->h2h_bytes) += bytes;
    *(from ? to ? &n->d2d_calls : &n->d2h_calls : to ? &n->h2d_calls : &n->h2h_calls) += 1;
}

static void do_copy(const struct copy *c)
{
    count_copy(c);
    for (size_t y = 0; y < c->height; y++)
        memmove(c->to + y * c->to_pitch, c->from + y * c->from_pitch, c->width);
}

static bool kind_fits(enum cudaMemcpyKind kind, const struct copy *c)
{
    bool from = c->from_place == KVL_EMU_DEVICE, to = c->to_place == KVL_EMU_DEVICE;
    bool any_from = c->from_place == KVL_EMU_MANAGED, any_to = c->to_place == KVL_EMU_MANAGED;
    if (kind == cudaMemcpyDefault) return true;
    bool want_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    bool want_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    return (any_from || from == want_from) && (any_to || to == want_to);
}

/* Ordinary host memory is read before the call returns, and written. */
static cudaError_t give_copy(struct copy c, cudaStream_t stream)
{
    bool reads = c.from_place == KVL_EMU_PAGEABLE, writes = c.to_place == KVL_EMU_PAGEABLE;
    if ((reads || writes) && kvl_emu_capturing(stream)) {
        kvl_emu_stream(stream)->capture->invalid = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    std::shared_ptr<std::vector<unsigned char>> staged;
    if (reads && !writes) {
        staged = std::make_shared<std::vector<unsigned char>>(c.width * c.height);
        for (size_t y = 0; y < c.height; y++)
            memcpy(staged->data() + y * c.width, c.from + y * c.from_pitch, c.width);
        c.from = staged->data();
        c.from_pitch = c.width;
    }
    cudaError_t e = kvl_emu_give(stream, KVL_EMU_NODE_COPY, nullptr, [c, staged] { do_copy(&c); });
    if (e == cudaSuccess && writes) {
        kvl_emu_count.n_syncs++;
        kvl_emu_drain_stream(stream);
    }
    return e;
}

static cudaError_t copy_2d(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                           size_t width, size_t height, enum cudaMemcpyKind kind,
                           cudaStream_t stream, bool wait)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_COPY);
    if (e != cudaSuccess || width == 0 || height == 0) return e;
    struct copy c = { (unsigned char *)to,
                      (const unsigned char *)from,
                      to_pitch,
                      from_pitch,
                      width,
                      height,
                      KVL_EMU_PAGEABLE,
                      KVL_EMU_PAGEABLE };
    if (!kvl_emu_stream(stream)) return kvl_emu_return(cudaErrorInvalidResourceHandle);
    if (!to || !from || (height > 1 && (to_pitch < width || from_pitch < width)))
        return kvl_emu_return(cudaErrorInvalidValue);
    bool whole = kvl_emu_place_of(to, (height - 1) * to_pitch + width, &c.to_place);
    whole &= kvl_emu_place_of(from, (height - 1) * from_pitch + width, &c.from_place);
    if (!whole || !kind_fits(kind, &c)) return kvl_emu_return(cudaErrorInvalidValue);
    bool device_only = c.to_place == KVL_EMU_DEVICE && c.from_place == KVL_EMU_DEVICE;
    if (wait && kvl_emu_spoils_capture(false))
        return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    e = give_copy(c, stream);
    if (e == cudaSuccess && wait && !device_only) {
        kvl_emu_count.n_syncs++;
        kvl_emu_drain_stream(stream);
    }
    return e == cudaSuccess ? kvl_emu_return(cudaPeekAtLastError()) : kvl_emu_return(e);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return copy_2d(to, bytes, from, bytes, bytes, 1, kind, nullptr, true);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return copy_2d(to, bytes, from, bytes, bytes, 1, kind, stream, false);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, nullptr, true);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    return copy_2d(to, to_pitch, from, from_pitch, width, height, kind, stream, false);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    enum kvl_emu_place place;
    cudaError_t e = kvl_emu_enter(KVL_EMU_COPY);
    if (e != cudaSuccess || bytes == 0) return e;
    if (!p || !kvl_emu_place_of(p, bytes, &place) || place == KVL_EMU_PAGEABLE)
        return kvl_emu_return(cudaErrorInvalidValue);
    return kvl_emu_return(kvl_emu_give(stream, KVL_EMU_NODE_FILL, nullptr, [p, value, bytes] {
        kvl_emu_count.fill_bytes += (int64_t)bytes;
        kvl_emu_count.fill_calls++;
        memset(p, value, bytes);
    }));
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    return cudaMemsetAsync(p, value, bytes, nullptr);
}

cudaError_t kvl_emu_to_symbol(void *symbol, const void *from, size_t bytes)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_COPY);
    if (e != cudaSuccess) return e;
    if (kvl_emu_spoils_capture(false)) return kvl_emu_return(cudaErrorStreamCaptureUnsupported);
    kvl_emu_drain_all();
    memcpy(symbol, from, bytes);
    return cudaSuccess;
}

/* ---- the device -------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    *n = e == cudaSuccess ? device_count() : 0;
    return e;
}

cudaError_t cudaSetDevice(int device)
{
    const char *path = getenv("KVL_EMU_CHOSEN");
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!device_is(device)) return kvl_emu_return(cudaErrorInvalidDevice);
    device_chosen = device;
    FILE *f = path && *path ? fopen(path, "a") : nullptr;
    if (f) {
        fprintf(f, "%d\n", device);
        fclose(f);
    }
    return e;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = device_chosen;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned)
{
    return cudaSetDevice(device);
}

cudaError_t cudaDeviceReset(void)
{
    kvl_emu_drain_all();
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return kvl_emu_enter(KVL_EMU_CALLS);
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* Of the size of an H200, so that launch choices take the ways they take there. */
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!device_is(device)) return kvl_emu_return(cudaErrorInvalidDevice);
    switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = SHARED_DEFAULT; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_most(); break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMemoryClockRate: *value = 3201000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = 6144; break;
    case cudaDevAttrL2CacheSize: *value = 60 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = generation(); break;
    case cudaDevAttrIntegrated:
    case cudaDevAttrComputeMode:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: return kvl_emu_return(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    size_t free_bytes;
    cudaError_t e = kvl_emu_enter(KVL_EMU_CALLS);
    if (e != cudaSuccess) return e;
    if (!device_is(device)) return kvl_emu_return(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "emulated GPU");
    cudaMemGetInfo(&free_bytes, &prop->totalGlobalMem);
    prop->sharedMemPerBlock = SHARED_DEFAULT;
    prop->sharedMemPerBlockOptin = (size_t)shared_most();
    prop->sharedMemPerMultiprocessor = 228 * 1024;
    prop->reservedSharedMemPerBlock = 1024;
    prop->major = 9;
    prop->multiProcessorCount = 132;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->maxThreadsPerMultiProcessor = 2048;
    prop->regsPerBlock = 65536;
    prop->memoryBusWidth = 6144;
    prop->l2CacheSize = 60 << 20;
    prop->canMapHostMemory = prop->managedMemory = prop->concurrentManagedAccess =
        prop->unifiedAddressing = 1;
    prop->asyncEngineCount = 3;
    prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = 1024;
    prop->maxThreadsDim[2] = 64;
    prop->maxGridSize[0] = 0x7fffffff;
    prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
    return cudaSuccess;
}
