/* Not operators: what the machine gives at most, to divide the operators by. */
#include "kvl/peak.h"

#include "cpu.h"

#include <omp.h>

enum { PEAK_LINE = 16 }; /* floats of a cache line */

static volatile float peak_sink; /* so that nothing is optimised away */

float kvl_peak_read(const float *data, size_t n)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_ops_threads();
    size_t part = (n / (size_t)threads / PEAK_LINE + 1) * PEAK_LINE;
    float total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
    for (int t = 0; t < threads; t++) {
        size_t from = KVL_MIN(n, part * (size_t)t);
        total += kern->peak_read(data + from, KVL_MIN(part, n - from));
    }
    peak_sink = total;
    return total;
}

static void peak_run(float (*run)(const float *x, int64_t n), int64_t n, int threads)
{
    static const volatile float given[3] = { 1.0f, 1e-9f, 0.0f };
    const float x[3] = { given[0], given[1], given[2] };
    float total = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : total)
    for (int t = 0; t < threads; t++) total += run(x, n);
    peak_sink = total;
}

double kvl_peak_fma(int64_t n)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_ops_threads();
    peak_run(kern->peak_fma, n, threads);
    return 2.0 * kern->peak_lanes * (double)n * threads;
}

double kvl_peak_bf16(int64_t n)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_ops_threads();
    if (!kern->peak_bf16) return 0;
    peak_run(kern->peak_bf16, n, threads);
    return 4.0 * kern->peak_lanes * (double)n * threads;
}
