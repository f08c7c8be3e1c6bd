/* What each goal of a GPU should come to, from bytes, operations, launches and occupancy: a model, no measurement.
 *
 * A kernel takes as long as the slowest of three: its bytes at the speed of memory, as far as its loads under way fill
 * it; its instructions at the rate of the schedulers; and what any kernel takes to begin and end.  Shares of cards and
 * instructions per load are read off data sheets and the compiled kernels (sm_90, tests/gpu/kernel_facts.c); what is
 * assumed stands in the tables.  Launches of policies are those that tests/gpu/test_gpu_steps.c counts.
 *
 * The shape is Llama-3-8B's, as bench_gpu_how says, in bf16. */
#include "bench_goals.h"

#include <math.h>
#include <string.h>

enum {
    LAYERS = 32,
    EMBD = 4096,
    FF = 14336,
    HEADS = 32,
    KV_HEADS = 8,
    DIM = 128,
    BUDGET = 2048,
    PAGE = 16,
    CARD_NAMES = 4
};

/* Of data sheets: memory and pinned copies in GB/s, dense bf16 in TFLOP/s, clock in GHz. */
struct card {
    const char *name, *match; /* match: in a device's name */
    double memory_gbs, pinned_gbs, tflops, ghz;
    double mma_sync; /* share of tflops that instructions of one warp reach; the rest wants wgmma */
    int32_t n_sm;
};

static const struct card cards[CARD_NAMES] = {
    { "H100", "H100", 3350, 55, 989, 1.755, 0.62, 132 },
    { "H200", "H200", 4800, 55, 989, 1.755, 0.62, 132 },
    { "RTX 4090", "4090", 1008, 25, 165, 2.52, 1, 128 },
    { "A100", "A100", 2039, 25, 312, 1.41, 1, 108 },
};

/* Assumed of every card. */
static const double stream_share = 0.90;  /* of the data sheet's memory, by a streaming read */
static const double best_share = 0.95;    /* of that, by a kernel with loads enough under way */
static const double latency_s = 0.8e-6;   /* of a load when memory is busy */
static const double kernel_s = 2.5e-6;    /* least time of a kernel of a graph, its gap included */
static const double wait_s = 15e-6;       /* the host waits, decides, and the GPU begins again */
static const double evict_lane_s = 2e-6;  /* the host drops one of 2048 tokens of a lane */
static const double library_share = 0.75; /* of mma operations, by a library's matrix product */

static double stream_bs(const struct card *c)
{
    return c->memory_gbs * 1e9 * stream_share;
}

/* under_way: bytes of a multiprocessor; per16: instructions of a thread for a load of 16 bytes. */
static double read_s(const struct card *c, double bytes, double under_way, double per16)
{
    double need = stream_bs(c) * latency_s / c->n_sm;
    double memory = bytes / (stream_bs(c) * best_share * fmin(1, under_way / need));
    double issue = bytes / 16 * per16 / (128.0 * c->n_sm * c->ghz * 1e9);
    /* Close to each other they do not hide behind each other completely. */
    return kernel_s + pow(pow(memory, 4) + pow(issue, 4), 0.25);
}

/* ---- a token ------------------------------------------------------------------------------------ */

static const double layer_weights =
    2.0 * ((HEADS + 2 * KV_HEADS) * DIM * EMBD + (double)HEADS * DIM * EMBD + 3.0 * EMBD * FF);

/* 24 warps of 8 loads, 14 instructions for eight bf16 elements. */
static double weights_s(const struct card *c)
{
    return LAYERS * (read_s(c, layer_weights, 24 * 32 * 8 * 16, 30) + 3 * kernel_s);
}

static double kv_bytes(double n_tok) /* of a layer */
{
    return n_tok * KV_HEADS * DIM * 2 * 2;
}

/* decode_fast: two blocks of 8 warps, which are two to three steps of 4 KiB ahead; 600 instructions for 8 of them a
 * lane.  What the last block merges takes three reads one after the other. */
