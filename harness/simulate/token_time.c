/* From bytes and profiles to seconds. */
#include "token_time.h"

#include "gpu_time.h"

#include <math.h>

/* Attention of a prefill on a GPU, as a share of its tflops; of bench_forecast's figures. */
static const double gpu_prefill_attention = 0.5;
/* Launches of a method in a layer where it chooses: tests/gpu/test_gpu_steps.c counts 8 of quest and of h2o. */
enum { METHOD_KERNELS = 8 };

/* ---- how work is shared out -------------------------------------------------------------------------- */

/* Parts that kv heads fall into: beyond their number they are copied. */
static double head_parts(const struct kvl_sim *s, struct kvl_split split)
{
    return KVL_MIN(split.tensor, s->shape.n_kv_heads);
}

/* Share of its keys and values that a method reads in layers which it leaves dense.  What reads nearly everything is
 * dense; what chooses nothing and reads little has evicted the rest. */
static double dense_share(const struct bench_method_cost *c)
{
    if (c->kv_bytes >= 0.9 * c->full_bytes) return 1;
    return c->selects > 0 && c->attended_tok > 0 ? c->dense_tok / c->attended_tok : 0;
}

/* Of one device, where the whole is 1. */
static double kv_part(const struct kvl_sim *s, struct kvl_split split,
                      const struct bench_method_cost *c)
{
    double dense = dense_share(c);
    return (1 - dense + dense / split.context) / head_parts(s, split);
}

int kvl_split_check(const struct kvl_split *split, const struct kvl_sim_shape *shape,
                    const struct kvl_profile *p, struct kvl_err *err)
{
    if (split->tensor > shape->n_heads || shape->n_heads % split->tensor)
        return kvl_fail(err, KVL_EINVAL, "--tensor %d: %d heads do not fall into so many parts",
                        split->tensor, shape->n_heads);
    if (split->pipeline > shape->n_layers)
        return kvl_fail(err, KVL_EINVAL, "--pipeline %d: more than %d layers", split->pipeline,
                        shape->n_layers);
    if (split->tensor * split->pipeline * split->context > 1 &&
        !(p->link_gbs > 0 && p->link_us > 0))
        return kvl_fail(err, KVL_EINVAL,
                        "%s: no link_gbs and link_us, want them of several devices", p->name);
    return KVL_OK;
}

/* ---- a token ------------------------------------------------------------------------------------ */

/* Part of a time that was measured here.  Elsewhere its bytes go at that bandwidth, and what it took beyond them at the
 * rate of operations: nothing is read faster than memory gives it, even if a cache here did. */
static double part_time(const struct kvl_profile *here, const struct kvl_profile *p, double ms,
                        double bytes)
{
    if (p->here) return 1e-3 * ms;
    double rest = 1e-3 * ms - bytes / (here->memory_gbs * 1e9);
    return bytes / (p->memory_gbs * 1e9) + fmax(rest, 0) * here->tflops / p->tflops;
}

/* All but what has a name: projections, norms, the head. */
static double other_ms(const struct bench_method_cost *c, double scale)
{
    double parts = c->meta_ms + c->select_ms + c->attend_ms + c->evict_ms + c->fetch_ms;
    return fmax(c->busy_ms - scale * parts, 0);
}

static void cpu_token(const struct kvl_sim *s, const struct kvl_method_costs *m,
                      const struct bench_method_cost *c, const struct kvl_profile *p,
                      struct kvl_split split, struct kvl_sim_token *t)
{
    /* Of one thread processor time counts, which others do not take. */
    const struct bench_method_cost *last = &m->at[m->n - 1];
    double scale = last->token_ms.mid > 0 ? last->busy_ms / last->token_ms.mid : 1;
    double times = scale * s->shape.lanes, part = kv_part(s, split, c);
    double weights = s->shape.token_bytes, small = other_ms(last, scale);
    if (s->model)
        t->weights_s = part_time(&s->here, p, small, weights);
    else
        t->weights_s =
            fmax(weights / (p->memory_gbs * 1e9), 2e-12 * s->shape.products / p->tflops) +
            part_time(&s->here, p, small, 0);
    t->weights_s /= split.tensor;
    t->attend_s = part * part_time(&s->here, p, times * c->attend_ms, t->kv_bytes);
    t->method_s = part_time(&s->here, p, times * c->select_ms, t->index_bytes) +
                  part_time(&s->here, p, times * (c->meta_ms + c->evict_ms), 0);
    t->method_s /= head_parts(s, split);
    t->fetch_s = part_time(&s->here, p, times * c->fetch_ms, t->fetch_bytes) / head_parts(s, split);
}

