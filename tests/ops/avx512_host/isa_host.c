/* Puts the kernels of this folder in place of the processor's, where KVL_AVX512_HOST is set; those for AVX2 stay beside
 * them.  The linker brings the calls of isa.c's functions here (--wrap). */
#include "cpu.h"

#include <stdlib.h>
#include <string.h>

extern const struct kvl_kern kvl_kern_avx512_host, kvl_kern_avx512bf16_host;

const struct kvl_kern *__real_kvl_kern(void);
const struct kvl_kern *__wrap_kvl_kern(void);
bool __real_kvl_kern_select(const char *name);
bool __wrap_kvl_kern_select(const char *name);
const char *__wrap_kvl_ops_isa(void);

static const struct kvl_kern *isa_host;

/* Before the first thread is started: tests take it before they do anything. */
static bool isa_wanted(void)
{
    static int32_t wanted = -1;
    if (wanted >= 0) return wanted;
    wanted = getenv("KVL_AVX512_HOST") != NULL;
    if (!wanted) return false;
    if (!__real_kvl_kern_select("avx2")) exit(77); /* what they are compiled for */
    isa_host = &kvl_kern_avx512bf16_host;
    return true;
}

const struct kvl_kern *__wrap_kvl_kern(void)
{
    return isa_wanted() && isa_host ? isa_host : __real_kvl_kern();
}

bool __wrap_kvl_kern_select(const char *name)
{
    const struct kvl_kern *const all[] = { &kvl_kern_avx512_host, &kvl_kern_avx512bf16_host };
    if (!isa_wanted()) return __real_kvl_kern_select(name);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i]->name, name) != 0) continue;
        isa_host = all[i];
        return true;
    }
    if (strcmp(name, "avx2") != 0) return false;
    isa_host = NULL;
    return true;
}

const char *__wrap_kvl_ops_isa(void)
{
    return __wrap_kvl_kern()->name;
}
