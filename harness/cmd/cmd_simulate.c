/* kvlab simulate: what methods, or a sweep, would take on devices that are known by their profiles. */
#include "cmds.h"
#include "simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIM_KEY_FIRST = 0x300 };

static const struct argp_option sim_options[] = {
    { "model", 'm', "FILE", 0, "a model (default: that of the sweep)", 0 },
    { "shape", SIM_KEY_FIRST, "SHAPE", 0,
      "in place of a model: llama8b, llama70b, llama405b or tiny; the engine runs its layers with "
      "one kv head",
      0 },
    { "weights", SIM_KEY_FIRST + 1, "TYPE", 0, "of a shape: f16 (default), bf16, q8_0 or q4_0", 0 },
    { "profiles", SIM_KEY_FIRST + 2, "LIST", 0,
      "devices: here (this machine, measured), names of harness/profiles, paths of such files "
      "(default here,h100)",
      0 },
    { "lengths", SIM_KEY_FIRST + 3, "LIST", 0, "tokens (default 128K,1M,10M)", 0 },
    { "budget", SIM_KEY_FIRST + 4, "N", 0, "tokens of a lane (default 2048)", 0 },
    { "policies", SIM_KEY_FIRST + 5, "LIST", 0,
      "NAME,NAME or NAME:options;NAME:options (default: all)", 0 },
    { "tensor", SIM_KEY_FIRST + 6, "N", 0, "devices that heads are dealt out to", 0 },
    { "pipeline", SIM_KEY_FIRST + 7, "N", 0, "stages that layers are dealt out to", 0 },
    { "context", SIM_KEY_FIRST + 8, "N", 0,
      "devices that tokens are dealt out to, in layers which a method leaves dense", 0 },
    { "depths", SIM_KEY_FIRST + 9, "LIST", 0,
      "where methods are measured, at most three (default: up to 8192 or 4 budgets)", 0 },
    { "text", SIM_KEY_FIRST + 10, "FILE", 0,
      "what the model reads there (default: random keys and values)", 0 },
    { "kv-type", SIM_KEY_FIRST + 11, "TYPE", 0, "of keys and values (default f16)", 0 },
    { "threads", SIM_KEY_FIRST + 12, "N", 0, "of this machine (default: all cores)", 0 },
    { "rounds", SIM_KEY_FIRST + 13, "N", 0, "of each measurement (default 3)", 0 },
    { "plugin", SIM_KEY_FIRST + 14, "X.so", 0, "load a policy from a shared object (repeatable)",
      0 },
    { "json", SIM_KEY_FIRST + 15, "FILE", 0, "every row as a line of JSON too", 0 },
    { 0 }
};

/* "1M,10M", ascending or not. */
static int sim_lengths(struct kvl_simulate *a, const char *text)
{
    for (a->n_lengths = 0; *text;) {
        char word[32];
        int64_t n;
        size_t len = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), text);
        if (kvl_yaml_count(word, &n) != KVL_OK || n < 16 || n > (1 << 30))
            return kvl_fail(a->base.err, KVL_EINVAL,
                            "--lengths: \"%s\": want numbers of tokens from 16 on, as 4096 or 1M",
                            word);
        if (a->n_lengths == SIM_LENGTHS)
            return kvl_fail(a->base.err, KVL_EINVAL, "--lengths: more than %d", SIM_LENGTHS);
        a->length[a->n_lengths++] = (int32_t)n;
        text += len + (text[len] == ',');
    }
    if (a->n_lengths) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "--lengths: none given, want a number");
}

static int sim_parts(struct kvl_simulate *a, const char *flag, const char *text, int32_t *out)
{
    int64_t n;
    if (kvl_parse_i64(text, &n) != KVL_OK || n < 1 || n > 1024)
        return kvl_fail(a->base.err, KVL_EINVAL, "--%s: \"%s\": want a number from 1 to 1024", flag,
                        text);
    *out = (int32_t)n;
    return KVL_OK;
}

static int sim_set(struct kvl_simulate *a, const char *name, const char *arg)
{
    if (strcmp(name, "shape") == 0)
        a->shape_name = arg;
    else if (strcmp(name, "profiles") == 0)
        a->profiles = arg;
    else if (strcmp(name, "lengths") == 0)
        return sim_lengths(a, arg);
    else if (strcmp(name, "tensor") == 0)
        return sim_parts(a, name, arg, &a->split.tensor);
    else if (strcmp(name, "pipeline") == 0)
        return sim_parts(a, name, arg, &a->split.pipeline);
    else if (strcmp(name, "context") == 0)
        return sim_parts(a, name, arg, &a->split.context);
    else
        return bench_set(&a->bench, name, arg);
    return KVL_OK;
}

static error_t sim_parse(int key, char *arg, struct argp_state *state)
{
    struct kvl_simulate *a = state->input;
    int rc = KVL_OK;
    const struct argp_option *o = sim_options;
    while (o->name && o->key != key) o++;
    if (o->name)
        rc = sim_set(a, o->name, arg);
    else if (key != ARGP_KEY_ARG)
        return ARGP_ERR_UNKNOWN;
    else if (a->sweep)
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": one sweep at a time", arg);
    else
        a->sweep = arg;
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp sim_argp = {
    .options = sim_options,
    .parser = sim_parse,
    .args_doc = "[SWEEP.yaml]",
    .doc =
        "Predicts time, memory and bytes of a decoded token under every method, or of a whole "
        "sweep.  The engine runs the methods here at a few thousand tokens; bytes are what it "
        "counts, taken on along their growth to any length, times are those bytes at a device's "
        "bandwidth and what was timed here at the ratio of float operations.  On `here` and up to "
        "the deepest of them that is measured; everything else is a prediction.  One token at a "
        "time, no batch.",
};

