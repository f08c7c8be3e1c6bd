/* arch_forward.h - what the architectures compute, once more: the whole of a small model in double, a token and a
 * number at a time, straight from the tensors and keys of its file.
 *
 * It shares nothing with core/model or core/engine but the reader of files.  What a model has it sees from the
 * tensors that are there; what no tensor tells is in the table of facts below.
 *
 * Sources: the papers of the models, and their modeling files in transformers for what papers leave open.
 */
#ifndef KVL_TESTS_ARCH_FORWARD_H
#define KVL_TESTS_ARCH_FORWARD_H

#include "kvl/gguf.h"
#include "kvl/ops.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum af_act { AF_SILU, AF_GELU_TANH, AF_GELU_ERF, AF_OSS, AF_RELU };

struct af_facts {
    const char *arch;
    bool neox; /* pairs half of what turns apart, not neighbours */
    enum af_act act;
    bool sqrt_embed;   /* embeddings times sqrt(width) */
    int still_every;   /* every so many layers one does not turn */
    int global_every;  /* of layers with windows, the last of so many has none; 0: all have one */
    double cap, fcap;  /* where no key says */
    double local_base; /* of layers with a window, where no key says */
    bool yarn_unrounded;
};

static const struct af_facts af_facts[] = {
    { .arch = "llama" },
    { .arch = "qwen2", .neox = true },
    { .arch = "qwen3", .neox = true },
    { .arch = "qwen3moe", .neox = true },
    { .arch = "internlm2" },
    { .arch = "smollm3", .still_every = 4 },
    { .arch = "phi3", .neox = true },
    { .arch = "chatglm" },
    { .arch = "glm4" },
    { .arch = "gemma2",
      .neox = true,
      .act = AF_GELU_TANH,
      .sqrt_embed = true,
      .global_every = 2,
      .cap = 50,
      .fcap = 30 },
    { .arch = "gemma3",
      .neox = true,
      .act = AF_GELU_TANH,
      .sqrt_embed = true,
      .global_every = 6,
      .local_base = 10000 },
    { .arch = "gptneox", .neox = true, .act = AF_GELU_ERF },
    { .arch = "opt", .act = AF_RELU, .still_every = 1 },
    { .arch = "gpt-oss", .neox = true, .act = AF_OSS, .global_every = 2, .yarn_unrounded = true },
};

struct af {
    const struct kvl_gguf *g;
    const struct af_facts *facts;
    int width, heads, kv_heads, dim, rot, layers, vocab;
    bool long_factors;
    double eps;
};

/* ---- the file ------------------------------------------------------------------------------- */

static inline double af_key(const struct af *m, const char *tail, double def)
{
    char key[128];
    int64_t i, min = INT64_MIN, max = INT64_MAX;
    double v = def;
    snprintf(key, sizeof key, "%s.%s", m->facts->arch, tail);
    if (!kvl_gguf_has(m->g, key)) return def;
    if (kvl_gguf_f64(m->g, key, &def, &v, NULL) == KVL_OK) return v;
    if (kvl_gguf_i64(m->g, key, min, max, NULL, &i, NULL) == KVL_OK) return (double)i;
    bool b = false;
    return kvl_gguf_bool(m->g, key, false, &b, NULL) == KVL_OK ? b : def;
}

static inline bool af_scaling(const struct af *m, const char *type)
{
    char key[128];
    struct kvl_str s;
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->facts->arch);
    return kvl_gguf_has(m->g, key) && kvl_gguf_str(m->g, key, &s, NULL) == KVL_OK &&
           s.len == strlen(type) && memcmp(s.s, type, s.len) == 0;
}

/* A tensor of F32, in a layer or (layer -1) outside; NULL: not there. */
static inline const float *af_tensor(const struct af *m, int layer, const char *name)
{
    char full[96];
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(m->g, full);
    if (!t) return NULL;
    assert(t->type == 0);
    return t->data;
}

static inline double *af_new(size_t n)
{
    double *p = calloc(n ? n : 1, sizeof *p);
    if (!p) abort();
    return p;
}

