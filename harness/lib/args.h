/* args.h - command lines through argp, with errors of one line that name the nearest option.
 *
 * Long options are written in full; abbreviations are refused, so that a later option cannot change
 * what a script means.
 */
#ifndef KVL_ARGS_H
#define KVL_ARGS_H

#include "kvl/model.h"

#include <argp.h>

/* What every argp `input` begins with: where a parser leaves its message. */
struct kvl_args {
    struct kvl_err *err;
    int rc; /* first failure of a parser */
};

/* Stores a failure and returns what an argp parser has to return. */
int kvl_args_fail(struct kvl_args *a, int rc);

/* Parses into `input`, which begins with a struct kvl_args.  --help prints the help and sets *done:
 * the command returns KVL_OK.  KVL_EINVAL: unknown option (nearest named), missing or needless
 * value, or what a parser found. */
int kvl_args_parse(const struct argp *argp, int argc, char **argv, void *input, bool *done,
                   struct kvl_err *err);

/* ---- options of every command that runs a model ---------------------------------------------- */

struct kvl_registry;

/* GPUs of a device by their numbers: first .. first + n - 1 of those that are visible. */
struct kvl_gpus {
    int32_t first, n;
};

struct kvl_model_args {
    struct kvl_args *args;    /* of the command; set before parsing */
    const char *model;        /* NULL: not given */
    int32_t threads;          /* 0: not given */
    const char *kv_type;      /* NULL: not given */
    bool kv_types;            /* set before parsing: kv_type may be a comma list */
    const char *prefill_type; /* NULL: not given */
    const char *decode_act;   /* NULL: not given */
    const char *prefill_kv;   /* NULL: not given */
    const char *window;       /* NULL: not given */
    const char *device;       /* NULL: not given */
    struct kvl_gpus gpus;     /* with a device: which */
    const char *device_text;  /* as it was given */
    bool allow_overlong;
    struct kvl_registry *registry; /* plug-ins are loaded into it as they are met; NULL: none */
};
/* Child parsers; their input is a struct kvl_model_args.  The second is for commands in which no method runs: it has
 * no --plugin. */
extern const struct argp kvl_model_argp, kvl_full_argp;

/* "f32", "bf16", "q8_0" or "f16" (NULL = f16). */
int kvl_kv_type_parse(const char *text, enum kvl_kv_type *out, struct kvl_err *err);

/* "f32" (NULL), "bf16" or "blas". */
int kvl_prefill_type_parse(const char *text, enum kvl_prefill_type *out, struct kvl_err *err);
const char *kvl_prefill_type_name(enum kvl_prefill_type type);

/* "q16" (NULL) or "q8". */
int kvl_decode_act_parse(const char *text, enum kvl_decode_act *out, struct kvl_err *err);
const char *kvl_decode_act_name(enum kvl_decode_act act);

/* "device" (NULL) or "host": see kvl_engine_desc.prefill_kv_host. */
int kvl_prefill_kv_parse(const char *text, bool *host, struct kvl_err *err);
const char *kvl_prefill_kv_name(bool host);

/* "auto" (NULL) or "off": see kvl_model_desc.windows_off. */
int kvl_window_parse(const char *text, bool *off, struct kvl_err *err);

#define KVL_DEVICE_NAMES "cpu, cuda, hybrid or cpu-hybrid"
/* One of these (NULL: "cpu"): the name, which stays; "cuda:2" and "cuda:0..7" (hybrid likewise) say which GPUs, else it
 * is number 0. */
int kvl_device_parse(const char *text, const char **name, struct kvl_gpus *gpus,
                     struct kvl_err *err);
/* Some process must have the GPU. */
bool kvl_device_is_gpu(const char *name);
/* Whether the weights of a model fit into what is free on this machine now; on a GPU, the engine says what does not
 * fit there.  device NULL: cpu. */
int kvl_model_fits(const char *path, const char *device, struct kvl_err *err);

/* Opens the device and the model that were named; KVL_EINVAL when no model was. Sets the threads.
 * *device may be opened again: it is one and the same. */
int kvl_model_args_open(const struct kvl_model_args *a, const struct kvl_device **device,
                        struct kvl_model **out, struct kvl_err *err);

/* What these options say of an engine: its types, where a prefill leaves keys and values, overlong prompts. */
int kvl_model_args_engine(const struct kvl_model_args *a, struct kvl_engine_desc *desc,
                          struct kvl_err *err);

/* kvl_model_open_desc, and a line on standard error where tables beside the model are not used. */
int kvl_model_open_told(const char *path, bool windows_off, struct kvl_model **out,
                        struct kvl_err *err);

/* "1,2,3" (or spaces, new lines): ids, freed with kvl_free.  Every id is checked against n_vocab. */
int kvl_ids_parse(const char *text, int32_t n_vocab, int32_t **out, int32_t *n,
                  struct kvl_err *err);

/* The words of a command that are no options, at ARGP_KEY_ARGS. */
void kvl_args_words(const struct argp_state *state, char ***word, size_t *n);

#endif
