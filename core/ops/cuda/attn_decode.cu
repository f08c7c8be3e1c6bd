/* Split-KV decoding (Flash-Decoding, Dao et al. 2023): a list is cut in splits whose size follows from its
 * length alone, a block computes one split for some query heads of the job.  Common lists take one kernel, whose last block
 * merges the splits in their order (attn_fast.cuh); of the others (attn_split.cuh) a second kernel merges those of a head.
 *
 * Limit: the bytes of K and V, each read once.  Partial results are 4 (head_dim + 2) bytes per head and
 * split and stay in L2: for 4 heads, head_dim 128 and 512 slots of bf16 they are 0.8 % of the split's bytes,
 * written and read.  Multiply-adds: 1 per element and head; 4 heads take about a quarter of those of an
 * H200.  Times: results/gpu-kernels.md. */
#include "attn_fast.cuh"
#include "kv_rows.cuh"

enum {
    PROBS_TILE = 2048,
    DECODE_ROOMY = 200 << 10, /* shared memory of which two blocks of three steps are in an SM */
};

/* ---- the merge ----------------------------------------------------------------------------------- */

/* The maximum of n parts that are n_heads apart, and the sum of their sums. */
static __device__ inline struct decode_part merge_total(const struct decode_part *part, int32_t n,
                                                        int32_t n_heads,
                                                        struct decode_part *warp_part)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    struct decode_part t = { -INFINITY, 0 };
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += DECODE_THREADS)
        t.max = fmaxf(t.max, part[i * n_heads].max);
    t.max = kvl_warp_max(t.max);
    if (lane == 0) warp_part[warp].max = t.max;
    __syncthreads();
    for (int32_t w = 0; w < DECODE_WARPS; w++) t.max = fmaxf(t.max, warp_part[w].max);
    float shift = t.max == -INFINITY ? 0 : t.max;
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += DECODE_THREADS) {
        struct decode_part p = part[i * n_heads];
        t.sum += expf(p.max - shift) * p.sum;
    }
    t.sum = kvl_warp_sum(t.sum);
    if (lane == 0) warp_part[warp].sum = t.sum;
    __syncthreads();
    t.sum = 0;
    for (int32_t w = 0; w < DECODE_WARPS; w++) t.sum += warp_part[w].sum;
    return { shift, t.sum };
}

