/* Records as JSON. */
#include "record.h"

#include "args.h"
#include "build.h"
#include "log.h"
#include "record_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

json_t *kvl_record_start(const char *kind, const char *run)
{
    json_t *r = json_object();
#define ALL KVL_PUT
#include "fields.def"
    return r;
}

json_t *kvl_record_now(void)
{
    char now[32];
    kvl_time_utc(now);
    return json_string(now);
}

/* ---- run ------------------------------------------------------------------------------------- */

static json_t *record_argv(const struct kvl_run_info *info)
{
    json_t *argv = json_array();
    for (int i = 0; i < info->argc; i++)
        kvl_record_item(&argv, kvl_record_path_text(info->argv[i]));
    return argv;
}

static json_t *record_machine(const struct kvl_run_info *info)
{
    const struct kvl_machine *m = info->machine;
    return json_pack("{s:o, s:o, s:i, s:i, s:s, s:I, s:o, s:o}", "host",
                     kvl_record_path_text(m->host), "cpu", kvl_record_path_text(m->cpu), "cores",
                     m->cores, "threads", info->threads, "isa", m->isa, "ram_bytes",
                     (json_int_t)m->ram_bytes, "os", kvl_record_path_text(m->os), "mhz",
                     kvl_record_real(m->mhz));
}

json_t *kvl_record_build(void)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "version", kvl_build.version, "git",
                     kvl_build.git, "build", kvl_build.type, "compiler", kvl_build.compiler,
                     "sanitizers", kvl_build.sanitizers);
}

json_t *kvl_record_model(const struct kvl_model *m)
{
    const struct kvl_shape *s = kvl_model_shape(m);
    const struct kvl_tokenizer *t = kvl_model_tokenizer(m);
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)kvl_tokenizer_hash(t));
    return json_pack("{s:o, s:o, s:s, s:I, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s}", "name",
                     kvl_record_path_text(kvl_model_name(m)), "file",
                     kvl_record_path_text(kvl_model_path(m)), "hash", kvl_model_hash(m), "bytes",
                     (json_int_t)kvl_model_bytes(m), "n_layers", s->n_layers, "n_heads", s->n_heads,
                     "n_kv_heads", s->n_kv_heads, "head_dim", s->head_dim, "n_embd", s->n_embd,
                     "n_vocab", s->n_vocab, "context_tok", s->n_ctx_train, "tokenizer",
                     kvl_tokenizer_model(t), "tokenizer_hash", hash);
}

static json_t *record_gpu(const struct kvl_run_info *info)
{
    char compute[16];
    if (!info->gpu) return json_null();
    const struct kvl_device_info *d = &info->gpu->info;
    snprintf(compute, sizeof compute, "%d.%d", d->compute_major, d->compute_minor);
    return json_pack("{s:o, s:o, s:s, s:s, s:i, s:I, s:o, s:o}", "name",
                     kvl_record_path_text(d->name), "driver", kvl_record_path_text(d->driver),
                     "toolkit", d->toolkit, "compute", compute, "n_sm", d->n_sm, "memory_bytes",
                     (json_int_t)info->gpu->memory.total_bytes, "memory_gb_per_s",
                     kvl_record_real(d->memory_gbs), "clock_mhz", kvl_record_real(d->clock_mhz));
}

/* Name -> hash, of the tasks or the policies of a sweep. */
static json_t *code_points(const struct kvl_points *p)
{
    json_t *o = json_object();
    for (size_t i = 0; i < p->n; i++) {
        const char *name = p->v[i].task ? p->v[i].task->name : p->v[i].policy->name;
        kvl_record_put(&o, name, "string", kvl_record_hex(p->v[i].code));
    }
    return o;
}

json_t *kvl_record_sources(const struct kvl_sweep *s)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "engine", kvl_record_hex(kvl_code_engine()), "cuda",
                     kvl_record_hex(kvl_code_cuda()), "policies", code_points(&s->policies),
                     "tasks", code_points(&s->tasks));
}

static json_t *record_shard(struct kvl_shard shard)
{
    return shard.count < 2 ? json_null() : json_sprintf("%d/%d", shard.index, shard.count);
}

