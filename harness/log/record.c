/* Records as JSON. */
#include "record.h"

#include "args.h"
#include "build.h"
#include "log.h"
#include "record_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RECORD_DIGITS = 15 }; /* of a number in the log, see kvl_log_append */

/* ---- values ---------------------------------------------------------------------------------- */

/* Rounded to the digits that the log writes, so that a sample that was read back is the sample that
 * was measured: a resumed sweep has the means of an uninterrupted one, to the last digit. */
json_t *kvl_record_real(double v)
{
    char text[40];
    double rounded = v;
    if (!isfinite(v)) return json_null();
    snprintf(text, sizeof text, "%.*g", RECORD_DIGITS, v);
    return json_real(kvl_parse_f64(text, &rounded) == KVL_OK ? rounded : v);
}

json_t *kvl_record_ns(double ns)
{
    return isfinite(ns) ? json_integer((json_int_t)ns) : json_null();
}

/* Length of the valid UTF-8 character at s, 0 = none. */
static size_t record_utf8(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 ? 4 : (s[0] >= 0xe0 ? 3 : 2);
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return len;
}

/* JSON holds UTF-8 only: other bytes become U+FFFD, the ids beside the text tell them apart. */
json_t *kvl_record_text(const char *s, size_t n)
{
    struct kvl_buf clean = { 0 };
    int rc = kvl_buf_adds(&clean, "");
    for (size_t i = 0; i < n && rc == KVL_OK;) {
        size_t len = record_utf8((const unsigned char *)s + i, n - i);
        rc = len ? kvl_buf_add(&clean, s + i, len) : kvl_buf_adds(&clean, "\xef\xbf\xbd");
        i += len ? len : 1;
    }
    json_t *text = rc == KVL_OK ? json_stringn(clean.data, clean.len) : NULL;
    kvl_buf_free(&clean);
    return text;
}

json_t *kvl_record_path_text(const char *s)
{
    return s ? kvl_record_text(s, strlen(s)) : json_null();
}

json_t *kvl_record_start(const char *kind, const char *run)
{
    return json_pack("{s:s, s:s, s:s}", "kind", kind, "schema", KVL_LOG_SCHEMA, "run", run);
}

/* Moves the fields of `more` behind those of `o`; NULL in, NULL out. */
json_t *kvl_record_add(json_t *o, json_t *more)
{
    if (o && more && json_object_update(o, more) == 0) {
        json_decref(more);
        return o;
    }
    json_decref(o);
    json_decref(more);
    return NULL;
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
        if (json_array_append_new(argv, kvl_record_path_text(info->argv[i])) != 0) {
            json_decref(argv);
            return NULL;
        }
    return argv;
}

static json_t *record_machine(const struct kvl_run_info *info)
{
    const struct kvl_machine *m = info->machine;
    return json_pack("{s:o, s:o, s:i, s:i, s:s, s:I, s:o}", "host", kvl_record_path_text(m->host),
                     "cpu", kvl_record_path_text(m->cpu), "cores", m->cores, "threads",
                     info->threads, "isa", m->isa, "ram_bytes", (json_int_t)m->ram_bytes, "os",
                     kvl_record_path_text(m->os));
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
    return json_pack("{s:o, s:o, s:s, s:s, s:i, s:I, s:o}", "name", kvl_record_path_text(d->name),
                     "driver", kvl_record_path_text(d->driver), "toolkit", d->toolkit, "compute",
                     compute, "n_sm", d->n_sm, "memory_bytes",
                     (json_int_t)info->gpu->memory.total_bytes, "memory_gb_per_s",
                     kvl_record_real(d->memory_gbs));
}

