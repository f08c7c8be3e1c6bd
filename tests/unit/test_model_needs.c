/* What a model's file does not need cannot stop it: every value of every file of a folder, and of every key of a GGUF
 * file, is replaced by others that programs write or that no key can want.  Then the model gives the same tokens and
 * logits, or is refused by a line that names the key.  And what a file may have too much of: rows without a token,
 * tokens without a row, keys that the store's type cannot hold. */
#include "conformance/rig.h"
#include "hf_writer.h"

enum { N_TOK = 6 };

/* ---- what a model gives ---------------------------------------------------------------------- */

static const char given_text[] = "a B \xc3\xa9\x01<eos>";

struct given {
    struct kvl_tokens text;
    float logits[N_TOK * GW_VOCAB];
};

static void given_close(struct given *g)
{
    kvl_tokens_free(&g->text);
}

/* False: refused, with the message in err. */
static bool given_open(const char *path, struct given *g, struct kvl_err *err)
{
    struct kvl_model *m;
    struct rig r;
    struct kvl_session *s;
    int32_t id[N_TOK];
    *g = (struct given){ 0 };
    if (kvl_model_open(path, &m, err) != KVL_OK) return false;
    const struct kvl_tokenizer *t = kvl_model_tokenizer(m);
    RIG_OK(err, kvl_encode(t, given_text, sizeof given_text - 1,
                           KVL_ENCODE_BOS | KVL_ENCODE_SPECIAL, &g->text, err));
    kvl_model_close(m);
    rig_tokens(id, N_TOK, 3);
    rig_open(&r, &(struct rig_desc){ .path = path, .kv_type = KVL_KV_F32 });
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_TOK, g->logits, false, &r.err));
    kvl_session_destroy(s);
    rig_close(&r);
    return true;
}

static bool given_same(const struct given *a, const struct given *b)
{
    return a->text.n == b->text.n &&
           memcmp(a->text.id, b->text.id, (size_t)a->text.n * sizeof *a->text.id) == 0 &&
           memcmp(a->logits, b->logits, sizeof a->logits) == 0;
}

/* Values that change what the model is, and may: other numbers of these keys are other models. */
static bool is_used(const char *key)
{
    static const char *const used[] = {
        "tie_word_embeddings",
        "rope_type",
        "factor",
        "rope_scaling",
        "rope_theta",
        "rms_norm_eps",
        "bos_token",
        "add_bos_token",
        "normalized",
        "lstrip",
        "rstrip",
        "special",
        "use_regex",
        "type",
        ".rope.freq_base",
        ".attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.pre",
    };
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
        size_t n = strlen(key), m = strlen(used[i]);
        if (n >= m && strcmp(key + n - m, used[i]) == 0) return true;
    }
    return false;
}

/* What a refusal may say in place of the key: what follows from the value that it has instead. */
static bool is_named(const char *msg, const char *key)
{
    static const struct {
        const char *key, *says;
    } follows[] = {
        { "num_key_value_heads", "attn_k" }, /* null: as many as heads */
        { "pretokenizers", "pre_tokenizer" },
        { "vocab", "merge" },
        { "added_tokens", "bos_token" }, /* is one of them */
        { "content", "are both" },       /* as a token of the vocabulary */
    };
    const char *dot = strrchr(key, '.');
    if (strstr(msg, key) || (dot && strstr(msg, dot + 1))) return true;
    if (strstr(msg, " is missing or empty")) return true; /* a file that the map of shards names */
    for (size_t i = 0; i < sizeof follows / sizeof follows[0]; i++)
        if (strcmp(follows[i].key, key) == 0 && strstr(msg, follows[i].says)) return true;
    return false;
}

static void expect_given(const char *path, const struct given *want, const char *key,
                         const char *what)
{
    struct kvl_err err = { 0 };
    struct given got;
    bool opens = given_open(path, &got, &err);
    if (opens && !given_same(want, &got) && !is_used(key))
        fail_msg("%s: other tokens or logits", what);
    if (!opens && (!is_named(err.msg, key) || strchr(err.msg, '\n')))
        fail_msg("%s: \"%s\" does not name %s", what, err.msg, key);
    given_close(&got);
}

