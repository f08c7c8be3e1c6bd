/* Kernels for x86 processors with AVX-512 F, BW, VL and DQ. */
#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,"  \
                                                   "f16c"))),                                      \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

#include "vec_avx512.h"
#include "vec_k16_avx512.h"
#include "vec_k8_avx512.h"

#define KERN_NAME  "avx512"
#define KERN_TABLE kvl_kern_avx512
#include "kern.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
