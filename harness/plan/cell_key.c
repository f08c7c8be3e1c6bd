/* Keys of cells: the text of all that may change their answers. */
#include "cell_key.h"

#include "settings.h"

struct kvl_code kvl_cell_code(const struct kvl_sweep *s, const struct kvl_point *task,
                              uint64_t method)
{
    return (struct kvl_code){ .engine = kvl_code_engine(),
                              .method = method,
                              .task = task->code,
                              .cuda = kvl_device_is_gpu(s->device) ? kvl_code_cuda() : 0 };
}

static int key_depth(struct kvl_buf *b, double depth)
{
    return depth < 0.0 ? kvl_buf_adds(b, ";depth=spread")
                       : kvl_buf_printf(b, ";depth=%.15g", depth);
}

/* What tells the tasks of two cells apart.  Of the options of how a text is read those of its mode count. */
static int key_task(struct kvl_buf *b, const struct kvl_point *task)
{
    const struct kvl_reading *r = kvl_point_reading(task);
    KVL_TRY(kvl_buf_printf(b, ";task=%s/%u", task->task->name, task->task->version));
    KVL_TRY(kvl_buf_adds(b, ";task_options="));
    if (!r || !r->text[0]) return kvl_buf_adds(b, task->key);
    KVL_TRY(kvl_buf_printf(b, "text=%016llx,", (unsigned long long)task->data));
    if (r->mode == KVL_READ_PREFILL) return kvl_buf_printf(b, "mode=prefill,tokens=%d", r->tokens);
    if (r->mode == KVL_READ_CHUNK) return kvl_buf_printf(b, "mode=chunk,chunk=%d", r->chunk);
    return kvl_buf_adds(b, "mode=decode");
}

static int key_prompt(const struct kvl_work *w, const struct kvl_cell *c, struct kvl_buf *b)
{
    if (!c->task->raw) KVL_TRY(kvl_prompt_key(&w->asks, b));
    if (!(w->sweep->sampling.temperature > 0.0)) return KVL_OK;
    KVL_TRY(kvl_buf_adds(b, ";sampling="));
    return kvl_sampling_print(&w->sweep->sampling, b);
}

bool kvl_work_turns_short(const struct kvl_work *w)
{
    int32_t most = kvl_model_short_tok(w->model), max = w->sweep->max_tok;
    return max > 0 && max <= most;
}

static int key_point(const struct kvl_work *w, const struct kvl_where *where,
                     const struct kvl_cell *c, struct kvl_buf *b)
{
    const struct kvl_sweep *s = w->sweep;
    const char *options = c->planned ? kvl_planned_options(c->planned) : c->policy->options;
    KVL_TRY(kvl_buf_printf(b, "kind=%s;model=%s;tokenizer=%016llx", c->speed ? "speed" : "cell",
                           kvl_model_hash(w->model),
                           (unsigned long long)kvl_tokenizer_hash(kvl_model_tokenizer(w->model))));
    KVL_TRY(kvl_settings_key(s, KVL_KEY_ALWAYS, b));
    KVL_TRY(kvl_buf_adds(b, ";exec=real"));
    KVL_TRY(kvl_settings_key(s, KVL_KEY_GIVEN, b));
    if (kvl_model_short_tok(w->model) > 0)
        KVL_TRY(kvl_buf_printf(b, ";rope=%s", kvl_work_turns_short(w) ? "short" : "long"));
    KVL_TRY(key_task(b, c->task));
    if (!c->speed && !kvl_point_reading(c->task)) KVL_TRY(key_prompt(w, c, b));
    KVL_TRY(kvl_buf_printf(b, ";length=%d", c->length));
    KVL_TRY(key_depth(b, c->depth));
    KVL_TRY(kvl_buf_printf(b, ";seed=%llu;policy=%s/%u;options=%s;budget=%d",
                           (unsigned long long)s->seed, c->policy->policy->name,
                           c->policy->policy->version, options, c->budget_tok));
    if (c->planned ? kvl_planned_own_prefill(c->planned) : c->policy->own)
        KVL_TRY(kvl_buf_adds(b, ";prefill=own"));
    /* What the store keeps for other cells takes time, too. */
    if (c->speed) KVL_TRY(kvl_settings_key(s, KVL_KEY_SPEED, b));
    if (c->speed && where->gpu) KVL_TRY(kvl_buf_printf(b, ";gpu=%s", where->gpu));
    if (c->speed)
        return kvl_buf_printf(
            b, ";host=%s;threads=%d;warmup=%d;steps=%d;repeat=%d;raw_keys=%d;window=%d",
            where->host, where->threads, s->speed.warmup, s->speed.steps, c->repeat, w->raw_keys,
            w->window);
    return kvl_buf_printf(b, ";protocol=%s;contexts=%d;questions=%d",
                          kvl_protocol_name(c->protocol), s->contexts,
                          kvl_point_reading(c->task) ? 1 : s->questions);
}

int kvl_cell_key(const struct kvl_work *w, const struct kvl_where *where, const struct kvl_cell *c,
                 struct kvl_buf *b)
{
    struct kvl_code code = kvl_cell_code(w->sweep, c->task, c->policy->code);
    KVL_TRY(key_point(w, where, c, b));
    return kvl_code_print(&code, b);
}