static json_t *code_text(uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

/* Name -> hash, of the tasks or the policies of a sweep. */
static json_t *code_points(const struct kvl_points *p)
{
    json_t *o = json_object();
    for (size_t i = 0; i < p->n; i++) {
        const char *name = p->v[i].task ? p->v[i].task->name : p->v[i].policy->name;
        if (json_object_set_new(o, name, code_text(p->v[i].code)) != 0) {
            json_decref(o);
            return NULL;
        }
    }
    return o;
}

json_t *kvl_record_sources(const struct kvl_sweep *s)
{
    return json_pack("{s:o, s:o, s:o, s:o}", "engine", code_text(kvl_code_engine()), "cuda",
                     code_text(kvl_code_cuda()), "policies", code_points(&s->policies), "tasks",
                     code_points(&s->tasks));
}

static json_t *record_shard(struct kvl_shard shard)
{
    return shard.count < 2 ? json_null() : json_sprintf("%d/%d", shard.index, shard.count);
}

json_t *kvl_record_run(const char *run, const struct kvl_run_info *info)
{
    const struct kvl_sweep *s = info->work->sweep;
    json_t *store =
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:b}", "kv_type", kvl_kv_name(info->store->type).text,
                  "prefill_type", kvl_prefill_type_name(s->prefill_type), "prefill_kv",
                  kvl_prefill_kv_name(s->prefill_kv_host), "block_tok", info->store->block_tok,
                  "chunk_tok", info->chunk_tok, "raw_keys", info->store->raw_keys);
    const struct kvl_run_amount *n = &info->amount;
    json_t *sweep = json_pack(
        "{s:o, s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:I}", "name", kvl_record_path_text(s->name),
        "file", kvl_record_path_text(s->file), "hash", s->hash, "text",
        kvl_record_path_text(s->text), "shard", record_shard(info->shard), "cells",
        (json_int_t)n->cells, "cells_before", (json_int_t)n->cells_before, "answers",
        (json_int_t)n->answers, "answers_before", (json_int_t)n->answers_before);
    json_t *fields =
        json_pack("{s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "t_start",
                  kvl_record_now(), "argv", record_argv(info), "jobs", info->jobs.n, "job_threads",
                  info->jobs.threads, "kvlab", kvl_record_build(), "sources", kvl_record_sources(s),
                  "machine", record_machine(info), "gpu", record_gpu(info), "model",
                  kvl_record_model(info->work->model), "store", store, "sweep", sweep);
    return kvl_record_add(kvl_record_start("run", run), fields);
}

/* ---- sample ---------------------------------------------------------------------------------- */

static json_t *record_ids(const struct kvl_ask *a)
{
    json_t *ids = json_array();
    for (int32_t i = 0; i < a->n_id; i++)
        if (json_array_append_new(ids, json_integer(a->id[i])) != 0) {
            json_decref(ids);
            return NULL;
        }
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
            json_array_append_new(heads, json_real(r->lane[l * r->n_kv_heads + h] / r->n_steps));
        if (json_array_append_new(layers, heads) != 0) {
            json_decref(layers);
            return NULL;
        }
    }
    return layers;
}

/* Name -> score; null where the task has no stages. */
static json_t *record_subs(const struct kvl_outcome *o)
{
    if (o->n_sub == 0) return json_null();
    json_t *subs = json_object();
    for (int32_t i = 0; i < o->n_sub; i++)
        if (json_object_set_new(subs, o->sub[i].name, kvl_record_real(o->sub[i].value)) != 0) {
            json_decref(subs);
            return NULL;
        }
    return subs;
}

const char *const kvl_tiers_name[KVL_N_TIERS] = {
    "h2d_bytes_per_tok",
    "h2d_calls_per_tok",
    "cache_hits_per_tok",
    "cache_misses_per_tok",
    "prefetch_bytes_per_tok",
    "prefetch_wrong_bytes_per_tok",
    "host_attend_bytes_per_tok",
    "host_attend_keys_per_tok",
    "d2h_bytes",
    "d2h_calls",
    "host_bytes",
    "device_bytes",
    "device_peak_bytes",
};

void kvl_tiers_of(const struct kvl_counters *n, double out[KVL_N_TIERS])
{
    enum { PER_TOK = 8 };
    const int64_t value[KVL_N_TIERS] = { n->h2d_bytes,         n->h2d_calls,
                                         n->cache_hits,        n->cache_misses,
                                         n->prefetch_bytes,    n->prefetch_wrong_bytes,
                                         n->host_attend_bytes, n->host_attend_tok,
                                         n->d2h_bytes,         n->d2h_calls,
                                         n->host_bytes,        n->device_bytes,
                                         n->device_peak_bytes };
    bool some = n->host_bytes > 0 || n->d2h_bytes > 0;
    for (int i = 0; i < KVL_N_TIERS; i++) {
        double tokens = i < PER_TOK && n->n_tokens > 0 ? (double)n->n_tokens : 1.0;
        out[i] = some ? (double)value[i] / tokens : 0.0;
    }
}

