/* Merging logs: what stands twice, in which order the rest stands, which shards belong together. */
#include "log_merge.h"

#include "json.h"
#include "log_frame.h"
#include "log_shards.h"
#include "outfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* Of a commit of the new log. */
enum { MERGE_GROUP_BYTES = 1 << 20 };

/* Texts of all logs lie in one buffer, which moves as it grows: places are numbers. */
enum line_kind {
    LINE_OTHER,
    LINE_RESULT, /* a cell's own record */
    LINE_PARTIAL /* what it had before */
};
struct line {
    XXH128_hash_t what;   /* records of the same are doubles of each other */
    XXH128_hash_t bytes;  /* of the line */
    uint64_t run, cell;   /* of their ids */
    size_t at, len;       /* in the text */
    uint64_t rank, place; /* of its run among runs, of itself in its log */
    enum line_kind kind;
    bool good;
};

struct merge {
    struct kvl_buf text;
    struct line *line;
    size_t n, cap;
    json_t *runs;   /* id -> its record */
    json_t *plans;  /* sweep and model -> {plan, shards, have: [index ...]} */
    uint64_t place; /* of the next line in its log */
    const char *path;
};

static int merge_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory for the records of the logs");
}

/* ---- what a record is an answer to --------------------------------------------------------- */

static int what_member(struct kvl_buf *b, const json_t *record, const char *path)
{
    const json_t *v = kvl_json_value(record, path);
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS) : NULL;
    int rc = kvl_buf_adds(b, text ? text : "-");
    free(text);
    return rc == KVL_OK ? kvl_buf_adds(b, "\n") : rc;
}

/* Members that tell apart what records of a kind answer.  Reference passes of other lengths are other ones, in their
 * own records and in those of cells. */
static const char *const what_members[][6] = {
    { "sample", "cell", "context", "question" },
    { "quality", "cell", "context", "question", "steps", "top" },
    { "nll", "cell", "context" },
    { "cell", "cell", "quality.questions", "quality.steps", "quality.top" },
    { "perplexity", "cell" },
    { "speed", "cell" },
    { "analysis", "cell" },
    { "partial", "cell" },
};

/* false: it is an answer to nothing, and only the same line is a double of it. */
static int what_text(const json_t *record, struct kvl_buf *b, bool *found)
{
    const char *kind = kvl_json_text(record, "kind");
    *found = false;
    for (size_t i = 0; i < sizeof what_members / sizeof what_members[0]; i++) {
        if (strcmp(kind, what_members[i][0]) != 0 || !kvl_json_text(record, "cell")[0]) continue;
        KVL_TRY(kvl_buf_adds(b, kind));
        for (size_t m = 1; m < 6 && what_members[i][m]; m++)
            KVL_TRY(what_member(b, record, what_members[i][m]));
        *found = true;
    }
    return KVL_OK;
}

/* Of what an unfinished cell had the last word counts. */
static bool record_good(const json_t *record)
{
    return strcmp(kvl_json_text(record, "kind"), "partial") != 0 &&
           !json_is_string(json_object_get(record, "error")) &&
           !(json_integer_value(json_object_get(record, "n_errors")) > 0);
}

static enum line_kind record_kind(const json_t *record)
{
    const char *kind = kvl_json_text(record, "kind");
    if (strcmp(kind, "partial") == 0) return LINE_PARTIAL;
    bool result = strcmp(kind, "cell") == 0 || strcmp(kind, "perplexity") == 0;
    return result ? LINE_RESULT : LINE_OTHER;
}

/* ---- reading ------------------------------------------------------------------------------- */

static struct line *merge_line(struct merge *m)
{
    if (m->n == m->cap) {
        size_t cap = m->cap ? 2 * m->cap : 1024;
        struct line *grown = realloc(m->line, cap * sizeof *grown);
        if (!grown) return NULL;
        m->line = grown;
        m->cap = cap;
    }
    return &m->line[m->n++];
}

static int merge_schema(const struct merge *m, const json_t *record, struct kvl_err *err)
{
    const char *schema = kvl_json_text(record, "schema");
    if (strcmp(schema, KVL_LOG_SCHEMA) == 0) return KVL_OK;
    return kvl_fail(err, KVL_ELOG, "%s: a record of schema \"%s\", want %s", m->path, schema,
                    KVL_LOG_SCHEMA);
}

static int merge_shard(struct merge *m, const json_t *run, struct kvl_err *err);

