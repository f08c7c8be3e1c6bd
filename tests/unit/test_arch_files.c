/* Files of every architecture: each tensor is needed, in its shape, and each key that changes the result changes
 * what was loaded, or is refused. */
#include "gguf_writer.h"
#include "kvl/gguf.h"
#include "weights.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { U32 = 4, F32 = 6, BOOL = 7, STR = 8 };

/* ---- helpers ------------------------------------------------------------------------------------ */

/* Small, with everything that an architecture may have. */
static struct gw_llama model_of(int arch)
{
    return (struct gw_llama){ .arch = gw_archs[arch].name,
                              .bias = 0.3f,
                              .n_layers = 6,
                              .n_embd = 32,
                              .n_heads = 2,
                              .n_kv_heads = 2,
                              .head_dim = 24,
                              .n_ff = 40,
                              .n_ctx = 2048 };
}

static struct kvl_buf file_of(int arch, void (*more)(struct gw *w))
{
    struct gw_llama m = model_of(arch);
    struct kvl_buf file = { 0 };
    m.more = more;
    gw_llama(&m, &file);
    return file;
}

/* What a loaded model computes with, in one number. */
static uint64_t facts_of(const struct kvl_weights *w)
{
    const struct kvl_hparams *h = &w->hparams;
    uint64_t f = kvl_seed_str(w->parallel + 2 * (uint64_t)w->experts_norm, "facts");
    const double number[] = { h->n_rot,     h->n_ff,  h->n_experts,  h->n_experts_used,
                              h->norm_eps,  w->scale, w->cap,        w->embed_scale,
                              w->final_cap, w->tied,  w->n_ctx_short };
    struct kvl_buf all = { 0 };
    gw_raw(&all, &f, sizeof f);
    gw_raw(&all, number, sizeof number);
    for (int32_t i = 0; i < h->n_layers; i++) {
        const struct kvl_rope *turns[2] = { w->layer[i].rope, w->layer[i].rope_long };
        gw_raw(&all, &w->layer[i].window, sizeof w->layer[i].window);
        for (int k = 0; k < 2 && turns[k]; k++) {
            gw_raw(&all, turns[k]->inv_freq, (size_t)turns[k]->n_rot / 2 * sizeof(double));
            gw_raw(&all, &turns[k]->mag, sizeof turns[k]->mag);
        }
    }
    f = 14695981039346656037u;
    for (size_t i = 0; i < all.len; i++) f = (f ^ (uint8_t)all.data[i]) * 1099511628211u;
    kvl_buf_free(&all);
    return f;
}

static int load(const struct kvl_buf *file, uint64_t *facts, struct kvl_err *err)
{
    struct kvl_weights w = { 0 };
    struct kvl_gguf *g = NULL;
    void *copy = gw_exact(file);
    int rc = kvl_gguf_open_memory(copy, file->len, &g, err);
    if (rc == KVL_OK) rc = kvl_weights_load(g, &w, err);
    if (rc == KVL_OK && facts) *facts = facts_of(&w);
    kvl_weights_free(&w);
    kvl_gguf_close(g);
    kvl_free(copy);
    return rc;
}

/* Where `text` ends in the file. */
static size_t find_text(const struct kvl_buf *file, const char *text)
{
    struct kvl_buf want = { 0 };
    gw_raw_str(&want, text, strlen(text));
    char *p = memmem(file->data, file->len, want.data, want.len);
    size_t n = want.len;
    kvl_buf_free(&want);
    assert_non_null(p);
    return (size_t)(p - file->data) + n;
}

/* One line that names `what`. */
static void expect_refused(const struct kvl_buf *file, const char *arch, const char *what)
{
    struct kvl_err err = { 0 };
    int rc = load(file, NULL, &err);
    if (rc != KVL_EMODEL) fail_msg("%s, %s: status %d, want refused", arch, what, rc);
    if (!strstr(err.msg, what)) fail_msg("%s, %s: \"%s\"", arch, what, err.msg);
    assert_null(strchr(err.msg, '\n'));
}

