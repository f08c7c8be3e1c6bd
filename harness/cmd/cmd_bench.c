/* kvlab bench: how near this build comes to what the machine can do. */
#include "args.h"
#include "bench.h"
#include "bench_goals.h"
#include "bench_model.h"
#include "build.h"
#include "cmds.h"
#include "stop.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct bench_command {
    struct kvl_args base;
    struct bench bench;
    const char *make, *weights, *shape, *out, *json, *report;
    const char *from[BENCH_MAX_LIST];
    int32_t n_from;
    bool wants_report, wants_forecast, kv_given;
};

enum {
    BENCH_KEY_MAKE = 0x300,
    BENCH_KEY_ONLY,
    BENCH_KEY_SHAPE,
    BENCH_KEY_WEIGHTS,
    BENCH_KEY_THREADS,
    BENCH_KEY_ROUNDS,
    BENCH_KEY_DEPTHS,
    BENCH_KEY_KV_TYPE,
    BENCH_KEY_POLICIES,
    BENCH_KEY_BUDGET,
    BENCH_KEY_PEER,
    BENCH_KEY_JSON,
    BENCH_KEY_FROM,
    BENCH_KEY_REPORT,
    BENCH_KEY_QUICK,
    BENCH_KEY_MILLION,
    BENCH_KEY_PLUGIN,
    BENCH_KEY_DEVICE,
    BENCH_KEY_PEER_JSON,
    BENCH_KEY_PREFILL_HOST,
    BENCH_KEY_FORECAST,
};

static const struct argp_option bench_options[] = {
    { "only", BENCH_KEY_ONLY, "PARTS", 0,
      "of machine,ops,token,policy,sweep,prefill (default: all of them)", 0 },
    { "shape", BENCH_KEY_SHAPE, "SHAPE", 0,
      "generated model: tiny, small64, small128 (default; --quick: tiny) or llama8b (on a GPU)",
      0 },
    { "model", 'm', "FILE", 0, "a GGUF file instead of a generated model", 0 },
    { "weights", BENCH_KEY_WEIGHTS, "TYPE", 0,
      "of generated models: f16 (default), bf16 (on a GPU), q8_0 or q4_0", 0 },
    { "threads", BENCH_KEY_THREADS, "LIST", 0, "threads (default: 1 and all cores)", 0 },
    { "rounds", BENCH_KEY_ROUNDS, "N", 0, "rounds of each measurement (default 5; --quick: 3)", 0 },
    { "depths", BENCH_KEY_DEPTHS, "LIST", 0,
      "tokens in the cache (default 0,4096,16384,32768,65536,131072; --quick: 0,1024,4096)", 0 },
    { "kv-type", BENCH_KEY_KV_TYPE, "TYPE", 0,
      "element type of the KV store: f16 (default), bf16 (on a GPU) or f32", 0 },
    { "policies", BENCH_KEY_POLICIES, "LIST", 0,
      "NAME,NAME or NAME:options;NAME:options (default: all that are published)", 0 },
    { "budget", BENCH_KEY_BUDGET, "N", 0, "tokens of a lane (default 2048; --quick: 256)", 0 },
    { "peer", BENCH_KEY_PEER, "PATH", 0, "a llama-bench binary to run in turn with ours", 0 },
    { "million", BENCH_KEY_MILLION, "FILE", 0,
      "1048576 tokens in the cache of this small model too: store, fork, decode", 0 },
    { "device", BENCH_KEY_DEVICE, "DEVICE", 0,
      "cpu, or cuda or hybrid: tokens at depths and what they stand on, on a GPU", 0 },
    { "prefill-host", BENCH_KEY_PREFILL_HOST, "N", 0,
      "of --device cuda: nothing but a prefill of N tokens, whose keys and values end on the host "
      "(--prefill-kv host of other commands): time, memory of the GPU and of the host",
      0 },
    { "peer-json", BENCH_KEY_PEER_JSON, "FILE", 0,
      "of --device cuda: lines of tests/bench/torch_attention.py and bench_cuda_attn beside ours",
      0 },
    { "json", BENCH_KEY_JSON, "FILE", 0, "results as JSON lines too", 0 },
    { "from", BENCH_KEY_FROM, "FILE", 0,
      "runs nothing: results of an earlier --json for --report (repeatable)", 0 },
    { "report", BENCH_KEY_REPORT, "FILE", OPTION_ARG_OPTIONAL,
      "the table of goals, as --report=FILE (default: standard output)", 0 },
    { "forecast", BENCH_KEY_FORECAST, NULL, 0,
      "runs nothing: what the goals of a GPU should come to on some, by arithmetic", 0 },
    { "quick", BENCH_KEY_QUICK, NULL, 0, "small and short: shows that all runs", 0 },
    { "make-model", BENCH_KEY_MAKE, "SHAPE", 0,
      "write a model with random weights to OUT.gguf and end", 0 },
    { "plugin", BENCH_KEY_PLUGIN, "X.so", 0, "load a policy from a shared object (repeatable)", 0 },
    { 0 }
};

