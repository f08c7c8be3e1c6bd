/* Folders of Hugging Face's form against GGUF files of the same weights: what is loaded, the logits, and every way
 * a folder may contradict itself.  With KVL_TEST_CUDA on that device. */
#include "conformance/rig.h"
#include "half.h"
#include "hf_impl.h"
#include "hf_writer.h"
#include "safetensors.h"
#include "weights.h"

enum { N_TOK = 40 };

/* ---- helpers --------------------------------------------------------------------------------- */

static int hf_load(const char *path, struct kvl_gguf **g, struct kvl_weights *w,
                   struct kvl_err *err)
{
    *g = NULL;
    *w = (struct kvl_weights){ 0 };
    int rc = kvl_gguf_open(path, g, err);
    if (rc == KVL_OK) rc = kvl_weights_load(*g, w, err);
    return rc;
}

static void expect_refused(struct hw *w, const char *why)
{
    struct kvl_gguf *g;
    struct kvl_weights weights;
    struct kvl_err err = { 0 };
    int rc = hf_load(w->dir, &g, &weights, &err);
    if (rc != KVL_EMODEL || !strstr(err.msg, why))
        fail_msg("status %d, \"%s\" does not say \"%s\"", rc, err.msg, why);
    assert_null(strchr(err.msg, '\n'));
    kvl_weights_free(&weights);
    kvl_gguf_close(g);
}

static void set(struct hw *w, const char *key, json_t *value)
{
    assert_int_equal(json_object_set_new(w->config, key, value), 0);
}

/* Logits of all tokens with the model of a folder, or of a GGUF file. */
static float *logits_of(const char *path, const struct gw_llama *m)
{
    struct rig r;
    struct kvl_session *s;
    struct kvl_tokens text = { 0 };
    int32_t id[N_TOK];
    rig_tokens(id, N_TOK, 3);
    rig_open(&r, &(struct rig_desc){ .path = path, .llama = *m, .kv_type = KVL_KV_F32 });
    RIG_OK(&r.err,
           kvl_encode(kvl_model_tokenizer(r.model), "a b", 3, KVL_ENCODE_BOS, &text, &r.err));
    assert_int_equal(text.n, 4);
    assert_int_equal(text.id[0], GW_BOS);
    assert_int_equal(text.id[3], GW_BYTE0 + 'b');
    kvl_tokens_free(&text);
    float *logits = rig_logits(&r, N_TOK);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_TOK, logits, false, &r.err));
    kvl_session_destroy(s);
    rig_close(&r);
    return logits;
}

static double worst(const float *a, const float *b)
{
    double d = 0;
    for (int i = 0; i < N_TOK * GW_VOCAB; i++) d = fmax(d, fabs((double)a[i] - (double)b[i]));
    return d;
}

/* ---- the same model -------------------------------------------------------------------------- */

/* Where both forms have the rows of q and k in one order, every bit is the same; where not, sums over a head have
 * another order. */