/* ---- tensors ------------------------------------------------------------------------------------ */

/* All but the last letter of a name that is not there. */
static void check_missing(struct kvl_buf *file, const char *arch, const char *name)
{
    size_t at = find_text(file, name) - 1;
    char stem[96];
    char letter = file->data[at];
    snprintf(stem, sizeof stem, "\"%.*s", (int)strlen(name) - 1, name);
    file->data[at] = '#';
    expect_refused(file, arch, stem);
    file->data[at] = letter;
}

/* The bytes of a shape of its own: rows and columns exchanged, or a shorter row. */
static void check_shape(struct kvl_buf *file, const char *arch, const struct kvl_gguf_tensor *t)
{
    int64_t dims[4], old[4];
    size_t at = find_text(file, t->name) + sizeof(uint32_t), bytes = t->n_dims * sizeof *dims;
    memcpy(old, t->dims, sizeof old);
    memcpy(dims, t->dims, sizeof dims);
    if (t->n_dims == 1) dims[0]--;
    if (t->n_dims > 1) dims[0] = old[1], dims[1] = old[0];
    if (strcmp(t->name, "token_embd.weight") == 0) return; /* says how large the vocabulary is */
    memcpy(file->data + at, dims, bytes);
    expect_refused(file, arch, t->name);
    memcpy(file->data + at, old, bytes);
}

static void test_tensors(void **state)
{
    (void)state;
    for (int a = 0; a < GW_ARCHS; a++) {
        struct kvl_gguf *g = NULL;
        struct kvl_buf file = file_of(a, NULL);
        void *copy = gw_exact(&file);
        assert_int_equal(kvl_gguf_open_memory(copy, file.len, &g, NULL), KVL_OK);
        for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) {
            const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
            if (strncmp(t->name, "blk.", 4) == 0 && strncmp(t->name, "blk.1.", 6) != 0) continue;
            check_missing(&file, gw_archs[a].name, t->name);
            check_shape(&file, gw_archs[a].name, t);
        }
        kvl_gguf_close(g);
        kvl_free(copy);
        kvl_buf_free(&file);
    }
}

/* ---- keys --------------------------------------------------------------------------------------- */

static const struct key {
    const char *tail;
    uint32_t type;
    double value;
    const char *text;
    bool of_experts; /* says something of experts alone */
    bool of_windows;
} keys[] = {
    { "logit_scale", F32, 0.5, NULL, false, false },
    { "embedding_scale", F32, 2, NULL, false, false },
    { "residual_scale", F32, 0.5, NULL, false, false },
    { "attn_logit_softcapping", F32, 20, NULL, false, false },
    { "final_logit_softcapping", F32, 11, NULL, false, false },
    { "router_logit_softcapping", F32, 5, NULL, false, false },
    { "use_parallel_residual", BOOL, 1, NULL, false, false },
    { "attention.causal", BOOL, 0, NULL, false, false },
    { "attention.clamp_kqv", F32, 8, NULL, false, false },
    { "attention.max_alibi_bias", F32, 8, NULL, false, false },
    { "attention.scale", F32, 0.3, NULL, false, false },
    { "attention.output_scale", F32, 0.5, NULL, false, false },
    { "attention.temperature_scale", F32, 0.1, NULL, false, false },
    { "attention.temperature_length", U32, 8192, NULL, false, false },
    { "attention.shared_kv_layers", U32, 1, NULL, false, false },
    { "attention.value_length", U32, 8, NULL, false, false },
    { "attention.sliding_window", U32, 7, NULL, false, false },
    { "attention.sliding_window_pattern", U32, 3, NULL, false, true },
    { "expert_count", U32, 4, NULL, false, false },
    { "expert_weights_norm", BOOL, 0, NULL, true, false },
    { "expert_weights_scale", F32, 2.5, NULL, true, false },
    { "expert_gating_func", U32, 2, NULL, true, false },
    { "expert_shared_count", U32, 1, NULL, true, false },
    { "expert_group_count", U32, 2, NULL, true, false },
    { "expert_feed_forward_length", U32, 16, NULL, true, false },
    { "interleave_moe_layer_step", U32, 2, NULL, true, false },
    { "leading_dense_block_count", U32, 1, NULL, true, false },
    { "nextn_predict_layers", U32, 1, NULL, false, false },
    { "rope.freq_base_swa", F32, 777, NULL, false, false },
    { "rope.scaling.factor", F32, 4, NULL, false, false },
    { "rope.scale_linear", F32, 4, NULL, false, false },
    { "rope.scaling.attn_factor", F32, 1.5, NULL, false, false },
    { "rope.scaling.yarn_ext_factor", F32, 0.5, NULL, false, false },
    { "rope.scaling.yarn_attn_factor", F32, 0.5, NULL, false, false },
    { "rope.scaling.yarn_log_multiplier", F32, 0.1, NULL, false, false },
    { "rope.scaling.type", STR, 0, "su", false, false },
    { "rope.scaling.type", STR, 0, "longrope", false, false },
    { "rope.dimension_sections", U32, 8, NULL, false, false },
};

