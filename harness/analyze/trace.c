/* Taps as records. */
#include "trace.h"

#include "args.h"
#include "record_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TRACE_GROUP_BYTES = 1 << 20 }; /* of text in one commit, about */

static int trace_append(struct kvl_trace *t, const char *kind, json_t *fields, struct kvl_err *err)
{
    json_t *record = kvl_record_add(kvl_record_start(kind, kvl_log_run(t->log)), fields);
    if (!record) return kvl_fail(err, KVL_ENOMEM, "out of memory for a record of the trace");
    int rc = kvl_log_append(t->log, record, err);
    json_decref(record);
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static json_t *trace_positions(const int32_t *pos, int32_t n)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < n; i++) kvl_record_item(&list, json_integer(pos[i]));
    return list;
}

/* The digits of a float, not those of the double next to it; null for -inf. */
static json_t *trace_float(float v)
{
    char text[32];
    double short_one;
    if (!isfinite(v)) return json_null();
    snprintf(text, sizeof text, "%.8g", (double)v);
    return json_real(kvl_parse_f64(text, &short_one) == KVL_OK ? short_one : (double)v);
}

static json_t *trace_floats(const float *v, int32_t n_lists, int32_t n)
{
    json_t *lists = json_array();
    for (int32_t l = 0; l < n_lists; l++) {
        json_t *list = json_array();
        for (int32_t i = 0; i < n; i++)
            kvl_record_item(&list, trace_float(v[(size_t)l * (size_t)n + (size_t)i]));
        kvl_record_item(&lists, list);
    }
    return lists;
}

/* The first head that read the same list as head h. */
static int32_t trace_same(const struct kvl_tap_read *r, int32_t h)
{
    int32_t first = 0;
    for (; first < h; first++)
        if (r->n_read[first] == r->n_read[h] &&
            memcmp(r->read[first], r->read[h], (size_t)r->n_read[h] * sizeof *r->read[h]) == 0)
            break;
    return first;
}

/* Different lists once, and for every head the index of its own. */
static int trace_lists(const struct kvl_trace *t, const struct kvl_tap_read *r, json_t *lists,
                       json_t *list_of)
{
    int failed = 0;
    for (int32_t h = 0; h < t->shape->n_heads; h++) {
        int32_t same = trace_same(r, h);
        json_t *index = same < h ? json_incref(json_array_get(list_of, (size_t)same))
                                 : json_integer((json_int_t)json_array_size(lists));
        if (same == h)
            failed |= json_array_append_new(lists, trace_positions(r->read[h], r->n_read[h]));
        failed |= json_array_append_new(list_of, index);
    }
    return failed;
}

/* Everything that there is was read by every head. */
static bool trace_all(const struct kvl_trace *t, const struct kvl_tap_read *r)
{
    for (int32_t h = 0; h < t->shape->n_heads; h++)
        if (r->n_read[h] != r->pos + 1) return false;
    return true;
}

/* ---- taps ------------------------------------------------------------------------------------ */

static int trace_read(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    struct kvl_trace *t = user;
    bool all = trace_all(t, r);
    json_t *lists = all ? json_null() : json_array();
    json_t *list_of = all ? json_null() : json_array();
    int failed = all ? 0 : trace_lists(t, r, lists, list_of);
    t->n_reads++;
    json_t *fields =
        json_pack("{s:i, s:i, s:i, s:b, s:o, s:o}", "index", r->index, "pos", r->pos, "layer",
                  r->layer, "dense", r->dense, "read", lists, "list_of_head", list_of);
    if (failed) {
        json_decref(fields);
        fields = NULL;
    }
    return trace_append(t, "trace_read", fields, err);
}

static int trace_score(void *user, const struct kvl_tap_score *s, struct kvl_err *err)
{
    static const char *const scopes[] = {
        [KVL_SCOPE_LAYER] = "layer", [KVL_SCOPE_KV_HEAD] = "kv_head", [KVL_SCOPE_Q_HEAD] = "q_head"
    };
    struct kvl_trace *t = user;
    if (!t->scores) return KVL_OK;
    t->n_scores++;
    return trace_append(t, "trace_score",
                        json_pack("{s:i, s:i, s:i, s:s, s:i, s:i, s:o}", "index", s->index, "pos",
                                  s->pos, "layer", s->layer, "scope", scopes[s->scope], "unit_tok",
                                  s->unit_tok, "first_tok", s->first_tok, "score",
                                  trace_floats(s->score, s->n_lists, s->n)),
                        err);
}

static int trace_keep(void *user, const struct kvl_tap_keep *k, struct kvl_err *err)
{
    struct kvl_trace *t = user;
    t->n_keeps++;
    return trace_append(t, "trace_keep",
                        json_pack("{s:i, s:i, s:i, s:i, s:o}", "index", k->index, "pos", k->pos,
                                  "layer", k->layer, "kv_head", k->kv_head, "kept",
                                  trace_positions(k->kept, k->n_kept)),
                        err);
}

void kvl_trace_session(struct kvl_trace *t, struct kvl_session *s)
{
    kvl_session_tap(s,
                    &(struct kvl_tap){
                        .user = t, .read = trace_read, .score = trace_score, .keep = trace_keep });
}

/* ---- header and steps ------------------------------------------------------------------------ */

int kvl_trace_begin(struct kvl_trace *t, const struct kvl_trace_info *info, struct kvl_err *err)
{
    const struct kvl_policy *p = kvl_planned_policy(info->planned);
    int32_t budget = kvl_planned_budget(info->planned);
    char seed[17];
    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)info->seed);
    t->shape = kvl_model_shape(info->model);
    json_t *what = json_pack("{s:o, s:o, s:o, s:s, s:s, s:s}", "t_start", kvl_record_now(), "kvlab",
                             kvl_record_build(), "model", kvl_record_model(info->model), "kv_type",
                             kvl_kv_name(info->kv_type).text, "prefill_type",
                             kvl_prefill_type_name(info->prefill_type), "decode_act",
                             kvl_decode_act_name(info->decode_act));
    json_t *policy = json_pack(
        "{s:s, s:i, s:s, s:s, s:o, s:s, s:s}", "policy", p->name, "policy_version", (int)p->version,
        "options", kvl_planned_options(info->planned), "budget", info->budget, "budget_tok",
        budget ? json_integer(budget) : json_null(), "prefill",
        kvl_planned_own_prefill(info->planned) ? "own" : "shared", "seed", seed);
    json_t *tokens =
        json_pack("{s:i, s:i, s:b, s:o}", "context_tok", info->context_tok, "n_steps",
                  info->n_steps, "scores", t->scores, "ids", trace_positions(info->id, info->n));
    return trace_append(t, "trace", kvl_record_add(kvl_record_add(what, policy), tokens), err);
}

int kvl_trace_step(struct kvl_trace *t, int32_t index, int32_t pos, int32_t id, int32_t argmax,
                   double nll, struct kvl_err *err)
{
    KVL_TRY(trace_append(t, "trace_step",
                         json_pack("{s:i, s:i, s:i, s:i, s:o}", "index", index, "pos", pos, "id",
                                   id, "argmax", argmax, "nll", kvl_record_real(nll)),
                         err));
    return kvl_log_pending_bytes(t->log) < TRACE_GROUP_BYTES ? KVL_OK : kvl_log_commit(t->log, err);
}
