/* The resolved configuration as text. */
#include "config_text.h"

#include "args.h"
#include "config_analyze.h"

#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int kvl_text_quote(struct kvl_buf *b, const char *s)
{
    KVL_TRY(kvl_buf_adds(b, "\""));
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            KVL_TRY(kvl_buf_printf(b, "\\%c", c));
        else if (c < 0x20 || c == 0x7f)
            KVL_TRY(kvl_buf_printf(b, "\\x%02x", c));
        else
            KVL_TRY(kvl_buf_add(b, s, 1));
    }
    return kvl_buf_adds(b, "\"");
}

static int text_string(struct kvl_buf *b, const char *key, const char *s)
{
    KVL_TRY(kvl_buf_printf(b, "%s: ", key));
    KVL_TRY(kvl_text_quote(b, s));
    return kvl_buf_adds(b, "\n");
}

/* Options may have quotes and line feeds. */
static int text_point(struct kvl_buf *b, const struct kvl_point *v)
{
    const char *own = v->own ? ":prefill=own" : "";
    struct kvl_buf text = { 0 };
    int rc = kvl_buf_printf(&text, "%s%s%s%s", v->task ? v->task->name : v->policy->name, own,
                            v->options[0] ? (*own ? "," : ":") : "", v->options);
    if (rc == KVL_OK) rc = kvl_text_quote(b, text.data);
    kvl_buf_free(&text);
    return rc;
}

static int text_points(struct kvl_buf *b, const char *key, const struct kvl_points *p)
{
    if (p->n == 0) return KVL_OK;
    KVL_TRY(kvl_buf_printf(b, "%s: [", key));
    for (size_t i = 0; i < p->n; i++) {
        const struct kvl_point *v = &p->v[i];
        KVL_TRY(kvl_buf_adds(b, i ? ", " : ""));
        KVL_TRY(text_point(b, v));
    }
    return kvl_buf_adds(b, "]\n");
}

static int text_ints(struct kvl_buf *b, const char *key, const struct kvl_ints *p)
{
    if (p->n == 0) return KVL_OK;
    KVL_TRY(kvl_buf_printf(b, "%s: [", key));
    for (size_t i = 0; i < p->n; i++) KVL_TRY(kvl_buf_printf(b, "%s%d", i ? ", " : "", p->v[i]));
    return kvl_buf_adds(b, "]\n");
}

static int text_texts(struct kvl_buf *b, const char *key, const struct kvl_texts *p)
{
    if (p->n == 0) return KVL_OK;
    KVL_TRY(kvl_buf_printf(b, "%s: [", key));
    for (size_t i = 0; i < p->n; i++) KVL_TRY(kvl_buf_printf(b, "%s%s", i ? ", " : "", p->v[i]));
    return kvl_buf_adds(b, "]\n");
}

static int text_doubles(struct kvl_buf *b, const char *key, const struct kvl_doubles *p)
{
    if (p->n == 0) return KVL_OK;
    KVL_TRY(kvl_buf_printf(b, "%s: [", key));
    for (size_t i = 0; i < p->n; i++) {
        const char *comma = i ? ", " : "";
        if (p->v[i] < 0.0)
            KVL_TRY(kvl_buf_printf(b, "%sspread", comma));
        else
            KVL_TRY(kvl_buf_printf(b, "%s%.15g", comma, p->v[i]));
    }
    return kvl_buf_adds(b, "]\n");
}

static int text_protocols(struct kvl_buf *b, const struct kvl_ints *p)
{
    KVL_TRY(kvl_buf_adds(b, "protocols: ["));
    for (size_t i = 0; i < p->n; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%s", i ? ", " : "",
                               kvl_protocol_name((enum kvl_protocol)p->v[i])));
    return kvl_buf_adds(b, "]\n");
}

static int text_rule(struct kvl_buf *b, const struct kvl_exclude *r)
{
    static const char *const first = "  - ", *const next = "    ";
    struct {
        const char *key;
        const struct kvl_texts *texts;
    } rows[] = { { "policy", &r->policies },
                 { "task", &r->tasks },
                 { "protocol", &r->protocols },
                 { "budget", &r->budgets } };
    char key[32];
    const char *indent = first;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].texts->n == 0) continue;
        snprintf(key, sizeof key, "%s%s", indent, rows[i].key);
        KVL_TRY(text_texts(b, key, rows[i].texts));
        indent = next;
    }
    if (r->lengths.n) {
        snprintf(key, sizeof key, "%slength", indent);
        KVL_TRY(text_ints(b, key, &r->lengths));
        indent = next;
    }
    snprintf(key, sizeof key, "%sdepth", indent);
    return text_doubles(b, key, &r->depths);
}

