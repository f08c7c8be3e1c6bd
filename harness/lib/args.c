/* Command lines through argp. */
#include "args.h"

#include "machine.h"
#include "model_fits.h"
#include "registry.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ARGS_MAX_NAMES = 64, GPUS_MAX = 64 };

int kvl_args_fail(struct kvl_args *a, int rc)
{
    a->rc = rc;
    return EINVAL;
}

/* ---- the check before argp: its own messages have several lines ------------------------------- */

/* The option called `name` (n bytes) here or in a child, or with that short key. */
static const struct argp_option *args_find(const struct argp *argp, const char *name, size_t n,
                                           int key)
{
    const struct argp_option *o = argp->options;
    for (; o && (o->name || o->key); o++)
        if (name ? o->name && strlen(o->name) == n && strncmp(o->name, name, n) == 0
                 : o->key == key)
            return o;
    for (const struct argp_child *c = argp->children; c && c->argp; c++) {
        const struct argp_option *found = args_find(c->argp, name, n, key);
        if (found) return found;
    }
    return NULL;
}

static size_t args_names(const struct argp *argp, const char **names, size_t n)
{
    for (const struct argp_option *o = argp->options; o && (o->name || o->key); o++)
        if (o->name && n < ARGS_MAX_NAMES) names[n++] = o->name;
    for (const struct argp_child *c = argp->children; c && c->argp; c++)
        n = args_names(c->argp, names, n);
    return n;
}

static int args_unknown(const struct argp *argp, const char *name, struct kvl_err *err)
{
    const char *names[ARGS_MAX_NAMES];
    size_t n = args_names(argp, names, 0);
    const char *near = kvl_nearest(name, names, n);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "--%s: no such option, did you mean --%s?", name, near);
    return kvl_fail(err, KVL_EINVAL, "--%s: no such option, see --help", name);
}

/* A long option; *skip says that the next word is its value. */
static int args_check_long(const struct argp *argp, const char *word, bool last, bool *skip,
                           struct kvl_err *err)
{
    char name[64];
    size_t n = strcspn(word, "=");
    bool has_value = word[n] == '=';
    snprintf(name, sizeof name, "%.*s", (int)KVL_MIN(n, sizeof name - 1), word);
    const struct argp_option *o = args_find(argp, word, n, 0);
    if (!o) return args_unknown(argp, name, err);
    if (!o->arg && has_value)
        return kvl_fail(err, KVL_EINVAL, "--%s: takes no value, got \"%s\"", name, word + n + 1);
    *skip = o->arg && !has_value;
    if (*skip && last) return kvl_fail(err, KVL_EINVAL, "--%s: wants a value: %s", name, o->arg);
    return KVL_OK;
}

/* Short options are written alone: -n 3 or -n3. */
static int args_check_short(const struct argp *argp, const char *word, bool last, bool *skip,
                            struct kvl_err *err)
{
    const struct argp_option *o = args_find(argp, NULL, 0, word[0]);
    if (!o) return kvl_fail(err, KVL_EINVAL, "-%c: no such option, see --help", word[0]);
    if (!o->arg && word[1])
        return kvl_fail(err, KVL_EINVAL, "-%c: takes no value, got \"%s\"", word[0], word + 1);
    *skip = o->arg && !word[1];
    if (*skip && last) return kvl_fail(err, KVL_EINVAL, "-%c: wants a value: %s", word[0], o->arg);
    return KVL_OK;
}

static int args_check(const struct argp *argp, int argc, char **argv, bool *help,
                      struct kvl_err *err)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool skip = false, last = i + 1 == argc;
        if (strcmp(word, "--") == 0) break;
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            *help = true;
            return KVL_OK;
        }
        if (strncmp(word, "--", 2) == 0)
            KVL_TRY(args_check_long(argp, word + 2, last, &skip, err));
        else if (word[0] == '-' && word[1])
            KVL_TRY(args_check_short(argp, word + 1, last, &skip, err));
        i += skip;
    }
    return KVL_OK;
}

