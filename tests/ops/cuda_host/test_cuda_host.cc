/* What the emulated GPU promises: cuda_host.h.  Kernels first, streams and memory in
 * test_cuda_streams. */
#include "cuda_host_test.h"

#include "half.h"

/* ---- warps ------------------------------------------------------------------------------------------- */

template <class T> __global__ void all_shuffles(T *out, int width)
{
    int t = (int)threadIdx.x, n = (int)blockDim.x;
    T v = (T)(t * 3 + 1);
    out[t] = __shfl_sync(0xffffffffu, v, 5, width);
    out[n + t] = __shfl_xor_sync(0xffffffffu, v, 3, width);
    out[2 * n + t] = __shfl_up_sync(0xffffffffu, v, 2, width);
    out[3 * n + t] = __shfl_down_sync(0xffffffffu, v, 7, width);
    out[4 * n + t] = __shfl_sync(0xffffffffu, v, t + 1, width);
}

template <class T> static void check_shuffles(int width)
{
    enum { N = 96 };
    T *d = device_array<T>(5 * N), h[5 * N];
    LAUNCH(all_shuffles<T>, 1, N, 0, nullptr, d, width);
    to_host(h, d, 5 * N);
    for (int t = 0; t < N; t++) {
        int low = t / width * width, high = low + width - 1;
        int from[5] = { low + 5 % width, (t ^ 3) > high ? t : t ^ 3, t - 2 < low ? t : t - 2,
                        t + 7 > high ? t : t + 7, low + (t + 1) % width };
        for (int i = 0; i < 5; i++)
            if (h[i * N + t] != (T)(from[i] * 3 + 1))
                fail_msg("shuffle %d, width %d, thread %d", i, width, t);
    }
    cudaFree(d);
}

static void test_shuffles(void **)
{
    for (int width = 4; width <= 32; width *= 2) {
        check_shuffles<int>(width);
        check_shuffles<unsigned>(width);
        check_shuffles<float>(width);
        check_shuffles<double>(width);
        check_shuffles<unsigned long long>(width);
    }
}

__global__ void all_votes(unsigned *out)
{
    int t = (int)threadIdx.x;
    unsigned *o = out + 8 * t;
    o[0] = __ballot_sync(0xffffffffu, t % 3 == 0);
    o[1] = (unsigned)__any_sync(0xffffffffu, t == 40);
    o[2] = (unsigned)__all_sync(0xffffffffu, t != 40);
    o[3] = __match_any_sync(0xffffffffu, t % 4);
    o[4] = __reduce_add_sync(0xffffffffu, (unsigned)t);
    o[5] = (unsigned)__reduce_min_sync(0xffffffffu, 7 - t);
    o[6] = __activemask();
    __syncwarp();
    /* Each half on its own, one of them more often. */
    unsigned half = t % 32 < 16 ? 0xffffu : 0xffff0000u;
    o[7] = 0;
    for (int i = 0; i < (t % 32 < 16 ? 3 : 5); i++)
        o[7] += __ballot_sync(half, t % 2 == i % 2) & 3u;
    if (t % 32 >= 16) o[7] = __ballot_sync(0xffff0000u, 1);
}