json_t *kvl_record_tiers(const double tiers[KVL_N_TIERS])
{
    bool some = false;
    for (int i = 0; i < KVL_N_TIERS; i++) some = some || tiers[i] > 0.0;
    if (!some) return json_null();
    json_t *map = json_object();
    for (int i = 0; i < KVL_N_TIERS; i++)
        if (json_object_set_new(map, kvl_tiers_name[i], kvl_record_real(tiers[i])) != 0) {
            json_decref(map);
            return NULL;
        }
    return map;
}

json_t *kvl_record_observed(const struct kvl_outcome *o)
{
    json_t *all =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "attended_tok",
                  kvl_record_real(o->attended_tok), "dense_tok", kvl_record_real(o->dense_tok),
                  "kv_read_bytes_per_tok", kvl_record_real(o->kv_read), "index_read_bytes_per_tok",
                  kvl_record_real(o->index_read), "kv_logical_bytes",
                  kvl_record_real(o->kv_logical), "kv_physical_bytes",
                  kvl_record_real(o->kv_physical), "kv_own_bytes", kvl_record_real(o->kv_own),
                  "meta_bytes", kvl_record_real(o->meta), "tiers", kvl_record_tiers(o->tiers));
    if (all && !isnan(o->window_tok) &&
        json_object_set_new(all, "window_tok", kvl_record_real(o->window_tok)) != 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

/* What the file says of the question, for scripts that score it again, and what is known of evidence. */
static json_t *record_row(const struct kvl_question *q)
{
    json_t *row = json_loads(q->row, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    return json_pack("{s:o, s:b, s:b}", "row", row ? row : json_null(), "evidence_weak",
                     (q->flags & KVL_EVIDENCE_WEAK) != 0, "evidence_lost",
                     (q->flags & KVL_EVIDENCE_LOST) != 0);
}

json_t *kvl_record_answers(json_t *list, const struct kvl_ask *ask, const struct kvl_buf *text,
                           const struct kvl_outcome *o)
{
    json_t *all = list ? list : json_array();
    json_t *one =
        json_pack("{s:o, s:o, s:s, s:o, s:o}", "prediction", kvl_record_text(text->data, text->len),
                  "ids", record_ids(ask), "stop", ask->end ? "end" : "length", "official",
                  kvl_record_real(o->official), "strict", kvl_record_real(o->strict));
    if (all && one && json_array_append_new(all, one) == 0) return all;
    json_decref(all);
    return NULL;
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
    const struct kvl_ask *ask = a->ask;
    const struct kvl_outcome *o = &a->outcome;
    char seed[17], prompt[17];
    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)a->seed);
    snprintf(prompt, sizeof prompt, "%016llx", (unsigned long long)a->prompt);
    json_t *what = json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:i, s:i, s:s, s:b, s:o, s:o}", "cell", a->cell->id, "context",
        a->context, "text", a->text, "question", a->question, "seed", seed, "context_tok",
        a->context_tok, "question_tok", a->question_tok, "prompt_hash", prompt, "joint", a->joint,
        "depth", kvl_record_real(a->q->depth), "gold", kvl_record_path_text(a->q->gold));
    json_t *said =
        json_pack("{s:o, s:o, s:o, s:O?, s:i}", "prediction",
                  o->failed ? json_null() : kvl_record_text(a->prediction, a->prediction_len),
                  "ids", o->failed ? json_null() : record_ids(ask), "stop",
                  o->failed ? json_null() : json_string(ask->end ? "end" : "length"), "answers",
                  a->answers, "n_new_tok", o->failed ? 0 : record_n_new(a));
    json_t *scores = json_pack("{s:o, s:o, s:o, s:o, s:o}", "official",
                               kvl_record_real(o->official), "strict", kvl_record_real(o->strict),
                               "sub", record_subs(o), "recall", kvl_record_real(o->recall),
                               "lane_recall", o->failed ? json_null() : record_lanes(&ask->recall));
    json_t *cost = json_pack("{s:o, s:o, s:o}", "wall_ns", kvl_record_real(o->wall_ns),
                             "prefill_ns", kvl_record_ns(o->prefill_ns), "error",
                             o->failed ? kvl_record_path_text(ask->error.msg) : json_null());
    if (a->q->row) what = kvl_record_add(what, record_row(a->q));
    json_t *r = kvl_record_add(kvl_record_add(kvl_record_start("sample", run), what), said);
    r = kvl_record_add(kvl_record_add(r, scores), kvl_record_observed(o));
    return kvl_record_add(kvl_record_add(r, kvl_record_method(&o->method)), cost);
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
    kvl_method_of(sample, &method);
    *out = (struct kvl_outcome){
        .have = true,
        .failed = json_is_string(json_object_get(sample, "error")),
        .official = outcome_number(sample, "official"),
        .strict = outcome_number(sample, "strict"),
        .recall = outcome_number(sample, "recall"),
        .context_tok = outcome_number(sample, "context_tok"),
        .lost = json_is_true(json_object_get(sample, "evidence_lost")),
        .weak = json_is_true(json_object_get(sample, "evidence_weak")),
        .attended_tok = outcome_number(sample, "attended_tok"),
        .dense_tok = outcome_number(sample, "dense_tok"),
        .window_tok = outcome_number(sample, "window_tok"),
        .kv_read = outcome_number(sample, "kv_read_bytes_per_tok"),
        .index_read = outcome_number(sample, "index_read_bytes_per_tok"),
        .kv_logical = outcome_number(sample, "kv_logical_bytes"),
        .kv_physical = outcome_number(sample, "kv_physical_bytes"),
        .kv_own = outcome_number(sample, "kv_own_bytes"),
        .meta = outcome_number(sample, "meta_bytes"),
        .wall_ns = outcome_number(sample, "wall_ns"),
        .prefill_ns = outcome_number(sample, "prefill_ns"),
        .method = method,
    };
    outcome_subs(sample, out);
    const json_t *tiers = json_object_get(sample, "tiers");
    for (int i = 0; json_is_object(tiers) && i < KVL_N_TIERS; i++)
        out->tiers[i] = outcome_number(tiers, kvl_tiers_name[i]);
}