int kvl_args_parse(const struct argp *argp, int argc, char **argv, void *input, bool *done,
                   struct kvl_err *err)
{
    struct kvl_args *a = input;
    *done = false;
    a->err = err;
    KVL_TRY(args_check(argp, argc, argv, done, err));
    if (*done) {
        argp_help(argp, stdout, ARGP_HELP_STD_HELP & ~(unsigned)ARGP_HELP_EXIT_OK, argv[0]);
        return KVL_OK;
    }
    int rc = argp_parse(argp, argc, argv, ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP, NULL, input);
    if (a->rc != KVL_OK) return a->rc;
    if (rc == ENOMEM) return kvl_fail(err, KVL_ENOMEM, "no memory for the arguments");
    return rc == 0 ? KVL_OK : kvl_fail(err, KVL_EINVAL, "wrong arguments, see --help");
}

/* ---- options of every command that runs a model ---------------------------------------------- */

enum {
    MODEL_KEY_OVERLONG = 0x200,
    MODEL_KEY_KV_TYPE,
    MODEL_KEY_PREFILL_TYPE,
    MODEL_KEY_DECODE_ACT,
    MODEL_KEY_PREFILL_KV,
    MODEL_KEY_WINDOW,
    MODEL_KEY_DEVICE,
    MODEL_KEY_PLUGIN,
    MODEL_KEY_THREADS
};

static const struct argp_option model_options[] = {
    { "model", 'm', "FILE", 0, "GGUF file, or folder with config.json and *.safetensors", 0 },
    { "threads", MODEL_KEY_THREADS, "N", 0, "threads (default: all cores)", 0 },
    { "kv-type", MODEL_KEY_KV_TYPE, "TYPE", 0,
      "what keys and values are stored as (kvlab list): f16, q8_0 ..., or keys/values; sweeps take "
      "a list of them: f16,q8_0/q4_0",
      0 },
    { "prefill-type", MODEL_KEY_PREFILL_TYPE, "TYPE", 0,
      "how prefill multiplies: f32 (weights in blocks by 15-bit integers with AVX2), bf16 "
      "(rounded, about twice as fast where the processor "
      "multiplies it), or blas (projections by OpenBLAS, on the CPU, for processors without "
      "vector kernels of kvlab's: arm64; rounding depends on chunks)",
      0 },
    { "decode-act", MODEL_KEY_DECODE_ACT, "TYPE", 0,
      "what decoding multiplies weights in blocks with, on the CPU: activations in 16 bits (q16, "
      "default), or in 8 as llama.cpp (q8: faster, less exact)",
      0 },
    { "prefill-kv", MODEL_KEY_PREFILL_KV, "WHERE", 0,
      "what a prefill leaves its keys and values on: device (default), or host: layer by layer, "
      "one "
      "layer's on the device at a time, for contexts that do not fit there; the same answers.  "
      "What a "
      "policy offloads is there already, what an evicting one keeps comes back; others read it "
      "over "
      "the bus, which is slow",
      0 },
    { "window", MODEL_KEY_WINDOW, "WHICH", 0,
      "auto (default): a layer reads its window, where the model has one; off: without windows "
      "that all layers have, as llama.cpp runs Mistral 0.1 and Phi-3",
      0 },
    { "device", MODEL_KEY_DEVICE, "NAME", 0,
      "where the model runs: cpu (default), cuda, hybrid (cuda, but what a method keeps in host "
      "memory "
      "is attended by the CPU where it lies, not fetched), cpu-hybrid (the CPU as both); cuda:2 is "
      "a GPU by its "
      "number; a sweep gives its workers one each of cuda:0..7",
      0 },
    { "allow-overlong", MODEL_KEY_OVERLONG, NULL, 0,
      "accept prompts longer than the model's context", 0 },
    { 0 }
};