static void test_votes(void **)
{
    enum { N = 64 };
    unsigned *d = device_array<unsigned>(8 * N), h[8 * N];
    LAUNCH(all_votes, 1, N, 0, nullptr, d);
    to_host(h, d, 8 * N);
    for (int t = 0; t < N; t++) {
        unsigned *o = h + 8 * t, third = 0, same = 0, sum = 0;
        int base = t / 32 * 32;
        for (int i = 0; i < 32; i++) {
            if ((base + i) % 3 == 0) third |= 1u << i;
            if (i % 4 == t % 4) same |= 1u << i;
            sum += (unsigned)(base + i);
        }
        assert_int_equal(o[0], third);
        assert_int_equal(o[1], base == 32);
        assert_int_equal(o[2], base != 32);
        assert_int_equal(o[3], same);
        assert_int_equal(o[4], sum);
        assert_int_equal((int)o[5], 7 - base - 31);
        assert_int_equal(o[6], 0xffffffffu);
        assert_int_equal(o[7], t % 32 < 16 ? 1 + 2 + 1 : 0xffff0000u);
    }
    cudaFree(d);
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

__global__ void turn_round(const int *x, int *y, int *count, int rounds)
{
    KVL_SHARED(int, s);
    __shared__ int seen[3];
    int t = (int)(threadIdx.x + blockDim.x * threadIdx.y), n = (int)(blockDim.x * blockDim.y);
    int b = (int)(blockIdx.x + gridDim.x * blockIdx.y);
    int v = x[b * n + t];
    for (int i = 0; i < rounds; i++) {
        s[t] = v;
        __syncthreads();
        v = s[(t + 1) % n];
        __syncthreads();
    }
    y[b * n + t] = v;
    int c = __syncthreads_count(t % 5 == 0);
    int any = __syncthreads_or(t == n - 1), all = __syncthreads_and(t != n - 1);
    if (t == 0) seen[0] = c, seen[1] = any, seen[2] = all;
    __syncthreads();
    if (t < 3) count[b * 3 + t] = seen[t];
}

static void test_barriers(void **)
{
    enum { N = 160, B = 6, ROUNDS = 7 };
    int *x = device_array<int>(N * B), *y = device_array<int>(N * B), *c = device_array<int>(3 * B);
    int h[N * B], counts[3 * B];
    for (int i = 0; i < N * B; i++) h[i] = i * i;
    to_device(x, h, N * B);
    LAUNCH(turn_round, dim3(3, 2), dim3(32, 5), N * sizeof(int), nullptr, x, y, c, ROUNDS);
    to_host(h, y, N * B);
    to_host(counts, c, 3 * B);
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < N; t++) {
            int from = b * N + (t + ROUNDS) % N;
            assert_int_equal(h[b * N + t], from * from);
        }
        assert_int_equal(counts[3 * b], (N + 4) / 5);
        assert_int_equal(counts[3 * b + 1], 1);
        assert_int_equal(counts[3 * b + 2], 0);
    }
    cudaFree(x);
    cudaFree(y);
    cudaFree(c);
}

/* The last block to finish sums what all of them left. */
__global__ void last_block_sums(unsigned *part, unsigned *done, unsigned long long *total,
                                int *most)
{
    __shared__ int last;
    if (threadIdx.x == 0) part[blockIdx.x] = 0;
    __syncthreads();
    atomicAdd(&part[blockIdx.x], blockIdx.x * blockDim.x + threadIdx.x);
    atomicMax(most, (int)(threadIdx.x * 7 % 31 + blockIdx.x));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    __syncthreads();
    if (last) atomicAdd(total, threadIdx.x < gridDim.x ? (unsigned long long)part[threadIdx.x] : 0);
}

static void test_atomics(void **)
{
    enum { N = 64, B = 50 };
    unsigned *part = device_array<unsigned>(B), *done = device_array<unsigned>(1), left;
    unsigned long long *total = device_array<unsigned long long>(1), sum;
    int *most = device_array<int>(1), top;
    cudaMemset(done, 0, sizeof *done);
    cudaMemset(total, 0, sizeof *total);
    cudaMemset(most, 0, sizeof *most);
    LAUNCH(last_block_sums, B, N, 0, nullptr, part, done, total, most);
    to_host(&sum, total, 1);
    to_host(&left, done, 1);
    to_host(&top, most, 1);
    assert_int_equal(sum, (unsigned long long)N * B * (N * B - 1) / 2);
    assert_int_equal(left, 0);
    assert_int_equal(top, 30 + B - 1);
    cudaFree(part);
    cudaFree(done);
    cudaFree(total);
    cudaFree(most);
}

/* A race that a seed decides: who writes last. */
__global__ void last_writer(int *block, int *thread)
{
    *block = (int)blockIdx.x;
    __syncthreads();
    thread[0] = (int)threadIdx.x;
    __syncthreads();
    thread[1] = (int)threadIdx.x;
}

static void test_order_differs(void **)
{
    int *d = device_array<int>(3), h[3], first[3], differs[3] = { 0 };
    for (int seed = 0; seed < 20; seed++) {
        kvl_emu_seed((uint64_t)seed);
        LAUNCH(last_writer, 9, 128, 0, nullptr, d, d + 1);
        to_host(h, d, 3);
        for (int i = 0; i < 3; i++) {
            if (seed == 0) first[i] = h[i];
            differs[i] |= h[i] != first[i];
        }
    }
    for (int i = 0; i < 3; i++) assert_true(differs[i]);
    kvl_emu_seed(0);
    LAUNCH(last_writer, 9, 128, 0, nullptr, d, d + 1);
    to_host(h, d, 3);
    assert_memory_equal(h, first, sizeof h); /* a seed always does the same */
    cudaFree(d);
}

