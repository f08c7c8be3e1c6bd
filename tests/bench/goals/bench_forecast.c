/* What each goal of a GPU should come to, from bytes, operations, launches and occupancy: a model, no measurement.
 *
 * harness/simulate/gpu_time.h is how long reads take, harness/profiles/ has the cards.  Launches of policies are those
 * that tests/gpu/test_gpu_steps.c counts.
 *
 * The shape is Llama-3-8B's, as bench_gpu_how says, in bf16. */
#include "bench_goals.h"
#include "gpu_time.h"

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

/* match: in a device's name. */
static const struct {
    const char *profile, *match;
} cards[CARD_NAMES] = {
    { "h100", "H100" }, { "h200", "H200" }, { "rtx4090", "4090" }, { "a100", "A100" }
};

/* Assumed of every card's host: it drops one of 2048 tokens of a lane, and finds which of its 128 pages are missing.  A busy
 * host without a GPU took 5.5 to 8 us for the first (an H100's some 10, before ranks), of which the top-k, a kernel of a
 * GPU, is 0.38 (272 of 720 samples of a profile); of the second no table has a figure. */
static const double evict_lane_s = 0.62 * 5.5e-6, fetch_lane_s = 4.6e-6;

/* ---- a token ------------------------------------------------------------------------------------ */

static const double layer_weights =
    2.0 * ((HEADS + 2 * KV_HEADS) * DIM * EMBD + (double)HEADS * DIM * EMBD + 3.0 * EMBD * FF);

static double kv_bytes(double n_tok) /* of a layer */
{
    return n_tok * KV_HEADS * DIM * 2 * 2;
}

static double attention_s(const struct kvl_profile *c, double n_tok)
{
    return kvl_gpu_attention(c, kv_bytes(n_tok));
}

struct policy_cost {
    double kernels;         /* of a layer, on top */
    double tables, attends; /* bytes of its index; tokens that it reads */
    double host_s; /* of a layer: lists that the host makes while the device has nothing to do */
};

static double layer_extra_s(const struct kvl_profile *c, const struct policy_cost *p)
{
    return p->kernels * KVL_GPU_KERNEL + p->host_s + kvl_gpu_tables(c, p->tables) +
           attention_s(c, p->attends);
}