static json_t *record_plan(const struct kvl_work *w)
{
    char hash[KVL_PLAN_HASH];
    return kvl_work_plan(w, hash, NULL) == KVL_OK ? json_string(hash) : NULL;
}

static json_t *record_store(const struct kvl_run_info *info)
{
    const struct kvl_sweep *s = info->work->sweep;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:b}", "kv_type", kvl_kv_name(info->store->type).text,
        "reference_kv_type", kvl_kv_name(kvl_kv_reference(s->kv_type)).text, "prefill_type",
        kvl_prefill_type_name(s->prefill_type), "decode_act", kvl_decode_act_name(s->decode_act),
        "prefill_kv", kvl_prefill_kv_name(s->prefill_kv_host), "block_tok", info->store->block_tok,
        "chunk_tok", info->chunk_tok, "raw_keys", info->store->raw_keys);
}

static json_t *record_sweep(const struct kvl_run_info *info)
{
    const struct kvl_sweep *s = info->work->sweep;
    const struct kvl_run_amount *n = &info->amount;
    return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:I}", "name",
                     kvl_record_path_text(s->name), "file", kvl_record_path_text(s->file), "hash",
                     s->hash, "text", kvl_record_path_text(s->text), "shard",
                     record_shard(info->work->shard), "plan", record_plan(info->work), "cells",
                     (json_int_t)n->cells, "cells_before", (json_int_t)n->cells_before, "answers",
                     (json_int_t)n->answers, "answers_before", (json_int_t)n->answers_before);
}

json_t *kvl_record_run(const char *run, const struct kvl_run_info *info)
{
    const struct kvl_sweep *s = info->work->sweep;
    json_t *r = kvl_record_start("run", run);
#define RUN KVL_PUT
#include "fields.def"
    return r;
}

/* ---- sample ---------------------------------------------------------------------------------- */

static json_t *record_ids(const struct kvl_ask *a)
{
    json_t *ids = json_array();
    for (int32_t i = 0; i < a->n_id; i++) kvl_record_item(&ids, json_integer(a->id[i]));
    return ids;
}

/* [layer][kv head] means over the answer steps; null without evidence. */
static json_t *record_lanes(const struct kvl_recall *r)
{
    if (r->n_steps == 0) return json_null();
    json_t *layers = json_array();
    for (int32_t l = 0; l < r->n_layers; l++) {
        json_t *heads = json_array();
        for (int32_t h = 0; h < r->n_kv_heads; h++)
            kvl_record_item(&heads, json_real(r->lane[l * r->n_kv_heads + h] / r->n_steps));
        kvl_record_item(&layers, heads);
    }
    return layers;
}

/* Name -> score; null where the task has no stages. */
static json_t *record_subs(const struct kvl_outcome *o)
{
    if (o->n_sub == 0) return json_null();
    json_t *subs = json_object();
    for (int32_t i = 0; i < o->n_sub; i++)
        kvl_record_put(&subs, o->sub[i].name, "number", kvl_record_real(o->sub[i].value));
    return subs;
}

struct kvl_outcome kvl_outcome_none(void)
{
    struct kvl_outcome o = { .have = true };
    double *number[KVL_OUTCOME_NUMBERS];
    kvl_outcome_numbers(&o, number);
    for (size_t i = 0; i < KVL_OUTCOME_NUMBERS; i++) *number[i] = KVL_NAN;
    return o;
}

void kvl_outcome_numbers(struct kvl_outcome *o, double *out[KVL_OUTCOME_NUMBERS])
{
    size_t n = 0;
#define OUTCOME(name, ...)    out[n++] = &o->name;
#define OBSERVED(member, ...) out[n++] = &o->member;
#include "fields.def"
}