static const struct argp_option plugin_options[] = {
    { "plugin", MODEL_KEY_PLUGIN, "X.so", 0, "load a policy from a shared object (repeatable)", 0 },
    { 0 }
};

static int model_threads(struct kvl_model_args *a, const char *text)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK)
        return kvl_fail(a->args->err, KVL_EINVAL,
                        "--threads: \"%s\" is not a number, want 1 to 1024", text);
    if (n < 1 || n > 1024)
        return kvl_fail(a->args->err, KVL_EINVAL,
                        "--threads: \"%s\" is out of range, want 1 to 1024", text);
    a->threads = (int32_t)n;
    return KVL_OK;
}

/* One, or a comma list where the command takes it. */
static int model_kv_types(const struct kvl_model_args *a, const char *text)
{
    char word[64];
    enum kvl_kv_type type;
    for (const char *p = text;; p++) {
        size_t n = a->kv_types ? strcspn(p, ",") : strlen(p);
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(n, sizeof word - 1), p);
        KVL_TRY(kvl_kv_type_parse(word, &type, a->args->err));
        p += n;
        if (!*p) return KVL_OK;
    }
}

static error_t model_parse(int key, char *arg, struct argp_state *state)
{
    struct kvl_model_args *a = state->input;
    enum kvl_prefill_type prefill;
    enum kvl_decode_act act;
    bool host;
    int rc = KVL_OK;
    switch (key) {
    case 'm': a->model = arg; break;
    case MODEL_KEY_THREADS: rc = model_threads(a, arg); break;
    case MODEL_KEY_KV_TYPE:
        a->kv_type = arg;
        rc = model_kv_types(a, arg);
        break;
    case MODEL_KEY_PREFILL_TYPE:
        a->prefill_type = arg;
        rc = kvl_prefill_type_parse(arg, &prefill, a->args->err);
        break;
    case MODEL_KEY_DECODE_ACT:
        a->decode_act = arg;
        rc = kvl_decode_act_parse(arg, &act, a->args->err);
        break;
    case MODEL_KEY_PREFILL_KV:
        a->prefill_kv = arg;
        rc = kvl_prefill_kv_parse(arg, &host, a->args->err);
        break;
    case MODEL_KEY_WINDOW:
        a->window = arg;
        rc = kvl_window_parse(arg, &host, a->args->err);
        break;
    case MODEL_KEY_DEVICE:
        a->device_text = arg;
        rc = kvl_device_parse(arg, &a->device, &a->gpus, a->args->err);
        break;
    case MODEL_KEY_OVERLONG: a->allow_overlong = true; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(a->args, rc);
}

static error_t plugin_parse(int key, char *arg, struct argp_state *state)
{
    struct kvl_model_args *a = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = a;
        return 0;
    }
    if (key != MODEL_KEY_PLUGIN) return ARGP_ERR_UNKNOWN;
    int rc = kvl_registry_plugin(a->registry, arg, a->args->err);
    return rc == KVL_OK ? 0 : kvl_args_fail(a->args, rc);
}

const struct argp kvl_full_argp = { .options = model_options, .parser = model_parse };
static const struct argp_child plugin_children[] = { { &kvl_full_argp, 0, NULL, 0 }, { 0 } };
const struct argp kvl_model_argp = { .options = plugin_options,
                                     .parser = plugin_parse,
                                     .children = plugin_children };

int kvl_kv_type_parse(const char *text, enum kvl_kv_type *out, struct kvl_err *err)
{
    if (kvl_kv_find(text ? text : "f16", out)) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL,
                    "--kv-type: \"%s\": want one of %s, or two, keys/values: q8_0/q4_0", text,
                    kvl_kv_list());
}

/* By enum kvl_prefill_type. */
static const char *const prefill_types[] = { "f32", "bf16", "blas" };