static void test_same_logits(void **state)
{
    const struct gw_llama row[] = {
        { .arch = "qwen2", .bias = 0.3f },
        { .arch = "qwen2", .bias = 0.3f, .tied = true, .n_heads = 6, .head_dim = 24 },
        { .arch = "qwen2", .bias = 0.3f, .type = 30 },
        { .arch = "qwen2", .bias = 0.3f, .type = 1 },
        { .arch = "llama" },
        { .arch = "llama", .tied = true, .head_dim = 24, .freq_base = 500000, .type = 30 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct hw w;
        hw_open(&w, &row[i]);
        for (int32_t parts = 1; parts <= 3; parts += 2) {
            hw_save(&w, parts);
            if (parts > 1) unlink(hw_path(&w, "model.safetensors"));
            float *want = logits_of(NULL, &row[i]), *got = logits_of(w.dir, &row[i]);
            double d = worst(want, got);
            bool same = strcmp(row[i].arch, "qwen2") == 0;
            if (same ? memcmp(want, got, sizeof(float) * N_TOK * GW_VOCAB) != 0 : !(d < 1e-4))
                fail_msg("row %zu, %d files: logits differ by %g", i, parts, d);
            kvl_free(want);
            kvl_free(got);
        }
        hw_close(&w);
    }
}

/* The folder of an OPT, whose table of positions begins with two rows that nothing reads. */
static void open_opt(struct hw *w, const struct gw_llama *m)
{
    static const char *const name[][2] = { { "self_attn.o_proj", "self_attn.out_proj" },
                                           { "input_layernorm", "self_attn_layer_norm" },
                                           { "post_attention_layernorm", "final_layer_norm" },
                                           { "model.norm", "model.decoder.final_layer_norm" },
                                           { "mlp.up_proj", "fc1" },
                                           { "mlp.down_proj", "fc2" } };
    float junk[2 * 64];
    hw_open(w, m);
    for (int32_t i = 0; i < w->n; i++)
        for (size_t k = 0; k < sizeof name / sizeof *name; k++) {
            char *at = strstr(w->t[i].name, name[k][0]), rest[128];
            if (!at) continue;
            snprintf(rest, sizeof rest, "%s", at + strlen(name[k][0]));
            snprintf(at, sizeof rest - (size_t)(at - w->t[i].name), "%s%s", name[k][1], rest);
        }
    struct hw_tensor *t = hw_tensor(w, "model.decoder.embed_positions.weight");
    struct kvl_buf rows = { 0 };
    for (int i = 0; i < 2 * 64; i++) junk[i] = 1e4f;
    gw_raw(&rows, junk, sizeof junk);
    gw_raw(&rows, t->data.data, t->data.len);
    kvl_buf_free(&t->data);
    t->data = rows;
    t->shape[0] += 2;
    set(w, "architectures", json_pack("[s]", "OPTForCausalLM"));
    set(w, "hidden_act", json_null());
    set(w, "activation_function", json_string("relu"));
    set(w, "ffn_dim", json_integer(96));
    set(w, "intermediate_size", json_null());
}

static void test_opt(void **state)
{
    const struct gw_llama m = { .arch = "opt", .bias = 0.3f, .n_kv_heads = 4, .n_ctx = 64 };
    struct hw w;
    (void)state;
    open_opt(&w, &m);
    hw_save(&w, 1);
    float *want = logits_of(NULL, &m), *got = logits_of(w.dir, &m);
    assert_int_equal(memcmp(want, got, sizeof(float) * N_TOK * GW_VOCAB), 0);
    set(&w, "word_embed_proj_dim", json_integer(32));
    hw_save(&w, 1);
    expect_refused(&w, "word_embed_proj_dim 32, want hidden_size 64");
    set(&w, "do_layer_norm_before", json_false());
    hw_save(&w, 1);
    expect_refused(&w, "do_layer_norm_before is not true");
    kvl_free(want);
    kvl_free(got);
    hw_close(&w);
}

/* config.json by its name, and the folder with a '/': the same. */
static void test_paths(void **state)
{
    struct hw w;
    char path[3][64];
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    hw_save(&w, 1);
    snprintf(path[0], sizeof path[0], "%s", w.dir);
    snprintf(path[1], sizeof path[1], "%s//", w.dir);
    snprintf(path[2], sizeof path[2], "%s/config.json", w.dir);
    for (int i = 0; i < 3; i++) {
        struct kvl_gguf *g;
        struct kvl_weights weights;
        struct kvl_err err = { 0 };
        if (hf_load(path[i], &g, &weights, &err) != KVL_OK) fail_msg("%s", err.msg);
        kvl_weights_free(&weights);
        kvl_gguf_close(g);
    }
    hw_close(&w);
}

/* Any byte of any file is part of what the model is called. */
static void test_identity(void **state)
{
    struct hw w;
    char hash[3][33];
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    for (int i = 0; i < 3; i++) {
        struct kvl_gguf *g = NULL;
        if (i == 1) w.t[0].data.data[0] ^= 1;
        if (i == 2) set(&w, "note", json_string("other"));
        hw_save(&w, 1);
        assert_int_equal(kvl_gguf_open(w.dir, &g, NULL), KVL_OK);
        kvl_gguf_hash(g, hash[i]);
        kvl_gguf_close(g);
    }
    assert_string_not_equal(hash[0], hash[1]);
    assert_string_not_equal(hash[1], hash[2]);
    hw_close(&w);
}

/* Weights stay in the mapped file; norms in BF16 become floats; data at an odd offset is moved. */
static void test_layout(void **state)
{
    const struct gw_llama m = { .n_layers = 1, .type = 30 };
    struct hw w;
    (void)state;
    hw_open(&w, &m);
    struct hw_tensor *norm = hw_tensor(&w, "model.norm.weight");
    float was[64];
    memcpy(was, norm->data.data, sizeof was);
    norm->dtype = "BF16";
    norm->data.len = 0;
    for (int i = 0; i < 64; i++) {
        uint16_t half = kvl_f32_to_bf16(was[i]);
        gw_raw(&norm->data, &half, sizeof half);
    }
    for (w.pad = 0; w.pad < 2; w.pad++) {
        struct kvl_gguf *g;
        struct kvl_weights weights;
        struct kvl_err err = { 0 };
        hw_save(&w, 1);
        if (hf_load(w.dir, &g, &weights, &err) != KVL_OK) fail_msg("%s", err.msg);
        const struct hw_tensor *v = hw_tensor(&w, "model.layers.0.self_attn.v_proj.weight");
        assert_int_equal(weights.layer[0].attn_v.type, KVL_W_BF16);
        assert_memory_equal(weights.layer[0].attn_v.data, v->data.data, v->data.len);
        assert_int_equal((uintptr_t)weights.layer[0].attn_v.data % 2, 0);
        for (int i = 0; i < 64; i++)
            assert_true(weights.output_norm[i] == kvl_bf16_to_f32(kvl_f32_to_bf16(was[i])));
        kvl_weights_free(&weights);
        kvl_gguf_close(g);
    }
    hw_close(&w);
}

/* ---- positions ------------------------------------------------------------------------------- */

static void expect_frequencies(struct hw *w, const char *rope, const double *want, int32_t n)
{
    struct kvl_gguf *g;
    struct kvl_weights weights;
    struct kvl_err err = { 0 };
    set(w, "rope_scaling", json_loads(rope, 0, NULL));
    hw_save(w, 1);
    if (hf_load(w->dir, &g, &weights, &err) != KVL_OK) fail_msg("%s: %s", rope, err.msg);
    for (int32_t i = 0; i < n; i++)
        if (!(fabs(weights.layer[0].rope->inv_freq[i] / want[i] - 1) < 1e-6))
            fail_msg("%s: frequency %d is %.9g, want %.9g", rope, i,
                     weights.layer[0].rope->inv_freq[i], want[i]);
    kvl_weights_free(&weights);
    kvl_gguf_close(g);
}

static void test_rope(void **state)
{
    enum { DIM = 16, HALF = DIM / 2 };
    struct hw w;
    double plain[HALF], linear[HALF], llama3[HALF];
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1, .freq_base = 500000 });
    for (int i = 0; i < HALF; i++) {
        plain[i] = pow(500000, -2.0 * i / DIM);
        linear[i] = plain[i] / 4;
        /* the paper's words: waves below 64 / 4 stay, above 64 / 1 are stretched 8 times, between is between */
        double wave = 2 * acos(-1) / plain[i], s = (64 / wave - 1) / 3;
        llama3[i] = wave < 16   ? plain[i]
                    : wave > 64 ? plain[i] / 8
                                : (1 - s) * plain[i] / 8 + s * plain[i];
    }
    expect_frequencies(&w, "{\"type\":\"linear\",\"factor\":4.0}", linear, HALF);
    expect_frequencies(&w, "{\"rope_type\":\"default\"}", plain, HALF);
    expect_frequencies(&w, "{\"type\":\"dynamic\",\"factor\":2.0}", plain, HALF);
    expect_frequencies(&w,
                       "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                       "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":64}",
                       llama3, HALF);
    set(&w, "rope_parameters",
        json_loads("{\"rope_type\":\"linear\",\"factor\":4.0,\"rope_theta\":500000.0}", 0, NULL));
    set(&w, "rope_theta", json_real(3.0)); /* that of rope_parameters counts */
    expect_frequencies(&w, "{\"rope_type\":\"default\"}", linear, HALF);
    hw_close(&w);
}