/* ---- parts ------------------------------------------------------------------------------------ */

/* y = W x + b: W has n rows of n_x. */
static inline void af_linear(double *y, const double *x, const float *w, const float *b, int n,
                             int n_x)
{
    for (int i = 0; i < n; i++) {
        y[i] = b ? (double)b[i] : 0;
        for (int c = 0; c < n_x; c++) y[i] += (double)w[(size_t)i * (size_t)n_x + (size_t)c] * x[c];
    }
}

/* With b: a layer norm; without: RMS. */
static inline void af_norm(const struct af *m, double *y, const double *x, const float *w,
                           const float *b, int n)
{
    double mean = 0, square = 0;
    for (int c = 0; b && c < n; c++) mean += x[c] / n;
    for (int c = 0; c < n; c++) square += (x[c] - mean) * (x[c] - mean) / n;
    for (int c = 0; c < n; c++)
        y[c] = (x[c] - mean) / sqrt(square + m->eps) * (double)w[c] + (b ? (double)b[c] : 0);
}

static inline double af_gated(enum af_act act, double g, double u)
{
    switch (act) {
    case AF_SILU: return g / (1 + exp(-g)) * u;
    case AF_GELU_TANH: return g / 2 * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * pow(g, 3)))) * u;
    case AF_GELU_ERF: return g / 2 * (1 + erf(g / sqrt(2))) * u;
    case AF_RELU: return (g > 0 ? g : 0) * u;
    case AF_OSS:
        g = g > 7 ? 7 : g;
        u = u > 7 ? 7 : u < -7 ? -7 : u;
        return g / (1 + exp(-1.702 * g)) * (u + 1);
    }
    return NAN;
}

static inline int af_window(const struct af *m, int layer)
{
    int w = (int)af_key(m, "attention.sliding_window", 0), every = m->facts->global_every;
    return every && (layer + 1) % every == 0 ? 0 : w;
}

static inline double af_yarn(const struct af *m, int i, double base, double factor)
{
    double orig = af_key(m, "rope.scaling.original_context_length", 0), edge[2],
           turns[2] = { 32, 1 };
    for (int k = 0; k < 2; k++)
        edge[k] = m->rot * log(orig / (turns[k] * 2 * M_PI)) / (2 * log(base));
    if (!m->facts->yarn_unrounded) {
        edge[0] = floor(edge[0]);
        edge[1] = ceil(edge[1]);
    }
    if (edge[0] < 0) edge[0] = 0;
    if (edge[1] > m->rot - 1) edge[1] = m->rot - 1;
    double width = edge[1] - edge[0] < 0.001 ? 0.001 : edge[1] - edge[0];
    double ramp = (i - edge[0]) / width;
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return (1 - ramp) + ramp / factor;
}

/* The angle that pair i turns per position, and the factor of cosine and sine. */
static inline double af_frequency(const struct af *m, int layer, int i, double *mag)
{
    const struct af_facts *f = m->facts;
    const char *set = m->long_factors ? "rope_factors_long.weight" : "rope_factors_short.weight";
    const float *llama3 = af_tensor(m, -1, "rope_freqs.weight"), *factors = af_tensor(m, -1, set);
    double base = af_key(m, "rope.freq_base", 10000), factor = af_key(m, "rope.scaling.factor", 1);
    *mag = 1;
    if (f->still_every && (layer + 1) % f->still_every == 0) return 0;
    if (f->local_base > 0 && af_window(m, layer) > 0)
        return pow(af_key(m, "rope.freq_base_swa", f->local_base), -2.0 * i / m->rot);
    double w = pow(base, -2.0 * i / m->rot);
    if (af_scaling(m, "linear")) w /= factor;
    if (af_scaling(m, "yarn")) {
        w *= af_yarn(m, i, base, factor);
        *mag = 1 + 0.1 * log(factor);
    }
    *mag *= af_key(m, "rope.scaling.attn_factor", 1);
    return w / (llama3 ? (double)llama3[i] : 1) / (factors ? (double)factors[i] : 1);
}

