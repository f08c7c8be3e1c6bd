/* Tensors of a folder under the names and in the layouts of GGUF.
 *
 * Matrices stay where they are, in their type, as long as their rows lie as a GGUF file's do.  Vectors become
 * floats, as there; with them what is converted is small. */
#include "hf_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum hf_how {
    HOW_SAME,
    HOW_SKIP,        /* follows from config.json */
    HOW_INTERLEAVED, /* rows [head][q, k, v] -> q of all heads, k, v */
    HOW_GROUPED,     /* rows [kv head][its queries, k, v] -> three tensors */
    HOW_EXPERT,      /* one of those that are one tensor */
    HOW_BEHIND_TWO,  /* without its first two rows */
    HOW_OSS,         /* experts of gpt-oss; of ffn_up with ffn_gate in turn */
};

/* A stem of a name: without what stands before layers, and without ".weight" or ".bias"; * is a number. */
struct hf_rule {
    const char *hf, *gguf;
    enum hf_how how;
    const char *arch; /* of this one alone; NULL: of all that have no row of their own */
};

static const struct hf_rule hf_outer[] = {
    { .hf = "embed_tokens", .gguf = "token_embd" },
    { .hf = "norm", .gguf = "output_norm" },
    { .hf = "lm_head", .gguf = "output" },
    { .hf = "tok_embeddings", .gguf = "token_embd", .arch = "internlm2" },
    { .hf = "output", .gguf = "output", .arch = "internlm2" },
    { .hf = "embed_in", .gguf = "token_embd", .arch = "gptneox" },
    { .hf = "embed_out", .gguf = "output", .arch = "gptneox" },
    { .hf = "final_layer_norm", .gguf = "output_norm" },
    { .hf = "embed_positions", .gguf = "position_embd", .how = HOW_BEHIND_TWO, .arch = "opt" },
    { .hf = "embedding.word_embeddings", .gguf = "token_embd", .arch = "chatglm" },
    { .hf = "final_layernorm", .gguf = "output_norm", .arch = "chatglm" },
    { .hf = "output_layer", .gguf = "output", .arch = "chatglm" },
    { .hf = "rotary_pos_emb.inv_freq", .how = HOW_SKIP },
};

