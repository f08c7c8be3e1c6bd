/* The CPU as a device, and devices by name. */
#include "kvl/device.h"

#include <string.h>
#include <unistd.h>

static void *cpu_alloc(enum kvl_place place, size_t n, size_t item)
{
    (void)place;
    return kvl_alloc(n, item);
}

static void cpu_free(enum kvl_place place, void *p)
{
    (void)place;
    kvl_free(p);
}

static int cpu_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    (void)stream;
    if (bytes > 0) memmove(to, from, bytes);
    return KVL_OK;
}

static int cpu_zero(void *p, size_t bytes, enum kvl_stream stream)
{
    (void)stream;
    if (bytes > 0) memset(p, 0, bytes);
    return KVL_OK;
}

static int cpu_fill(void *p, uint8_t byte, size_t bytes, enum kvl_stream stream)
{
    (void)stream;
    if (bytes > 0) memset(p, byte, bytes);
    return KVL_OK;
}

static int cpu_order(enum kvl_stream earlier, enum kvl_stream later)
{
    (void)earlier;
    (void)later;
    return KVL_OK;
}

static int cpu_sync(void)
{
    return KVL_OK;
}

static int cpu_mirror(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
    return KVL_OK;
}

static void cpu_unmirror(const void *p)
{
    (void)p;
}

static void cpu_info(struct kvl_device_info *out)
{
    *out = (struct kvl_device_info){ .name = "CPU", .class_name = "cpu" };
}

static void cpu_memory(struct kvl_device_memory *out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *out = (struct kvl_device_memory){ .total_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * page,
                                       .free_bytes = (size_t)sysconf(_SC_AVPHYS_PAGES) * page };
}

static void cpu_traffic(struct kvl_device_traffic *out)
{
    *out = (struct kvl_device_traffic){ 0 };
}

static const char *cpu_error(void)
{
    return kvl_ops_blas_error();
}

static const struct kvl_device device_cpu = {
    .name = "cpu",
    .ops = &kvl_ops_cpu,
    .ops_now = &kvl_ops_cpu,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .fill = cpu_fill,
    .order = cpu_order,
    .sync = cpu_sync,
    .rest = cpu_sync,
    .mirror = cpu_mirror,
    .unmirror = cpu_unmirror,
    .info = cpu_info,
    .memory = cpu_memory,
    .traffic = cpu_traffic,
    .error = cpu_error,
};

const struct kvl_device *kvl_device_cpu(void)
{
    return &device_cpu;
}

#ifdef KVL_CUDA
/* ops/cuda/device.cu */
int kvl_cuda_open(int32_t gpu, const struct kvl_device **out, struct kvl_err *err);
#else
static int kvl_cuda_open(int32_t gpu, const struct kvl_device **out, struct kvl_err *err)
{
    (void)gpu;
    (void)out;
    return kvl_fail(
        err, KVL_EDEVICE,
        "device cuda: this program was built without CUDA; want the CUDA toolkit (nvcc), "
        "then a new build");
}
#endif

/* Tables of their devices but for who attends; written anew, and the same, whenever one is opened. */
static struct kvl_device device_hybrid, device_cpu_hybrid;

static const struct kvl_device *device_hosted(struct kvl_device *hosted, const char *name,
                                              const struct kvl_device *device)
{
    *hosted = *device;
    hosted->name = name;
    hosted->attends_host = true;
    return hosted;
}

static int open_hybrid(int32_t gpu, const struct kvl_device **out, struct kvl_err *err)
{
    const struct kvl_device *cuda;
    KVL_TRY(kvl_cuda_open(gpu, &cuda, err));
    *out = device_hosted(&device_hybrid, "hybrid", cuda);
    return KVL_OK;
}

int kvl_device_open(const char *name, const struct kvl_device **out, struct kvl_err *err)
{
    return kvl_device_open_gpu(name, 0, out, err);
}

int kvl_device_open_gpu(const char *name, int32_t gpu, const struct kvl_device **out,
                        struct kvl_err *err)
{
    if (strcmp(name, "cuda") == 0) return kvl_cuda_open(gpu, out, err);
    if (strcmp(name, "hybrid") == 0) return open_hybrid(gpu, out, err);
    if (strcmp(name, "cpu-hybrid") == 0)
        *out = device_hosted(&device_cpu_hybrid, "cpu-hybrid", &device_cpu);
    else if (strcmp(name, "cpu") == 0)
        *out = &device_cpu;
    else
        return kvl_fail(err, KVL_EINVAL, "device \"%s\", want cpu, cuda, hybrid or cpu-hybrid",
                        name);
    return KVL_OK;
}