/* The context of a model of dual chunks is one of them. */
static void test_dual_chunks(void **state)
{
    struct hw w;
    struct kvl_gguf *g;
    struct kvl_weights weights;
    struct kvl_err err = { 0 };
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    set(&w, "max_position_embeddings", json_integer(4096));
    for (int dual = 0; dual < 2; dual++) {
        if (dual)
            set(&w, "dual_chunk_attention_config", json_loads("{\"chunk_size\":1000}", 0, NULL));
        hw_save(&w, 1);
        if (hf_load(w.dir, &g, &weights, &err) != KVL_OK) fail_msg("%s", err.msg);
        assert_int_equal(weights.hparams.n_ctx_train, dual ? 1000 : 4096);
        assert_int_equal(weights.dual_chunks, dual);
        kvl_weights_free(&weights);
        kvl_gguf_close(g);
    }
    hw_close(&w);
}

/* SmolLM3: `turns` and `local` have a digit for each layer; why: it is refused instead. */
static void test_still_layers(void **state)
{
    enum { N_LAYERS = 6, WINDOW = 8 };
    static const struct {
        const char *config, *turns, *local, *why;
    } row[] = {
        { "{}", "111011", "000000", NULL },
        { "{\"no_rope_layers\":null}", "111011", "000000", NULL },
        { "{\"no_rope_layers\":[1,1,1,0,1,1],\"use_sliding_window\":false,\"sliding_window\":8}",
          "111011", "000000", NULL },
        { "{\"no_rope_layers\":[0,1,0,0,1,1]}", "010011", "000000", NULL },
        { "{\"no_rope_layers\":[1,1,1,1,1,1,1,0]}", "111111", "000000", NULL },
        { "{\"no_rope_layers\":[true,false,1,0,true,true]}", "101011", "000000", NULL },
        { "{\"no_rope_layers\":[0,0,0,0,0,0]}", "000000", "000000", NULL },
        { "{\"no_rope_layer_interval\":2}", "101010", "000000", NULL },
        { "{\"no_rope_layer_interval\":1}", "000000", "000000", NULL },
        { "{\"no_rope_layer_interval\":9}", "111111", "000000", NULL },
        { "{\"no_rope_layer_interval\":2,\"no_rope_layers\":[1,1,1,0,1,1]}", "111011", "000000",
          NULL },
        { "{\"use_sliding_window\":true}", "111011", "000000", NULL },
        { "{\"use_sliding_window\":true,\"sliding_window\":null}", "111011", "000000", NULL },
        { "{\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":2}", "111011",
          "000100", NULL },
        { "{\"use_sliding_window\":true,\"sliding_window\":8,\"no_rope_layer_interval\":3}",
          "110110", "001001", NULL },
        { "{\"use_sliding_window\":true,\"sliding_window\":8,\"no_rope_layers\":[0,0,0,0,0,0]}",
          "000000", "111111", NULL },
        { "{\"use_sliding_window\":true,\"sliding_window\":8,\"layer_types\":"
          "[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\","
          "\"full_attention\",\"sliding_attention\"]}",
          "111011", "100001", NULL },
        { "{\"sliding_window\":8,\"layer_types\":[\"sliding_attention\"]}", "111011", "000000",
          NULL },
        { "{\"no_rope_layers\":[1,1,1]}", NULL, NULL, "no_rope_layers[3]" },
        { "{\"no_rope_layers\":[]}", NULL, NULL, "no_rope_layers[0]" },
        { "{\"no_rope_layers\":[1,2,1,1,1,1]}", NULL, NULL, "no_rope_layers[1]" },
        { "{\"no_rope_layers\":3}", NULL, NULL, "no_rope_layers[0]" },
        { "{\"no_rope_layer_interval\":0}", NULL, NULL, "no_rope_layer_interval is 0" },
    };
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = N_LAYERS });
    set(&w, "architectures", json_pack("[s]", "SmolLM3ForCausalLM"));
    json_t *sound = w.config;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_gguf *g;
        struct kvl_weights weights;
        struct kvl_err err = { 0 };
        json_t *more = json_loads(row[i].config, 0, NULL);
        assert_non_null(more);
        w.config = json_deep_copy(sound);
        assert_int_equal(json_object_update(w.config, more), 0);
        hw_save(&w, 1);
        if (row[i].why) {
            expect_refused(&w, row[i].why);
        } else {
            if (hf_load(w.dir, &g, &weights, &err) != KVL_OK)
                fail_msg("%s: %s", row[i].config, err.msg);
            for (int32_t l = 0; l < N_LAYERS; l++) {
                bool turns = weights.layer[l].rope->inv_freq[0] > 0;
                if (turns != (row[i].turns[l] == '1') ||
                    weights.layer[l].window != (row[i].local[l] == '1' ? WINDOW : 0))
                    fail_msg("%s: layer %d turns %d, window %d", row[i].config, l, turns,
                             weights.layer[l].window);
            }
            kvl_weights_free(&weights);
            kvl_gguf_close(g);
        }
        json_decref(more);
        json_decref(w.config);
    }
    w.config = sound;
    hw_close(&w);
}