static int merge_record(struct merge *m, json_t *record, const char *text, size_t len,
                        struct kvl_err *err)
{
    struct kvl_buf what = { 0 };
    bool found;
    KVL_TRY(merge_schema(m, record, err));
    const char *run = kvl_json_text(record, "run");
    if (strcmp(kvl_json_text(record, "kind"), "run") == 0) {
        KVL_TRY(merge_shard(m, record, err));
        if (json_object_set(m->runs, run, record) != 0) return merge_memory(err);
    }
    const char *cell = kvl_json_text(record, "cell");
    struct line *l = merge_line(m);
    if (!l || what_text(record, &what, &found) != KVL_OK) return merge_memory(err);
    *l = (struct line){ .bytes = XXH3_128bits(text, len),
                        .run = XXH3_64bits(run, strlen(run)),
                        .cell = XXH3_64bits(cell, strlen(cell)),
                        .kind = record_kind(record),
                        .at = m->text.len,
                        .len = len,
                        .place = m->place++,
                        .good = record_good(record) };
    l->what = found ? XXH3_128bits(what.data, what.len) : l->bytes;
    kvl_buf_free(&what);
    return kvl_buf_add(&m->text, text, len) == KVL_OK ? KVL_OK : merge_memory(err);
}

static int merge_text(const char *text, size_t len, void *user, struct kvl_err *err)
{
    json_t *record = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (!record) return merge_memory(err); /* the reader had it as JSON */
    int rc = merge_record(user, record, text, len, err);
    json_decref(record);
    return rc;
}

/* Damage costs records that somebody once had: who merges must know, and say so by repairing. */
static int merge_read(struct merge *m, const char *path, struct kvl_log_health *health,
                      struct kvl_err *err)
{
    struct kvl_log_health own = { 0 };
    m->path = path;
    m->place = 0;
    int rc = kvl_log_lines(path, merge_text, m, &own, err);
    for (size_t i = 0; i < own.n_damage && rc == KVL_OK; i++)
        if (!own.damage[i].tail)
            rc = kvl_fail(err, KVL_ELOG,
                          "%s: byte %llu: %s; merge what kvlab log repair copies of it", path,
                          (unsigned long long)own.damage[i].offset, own.damage[i].what);
    if (rc == KVL_OK && own.n_bad_lines)
        rc = kvl_fail(err, KVL_ELOG, "%s: %llu lines are no records, want a log of kvlab", path,
                      (unsigned long long)own.n_bad_lines);
    health->n_files += own.n_files;
    health->n_records += own.n_records;
    kvl_log_health_free(&own);
    return rc;
}

/* ---- shards -------------------------------------------------------------------------------- */

/* What shards of one sweep and model share. */
static json_t *shard_plan(struct merge *m, const json_t *run)
{
    struct kvl_buf key = { 0 };
    json_t *plan = NULL;
    if (kvl_buf_printf(&key, "%s\n%s\n%s", kvl_json_text(run, "sweep.name"),
                       kvl_json_text(run, "model.hash"),
                       kvl_json_text(run, "model.file")) == KVL_OK) {
        plan = json_object_get(m->plans, key.data);
        if (!plan && json_object_set_new(m->plans, key.data, json_object()) == 0)
            plan = json_object_get(m->plans, key.data);
    }
    kvl_buf_free(&key);
    return plan;
}

static int shard_differs(const struct merge *m, const json_t *plan, const char *shard,
                         const char *hash, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EINVAL,
                    "%s: shard %s of plan %s, and %s has one of %lld of plan %s: shards of one "
                    "sweep have one plan",
                    m->path, shard, hash[0] ? hash : "unknown", kvl_json_text(plan, "path"),
                    (long long)json_integer_value(json_object_get(plan, "shards")),
                    kvl_json_text(plan, "plan")[0] ? kvl_json_text(plan, "plan") : "unknown");
}

/* Older logs have no plan: any does then. */
static int merge_shard(struct merge *m, const json_t *run, struct kvl_err *err)
{
    const char *shard = kvl_json_text(run, "sweep.shard"), *hash = kvl_json_text(run, "sweep.plan");
    int64_t index, count;
    if (!kvl_log_shard(shard, &index, &count)) return KVL_OK;
    json_t *plan = shard_plan(m, run), *have = json_object_get(plan, "have");
    if (!plan) return merge_memory(err);
    const char *its = kvl_json_text(plan, "plan");
    if (have && (json_integer_value(json_object_get(plan, "shards")) != count ||
                 (hash[0] && its[0] && strcmp(hash, its) != 0)))
        return shard_differs(m, plan, shard, hash, err);
    int failed = have ? 0 : json_object_set_new(plan, "have", have = json_object());
    failed |= json_object_set_new(have, shard, json_true());
    failed |= json_object_set_new(plan, "shards", json_integer(count));
    if (!its[0]) {
        failed |= json_object_set_new(plan, "plan", json_string(hash));
        failed |= json_object_set_new(plan, "path", json_string(m->path));
    }
    return failed ? merge_memory(err) : KVL_OK;
}