static const struct key *key; /* that more_key writes */
static int key_arch;

static void more_key(struct gw *w)
{
    struct gw_llama m = model_of(key_arch);
    char name[96];
    uint32_t u = (uint32_t)key->value;
    float f = (float)key->value;
    uint8_t b = key->value > 0;
    gw_arch_key(&m, key->tail, name);
    if (key->type == STR) gw_str(w, name, key->text);
    if (key->type == U32) gw_scalar(w, name, U32, &u, sizeof u);
    if (key->type == F32) gw_scalar(w, name, F32, &f, sizeof f);
    if (key->type == BOOL) gw_scalar(w, name, BOOL, &b, sizeof b);
}

static bool has_key(const struct kvl_buf *file, int arch)
{
    struct gw_llama m = model_of(arch);
    struct kvl_gguf *g = NULL;
    char name[96];
    void *copy = gw_exact(file);
    assert_int_equal(kvl_gguf_open_memory(copy, file->len, &g, NULL), KVL_OK);
    bool there = kvl_gguf_has(g, gw_arch_key(&m, key->tail, name));
    kvl_gguf_close(g);
    kvl_free(copy);
    return there;
}

/* What a key says is nowhere ignored. */
static void check_key(const struct kvl_buf *plain, int arch)
{
    const struct gw_arch *a = &gw_archs[arch];
    struct kvl_err err = { 0 };
    uint64_t before = 0, after = 0;
    if (a->long_factors && key->text) return; /* "longrope" is what it has */
    if (has_key(plain, arch) || (key->of_experts && !a->experts) ||
        (key->of_windows && !a->windows))
        return;
    key_arch = arch;
    struct kvl_buf file = file_of(arch, more_key);
    assert_int_equal(load(plain, &before, &err), KVL_OK);
    int rc = load(&file, &after, &err);
    if (rc == KVL_OK && before == after) fail_msg("%s: %s is ignored", a->name, key->tail);
    if (rc != KVL_OK && rc != KVL_EMODEL) fail_msg("%s: %s: status %d", a->name, key->tail, rc);
    if (rc != KVL_OK) assert_null(strchr(err.msg, '\n'));
    kvl_buf_free(&file);
}

static void test_keys(void **state)
{
    (void)state;
    for (int a = 0; a < GW_ARCHS; a++) {
        struct kvl_buf plain = file_of(a, NULL);
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            key = &keys[i];
            check_key(&plain, a);
        }
        kvl_buf_free(&plain);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests_name("arch_files", tests, NULL, NULL);
}
