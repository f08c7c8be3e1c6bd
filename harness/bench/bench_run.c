/* A run: its options, what was not said, device and model, its parts. */
#include "args.h"
#include "bench.h"
#include "build.h"
#include "stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- options ------------------------------------------------------------------------------------------------ */

static int run_number(const char *option, const char *text, int64_t min, int64_t max, int32_t *out,
                      struct kvl_err *err)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK || n < min || n > max)
        return kvl_fail(err, KVL_EINVAL, "--%s: \"%s\": want a number from %lld to %lld", option,
                        text, (long long)min, (long long)max);
    *out = (int32_t)n;
    return KVL_OK;
}

/* "1,2,3", ascending. */
static int run_numbers(const char *option, const char *text, int64_t min, int64_t max,
                       struct bench_list *out, struct kvl_err *err)
{
    out->n = 0;
    while (*text) {
        char word[32];
        size_t len = strcspn(text, ",");
        if (out->n == BENCH_MAX_LIST)
            return kvl_fail(err, KVL_EINVAL, "--%s: more than %d numbers", option, BENCH_MAX_LIST);
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), text);
        KVL_TRY(run_number(option, word, min, max, &out->v[out->n], err));
        if (out->n > 0 && out->v[out->n] <= out->v[out->n - 1])
            return kvl_fail(err, KVL_EINVAL, "--%s: %d after %d, want them to ascend", option,
                            out->v[out->n], out->v[out->n - 1]);
        out->n++;
        text += len + (text[len] == ',');
    }
    if (out->n == 0) return kvl_fail(err, KVL_EINVAL, "--%s: none given, want a number", option);
    return KVL_OK;
}

static int run_only(const char *text, uint32_t *parts, struct kvl_err *err)
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

int bench_set(struct bench *b, const char *option, const char *text)
{
    struct bench_config *c = &b->config;
    const struct {
        const char *option;
        const char **to;
    } texts[] = { { "shape", &c->shape_name },  { "model", &c->model },
                  { "json", &c->json_path },    { "weights", &c->weight_type },
                  { "policies", &c->policies }, { "text", &c->text },
                  { "report", &c->report } };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (strcmp(option, texts[i].option) == 0) {
            *texts[i].to = text;
            return KVL_OK;
        }
    const struct {
        const char *option;
        int32_t max, *to;
    } numbers[] = { { "rounds", BENCH_MAX_ROUNDS, &c->rounds },
                    { "budget", 1 << 20, &c->budget_tok } };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(option, numbers[i].option) == 0)
            return run_number(option, text, 1, numbers[i].max, numbers[i].to, b->err);
    if (strcmp(option, "only") == 0) return run_only(text, &c->parts, b->err);
    if (strcmp(option, "threads") == 0)
        return run_numbers(option, text, 1, 1024, &c->threads, b->err);
    if (strcmp(option, "depths") == 0)
        return run_numbers(option, text, 0, 1 << 20, &c->depths, b->err);
    if (strcmp(option, "plugin") == 0) return kvl_registry_plugin(b->registry, text, b->err);
    if (strcmp(option, "device") == 0) {
        c->device = strcmp(text, "cpu") == 0 ? NULL : text;
        return KVL_OK;
    }
    if (strcmp(option, "decode-act") == 0)
        return kvl_decode_act_parse(text, &c->decode_act, b->err);
    if (strcmp(option, "kv-type") != 0)
        return kvl_fail(b->err, KVL_EINVAL, "--%s: no option of a bench", option);
    c->kv_given = true;
    return kvl_kv_type_parse(text, &c->kv_type, b->err);
}

/* ---- what is not said ---------------------------------------------------------------------------------------- */

/* Every method at every depth in a few minutes. */
static void run_methods_defaults(struct bench *b)
{
    struct bench_config *c = &b->config;
    static const struct bench_list depths = { { 4096, 16384, 65536 }, 3 },
                                   quick = { { 1024, 4096 }, 2 };
    if (c->rounds == 0) c->rounds = 5;
    if (c->budget_tok == 0) c->budget_tok = c->quick ? 256 : 1024;
    if (c->depths.n == 0) c->depths = c->quick ? quick : depths;
    if (c->threads.n == 0) c->threads.v[c->threads.n++] = b->origin.machine.cores;
    if (!c->shape_name && !c->model) c->shape_name = "tiny";
}