/* ---- values ------------------------------------------------------------------------------------------------ */

static int bench_number(const char *option, const char *text, int64_t min, int64_t max,
                        int32_t *out, struct kvl_err *err)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK || n < min || n > max)
        return kvl_fail(err, KVL_EINVAL, "%s: \"%s\": want a number from %lld to %lld", option,
                        text, (long long)min, (long long)max);
    *out = (int32_t)n;
    return KVL_OK;
}

/* "1,2,3", ascending. */
static int bench_numbers(const char *option, const char *text, int64_t min, int64_t max,
                         struct bench_list *out, struct kvl_err *err)
{
    out->n = 0;
    while (*text) {
        char word[32];
        size_t len = strcspn(text, ",");
        if (out->n == BENCH_MAX_LIST)
            return kvl_fail(err, KVL_EINVAL, "%s: more than %d numbers", option, BENCH_MAX_LIST);
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), text);
        KVL_TRY(bench_number(option, word, min, max, &out->v[out->n], err));
        if (out->n > 0 && out->v[out->n] <= out->v[out->n - 1])
            return kvl_fail(err, KVL_EINVAL, "%s: %d after %d, want them to ascend", option,
                            out->v[out->n], out->v[out->n - 1]);
        out->n++;
        text += len + (text[len] == ',');
    }
    if (out->n == 0) return kvl_fail(err, KVL_EINVAL, "%s: none given, want a number", option);
    return KVL_OK;
}

static int bench_only(const char *text, uint32_t *parts, struct kvl_err *err)
{
    static const char *const names[] = { "machine", "ops", "token", "policy", "sweep", "prefill" };
    *parts = 0;
    while (*text) {
        size_t len = strcspn(text, ","), i = 0, n = sizeof names / sizeof names[0];
        while (i < n && !(strlen(names[i]) == len && strncmp(names[i], text, len) == 0)) i++;
        if (i == n)
            return kvl_fail(err, KVL_EINVAL,
                            "--only: \"%.*s\": want machine, ops, token, policy, sweep or prefill",
                            (int)KVL_MIN(len, 40), text);
        *parts |= 1u << i;
        text += len + (text[len] == ',');
    }
    if (!*parts) return kvl_fail(err, KVL_EINVAL, "--only: none given, want a part");
    return KVL_OK;
}

