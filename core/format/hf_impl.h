/* hf_impl.h - a folder of Hugging Face's form, told as a GGUF file would tell it.
 *
 *   hf.c          the folder: which files, one virtual GGUF file of them
 *   hf_config.c   config.json -> keys
 *   hf_rope.c     what config.json says of positions -> keys and tensors
 *   hf_tensors.c  names and layouts of tensors
 *   hf_oss.c      experts of gpt-oss
 *   hf_keys.c     what these tell with: values, keys, room for tensors
 *   hf_json.c     JSON; safetensors.c the weights' files
 *
 * What changes the result and is not known is refused by name.
 */
#ifndef KVL_HF_IMPL_H
#define KVL_HF_IMPL_H

#include "gguf_impl.h"
#include "hf_json.h"
#include "safetensors.h"

enum hf_flag {
    HF_TEXT_PART = 1, /* one of several: text_config, language_model */
    HF_GEMMA = 2,     /* norms are kept less one; caps, two bases, a scale of its own */
    HF_LAYERNORM = 4,
    HF_ASKS_WINDOW = 8, /* sliding_window counts only with use_sliding_window */
    HF_EXPERTS = 16,
    HF_OLD_GLM = 32, /* GLM's own form, before transformers had it */
    HF_OPT = 64,
    HF_OSS = 128,   /* experts may be MXFP4: hf_oss.c */
    HF_STILL = 256, /* layers may not turn: no_rope_layers, no_rope_layer_interval */
};

/* A class of models: what config.json's architectures[0] is. */
struct hf_class {
    const char *name, *arch; /* arch: general.architecture of the same model as GGUF */
    const char *act;         /* the only hidden_act */
    uint32_t flags;
    const char *defaults; /* JSON: what keys mean that are not there; or NULL */
};

/* Floats that become a tensor: rope_freqs, rope_factors_*. */
struct hf_floats {
    char name[GGUF_NAME_CAP];
    float *x; /* [n] */
    int32_t n;
};

struct hf {
    const char *dir;
    bool map;
    const struct hf_class *is;
    json_t *config;
    struct kvl_buf keys; /* as in a GGUF file */
    uint64_t n_keys;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_rot, n_ctx;
    double rope_base;
    int32_t n_experts;
    bool tied;
    struct hf_floats more[2];
    int32_t n_more;
    struct kvl_safetensors weights;
    struct kvl_gguf *g; /* owns what is converted */
    uint8_t *room;      /* the rest of a block for it */
    size_t room_left;
    struct kvl_err *err;
};

/* Row i of the classes; NULL behind the last. */
const struct hf_class *kvl_hf_class_at(size_t i);

/* Keys; `tail` with '.' in front follows the architecture's name.  KVL_ENOMEM without a message. */
int kvl_hf_u32(struct hf *h, const char *tail, uint32_t v);
int kvl_hf_f32(struct hf *h, const char *tail, double v);
int kvl_hf_bool(struct hf *h, const char *tail, bool v);
int kvl_hf_str(struct hf *h, const char *tail, const char *s, size_t len);
int kvl_hf_bools(struct hf *h, const char *tail, const uint8_t *v, size_t n);

/* Numbers of an object: NULL and absent are `def`; without one (NULL) they are refused. */
int kvl_hf_int(struct hf *h, const json_t *from, const char *key, const int32_t *def, int32_t *out);
int kvl_hf_num(struct hf *h, const json_t *from, const char *key, const double *def, double *out);
/* false where it is absent or null */
bool kvl_hf_has(const json_t *from, const char *key);
/* Refuses a value, or a key that is missing (NULL). */
int kvl_hf_refuse(struct hf *h, const char *key, const json_t *v, const char *want);

/* h->config, h->is -> keys and the numbers of h. */
int kvl_hf_config(struct hf *h);
int kvl_hf_rope(struct hf *h);
/* Whether a layer of a class with HF_STILL turns. */
int kvl_hf_turns(struct hf *h, int32_t layer, bool *out);
/* h->weights -> the table of tensors. */
int kvl_hf_tensors(struct hf *h, struct gguf_tensor **out, size_t *n);
/* Memory that lives as long as the file; NULL with a message. */
void *kvl_hf_room(struct hf *h, size_t bytes);
/* Part `part` of `parts` that lie in turn in a tensor of gpt-oss's experts. */
int kvl_hf_oss(struct hf *h, const struct st_tensor *t, int part, int parts,
               struct kvl_gguf_tensor *y);

#endif
