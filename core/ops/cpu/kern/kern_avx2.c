/* Kernels for x86 processors with AVX2, FMA and F16C (2013 on). */
#include "cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

#include "vec_avx2.h"
#include "vec_k16_avx2.h"
#include "vec_k8_avx2.h"

#define KERN_NAME  "avx2"
#define KERN_TABLE kvl_kern_avx2
#include "kern.h"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