static inline void af_turn(const struct af *m, int layer, double *head, int pos)
{
    int half = m->rot / 2;
    for (int i = 0; i < half; i++) {
        double mag, angle = af_frequency(m, layer, i, &mag) * pos;
        double *a = m->facts->neox ? &head[i] : &head[2 * i];
        double *b = m->facts->neox ? &head[i + half] : &head[2 * i + 1];
        double x = *a * mag, y = *b * mag;
        *a = x * cos(angle) - y * sin(angle);
        *b = x * sin(angle) + y * cos(angle);
    }
}

/* Of one token: q | k | v, with biases, norms of heads and turned. */
static inline void af_qkv(const struct af *m, int layer, double *out, const double *x, int pos)
{
    int n_q = m->heads * m->dim, n_kv = m->kv_heads * m->dim;
    const float *all = af_tensor(m, layer, "attn_qkv.weight");
    const char *const name[3][2] = { { "attn_q.weight", "attn_q.bias" },
                                     { "attn_k.weight", "attn_k.bias" },
                                     { "attn_v.weight", "attn_v.bias" } };
    const float *norm[2] = { af_tensor(m, layer, "attn_q_norm.weight"),
                             af_tensor(m, layer, "attn_k_norm.weight") };
    const int n[3] = { n_q, n_kv, n_kv };
    if (all) af_linear(out, x, all, af_tensor(m, layer, "attn_qkv.bias"), n_q + 2 * n_kv, m->width);
    double *part = out;
    for (int p = 0; p < 3; part += n[p++]) {
        if (!all)
            af_linear(part, x, af_tensor(m, layer, name[p][0]), af_tensor(m, layer, name[p][1]),
                      n[p], m->width);
        for (int h = 0; p < 2 && h < n[p] / m->dim; h++) {
            double *head = part + h * m->dim;
            if (norm[p]) af_norm(m, head, head, norm[p], NULL, m->dim);
            af_turn(m, layer, head, pos);
        }
    }
}

/* Is told every weight, if it is set. */
static void (*af_keep)(int layer, int head, int pos, int key, double weight);

/* Head h of token pos; qkv: rows of all tokens. */
static inline void af_attend(const struct af *m, int layer, double *out, const double *qkv, int pos,
                             int h)
{
    size_t row = (size_t)((m->heads + 2 * m->kv_heads) * m->dim);
    int g = h / (m->heads / m->kv_heads), window = af_window(m, layer);
    int first = window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0;
    const double *q = qkv + (size_t)pos * row + h * m->dim;
    const float *sink = af_tensor(m, layer, "attn_sinks.weight");
    double cap = af_key(m, "attn_logit_softcapping", m->facts->cap);
    double scale = af_key(m, "attention.scale", 1 / sqrt(m->dim)), total = 0;
    double *weight = af_new((size_t)pos + 1);
    for (int c = 0; c < m->dim; c++) out[c] = 0;
    for (int j = first; j <= pos; j++) {
        const double *k = qkv + (size_t)j * row + (m->heads + g) * m->dim;
        const double *v = k + m->kv_heads * m->dim;
        double s = 0;
        for (int c = 0; c < m->dim; c++) s += q[c] * k[c] * scale;
        if (cap > 0) s = cap * tanh(s / cap);
        total += weight[j] = exp(s);
        for (int c = 0; c < m->dim; c++) out[c] += exp(s) * v[c];
    }
    if (sink) total += exp((double)sink[h]);
    for (int c = 0; c < m->dim; c++) out[c] /= total;
    for (int j = 0; af_keep && j <= pos; j++) af_keep(layer, h, pos, j, weight[j] / total);
    free(weight);
}