static int bench_value(struct bench_command *a, int key, char *arg)
{
    struct bench_config *c = &a->bench.config;
    struct kvl_err *err = a->base.err;
    switch (key) {
    case BENCH_KEY_ONLY: return bench_only(arg, &c->parts, err);
    case BENCH_KEY_THREADS: return bench_numbers("--threads", arg, 1, 1024, &c->threads, err);
    case BENCH_KEY_DEPTHS: return bench_numbers("--depths", arg, 0, 1 << 20, &c->depths, err);
    case BENCH_KEY_ROUNDS:
        return bench_number("--rounds", arg, 1, BENCH_MAX_ROUNDS, &c->rounds, err);
    case BENCH_KEY_BUDGET: return bench_number("--budget", arg, 1, 1 << 20, &c->budget_tok, err);
    case BENCH_KEY_PREFILL_HOST:
        return bench_number("--prefill-host", arg, 1, 1 << 24, &c->prefill_host_tok, err);
    case BENCH_KEY_KV_TYPE: a->kv_given = true; return kvl_kv_type_parse(arg, &c->kv_type, err);
    case BENCH_KEY_PLUGIN: return kvl_registry_plugin(a->bench.registry, arg, err);
    case BENCH_KEY_FROM:
        if (a->n_from == BENCH_MAX_LIST)
            return kvl_fail(err, KVL_EINVAL, "--from: more than %d files", BENCH_MAX_LIST);
        a->from[a->n_from++] = arg;
        return KVL_OK;
    case ARGP_KEY_ARG:
        if (strcmp(arg, "methods") == 0 && !a->make) {
            c->parts |= BENCH_METHODS;
            return KVL_OK;
        }
        if (a->out) return kvl_fail(err, KVL_EINVAL, "%s: one file is enough", arg);
        a->out = arg;
        return KVL_OK;
    default: return KVL_EINTERNAL;
    }
}