void kvl_outcome_observe(struct kvl_outcome *o, const struct kvl_counters *n,
                         const struct kvl_kv_bytes *b)
{
    bool some = n->host_bytes > 0 || n->d2h_bytes > 0;
#define OBSERVED(member, name, type, records, whole, value, means) o->member = value;
#define TIER(member, name, tokens, value, means)                                                   \
    o->tiers[KVL_TIER_##member] = some ? (double)(value) / (double)KVL_MAX(tokens, 1) : 0.0;
#include "fields.def"
}

/* The map; null where all are 0 or not known. */
static json_t *record_tiers(const double tiers[KVL_N_TIERS])
{
    json_t *r = json_object();
    bool some = false;
    for (int i = 0; i < KVL_N_TIERS; i++) some = some || tiers[i] > 0.0;
#define TIER(member, name, ...)                                                                    \
    kvl_record_put(&r, #name, "number", kvl_record_real(tiers[KVL_TIER_##member]));
#include "fields.def"
    if (some) return r;
    json_decref(r);
    return json_null();
}

/* Of a kind of record; counts of a speed record are integers. */
static json_t *observed_number(double v, bool there, bool whole)
{
    if (!there) return NULL;
    return whole ? json_integer((json_int_t)v) : kvl_record_real(v);
}

json_t *kvl_record_observed(const struct kvl_outcome *o, enum kvl_fields_of kind)
{
    json_t *r = json_object();
#define OBSERVED(member, name, type, records, whole, value, means)                                 \
    if ((records)&kind)                                                                            \
        kvl_record_put(&r, #name, type,                                                            \
                       observed_number(o->member, !strstr(type, "absent") || !isnan(o->member),    \
                                       (whole) && kind == KVL_OF_SPEED));
#define TIERS(name, type, means) kvl_record_put(&r, #name, type, record_tiers(o->tiers));
#include "fields.def"
    return r;
}

/* What the file says of the question, for scripts that score it again, and what is known of evidence; NULL: no file. */
static json_t *record_row(const struct kvl_question *q)
{
    json_t *row = q->row ? json_loads(q->row, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    return row || !q->row ? row : json_null();
}

static json_t *record_flag(const struct kvl_question *q, uint32_t flag)
{
    return q->row ? json_boolean((q->flags & flag) != 0) : NULL;
}

json_t *kvl_record_answers(json_t *list, const struct kvl_ask *ask, const struct kvl_buf *text,
                           const struct kvl_outcome *o)
{
    json_t *all = list ? list : json_array();
    json_t *one =
        json_pack("{s:o, s:o, s:s, s:o, s:o}", "prediction", kvl_record_text(text->data, text->len),
                  "ids", record_ids(ask), "stop", ask->end ? "end" : "length", "official",
                  kvl_record_real(o->official), "strict", kvl_record_real(o->strict));
    kvl_record_item(&all, one);
    return all;
}

/* Of all answers. */
static int32_t record_n_new(const struct kvl_answer *a)
{
    int32_t n = 0;
    for (int32_t i = 0; i < a->n; i++) n += a->ask[i].n_id;
    return n;
}

json_t *kvl_record_sample(const char *run, const struct kvl_answer *a)
{
    const struct kvl_outcome *o = &a->outcome;
    json_t *r = kvl_record_start("sample", run);
#define SAMPLE KVL_PUT
#include "fields.def"
    return r;
}

static double outcome_number(const json_t *sample, const char *field)
{
    const json_t *v = json_object_get(sample, field);
    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

static void outcome_subs(const json_t *sample, struct kvl_outcome *out)
{
    const char *name;
    json_t *value, *subs = json_object_get(sample, "sub");
    json_object_foreach(subs, name, value)
    {
        if (out->n_sub == KVL_TASK_SUBS) return;
        struct kvl_outcome_sub *sub = &out->sub[out->n_sub++];
        snprintf(sub->name, sizeof sub->name, "%s", name);
        sub->value = json_is_number(value) ? json_number_value(value) : (double)NAN;
    }
}

void kvl_outcome_of(const json_t *sample, struct kvl_outcome *out)
{
    struct kvl_method method = out->method;
    const json_t *tiers = json_object_get(sample, "tiers");
    kvl_method_of(sample, &method);
    *out = (struct kvl_outcome){
        .have = true,
        .failed = json_is_string(json_object_get(sample, "error")),
        .lost = json_is_true(json_object_get(sample, "evidence_lost")),
        .weak = json_is_true(json_object_get(sample, "evidence_weak")),
#define OUTCOME(name, ...)          .name = outcome_number(sample, #name),
#define OBSERVED(member, name, ...) .member = outcome_number(sample, #name),
#include "fields.def"
        .method = method,
    };
    outcome_subs(sample, out);
    if (!json_is_object(tiers)) return;
#define TIER(member, name, ...) out->tiers[KVL_TIER_##member] = outcome_number(tiers, #name);
#include "fields.def"
}

void kvl_outcome_free(struct kvl_outcome *o)
{
    kvl_method_free(&o->method);
    *o = (struct kvl_outcome){ 0 };
}

/* ---- what cells and speed records share ------------------------------------------------------ */

json_t *kvl_record_point(const struct kvl_cell *c)
{
    json_t *r = json_object();
#define POINT KVL_PUT
#include "fields.def"
    return r;
}

/* ---- speed ----------------------------------------------------------------------------------- */

static json_t *speed_steps(const struct kvl_timing *t)
{
    json_t *steps = json_array();
    for (int32_t i = 0; i < t->n_steps; i++)
        kvl_record_item(&steps, json_integer((json_int_t)t->step_ns[i]));
    return steps;
}

/* Of a process that has the GPU: what it moved in the timed steps, and the most that it held. */
static json_t *speed_gpu(const struct kvl_timing *t)
{
    if (!t->gpu) return json_null();
    const struct kvl_device_traffic *d = &t->traffic;
    const size_t *peak = t->memory.peak_bytes;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "h2d_bytes",
                     (json_int_t)d->h2d_bytes, "h2d_calls", (json_int_t)d->h2d_calls, "d2h_bytes",
                     (json_int_t)d->d2h_bytes, "d2h_calls", (json_int_t)d->d2h_calls, "d2d_bytes",
                     (json_int_t)d->d2d_bytes, "d2d_calls", (json_int_t)d->d2d_calls, "launches",
                     (json_int_t)d->n_launches, "syncs", (json_int_t)d->n_syncs, "graphs",
                     (json_int_t)d->n_graphs, "device_peak_bytes",
                     (json_int_t)peak[KVL_PLACE_DEVICE], "shared_peak_bytes",
                     (json_int_t)(peak[KVL_PLACE_SHARED] + peak[KVL_PLACE_TABLE]),
                     "pinned_peak_bytes", (json_int_t)peak[KVL_PLACE_PINNED]);
}

/* A GPU works behind the host's back: its steps are timed whole. */
static json_t *speed_part(const struct kvl_timing *t, uint64_t ns)
{
    return t->gpu ? json_null() : json_integer((json_int_t)ns);
}

json_t *kvl_record_speed(const char *run, const struct kvl_cell *c, const struct kvl_sweep *s,
                         const struct kvl_timing *t)
{
    const struct kvl_counters *n = &t->count;
    uint64_t sum = 0, parts = n->meta_ns + n->select_ns + n->fetch_ns + n->attend_ns + n->evict_ns;
    struct kvl_outcome o = { 0 };
    json_t *r = kvl_record_start("speed", run);
    kvl_outcome_observe(&o, n, &t->bytes);
    for (int32_t i = 0; i < t->n_steps; i++) sum += t->step_ns[i];
#define SPEED KVL_PUT
#include "fields.def"
    return r;
}

/* ---- error ----------------------------------------------------------------------------------- */

static json_t *record_error(const char *run, const struct kvl_cell *c, const char *model,
                            const char *kv_type, int32_t context, int32_t question, int status,
                            const char *message)
{
    json_t *r = kvl_record_start("error", run);
#define ERROR KVL_PUT
#include "fields.def"
    return r;
}

json_t *kvl_record_model_error(const char *run, const char *model, const char *kv_type, int status,
                               const char *message)
{
    return record_error(run, NULL, model, kv_type, -1, -1, status, message);
}

json_t *kvl_record_error(const char *run, const struct kvl_cell *c, int32_t context,
                         int32_t question, int status, const char *message)
{
    return record_error(run, c, NULL, NULL, context, question, status, message);
}
