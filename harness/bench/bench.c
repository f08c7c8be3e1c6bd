/* Results of a bench run: medians, lines, JSON; and what a run must know of its process. */
#include "bench.h"

#include "args.h"
#include "build.h"
#include "machine.h"
#include "stop.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- numbers --------------------------------------------------------------------------------------- */

static int spread_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_spread bench_spread(double *v, int32_t n)
{
    qsort(v, (size_t)n, sizeof *v, spread_compare);
    double mid = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return (struct bench_spread){ mid, v[0], v[n - 1] };
}

struct bench_spread bench_ratio(const double *a, const double *b, int32_t n)
{
    double v[BENCH_MAX_ROUNDS];
    for (int32_t i = 0; i < n; i++) v[i] = a[i] / b[i];
    return bench_spread(v, n);
}

void bench_digits(double v, char out[BENCH_DIGITS])
{
    double a = fabs(v);
    int behind = a >= 99.95 ? 0 : (a >= 9.995 ? 1 : (a >= 0.9995 ? 2 : 3));
    if (a < 0.0005)
        snprintf(out, BENCH_DIGITS, "0");
    else
        snprintf(out, BENCH_DIGITS, a < 1e15 ? "%.*f" : "%.*g", behind, v);
}

/* ---- lines ------------------------------------------------------------------------------------------- */

/* "12.4 (11.1 .. 13.5)" */
static void spread_print(struct bench_spread s)
{
    char mid[BENCH_DIGITS], lo[BENCH_DIGITS], hi[BENCH_DIGITS];
    bench_digits(s.mid, mid);
    bench_digits(s.lo, lo);
    bench_digits(s.hi, hi);
    printf("%s", mid);
    if (strcmp(lo, hi) != 0) printf(" (%s .. %s)", lo, hi);
}

/* The spread is that of the ratio where there is one: the ratio is what counts.  The JSON has both. */
static void line_print(const struct bench_line *l)
{
    char depth[16] = "", threads[16] = "", value[BENCH_DIGITS];
    if (l->depth >= 0) snprintf(depth, sizeof depth, "@%d", l->depth);
    if (l->threads > 0) snprintf(threads, sizeof threads, "%dT", l->threads);
    bench_digits(l->value.mid, value);
    printf("%-8s %-25s %-13s %8s %3s  ", l->part, l->what, l->policy ? l->policy : "", depth,
           threads);
    if (!l->against || strcmp(l->unit, "ratio") != 0) printf("%7s %-8s  ", value, l->unit);
    if (!l->against && l->value.lo < l->value.hi)
        printf("(%.3g .. %.3g)", l->value.lo, l->value.hi);
    if (l->against) spread_print(l->ratio);
    if (l->against) printf(" of %s", l->against);
    putchar('\n');
    fflush(stdout);
}

static void json_spread(json_t *o, const char *name, struct bench_spread s)
{
    char key[64];
    const struct {
        const char *end;
        double value;
    } row[] = { { "", s.mid }, { "_lo", s.lo }, { "_hi", s.hi } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        snprintf(key, sizeof key, "%s%s", name, row[i].end);
        json_object_set_new(o, key, isfinite(row[i].value) ? json_real(row[i].value) : json_null());
    }
}

static json_t *line_json(const struct bench *b, const struct bench_line *l)
{
    json_t *o = json_object();
    json_object_set_new(o, "kind", json_string("bench"));
    json_object_set_new(o, "part", json_string(l->part));
    json_object_set_new(o, "what", json_string(l->what));
    if (l->policy) json_object_set_new(o, "policy", json_string(l->policy));
    if (l->threads > 0) json_object_set_new(o, "threads", json_integer(l->threads));
    if (l->depth >= 0) json_object_set_new(o, "depth_tok", json_integer(l->depth));
    json_object_set_new(o, "unit", json_string(l->unit));
    json_spread(o, "value", l->value);
    if (l->against) {
        json_object_set_new(o, "against", json_string(l->against));
        json_spread(o, "ratio", l->ratio);
    }
    for (int32_t i = 0; i < l->n_extra; i++)
        json_object_set_new(o, l->extra[i].name, json_real(l->extra[i].value));
    json_object_set_new(o, "rounds", json_integer(b->config.rounds));
    json_object_set_new(o, "model", json_string(b->origin.model));
    if (b->origin.weights) json_object_set_new(o, "weights", json_string(b->origin.weights));
    json_object_set_new(o, "kv_type", json_string(kvl_kv_name(b->config.kv_type).text));
    json_object_set_new(o, "decode_act", json_string(kvl_decode_act_name(b->config.decode_act)));
    json_object_set_new(o, "budget_tok", json_integer(b->config.budget_tok));
    json_object_set_new(o, "cpu", json_string(b->origin.machine.cpu));
    json_object_set_new(o, "cores", json_integer(b->origin.machine.cores));
    json_object_set_new(o, "isa", json_string(b->origin.machine.isa));
    if (b->origin.device.name[0]) {
        json_object_set_new(o, "gpu", json_string(b->origin.device.name));
        json_object_set_new(o, "driver", json_string(b->origin.device.driver));
        json_object_set_new(o, "date", json_string(b->origin.date));
    }
    json_object_set_new(o, "version", json_string(b->origin.version));
    json_object_set_new(o, "git", json_string(b->origin.git));
    json_object_set_new(o, "compiler", json_string(b->origin.compiler));
    return o;
}

