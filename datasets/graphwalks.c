/* GraphWalks: a list of directed edges fills the context; nodes are asked for that edges lead to or from.
 *
 * After GraphWalks (OpenAI 2025): nodes are hexadecimal strings, `parents` asks for all nodes with an edge to one,
 * `bfs` for those that are exactly so many steps away from one.  Differs in that the length is exact in
 * tokens, wording and answer form are our own (theirs: a list behind "Final Answer:"), and a node has at most 2
 * edges from it and 4 to it, so that answers stay short.
 *
 *     intro \n [sentences \n] 1a2b3c4d -> 5e6f7a8b \n ... \n | question -> " 1a2b3c4d, 9c0d1e2f"
 *
 * Evidence: the edges that tell the nodes of the answer, for `bfs` those of the last step.
 */
#include "list.h"
#include "parts.h"

#include <stdio.h>
#include <string.h>

KVL_PHRASE(graph_intro,
           "Below is a list of edges of a graph. Each edge leads from one node to another.");
KVL_PHRASE(graph_item, "{key} -> {value}");
KVL_PHRASE(graph_parents, "Which nodes have an edge that leads to {node}? The nodes are");
KVL_PHRASE(
    graph_bfs,
    "Which nodes can be reached from {node} in {steps} steps and not in fewer? The nodes are");

enum { GRAPH_NODE = 8, GRAPH_OUT = 2, GRAPH_IN = 4, GRAPH_EDGES = 1 << 24, GRAPH_STEPS = 3 };
enum graph_operation { GRAPH_PARENTS = 0, GRAPH_BFS };

static const char *const graph_operations[] = { "parents", "bfs", NULL };

struct graph_opts {
    int32_t operation, steps, edges, max_new;
};

static const struct kvl_opt graph_options[] = {
    { .name = "operation",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct graph_opts, operation),
      .def = "parents",
      .choices = graph_operations,
      .help = "parents: nodes with an edge to one; bfs: nodes `steps` steps away from one" },
    { .name = "steps",
      .type = KVL_OPT_INT,
      .off = offsetof(struct graph_opts, steps),
      .def = "2",
      .min = 1,
      .max = GRAPH_STEPS,
      .help = "steps of bfs" },
    { .name = "edges",
      .type = KVL_OPT_INT,
      .off = offsetof(struct graph_opts, edges),
      .def = "auto",
      .min = 1,
      .max = GRAPH_EDGES,
      .help = "edges in the list; auto fills the context" },
    { .name = "max_new",
      .type = KVL_OPT_INT,
      .off = offsetof(struct graph_opts, max_new),
      .def = "auto",
      .min = 1,
      .max = KVL_PARTS_MAX_NEW,
      .help = "tokens that an answer may take; auto: the expected answer and 2" },
    { 0 },
};

struct graph_edge {
    int32_t from, to;
    size_t begin, end; /* of the list's text */
};

/* Nodes that an answer names, and the edge that tells each. */
struct graph_answer {
    char name[KVL_PARTS][GRAPH_NODE + 1];
    struct kvl_span edge[KVL_PARTS];
    int32_t n;
};

struct graph {
    const struct graph_opts *opts;
    struct kvl_rng rng;
    uint32_t salt;
    int32_t n_nodes;
    int32_t *n_in, *n_out; /* [n_nodes] edges drawn */
    struct kvl_buf edge;   /* struct graph_edge, as drawn */
    int32_t *asked;        /* [n_questions] nodes */
    struct graph_answer *answer;
};

/* ---- nodes and edges --------------------------------------------------------------------------- */

/* Different for different nodes: every step can be undone. */
static void graph_name(const struct graph *g, int32_t node, char out[GRAPH_NODE + 1])
{
    uint32_t x = (uint32_t)node ^ g->salt;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    snprintf(out, GRAPH_NODE + 1, "%08x", (unsigned)(x ^ x >> 16));
}