static error_t bench_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_command *a = state->input;
    struct bench_config *c = &a->bench.config;
    switch (key) {
    case BENCH_KEY_MAKE: a->make = arg; return 0;
    case BENCH_KEY_WEIGHTS: a->weights = arg; return 0;
    case BENCH_KEY_SHAPE: a->shape = arg; return 0;
    case 'm': c->model = arg; return 0;
    case BENCH_KEY_POLICIES: c->policies = arg; return 0;
    case BENCH_KEY_PEER: c->peer = arg; return 0;
    case BENCH_KEY_JSON: a->json = arg; return 0;
    case BENCH_KEY_QUICK: c->quick = true; return 0;
    case BENCH_KEY_FORECAST: a->wants_forecast = true; return 0;
    case BENCH_KEY_MILLION: c->million = arg; return 0;
    case BENCH_KEY_DEVICE: c->device = strcmp(arg, "cpu") == 0 ? NULL : arg; return 0;
    case BENCH_KEY_PEER_JSON: c->peer_json = arg; return 0;
    case BENCH_KEY_REPORT:
        a->report = arg;
        a->wants_report = true;
        return 0;
    case BENCH_KEY_ONLY:
    case BENCH_KEY_THREADS:
    case BENCH_KEY_DEPTHS:
    case BENCH_KEY_ROUNDS:
    case BENCH_KEY_BUDGET:
    case BENCH_KEY_PREFILL_HOST:
    case BENCH_KEY_KV_TYPE:
    case BENCH_KEY_PLUGIN:
    case BENCH_KEY_FROM:
    case ARGP_KEY_ARG: {
        int rc = bench_value(a, key, arg);
        return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
    }
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp bench_argp = {
    .options = bench_options,
    .parser = bench_parse,
    .args_doc = "[methods]\n--make-model SHAPE OUT.gguf",
    .doc =
        "How near this build comes to what the machine can do: operators, tokens, policies, "
        "prefill and sweeps as shares of a streaming read and of the processor's peaks, all "
        "sides of a ratio by turns.  Figures of a busy machine mean little; the ratios mean "
        "more.  `methods`: every method instead, what a token costs under it at each depth: time "
        "by parts, bytes read, their share of full attention's; on a small model unless another is "
        "given.",
};

/* ---- what is not said ---------------------------------------------------------------------------------------- */

/* Every method at every depth in a few minutes. */
static void bench_methods_defaults(struct bench_command *a)
{
    struct bench_config *c = &a->bench.config;
    static const struct bench_list depths = { { 4096, 16384, 65536 }, 3 },
                                   quick = { { 1024, 4096 }, 2 };
    if (c->rounds == 0) c->rounds = 5;
    if (c->budget_tok == 0) c->budget_tok = c->quick ? 256 : 1024;
    if (c->depths.n == 0) c->depths = c->quick ? quick : depths;
    if (c->threads.n == 0) c->threads.v[c->threads.n++] = a->bench.origin.machine.cores;
    if (!a->shape && !c->model) a->shape = "tiny";
}

static void bench_gpu_defaults(struct bench_command *a)
{
    struct bench_config *c = &a->bench.config;
    static const struct bench_list depths = { { 16384, 32768, 65536, 131072 }, 4 };
    if (c->depths.n == 0 && !c->quick) c->depths = depths;
    if (!a->shape && !c->model && !c->quick) a->shape = "llama8b";
    if (!a->weights) a->weights = "bf16";
    if (!a->kv_given) c->kv_type = KVL_KV_BF16;
    c->parts = BENCH_GPU;
    c->threads = (struct bench_list){ { 0 }, 1 };
}

static void bench_defaults(struct bench_command *a)
{
    struct bench_config *c = &a->bench.config;
    static const struct bench_list depths = { { 0, 4096, 16384, 32768, 65536, 131072 }, 6 },
                                   quick = { { 0, 1024, 4096 }, 3 };
    if (c->parts == BENCH_METHODS) bench_methods_defaults(a);
    if (c->device && c->parts == 0) bench_gpu_defaults(a);
    if (c->parts == 0) c->parts = BENCH_DEFAULT;
    if (c->peer) c->parts |= BENCH_PEER;
    if (c->million) c->parts |= BENCH_MILLION;
    if (c->rounds == 0) c->rounds = c->quick ? 3 : 5;
    if (c->budget_tok == 0) c->budget_tok = c->quick ? 256 : 2048;
    if (c->depths.n == 0) c->depths = c->quick ? quick : depths;
    if (c->threads.n == 0) {
        int32_t cores = a->bench.origin.machine.cores;
        c->threads.v[c->threads.n++] = 1;
        if (cores > 1) c->threads.v[c->threads.n++] = cores;
    }
    if (!a->shape && !c->model) a->shape = c->quick ? "tiny" : "small128";
}

/* Before a model is written for it. */
static int bench_device_ready(struct bench *b)
{
    const struct bench_config *c = &b->config;
    struct kvl_device_info info;
    time_t now = time(NULL);
    struct tm utc;
    if (c->prefill_host_tok > 0 && (!c->device || c->parts))
        return kvl_fail(b->err, KVL_EINVAL,
                        "--prefill-host is a part of its own of a GPU, want --device cuda");
    if (!c->device) return KVL_OK;
    if (!kvl_device_is_gpu(c->device))
        return kvl_fail(b->err, KVL_EINVAL, "--device: \"%s\": want cpu, cuda or hybrid",
                        c->device);
    if ((c->parts && c->parts != BENCH_METHODS) || c->peer || c->million || c->threads.n)
        return kvl_fail(b->err, KVL_EINVAL,
                        "--only, --threads, --peer and --million are of the CPU, beside --device "
                        "want none of them");
    KVL_TRY(kvl_device_open(c->device, &b->device, b->err));
    b->device->info(&info);
    snprintf(b->origin.device.name, sizeof b->origin.device.name, "%.119s%s", info.name,
             b->device->attends_host ? ", hybrid" : "");
    snprintf(b->origin.device.driver, sizeof b->origin.device.driver, "%s", info.driver);
    gmtime_r(&now, &utc);
    strftime(b->origin.date, sizeof b->origin.date, "%Y-%m-%d", &utc);
    return c->peer_json ? bench_gpu_peers(b, c->peer_json) : KVL_OK;
}

static int bench_model_ready(struct bench_command *a)
{
    struct bench *b = &a->bench;
    struct bench_config *c = &b->config;
    if (a->shape && c->model)
        return kvl_fail(b->err, KVL_EINVAL, "--shape and --model exclude each other, want one");
    KVL_TRY(bench_weights_parse(a->weights, &c->weights, b->err));
    if (!a->shape) {
        b->model_path = strdup(c->model);
        if (!b->model_path) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
        return kvl_model_open(c->model, &b->model, b->err);
    }
    KVL_TRY(bench_shape_find(a->shape, &c->shape, b->err));
    bench_say("writing a model of shape %s", a->shape);
    KVL_TRY(bench_model_temp(c->shape, c->weights, &b->model_path, b->err));
    int rc = kvl_model_open(b->model_path, &b->model, b->err);
    if (!c->peer) unlink(b->model_path); /* stays mapped, and is gone however the run ends */
    return rc;
}

/* A run takes minutes: what cannot work is said before it. */
static int bench_peer_there(const char *path, struct kvl_err *err)
{
    struct stat st;
    bool runs = access(path, X_OK) == 0;
    if (runs && stat(path, &st) == 0 && S_ISREG(st.st_mode)) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "--peer: %s: cannot run: %s, want a llama-bench", path,
                    runs ? "no regular file" : strerror(errno));
}