/* Where all layers turn it is a Llama, and with the usual pattern the GGUF file's model. */
static void test_still_logits(void **state)
{
    const struct gw_llama m = { .n_layers = 4 };
    struct gw_llama still = m;
    struct hw w;
    (void)state;
    still.arch = "smollm3";
    hw_open(&w, &m);
    hw_save(&w, 1);
    float *llama = logits_of(w.dir, &m), *file = logits_of(NULL, &still);
    set(&w, "architectures", json_pack("[s]", "SmolLM3ForCausalLM"));
    set(&w, "no_rope_layers", json_pack("[iiii]", 1, 1, 1, 1));
    hw_save(&w, 1);
    float *all = logits_of(w.dir, &m);
    assert_memory_equal(llama, all, sizeof(float) * N_TOK * GW_VOCAB);
    set(&w, "no_rope_layers", json_pack("[iiii]", 1, 1, 1, 0));
    hw_save(&w, 1);
    float *usual = logits_of(w.dir, &m);
    assert_true(worst(usual, file) < 1e-4);
    set(&w, "no_rope_layers", json_pack("[iiii]", 0, 1, 1, 1));
    hw_save(&w, 1);
    float *other = logits_of(w.dir, &m);
    assert_true(worst(other, file) > 1e-2 && worst(other, llama) > 1e-2);
    kvl_free(llama);
    kvl_free(file);
    kvl_free(all);
    kvl_free(usual);
    kvl_free(other);
    hw_close(&w);
}