/* ---- folders --------------------------------------------------------------------------------- */

static const char *const raws[] = {
    "1000000000000000019884624838656",
    "-99999999999999999999",
    "1e30",
    "1e400",
    "NaN",
    "-Infinity",
    "null",
    "true",
    "[]",
    "[[1e30]]",
    "{}",
    "\"x\"",
    "\"\\ud83d\"",
    "\"\\u0000\"",
};
enum { RAWS = sizeof raws / sizeof raws[0] };

static void put_raw(const struct hw *w, const char *file, const json_t *v, const char *raw)
{
    char *text = json_dumps(v, 0), *mark = strstr(text, "\"@@\"");
    struct kvl_buf out = { 0 };
    assert_non_null(mark);
    gw_raw(&out, text, (size_t)(mark - text));
    gw_raw(&out, raw, strlen(raw));
    gw_raw(&out, mark + 4, strlen(mark + 4));
    hw_write(w, file, out.data, out.len);
    kvl_buf_free(&out);
    free(text);
}

struct folder_trial {
    struct hw *w;
    const char *file;
    json_t *all;
    struct given *want;
    int n;
};

/* Of each object under v every member in turn, and one that nobody knows; of a list its first element. */
static void try_values(struct folder_trial *t, json_t *v)
{
    const char *key;
    json_t *old;
    char what[256];
    if (json_is_array(v) && json_array_size(v)) try_values(t, json_array_get(v, 0));
    if (!json_is_object(v)) return;
    json_t *keys = json_array();
    json_object_foreach(v, key, old) json_array_append_new(keys, json_string(key));
    json_array_append_new(keys, json_string("nobody_knows_this"));
    /* Of the vocabulary's 256 members a few do. */
    for (size_t i = 0; i<json_array_size(keys); i += json_array_size(keys)> 100 ? 85 : 1) {
        key = json_string_value(json_array_get(keys, i));
        old = json_incref(json_object_get(v, key));
        for (size_t k = 0; k < RAWS; k++, t->n++) {
            json_object_set_new(v, key, json_string("@@"));
            put_raw(t->w, t->file, t->all, raws[k]);
            snprintf(what, sizeof what, "%s: %s is %s", t->file, key, raws[k]);
            expect_given(t->w->dir, t->want, json_array_size(keys) > 100 ? "vocab" : key, what);
        }
        if (old)
            json_object_set_new(v, key, old);
        else
            json_object_del(v, key);
        hw_json(t->w, t->file, t->all);
        if (old) try_values(t, json_object_get(v, key));
    }
    json_decref(keys);
}