/* y += share * (the MLP whose tensors have this ending; of experts number x). */
static inline void af_mlp(const struct af *m, int layer, double *y, const double *in,
                          const char *end, int x, double share)
{
    char name[64];
    const float *t[6];
    const char *const part[6] = { "gate", "up", "down", "gate", "up", "down" };
    int n = (int)af_key(m, "feed_forward_length", 0);
    if (*end) n = (int)af_key(m, "expert_feed_forward_length", n);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, "ffn_%s%s.%s", part[i], end, i < 3 ? "weight" : "bias");
        t[i] = af_tensor(m, layer, name);
        size_t one = (size_t)(i % 3 == 2 ? m->width : n) * (size_t)(i >= 3   ? 1
                                                                    : i == 2 ? n
                                                                             : m->width);
        if (t[i]) t[i] += (size_t)x * one;
    }
    double *up = af_new((size_t)n), *gate = af_new((size_t)n), *out = af_new((size_t)m->width);
    snprintf(name, sizeof name, "blk.%d.ffn_up%s.weight", layer, end);
    bool fused = kvl_gguf_tensor(m->g, name)->dims[1] == 2 * n;
    const float *w_gate = fused ? t[1] : t[0];
    const float *w_up = fused ? t[1] + (size_t)n * (size_t)m->width : t[1];
    if (w_gate) af_linear(gate, in, w_gate, t[3], n, m->width);
    af_linear(up, in, w_up, t[4], n, m->width);
    for (int i = 0; i < n; i++)
        gate[i] = af_gated(m->facts->act, w_gate ? gate[i] : up[i], w_gate ? up[i] : 1);
    af_linear(out, gate, t[2], t[5], m->width, n);
    for (int c = 0; c < m->width; c++) y[c] += share * out[c];
    free(up);
    free(gate);
    free(out);
}

/* Softmax over all, the largest of it brought to a sum of 1 (unless a key says no). */
static inline void af_experts(const struct af *m, int layer, double *y, const double *in)
{
    int n = (int)af_key(m, "expert_count", 0), k = (int)af_key(m, "expert_used_count", 0);
    bool norm = af_key(m, "expert_weights_norm", 1) > 0;
    double *p = af_new((size_t)n), sum = 0, chosen = 0;
    int *best = calloc((size_t)n, sizeof *best);
    af_linear(p, in, af_tensor(m, layer, "ffn_gate_inp.weight"),
              af_tensor(m, layer, "ffn_gate_inp.bias"), n, m->width);
    for (int x = 0; x < n; x++) sum += p[x] = exp(p[x]);
    for (int j = 0; j < k; j++) {
        best[j] = 0;
        for (int x = 1; x < n; x++)
            if (p[x] > p[best[j]]) best[j] = x;
        chosen += p[best[j]];
        p[best[j]] = -p[best[j]]; /* taken */
    }
    for (int j = 0; j < k; j++)
        af_mlp(m, layer, y, in, "_exps", best[j], -p[best[j]] / (norm ? chosen : sum));
    free(p);
    free(best);
}

/* ---- the whole --------------------------------------------------------------------------------- */

static inline void af_layer(const struct af *m, int layer, double *x, int n)
{
    int width = m->width, n_q = m->heads * m->dim, row = n_q + 2 * m->kv_heads * m->dim;
    double *qkv = af_new((size_t)(n * row)), *in = af_new((size_t)width),
           *att = af_new((size_t)n_q);
    double *add = af_new((size_t)width), *mlp = af_new((size_t)width);
    bool oss = m->facts->act == AF_OSS, beside = af_key(m, "use_parallel_residual", 0) > 0;
    const float *post = oss ? NULL : af_tensor(m, layer, "post_attention_norm.weight");
    const float *norm2 =
        af_tensor(m, layer, oss ? "post_attention_norm.weight" : "ffn_norm.weight");
    for (int t = 0; t < n; t++) {
        af_norm(m, in, x + t * width, af_tensor(m, layer, "attn_norm.weight"),
                af_tensor(m, layer, "attn_norm.bias"), width);
        af_qkv(m, layer, qkv + t * row, in, t);
    }
    for (int t = 0; t < n; t++) {
        double *xt = x + t * width;
        for (int h = 0; h < m->heads; h++) af_attend(m, layer, att + h * m->dim, qkv, t, h);
        af_linear(add, att, af_tensor(m, layer, "attn_output.weight"),
                  af_tensor(m, layer, "attn_output.bias"), width, n_q);
        if (post) af_norm(m, add, add, post, NULL, width);
        for (int c = 0; c < width; c++) in[c] = xt[c] + (beside ? 0 : add[c]);
        af_norm(m, in, in, norm2, af_tensor(m, layer, "ffn_norm.bias"), width);
        memset(mlp, 0, (size_t)width * sizeof *mlp);
        if (af_tensor(m, layer, "ffn_gate_inp.weight"))
            af_experts(m, layer, mlp, in);
        else
            af_mlp(m, layer, mlp, in, "", 0, 1);
        const float *post2 = af_tensor(m, layer, "post_ffw_norm.weight");
        if (post2) af_norm(m, mlp, mlp, post2, NULL, width);
        for (int c = 0; c < width; c++) xt[c] += add[c] + mlp[c];
    }
    free(qkv);
    free(in);
    free(att);
    free(add);
    free(mlp);
}