/* ---- the two tables ------------------------------------------------------------------------- */

/* Every class of folders has an architecture that kvlab computes. */
static void test_classes(void **state)
{
    (void)state;
    for (size_t i = 0; kvl_hf_class_at(i); i++) {
        const struct hf_class *c = kvl_hf_class_at(i);
        const struct kvl_str name = { c->arch, strlen(c->arch) };
        if (!kvl_arch_find(&name)) fail_msg("%s: no architecture \"%s\"", c->name, c->arch);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_config_refused(void **state)
{
    static const struct {
        const char *key, *value, *why;
    } row[] = {
        { "architectures", "[\"FooForCausalLM\"]",
          "architectures is \"FooForCausalLM\", want one of" },
        { "architectures", "null", "architectures is \"\"" },
        { "quantization_config", "{\"quant_method\":\"gptq\"}", "quantization_config (gptq)" },
        { "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", only \"silu\"" },
        { "hidden_size", "null", "hidden_size" },
        { "hidden_size", "-4", "hidden_size is -4" },
        { "num_attention_heads", "\"4\"", "num_attention_heads" },
        { "num_attention_heads", "0", "0 heads" },
        { "num_hidden_layers", "3", "blk.2." },
        { "num_hidden_layers", "1", "\"model.layers.1." },
        { "num_hidden_layers", "1000000", "num_hidden_layers is 1000000" },
        { "intermediate_size", "97", "ffn_gate" },
        { "vocab_size", "260", "vocab_size" },
        { "rope_scaling", "{\"type\":\"foo\"}", "rope_type is \"foo\"" },
        { "rope_scaling", "{\"type\":\"linear\"}", "factor is missing" },
        { "rope_scaling", "{\"type\":\"linear\",\"factor\":2,\"mrope_section\":[1]}",
          "\"mrope_section\" in rope_scaling" },
        { "rope_theta", "0", "rope_theta is 0" },
        { "partial_rotary_factor", "0.01", "partial_rotary_factor" },
        { "clip_qkv", "8.0", "clip_qkv is set" },
        { "tie_word_embeddings", "true", NULL },
        { "dtype", "\"bfloat16\"", NULL },
    };
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 2 });
    hw_save(&w, 1);
    json_t *sound = w.config;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        w.config = json_deep_copy(sound);
        set(&w, row[i].key, json_loads(row[i].value, JSON_DECODE_ANY, NULL));
        hw_save(&w, 1);
        if (row[i].why) {
            expect_refused(&w, row[i].why);
        } else {
            struct kvl_gguf *g;
            struct kvl_weights weights;
            struct kvl_err err = { 0 };
            if (hf_load(w.dir, &g, &weights, &err) != KVL_OK) fail_msg("%s", err.msg);
            kvl_weights_free(&weights);
            kvl_gguf_close(g);
        }
        json_decref(w.config);
    }
    w.config = sound;
    hw_close(&w);
}