/* A block per head of a job; its warps share the splits. */
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_merge(const __grid_constant__ struct decode_params a)
{
    __shared__ struct decode_part warp_part[DECODE_WARPS];
    __shared__ float sum[DECODE_WARPS][TILE];
    const struct decode_job *job = &a.job[blockIdx.y];
    int32_t h = (int32_t)blockIdx.x, n = decode_splits(job->n_slots), heads = job->n_heads;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    if (h >= heads || job->fast) return; /* whole blocks */
    const struct decode_part *part = a.part + job->part0 + h;
    const float *from = a.acc + (size_t)(job->part0 + h) * (size_t)a.head_dim;
    struct decode_part t = merge_total(part, n, heads, warp_part);
    if (threadIdx.x == 0) job->lse[h] = t.sum == 0 ? -INFINITY : t.max + logf(t.sum);
    for (int32_t c0 = 0; job->out && c0 < a.head_dim; c0 += TILE) {
        float acc[TILE_LANE] = { 0 };
#pragma unroll 4
        for (int32_t i = warp; i < n; i += DECODE_WARPS) {
            float w = expf(part[i * heads].max - t.max);
            const float *row = from + (size_t)(i * heads) * (size_t)a.head_dim;
#pragma unroll
            for (int k = 0; k < TILE_LANE; k++) {
                int32_t c = c0 + lane + k * KVL_WARP;
                if (c < a.head_dim) acc[k] = fmaf(w, row[c], acc[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < TILE_LANE; k++) sum[warp][lane + k * KVL_WARP] = acc[k];
        __syncthreads();
        int32_t c = c0 + (int32_t)threadIdx.x;
        if (threadIdx.x < TILE && c < a.head_dim) {
            float x = 0;
            for (int32_t w = 0; w < DECODE_WARPS; w++) x += sum[w][threadIdx.x];
            job->out[(size_t)h * (size_t)a.head_dim + (size_t)c] = t.sum == 0 ? 0 : x / t.sum;
        }
        __syncthreads();
    }
}

/* Logits to weights within the list. */
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_probs(const __grid_constant__ struct decode_params a)
{
    const struct decode_job *job = &a.job[blockIdx.z];
    int32_t h = (int32_t)blockIdx.y, i0 = (int32_t)blockIdx.x * PROBS_TILE;
    if (!job->probs || h >= job->n_heads) return;
    float *probs = job->probs + (size_t)h * (size_t)job->n_slots;
    float lse = job->lse[h], shift = lse == -INFINITY ? 0 : lse;
    for (int32_t i = i0 + (int32_t)threadIdx.x; i < min(i0 + PROBS_TILE, job->n_slots);
         i += DECODE_THREADS)
        probs[i] = expf(probs[i] - shift);
}

/* ---- launches ------------------------------------------------------------------------------------ */

static int32_t decode_weights(int32_t split, int32_t heads)
{
    return split * (heads < 2 ? 2 : heads); /* a run is as large as two */
}

/* What a call needs of tables and partial results. */
struct decode_plan {
    int32_t n_runs, n_firsts;
    int32_t n_parts;                       /* splits of heads */
    int32_t n_slots, n_heads;              /* of the largest job */
    int32_t splits[2], heads[2], split[2]; /* the same of those of a kernel: any, fast */
    bool probs, pos, staged, any;          /* any: not all are fast */
};

static bool decode_is_fast(const struct kvl_attn_job *job)
{
    const struct kvl_layout *l = job->lane->layout;
    return job->n_slots > 0 && kvl_cuda_type(l) != KVL_KV_F32 &&
           (l->head_dim == 64 || l->head_dim == 128) && !job->pos && !job->keys;
}

static struct decode_plan decode_measure(const struct kvl_attn_job *jobs, int32_t n_jobs,
                                         int32_t head_dim)
{
    struct decode_plan p = {};
    (void)head_dim;
    for (int32_t j = 0; j < n_jobs; j++) {
        const struct kvl_attn_job *job = &jobs[j];
        int32_t split = decode_split_of(job->n_slots), kind = decode_is_fast(job);
        int32_t n_splits = decode_splits(job->n_slots);
        assert(job->lane->layout->head_dim == head_dim && job->n_heads >= 1);
        assert(!job->pos || job->lane->layout->part_off[KVL_PART_K_RAW] != SIZE_MAX);
        assert(!job->pos || !job->keys);
        assert(!job->page || (!job->runs && job->page_tok > 0 && job->n_pages >= 0));
        assert(!job->page || job->n_pages * job->page_tok <= job->n_slots);
        if (job->runs) p.n_runs += job->n_runs;
        if (job->runs) p.n_firsts += n_splits;
        p.n_parts += n_splits * job->n_heads;
        p.n_slots = KVL_MAX(p.n_slots, job->n_slots);
        p.n_heads = KVL_MAX(p.n_heads, job->n_heads);
        p.probs = p.probs || job->probs;
        p.pos = p.pos || job->pos;
        p.any = p.any || !kind;
        p.staged = p.staged || !job->lane->data || kvl_cuda_is_kept(job->lane->layout);
        p.splits[kind] = KVL_MAX(p.splits[kind], n_splits);
        p.heads[kind] = KVL_MAX(p.heads[kind], job->n_heads);
        p.split[kind] = KVL_MAX(p.split[kind], split);
    }
    return p;
}

/* Runs with the entry they start at, and the run of every split's first entry.  Empty runs go. */
static int32_t decode_put_runs(const struct kvl_attn_job *job, int32_t split,
                               struct decode_run *run, int32_t *first)
{
    int32_t n = 0, start = 0,
            next = 0; /* next: the first entry of a split whose run is not known */
    for (int32_t r = 0; r < job->n_runs; r++) {
        if (job->runs[r].n == 0) continue;
        assert(job->runs[r].slot >= 0 && job->runs[r].n > 0 &&
               job->runs[r].slot + job->runs[r].n <= job->lane->n_slots);
        run[n] = { job->runs[r].slot, start };
        start += job->runs[r].n;
        for (; next < start; next += split) *first++ = n;
        n++;
    }
    assert(start == job->n_slots);
    return n;
}

/* Host memory for the tables of a call, kept for the next one. */
static uint8_t *decode_host(size_t bytes)
{
    static uint8_t *memory;
    static size_t size;
    if (bytes > size) {
        kvl_free(memory);
        size = bytes + bytes / 2;
        memory = static_cast<uint8_t *>(kvl_alloc(size, 1));
        if (!memory) size = 0;
    }
    return memory;
}

static struct decode_job decode_job_of(struct kvl_cuda_call *c, const struct kvl_attn_job *job,
                                       int32_t head_dim, bool values)
{
    struct decode_job d = {};
    size_t n = (size_t)job->n_slots, heads = (size_t)job->n_heads, dim = (size_t)head_dim;
    d.blocks = job->lane->data;
    d.q = kvl_cuda_in(c, job->q, heads * dim);
    if (n > 0) {
        d.log_weight = kvl_cuda_in(c, job->log_weight, n);
        d.keys = kvl_cuda_in(c, job->keys, n * dim);
        d.pos = kvl_cuda_in(c, job->pos, n);
        d.probs = kvl_cuda_out(c, job->probs, heads * n);
    }
    if (job->page) {
        if (job->n_pages > 0) d.page = kvl_cuda_in(c, job->page, (size_t)job->n_pages);
        d.n_pages = job->n_pages;
        d.page_tok = job->page_tok;
        d.tail = job->tail;
    }
    if (values) d.out = kvl_cuda_out(c, job->out, heads * dim);
    d.lse = job->lse ? kvl_cuda_out(c, job->lse, heads) : kvl_cuda_temp<float>(c, heads);
    d.n_slots = job->n_slots;
    d.n_heads = job->n_heads;
    d.q_pos = job->q_pos;
    d.fast = decode_is_fast(job);
    return d;
}

/* Runs and splits of all jobs in one piece of memory, uploaded. */
static void decode_lists(struct kvl_cuda_call *c, const struct kvl_attn_job *jobs, int32_t n_jobs,
                         const struct decode_plan *p, struct decode_params *out)
{
    size_t firsts_at = (size_t)p->n_runs * sizeof(struct decode_run);
    size_t bytes = firsts_at + (size_t)p->n_firsts * sizeof(int32_t);
    if (p->n_runs == 0 || c->rc != KVL_OK) return;
    uint8_t *host = decode_host(bytes);
    if (!host) {
        c->rc = KVL_ENOMEM;
        return;
    }
    struct decode_run *run = reinterpret_cast<struct decode_run *>(host);
    int32_t *first = reinterpret_cast<int32_t *>(host + firsts_at), n_run = 0, n_first = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        struct decode_job *d = &out->job[j];
        if (!jobs[j].runs) continue;
        d->run0 = n_run;
        d->first0 = n_first;
        d->n_runs =
            decode_put_runs(&jobs[j], decode_split_of(d->n_slots), run + n_run, first + n_first);
        n_run += d->n_runs;
        n_first += decode_splits(d->n_slots);
    }
    const uint8_t *lists = kvl_cuda_upload(c, host, bytes);
    if (!lists) return;
    out->run = reinterpret_cast<const struct decode_run *>(lists);
    out->first = reinterpret_cast<const int32_t *>(lists + firsts_at);
}

/* Parameters of all kernels of n_jobs jobs. */
static int decode_open(struct kvl_cuda_call *c, const struct kvl_attn_decode_args *a,
                       const struct kvl_attn_job *jobs, int32_t n_jobs, const struct decode_plan *p,
                       bool values, struct decode_params *out)
{
    const struct kvl_layout *l = jobs[0].lane->layout;
    const struct kvl_lane *lane[DECODE_JOBS];
    int32_t n_part = 0;
    for (int32_t j = 0; j < n_jobs; j++) {
        struct decode_job d = decode_job_of(c, &jobs[j], a->head_dim, values);
        d.part0 = n_part;
        n_part += decode_splits(d.n_slots) * d.n_heads;
        out->job[j] = d;
        lane[j] = jobs[j].lane;
    }
    decode_lists(c, jobs, n_jobs, p, out);
    if (p->staged) out->lane = kvl_cuda_lane_list(c, lane, n_jobs);
    out->rope = kvl_cuda_rope_of(c, a->rope, p->pos);
    out->part = kvl_cuda_temp<struct decode_part>(c, (size_t)n_part);
    if (values) out->acc = kvl_cuda_temp<float>(c, (size_t)n_part * (size_t)a->head_dim);
    out->scale = a->scale;
    out->cap = a->cap;
    out->head_dim = a->head_dim;
    out->half = a->head_dim / 2;
    out->ahead = kvl_cuda_block_bytes() >= DECODE_ROOMY ? FAST_AHEAD : FAST_AHEAD - 1;
    out->block_shift = l->block_shift;
    for (int part = 0; part < 3; part++) out->off[part] = kvl_cuda_off(l, part);
    return c->rc;
}

template <class T, int D, int G>
static int decode_start_fast(const struct decode_params *a, const struct decode_plan *p,
                             int32_t n_jobs)
{
    dim3 grid((unsigned)p->splits[1], (unsigned)n_jobs, (unsigned)kvl_ceil_div(p->heads[1], G));
    void (*decode_fast_kernel)(struct decode_params) = decode_fast<T, D, G>;
    size_t bytes = fast_bytes<T, D, G>(p->split[1], a->ahead, a->run != NULL);
    assert(grid.z <= FAST_Z);
    KVL_TRY(kvl_cuda_check(cudaFuncSetAttribute(decode_fast_kernel,
                                                cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                (int)bytes),
                           "shared memory of decode attention"));
    KVL_LAUNCH(decode_fast_kernel, grid, DECODE_THREADS, bytes, *a);
    return KVL_OK;
}

/* As many heads as the largest job has, up to 8: keys and values are read once for these, and sums of 8
 * heads still fit into registers. */
template <class T, int D>
static int decode_fast_heads(const struct decode_params *a, const struct decode_plan *p,
                             int32_t n_jobs)
{
    if (p->heads[1] == 1) return decode_start_fast<T, D, 1>(a, p, n_jobs);
    if (p->heads[1] == 2) return decode_start_fast<T, D, 2>(a, p, n_jobs);
    if (p->heads[1] <= 4) return decode_start_fast<T, D, 4>(a, p, n_jobs);
    return decode_start_fast<T, D, 8>(a, p, n_jobs);
}

template <class T>
static int decode_fast_dim(const struct decode_params *a, const struct decode_plan *p,
                           int32_t n_jobs)
{
    if (a->head_dim == 64) return decode_fast_heads<T, 64>(a, p, n_jobs);
    return decode_fast_heads<T, 128>(a, p, n_jobs);
}

static int decode_launch_fast(const struct decode_params *a, const struct decode_plan *p,
                              int32_t n_jobs, enum kvl_kv_type type)
{
    if (type == KVL_KV_F16) return decode_fast_dim<__half>(a, p, n_jobs);
    if (type == KVL_KV_BF16) return decode_fast_dim<__nv_bfloat16>(a, p, n_jobs);
    return decode_fast_dim<struct kvl_q8>(a, p, n_jobs);
}

static void decode_launch_any(const struct decode_params *a, const struct decode_plan *p,
                              int32_t n_jobs, enum kvl_kv_type type)
{
    size_t bytes = (size_t)p->split[0] * sizeof(uint8_t *) +
                   (size_t)(ANY_HEADS * a->head_dim + decode_weights(p->split[0], ANY_HEADS) +
                            DECODE_WARPS * ANY_HEADS * TILE) *
                       sizeof(float);
    dim3 grid((unsigned)p->splits[0], (unsigned)n_jobs,
              (unsigned)kvl_ceil_div(p->heads[0], ANY_HEADS));
    if (type == KVL_KV_F32)
        KVL_LAUNCH(decode_any<float>, grid, DECODE_THREADS, bytes, *a);
    else if (type == KVL_KV_F16)
        KVL_LAUNCH(decode_any<__half>, grid, DECODE_THREADS, bytes, *a);
    else if (type == KVL_KV_Q8_0)
        KVL_LAUNCH(decode_any<struct kvl_q8>, grid, DECODE_THREADS, bytes, *a);
    else
        KVL_LAUNCH(decode_any<__nv_bfloat16>, grid, DECODE_THREADS, bytes, *a);
}

/* Blocks of jobs with fewer splits or heads than the largest, or of the other kernel, end at once. */
static int decode_launch(const struct decode_params *a, const struct decode_plan *p, int32_t n_jobs,
                         enum kvl_kv_type type)
{
    if (p->splits[1] > 0) KVL_TRY(decode_launch_fast(a, p, n_jobs, type));
    if (p->splits[0] > 0) decode_launch_any(a, p, n_jobs, type);
    dim3 heads((unsigned)p->n_heads, (unsigned)n_jobs);
    if (p->any) KVL_LAUNCH(decode_merge, heads, DECODE_THREADS, 0, *a);
    dim3 tiles((unsigned)kvl_ceil_div(p->n_slots, PROBS_TILE), (unsigned)p->n_heads,
               (unsigned)n_jobs);
    if (p->probs && p->n_slots > 0) KVL_LAUNCH(decode_probs, tiles, DECODE_THREADS, 0, *a);
    return KVL_OK;
}

static int decode_jobs(const struct kvl_attn_decode_args *a, const struct kvl_attn_job *jobs,
                       int32_t n_jobs, bool values)
{
    struct kvl_cuda_call c;
    struct decode_plan p = decode_measure(jobs, n_jobs, a->head_dim);
    struct decode_params d = {};
    kvl_cuda_begin(&c);
    if (c.rc == KVL_OK && decode_open(&c, a, jobs, n_jobs, &p, values, &d) == KVL_OK)
        c.rc = decode_launch(&d, &p, n_jobs, kvl_cuda_type(jobs[0].lane->layout));
    return kvl_cuda_end(&c);
}

int kvl_cuda_attend(const struct kvl_attn_decode_args *a, bool values)
{
    assert(a->head_dim % 2 == 0 && a->head_dim <= 1024);
    for (int32_t j = 0; j < a->n_jobs; j += DECODE_JOBS)
        KVL_TRY(decode_jobs(a, &a->jobs[j], KVL_MIN(DECODE_JOBS, a->n_jobs - j), values));
    return KVL_OK;
}

int kvl_cuda_attn_decode(const struct kvl_attn_decode_args *a)
{
    return kvl_cuda_attend(a, true);
}