static const struct graph_edge *graph_edges(const struct graph *g)
{
    return (const struct graph_edge *)(const void *)g->edge.data;
}

static int graph_open(struct kvl_list *l)
{
    struct graph *g = l->task;
    g->n_nodes = l->most / (l->wanted == KVL_AUTO ? 20 : 1) + 8;
    g->n_in = kvl_alloc((size_t)g->n_nodes, sizeof *g->n_in);
    g->n_out = kvl_alloc((size_t)g->n_nodes, sizeof *g->n_out);
    g->asked = kvl_alloc((size_t)l->req->n_questions, sizeof *g->asked);
    g->answer = kvl_alloc((size_t)l->req->n_questions, sizeof *g->answer);
    return g->n_in && g->n_out && g->asked && g->answer ? KVL_OK : kvl_list_fail_memory(l);
}

static bool graph_has(const struct graph *g, const struct kvl_list *l, int32_t from, int32_t to)
{
    const struct graph_edge *e = graph_edges(g);
    for (int32_t i = 0; g->n_out[from] && i < l->n; i++)
        if (e[i].from == from && e[i].to == to) return true;
    return false;
}

/* A node that has room, from a random one on. */
static int32_t graph_draw(struct graph *g, const int32_t *n, int32_t most)
{
    int32_t node = (int32_t)kvl_rng_below(&g->rng, (uint32_t)g->n_nodes);
    for (int32_t i = 0; i < g->n_nodes && n[node] >= most; i++) node = (node + 1) % g->n_nodes;
    return node;
}

static int graph_next(struct kvl_list *l)
{
    struct graph *g = l->task;
    struct kvl_list_entry e;
    char from[GRAPH_NODE + 1], to[GRAPH_NODE + 1];
    if (!g->n_in) KVL_TRY(graph_open(l));
    struct graph_edge x = { .from = graph_draw(g, g->n_out, GRAPH_OUT) };
    do {
        x.to = graph_draw(g, g->n_in, GRAPH_IN);
    } while (x.to == x.from || graph_has(g, l, x.from, x.to));
    g->n_out[x.from]++;
    g->n_in[x.to]++;
    graph_name(g, x.from, from);
    graph_name(g, x.to, to);
    KVL_TRY(kvl_list_add(l, from, to, &e));
    x.begin = e.key;
    x.end = e.value + e.n_value;
    return kvl_buf_add(&g->edge, &x, sizeof x) == KVL_OK ? KVL_OK : kvl_list_fail_memory(l);
}

/* ---- answers -------------------------------------------------------------------------------------- */

static void answer_add(const struct graph *g, int32_t node, const struct graph_edge *e,
                       struct graph_answer *a)
{
    char name[GRAPH_NODE + 1];
    graph_name(g, node, name);
    for (int32_t i = 0; i < a->n; i++)
        if (strcmp(a->name[i], name) == 0) return;
    memcpy(a->name[a->n], name, sizeof name);
    a->edge[a->n++] = (struct kvl_span){ e->begin, e->end };
}

static void answer_parents(const struct graph *g, const struct kvl_list *l, int32_t node,
                           struct graph_answer *a)
{
    const struct graph_edge *e = graph_edges(g);
    a->n = 0;
    for (int32_t i = 0; i < l->n; i++)
        if (e[i].to == node) answer_add(g, e[i].from, &e[i], a);
}

static bool node_in(const int32_t *v, int32_t n, int32_t node)
{
    for (int32_t i = 0; i < n; i++)
        if (v[i] == node) return true;
    return false;
}

/* Two edges from a node make 1 + 2 + 4 + 8 of them in three steps at most. */
static void answer_bfs(const struct graph *g, const struct kvl_list *l, int32_t node,
                       struct graph_answer *a)
{
    const struct graph_edge *e = graph_edges(g);
    int32_t seen[1 << (GRAPH_STEPS + 1)] = { node }, n = 1, first = 0;
    for (int32_t step = 0; step < g->opts->steps; step++) {
        int32_t end = n;
        a->n = 0;
        for (int32_t i = 0; i < l->n; i++) {
            if (!node_in(seen + first, end - first, e[i].from) || node_in(seen, n, e[i].to))
                continue;
            answer_add(g, e[i].to, &e[i], a);
            seen[n++] = e[i].to;
        }
        first = end;
    }
}