static void test_folder_refused(void **state)
{
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    expect_refused(&w, "no config.json");
    hw_write(&w, "adapter_config.json", "{}", 2);
    expect_refused(&w, "an adapter (LoRA)");
    unlink(hw_path(&w, "adapter_config.json"));
    hw_write(&w, "m-Q4_0.gguf", "GGUF", 4);
    expect_refused(&w, "/m-Q4_0.gguf");
    hw_write(&w, "config.json", "[]", 2);
    expect_refused(&w, "no object");
    hw_json(&w, "config.json", w.config);
    expect_refused(&w, "no model.safetensors");
    hw_write(&w, "pytorch_model.bin", "PK", 2);
    expect_refused(&w, "pytorch_model.bin (PyTorch)");
    hw_close(&w);
}

static void test_shards_refused(void **state)
{
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    hw_save(&w, 3);
    unlink(hw_path(&w, "model-00002-of-00003.safetensors"));
    expect_refused(&w, "model-00002-of-00003.safetensors: file 2 of 3 is missing");
    hw_save(&w, 3);
    struct kvl_buf b = { 0 };
    hw_bytes(&w, 0, 1, &b); /* in place of what belongs there */
    assert_true(gw_save(&b, hw_path(&w, "model-00002-of-00003.safetensors")));
    expect_refused(&w, "is in model-00001-of-00003.safetensors and in model-00002");
    kvl_buf_free(&b);
    hw_save(&w, 3);
    json_t *index = json_load_file(hw_path(&w, "model.safetensors.index.json"), 0, NULL);
    json_t *map = json_object_get(index, "weight_map");
    json_object_set_new(map, w.t[0].name, json_string(hw_shard(2, 3)));
    hw_json(&w, "model.safetensors.index.json", index);
    expect_refused(&w, "is not in model-00003-of-00003.safetensors");
    json_object_del(map, w.t[0].name);
    hw_json(&w, "model.safetensors.index.json", index);
    expect_refused(&w, "names 11");
    json_object_set_new(map, "a", json_string("../other/model.safetensors"));
    hw_json(&w, "model.safetensors.index.json", index);
    expect_refused(&w, "want a file of this folder");
    json_decref(index);
    hw_close(&w);
}

static void test_tensors_refused(void **state)
{
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    struct hw_tensor *t = hw_tensor(&w, "lm_head.weight");
    memcpy(t->name, "lm_heat.weight", sizeof "lm_heat.weight");
    hw_save(&w, 1);
    expect_refused(&w, "tensor \"lm_heat.weight\" is not part of a supported LlamaForCausalLM");
    memcpy(t->name, "lm_head.weight", sizeof "lm_head.weight");
    t->dtype = "I32";
    hw_save(&w, 1);
    expect_refused(&w, "tensor \"lm_head.weight\" has type I32, want F32, F16 or BF16");
    t->dtype = "F32";
    const float nan_value = NAN;
    memcpy(t->data.data + 400, &nan_value, sizeof nan_value);
    hw_save(&w, 1);
    expect_refused(&w, "NaN");
    memset(t->data.data + 400, 0, sizeof nan_value);
    struct hw_tensor *last = &w.t[--w.n], keep = *last;
    hw_save(&w, 1);
    expect_refused(&w, "is missing");
    *last = keep;
    w.n++;
    kvl_buf_free(&t->data);
    *t = w.t[--w.n];
    w.t[w.n].data = (struct kvl_buf){ 0 };
    hw_save(&w, 1);
    expect_refused(&w, "\"lm_head.weight\" is missing");
    hw_close(&w);
}

/* ---- safetensors ----------------------------------------------------------------------------- */