/* Numbers without a record, as ranges. */
static int plan_missing(const char *name, const json_t *plan, struct kvl_log_merged *out)
{
    struct kvl_log_ranges r = { 0 };
    struct kvl_buf line = { 0 };
    char shard[64];
    int64_t n = json_integer_value(json_object_get(plan, "shards"));
    const json_t *have = json_object_get(plan, "have");
    int rc = KVL_OK, name_len = (int)strcspn(name, "\n");
    for (int64_t i = 0; i < n && rc == KVL_OK; i++) {
        snprintf(shard, sizeof shard, "%lld/%lld", (long long)i, (long long)n);
        if (!json_object_get(have, shard)) rc = kvl_log_ranges_add(&r, i);
    }
    if (rc == KVL_OK && r.text.len) {
        rc = kvl_buf_printf(&line, "%.*s: shard %s of %lld is in no log", name_len, name,
                            r.text.data, (long long)n);
        if (rc == KVL_OK && json_array_append_new(out->missing, json_string(line.data)) != 0)
            rc = KVL_ENOMEM;
    }
    kvl_buf_free(&line);
    kvl_buf_free(&r.text);
    return rc;
}

/* ---- the order ----------------------------------------------------------------------------- */

struct run_order {
    const char *start, *id;
    uint64_t hash;
};

static int run_cmp(const void *a, const void *b)
{
    const struct run_order *x = a, *y = b;
    int order = strcmp(x->start, y->start);
    return order ? order : strcmp(x->id, y->id);
}

static int run_hash_cmp(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Runs without a record come first. */
static int merge_rank(struct merge *m, struct kvl_err *err)
{
    size_t n = json_object_size(m->runs), i = 0;
    struct run_order *run = calloc(n + 1, sizeof *run);
    struct line_rank {
        uint64_t hash, rank;
    } *rank = calloc(n + 1, sizeof *rank);
    const char *id;
    json_t *record;
    if (run && rank) {
        json_object_foreach(m->runs, id, record) run[i++] =
            (struct run_order){ kvl_json_text(record, "t_start"), id, XXH3_64bits(id, strlen(id)) };
        qsort(run, n, sizeof *run, run_cmp);
        for (i = 0; i < n; i++) rank[i] = (struct line_rank){ run[i].hash, i + 1 };
        qsort(rank, n, sizeof *rank, run_hash_cmp);
        for (i = 0; i < m->n; i++) {
            const struct line_rank *r =
                bsearch(&m->line[i].run, rank, n, sizeof *rank, run_hash_cmp);
            m->line[i].rank = r ? r->rank : 0;
        }
    }
    int rc = run && rank ? KVL_OK : merge_memory(err);
    free(run);
    free(rank);
    return rc;
}

static int line_order(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->run != y->run) return x->run < y->run ? -1 : 1;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return XXH128_cmp(&x->bytes, &y->bytes);
}

static int line_by_bytes(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int order = XXH128_cmp(&x->bytes, &y->bytes);
    return order ? order : line_order(a, b);
}

static int line_by_what(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    int order = XXH128_cmp(&x->what, &y->what);
    return order ? order : line_order(a, b);
}

/* Of lines that are the same the first one stays. */
static void merge_same(struct merge *m, struct kvl_log_merged *out)
{
    size_t n = 0;
    qsort(m->line, m->n, sizeof *m->line, line_by_bytes);
    for (size_t i = 0; i < m->n; i++)
        if (n == 0 || !XXH128_isEqual(m->line[i].bytes, m->line[n - 1].bytes))
            m->line[n++] = m->line[i];
    out->n_same = m->n - n;
    m->n = n;
}

static void merge_again(struct merge *m, struct kvl_log_merged *out)
{
    size_t n = 0;
    qsort(m->line, m->n, sizeof *m->line, line_by_what);
    for (size_t i = 0, end; i < m->n; i = end) {
        size_t best = i;
        for (end = i; end < m->n && XXH128_isEqual(m->line[end].what, m->line[i].what); end++)
            if (!m->line[best].good) best = end;
        m->line[n++] = m->line[best];
    }
    out->n_again = m->n - n;
    m->n = n;
}

