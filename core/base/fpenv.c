/* The control registers of floating point. */
#include "kvl/fpenv.h"

#include <fenv.h>

#if defined(__x86_64__)

/* Of MXCSR all but the flags of what happened; of the x87 control word, which rounding of the C library goes by, too. */
bool kvl_fp_default(void)
{
    uint16_t x87;
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (__builtin_ia32_stmxcsr() & 0xffc0u) == 0x1f80u && (x87 & 0x0f3fu) == 0x033fu;
}

#elif defined(__aarch64__)

bool kvl_fp_default(void)
{
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr == 0;
}

#else

bool kvl_fp_default(void)
{
    return true;
}

#endif

void kvl_fp_restore(void)
{
    fesetenv(FE_DFL_ENV);
}

int kvl_fp_kept(int rc, int code, struct kvl_err *err)
{
    if (kvl_fp_default()) return rc;
    kvl_fp_restore();
    kvl_err_clear(err);
    return kvl_fail(
        err, code,
        "changed how floating point rounds, flushes to zero or traps, want it left as it "
        "was (-Ofast and -ffast-math change it)");
}