static int text_speed(struct kvl_buf *b, const struct kvl_speed *s)
{
    if (!s->on) return KVL_OK;
    KVL_TRY(kvl_buf_adds(b, "speed:\n"));
    KVL_TRY(text_points(b, "  task", &s->task));
    KVL_TRY(text_points(b, "  policies", &s->policies));
    KVL_TRY(text_ints(b, "  lengths", &s->lengths));
    KVL_TRY(text_texts(b, "  budgets", &s->budgets));
    return kvl_buf_printf(b, "  steps: %d\n  warmup: %d\n  repeats: %d\n", s->steps, s->warmup,
                          s->repeats);
}

static int text_quality(struct kvl_buf *b, const struct kvl_quality *q)
{
    if (q->questions == 0) return KVL_OK;
    KVL_TRY(kvl_buf_printf(b, "quality:\n  questions: %d\n  steps: %d\n  top: [", q->questions,
                           q->steps));
    for (int32_t i = 0; i < q->n_top; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%d", i ? ", " : "", q->top[i]));
    return kvl_buf_adds(b, "]\n");
}

static int text_numbers(struct kvl_buf *b, const struct kvl_sweep *s)
{
    KVL_TRY(kvl_buf_printf(b, "seed: %llu\nkv_type: %s\n", (unsigned long long)s->seed,
                           kvl_kv_name(s->kv_type).text));
    if (s->prefill_type != KVL_PREFILL_F32)
        KVL_TRY(kvl_buf_printf(b, "prefill_type: %s\n", kvl_prefill_type_name(s->prefill_type)));
    if (s->prefill_kv_host) KVL_TRY(kvl_buf_adds(b, "prefill_kv: host\n"));
    if (s->windows_off) KVL_TRY(kvl_buf_adds(b, "window: off\n"));
    if (strcmp(s->device, "cpu") != 0) KVL_TRY(kvl_buf_printf(b, "device: %s\n", s->device));
    if (s->threads) KVL_TRY(kvl_buf_printf(b, "threads: %d\n", s->threads));
    if (s->max_tok) KVL_TRY(kvl_buf_printf(b, "max_tok: %d\n", s->max_tok));
    if (s->kv_limit_mib) KVL_TRY(kvl_buf_printf(b, "kv_limit_mib: %d\n", s->kv_limit_mib));
    return kvl_buf_printf(b, "contexts: %d\nquestions: %d\nchunk_tok: %d\nbatch: %d\n", s->contexts,
                          s->questions, s->chunk_tok, s->batch);
}

static int text_models(struct kvl_buf *b, const struct kvl_texts *p)
{
    KVL_TRY(kvl_buf_adds(b, "models: ["));
    for (size_t i = 0; i < p->n; i++) {
        if (i) KVL_TRY(kvl_buf_adds(b, ", "));
        KVL_TRY(kvl_text_quote(b, p->v[i]));
    }
    return kvl_buf_adds(b, "]\n");
}

static int text_sampling(struct kvl_buf *b, const struct kvl_sampling *s)
{
    if (!(s->temperature > 0.0)) return KVL_OK;
    return kvl_buf_printf(b,
                          "sampling: {temperature: %.15g, top_p: %.15g, top_k: %d, min_p: %.15g, "
                          "n: %d, seed: %llu}\n",
                          s->temperature, s->top_p, s->top_k, s->min_p, s->n,
                          (unsigned long long)s->seed);
}

static int text_all(struct kvl_buf *b, const struct kvl_sweep *s)
{
    KVL_TRY(text_string(b, "name", s->name));
    if (s->models.n)
        KVL_TRY(text_models(b, &s->models));
    else
        KVL_TRY(text_string(b, "model", s->model));
    if (s->chat) KVL_TRY(text_string(b, "chat", s->chat));
    if (s->system) KVL_TRY(text_string(b, "system", s->system));
    KVL_TRY(text_string(b, "log", s->log));
    KVL_TRY(text_numbers(b, s));
    KVL_TRY(text_points(b, "tasks", &s->tasks));
    KVL_TRY(text_ints(b, "lengths", &s->lengths));
    KVL_TRY(text_doubles(b, "depths", &s->depths));
    KVL_TRY(text_protocols(b, &s->protocols));
    KVL_TRY(text_points(b, "policies", &s->policies));
    KVL_TRY(text_texts(b, "budgets", &s->budgets));
    if (s->n_exclude) KVL_TRY(kvl_buf_adds(b, "exclude:\n"));
    for (size_t i = 0; i < s->n_exclude; i++) KVL_TRY(text_rule(b, &s->exclude[i]));
    KVL_TRY(text_speed(b, &s->speed));
    KVL_TRY(text_quality(b, &s->quality));
    KVL_TRY(text_sampling(b, &s->sampling));
    return kvl_analyze_print(b, &s->analyze);
}

int kvl_sweep_print(struct kvl_sweep *s)
{
    struct kvl_buf b = { 0 };
    int rc = text_all(&b, s);
    if (rc != KVL_OK) {
        kvl_buf_free(&b);
        return rc;
    }
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    snprintf(s->hash, sizeof s->hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    s->text = b.data;
    return KVL_OK;
}
