/* bench_goals: all that `kvlab bench` measures, against goals, other programs and arithmetic.  For those who work on
 * kvlab; results/cpu.md and results/gpu.md are what it wrote. */
#include "args.h"
#include "bench_goals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char goals_help[] =
    "bench_goals [OPTION...]   options of `kvlab bench` but --make-model, written out, and\n"
    "  --peer PATH         a llama-bench binary to run in turn with ours\n"
    "  --million FILE      1048576 tokens in the cache of this small model too: store, fork, "
    "decode\n"
    "  --prefill-host N    of --device cuda: nothing but a prefill of N tokens, whose keys and "
    "values end on the\n"
    "                      host (--prefill-kv host of kvlab): time, memory of the GPU and of the "
    "host\n"
    "  --peer-json FILE    of --device cuda: lines of torch_attention.py and bench_cuda_attn "
    "beside ours\n"
    "  --from FILE         runs nothing: results of an earlier --json for --report (repeatable)\n"
    "  --report[=FILE]     the table of goals (default: standard output)\n"
    "  --forecast          runs nothing: what the goals of a GPU should come to on some, by "
    "arithmetic\n";

struct goals_command {
    struct bench_goals g; /* first */
    const char *peer, *million, *peer_json, *report;
    const char *from[BENCH_MAX_LIST];
    int32_t n_from, prefill_host;
    bool wants_report;
};

/* ---- options ------------------------------------------------------------------------------------------------- */

static int goals_from(struct goals_command *a, const char *path)
{
    if (a->n_from == BENCH_MAX_LIST)
        return kvl_fail(a->g.bench.err, KVL_EINVAL, "--from: more than %d files", BENCH_MAX_LIST);
    a->from[a->n_from++] = path;
    return KVL_OK;
}

static int goals_set(struct goals_command *a, const char *name, const char *text)
{
    struct bench *b = &a->g.bench;
    int64_t n;
    const struct {
        const char *name, **to;
    } row[] = { { "peer", &a->peer }, { "million", &a->million }, { "peer-json", &a->peer_json } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (strcmp(name, row[i].name) == 0) {
            *row[i].to = text;
            return KVL_OK;
        }
    if (strcmp(name, "from") == 0) return goals_from(a, text);
    if (strcmp(name, "prefill-host") != 0) return bench_set(b, name, text);
    if (kvl_parse_i64(text, &n) != KVL_OK || n < 1 || n > 1 << 24)
        return kvl_fail(b->err, KVL_EINVAL, "--%s: \"%s\": want a number from 1 to %d", name, text,
                        1 << 24);
    a->prefill_host = (int32_t)n;
    return KVL_OK;
}

/* --name value, --name=value, and three that need no value. */
static int goals_parse(struct goals_command *a, char **word, bool *forecast)
{
    struct bench *b = &a->g.bench;
    char name[32];
    while (*word) {
        const char *at = *word++;
        if (strncmp(at, "--", 2) != 0)
            return kvl_fail(b->err, KVL_EINVAL, "%s: want an option, see --help", at);
        at += 2;
        size_t len = strcspn(at, "=");
        snprintf(name, sizeof name, "%.*s", (int)KVL_MIN(len, sizeof name - 1), at);
        const char *value = at[len] ? at + len + 1 : NULL;
        if (strcmp(name, "report") == 0) {
            a->wants_report = true;
            a->report = value;
        } else if (strcmp(name, "quick") == 0) {
            b->config.quick = true;
        } else if (strcmp(name, "forecast") == 0) {
            *forecast = true;
        } else {
            if (!value && !(value = *word++))
                return kvl_fail(b->err, KVL_EINVAL, "--%s: no value given", name);
            KVL_TRY(goals_set(a, name, value));
        }
    }
    return KVL_OK;
}

/* ---- a run takes minutes: what cannot work is said before it ----------------------------------------------------- */

static int goals_peer_there(const char *path, struct kvl_err *err)
{
    struct stat st;
    bool runs = access(path, X_OK) == 0;
    if (runs && stat(path, &st) == 0 && S_ISREG(st.st_mode)) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "--peer: %s: cannot run: %s, want a llama-bench", path,
                    runs ? "no regular file" : strerror(errno));
}