static void run_gpu_defaults(struct bench_config *c)
{
    static const struct bench_list depths = { { 16384, 32768, 65536, 131072 }, 4 };
    if (c->depths.n == 0 && !c->quick) c->depths = depths;
    if (!c->shape_name && !c->model && !c->quick) c->shape_name = "llama8b";
    if (!c->weight_type) c->weight_type = "bf16";
    if (!c->kv_given) c->kv_type = KVL_KV_BF16;
    c->parts = BENCH_GPU;
    c->threads = (struct bench_list){ { 0 }, 1 };
}

static void run_defaults(struct bench *b)
{
    struct bench_config *c = &b->config;
    static const struct bench_list depths = { { 0, 4096, 16384, 32768, 65536, 131072 }, 6 },
                                   quick = { { 0, 1024, 4096 }, 3 };
    if (c->parts == BENCH_METHODS) run_methods_defaults(b);
    if (c->device && c->parts == 0) run_gpu_defaults(c);
    if (c->parts == 0) c->parts = BENCH_DEFAULT;
    if (c->rounds == 0) c->rounds = c->quick ? 3 : 5;
    if (c->budget_tok == 0) c->budget_tok = c->quick ? 256 : 2048;
    if (c->depths.n == 0) c->depths = c->quick ? quick : depths;
    if (c->threads.n == 0) {
        int32_t cores = b->origin.machine.cores;
        c->threads.v[c->threads.n++] = 1;
        if (cores > 1) c->threads.v[c->threads.n++] = cores;
    }
    if (!c->shape_name && !c->model) c->shape_name = c->quick ? "tiny" : "small128";
}

/* ---- device, model ---------------------------------------------------------------------------------------------- */

/* Before a model is written for it. */
static int run_device(struct bench *b)
{
    const struct bench_config *c = &b->config;
    struct kvl_device_info info;
    time_t now = time(NULL);
    struct tm utc;
    if (!c->device) return KVL_OK;
    if (!kvl_device_is_gpu(c->device))
        return kvl_fail(b->err, KVL_EINVAL, "--device: \"%s\": want cpu, cuda or hybrid",
                        c->device);
    if ((c->parts && c->parts != BENCH_METHODS) || c->threads.n)
        return kvl_fail(b->err, KVL_EINVAL,
                        "--only and --threads are of the CPU, beside --device want none of them");
    KVL_TRY(kvl_device_open(c->device, &b->device, b->err));
    b->device->info(&info);
    snprintf(b->origin.device.name, sizeof b->origin.device.name, "%.119s%s", info.name,
             b->device->attends_host ? ", hybrid" : "");
    snprintf(b->origin.device.driver, sizeof b->origin.device.driver, "%s", info.driver);
    gmtime_r(&now, &utc);
    strftime(b->origin.date, sizeof b->origin.date, "%Y-%m-%d", &utc);
    return KVL_OK;
}

static int run_model(struct bench *b)
{
    struct bench_config *c = &b->config;
    if (c->shape_name && c->model)
        return kvl_fail(b->err, KVL_EINVAL, "--shape and --model exclude each other, want one");
    KVL_TRY(bench_weights_parse(c->weight_type, &c->weights, b->err));
    if (!c->shape_name) {
        b->model_path = strdup(c->model);
        if (!b->model_path) return kvl_fail(b->err, KVL_ENOMEM, "out of memory");
        return kvl_model_open(c->model, &b->model, b->err);
    }
    if (!c->shape) KVL_TRY(bench_shape_find(c->shape_name, &c->shape, b->err));
    bench_say("writing a model of shape %s", c->shape_name);
    KVL_TRY(bench_model_temp(c->shape, c->weights, &b->model_path, b->err));
    int rc = kvl_model_open(b->model_path, &b->model, b->err);
    if (!c->keep_model) unlink(b->model_path); /* stays mapped, and is gone however the run ends */
    return rc;
}