static void gpu_token(const struct kvl_sim *s, const struct bench_method_cost *c,
                      const struct kvl_profile *p, struct kvl_split split, struct kvl_sim_token *t)
{
    double layers = s->shape.n_layers, heads = head_parts(s, split);
    bool chooses = c->selects > 0 || c->index_bytes > 0;
    double choosing = c->selects > 0 ? KVL_MIN(c->selects, layers) : layers;
    t->weights_s = layers * (kvl_gpu_weights(p, t->weight_bytes / split.tensor / layers) +
                             KVL_GPU_SMALL_KERNELS * KVL_GPU_KERNEL);
    t->attend_s = layers * kvl_gpu_attention(p, t->kv_bytes * kv_part(s, split, c) / layers);
    t->method_s = kvl_gpu_tables(p, t->index_bytes / heads) +
                  (chooses ? choosing * METHOD_KERNELS * KVL_GPU_KERNEL : 0);
    t->fetch_s = t->fetch_bytes / heads / (p->bus_gbs * 1e9) + c->fetches * KVL_GPU_WAIT;
}

/* Seconds of a message of so many bytes to another device. */
static double link_s(const struct kvl_profile *p, double bytes)
{
    return 1e-6 * p->link_us + bytes / (p->link_gbs * 1e9);
}

static double links(const struct kvl_sim *s, const struct bench_method_cost *c,
                    const struct kvl_profile *p, struct kvl_split split)
{
    double row = 2.0 * s->shape.n_embd, sum = 0; /* activations in 16 bits */
    if (split.tensor > 1)
        sum += 2 * s->shape.n_layers * link_s(p, row * 2 * (split.tensor - 1) / split.tensor);
    if (split.pipeline > 1) sum += (split.pipeline - 1) * link_s(p, row);
    double dense = c->selects > 0 ? fmax(s->shape.n_layers - c->selects, 0)
                                  : s->shape.n_layers * (dense_share(c) > 0);
    /* What a part of the tokens gives: a sum per head, its largest score and its weight. */
    if (split.context > 1)
        sum += dense * link_s(p, 4.0 * s->shape.n_heads * (s->shape.head_dim + 2) *
                                     (split.context - 1) / split.context);
    return sum;
}

struct kvl_sim_token kvl_sim_token(const struct kvl_sim *s, const struct kvl_method_costs *m,
                                   const struct kvl_profile *p, struct kvl_split split,
                                   double n_tok)
{
    struct bench_method_cost c = kvl_costs_at(m, n_tok);
    double lanes = s->shape.lanes, stages = split.pipeline;
    struct kvl_sim_token t = { .weight_bytes = s->shape.token_bytes,
                               .kv_bytes = lanes * c.kv_bytes,
                               .index_bytes = lanes * c.index_bytes,
                               .fetch_bytes = lanes * c.fetch_bytes };
    if (p->gpu)
        gpu_token(s, &c, p, split, &t);
    else
        cpu_token(s, m, &c, p, split, &t);
    t.links_s = links(s, &c, p, split);
    t.total_s = t.weights_s + t.attend_s + t.method_s + t.fetch_s + t.links_s;
    double weights = s->shape.model_bytes / split.tensor / stages + s->shape.work_bytes;
    double tables = lanes * c.table_bytes / head_parts(s, split) / stages;
    t.memory_bytes = weights + tables + lanes * c.device_bytes * kv_part(s, split, &c) / stages;
    t.host_bytes = lanes * c.host_bytes;
    t.prefill_bytes =
        weights + s->shape.kv_tok_bytes * n_tok / head_parts(s, split) / stages / split.context;
    t.attach_s = part_time(&s->here, p, lanes * c.attach_ms, 0) / head_parts(s, split);
    return t;
}

/* ---- a prefill ------------------------------------------------------------------------------------- */

double kvl_sim_prefill(const struct kvl_sim *s, const struct kvl_profile *p, struct kvl_split split,
                       double n_tok)
{
    double projections = 2 * s->shape.products * n_tok;
    double attention =
        2.0 * s->shape.n_layers * s->shape.n_heads * s->shape.head_dim * n_tok * n_tok;
    double rate = p->tflops * 1e12, devices = split.tensor * split.context;
    double time =
        p->gpu ? projections / (rate * KVL_GPU_GEMM) + attention / (rate * gpu_prefill_attention)
               : (projections + attention) / (rate * s->prefill_share);
    return time / devices;
}