/* A report that is there stays until the new one is whole. */
static int goals_report_there(const char *path, struct kvl_err *err)
{
    FILE *f = fopen(path, "a");
    if (f && fclose(f) == 0) return KVL_OK;
    return kvl_fail(err, KVL_EIO, "--report: %s: cannot create: %s", path, strerror(errno));
}

static int goals_check(struct goals_command *a)
{
    struct bench *b = &a->g.bench;
    struct kvl_model *million = NULL;
    if (a->prefill_host > 0 && (!b->config.device || b->config.parts))
        return kvl_fail(b->err, KVL_EINVAL,
                        "--prefill-host is a part of its own of a GPU, want --device cuda");
    if (b->config.device && (a->peer || a->million))
        return kvl_fail(b->err, KVL_EINVAL,
                        "--peer and --million are of the CPU, beside --device want none of them");
    if (a->peer) KVL_TRY(goals_peer_there(a->peer, b->err));
    if (a->million) KVL_TRY(kvl_model_open(a->million, &million, b->err));
    kvl_model_close(million);
    if (a->peer_json) KVL_TRY(bench_peers_read(&a->g, a->peer_json));
    return a->report ? goals_report_there(a->report, b->err) : KVL_OK;
}

/* ---- the whole --------------------------------------------------------------------------------------------------- */

/* The table of earlier runs. */
static int goals_read(struct goals_command *a)
{
    struct bench *b = &a->g.bench;
    const struct bench_config *c = &b->config;
    if (c->parts || a->peer || a->million || c->quick || c->model || c->shape_name || c->threads.n)
        return kvl_fail(b->err, KVL_EINVAL,
                        "--from reads what was run, beside it want --report and --json alone");
    if (a->report) KVL_TRY(goals_report_there(a->report, b->err));
    KVL_TRY(bench_json_open(b));
    for (int32_t i = 0; i < a->n_from; i++) KVL_TRY(bench_from(&a->g, a->from[i]));
    if (c->device && !b->origin.device.name[0]) b->origin.device.name[0] = '-'; /* no lines */
    if (b->origin.device.name[0]) b->config.threads.n = 1;                      /* one column */
    return KVL_OK;
}

static int goals_measure(struct goals_command *a)
{
    struct bench *b = &a->g.bench;
    KVL_TRY(goals_check(a));
    b->config.keep_model = a->peer != NULL;
    KVL_TRY(bench_open(b));
    if (a->prefill_host > 0) return bench_gpu_host(b, a->prefill_host);
    KVL_TRY(bench_run(b));
    if (a->million) KVL_TRY(bench_million(b, a->million));
    if (a->peer) return bench_peer(b, a->peer);
    if (b->config.device) return KVL_OK;
    return bench_skip(b, "comparison with llama.cpp: no llama-bench given (--peer PATH)");
}

static int goals_run(struct goals_command *a, char **words)
{
    struct bench *b = &a->g.bench;
    bool forecast = false;
    KVL_TRY(kvl_registry_create(&b->registry, b->err));
    KVL_TRY(goals_parse(a, words, &forecast));
    if (forecast) {
        bench_forecast_table(stdout);
        return KVL_OK;
    }
    bench_origin(b);
    KVL_TRY(a->n_from > 0 ? goals_read(a) : goals_measure(a));
    return a->wants_report ? bench_report(b, a->report) : KVL_OK;
}

int main(int argc, char **argv)
{
    struct kvl_err err = { 0 };
    struct goals_command *a = kvl_alloc(1, sizeof *a);
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(goals_help, stdout);
        return 0;
    }
    if (!a) return 4;
    a->g.bench.err = &err;
    a->g.bench.config.kv_type = KVL_KV_F16;
    int rc = goals_run(a, argv + 1);
    bench_close(&a->g.bench);
    json_decref(a->g.from);
    json_decref(a->g.peers);
    kvl_free(a);
    if (rc != KVL_OK) fprintf(stderr, "bench_goals: %s\n", err.msg[0] ? err.msg : "failed");
    return rc == KVL_OK ? 0 : kvl_status_exit(rc);
}