/* A report that is there stays until the new one is whole. */
static int run_report_there(const char *path, struct kvl_err *err)
{
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!path || (f && fclose(f) == 0)) return KVL_OK;
    return kvl_fail(err, KVL_EIO, "--report: %s: cannot create: %s", path, strerror(errno));
}

/* A run takes minutes: what cannot work is said before it. */
static int run_check(struct bench *b)
{
    const struct bench_config *c = &b->config;
    if (c->report && c->parts != BENCH_METHODS)
        return kvl_fail(b->err, KVL_EINVAL, "--report is of methods: want `bench methods`");
    if (c->parts & BENCH_POLICY) KVL_TRY(bench_policy_check(b));
    if (c->parts & BENCH_METHODS) KVL_TRY(bench_methods_check(b));
    KVL_TRY(bench_text_read(b));
    return run_report_there(c->report, b->err);
}

int bench_json_open(struct bench *b)
{
    const char *path = b->config.json_path;
    if (!path) return KVL_OK;
    b->json = fopen(path, "we");
    if (b->json) return KVL_OK;
    return kvl_fail(b->err, KVL_EIO, "--json: %s: cannot create: %s", path, strerror(errno));
}

void bench_origin(struct bench *b)
{
    kvl_machine_read(&b->origin.machine);
    b->origin.version = kvl_build.version;
    b->origin.git = kvl_build.git;
    b->origin.compiler = kvl_build.compiler;
}

int bench_open(struct bench *b)
{
    bench_origin(b);
    KVL_TRY(run_device(b));
    run_defaults(b);
    KVL_TRY(run_check(b));
    KVL_TRY(bench_json_open(b));
    kvl_stop_install();
    KVL_TRY(run_model(b));
    KVL_TRY(bench_text_open(b));
    b->origin.model = kvl_model_name(b->model);
    if (b->config.shape) b->origin.weights = kvl_wtype_name(b->config.weights);
    return b->config.parts & BENCH_POLICY ? bench_policy_check(b) : KVL_OK;
}

void bench_close(struct bench *b)
{
    if (b->model_path && b->config.shape && b->config.keep_model) unlink(b->model_path);
    free(b->model_path);
    kvl_model_close(b->model);
    if (b->json) fclose(b->json);
    free(b->stream);
    kvl_free(b->line);
    kvl_buf_free(&b->skipped);
    kvl_buf_free(&b->text);
    kvl_tokens_free(&b->context);
    kvl_registry_destroy(b->registry);
}

/* ---- the run --------------------------------------------------------------------------------------------------- */

static void run_headline(const struct bench *b)
{
    const struct bench_origin *o = &b->origin;
    const struct bench_config *c = &b->config;
    if (b->device) printf("%s, driver %s; ", o->device.name, o->device.driver);
    printf("%s, %d core%s, %s; model %s, %s pages, budget %d, %d round%s\n", o->machine.cpu,
           o->machine.cores, o->machine.cores == 1 ? "" : "s", o->machine.isa, o->model,
           kvl_kv_name(c->kv_type).text, c->budget_tok, c->rounds, c->rounds == 1 ? "" : "s");
    fflush(stdout); /* minutes before the first result */
}

int bench_run(struct bench *b)
{
    static const struct {
        uint32_t part;
        int (*run)(struct bench *b);
    } row[] = { { BENCH_PREFILL, bench_prefill_memory },
                { BENCH_DEFAULT, bench_machine }, /* the stream */
                { BENCH_OPS, bench_ops },
                { BENCH_TOKEN, bench_token },
                { BENCH_POLICY, bench_policy },
                { BENCH_METHODS, bench_methods },
                { BENCH_SWEEP, bench_sweep },
                { BENCH_PREFILL, bench_prefill },
                { BENCH_GPU, bench_gpu } };
    run_headline(b);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        if (b->config.parts & row[i].part) KVL_TRY(row[i].run(b));
        KVL_TRY(bench_stopped(b));
    }
    return KVL_OK;
}
