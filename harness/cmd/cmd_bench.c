/* kvlab bench: how near this build comes to what the machine can do. */
#include "args.h"
#include "bench.h"
#include "cmds.h"

#include <string.h>

struct bench_command {
    struct kvl_args base;
    struct bench bench;
    const char *make, *out;
};

enum { BENCH_KEY_MAKE = 0x300, BENCH_KEY_QUICK, BENCH_KEY_FIRST };

/* From the third on they are options of a run, set by their names (bench_set). */
static const struct argp_option bench_options[] = {
    { "make-model", BENCH_KEY_MAKE, "SHAPE", 0,
      "write a model with random weights to OUT.gguf and end", 0 },
    { "quick", BENCH_KEY_QUICK, NULL, 0, "small and short: shows that all runs", 0 },
    { "only", BENCH_KEY_FIRST, "PARTS", 0,
      "of machine,ops,token,policy,sweep,prefill (default: all of them)", 0 },
    { "shape", BENCH_KEY_FIRST + 1, "SHAPE", 0,
      "generated model: tiny, small64, small128 (default; --quick: tiny) or llama8b (on a GPU)",
      0 },
    { "model", 'm', "FILE", 0, "a GGUF file instead of a generated model", 0 },
    { "weights", BENCH_KEY_FIRST + 2, "TYPE", 0,
      "of generated models: f16 (default), bf16 (on a GPU), q8_0 or q4_0", 0 },
    { "threads", BENCH_KEY_FIRST + 3, "LIST", 0, "threads (default: 1 and all cores)", 0 },
    { "rounds", BENCH_KEY_FIRST + 4, "N", 0, "rounds of each measurement (default 5; --quick: 3)",
      0 },
    { "depths", BENCH_KEY_FIRST + 5, "LIST", 0,
      "tokens in the cache (default 0,4096,16384,32768,65536,131072; --quick: 0,1024,4096)", 0 },
    { "kv-type", BENCH_KEY_FIRST + 6, "TYPE", 0,
      "element type of the KV store: f16 (default), bf16 (on a GPU) or f32", 0 },
    { "decode-act", BENCH_KEY_FIRST + 14, "TYPE", 0, "activations of decoding: q16 (default) or q8",
      0 },
    { "policies", BENCH_KEY_FIRST + 7, "LIST", 0,
      "NAME,NAME or NAME:options;NAME:options (default: all that are published)", 0 },
    { "budget", BENCH_KEY_FIRST + 8, "N", 0, "tokens of a lane (default 2048; --quick: 256)", 0 },
    { "device", BENCH_KEY_FIRST + 9, "DEVICE", 0,
      "cpu, or cuda or hybrid: tokens at depths and what they stand on, on a GPU", 0 },
    { "text", BENCH_KEY_FIRST + 12, "FILE", 0,
      "fill the cache by reading this text (default: with random numbers)", 0 },
    { "report", BENCH_KEY_FIRST + 13, "FILE", 0, "of methods: the table as Markdown too", 0 },
    { "json", BENCH_KEY_FIRST + 10, "FILE", 0, "results as JSON lines too", 0 },
    { "plugin", BENCH_KEY_FIRST + 11, "X.so", 0, "load a policy from a shared object (repeatable)",
      0 },
    { 0 }
};

static int bench_word(struct bench_command *a, const char *arg)
{
    if (strcmp(arg, "methods") == 0 && !a->make) {
        a->bench.config.parts |= BENCH_METHODS;
        return KVL_OK;
    }
    if (a->out) return kvl_fail(a->base.err, KVL_EINVAL, "%s: one file is enough", arg);
    a->out = arg;
    return KVL_OK;
}

static error_t bench_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_command *a = state->input;
    int rc = KVL_OK;
    if (key == BENCH_KEY_MAKE) a->make = arg;
    if (key == BENCH_KEY_QUICK) a->bench.config.quick = true;
    if (key == BENCH_KEY_MAKE || key == BENCH_KEY_QUICK) return 0;
    const struct argp_option *o = bench_options;
    while (o->name && o->key != key) o++;
    if (!o->name && key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    rc = o->name ? bench_set(&a->bench, o->name, arg) : bench_word(a, arg);
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
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

static int bench_make(const struct bench_command *a, struct kvl_err *err)
{
    const struct bench_shape *shape;
    enum kvl_wtype type;
    KVL_TRY(bench_shape_find(a->make, &shape, err));
    KVL_TRY(bench_weights_parse(a->bench.config.weight_type, &type, err));
    if (!a->out) return kvl_fail(err, KVL_EINVAL, "--make-model: no file given, want OUT.gguf");
    return bench_model_write(shape, type, a->out, err);
}

static int bench_all(struct bench_command *a, struct kvl_err *err)
{
    if (a->make) return bench_make(a, err);
    if (a->out)
        return kvl_fail(err, KVL_EINVAL, "%s: a file is for --make-model, want --model FILE",
                        a->out);
    KVL_TRY(bench_open(&a->bench));
    return bench_run(&a->bench);
}

int cmd_bench(int argc, char **argv, struct kvl_err *err)
{
    struct bench_command *a = kvl_alloc(1, sizeof *a);
    bool done = true;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    a->bench.err = err;
    a->bench.config.kv_type = KVL_KV_F16;
    int rc = kvl_registry_create(&a->bench.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&bench_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done) rc = bench_all(a, err);
    bench_close(&a->bench);
    kvl_free(a);
    return rc;
}