__global__ void look_at_shared(unsigned *out, int n)
{
    KVL_SHARED(unsigned, s);
    for (int i = 0; i < n; i++) out[i] = s[i];
    for (int i = 0; i < n; i++) s[i] = 5;
}

static void test_nothing_is_cleared(void **)
{
    enum { N = 32, FRESH = 1 << 22 }; /* more than any test had before */
    unsigned *d = device_array<unsigned>(FRESH), h[N];
    to_host(h, d + FRESH - N, N);
    for (int i = 0; i < N; i++) assert_int_equal(h[i], 0xffffffffu);
    cudaMemset(d, 0, N * sizeof *d);
    for (int i = 0; i < 2; i++) LAUNCH(look_at_shared, 2, 1, N * sizeof *d, nullptr, d, N);
    to_host(h, d, N);
    for (int i = 0; i < N; i++) assert_int_equal(h[i], 0xffffffffu);
    cudaFree(d);
}

/* ---- what is wrong ends the process, with a line that says why --------------------------------------- */

__global__ void not_all_at_barrier(void)
{
    if (threadIdx.x != 33) __syncthreads();
}
__global__ void two_barriers(void)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}
__global__ void lane_missing(void)
{
    if (threadIdx.x != 3) __syncwarp();
}
__global__ void lane_not_named(void)
{
    __ballot_sync(0xfu, 1);
}
__global__ void lanes_apart(void)
{
    if (threadIdx.x % 2)
        __ballot_sync(0xffffffffu, 1);
    else
        __any_sync(0xffffffffu, 1);
}
__global__ void reads_other_half(void)
{
    __shfl_sync(threadIdx.x < 16 ? 0xffffu : 0xffff0000u, 1, 20);
}
__global__ void warp_not_whole(void)
{
    __syncwarp();
}
__global__ void uses(const int *p)
{
    (void)p;
}
struct holds_pointer {
    int n;
    const int *p;
};
__global__ void uses_struct(struct holds_pointer a)
{
    (void)a;
}

static void wrong(int which)
{
    static int ordinary;
    switch (which) {
    case 0: LAUNCH(not_all_at_barrier, 1, 64, 0, nullptr); break;
    case 1: LAUNCH(two_barriers, 1, 64, 0, nullptr); break;
    case 2: LAUNCH(lane_missing, 1, 32, 0, nullptr); break;
    case 3: LAUNCH(lane_not_named, 1, 32, 0, nullptr); break;
    case 4: LAUNCH(lanes_apart, 1, 32, 0, nullptr); break;
    case 5: LAUNCH(reads_other_half, 1, 32, 0, nullptr); break;
    case 6: LAUNCH(warp_not_whole, 1, 40, 0, nullptr); break;
    case 7: LAUNCH(uses, 1, 32, 0, nullptr, &ordinary); break;
    case 8: LAUNCH(uses_struct, 1, 1, 0, nullptr, holds_pointer{ 1, &ordinary }); break;
    }
    cudaDeviceSynchronize();
}

static void test_wrong_kernels(void **)
{
    static const char *const says[] = {
        "deadlock in kernel not_all_at_barrier",
        "two barriers at once",
        "deadlock in kernel lane_missing",
        "a lane that is not in its mask",
        "lane ",
        "which is not in the mask",
        "lanes that do not exist",
        "ordinary host memory",
        "ordinary host memory",
    };
#ifdef KVL_EMU_CLEAR_PADDING
    int n = 9;
#else
    int n = 8; /* structs are not looked into */
#endif
    for (int i = 0; i < n; i++) expect_death(wrong, i, says[i]);
}

static void test_limits(void **)
{
    int *d = device_array<int>(1);
    LAUNCH(uses, 1, 1025, 0, nullptr, d);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(uses, 0, 32, 0, nullptr, d);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(uses, dim3(1, 65536), 32, 0, nullptr, d);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    LAUNCH(uses, 1, 32, 48 * 1024 + 1, nullptr, d);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaFuncSetAttribute(uses, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
                     0);
    LAUNCH(uses, 1, 32, 65536, nullptr, d);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(d);
}

/* ---- 16-bit floats ----------------------------------------------------------------------------------- */

