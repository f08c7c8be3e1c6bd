/* The kernels of kern_avx512bf16.c for processors with AVX2. */
#include "avx512_host.h"
#include "cpu.h"

#include <math.h>

#define VEC_HAS_VNNI
#include "vec_avx512bf16.h"
#include "vec_k16_avx512.h"
#include "vec_k8_avx512.h"

#define KERN_NAME  "avx512bf16"
#define KERN_TABLE kvl_kern_avx512bf16_host
#include "kern.h"