static void test_folder(void **state)
{
    static const char *const file[] = { "model.safetensors.index.json", "config.json",
                                        "generation_config.json",       "tokenizer_config.json",
                                        "special_tokens_map.json",      "tokenizer.json" };
    struct hw w;
    struct given want;
    struct kvl_err err = { 0 };
    (void)state;
    hw_open(&w, &(struct gw_llama){
                    .arch = "qwen2", .bias = 0.3f, .n_layers = 1, .n_embd = 32, .n_ff = 32 });
    json_object_set_new(w.config, "eos_token_id", json_integer(2));
    json_object_set_new(w.config, "bos_token_id", json_integer(1));
    json_object_set_new(w.config, "rope_scaling",
                        json_pack("{ss sf}", "rope_type", "linear", "factor", 2.0));
    json_object_set_new(w.config, "torch_dtype", json_string("float32"));
    json_object_set_new(w.config, "initializer_range", json_real(0.02));
    hw_save(&w, 2);
    static const char doubled[] =
        "{\"max_length\":1,\"eos_token_id\":7,\"eos_token_id\":2,\"max_length\":2}";
    static const char generation[] = "{\"eos_token_id\":[2],\"max_length\":20,\"temperature\":0.6}";
    static const char map[] =
        "{\"eos_token\":{\"content\":\"<eos>\",\"lstrip\":false},\"pad_token\":\"<pad>\"}";
    static const char tokens[] =
        "{\"bos_token\":\"<bos>\",\"eos_token\":\"<eos>\",\"add_bos_token\":true,"
        "\"model_max_length\":131072,\"chat_template\":\"{{ x }}\","
        "\"added_tokens_decoder\":{\"0\":{\"content\":\"<pad>\",\"special\":true}}}";
    hw_write(&w, file[2], generation, sizeof generation - 1);
    hw_write(&w, file[3], tokens, sizeof tokens - 1);
    hw_write(&w, file[4], map, sizeof map - 1);
    assert_true(given_open(w.dir, &want, &err));
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) {
        struct folder_trial t = { .w = &w, .file = file[i], .want = &want };
        t.all = json_load_file(hw_path(&w, file[i]), 0, NULL);
        assert_non_null(t.all);
        try_values(&t, t.all);
        assert_true(t.n > 20);
        json_decref(t.all);
    }
    /* Doubled names: the later counts. */
    hw_write(&w, file[2], doubled, sizeof doubled - 1);
    expect_given(w.dir, &want, "max_length", "doubled names");
    given_close(&want);
    hw_close(&w);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

static size_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return bytes[type];
}

/* Behind a value of that type. */
static const char *value_end(const char *p, uint32_t type)
{
    uint64_t n;
    uint32_t elem;
    if (type == 8) {
        memcpy(&n, p, 8);
        return p + 8 + n;
    }
    if (type != 9) return p + scalar_bytes(type);
    memcpy(&elem, p, 4);
    memcpy(&n, p + 4, 8);
    for (p += 12; n; n--) p = value_end(p, elem);
    return p;
}

/* Which key the writer's hook replaces, and by which of the values below. */
static struct {
    int key, value, n_keys;
    char name[64];
} swap;

enum { VALUES = 9 };

static void put_value(struct gw *w, const char *key, int value)
{
    static const uint64_t most = UINT64_MAX;
    static const int64_t least = INT64_MIN;
    static const double big = 1e300, nan = NAN;
    static const float inf = INFINITY;
    static const char *const two[] = { "x", "" };
    switch (value) {
    case 0: gw_scalar(w, key, 10, &most, 8); break;
    case 1: gw_scalar(w, key, 11, &least, 8); break;
    case 2: gw_scalar(w, key, 12, &big, 8); break;
    case 3: gw_scalar(w, key, 12, &nan, 8); break;
    case 4: gw_scalar(w, key, 6, &inf, 4); break;
    case 5: gw_bool(w, key, true); break;
    case 6: gw_str(w, key, "x"); break;
    case 7: gw_arr_str(w, key, 2, two); break;
    default: gw_arr(w, key, 10, 1, &most, 8); break;
    }
}

static void swap_key(struct gw *w)
{
    static const char *const more[] = { "general.url", "general.size_label",
                                        "tokenizer.ggml.mask_token_id", "llama.nobody.knows" };
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) gw_u32(w, more[i], 7);
    struct kvl_buf old = w->keys;
    uint64_t n_keys = w->n_keys;
    const char *p = old.data;
    w->keys = (struct kvl_buf){ 0 };
    w->n_keys = 0;
    for (int i = 0; i < (int)n_keys; i++) {
        uint64_t len;
        uint32_t type;
        memcpy(&len, p, 8);
        memcpy(&type, p + 8 + len, 4);
        const char *end = value_end(p + 12 + len, type);
        if (i == swap.key) {
            snprintf(swap.name, sizeof swap.name, "%.*s", (int)len, p + 8);
            put_value(w, swap.name, swap.value);
        } else {
            gw_raw(&w->keys, p, (size_t)(end - p));
            w->n_keys++;
        }
        p = end;
    }
    swap.n_keys = (int)n_keys;
    kvl_buf_free(&old);
}