/* Minima and maxima, bounds, top-k; this one waits for itself in the middle. */
static struct policy_cost quest_cost(double n_tok)
{
    return (struct policy_cost){ .kernels = 3 + 4,
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

static double token_s(const struct kvl_profile *c, double attention_of_layer)
{
    return LAYERS * (kvl_gpu_weights(c, layer_weights) + KVL_GPU_SMALL_KERNELS * KVL_GPU_KERNEL +
                     attention_of_layer);
}

static double full_share(const struct kvl_profile *c)
{
    double n = 32768; /* the least that counts, so the worst */
    return kv_bytes(n) / kvl_gpu_stream(c) / attention_s(c, n);
}

static double quest_speed(const struct kvl_profile *c, double n)
{
    struct policy_cost p = quest_cost(n);
    return attention_s(c, n) / layer_extra_s(c, &p);
}

static double evict_token(const struct kvl_profile *c)
{
    double bytes = LAYERS * (layer_weights + kv_bytes(BUDGET));
    struct policy_cost p = evict_cost();
    return (token_s(c, layer_extra_s(c, &p)) + 3 * KVL_GPU_KERNEL) / (bytes / kvl_gpu_stream(c));
}

static double quest_token(const struct kvl_profile *c)
{
    struct policy_cost p = quest_cost(131072);
    return token_s(c, attention_s(c, 131072)) / token_s(c, layer_extra_s(c, &p));
}

/* Nine layers read everything: the first ones, three filters, those that wait for these.  The host decides behind each
 * filter. */
static double omnikv_token(const struct kvl_profile *c)
{
    double dense = 9, filters = 3, full = attention_s(c, 131072);
    double all =
        dense * full + filters * 2 * KVL_GPU_WAIT + (LAYERS - dense) * attention_s(c, BUDGET);
    return token_s(c, full) / token_s(c, all / LAYERS);
}

/* One page in five is new for a token; nothing is fetched ahead.  Pages of a lane are found while those of lanes before it
 * come. */
static double host_share(const struct kvl_profile *c)
{
    double copy = kv_bytes(BUDGET / 5.0) / (c->bus_gbs * 1e9), found = KV_HEADS * fetch_lane_s;
    return copy / (KVL_MAX(copy, found) + 2 * KVL_GPU_KERNEL + KVL_GPU_WAIT);
}

/* ---- many rows ------------------------------------------------------------------------------------ */

/* x is rounded for each of seven products and sums are added apart: bytes on top of a library's time. */
static double gemm_share(const struct kvl_profile *c, double rows)
{
    double library = layer_weights * rows / (c->tflops * 1e12 * KVL_GPU_GEMM);
    library = fmax(library, layer_weights / kvl_gpu_stream(c));
    double rounds = rows * (6.0 * EMBD + FF) * 6 / kvl_gpu_stream(c) + 7 * KVL_GPU_KERNEL;
    double pieces = ceil(rows / 512) * 7 * KVL_GPU_KERNEL; /* products come in 512 rows */
    return library / (library + rounds + (rows > 512 ? pieces : 0));
}

/* Where there is no wgmma: one buffer of keys and values, Q read again for each tile: half of what mma.sync reaches;
 * torch's flash backend has the same instructions and reaches seven tenths.  Hopper's kernel reached 458 TFLOP/s alone, on an
 * H200, where torch's best backend, cuDNN's, reached 635. */
static const double ours_of_mma = 0.5, flash_of_mma = 0.7, wide_of_best = 458.0 / 635;

static double prefill_share(const struct kvl_profile *c)
{
    return c->mma_share < 1 ? wide_of_best : ours_of_mma / flash_of_mma;
}

/* ---- goals ---------------------------------------------------------------------------------------- */

/* Torch's best backend is taken to read at 0.8 of the stream; over repeat_kv it reads once, writes four times
 * and reads four times. */
static double torch_ratio(const struct kvl_profile *c)
{
    return full_share(c) / 0.8;
}
static double repeated_ratio(const struct kvl_profile *c)
{
    return 9 * full_share(c) / 0.8;
}
/* A page of keys of a head is 4 KB in one piece; a new row of memory costs as much as 128 bytes. */
static double pages_share(const struct kvl_profile *c)
{
    (void)c;
    return PAGE * DIM * 2 / (PAGE * DIM * 2 + 128.0);
}
static double quest_32k(const struct kvl_profile *c)
{
    return quest_speed(c, 32768);
}
static double quest_128k(const struct kvl_profile *c)
{
    return quest_speed(c, 131072);
}
static double flat_ratio(const struct kvl_profile *c)
{
    (void)c; /* nothing that a token does depends on the depth */
    return 1;
}
static double gemm_512(const struct kvl_profile *c)
{
    return gemm_share(c, 512);
}
static double gemm_4096(const struct kvl_profile *c)
{
    return gemm_share(c, 4096);
}

static const struct {
    const char *key;
    double (*value)(const struct kvl_profile *c);
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

static double forecast_of(const char *key, const struct kvl_profile *c)
{
    for (size_t i = 0; i < sizeof forecasts / sizeof forecasts[0]; i++)
        if (strcmp(forecasts[i].key, key) == 0) return forecasts[i].value(c);
    return NAN;
}

double bench_forecast(const char *key, const char *device)
{
    struct kvl_profile p;
    size_t at = 0; /* the first, where it is none of them */
    for (size_t i = 0; i < CARD_NAMES; i++)
        if (strstr(device, cards[i].match)) at = i;
    return kvl_profile_read(cards[at].profile, &p, NULL) == KVL_OK ? forecast_of(key, &p)
                                                                   : (double)NAN;
}

void bench_forecast_table(FILE *out)
{
    struct kvl_profile card[CARD_NAMES];
    size_t n = 0;
    while (n < CARD_NAMES && kvl_profile_read(cards[n].profile, &card[n], NULL) == KVL_OK) n++;
    fputs("| what | at least | aim |", out);
    for (size_t i = 0; i < n; i++) fprintf(out, " %s |", card[i].name);
    fputs("\n|---|---|---|---|---|---|---|\n", out);
    for (size_t g = 0; g < bench_n_gpu_goals; g++) {
        const struct bench_goal *goal = &bench_gpu_goals[g];
        fprintf(out, "| %s | %s | %s |", goal->title, goal->least, goal->aim);
        for (size_t i = 0; i < n; i++) {
            double v = forecast_of(goal->key, &card[i]);
            bool met = goal->at_least ? v >= goal->bound[0] : v <= goal->bound[0];
            fprintf(out, " %.2f%s |", v, met ? "" : " (no)");
        }
        fputs("\n", out);
    }
}