static const struct hf_rule hf_inner[] = {
    { .hf = "input_layernorm", .gguf = "attn_norm" },
    { .hf = "post_attention_layernorm", .gguf = "ffn_norm" },
    { .hf = "post_attention_layernorm", .gguf = "post_attention_norm", .arch = "gemma2" },
    { .hf = "post_attention_layernorm", .gguf = "post_attention_norm", .arch = "gemma3" },
    { .hf = "post_attention_layernorm", .gguf = "post_attention_norm", .arch = "gpt-oss" },
    { .hf = "pre_feedforward_layernorm", .gguf = "ffn_norm" },
    { .hf = "post_feedforward_layernorm", .gguf = "post_ffw_norm" },
    { .hf = "post_self_attn_layernorm", .gguf = "post_attention_norm" },
    { .hf = "post_mlp_layernorm", .gguf = "post_ffw_norm" },
    { .hf = "self_attn.q_proj", .gguf = "attn_q" },
    { .hf = "self_attn.k_proj", .gguf = "attn_k" },
    { .hf = "self_attn.v_proj", .gguf = "attn_v" },
    { .hf = "self_attn.o_proj", .gguf = "attn_output" },
    { .hf = "self_attn.q_norm", .gguf = "attn_q_norm" },
    { .hf = "self_attn.k_norm", .gguf = "attn_k_norm" },
    { .hf = "self_attn.qkv_proj", .gguf = "attn_qkv" },
    { .hf = "self_attn.rotary_emb.inv_freq", .how = HOW_SKIP },
    { .hf = "mlp.gate_proj", .gguf = "ffn_gate" },
    { .hf = "mlp.up_proj", .gguf = "ffn_up" },
    { .hf = "mlp.gate_up_proj", .gguf = "ffn_up" },
    { .hf = "mlp.down_proj", .gguf = "ffn_down" },
    { .hf = "attention_norm", .gguf = "attn_norm", .arch = "internlm2" },
    { .hf = "ffn_norm", .gguf = "ffn_norm", .arch = "internlm2" },
    { .hf = "attention.wqkv", .how = HOW_GROUPED, .arch = "internlm2" },
    { .hf = "attention.wo", .gguf = "attn_output", .arch = "internlm2" },
    { .hf = "feed_forward.w1", .gguf = "ffn_gate", .arch = "internlm2" },
    { .hf = "feed_forward.w3", .gguf = "ffn_up", .arch = "internlm2" },
    { .hf = "feed_forward.w2", .gguf = "ffn_down", .arch = "internlm2" },
    { .hf = "block_sparse_moe.gate", .gguf = "ffn_gate_inp", .arch = "llama" },
    { .hf = "block_sparse_moe.experts.*.w1",
      .gguf = "ffn_gate_exps",
      .how = HOW_EXPERT,
      .arch = "llama" },
    { .hf = "block_sparse_moe.experts.*.w3",
      .gguf = "ffn_up_exps",
      .how = HOW_EXPERT,
      .arch = "llama" },
    { .hf = "block_sparse_moe.experts.*.w2",
      .gguf = "ffn_down_exps",
      .how = HOW_EXPERT,
      .arch = "llama" },
    { .hf = "mlp.gate", .gguf = "ffn_gate_inp", .arch = "qwen3moe" },
    { .hf = "mlp.experts.*.gate_proj",
      .gguf = "ffn_gate_exps",
      .how = HOW_EXPERT,
      .arch = "qwen3moe" },
    { .hf = "mlp.experts.*.up_proj", .gguf = "ffn_up_exps", .how = HOW_EXPERT, .arch = "qwen3moe" },
    { .hf = "mlp.experts.*.down_proj",
      .gguf = "ffn_down_exps",
      .how = HOW_EXPERT,
      .arch = "qwen3moe" },
    { .hf = "self_attn.sinks", .gguf = "attn_sinks.weight", .arch = "gpt-oss" },
    { .hf = "mlp.router", .gguf = "ffn_gate_inp", .arch = "gpt-oss" },
    { .hf = "mlp.experts.gate_up_proj",
      .gguf = "ffn_up_exps.weight",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.gate_up_proj_blocks",
      .gguf = "ffn_up_exps.weight",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.gate_up_proj_bias",
      .gguf = "ffn_up_exps.bias",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.gate_up_proj_scales", .how = HOW_SKIP, .arch = "gpt-oss" },
    { .hf = "mlp.experts.down_proj",
      .gguf = "ffn_down_exps.weight",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.down_proj_blocks",
      .gguf = "ffn_down_exps.weight",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.down_proj_bias",
      .gguf = "ffn_down_exps.bias",
      .how = HOW_OSS,
      .arch = "gpt-oss" },
    { .hf = "mlp.experts.down_proj_scales", .how = HOW_SKIP, .arch = "gpt-oss" },
    { .hf = "attention.query_key_value",
      .gguf = "attn_qkv",
      .how = HOW_INTERLEAVED,
      .arch = "gptneox" },
    { .hf = "attention.dense", .gguf = "attn_output", .arch = "gptneox" },
    { .hf = "mlp.dense_h_to_4h", .gguf = "ffn_up" },
    { .hf = "mlp.dense_4h_to_h", .gguf = "ffn_down" },
    { .hf = "attention.rotary_emb.inv_freq", .how = HOW_SKIP },
    { .hf = "attention", .how = HOW_SKIP, .arch = "gptneox" }, /* .bias: the causal mask */
    { .hf = "attention.masked_bias", .how = HOW_SKIP, .arch = "gptneox" },
    { .hf = "self_attention.query_key_value", .gguf = "attn_qkv", .arch = "chatglm" },
    { .hf = "self_attention.dense", .gguf = "attn_output", .arch = "chatglm" },
    { .hf = "self_attn.out_proj", .gguf = "attn_output", .arch = "opt" },
    { .hf = "self_attn_layer_norm", .gguf = "attn_norm", .arch = "opt" },
    { .hf = "final_layer_norm", .gguf = "ffn_norm", .arch = "opt" },
    { .hf = "fc1", .gguf = "ffn_up", .arch = "opt" },
    { .hf = "fc2", .gguf = "ffn_down", .arch = "opt" },
};

/* What a name says. */
struct hf_name {
    const struct hf_rule *rule;
    int32_t layer;      /* -1: none */
    int32_t expert;     /* -1: none */
    const char *suffix; /* ".weight", ".bias" or "" */
};

struct hf_table {
    struct hf *h;
    struct gguf_tensor *all;
    size_t n, cap;
    size_t n_expert_parts;
};

/* ---- names ----------------------------------------------------------------------------------- */

static const struct hf_rule *rule_find(const struct hf *h, const struct hf_rule *rule, size_t n,
                                       const char *stem, size_t len)
{
    const struct hf_rule *common = NULL;
    for (size_t i = 0; i < n; i++) {
        if (strlen(rule[i].hf) != len || memcmp(rule[i].hf, stem, len) != 0) continue;
        if (rule[i].arch && strcmp(rule[i].arch, h->is->arch) == 0) return &rule[i];
        if (!rule[i].arch) common = &rule[i];
    }
    return common;
}

/* Behind what stands before layers; NULL: not of the text. */
static const char *name_inner(const struct hf *h, const char *name)
{
    static const char *const before[] = {
        "model.decoder.", "decoder.", "model.", "gpt_neox.", "transformer.encoder.", "transformer."
    };
    static const char *const part[] = { "language_model.", "model.language_model." };
    static const char *const other[] = { "vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector." };
    bool several = h->is->flags & HF_TEXT_PART;
    for (size_t i = 0; several && i < sizeof other / sizeof other[0]; i++)
        if (strncmp(name, other[i], strlen(other[i])) == 0) return NULL;
    for (size_t i = 0; several && i < sizeof part / sizeof part[0]; i++)
        if (strncmp(name, part[i], strlen(part[i])) == 0) name += strlen(part[i]);
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        if (strncmp(name, before[i], strlen(before[i])) == 0) return name + strlen(before[i]);
    return name;
}

/* The number at *s, which goes behind it; -1: there is none, or it is no index of n. */
static int32_t name_number(const char **s, int32_t n)
{
    char *end;
    if (**s < '0' || **s > '9') return -1;
    long v = strtol(*s, &end, 10);
    *s = end;
    return v < n ? (int32_t)v : -1;
}

/* "a.experts.7.b" -> "a.experts.*.b" and 7 */
static size_t name_expert(const struct hf *h, const char *stem, size_t len, char to[ST_NAME_CAP],
                          int32_t *expert)
{
    static const char mark[] = "experts.";
    memcpy(to, stem, len);
    to[len] = '\0';
    char *at = strstr(to, mark);
    if (!at) return len;
    at += sizeof mark - 1;
    const char *rest = at;
    *expert = name_number(&rest, h->n_experts);
    if (*expert < 0) return len;
    *at = '*';
    memmove(at + 1, rest, strlen(rest) + 1);
    return strlen(to);
}

static void name_read(const struct hf *h, const char *name, struct hf_name *out)
{
    static const char *const ends[] = { ".weight", ".bias" };
    char stem[ST_NAME_CAP];
    static const struct hf_rule skip = { .how = HOW_SKIP };
    const char *at = name_inner(h, name);
    *out = (struct hf_name){ .rule = at ? NULL : &skip, .layer = -1, .expert = -1, .suffix = "" };
    if (!at) return;
    size_t len = strlen(at);
    for (size_t i = 0; i < 2 && !out->suffix[0]; i++) {
        size_t n = strlen(ends[i]);
        if (len <= n || strcmp(at + len - n, ends[i]) != 0) continue;
        out->suffix = ends[i];
        len -= n;
    }
    if (strncmp(at, "layers.", 7) != 0) {
        out->rule = rule_find(h, hf_outer, sizeof hf_outer / sizeof hf_outer[0], at, len);
        return;
    }
    const char *dot = at + 7;
    out->layer = name_number(&dot, h->n_layers);
    if (out->layer < 0 || *dot != '.') return;
    len = name_expert(h, dot + 1, len - (size_t)(dot + 1 - at), stem, &out->expert);
    out->rule = rule_find(h, hf_inner, sizeof hf_inner / sizeof hf_inner[0], stem, len);
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A vector as floats; norms of some families are kept less one. */
static int to_floats(struct hf *h, const struct st_tensor *t, const struct hf_name *n,
                     struct kvl_gguf_tensor *y)
{
    size_t count = (size_t)t->dims[0];
    bool norm = n->rule->gguf && strstr(n->rule->gguf, "norm");
    float plus = norm && (h->is->flags & HF_GEMMA) ? 1.0f : 0.0f;
    float *x = kvl_hf_room(h, count * sizeof *x);
    if (!x) return KVL_ENOMEM;
    for (size_t i = 0; i < count; i++) x[i] = kvl_safetensors_float(t, i) + plus;
    y->data = x;
    y->type = KVL_W_F32;
    y->bytes = count * sizeof *x;
    return KVL_OK;
}

/* Rows of `from` in another order: row i of what comes is row order(i) of what is there. */
static void move_rows(void *to, const uint8_t *from, size_t row_bytes, size_t n,
                      size_t (*order)(const struct hf *h, size_t i), const struct hf *h)
{
    for (size_t i = 0; i < n; i++)
        memcpy((uint8_t *)to + i * row_bytes, from + order(h, i) * row_bytes, row_bytes);
}

/* q of all heads, k, v: where row i lies in [head][q, k, v] */
static size_t order_interleaved(const struct hf *h, size_t i)
{
    size_t dim = (size_t)h->head_dim, part = (size_t)h->n_heads * dim;
    size_t what = i / part, head = i % part / dim;
    return (head * 3 + what) * dim + i % dim;
}

/* The same in [kv head][its queries, k, v] */
static size_t order_grouped(const struct hf *h, size_t i)
{
    size_t dim = (size_t)h->head_dim, group = (size_t)(h->n_heads / h->n_kv_heads);
    size_t q = (size_t)h->n_heads * dim, kv = (size_t)h->n_kv_heads * dim;
    size_t head = i / dim; /* of the queries */
    if (i < q) return (head / group * (group + 2) + head % group) * dim + i % dim;
    size_t what = (i - q) / kv; /* 0: k, 1: v */
    head = (i - q) % kv / dim;
    return (head * (group + 2) + group + what) * dim + i % dim;
}

/* Elements must lie at multiples of their size; the format does not promise it. */
static int align(struct hf *h, struct kvl_gguf_tensor *y)
{
    if ((uintptr_t)y->data % (y->type == KVL_W_F32 ? 4 : 2) == 0) return KVL_OK;
    void *copy = kvl_hf_room(h, y->bytes);
    if (!copy) return KVL_ENOMEM;
    memcpy(copy, y->data, y->bytes);
    y->data = copy;
    return KVL_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct kvl_gguf_tensor *table_add(struct hf_table *x)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 64;
        struct gguf_tensor *all = kvl_alloc(cap, sizeof *all);
        if (!all) {
            kvl_fail(x->h->err, KVL_ENOMEM, "no memory for %zu tensors", cap);
            return NULL;
        }
        if (x->n) memcpy(all, x->all, x->n * sizeof *all);
        kvl_free(x->all);
        x->all = all;
        x->cap = cap;
    }
    return &x->all[x->n++].t;
}

static void table_name(struct hf_table *x, const struct hf_name *n)
{
    struct gguf_tensor *e = &x->all[x->n - 1];
    if (n->layer < 0)
        snprintf(e->name, sizeof e->name, "%s%s", n->rule->gguf, n->suffix);
    else
        snprintf(e->name, sizeof e->name, "blk.%d.%s%s", n->layer, n->rule->gguf, n->suffix);
}

static int table_same(struct hf_table *x, const struct st_tensor *t, const struct hf_name *n)
{
    struct kvl_gguf_tensor *y = table_add(x);
    if (!y) return KVL_ENOMEM;
    *y = (struct kvl_gguf_tensor){ .type = (uint32_t)t->type,
                                   .n_dims = t->n_dims,
                                   .offset =
                                       (uint64_t)(t->data - x->h->weights.file[t->i_file].data),
                                   .bytes = t->bytes,
                                   .data = t->data };
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++)
        y->dims[i] = i < t->n_dims ? t->dims[t->n_dims - 1 - i] : 1;
    table_name(x, n);
    if (t->n_dims == 1) return to_floats(x->h, t, n, y);
    return align(x->h, y);
}

