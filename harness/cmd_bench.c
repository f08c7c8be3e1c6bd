/* kvlab bench: how near to what the machine can do. */
#include "args.h"
#include "bench_model.h"
#include "cmds.h"

struct bench_command {
    struct kvl_args base;
    const char *make, *weights, *out;
};

enum { BENCH_KEY_MAKE = 0x300, BENCH_KEY_WEIGHTS };

static const struct argp_option bench_options[] = {
    { "make-model", BENCH_KEY_MAKE, "SHAPE", 0,
      "write a model with random weights to OUT and end: tiny, small64 or small128", 0 },
    { "weights", BENCH_KEY_WEIGHTS, "TYPE", 0, "of generated models: f16 (default), q8_0 or q4_0",
      0 },
    { 0 }
};

static error_t bench_parse(int key, char *arg, struct argp_state *state)
{
    struct bench_command *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case BENCH_KEY_MAKE: a->make = arg; break;
    case BENCH_KEY_WEIGHTS: a->weights = arg; break;
    case ARGP_KEY_ARG:
        if (a->out) rc = kvl_fail(a->base.err, KVL_EINVAL, "%s: one file is enough", arg);
        a->out = arg;
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp bench_argp = {
    .options = bench_options,
    .parser = bench_parse,
    .args_doc = "[OUT.gguf]",
    .doc = "How near this build comes to what the machine can do.",
};

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
    struct bench_command a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&bench_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (a.make) return bench_make(&a, err);
    return kvl_fail(err, KVL_EINVAL, "nothing to do, want --make-model");
}