static void test_gguf(void **state)
{
    struct gw_llama m = { .n_layers = 1, .n_embd = 32, .n_ff = 32, .more = swap_key };
    struct given want;
    struct kvl_err err = { 0 };
    char path[] = "/tmp/kvl-needs-XXXXXX", what[160];
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    swap.key = -1;
    for (int k = -1; k < swap.n_keys; k++)
        for (int v = 0; v < (k < 0 ? 1 : VALUES); v++) {
            struct kvl_buf file = { 0 };
            swap.key = k;
            swap.value = v;
            gw_llama(&m, &file);
            assert_true(gw_save(&file, path));
            kvl_buf_free(&file);
            if (k < 0 && !given_open(path, &want, &err)) fail_msg("%s", err.msg);
            snprintf(what, sizeof what, "%s, value %d", swap.name, v);
            if (k >= 0) expect_given(path, &want, swap.name, what);
        }
    assert_true(swap.n_keys > 20);
    given_close(&want);
    unlink(path);
}

/* ---- too much of a thing --------------------------------------------------------------------- */

/* A row more than there are tokens: its id is the text "". */
static void test_padded_rows(void **state)
{
    struct hw w;
    struct kvl_model *m;
    struct kvl_err err = { 0 };
    struct kvl_buf text = { 0 };
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    static const char *const names[] = { "model.embed_tokens.weight", "lm_head.weight" };
    for (int i = 0; i < 2; i++) {
        struct hw_tensor *t = hw_tensor(&w, names[i]);
        size_t row = t->data.len / (size_t)t->shape[0];
        for (int k = 0; k < 3; k++) gw_raw(&t->data, t->data.data, row);
        t->shape[0] += 3;
    }
    json_object_set_new(w.config, "vocab_size", json_integer(GW_VOCAB + 3));
    hw_save(&w, 1);
    RIG_OK(&err, kvl_model_open(w.dir, &m, &err));
    const int32_t id[] = { GW_BYTE0 + 'a', GW_VOCAB + 2, GW_VOCAB, GW_BYTE0 + 'b' };
    RIG_OK(&err, kvl_decode(kvl_model_tokenizer(m), id, 4, false, true, &text, &err));
    assert_string_equal(text.data, "ab");
    const int32_t beyond = GW_VOCAB + 3;
    assert_int_equal(kvl_decode(kvl_model_tokenizer(m), &beyond, 1, false, true, &text, &err),
                     KVL_EINVAL);
    assert_false(kvl_tokenizer_ends(kvl_model_tokenizer(m), GW_VOCAB + 2));
    kvl_buf_free(&text);
    kvl_model_close(m);
    hw_close(&w);
}

/* A token more than there are rows: no text becomes it. */
static void test_more_tokens(void **state)
{
    struct hw w;
    struct kvl_model *m;
    struct kvl_err err = { 0 };
    struct kvl_tokens out = { 0 };
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    hw_save(&w, 1);
    json_t *all = json_load_file(hw_path(&w, "tokenizer.json"), 0, NULL);
    json_array_append_new(
        json_object_get(all, "added_tokens"),
        json_pack("{si ss sb}", "id", GW_VOCAB, "content", "[PAD]", "special", 1));
    json_t *model = json_object_get(all, "model");
    json_object_set_new(json_object_get(model, "vocab"), "ab", json_integer(GW_VOCAB + 1));
    json_array_append_new(json_object_get(model, "merges"), json_string("a b"));
    hw_json(&w, "tokenizer.json", all);
    RIG_OK(&err, kvl_model_open(w.dir, &m, &err));
    assert_int_equal(kvl_tokenizer_size(kvl_model_tokenizer(m)), GW_VOCAB);
    RIG_OK(&err, kvl_encode(kvl_model_tokenizer(m), "ab[PAD]", 7, KVL_ENCODE_SPECIAL, &out, &err));
    assert_int_equal(out.n, 7);
    for (int i = 0; i < 7; i++) assert_int_equal(out.id[i], GW_BYTE0 + "ab[PAD]"[i]);
    kvl_tokens_free(&out);
    kvl_model_close(m);
    json_decref(all);
    hw_close(&w);
}