int kvl_prefill_type_parse(const char *text, enum kvl_prefill_type *out, struct kvl_err *err)
{
    for (size_t i = 0; i < sizeof prefill_types / sizeof *prefill_types; i++) {
        if (strcmp(text ? text : "f32", prefill_types[i]) != 0) continue;
        *out = (enum kvl_prefill_type)i;
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EINVAL, "--prefill-type: \"%s\": want f32, bf16 or blas", text);
}

const char *kvl_prefill_type_name(enum kvl_prefill_type type)
{
    return prefill_types[type];
}

/* By enum kvl_decode_act. */
static const char *const decode_acts[] = { "q16", "q8" };

int kvl_decode_act_parse(const char *text, enum kvl_decode_act *out, struct kvl_err *err)
{
    const bool q8 = text && strcmp(text, "q8") == 0;
    if (text && !q8 && strcmp(text, "q16") != 0)
        return kvl_fail(err, KVL_EINVAL, "--decode-act: \"%s\": want q16 or q8", text);
    *out = q8 ? KVL_DECODE_Q8 : KVL_DECODE_Q16;
    return KVL_OK;
}

const char *kvl_decode_act_name(enum kvl_decode_act act)
{
    return decode_acts[act];
}

int kvl_prefill_kv_parse(const char *text, bool *host, struct kvl_err *err)
{
    if (!text || strcmp(text, "device") == 0)
        *host = false;
    else if (strcmp(text, "host") == 0)
        *host = true;
    else
        return kvl_fail(err, KVL_EINVAL, "--prefill-kv: \"%s\": want device or host", text);
    return KVL_OK;
}

const char *kvl_prefill_kv_name(bool host)
{
    return host ? "host" : "device";
}

int kvl_window_parse(const char *text, bool *off, struct kvl_err *err)
{
    *off = text && strcmp(text, "off") == 0;
    if (*off || !text || strcmp(text, "auto") == 0) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "--window: \"%s\": want auto or off", text);
}

/* "2" or "0..7". */
static int gpus_parse(const char *text, struct kvl_gpus *out)
{
    char first[16];
    int64_t a, b;
    size_t len = strcspn(text, ".");
    const char *last = strncmp(text + len, "..", 2) == 0 ? text + len + 2 : text;
    if (len >= sizeof first || (last == text && text[len])) return KVL_EINVAL;
    memcpy(first, text, len);
    first[len] = '\0';
    if (kvl_parse_i64(first, &a) != KVL_OK || kvl_parse_i64(last, &b) != KVL_OK) return KVL_EINVAL;
    if (a < 0 || b < a || b >= GPUS_MAX) return KVL_EINVAL;
    *out = (struct kvl_gpus){ .first = (int32_t)a, .n = (int32_t)(b - a) + 1 };
    return KVL_OK;
}

int kvl_device_parse(const char *text, const char **name, struct kvl_gpus *gpus,
                     struct kvl_err *err)
{
    static const char *const names[] = { "cpu", "cuda", "hybrid", "cpu-hybrid" };
    if (!text) text = names[0];
    size_t len = strcspn(text, ":");
    *gpus = (struct kvl_gpus){ .n = 1 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(text, names[i], len) != 0 || names[i][len]) continue;
        *name = names[i];
        if (!text[len]) return KVL_OK;
        if (kvl_device_is_gpu(names[i]) && gpus_parse(text + len + 1, gpus) == KVL_OK)
            return KVL_OK;
        return kvl_fail(err, KVL_EINVAL,
                        "--device: \"%s\": want a GPU as in cuda:2, or several as in cuda:0..7, "
                        "numbers from 0 to %d",
                        text, GPUS_MAX - 1);
    }
    return kvl_fail(err, KVL_EINVAL, "--device: \"%s\": want " KVL_DEVICE_NAMES, text);
}

bool kvl_device_is_gpu(const char *name)
{
    return strcmp(name, "cuda") == 0 || strcmp(name, "hybrid") == 0;
}

