/* A token under every method, on other devices. */
#include "simulate.h"

#include "kvl/peak.h"
#include "text_table.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>

struct bench_list kvl_simulate_depths(int32_t budget_tok, int32_t least, int32_t most)
{
    struct bench_list out = { .n = 0 };
    int32_t deep = KVL_MAX(SIM_DEPTH, 4 * budget_tok), hi = KVL_MIN(most, deep);
    int32_t lo = most > deep ? KVL_MIN(least, deep / 4) : least;
    int32_t mid = (int32_t)sqrt((double)lo * hi);
    out.v[out.n++] = lo;
    if (mid > lo) out.v[out.n++] = mid;
    if (hi > out.v[out.n - 1]) out.v[out.n++] = hi;
    return out;
}

/* ---- this machine ------------------------------------------------------------------------------------- */

enum { HERE_FMA = 4000000, HERE_PREFILL = 512 };

static int here_prefill(struct bench *b, struct kvl_sim *sim)
{
    struct bench_engine want = { .model = b->model, .kv_type = b->config.kv_type };
    struct kvl_engine *engine;
    double s = 0, n = HERE_PREFILL;
    if (!sim->model) return KVL_OK; /* a small model in its place would say nothing */
    KVL_TRY(bench_engine_open(b, &want, &engine));
    kvl_ops_set_threads(b->config.threads.v[0]);
    int rc = bench_prefill_time(b, engine, NULL, HERE_PREFILL, &s);
    kvl_engine_destroy(engine);
    const struct kvl_sim_shape *m = &sim->shape;
    double work = 2 * m->products * n + 2.0 * m->n_layers * m->n_heads * m->head_dim * n * n;
    if (rc == KVL_OK && s > 0) sim->prefill_share = work / s / (sim->here.tflops * 1e12);
    return rc;
}

int kvl_here_measure(struct bench *b, struct kvl_sim *sim)
{
    double stream[BENCH_MAX_ROUNDS], fma[BENCH_MAX_ROUNDS];
    int32_t threads = b->config.threads.v[0];
    KVL_TRY(bench_machine(b));
    for (int32_t r = 0; r < b->config.rounds; r++) {
        stream[r] = 1e-9 * bench_stream(b, threads);
        uint64_t t = kvl_now_ns();
        fma[r] = 1e-3 * kvl_peak_fma(HERE_FMA) / (double)(kvl_now_ns() - t);
    }
    sim->prefill_share = 0.8; /* what results/cpu.md has of prefills, about */
    sim->here = (struct kvl_profile){
        .here = true,
        .memory_gib = (double)b->origin.machine.ram_bytes / 0x1p30,
        .memory_gbs = bench_spread(stream, b->config.rounds).hi,
        .tflops = bench_spread(fma, b->config.rounds).hi,
        .cores = threads,
    };
    snprintf(sim->here.name, sizeof sim->here.name, "here");
    return here_prefill(b, sim);
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static const struct kvl_column columns[] = {
    { "method", true },        { "ms", false },     { "x full", false },   { "weights", false },
    { "attend", false },       { "method", false }, { "fetch", false },    { "links", false },
    { "keys, values", false }, { "index", false },  { "over bus", false }, { "a device", false },
    { "host", false },         { "bend", false },
};

static void sim_number(struct kvl_table *t, double ms)
{
    char text[BENCH_DIGITS];
    bench_digits(ms, text);
    kvl_table_add(t, "%s", text);
}

static void sim_bytes(struct kvl_table *t, double bytes)
{
    kvl_table_bytes(t, bytes > 0 ? bytes : (double)NAN);
}

static void sim_row(struct kvl_table *t, const struct kvl_method_costs *m,
                    const struct kvl_sim_token *k, double full_s, bool fits)
{
    double bend = 100 * kvl_costs_bend(m);
    kvl_table_add(t, "%s", m->word);
    sim_number(t, 1e3 * k->total_s);
    sim_number(t, full_s / k->total_s);
    sim_number(t, 1e3 * k->weights_s);
    sim_number(t, 1e3 * k->attend_s);
    sim_number(t, 1e3 * k->method_s);
    sim_number(t, 1e3 * k->fetch_s);
    sim_number(t, 1e3 * k->links_s);
    sim_bytes(t, k->kv_bytes);
    sim_bytes(t, k->index_bytes);
    sim_bytes(t, k->fetch_bytes);
    kvl_table_add(t, "%s%s", kvl_bytes_text(k->memory_bytes).s, fits ? "" : " (no)");
    sim_bytes(t, k->host_bytes);
    if (bend < 1)
        kvl_table_add(t, "-");
    else
        kvl_table_add(t, "%.0f %%", bend);
}

static int sim_json(struct kvl_simulate *a, const struct kvl_profile *p, int32_t length,
                    const struct kvl_method_costs *m, const struct kvl_sim_token *k, double full_s)
{
    if (!a->bench.json) return KVL_OK;
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:f, "
        "s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
        "kind", "simulated", "profile", p->name, "model", a->sim.shape.name, "policy", m->word,
        "budget_tok", m->budget_tok, "length_tok", length, "tensor", a->split.tensor, "pipeline",
        a->split.pipeline, "context", a->split.context, "token_ms", 1e3 * k->total_s, "speed",
        full_s / k->total_s, "weights_ms", 1e3 * k->weights_s, "attend_ms", 1e3 * k->attend_s,
        "method_ms", 1e3 * k->method_s, "fetch_ms", 1e3 * k->fetch_s, "links_ms", 1e3 * k->links_s,
        "weight_bytes", k->weight_bytes, "kv_read_bytes", k->kv_bytes, "index_read_bytes",
        k->index_bytes, "bus_bytes", k->fetch_bytes, "memory_bytes", k->memory_bytes,
        "on_host_bytes", k->host_bytes, "prefill_memory_bytes", k->prefill_bytes, "prefill_s",
        kvl_sim_prefill(&a->sim, p, a->split, length), "bend", kvl_costs_bend(m));
    if (!o) return kvl_fail(a->base.err, KVL_ENOMEM, "out of memory");
    bool good = json_dumpf(o, a->bench.json, JSON_COMPACT) == 0 && fputc('\n', a->bench.json) > 0;
    json_decref(o);
    return good ? KVL_OK : kvl_fail(a->base.err, KVL_EIO, "--json: cannot write");
}