/* A byte that no token is for: left out, or the unknown token where tokenizer.json names one. */
static void test_missing_byte(void **state)
{
    struct hw w;
    (void)state;
    hw_open(&w, &(struct gw_llama){ .n_layers = 1 });
    hw_save(&w, 1);
    json_t *all = json_load_file(hw_path(&w, "tokenizer.json"), 0, NULL);
    json_t *model = json_object_get(all, "model"), *vocab = json_object_get(model, "vocab");
    json_object_del(vocab, "\xc4\x9d"); /* U+011D: byte 0x1d */
    json_object_set_new(vocab, "instead", json_integer(GW_BYTE0 + 0x1d));
    for (int unknown = 0; unknown < 2; unknown++) {
        struct kvl_tokenizer *t;
        struct kvl_err err = { 0 };
        struct kvl_tokens out = { 0 };
        if (unknown) json_object_set_new(model, "unk_token", json_string("<pad>"));
        hw_json(&w, "tokenizer.json", all);
        RIG_OK(&err, kvl_tokenizer_from_hf(w.dir, &t, &err));
        RIG_OK(&err, kvl_encode(t,
                                "a\x1d"
                                "b",
                                3, 0, &out, &err));
        assert_int_equal(out.n, 2 + unknown);
        assert_int_equal(out.id[0], GW_BYTE0 + 'a');
        assert_int_equal(out.id[1], unknown ? GW_PAD : GW_BYTE0 + 'b');
        assert_int_equal(out.id[out.n - 1], GW_BYTE0 + 'b');
        kvl_tokens_free(&out);
        kvl_tokenizer_destroy(t);
    }
    json_decref(all);
    hw_close(&w);
}

/* Keys of 90000 are infinite as halves, though every number of the model is finite. */
static void test_large_keys(void **state)
{
    static const struct {
        enum kvl_kv_type type;
        bool fits;
    } row[] = { { KVL_KV_F16, false }, { KVL_KV_BF16, true },     { KVL_KV_F32, true },
                { KVL_KV_Q8_0, true }, { KVL_KV_FP8_E4M3, true }, { KVL_KV_TURBOQUANT4, false } };
    struct hw w;
    int32_t id[N_TOK];
    (void)state;
    hw_open(&w, &(struct gw_llama){
                    .arch = "qwen2", .bias = 0.3f, .n_layers = 2, .n_heads = 2, .n_kv_heads = 1 });
    struct hw_tensor *bias = hw_tensor(&w, "model.layers.1.self_attn.k_proj.bias");
    const float large = 90000;
    memcpy(bias->data.data + 5 * sizeof large, &large, sizeof large);
    hw_save(&w, 1);
    rig_tokens(id, N_TOK, 3);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct rig r;
        struct kvl_session *s;
        float logits[GW_VOCAB];
        rig_open(&r, &(struct rig_desc){ .path = w.dir, .kv_type = row[i].type });
        RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
        int rc = kvl_session_prefill(s, id, N_TOK, logits, true, &r.err);
        assert_int_equal(rc, row[i].fits ? KVL_OK : KVL_EINVAL);
        if (!row[i].fits && !strstr(r.err.msg, "keys of layer 1"))
            fail_msg("\"%s\" does not name the layer", r.err.msg);
        if (!row[i].fits) assert_non_null(strstr(r.err.msg, "--kv-type bf16 or f32"));
        kvl_session_destroy(s);
        rig_close(&r);
    }
    hw_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),       cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_padded_rows),  cmocka_unit_test(test_more_tokens),
        cmocka_unit_test(test_missing_byte), cmocka_unit_test(test_large_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
