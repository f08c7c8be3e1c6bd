/* tokenizer.json: normalizer, pre_tokenizer, post_processor.
 *
 * Two shapes are read.  Byte-level: splits by patterns, then ByteLevel; NFC before, or nothing.
 * SentencePiece-like: spaces become U+2581, bytes stand for unknown characters, and the whole text is
 * one piece.  All else is refused with its path in the file: an approximation would give other ids. */
#include "tokenizer_hf.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 160 };
static const char mark[] = "\xe2\x96\x81";

/* What the steps say together. */
struct steps {
    struct tok_hf *h;
    bool nfc, prepend, marks, byte_level, metaspace;
};

static const json_t *type_of(const json_t *v)
{
    return json_object_get(v, "type");
}

static int refuse(const struct steps *s, const char *path, const char *key, const json_t *v,
                  const char *want)
{
    char full[PATH + 40];
    snprintf(full, sizeof full, "%s.%s", path, key);
    return kvl_hf_json_refuse(s->h->err, full, json_object_get(v, key), want);
}

/* A list of steps, or one. */
typedef int (*step_fn)(struct steps *s, const json_t *v, const char *path);

static int each(struct steps *s, const json_t *list, const char *path, const char *key, step_fn fn)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        char full[PATH];
        snprintf(full, sizeof full, "%s.%s[%zu]", path, key, i);
        KVL_TRY(fn(s, v, full));
    }
    return KVL_OK;
}

/* ---- normalizer ---------------------------------------------------------------------------- */

static int normalizer(struct steps *s, const json_t *v, const char *path)
{
    const json_t *type = type_of(v), *pattern = json_object_get(v, "pattern");
    if (!v || json_is_null(v)) return KVL_OK;
    if (kvl_hf_json_is(type, "Sequence"))
        return each(s, json_object_get(v, "normalizers"), path, "normalizers", normalizer);
    if (kvl_hf_json_is(type, "NFC")) {
        s->nfc = true;
        if (kvl_tok_nfc_works()) return KVL_OK;
        return refuse(s, path, "type", v,
                      "a program built with libutf8proc (install libutf8proc-dev, build again)");
    }
    if (kvl_hf_json_is(type, "Prepend") && !s->prepend && !s->marks) {
        s->prepend = true;
        if (kvl_hf_json_is(json_object_get(v, "prepend"), mark)) return KVL_OK;
        return refuse(s, path, "prepend", v, "U+2581");
    }
    if (!kvl_hf_json_is(type, "Replace"))
        return refuse(s, path, "type", v, "NFC, or Prepend and Replace with U+2581");
    s->marks = true;
    if (!kvl_hf_json_is(json_object_get(pattern, "String"), " "))
        return refuse(s, path, "pattern", v, "the string \" \"");
    if (kvl_hf_json_is(json_object_get(v, "content"), mark)) return KVL_OK;
    return refuse(s, path, "content", v, "U+2581");
}

/* ---- pre_tokenizer ------------------------------------------------------------------------- */

static int add_pattern(struct steps *s, const char *pattern, const char *path)
{
    struct kvl_buf re = { 0 };
    int rc = kvl_tok_regex(pattern, path, &re, s->h->err);
    if (rc == KVL_OK) rc = kvl_tok_add_pattern(s->h->t, re.data ? re.data : "", path, s->h->err);
    if (rc == KVL_OK) XXH3_64bits_update(s->h->hash, re.data, re.len + 1);
    kvl_buf_free(&re);
    return rc;
}

/* A plain string as a pattern. */
static int add_literal(struct steps *s, const char *text, const char *path)
{
    struct kvl_buf re = { 0 };
    int rc = KVL_OK;
    for (const char *c = text; *c && rc == KVL_OK; c++)
        rc = kvl_buf_printf(&re, "%s%c", strchr("\\^$.[|()?*+{", *c) ? "\\" : "", *c);
    if (rc != KVL_OK) kvl_fail(s->h->err, rc, "no memory for a pattern");
    if (rc == KVL_OK) rc = add_pattern(s, re.data ? re.data : "", path);
    kvl_buf_free(&re);
    return rc;
}

static int split_step(struct steps *s, const json_t *v, const char *path)
{
    const json_t *pattern = json_object_get(v, "pattern"), *how = json_object_get(v, "behavior");
    const json_t *string = json_object_get(pattern, "String");
    bool invert = json_is_true(json_object_get(v, "invert"));
    /* Gemma's; no space is left when the normalizer has made marks of them. */
    if (s->marks && kvl_hf_json_is(string, " ") && kvl_hf_json_is(how, "MergedWithPrevious"))
        return KVL_OK;
    /* Keeping the matches alone is the same for the patterns that match everything. */
    bool matches = kvl_hf_json_is(how, "Removed") && invert;
    if (!matches && !kvl_hf_json_is(how, "Isolated"))
        return refuse(s, path, "behavior", v, "\"Isolated\"");
    if (!matches && invert) return refuse(s, path, "invert", v, "false");
    if (json_is_string(string)) return add_literal(s, json_string_value(string), path);
    if (!json_is_string(json_object_get(pattern, "Regex")))
        return refuse(s, path, "pattern", v, "a Regex or a String");
    return add_pattern(s, json_string_value(json_object_get(pattern, "Regex")), path);
}