void kvl_outcome_free(struct kvl_outcome *o)
{
    kvl_method_free(&o->method);
    *o = (struct kvl_outcome){ 0 };
}

/* ---- what cells and speed records share ------------------------------------------------------ */

json_t *kvl_record_point(const struct kvl_cell *c)
{
    json_t *task = json_pack("{s:s, s:s, s:s, s:s, s:o, s:i, s:i}", "cell", c->id, "key", c->key,
                             "code", kvl_build.git, "task", c->task->task->name, "task_options",
                             kvl_record_path_text(c->task->options), "task_version",
                             (int)c->task->task->version, "length_tok", c->length);
    json_t *policy = json_pack(
        "{s:s, s:i, s:s, s:s, s:s, s:o, s:s, s:s, s:s}", "policy", c->policy->policy->name,
        "policy_version", (int)c->policy->policy->version, "options",
        kvl_planned_options(c->planned), "options_asked", c->policy->options, "budget", c->budget,
        "budget_tok", c->budget_tok ? json_integer(c->budget_tok) : json_null(), "exec", "real",
        "prefill", kvl_planned_own_prefill(c->planned) ? "own" : "shared", "device", c->device);
    return kvl_record_add(task, policy);
}

/* ---- speed ----------------------------------------------------------------------------------- */

static json_t *speed_steps(const struct kvl_timing *t)
{
    json_t *steps = json_array();
    for (int32_t i = 0; i < t->n_steps; i++)
        if (json_array_append_new(steps, json_integer((json_int_t)t->step_ns[i])) != 0) {
            json_decref(steps);
            return NULL;
        }
    return steps;
}

static double per(double sum, double n)
{
    return n > 0.0 ? sum / n : (double)NAN;
}