/* Queries, keys and values of one tensor, each head's rows together, as all rows of each: y->data. */
static int reorder(struct hf *h, struct kvl_gguf_tensor *y,
                   size_t (*order)(const struct hf *h, size_t i))
{
    size_t rows = (size_t)(y->n_dims == 1 ? y->dims[0] : y->dims[1]);
    size_t want = (size_t)(h->n_heads + 2 * h->n_kv_heads) * (size_t)h->head_dim;
    if (rows != want || h->n_heads % h->n_kv_heads != 0 || y->n_dims > 2)
        return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" has %zu rows, want %zu", y->name, rows,
                        want);
    void *to = kvl_hf_room(h, y->bytes);
    if (!to) return KVL_ENOMEM;
    move_rows(to, y->data, y->bytes / rows, rows, order, h);
    y->data = to;
    return KVL_OK;
}

/* OPT numbers positions from 2 on: what the rows before are for, no text reaches. */
static int skip_two(struct hf *h, struct kvl_gguf_tensor *y)
{
    if (y->n_dims != 2 || y->dims[1] < 3)
        return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" has %lld rows, want more than 2",
                        y->name, (long long)y->dims[1]);
    size_t skipped = 2 * (y->bytes / (size_t)y->dims[1]);
    y->data = (const uint8_t *)y->data + skipped;
    y->offset += skipped;
    y->bytes -= skipped;
    y->dims[1] -= 2;
    return KVL_OK;
}