static void expect_bytes(const char *header, size_t data, const char *why)
{
    struct kvl_buf b = { 0 };
    struct kvl_safetensors s;
    struct kvl_err err = { 0 };
    gw_raw_u64(&b, strlen(header));
    gw_raw(&b, header, strlen(header));
    for (size_t i = 0; i < data; i++) gw_raw(&b, "", 1);
    void *exact = gw_exact(&b);
    int rc = kvl_safetensors_open_memory(exact, b.len, &s, &err);
    if (why && (rc != KVL_EMODEL || !strstr(err.msg, why)))
        fail_msg("%s: status %d, \"%s\" does not say \"%s\"", header, rc, err.msg, why);
    if (!why && rc != KVL_OK) fail_msg("%s: %s", header, err.msg);
    kvl_safetensors_close(&s);
    kvl_free(exact);
    kvl_buf_free(&b);
}

static void test_safetensors(void **state)
{
    (void)state;
#define ONE(name, shape, from, to)                                                                 \
    "\"" name "\":{\"dtype\":\"F16\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
    expect_bytes("{}", 0, NULL);
    expect_bytes("{" ONE("a", "[2,3]", "0", "12") "}   ", 12, NULL);
    expect_bytes("{" ONE("a", "[]", "0", "2") "}", 2, NULL);
    expect_bytes("{" ONE("b", "[1]", "2", "4") "," ONE("a", "[1]", "0", "2") "}", 4, NULL);
    expect_bytes("{\"__metadata__\":{\"format\":\"pt\"}," ONE("a", "[0]", "0", "0") "}", 0, NULL);
    expect_bytes("[]", 0, "not {");
    expect_bytes(" {}", 0, "not {");
    expect_bytes("{\"a\":", 0, "line 1");
    expect_bytes("{" ONE("a", "[1]", "0", "2") "," ONE("a", "[1]", "2", "4") "}", 4, "duplicate");
    expect_bytes("{" ONE("a", "[2]", "0", "2") "}", 2, "has 2 bytes, its shape wants 4");
    expect_bytes("{" ONE("a", "[1]", "0", "2") "}", 3, "the file at 3");
    expect_bytes("{" ONE("a", "[1]", "0", "2") "}", 1, "data_offsets [0, 2]");
    expect_bytes("{" ONE("a", "[1]", "2", "4") "}", 4, "no hole");
    expect_bytes("{" ONE("a", "[2]", "0", "4") "," ONE("b", "[2]", "2", "6") "}", 6, "no overlap");
    expect_bytes("{" ONE("a", "[-1]", "0", "2") "}", 2, "shape");
    expect_bytes("{" ONE("a", "[4294967296,4294967296]", "0", "2") "}", 2, "shape");
    expect_bytes("{" ONE("a", "[1,1,1,1,1]", "0", "2") "}", 2, "shape");
    expect_bytes("{" ONE("a", "[1]", "-2", "0") "}", 2, "data_offsets");
    expect_bytes("{" ONE("a", "[1]", "2", "0") "}", 2, "data_offsets");
    expect_bytes("{" ONE("a", "[1]", "0.0", "2.0") "}", 2, "data_offsets");
    expect_bytes("{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, NULL);
    expect_bytes("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, "type F4");
    expect_bytes("{\"a\":7}", 0, "type none");
    struct kvl_safetensors s;
    struct kvl_err err = { 0 };
    const uint64_t huge[2] = { UINT64_MAX, 0 };
    assert_int_equal(kvl_safetensors_open_memory(huge, sizeof huge, &s, &err), KVL_EMODEL);
    kvl_safetensors_close(&s);
    assert_int_equal(kvl_safetensors_open_memory(huge, 3, &s, NULL), KVL_EMODEL);
    kvl_safetensors_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),     cmocka_unit_test(test_opt),
        cmocka_unit_test(test_paths),           cmocka_unit_test(test_identity),
        cmocka_unit_test(test_layout),          cmocka_unit_test(test_rope),
        cmocka_unit_test(test_dual_chunks),     cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_folder_refused),  cmocka_unit_test(test_shards_refused),
        cmocka_unit_test(test_tensors_refused), cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_still_layers),    cmocka_unit_test(test_still_logits),
        cmocka_unit_test(test_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