/* A report that is there stays until the new one is whole. */
static int bench_report_there(const char *path, struct kvl_err *err)
{
    FILE *f = fopen(path, "a");
    if (f && fclose(f) == 0) return KVL_OK;
    return kvl_fail(err, KVL_EIO, "--report: %s: cannot create: %s", path, strerror(errno));
}

static int bench_json_open(struct bench_command *a)
{
    struct bench *b = &a->bench;
    if (!a->json) return KVL_OK;
    b->json = fopen(a->json, "we");
    if (b->json) return KVL_OK;
    return kvl_fail(b->err, KVL_EIO, "--json: %s: cannot create: %s", a->json, strerror(errno));
}

static int bench_files(struct bench_command *a)
{
    struct bench *b = &a->bench;
    struct kvl_model *million = NULL;
    if (b->config.peer) KVL_TRY(bench_peer_there(b->config.peer, b->err));
    if (b->config.parts & BENCH_POLICY) KVL_TRY(bench_policy_check(b));
    if (b->config.parts & BENCH_METHODS) KVL_TRY(bench_methods_check(b));
    if (b->config.million) KVL_TRY(kvl_model_open(b->config.million, &million, b->err));
    kvl_model_close(million);
    if (a->report) KVL_TRY(bench_report_there(a->report, b->err));
    return bench_json_open(a);
}

/* ---- the run --------------------------------------------------------------------------------------------------- */

static int bench_parts(struct bench *b)
{
    static const struct {
        uint32_t part;
        int (*run)(struct bench *b);
    } row[] = { { BENCH_PREFILL, bench_prefill_memory },
                { BENCH_DEFAULT | BENCH_PEER | BENCH_MILLION, bench_machine }, /* the stream */
                { BENCH_OPS, bench_ops },
                { BENCH_TOKEN, bench_token },
                { BENCH_POLICY, bench_policy },
                { BENCH_METHODS, bench_methods },
                { BENCH_SWEEP, bench_sweep },
                { BENCH_PREFILL, bench_prefill },
                { BENCH_MILLION, bench_million },
                { BENCH_GPU, bench_gpu },
                { BENCH_PEER, bench_peer } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (b->config.parts & row[i].part) KVL_TRY(row[i].run(b));
        KVL_TRY(bench_stopped(b));
    }
    if (b->config.peer || b->config.device || b->config.parts == BENCH_METHODS) return KVL_OK;
    return bench_skip(b, "comparison with llama.cpp: no llama-bench given (--peer PATH)");
}