/* The edge that lies where the question wants it is told of first. */
static void answer_first(struct graph_answer *a, size_t begin)
{
    for (int32_t i = 1; i < a->n; i++) {
        if (a->edge[i].begin != begin) continue;
        struct graph_answer swap = *a;
        memcpy(a->name[0], swap.name[i], sizeof a->name[0]);
        memcpy(a->name[i], swap.name[0], sizeof a->name[0]);
        a->edge[0] = swap.edge[i];
        a->edge[i] = swap.edge[0];
        return;
    }
}

/* The node of an edge that was not asked before and has an answer; KVL_EINVAL: there is none. */
static int answer_find(struct graph *g, const struct kvl_list *l, int32_t at, int32_t i_question)
{
    bool parents = g->opts->operation == GRAPH_PARENTS;
    for (int32_t i = 0; i < l->n; i++) {
        const struct graph_edge *e = &graph_edges(g)[(at + i) % l->n];
        int32_t node = parents ? e->to : e->from;
        struct graph_answer *a = &g->answer[i_question];
        if (node_in(g->asked, i_question, node)) continue;
        (parents ? answer_parents : answer_bfs)(g, l, node, a);
        if (a->n == 0) continue;
        if (parents) answer_first(a, e->begin);
        g->asked[i_question] = node;
        return KVL_OK;
    }
    return KVL_EINVAL;
}

static int graph_ask(const struct kvl_list *l, const struct kvl_list_entry *entry,
                     int32_t i_question, struct kvl_list_words *out)
{
    struct graph *g = l->task;
    const struct graph_answer *a = &g->answer[i_question];
    char node[GRAPH_NODE + 1], steps[4];
    int32_t at = 0;
    while (graph_edges(g)[at].begin != entry->key) at++;
    if (answer_find(g, l, at, i_question) != KVL_OK) g->answer[i_question].n = 0;
    graph_name(g, g->asked[i_question], node);
    snprintf(steps, sizeof steps, "%d", g->opts->steps);
    const struct kvl_text_field field[] = { { "node", node }, { "steps", steps } };
    bool parents = g->opts->operation == GRAPH_PARENTS;
    KVL_TRY(kvl_text_fill(parents ? graph_parents : graph_bfs, field, 2, &out->text));
    for (int32_t i = 0; i < a->n; i++) {
        KVL_TRY(kvl_buf_printf(&out->answer, "%s %s", i ? "," : "", a->name[i]));
        KVL_TRY(kvl_buf_printf(&out->gold, "%s%s", i ? ", " : "", a->name[i]));
    }
    out->max_new = g->opts->max_new;
    return a->n ? KVL_OK : kvl_buf_adds(&out->answer, "?");
}

/* ---- the task ---------------------------------------------------------------------------------------- */

/* Where the list begins: at the first of its edges. */
static size_t graph_begin(const struct graph *g, const struct kvl_sample *s)
{
    char first[2 * GRAPH_NODE + 8], from[GRAPH_NODE + 1], to[GRAPH_NODE + 1];
    graph_name(g, graph_edges(g)[0].from, from);
    graph_name(g, graph_edges(g)[0].to, to);
    snprintf(first, sizeof first, "%s -> %s", from, to);
    const char *at = strstr(s->context, first);
    return at ? (size_t)(at - s->context) - graph_edges(g)[0].begin : 0;
}

