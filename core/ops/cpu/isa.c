/* Which kernels run. */
#include "cpu.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const struct kvl_kern *_Atomic isa_kern;

#if defined(__x86_64__)
/* Not a name that every compiler's __builtin_cpu_supports knows. */
static bool isa_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool isa_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && isa_has_f16c();
}

static bool isa_has_avx512(void)
{
    return isa_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}

static bool isa_has_avx512bf16(void)
{
    return isa_has_avx512() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

static const struct kvl_kern *isa_named(const char *name)
{
    if (strcmp(name, "scalar") == 0 || strcmp(name, kvl_kern_base.name) == 0) return &kvl_kern_base;
#if defined(__x86_64__)
    if (strcmp(name, "avx2") == 0 && isa_has_avx2()) return &kvl_kern_avx2;
    if (strcmp(name, "avx512") == 0 && isa_has_avx512()) return &kvl_kern_avx512;
    if (strcmp(name, "avx512bf16") == 0 && isa_has_avx512bf16()) return &kvl_kern_avx512bf16;
#endif
    return NULL;
}

static const struct kvl_kern *isa_best(void)
{
    static const char *const order[] = { "avx512bf16", "avx512", "avx2", "scalar" };
    const char *want = getenv("KVL_ISA");
    const struct kvl_kern *kern = want ? isa_named(want) : NULL;
    for (size_t i = 0; !kern; i++) kern = isa_named(order[i]);
    return kern;
}

const struct kvl_kern *kvl_kern(void)
{
    const struct kvl_kern *kern = atomic_load_explicit(&isa_kern, memory_order_acquire);
    if (!kern) {
        kern = isa_best();
        atomic_store_explicit(&isa_kern, kern, memory_order_release);
    }
    return kern;
}

bool kvl_kern_select(const char *name)
{
    const struct kvl_kern *kern = isa_named(name);
    if (kern) atomic_store_explicit(&isa_kern, kern, memory_order_release);
    return kern != NULL;
}

const char *kvl_ops_isa(void)
{
    return kvl_kern()->name;
}