static double attention_s(const struct card *c, double n_tok)
{
    return read_s(c, kv_bytes(n_tok), 2 * 8 * 2.5 * 4096, 75) + 3 * latency_s;
}

/* Kernels of a layer beside the projections and attention: norms, rotations, the cache.  Sums and activations are made
 * by the projections. */
enum { SMALL_KERNELS = 4 };

struct policy_cost {
    double kernels;         /* of a layer, on top */
    double tables, attends; /* bytes of its index; tokens that it reads */
    double host_s; /* of a layer: lists that the host makes while the device has nothing to do */
};

static double layer_extra_s(const struct card *c, const struct policy_cost *p)
{
    double tables = p->tables > 0 ? p->tables / (stream_bs(c) * 0.7) : 0;
    return p->kernels * kernel_s + p->host_s + tables + attention_s(c, p->attends);
}

/* Rounding, minima and maxima, bounds, top-k; this one waits for itself in the middle. */
static struct policy_cost quest_cost(double n_tok)
{
    return (struct policy_cost){ .kernels = 4 + 4,
                                 .tables = n_tok / PAGE * 2 * DIM * 2 * KV_HEADS,
                                 .attends = BUDGET };
}

/* h2o, the most of them: sums, reduction, top-k, which waits for itself too, weights for it to see.  What it chose is
 * carried out once a token, behind the wait for the logits. */
static struct policy_cost evict_cost(void)
{
    return (struct policy_cost){ .kernels = 3 + 4 + 1,
                                 .attends = BUDGET,
                                 .host_s = KV_HEADS * evict_lane_s };
}

static double token_s(const struct card *c, double attention_of_layer)
{
    return weights_s(c) + LAYERS * (SMALL_KERNELS * kernel_s + attention_of_layer);
}

static double full_share(const struct card *c)
{
    double n = 32768; /* the least that counts, so the worst */
    return kv_bytes(n) / stream_bs(c) / attention_s(c, n);
}

static double quest_speed(const struct card *c, double n)
{
    struct policy_cost p = quest_cost(n);
    return attention_s(c, n) / layer_extra_s(c, &p);
}

static double evict_token(const struct card *c)
{
    double bytes = LAYERS * (layer_weights + kv_bytes(BUDGET));
    struct policy_cost p = evict_cost();
    return (token_s(c, layer_extra_s(c, &p)) + 3 * kernel_s) / (bytes / stream_bs(c));
}

static double quest_token(const struct card *c)
{
    struct policy_cost p = quest_cost(131072);
    return token_s(c, attention_s(c, 131072)) / token_s(c, layer_extra_s(c, &p));
}

/* Nine layers read everything: the first ones, three filters, those that wait for these.  The host decides behind each
 * filter. */
static double omnikv_token(const struct card *c)
{
    double dense = 9, filters = 3, full = attention_s(c, 131072);
    double all = dense * full + filters * 2 * wait_s + (LAYERS - dense) * attention_s(c, BUDGET);
    return token_s(c, full) / token_s(c, all / LAYERS);
}

/* One page in five is new for a token; nothing is fetched ahead. */
static double host_share(const struct card *c)
{
    double copy = kv_bytes(BUDGET / 5.0) / (c->pinned_gbs * 1e9);
    return copy / (copy + 2 * kernel_s + wait_s);
}

/* ---- many rows ------------------------------------------------------------------------------------ */

/* x is rounded for each of seven products and sums are added apart: bytes on top of a library's time. */
static double gemm_share(const struct card *c, double rows)
{
    double library = layer_weights * rows / (c->tflops * 1e12 * library_share);
    library = fmax(library, layer_weights / stream_bs(c));
    double rounds = rows * (6.0 * EMBD + FF) * 6 / stream_bs(c) + 7 * kernel_s;
    double pieces = ceil(rows / 512) * 7 * kernel_s; /* products come in 512 rows */
    return library / (library + rounds + (rows > 512 ? pieces : 0));
}