int kvl_model_fits(const char *path, const char *device, struct kvl_err *err)
{
    bool gpu = device && kvl_device_is_gpu(device);
    return gpu ? KVL_OK : kvl_model_room(path, kvl_memory_free_bytes(), err);
}

int kvl_model_open_told(const char *path, bool windows_off, struct kvl_model **out,
                        struct kvl_err *err)
{
    const struct kvl_model_desc desc = { .path = path, .windows_off = windows_off };
    KVL_TRY(kvl_model_open_desc(&desc, out, err));
    const char *unused = kvl_model_tables_unused(*out);
    if (unused) fprintf(stderr, "kvlab: %s; not used\n", unused);
    return KVL_OK;
}

int kvl_model_args_open(const struct kvl_model_args *a, const struct kvl_device **device,
                        struct kvl_model **out, struct kvl_err *err)
{
    if (!a->model) return kvl_fail(err, KVL_EINVAL, "no model, want --model FILE");
    if (a->gpus.n > 1)
        return kvl_fail(err, KVL_EINVAL,
                        "--device: \"%s\": this command works on one GPU, want cuda:%d",
                        a->device_text, a->gpus.first);
    KVL_TRY(kvl_device_open_gpu(a->device ? a->device : "cpu", a->gpus.first, device, err));
    if (a->threads) kvl_ops_set_threads(a->threads);
    bool off;
    KVL_TRY(kvl_window_parse(a->window, &off, err));
    KVL_TRY(kvl_model_fits(a->model, a->device, err));
    return kvl_model_open_told(a->model, off, out, err);
}

int kvl_model_args_engine(const struct kvl_model_args *a, struct kvl_engine_desc *desc,
                          struct kvl_err *err)
{
    desc->allow_overlong = a->allow_overlong;
    KVL_TRY(kvl_kv_type_parse(a->kv_type, &desc->kv_type, err));
    KVL_TRY(kvl_prefill_type_parse(a->prefill_type, &desc->prefill_type, err));
    KVL_TRY(kvl_decode_act_parse(a->decode_act, &desc->decode_act, err));
    return kvl_prefill_kv_parse(a->prefill_kv, &desc->prefill_kv_host, err);
}

/* ---- lists of ids ---------------------------------------------------------------------------- */

static int ids_add(struct kvl_buf *out, const char *word, size_t len, int32_t n_vocab,
                   struct kvl_err *err)
{
    char text[32];
    int64_t id;
    snprintf(text, sizeof text, "%.*s", (int)KVL_MIN(len, sizeof text - 1), word);
    if (len >= sizeof text || kvl_parse_i64(text, &id) != KVL_OK || id < 0 || id >= n_vocab)
        return kvl_fail(err, KVL_EINVAL, "token id \"%s\": want a whole number from 0 to %d", text,
                        n_vocab - 1);
    int32_t id32 = (int32_t)id;
    if (kvl_buf_add(out, &id32, sizeof id32) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for token ids");
    return KVL_OK;
}

int kvl_ids_parse(const char *text, int32_t n_vocab, int32_t **out, int32_t *n, struct kvl_err *err)
{
    static const char between[] = ", \t\r\n";
    struct kvl_buf ids = { 0 };
    int rc = KVL_OK;
    for (const char *p = text + strspn(text, between); *p && rc == KVL_OK;) {
        size_t len = strcspn(p, between);
        rc = ids_add(&ids, p, len, n_vocab, err);
        p += len;
        p += strspn(p, between);
    }
    if (rc != KVL_OK) {
        kvl_buf_free(&ids);
        return rc;
    }
    *n = (int32_t)(ids.len / sizeof(int32_t));
    *out = (int32_t *)(void *)ids.data;
    return KVL_OK;
}

void kvl_args_words(const struct argp_state *state, char ***word, size_t *n)
{
    *word = state->argv + state->next;
    *n = (size_t)(state->argc - state->next);
}