static inline struct af af_open(const struct kvl_gguf *g, bool long_factors)
{
    struct kvl_str name;
    struct af m = { .g = g, .long_factors = long_factors };
    if (kvl_gguf_str(g, "general.architecture", &name, NULL) != KVL_OK) abort();
    for (size_t i = 0; i < sizeof af_facts / sizeof *af_facts; i++)
        if (strlen(af_facts[i].arch) == name.len && memcmp(af_facts[i].arch, name.s, name.len) == 0)
            m.facts = &af_facts[i];
    if (!m.facts) abort();
    m.width = (int)af_key(&m, "embedding_length", 0);
    m.layers = (int)af_key(&m, "block_count", 0);
    m.heads = (int)af_key(&m, "attention.head_count", 0);
    m.kv_heads = (int)af_key(&m, "attention.head_count_kv", m.heads);
    m.dim = (int)af_key(&m, "attention.key_length", m.width / m.heads);
    m.rot = (int)af_key(&m, "rope.dimension_count", m.dim);
    m.eps = af_key(&m, "attention.layer_norm_epsilon", 0);
    m.eps = af_key(&m, "attention.layer_norm_rms_epsilon", m.eps);
    m.vocab = (int)kvl_gguf_tensor(g, "token_embd.weight")->dims[1];
    return m;
}

/* Logits of n tokens, [n][vocab]; free.  All matrices are F32. */
static inline double *af_logits(const struct kvl_gguf *g, const int32_t *id, int n,
                                bool long_factors)
{
    struct af m = af_open(g, long_factors);
    const float *embed = af_tensor(&m, -1, "token_embd.weight");
    const float *head = af_tensor(&m, -1, "output.weight");
    const float *place = af_tensor(&m, -1, "position_embd.weight");
    double *x = af_new((size_t)(n * m.width)), *y = af_new((size_t)n * (size_t)m.vocab);
    double cap = af_key(&m, "final_logit_softcapping", m.facts->fcap);
    for (int i = 0; i < n * m.width; i++)
        x[i] = (double)embed[id[i / m.width] * m.width + i % m.width] *
                   (m.facts->sqrt_embed ? sqrt(m.width) : 1) +
               (place ? (double)place[i] : 0);
    for (int l = 0; l < m.layers; l++) af_layer(&m, l, x, n);
    for (int t = 0; t < n; t++) {
        double *xt = x + t * m.width, *yt = y + (size_t)t * (size_t)m.vocab;
        af_norm(&m, xt, xt, af_tensor(&m, -1, "output_norm.weight"),
                af_tensor(&m, -1, "output_norm.bias"), m.width);
        af_linear(yt, xt, head ? head : embed, NULL, m.vocab, m.width);
        for (int v = 0; cap > 0 && v < m.vocab; v++) yt[v] = cap * tanh(yt[v] / cap);
    }
    free(x);
    return y;
}

#endif