/* Where there is no wgmma: one buffer of keys and values, Q read again for each tile: half of what mma.sync reaches;
 * torch's flash backend has the same instructions and reaches seven tenths.  Hopper's kernel reached 458 TFLOP/s alone, on an
 * H200, where torch's best backend, cuDNN's, reached 635. */
static const double ours_of_mma = 0.5, flash_of_mma = 0.7, wide_of_best = 458.0 / 635;

static double prefill_share(const struct card *c)
{
    return c->mma_sync < 1 ? wide_of_best : ours_of_mma / flash_of_mma;
}

/* ---- goals ---------------------------------------------------------------------------------------- */

/* Torch's best backend is taken to read at 0.8 of the stream; over repeat_kv it reads once, writes four times
 * and reads four times. */
static double torch_ratio(const struct card *c)
{
    return full_share(c) / 0.8;
}
static double repeated_ratio(const struct card *c)
{
    return 9 * full_share(c) / 0.8;
}
/* A page of keys of a head is 4 KB in one piece; a new row of memory costs as much as 128 bytes. */
static double pages_share(const struct card *c)
{
    (void)c;
    return PAGE * DIM * 2 / (PAGE * DIM * 2 + 128.0);
}
static double quest_32k(const struct card *c)
{
    return quest_speed(c, 32768);
}
static double quest_128k(const struct card *c)
{
    return quest_speed(c, 131072);
}
static double flat_ratio(const struct card *c)
{
    (void)c; /* nothing that a token does depends on the depth */
    return 1;
}
static double gemm_512(const struct card *c)
{
    return gemm_share(c, 512);
}
static double gemm_4096(const struct card *c)
{
    return gemm_share(c, 4096);
}

static const struct {
    const char *key;
    double (*value)(const struct card *c);
} forecasts[] = {
    { "gpu-attention", full_share },
    { "gpu-torch", torch_ratio },
    { "gpu-torch-repeated", repeated_ratio },
    { "gpu-pages", pages_share },
    { "gpu-quest-32k", quest_32k },
    { "gpu-quest-128k", quest_128k },
    { "gpu-flat", flat_ratio },
    { "gpu-token", evict_token },
    { "gpu-host", host_share },
    { "gpu-gemm", gemm_512 },
    { "gpu-gemm-4096", gemm_4096 },
    { "gpu-prefill", prefill_share },
    { "gpu-quest-e2e", quest_token },
    { "gpu-omnikv-e2e", omnikv_token },
};

static double forecast_of(const char *key, const struct card *c)
{
    for (size_t i = 0; i < sizeof forecasts / sizeof forecasts[0]; i++)
        if (strcmp(forecasts[i].key, key) == 0) return forecasts[i].value(c);
    return NAN;
}

double bench_forecast(const char *key, const char *device)
{
    const struct card *c = cards; /* the first, where it is none of them */
    for (size_t i = 0; i < CARD_NAMES; i++)
        if (strstr(device, cards[i].match)) c = &cards[i];
    return forecast_of(key, c);
}

void bench_forecast_table(FILE *out)
{
    fputs("| what | at least | aim |", out);
    for (size_t i = 0; i < CARD_NAMES; i++) fprintf(out, " %s |", cards[i].name);
    fputs("\n|---|---|---|---|---|---|---|\n", out);
    for (size_t g = 0; g < bench_n_gpu_goals; g++) {
        const struct bench_goal *goal = &bench_gpu_goals[g];
        fprintf(out, "| %s | %s | %s |", goal->title, goal->least, goal->aim);
        for (size_t i = 0; i < CARD_NAMES; i++) {
            double v = forecast_of(goal->key, &cards[i]);
            bool met = goal->at_least ? v >= goal->bound[0] : v <= goal->bound[0];
            fprintf(out, " %.2f%s |", v, met ? "" : " (no)");
        }
        fputs("\n", out);
    }
}