static int line_by_cell(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    if (x->cell != y->cell) return x->cell < y->cell ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind);
}

/* What a cell had before it was finished: nobody asks for it then. */
static void merge_partial(struct merge *m)
{
    size_t n = 0;
    qsort(m->line, m->n, sizeof *m->line, line_by_cell);
    for (size_t i = 0, finished = SIZE_MAX; i < m->n; i++) {
        const struct line *l = &m->line[i];
        if (l->kind == LINE_RESULT) finished = n;
        bool over =
            l->kind == LINE_PARTIAL && finished != SIZE_MAX && m->line[finished].cell == l->cell;
        if (!over) m->line[n++] = *l;
    }
    m->n = n;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* The new log's groups have a run of their own, which its text names. */
static void merge_run(const struct merge *m, uint8_t run[16])
{
    XXH128_hash_t h = { 0 };
    for (size_t i = 0; i < m->n; i++) {
        uint64_t four[4] = { h.low64, h.high64, m->line[i].bytes.low64, m->line[i].bytes.high64 };
        h = XXH3_128bits(four, sizeof four);
    }
    memcpy(run, &h, 16);
}

static int merge_write(const struct merge *m, int fd, const char *part, struct kvl_err *err)
{
    uint8_t run[16];
    struct kvl_log *log;
    merge_run(m, run);
    KVL_TRY(kvl_log_new(fd, part, run, &log, err));
    int rc = KVL_OK;
    for (size_t i = 0; i < m->n && rc == KVL_OK; i++) {
        rc = kvl_log_append_line(log, m->text.data + m->line[i].at, m->line[i].len, err);
        if (rc == KVL_OK && (i + 1 == m->n || kvl_log_pending_bytes(log) >= MERGE_GROUP_BYTES))
            rc = kvl_log_commit(log, err);
    }
    int closed = kvl_log_close(log, rc == KVL_OK ? err : NULL);
    return rc == KVL_OK ? closed : rc;
}

static int merge_exists(const char *to, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EINVAL, "%s: exists; merge writes a new file", to);
}

static int merge_place(const struct merge *m, const char *to, struct kvl_err *err)
{
    int fd = -1;
    bool placed = false;
    char *part = kvl_outfile_temp(to, 0666, &fd);
    if (!part) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", to, strerror(errno));
    int rc = merge_write(m, fd, part, err);
    if (rc == KVL_OK)
        rc = kvl_outfile_place(part, to, &placed, err);
    else
        unlink(part);
    free(part);
    if (rc == KVL_OK && !placed) rc = merge_exists(to, err);
    if (rc != KVL_OK) return rc;
    int error = kvl_log_sync_dir(to);
    return error ? kvl_fail(err, KVL_EIO, "%s: cannot sync its folder: %s", to, strerror(error))
                 : KVL_OK;
}

static int merge_all(struct merge *m, const struct kvl_log_paths *from, const char *to,
                     struct kvl_log_merged *out, struct kvl_log_health *health, struct kvl_err *err)
{
    const char *name;
    json_t *plan;
    if (access(to, F_OK) == 0) return merge_exists(to, err);
    if (!m->runs || !m->plans || !out->missing) return merge_memory(err);
    for (size_t i = 0; i < from->n; i++) KVL_TRY(merge_read(m, from->path[i], health, err));
    KVL_TRY(merge_rank(m, err));
    merge_same(m, out);
    merge_again(m, out);
    merge_partial(m);
    qsort(m->line, m->n, sizeof *m->line, line_order);
    out->n_records = m->n;
    out->n_runs = json_object_size(m->runs);
    json_object_foreach(m->plans, name,
                        plan) if (plan_missing(name, plan, out) != KVL_OK) return merge_memory(err);
    return merge_place(m, to, err);
}

void kvl_log_merged_free(struct kvl_log_merged *m)
{
    json_decref(m->missing);
    *m = (struct kvl_log_merged){ 0 };
}

int kvl_log_merge(const struct kvl_log_paths *from, const char *to, struct kvl_log_merged *out,
                  struct kvl_log_health *health, struct kvl_err *err)
{
    struct merge m = { .runs = json_object(), .plans = json_object() };
    *out = (struct kvl_log_merged){ .missing = json_array() };
    int rc = merge_all(&m, from, to, out, health, err);
    kvl_buf_free(&m.text);
    free(m.line);
    json_decref(m.runs);
    json_decref(m.plans);
    if (rc != KVL_OK) kvl_log_merged_free(out);
    return rc;
}