static int byte_level_step(struct steps *s, const json_t *v, const char *path)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+";
    s->byte_level = true;
    if (json_is_true(json_object_get(v, "add_prefix_space")))
        return refuse(s, path, "add_prefix_space", v, "false");
    if (json_is_false(json_object_get(v, "use_regex"))) return KVL_OK;
    return add_pattern(s, gpt2, path);
}

static int metaspace_step(struct steps *s, const json_t *v, const char *path)
{
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    const json_t *old = json_object_get(v, "add_prefix_space");
    struct kvl_tokenizer *t = s->h->t;
    s->metaspace = true;
    if (!kvl_hf_json_is(json_object_get(v, "replacement"), mark))
        return refuse(s, path, "replacement", v, "U+2581");
    t->cut_marks = !json_is_false(json_object_get(v, "split"));
    t->space_unless = true;
    t->space_once = kvl_hf_json_is(scheme, "first");
    t->add_space = scheme ? !kvl_hf_json_is(scheme, "never") : !json_is_false(old);
    return KVL_OK;
}

static int pre_tokenizer(struct steps *s, const json_t *v, const char *path)
{
    const json_t *type = type_of(v);
    if (!v || json_is_null(v)) return KVL_OK;
    if (kvl_hf_json_is(type, "Sequence"))
        return each(s, json_object_get(v, "pretokenizers"), path, "pretokenizers", pre_tokenizer);
    if (s->byte_level || s->metaspace) return refuse(s, path, "type", v, "nothing after the last");
    if (kvl_hf_json_is(type, "Split")) return split_step(s, v, path);
    if (kvl_hf_json_is(type, "Digits"))
        return add_pattern(
            s, json_is_true(json_object_get(v, "individual_digits")) ? "\\p{N}" : "\\p{N}+", path);
    if (kvl_hf_json_is(type, "ByteLevel")) return byte_level_step(s, v, path);
    if (kvl_hf_json_is(type, "Metaspace")) return metaspace_step(s, v, path);
    return refuse(s, path, "type", v, "Split, Digits, ByteLevel or Metaspace");
}

/* ---- post_processor ------------------------------------------------------------------------ */

/* The id of the only special token before (`behind` false) or behind the text, -1 for none. */
static int64_t template_id(const json_t *v, bool behind)
{
    const json_t *item, *single = json_object_get(v, "single");
    const char *name = NULL;
    bool seen = false;
    size_t i, n = 0;
    json_array_foreach(single, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (!special) seen = true;
        if (!special || seen != behind) continue;
        name = json_string_value(json_object_get(special, "id"));
        n++;
    }
    if (n != 1 || !name) return -1;
    const json_t *known = json_object_get(json_object_get(v, "special_tokens"), name);
    const json_t *id = json_array_get(json_object_get(known, "ids"), 0);
    return json_is_integer(id) ? json_integer_value(id) : -1;
}

static int post_processor(struct steps *s, const json_t *v, const char *path)
{
    const json_t *type = type_of(v);
    struct kvl_tokenizer *t = s->h->t;
    if (!v || json_is_null(v) || kvl_hf_json_is(type, "ByteLevel")) return KVL_OK;
    if (kvl_hf_json_is(type, "Sequence"))
        return each(s, json_object_get(v, "processors"), path, "processors", post_processor);
    if (!kvl_hf_json_is(type, "TemplateProcessing"))
        return refuse(s, path, "type", v, "ByteLevel or TemplateProcessing");
    int64_t bos = template_id(v, false), eos = template_id(v, true);
    t->add_bos = bos >= 0;
    t->add_eos = eos >= 0;
    if (bos >= 0 && bos < TOK_MAX_TOKENS) t->bos = (int32_t)bos;
    if (eos >= 0 && eos < TOK_MAX_TOKENS) t->eos = (int32_t)eos;
    return KVL_OK;
}

int kvl_tok_json_steps(struct tok_hf *h)
{
    struct steps s = { .h = h };
    struct kvl_tokenizer *t = h->t;
    const json_t *model = json_object_get(h->json, "model");
    const json_t *norm = json_object_get(h->json, "normalizer");
    const json_t *pre = json_object_get(h->json, "pre_tokenizer");
    KVL_TRY(normalizer(&s, norm, "normalizer"));
    KVL_TRY(pre_tokenizer(&s, pre, "pre_tokenizer"));
    KVL_TRY(post_processor(&s, json_object_get(h->json, "post_processor"), "post_processor"));
    t->bpe = s.byte_level;
    t->kind = t->bpe ? "gpt2" : "bpe";
    t->nfc = s.nfc;
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    if (t->bpe)
        return s.marks || s.prepend
                   ? kvl_hf_json_refuse(h->err, "normalizer", norm, "null or NFC before ByteLevel")
                   : KVL_OK;
    if (!s.metaspace) t->add_space = s.prepend;
    if (!s.marks && !s.metaspace)
        return kvl_hf_json_refuse(h->err, "pre_tokenizer", pre, "ByteLevel, or spaces as U+2581");
    if (s.nfc || t->n_patterns)
        return kvl_hf_json_refuse(h->err, s.nfc ? "normalizer" : "pre_tokenizer",
                                  s.nfc ? norm : pre, "no more than spaces as U+2581");
    if (t->ignore_merges)
        return kvl_hf_json_refuse(h->err, "model.ignore_merges",
                                  json_object_get(model, "ignore_merges"), "false");
    if (json_is_true(json_object_get(model, "byte_fallback"))) return KVL_OK;
    return kvl_hf_json_refuse(h->err, "model.byte_fallback",
                              json_object_get(model, "byte_fallback"), "true without ByteLevel");
}