/* ---- devices -------------------------------------------------------------------------------------- */

/* Of all profiles, before anything is measured; `here` is filled later. */
static int sim_profiles(struct kvl_simulate *a)
{
    const char *text = a->profiles ? a->profiles : "here,h100";
    while (*text) {
        char word[512];
        size_t len = strcspn(text, ",");
        if (a->n_profiles == SIM_PROFILES)
            return kvl_fail(a->base.err, KVL_EINVAL, "--profiles: more than %d", SIM_PROFILES);
        snprintf(word, sizeof word, "%.*s", (int)KVL_MIN(len, sizeof word - 1), text);
        struct kvl_profile *p = &a->profile[a->n_profiles];
        if (strcmp(word, "here") == 0)
            snprintf(p->name, sizeof p->name, "here");
        else
            KVL_TRY(kvl_profile_read(word, p, a->base.err));
        a->n_profiles++;
        text += len + (text[len] == ',');
    }
    if (a->n_profiles) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "--profiles: none given, want a name");
}

static int sim_here(struct kvl_simulate *a)
{
    KVL_TRY(kvl_here_measure(&a->bench, &a->sim));
    for (size_t i = 0; i < a->n_profiles; i++)
        if (strcmp(a->profile[i].name, "here") == 0) a->profile[i] = a->sim.here;
    return KVL_OK;
}

/* ---- the model ------------------------------------------------------------------------------------ */

/* Of all profiles; this machine has no link to another. */
static int sim_check(struct kvl_simulate *a)
{
    for (size_t i = 0; i < a->n_profiles; i++)
        KVL_TRY(kvl_split_check(&a->split, &a->sim.shape, &a->profile[i], a->base.err));
    return KVL_OK;
}

static int sim_open(struct kvl_simulate *a)
{
    struct bench_config *c = &a->bench.config;
    if (a->shape_name && c->model)
        return kvl_fail(a->base.err, KVL_EINVAL,
                        "--shape and --model exclude each other, want one");
    if (a->shape_name) {
        enum kvl_wtype type;
        KVL_TRY(bench_weights_parse(c->weight_type, &type, a->base.err));
        KVL_TRY(kvl_sim_shape_find(a->shape_name, type, &a->sim.shape, &a->small, a->base.err));
        c->shape = &a->small;
        c->shape_name = a->small.name;
        c->own_tok = SIM_OWN_TOK;
        KVL_TRY(sim_check(a));
    } else if (c->weight_type) {
        return kvl_fail(a->base.err, KVL_EINVAL, "--weights: of a shape alone, want --shape");
    }
    if (!c->model && !a->shape_name && !a->sweep)
        return kvl_fail(a->base.err, KVL_EINVAL,
                        "nothing to simulate, want --model FILE, --shape SHAPE or SWEEP.yaml");
    c->parts = BENCH_METHODS;
    if (c->rounds == 0) c->rounds = SIM_ROUNDS;
    if (c->budget_tok == 0) c->budget_tok = SIM_BUDGET;
    KVL_TRY(bench_open(&a->bench));
    a->sim.model = !a->shape_name;
    KVL_TRY(kvl_sim_shape_model(&a->bench, &a->sim.shape, a->base.err));
    return sim_check(a);
}

/* ---- methods -------------------------------------------------------------------------------------- */

static int sim_methods(struct kvl_simulate *a)
{
    static const int32_t usual[] = { 128 << 10, 1 << 20, 10 << 20 };
    if (a->n_lengths == 0)
        for (; a->n_lengths < 3; a->n_lengths++) a->length[a->n_lengths] = usual[a->n_lengths];
    int32_t least = a->length[0], most = a->length[0];
    for (size_t i = 1; i < a->n_lengths; i++) {
        least = KVL_MIN(least, a->length[i]);
        most = KVL_MAX(most, a->length[i]);
    }
    struct bench_config *c = &a->bench.config;
    if (c->depths.n > KVL_COSTS_DEPTHS)
        return kvl_fail(a->base.err, KVL_EINVAL, "--depths: %d, want at most %d", c->depths.n,
                        KVL_COSTS_DEPTHS);
    bool given = c->depths.n > 0;
    KVL_TRY(sim_open(a));
    if (!given) c->depths = kvl_simulate_depths(c->budget_tok, least, most);
    KVL_TRY(kvl_costs_measure(&a->bench, &a->costs));
    KVL_TRY(sim_here(a));
    return kvl_simulate_methods(a);
}

int cmd_simulate(int argc, char **argv, struct kvl_err *err)
{
    struct kvl_simulate *a = kvl_alloc(1, sizeof *a);
    bool done = true;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    a->bench.err = err;
    a->bench.config.kv_type = KVL_KV_F16;
    a->split = (struct kvl_split){ 1, 1, 1 };
    int rc = kvl_registry_create(&a->bench.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&sim_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done) rc = sim_profiles(a);
    if (rc == KVL_OK && !done)
        rc = a->sweep ? kvl_simulate_sweep(a, sim_open, sim_here) : sim_methods(a);
    kvl_costs_free(&a->costs);
    bench_close(&a->bench);
    kvl_free(a);
    return rc;
}
