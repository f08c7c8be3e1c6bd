/* kvlab logits: logits of a list of tokens, for comparison with other implementations. */
#include "args.h"
#include "cmds.h"
#include "outfile.h"
#include "stop.h"

#include <stdio.h>
#include <string.h>

enum { LOGITS_KEY_IDS = 0x100, LOGITS_KEY_OUT };

struct logits_args {
    struct kvl_args base;
    struct kvl_model_args model;
    const char *ids, *out;
};

static const struct argp_option logits_options[] = {
    { "ids", LOGITS_KEY_IDS, "1,2,3", 0, "token ids", 0 },
    { "out", LOGITS_KEY_OUT, "X.npy", 0, "file to write: float32 [tokens][vocabulary]", 0 },
    { 0 }
};

static error_t logits_parse(int key, char *arg, struct argp_state *state)
{
    struct logits_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case LOGITS_KEY_IDS: a->ids = arg; return 0;
    case LOGITS_KEY_OUT: a->out = arg; return 0;
    case ARGP_KEY_ARG:
        return kvl_args_fail(
            &a->base, kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want --ids, no other words", arg));
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child logits_children[] = { { &kvl_full_argp, 0, NULL, 0 }, { 0 } };
static const struct argp logits_argp = {
    .options = logits_options,
    .parser = logits_parse,
    .doc = "Logits after every token, by a dense prefill.",
    .children = logits_children,
};

/* NumPy's format 1.0: magic, length of the header, a Python dict padded to 64 bytes, the data. */
static int logits_write(const char *path, const float *logits, int32_t n, int32_t n_vocab,
                        struct kvl_err *err)
{
    char head[128], dict[118];
    int len = snprintf(dict, sizeof dict,
                       "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", n, n_vocab);
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10); /* 118 bytes of header follow */
    memcpy(head + 10, dict, (size_t)len);
    head[sizeof head - 1] = '\n';
    struct kvl_outfile o;
    KVL_TRY(kvl_outfile_open(&o, path, err));
    fwrite(head, 1, sizeof head, o.f);
    fwrite(logits, sizeof *logits, (size_t)n * (size_t)n_vocab, o.f);
    return kvl_outfile_close(&o, KVL_OK, err);
}

static int logits_run(const struct logits_args *a, struct kvl_engine *engine, const int32_t *id,
                      int32_t n, struct kvl_err *err)
{
    struct kvl_session *session = NULL;
    int32_t n_vocab = kvl_model_shape(kvl_engine_model(engine))->n_vocab;
    float *logits = kvl_alloc((size_t)n * (size_t)n_vocab, sizeof *logits);
    int rc =
        logits ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for logits of %d tokens", n);
    if (rc == KVL_OK) rc = kvl_session_create(engine, &session, err);
    if (rc == KVL_OK) rc = kvl_session_prefill(session, id, n, logits, false, err);
    if (rc == KVL_OK) rc = logits_write(a->out, logits, n, n_vocab, err);
    kvl_session_destroy(session);
    kvl_free(logits);
    return rc;
}

static int logits_model(const struct logits_args *a, const struct kvl_device *device,
                        struct kvl_model *model, struct kvl_err *err)
{
    struct kvl_engine_desc desc = { .model = model, .device = device };
    struct kvl_model_args how = a->model;
    struct kvl_engine *engine;
    int32_t *id, n;
    if (!how.kv_type) how.kv_type = "f32";
    KVL_TRY(kvl_model_args_engine(&how, &desc, err));
    KVL_TRY(kvl_ids_parse(a->ids, kvl_model_shape(model)->n_vocab, &id, &n, err));
    int rc = n > 0 ? KVL_OK : kvl_fail(err, KVL_EINVAL, "--ids: no ids, want at least one");
    desc.max_tok = n;
    if (rc == KVL_OK) rc = kvl_engine_create(&desc, &engine, err);
    if (rc == KVL_OK) {
        kvl_engine_set_stop(engine, kvl_stop_flag());
        kvl_stop_install();
        rc = logits_run(a, engine, id, n, err);
        kvl_engine_destroy(engine);
    }
    kvl_free(id);
    return rc;
}

int cmd_logits(int argc, char **argv, struct kvl_err *err)
{
    struct logits_args a = { 0 };
    const struct kvl_device *device;
    struct kvl_model *model;
    bool done;
    a.model.args = &a.base;
    KVL_TRY(kvl_args_parse(&logits_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (!a.ids || !a.out) return kvl_fail(err, KVL_EINVAL, "want --ids 1,2,3 and --out X.npy");
    KVL_TRY(kvl_model_args_open(&a.model, &device, &model, err));
    int rc = logits_model(&a, device, model, err);
    kvl_model_close(model);
    return rc;
}