static int graph_evidence(const struct graph *g, struct kvl_sample *s, struct kvl_err *err)
{
    size_t begin = graph_begin(g, s);
    for (int32_t i = 0; i < s->n_questions; i++) {
        const struct graph_answer *a = &g->answer[i];
        struct kvl_part part[KVL_PARTS];
        struct kvl_question *q = &s->question[i];
        if (a->n == 0)
            return kvl_fail(err, KVL_EINVAL,
                            "%d questions, but only %d nodes have an answer: want a longer context "
                            "or fewer questions",
                            s->n_questions, i);
        for (int32_t k = 0; k < a->n; k++)
            part[k] = (struct kvl_part){ a->name[k],
                                         { begin + a->edge[k].begin, begin + a->edge[k].end } };
        q->n_evidence = 0;
        memset(q->evidence, 0, sizeof q->evidence);
        kvl_parts_evidence(part, a->n, q);
        q->depth = kvl_fit_depth(&s->tokens, q);
    }
    return KVL_OK;
}

static int graphwalks_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct graph g = { .opts = req->opts };
    struct kvl_sample s = { 0 };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = graph_intro,
                             .item = graph_item,
                             .key = "key",
                             .value = "value",
                             .before_first = "",
                             .before = "",
                             .after = "\n",
                             .end = "",
                             .many = "edges",
                             .wanted = g.opts->edges,
                             .task = &g,
                             .next = graph_next,
                             .ask = graph_ask };
    kvl_rng_seed(&g.rng, kvl_seed_str(req->seed, "edges"));
    g.salt = kvl_rng_below(&g.rng, UINT32_MAX);
    int rc = kvl_list_generate(&list, &s);
    if (rc == KVL_OK) rc = graph_evidence(&g, &s, &why);
    kvl_free(g.n_in);
    kvl_free(g.n_out);
    kvl_free(g.asked);
    kvl_free(g.answer);
    kvl_buf_free(&g.edge);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_sample_free(&s);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "graphwalks: %s", why.msg);
}

static bool hex_word(const char *s)
{
    return strspn(s, "0123456789abcdef") == GRAPH_NODE;
}

/* Official: F1 of the nodes that the first line names.  Strict: it names just these, and nothing else. */
static void graphwalks_score(const struct kvl_question *q, const char *prediction,
                             struct kvl_task_score *out)
{
    char said[64][GRAPH_NODE + 1];
    int32_t n = 0, right = 0, want = 1;
    const char *end = prediction + strspn(prediction, "\n");
    end += strcspn(end, "\n");
    for (const char *c = q->gold; *c; c++) want += *c == ',';
    for (const char *c = prediction; c + GRAPH_NODE <= end && n < 64; c++) {
        bool begins = c == prediction || !strchr("0123456789abcdef", c[-1]);
        if (!begins || !hex_word(c)) continue;
        memcpy(said[n], c, GRAPH_NODE);
        said[n][GRAPH_NODE] = '\0';
        bool twice = false;
        for (int32_t i = 0; i < n; i++) twice |= strcmp(said[i], said[n]) == 0;
        if (twice) continue;
        right += strstr(q->gold, said[n++]) != NULL;
    }
    double p = n ? (double)right / n : 0.0, r = (double)right / want;
    *out = (struct kvl_task_score){ .official = right ? 2.0 * p * r / (p + r) : 0.0,
                                    .strict = kvl_parts_strict(q->gold, prediction, false) };
}

static double graphwalks_chance(const void *opts)
{
    (void)opts;
    return 0.0;
}

static const struct kvl_task graphwalks = {
    .abi = KVL_TASK_ABI,
    .size = sizeof graphwalks,
    .name = "graphwalks",
    .title = "Walks on a graph",
    .paper = "OpenAI 2025 (GraphWalks)",
    .help = "edges of a graph fill the context: give the nodes before one, or some steps behind it",
    .version = 1,
    .opts = graph_options,
    .opts_size = sizeof(struct graph_opts),
    .generate = graphwalks_generate,
    .score = graphwalks_score,
    .chance = graphwalks_chance,
};

KVL_TASK_EXPORT(graphwalks)
