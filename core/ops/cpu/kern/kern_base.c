/* Kernels for any processor. */
#include "cpu.h"
#include "vec_base.h"
#include "vec_k16_base.h"
#include "vec_k8_base.h"

#if defined(__aarch64__)
#define KERN_NAME "neon"
#else
#define KERN_NAME "scalar"
#endif
#define KERN_TABLE kvl_kern_base
#include "kern.h"