static void sim_head(const struct kvl_simulate *a, const struct kvl_profile *p, int32_t length,
                     const struct kvl_sim_token *full)
{
    const struct bench_list *d = &a->bench.config.depths;
    double prefill = kvl_sim_prefill(&a->sim, p, a->split, length);
    printf("\n%s, %d tokens, budget %d, %s", p->name, length, a->bench.config.budget_tok,
           a->sim.shape.name);
    if (a->split.tensor > 1) printf(", %d x tensor", a->split.tensor);
    if (a->split.pipeline > 1) printf(", %d x pipeline", a->split.pipeline);
    if (a->split.context > 1) printf(", %d x context", a->split.context);
    bool measured = p->here && a->sim.model && length <= d->v[d->n - 1];
    printf(": %s", measured ? "measured" : "predicted");
    printf(
        "\nmilliseconds of a decoded token, bytes that it reads, memory of a device of %.0f GiB; "
        "prefill: %.3g s, %s\n",
        p->memory_gib, prefill, kvl_bytes_text(full->prefill_bytes).s);
}

static int sim_table(struct kvl_simulate *a, const struct kvl_profile *p, int32_t length)
{
    struct kvl_table t = { .column = columns, .n_columns = sizeof columns / sizeof columns[0] };
    double full_s = (double)NAN, room = p->memory_gib * 0x1p30;
    int rc = KVL_OK;
    for (size_t i = 0; rc == KVL_OK && i < a->costs.n; i++) {
        const struct kvl_method_costs *m = &a->costs.method[i];
        if (m->n == 0) continue;
        struct kvl_sim_token k = kvl_sim_token(&a->sim, m, p, a->split, length);
        if (i == 0) {
            full_s = k.total_s;
            sim_head(a, p, length, &k);
        }
        sim_row(&t, m, &k, full_s, k.memory_bytes <= room);
        rc = sim_json(a, p, length, m, &k, full_s);
    }
    if (rc == KVL_OK) rc = kvl_table_print(&t, 0, stdout, a->base.err);
    kvl_table_free(&t);
    return rc;
}

int kvl_simulate_methods(struct kvl_simulate *a)
{
    const struct bench_list *d = &a->bench.config.depths;
    printf("measured here at");
    for (int32_t i = 0; i < d->n; i++) printf("%s %d", i ? "," : "", d->v[i]);
    printf(
        " tokens with %d thread%s: %.1f GB/s, %.3f TFLOP/s of floats; `bend`: how far the last of "
        "these lay off the line of the others\n",
        a->sim.here.cores, a->sim.here.cores == 1 ? "" : "s", a->sim.here.memory_gbs,
        a->sim.here.tflops);
    for (size_t p = 0; p < a->n_profiles; p++)
        for (size_t l = 0; l < a->n_lengths; l++)
            KVL_TRY(sim_table(a, &a->profile[p], a->length[l]));
    for (size_t i = 0; i < a->costs.n; i++)
        if (a->costs.method[i].n == 0)
            printf("left out: %s: %s\n", a->costs.method[i].word, a->costs.method[i].why);
    return KVL_OK;
}
