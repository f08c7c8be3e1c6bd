/* Whether the checker of races (cuda_host_races.h) finds what is planted here, and nothing where nothing is. */
#include "cuda_host_test.h"

#include "mma.cuh"

enum { N = 128, BLOCKS = 4 };

/* ---- between the threads of a block ------------------------------------------------------------------- */

enum block_fault { BLOCK_RIGHT, BLOCK_NO_BARRIER, BLOCK_NO_SECOND, BLOCK_UNSET, BLOCK_FAULTS };

/* Neighbours' values, twice; the order in which threads run does not show a barrier that is missing. */
static __global__ void turn_twice(int *x, int fault)
{
    __shared__ int s[N];
    int t = (int)threadIdx.x, v = x[t];
    if (fault != BLOCK_UNSET || t > 0) s[t] = -1;
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        if (fault != BLOCK_UNSET) s[t] = v;
        if (fault != BLOCK_NO_BARRIER) __syncthreads();
        v = s[(t + 1) % N];
        if (fault != BLOCK_NO_SECOND) __syncthreads();
    }
    x[t] = v;
}

/* ---- between the lanes of a warp ---------------------------------------------------------------------- */

enum warp_fault { WARP_RIGHT, WARP_NO_SYNC, WARP_SHUFFLE, WARP_HALF, WARP_OTHER, WARP_FAULTS };

/* The next lane's value through shared memory. */
static __global__ void next_lane(int *x, int fault)
{
    KVL_SHARED(int, s);
    int t = (int)threadIdx.x, next = t / 32 * 32 + (t + 1) % 32;
    s[t] = -1;
    __syncthreads();
    s[t] = x[t];
    if (fault == WARP_RIGHT || fault == WARP_OTHER) __syncwarp();
    if (fault == WARP_SHUFFLE) (void)__shfl_sync(0xffffffffu, t, 0);
    if (fault == WARP_HALF) __syncwarp(t % 32 < 16 ? 0xffffu : 0xffff0000u);
    if (fault == WARP_OTHER) next = (next + 32) % N;
    x[t] = s[next];
}

/* ---- between blocks ----------------------------------------------------------------------------------- */

enum grid_fault { GRID_RIGHT, GRID_NO_FENCE, GRID_NO_TICKET, GRID_STORES, GRID_PLAIN, GRID_FAULTS };

/* Every block leaves N numbers; the last one to come sums them. */
static __global__ void last_sums(int *part, unsigned *ticket, int *sum, int fault)
{
    __shared__ unsigned last;
    int t = (int)threadIdx.x, b = (int)blockIdx.x;
    part[b * N + t] = b + t;
    if (fault == GRID_STORES) sum[1] = b;
    __syncthreads();
    if (t == 0) {
        if (fault != GRID_NO_FENCE) __threadfence();
        last = fault == GRID_NO_TICKET ? b == 0 : atomicAdd(ticket, 1u) == BLOCKS - 1;
        if (fault == GRID_PLAIN) last = *ticket == BLOCKS;
    }
    __syncthreads();
    if (!last || t > 0) return;
    int all = 0;
    for (int i = 0; i < BLOCKS * N; i++) all += part[i];
    sum[0] = all;
    *ticket = 0;
}

/* ---- what is none ------------------------------------------------------------------------------------- */

/* Stores of the same value, atomics of all, bytes beside each other. */
static __global__ void no_races(unsigned char *bytes, int *flag, unsigned *count)
{
    __shared__ unsigned in_block;
    int t = (int)threadIdx.x;
    if (t == 0) in_block = 0;
    __syncthreads();
    atomicAdd(&in_block, 1u);
    bytes[blockIdx.x * N + threadIdx.x] = (unsigned char)t;
    *flag = 1;
    __syncthreads();
    if (t == 0) atomicAdd(count, in_block);
}

/* ---- asynchronous copies ------------------------------------------------------------------------------ */

enum copy_fault { COPY_RIGHT, COPY_NO_BARRIER, COPY_TOO_EARLY, COPY_FAULTS };

/* Pieces of 16 bytes a thread, one behind the other through the same memory; each reads its neighbour's. */
static __global__ void copied(const uint4 *from, uint4 *to, int fault)
{
    KVL_SHARED(uint4, s);
    int t = (int)threadIdx.x;
    for (int i = 0; i < 3; i++) {
        kvl_copy_async(&s[t], &from[i * N + t], true);
        kvl_copy_wait();
        if (fault != COPY_NO_BARRIER) __syncthreads();
        to[i * N + t] = s[(t + 1) % N];
        if (fault != COPY_TOO_EARLY) __syncthreads();
    }
}

/* ---- tests -------------------------------------------------------------------------------------------- */

static void run_block(int fault)
{
    int *x = device_array<int>(N);
    LAUNCH(turn_twice, 1, N, 0, nullptr, x, fault);
    cudaDeviceSynchronize();
}
static void run_warp(int fault)
{
    int *x = device_array<int>(N);
    LAUNCH(next_lane, 1, N, N * sizeof(int), nullptr, x, fault);
    cudaDeviceSynchronize();
}
static void run_grid(int fault)
{
    int *part = device_array<int>(BLOCKS * N), *sum = device_array<int>(2);
    unsigned *ticket = device_array<unsigned>(1);
    cudaMemset(ticket, 0, sizeof *ticket);
    for (int i = 0; i < 2; i++) LAUNCH(last_sums, BLOCKS, N, 0, nullptr, part, ticket, sum, fault);
    int h[2] = { 0 };
    to_host(h, sum, 1);
    assert_int_equal(h[0], N * (BLOCKS * (BLOCKS - 1) / 2) + BLOCKS * (N * (N - 1) / 2));
}
static void run_copy(int fault)
{
    uint4 *from = device_array<uint4>(3 * N), *to = device_array<uint4>(3 * N);
    LAUNCH(copied, 1, N, N * sizeof(uint4), nullptr, from, to, fault);
    cudaDeviceSynchronize();
}

static void check(void (*run)(int), int n_faults, const char *const *says)
{
    run(0);
    for (int fault = 1; fault < n_faults; fault++) expect_death(run, fault, says[fault]);
}

static void test_block(void **)
{
    static const char *const says[] = { "", "race in shared memory", "race in shared memory",
                                        "is read before it is written" };
    check(run_block, BLOCK_FAULTS, says);
}

static void test_warp(void **)
{
    static const char *const says[] = { "", "race in dynamic shared memory",
                                        "race in dynamic shared memory",
                                        "race in dynamic shared memory", "kernel next_lane" };
    check(run_warp, WARP_FAULTS, says);
}

static void test_grid(void **)
{
    static const char *const says[] = { "", "race in global memory", "race in global memory",
                                        "race in global memory", "race in global memory" };
    check(run_grid, GRID_FAULTS, says);
}

static void test_copies(void **)
{
    static const char *const says[] = { "", "race in dynamic shared memory",
                                        "race in dynamic shared memory" };
    check(run_copy, COPY_FAULTS, says);
}

static void test_none(void **)
{
    unsigned char *bytes = device_array<unsigned char>(BLOCKS * N);
    int *flag = device_array<int>(1);
    unsigned *count = device_array<unsigned>(1), n;
    cudaMemset(count, 0, sizeof *count);
    LAUNCH(no_races, BLOCKS, N, 0, nullptr, bytes, flag, count);
    to_host(&n, count, 1);
    assert_int_equal(n, BLOCKS * N);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block),  cmocka_unit_test(test_warp), cmocka_unit_test(test_grid),
        cmocka_unit_test(test_copies), cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
