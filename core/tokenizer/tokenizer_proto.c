/* tokenizer.model: SentencePiece's protobuf message, of BPE type.
 *
 * Read is what decides ids: pieces (text, score, type), the model type, the special ids and what the
 * normalizer does.  A Unigram model needs another algorithm, and a normalizer with a character map
 * other texts: both are refused. */
#include "tokenizer_hf.h"

#include <stdlib.h>
#include <string.h>

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* A message, or a field of one. */
struct proto {
    const char *at, *end;
};

struct field {
    uint32_t number;
    enum wire wire;
    uint64_t value;    /* a varint */
    struct kvl_str in; /* the bytes of the other kinds */
};

static bool varint(struct proto *p, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        uint8_t byte = (uint8_t)*p->at++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* 1: a field, 0: the end, -1: damaged. */
static int next_field(struct proto *p, struct field *f)
{
    uint64_t tag, len = 0;
    if (p->at == p->end) return 0;
    if (!varint(p, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX >> 3) return -1;
    *f = (struct field){ .number = (uint32_t)(tag >> 3), .wire = (enum wire)(tag & 7) };
    switch (f->wire) {
    case WIRE_VARINT: return varint(p, &f->value) ? 1 : -1;
    case WIRE_64: len = 8; break;
    case WIRE_32: len = 4; break;
    case WIRE_BYTES:
        if (!varint(p, &len)) return -1;
        break;
    default: return -1;
    }
    if (len > (uint64_t)(p->end - p->at)) return -1;
    f->in = (struct kvl_str){ p->at, (size_t)len };
    p->at += len;
    return 1;
}

static struct proto message(struct kvl_str s)
{
    return (struct proto){ s.s, s.s + s.len };
}

static int damaged(const struct tok_hf *h)
{
    /* Llama 3 and GLM-4 have base64 texts and ranks under the same name. */
    size_t n = strspn(h->proto.data ? h->proto.data : "",
                      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
    bool tiktoken = n > 0 && h->proto.data[n] == ' ';
    return kvl_fail(h->err, KVL_EMODEL, "not a SentencePiece model: %s",
                    tiktoken ? "a list of tiktoken's; want tokenizer.json beside it"
                             : "no protobuf message");
}

/* What of the file decides ids. */
struct spm_model {
    struct kvl_str *text; /* [n] */
    float *score;
    uint8_t *type;
    int32_t n, n_pieces; /* with and without added tokens */
    uint64_t model_type;
    int64_t unk, bos, eos;
    bool suffix, prefix, squeeze, escape;
    size_t map_bytes;
};

/* ---- the message --------------------------------------------------------------------------- */

static int read_piece(const struct tok_hf *h, struct kvl_str in, struct spm_model *m, int32_t i)
{
    struct proto p = message(in);
    struct field f;
    int more;
    m->type[i] = TOK_NORMAL;
    while ((more = next_field(&p, &f)) > 0) {
        if (f.number == 1 && f.wire == WIRE_BYTES) m->text[i] = f.in;
        if (f.number == 2 && f.wire == WIRE_32) memcpy(&m->score[i], f.in.s, sizeof(float));
        if (f.number != 3 || f.wire != WIRE_VARINT) continue;
        if (f.value < TOK_NORMAL || f.value > TOK_BYTE)
            return kvl_fail(h->err, KVL_EMODEL, "piece %d has type %llu, want 1 to 6", i,
                            (unsigned long long)f.value);
        m->type[i] = (uint8_t)f.value;
    }
    return more < 0 ? damaged(h) : KVL_OK;
}

static int read_trainer(const struct tok_hf *h, struct kvl_str in, struct spm_model *m)
{
    struct proto p = message(in);
    struct field f;
    int more;
    while ((more = next_field(&p, &f)) > 0) {
        if (f.wire != WIRE_VARINT) continue;
        switch (f.number) {
        case 3: m->model_type = f.value; break;
        case 24: m->suffix = f.value; break;
        case 40: m->unk = (int64_t)f.value; break;
        case 41: m->bos = (int64_t)f.value; break;
        case 42: m->eos = (int64_t)f.value; break;
        default: break;
        }
    }
    return more < 0 ? damaged(h) : KVL_OK;
}

static int read_normalizer(const struct tok_hf *h, struct kvl_str in, struct spm_model *m)
{
    struct proto p = message(in);
    struct field f;
    int more;
    while ((more = next_field(&p, &f)) > 0) {
        if (f.number == 2 && f.wire == WIRE_BYTES) m->map_bytes = f.in.len;
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) m->prefix = f.value;
        if (f.number == 4) m->squeeze = f.value;
        if (f.number == 5) m->escape = f.value;
    }
    return more < 0 ? damaged(h) : KVL_OK;
}

static int read_model(const struct tok_hf *h, const struct kvl_buf *file, struct spm_model *m)
{
    struct proto p = { file->data, file->data + file->len };
    struct field f;
    int more, rc = KVL_OK;
    int32_t i = 0;
    while (rc == KVL_OK && (more = next_field(&p, &f)) != 0) {
        if (more < 0) return damaged(h);
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1) rc = read_piece(h, f.in, m, i++);
        if (f.number == 2) rc = read_trainer(h, f.in, m);
        if (f.number == 3) rc = read_normalizer(h, f.in, m);
    }
    return rc;
}

static int count_pieces(const struct tok_hf *h, const struct kvl_buf *file, int32_t *n)
{
    struct proto p = { file->data, file->data + file->len };
    struct field f;
    int more;
    *n = 0;
    while ((more = next_field(&p, &f)) > 0 && *n < TOK_MAX_TOKENS)
        *n += f.number == 1 && f.wire == WIRE_BYTES;
    if (more < 0 || *n == 0) return damaged(h);
    return KVL_OK;
}

static int check_model(const struct tok_hf *h, const struct spm_model *m)
{
    enum { BPE = 2 };
    if (m->model_type != BPE)
        return kvl_fail(h->err, KVL_EMODEL, "model_type is %llu%s, want 2 (BPE)",
                        (unsigned long long)m->model_type, m->model_type == 1 ? " (Unigram)" : "");
    if (m->map_bytes > 0)
        return kvl_fail(h->err, KVL_EMODEL,
                        "its normalizer maps characters (a map of %zu bytes), want none",
                        m->map_bytes);
    if (m->squeeze || m->suffix || !m->escape)
        return kvl_fail(h->err, KVL_EMODEL, "its normalizer %s, want spaces kept as U+2581",
                        m->squeeze  ? "removes extra spaces"
                        : m->suffix ? "puts spaces behind words"
                                    : "does not escape spaces");
    return KVL_OK;
}

/* ---- added tokens -------------------------------------------------------------------------- */

static int add_token(struct tok_added *a, int64_t id, struct kvl_str text, struct spm_model *m,
                     const struct tok_hf *h)
{
    char shown[TOK_SHOWN + 4];
    if (id < 0 || id >= TOK_MAX_TOKENS)
        return kvl_fail(h->err, KVL_EMODEL, "added token \"%s\" has id %lld, want 0 to %d",
                        kvl_tok_show(text, shown), (long long)id, TOK_MAX_TOKENS - 1);
    *a = (struct tok_added){ (int32_t)id, text, true, TOK_ADDED };
    if (id < h->rows) m->n = KVL_MAX(m->n, (int32_t)id + 1);
    return KVL_OK;
}

/* {text: id} of added_tokens.json, then {"id": {content, ...}} of tokenizer_config.json. */
static int read_added(struct tok_hf *h, struct spm_model *m, struct tok_added *a, size_t *n)
{
    const char *key;
    json_t *v;
    json_object_foreach(h->added, key, v)
    {
        KVL_TRY(add_token(&a[*n], json_is_integer(v) ? json_integer_value(v) : -1,
                          (struct kvl_str){ key, strlen(key) }, m, h));
        *n += a[*n].id < h->rows;
    }
    json_object_foreach(json_object_get(h->config, "added_tokens_decoder"), key, v)
    {
        struct tok_added token = { 0 };
        KVL_TRY(kvl_tok_json_added(h, v, "a value of added_tokens_decoder", &token));
        KVL_TRY(add_token(&a[*n], strtoll(key, NULL, 10), token.text, m, h));
        a[*n].special = token.special;
        a[*n].flags = token.flags;
        *n += a[*n].id < h->rows;
    }
    return KVL_OK;
}

/* ---- the vocabulary ------------------------------------------------------------------------ */

/* User-defined pieces are searched in the text before its spaces become marks (kvl_free). */
static char *unmark_user(struct spm_model *m)
{
    size_t bytes = 1, at = 0;
    for (int32_t i = 0; i < m->n_pieces; i++) bytes += m->type[i] == TOK_USER ? m->text[i].len : 0;
    char *out = kvl_alloc(bytes, 1);
    for (int32_t i = 0; out && i < m->n_pieces; i++) {
        struct kvl_str s = m->text[i];
        size_t begin = at;
        if (m->type[i] != TOK_USER) continue;
        for (size_t k = 0; k < s.len;) {
            bool mark = s.len - k >= 3 && memcmp(s.s + k, "\xe2\x96\x81", 3) == 0;
            out[at++] = mark ? ' ' : s.s[k];
            k += mark ? 3 : 1;
        }
        m->text[i] = (struct kvl_str){ out + begin, at - begin };
    }
    return out;
}

static bool is_id(int64_t id, const struct spm_model *m)
{
    return id >= 0 && id < m->n_pieces;
}

static int set_vocab(struct tok_hf *h, struct spm_model *m, const struct tok_added *a, size_t n)
{
    struct kvl_tokenizer *t = h->t;
    KVL_TRY(kvl_tok_hf_texts(h, m->text, m->type, m->n, a, n));
    for (int32_t i = 0; i < m->n_pieces; i++)
        t->flags[i] |= m->type[i] == TOK_CONTROL || m->type[i] == TOK_UNKNOWN ? TOK_ADDED
                       : m->type[i] == TOK_USER ? TOK_ADDED | TOK_LATER
                                                : 0;
    const json_t *space = json_object_get(h->config, "add_prefix_space");
    t->kind = "llama";
    t->add_bos = true;
    t->add_space = json_is_boolean(space) ? json_is_true(space) : m->prefix;
    if (is_id(m->unk, m)) t->unk = (int32_t)m->unk;
    if (is_id(m->bos, m)) t->bos = (int32_t)m->bos;
    if (is_id(m->eos, m)) t->eos = (int32_t)m->eos;
    return kvl_tok_load_bytes(t, h->err);
}

static int load(struct tok_hf *h, struct spm_model *m, struct tok_added *a)
{
    size_t n = 0;
    KVL_TRY(read_added(h, m, a, &n));
    KVL_TRY(kvl_tok_hf_count(h, m->n, (size_t)m->n_pieces + n));
    m->text = kvl_alloc((size_t)m->n, sizeof *m->text);
    m->score = kvl_alloc((size_t)m->n, sizeof *m->score);
    m->type = kvl_alloc((size_t)m->n, sizeof *m->type);
    if (!m->text || !m->score || !m->type)
        return kvl_fail(h->err, KVL_ENOMEM, "no memory for %d tokens", m->n);
    KVL_TRY(read_model(h, &h->proto, m));
    KVL_TRY(check_model(h, m));
    char *user = unmark_user(m);
    int rc = user ? set_vocab(h, m, a, n) : kvl_fail(h->err, KVL_ENOMEM, "no memory for tokens");
    kvl_free(user);
    return rc;
}

int kvl_tok_proto_load(struct tok_hf *h, float **score)
{
    /* SentencePiece's defaults for what a file leaves out. */
    struct spm_model m = {
        .model_type = 1, .bos = 1, .eos = 2, .prefix = true, .squeeze = true, .escape = true
    };
    size_t n_added = json_object_size(h->added) +
                     json_object_size(json_object_get(h->config, "added_tokens_decoder"));
    KVL_TRY(count_pieces(h, &h->proto, &m.n_pieces));
    m.n = m.n_pieces;
    struct tok_added *a = kvl_alloc(n_added + 1, sizeof *a);
    int rc = a ? load(h, &m, a)
               : kvl_fail(h->err, KVL_ENOMEM, "no memory for %zu added tokens", n_added);
    if (rc == KVL_OK) {
        *score = m.score;
        m.score = NULL;
    }
    kvl_free(a);
    kvl_free(m.text);
    kvl_free(m.score);
    kvl_free(m.type);
    return rc;
}