/* The tensor in hand is q, k and v in this order: it becomes three. */
static int table_split(struct hf_table *x, const struct hf_name *n)
{
    static const struct hf_rule part[3] = { { .gguf = "attn_q" },
                                            { .gguf = "attn_k" },
                                            { .gguf = "attn_v" } };
    const struct kvl_gguf_tensor all = x->all[x->n-- - 1].t;
    const uint8_t *at = all.data;
    size_t row = all.bytes / (size_t)all.dims[1];
    for (int i = 0; i < 3; i++) {
        struct kvl_gguf_tensor *y = table_add(x);
        if (!y) return KVL_ENOMEM;
        *y = all;
        y->dims[1] = (int64_t)(i == 0 ? x->h->n_heads : x->h->n_kv_heads) * x->h->head_dim;
        y->bytes = (size_t)y->dims[1] * row;
        y->data = at;
        at += y->bytes;
        struct hf_name name = *n;
        name.rule = &part[i];
        table_name(x, &name);
    }
    return KVL_OK;
}

/* Experts come one by one: the first makes room for all. */
static int table_expert(struct hf_table *x, const struct st_tensor *t, const struct hf_name *n)
{
    struct kvl_gguf_tensor *y = table_add(x);
    if (!y) return KVL_ENOMEM;
    table_name(x, n);
    struct gguf_tensor *e = NULL;
    for (size_t i = 0; i + 1 < x->n && !e; i++)
        if (strcmp(x->all[i].name, x->all[x->n - 1].name) == 0) e = &x->all[i];
    size_t experts = (size_t)x->h->n_experts;
    bool fits = t->n_dims == 2 && experts > 0 && t->bytes <= SIZE_MAX / experts;
    if (e) {
        x->n--;
        y = &e->t;
        fits = fits && y->dims[0] == t->dims[1] && y->dims[1] == t->dims[0] &&
               y->type == (uint32_t)t->type;
    } else if (fits) {
        *y = (struct kvl_gguf_tensor){ .type = (uint32_t)t->type,
                                       .n_dims = 3,
                                       .dims = { t->dims[1], t->dims[0], x->h->n_experts, 1 },
                                       .bytes = t->bytes * experts,
                                       .data = kvl_hf_room(x->h, t->bytes * experts) };
        if (!y->data) return KVL_ENOMEM;
    }
    if (!fits)
        return kvl_fail(x->h->err, KVL_EMODEL,
                        "tensor \"%s\" differs in shape or type from those of other experts",
                        t->name);
    memcpy((uint8_t *)(uintptr_t)y->data + (size_t)n->expert * t->bytes, t->data, t->bytes);
    x->n_expert_parts++;
    return KVL_OK;
}