static int line_write(struct bench *b, const struct bench_line *l)
{
    json_t *o = line_json(b, l);
    int failed = json_dumpf(o, b->json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (failed == 0 && fputc('\n', b->json) != EOF && fflush(b->json) == 0) return KVL_OK;
    return kvl_fail(b->err, KVL_EIO, "--json: cannot write, want a disk with space");
}

int bench_keep(struct bench *b, const struct bench_line *line)
{
    if (b->n_lines == b->cap_lines) {
        size_t cap = b->cap_lines ? 2 * b->cap_lines : 256;
        struct bench_line *more = kvl_alloc(cap, sizeof *more);
        if (!more) return kvl_fail(b->err, KVL_ENOMEM, "out of memory for results");
        if (b->n_lines > 0) memcpy(more, b->line, b->n_lines * sizeof *more);
        kvl_free(b->line);
        b->line = more;
        b->cap_lines = cap;
    }
    b->line[b->n_lines++] = *line;
    return b->json ? line_write(b, line) : KVL_OK;
}

int bench_emit(struct bench *b, const struct bench_line *line)
{
    line_print(line);
    return bench_keep(b, line);
}

static bool line_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

const struct bench_line *bench_find(const struct bench *b, const char *what, const char *policy,
                                    int32_t threads, int32_t depth)
{
    for (size_t i = 0; i < b->n_lines; i++) {
        const struct bench_line *l = &b->line[i];
        if (strcmp(l->what, what) == 0 && line_same_text(l->policy, policy) &&
            l->threads == threads && l->depth == depth)
            return l;
    }
    return NULL;
}

void bench_extra(struct bench_line *line, const char *name, double value)
{
    if (line->n_extra == BENCH_MAX_EXTRA || !isfinite(value)) return;
    line->extra[line->n_extra].name = name;
    line->extra[line->n_extra++].value = value;
}

/* ---- what is said ------------------------------------------------------------------------------------ */

void bench_say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("kvlab bench: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

int bench_skip(struct bench *b, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    printf("skipped: %s\n", text);
    struct kvl_buf all = { 0 };
    int rc = kvl_buf_printf(&all, "%s%s\n", b->skipped.data ? b->skipped.data : "", text);
    kvl_buf_free(&b->skipped);
    b->skipped = all;
    return rc == KVL_OK ? KVL_OK : kvl_fail(b->err, rc, "out of memory for results");
}

int bench_stopped(struct bench *b)
{
    if (!*kvl_stop_flag()) return KVL_OK;
    return kvl_fail(b->err, KVL_ESTOP, "stopped by a signal");
}

/* ---- memory ------------------------------------------------------------------------------------------- */

/* A line "key:  123 kB" of a file under /proc, in bytes; 0 = not there. */
static size_t proc_kib(const char *path, const char *key)
{
    char line[256];
    size_t n = strlen(key), bytes = 0;
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    while (bytes == 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, n) == 0 && line[n] == ':')
            bytes = (size_t)strtoull(line + n + 1, NULL, 10) * 1024;
    fclose(f);
    return bytes;
}

size_t bench_memory_free(void)
{
    return proc_kib("/proc/meminfo", "MemAvailable");
}

size_t bench_rss(void)
{
    return proc_kib("/proc/self/status", "VmRSS");
}

size_t bench_rss_peak(void)
{
    return proc_kib("/proc/self/status", "VmHWM");
}

bool bench_rss_reset(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return false;
    bool ok = fputs("5", f) != EOF;
    return fclose(f) == 0 && ok;
}
