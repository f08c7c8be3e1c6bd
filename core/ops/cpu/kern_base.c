/* Kernels for any processor. */
#include "ops/cpu/cpu.h"
#include "ops/cpu/vec_base.h"
#include "ops/cpu/vec_q16_base.h"

#if defined(__aarch64__)
#define KERN_NAME "neon"
#else
#define KERN_NAME "scalar"
#endif
#define KERN_TABLE kvl_kern_base
#include "ops/cpu/kern.h"