/* Gate and up of one tensor become two. */
static int table_oss(struct hf_table *x, const struct st_tensor *t, const struct hf_name *n)
{
    static const char up[] = "ffn_up_exps";
    bool two = strncmp(n->rule->gguf, up, sizeof up - 1) == 0;
    const char *end = strchr(n->rule->gguf, '.');
    for (int part = 0; part < (two ? 2 : 1); part++) {
        struct kvl_gguf_tensor *y = table_add(x);
        if (!y) return KVL_ENOMEM;
        KVL_TRY(kvl_hf_oss(x->h, t, part, two ? 2 : 1, y));
        table_name(x, n);
        if (two && part == 0) {
            struct gguf_tensor *e = &x->all[x->n - 1];
            snprintf(e->name, sizeof e->name, "blk.%d.ffn_gate_exps%s", n->layer, end);
        }
        x->n_expert_parts += (size_t)x->h->n_experts;
    }
    return KVL_OK;
}

static int table_tensor(struct hf_table *x, const struct st_tensor *t)
{
    struct hf *h = x->h;
    struct hf_name n;
    char shown[GGUF_SHOWN + 4];
    name_read(h, t->name, &n);
    if (!n.rule)
        return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" is not part of a supported %s",
                        kvl_gguf_show(t->name, strlen(t->name), shown), h->is->name);
    bool output = n.layer < 0 && n.rule->gguf && strcmp(n.rule->gguf, "output") == 0;
    if (n.rule->how == HOW_SKIP || (output && h->tied)) return KVL_OK;
    if (n.rule->how == HOW_OSS) return table_oss(x, t, &n);
    if (t->other)
        return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" has type %s, want F32, F16 or BF16",
                        kvl_gguf_show(t->name, strlen(t->name), shown), t->other);
    if (n.rule->how == HOW_EXPERT) return table_expert(x, t, &n);
    static const struct hf_rule whole = { .gguf = "attn_qkv" };
    bool grouped = n.rule->how == HOW_GROUPED;
    if (grouped) n.rule = &whole;
    enum hf_how how = grouped ? HOW_GROUPED : n.rule->how;
    KVL_TRY(table_same(x, t, &n));
    struct kvl_gguf_tensor *y = &x->all[x->n - 1].t;
    y->name = x->all[x->n - 1].name;
    if (how == HOW_BEHIND_TWO) return skip_two(h, y);
    if (how == HOW_INTERLEAVED) return reorder(h, y, order_interleaved);
    if (how != HOW_GROUPED) return KVL_OK;
    KVL_TRY(reorder(h, y, order_grouped));
    return table_split(x, &n);
}

