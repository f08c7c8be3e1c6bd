/* The kernels of kern_avx512.c for processors with AVX2. */
#include "avx512_host.h"
#include "cpu.h"

#include <math.h>

#include "vec_avx512.h"
#include "vec_k16_avx512.h"
#include "vec_k8_avx512.h"

#define KERN_NAME  "avx512"
#define KERN_TABLE kvl_kern_avx512_host
#include "kern.h"