static json_t *speed_counts(const struct kvl_timing *t)
{
    const struct kvl_counters *n = &t->count;
    double tiers[KVL_N_TIERS];
    kvl_tiers_of(n, tiers);
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:o}", "attended_tok",
        kvl_record_real(per((double)n->attended_tok, (double)n->attended_lanes)), "dense_tok",
        kvl_record_real(per((double)n->dense_tok, (double)n->dense_lanes)), "kv_read_bytes_per_tok",
        kvl_record_real(per((double)n->kv_read_bytes, (double)n->n_tokens)),
        "index_read_bytes_per_tok",
        kvl_record_real(per((double)n->index_read_bytes, (double)n->n_tokens)), "kv_logical_bytes",
        (json_int_t)t->bytes.logical, "kv_physical_bytes", (json_int_t)t->bytes.physical,
        "kv_own_bytes", (json_int_t)t->bytes.own, "meta_bytes", (json_int_t)t->bytes.meta, "tiers",
        kvl_record_tiers(tiers));
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
    for (int32_t i = 0; i < t->n_steps; i++) sum += t->step_ns[i];
    json_t *what =
        json_pack("{s:i, s:i, s:o, s:i}", "repeat", c->repeat, "threads", t->threads, "host",
                  kvl_record_path_text(t->host), "warmup_steps", s->speed.warmup);
    json_t *times = json_pack(
        "{s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "step_ns", speed_steps(t),
        "prefill_ns", kvl_record_ns(t->prefill_ns), "attach_ns", (json_int_t)t->attach_ns,
        "replay_ns", (json_int_t)t->replay_ns, "ttft_ns",
        kvl_record_ns(t->prefill_ns + (double)(t->replay_ns + t->attach_ns + t->first_ns)),
        "meta_ns", speed_part(t, n->meta_ns), "select_ns", speed_part(t, n->select_ns), "attend_ns",
        speed_part(t, n->attend_ns), "evict_ns", speed_part(t, n->evict_ns), "fetch_ns",
        (json_int_t)n->fetch_ns, "rest_ns", speed_part(t, sum > parts ? sum - parts : 0));
    json_t *rates = json_pack(
        "{s:o, s:o}", "decode_tok_per_s", kvl_record_real(per(t->n_steps, (double)sum * 1e-9)),
        "prefill_tok_per_s", kvl_record_real(per(c->length, t->prefill_ns * 1e-9)));
    json_t *memory =
        json_pack("{s:I, s:I, s:o}", "weight_bytes_per_tok", (json_int_t)t->weight_bytes_per_tok,
                  "rss_peak_bytes", (json_int_t)kvl_rss_peak_bytes(), "gpu", speed_gpu(t));
    json_t *r =
        kvl_record_add(kvl_record_add(kvl_record_start("speed", run), kvl_record_point(c)), what);
    r = kvl_record_add(kvl_record_add(kvl_record_add(r, times), rates), speed_counts(t));
    return kvl_record_add(kvl_record_add(r, kvl_record_method(&t->method)), memory);
}

/* ---- error ----------------------------------------------------------------------------------- */

static json_t *error_fields(const struct kvl_cell *c, const char *model, int32_t context,
                            int32_t question, int status, const char *message)
{
    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:s, s:o}", "cell", c ? json_string(c->id) : json_null(), "key",
        c ? kvl_record_path_text(c->key) : json_null(), "model", kvl_record_path_text(model),
        "context", context >= 0 ? json_integer(context) : json_null(), "question",
        question >= 0 ? json_integer(question) : json_null(), "status", kvl_status_name(status),
        "message", kvl_record_path_text(message));
}

json_t *kvl_record_model_error(const char *run, const char *model, int status, const char *message)
{
    return kvl_record_add(kvl_record_start("error", run),
                          error_fields(NULL, model, -1, -1, status, message));
}

json_t *kvl_record_error(const char *run, const struct kvl_cell *c, int32_t context,
                         int32_t question, int status, const char *message)
{
    return kvl_record_add(kvl_record_start("error", run),
                          error_fields(c, NULL, context, question, status, message));
}