static int table_floats(struct hf_table *x, struct hf_floats *f)
{
    struct kvl_gguf_tensor *y = table_add(x);
    if (!y) return KVL_ENOMEM;
    *y = (struct kvl_gguf_tensor){ .type = KVL_W_F32,
                                   .n_dims = 1,
                                   .dims = { f->n, 1, 1, 1 },
                                   .bytes = (size_t)f->n * sizeof *f->x,
                                   .data = f->x };
    memcpy(x->all[x->n - 1].name, f->name, sizeof f->name);
    KVL_TRY(kvl_gguf_own(x->h->g, f->x, y->bytes));
    f->x = NULL;
    return KVL_OK;
}

static int check_experts(const struct hf_table *x)
{
    size_t want = 0;
    for (size_t i = 0; i < x->n; i++)
        if (strstr(x->all[i].name, "_exps.")) want += (size_t)x->h->n_experts;
    if (x->n_expert_parts == want) return KVL_OK;
    return kvl_fail(x->h->err, KVL_EMODEL, "%zu tensors of experts, want %zu: %d in each layer",
                    x->n_expert_parts, want, x->h->n_experts);
}

/* A file without it would be taken for a tied one. */
static int check_output(const struct hf_table *x)
{
    const struct hf *h = x->h;
    for (size_t i = 0; i < x->n; i++)
        if (strcmp(x->all[i].name, "output.weight") == 0) return KVL_OK;
    if (h->tied) return KVL_OK;
    return kvl_fail(
        h->err, KVL_EMODEL,
        "tensor \"lm_head.weight\" is missing, and config.json's tie_word_embeddings is "
        "not true");
}

int kvl_hf_tensors(struct hf *h, struct gguf_tensor **out, size_t *n)
{
    struct hf_table x = { .h = h };
    int rc = KVL_OK;
    for (size_t i = 0; i < h->weights.n_tensors && rc == KVL_OK; i++)
        rc = table_tensor(&x, &h->weights.tensor[i]);
    for (int32_t i = 0; i < h->n_more && rc == KVL_OK; i++) rc = table_floats(&x, &h->more[i]);
    if (rc == KVL_OK) rc = check_experts(&x);
    if (rc == KVL_OK) rc = check_output(&x);
    if (rc != KVL_OK) {
        kvl_free(x.all);
        return rc;
    }
    *out = x.all;
    *n = x.n;
    return KVL_OK;
}