static void bench_close(struct bench_command *a)
{
    struct bench *b = &a->bench;
    if (b->model_path && b->config.shape && b->config.peer) unlink(b->model_path);
    free(b->model_path);
    kvl_model_close(b->model);
    if (b->json) fclose(b->json);
    free(b->stream);
    kvl_free(b->line);
    kvl_buf_free(&b->skipped);
    json_decref(b->from);
    json_decref(b->peers);
    kvl_registry_destroy(b->registry);
}

/* The table of earlier runs. */
static int bench_read(struct bench_command *a)
{
    struct bench *b = &a->bench;
    const struct bench_config *c = &b->config;
    if (c->parts || c->peer || c->million || c->quick || c->model || a->shape || c->threads.n)
        return kvl_fail(b->err, KVL_EINVAL,
                        "--from reads what was run, beside it want --report and --json alone");
    if (a->report) KVL_TRY(bench_report_there(a->report, b->err));
    KVL_TRY(bench_json_open(a));
    for (int32_t i = 0; i < a->n_from; i++) KVL_TRY(bench_from(b, a->from[i]));
    if (c->device && !b->origin.device.name[0]) b->origin.device.name[0] = '-'; /* no lines */
    if (b->origin.device.name[0]) b->config.threads.n = 1;                      /* one column */
    return a->wants_report ? bench_report(b, a->report) : KVL_OK;
}

static int bench_run(struct bench_command *a, struct kvl_err *err)
{
    struct bench *b = &a->bench;
    b->err = err;
    kvl_machine_read(&b->origin.machine);
    b->origin.version = kvl_build.version;
    b->origin.git = kvl_build.git;
    b->origin.compiler = kvl_build.compiler;
    if (a->out)
        return kvl_fail(err, KVL_EINVAL, "%s: a file is for --make-model, want --model FILE",
                        a->out);
    if (a->n_from > 0) return bench_read(a);
    KVL_TRY(bench_device_ready(b));
    bench_defaults(a);
    KVL_TRY(bench_files(a));
    kvl_stop_install();
    KVL_TRY(bench_model_ready(a));
    b->origin.model = kvl_model_name(b->model);
    if (b->config.shape) b->origin.weights = kvl_wtype_name(b->config.weights);
    if (b->config.parts & BENCH_POLICY) KVL_TRY(bench_policy_check(b));
    if (b->device) printf("%s, driver %s; ", b->origin.device.name, b->origin.device.driver);
    printf("%s, %d core%s, %s; model %s, %s pages, budget %d, %d round%s\n", b->origin.machine.cpu,
           b->origin.machine.cores, b->origin.machine.cores == 1 ? "" : "s", b->origin.machine.isa,
           b->origin.model, kvl_kv_name(b->config.kv_type).text, b->config.budget_tok,
           b->config.rounds, b->config.rounds == 1 ? "" : "s");
    fflush(stdout); /* minutes before the first result */
    KVL_TRY(bench_parts(b));
    return a->wants_report ? bench_report(b, a->report) : KVL_OK;
}

static int bench_make(const struct bench_command *a, struct kvl_err *err)
{
    const struct bench_shape *shape;
    enum kvl_wtype type;
    KVL_TRY(bench_shape_find(a->make, &shape, err));
    KVL_TRY(bench_weights_parse(a->weights, &type, err));
    if (!a->out) return kvl_fail(err, KVL_EINVAL, "--make-model: no file given, want OUT.gguf");
    return bench_model_write(shape, type, a->out, err);
}

int cmd_bench(int argc, char **argv, struct kvl_err *err)
{
    struct bench_command *a = kvl_alloc(1, sizeof *a);
    bool done = true;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    a->bench.config.kv_type = KVL_KV_F16;
    int rc = kvl_registry_create(&a->bench.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&bench_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done && a->wants_forecast)
        bench_forecast_table(stdout);
    else if (rc == KVL_OK && !done)
        rc = a->make ? bench_make(a, err) : bench_run(a, err);
    bench_close(a);
    kvl_free(a);
    return rc;
}