static void test_widening(void **)
{
    for (uint32_t i = 0; i < 65536; i++) {
        float f = __half2float(__ushort_as_half((unsigned short)i)),
              g = kvl_f16_to_f32((uint16_t)i);
        assert_true(f == g || (f != f && g != g));
        assert_true(f != f || kvl_f32_bits(f) == kvl_f32_bits(g));
        f = __bfloat162float(__ushort_as_bfloat16((unsigned short)i));
        assert_true(kvl_f32_bits(f) == kvl_f32_bits(kvl_bf16_to_f32((uint16_t)i)));
    }
}

static void check_narrowing(uint32_t bits)
{
    float f = kvl_bits_f32(bits);
    unsigned short h = __half_as_ushort(__float2half_rn(f)),
                   b = __bfloat16_as_ushort(__float2bfloat16(f));
    if (f != f) {
        assert_int_equal(h, 0x7fff);
        assert_int_equal(b, 0x7fff);
    } else if (h != kvl_f32_to_f16(f) || b != kvl_f32_to_bf16(f)) {
        fail_msg("%08x gives %04x and %04x, want %04x and %04x", bits, h, b, kvl_f32_to_f16(f),
                 kvl_f32_to_bf16(f));
    }
}

static void test_narrowing(void **)
{
    /* Each number of either kind, the middles between neighbours, and what lies next to these. */
    for (uint32_t i = 0; i < 65536; i++)
        for (uint32_t d = 0; d < 5; d++) {
            static const uint32_t off[] = { 0, 1, 0xffffffffu, 0x8000, 0x8001 };
            check_narrowing((i << 16) + off[d]);
            check_narrowing((i << 16) + 0x8000 + off[d]);
            check_narrowing(kvl_f32_bits(kvl_f16_to_f32((uint16_t)i)) + off[d] % 0x8000);
            check_narrowing(kvl_f32_bits(kvl_f16_to_f32((uint16_t)i)) + 0x1000 + (off[d] & 1u));
            check_narrowing(kvl_f32_bits(kvl_f16_to_f32((uint16_t)i)) + 0xfff);
        }
    struct kvl_rng r;
    kvl_rng_seed(&r, 3);
    for (int i = 0; i < 300000; i++) check_narrowing(kvl_rng_u32(&r));
}

/* Sums and products that a double holds are rounded once. */
static void test_half_arithmetic(void **)
{
    struct kvl_rng r;
    kvl_rng_seed(&r, 4);
    for (int i = 0; i < 200000; i++) {
        unsigned short u[3];
        for (int k = 0; k < 3; k++)
            u[k] = (unsigned short)(kvl_rng_u32(&r) % 0x4400 | (kvl_rng_u32(&r) & 0x8000));
        __half a = __ushort_as_half(u[0]), b = __ushort_as_half(u[1]), c = __ushort_as_half(u[2]);
        double x = (float)a, y = (float)b, z = (float)c;
        assert_int_equal(__half_as_ushort(__hadd(a, b)), __half_as_ushort(__double2half(x + y)));
        assert_int_equal(__half_as_ushort(__hmul(a, b)), __half_as_ushort(__double2half(x * y)));
        assert_int_equal(__half_as_ushort(__hfma(a, b, c)),
                         __half_as_ushort(__double2half(x * y + z)));
    }
    /* 1 + 2^-11 lies in the middle; a little more must round up, a little less down. */
    __half one = __float2half(1), tiny = __ushort_as_half(1), half_unit = __float2half(0x1p-11f);
    assert_int_equal(__half_as_ushort(__hfma(one, one, half_unit)), 0x3c00);
    assert_int_equal(
        __half_as_ushort(__hfma(__float2half(0x1p-5f), __float2half(0x1.004p-6f), one)), 0x3c01);
    assert_int_equal(__half_as_ushort(__double2half(1 + 0x1p-11 + 0x1p-50)), 0x3c01);
    assert_int_equal(__half_as_ushort(__double2half(1 + 0x1p-11 - 0x1p-50)), 0x3c00);
    assert_true(__half2float(__hadd(tiny, tiny)) == 0x1p-23f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shuffles),        cmocka_unit_test(test_votes),
        cmocka_unit_test(test_barriers),        cmocka_unit_test(test_atomics),
        cmocka_unit_test(test_order_differs),   cmocka_unit_test(test_nothing_is_cleared),
        cmocka_unit_test(test_wrong_kernels),   cmocka_unit_test(test_limits),
        cmocka_unit_test(test_widening),        cmocka_unit_test(test_narrowing),
        cmocka_unit_test(test_half_arithmetic),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
