/* bench_snapshot - what a snapshot costs beside zstd itself and the page cache.
 *
 * usage: bench_snapshot MODEL.gguf [tokens] [rounds]
 *
 * Prefills random tokens, with the observers that the methods ask for, and saves the session to a
 * file in the current folder.  A rate is bytes of content per second of processor time, so that
 * other people's work and the disk count less; a ratio is our rate over that of the yardstick, both
 * measured in turn, medians of rounds:
 *   load  kvl_session_load           against decoding the file's frames from memory to memory
 *   load                             against reading the file, which lies in the page cache
 *   save  kvl_session_save           against encoding the same content at the level of the file
 */
#include "kvl/model.h"
#include "kvl/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

enum { MAX_ROUNDS = 99 };

static struct kvl_err err;
static const char path[] = "bench_snapshot.kvs";

static void must(int rc)
{
    if (rc == KVL_OK) return;
    fprintf(stderr, "bench_snapshot: %s\n", err.msg);
    exit(kvl_status_exit(rc));
}

static void *bench_alloc(size_t n)
{
    void *p = kvl_alloc(n, 1);
    if (!p) must(kvl_fail(&err, KVL_ENOMEM, "no memory for %zu bytes", n));
    return p;
}

struct bench {
    struct kvl_model *model;
    struct kvl_engine *engine;
    struct kvl_session *s;
    struct kvl_buf key, file, body; /* the file, and what its frames hold */
    size_t body_off;                /* of the first piece */
    char *room;                     /* [body.len] */
};

static void bench_open(struct bench *b, const char *model, int32_t n)
{
    struct kvl_engine_desc d = { .kv_type = KVL_KV_F16, .allow_overlong = true };
    d.observers = (struct kvl_observer_set){ .window = 32,
                                             .n_columns = 1,
                                             .column = { { KVL_OBS_COLUMNS, 0 } } };
    struct kvl_rng r;
    int32_t *id = bench_alloc((size_t)n * sizeof *id);
    must(kvl_model_open(model, &b->model, &err));
    d.model = b->model;
    must(kvl_engine_create(&d, &b->engine, &err));
    kvl_rng_seed(&r, 1);
    for (int32_t i = 0; i < n; i++)
        id[i] = (int32_t)kvl_rng_below(&r, (uint32_t)kvl_model_shape(b->model)->n_vocab);
    must(kvl_session_create(b->engine, &b->s, &err));
    must(kvl_session_prefill(b->s, id, n, NULL, true, &err));
    must(kvl_snapshot_key(b->engine, id, n, &b->key, &err));
    kvl_free(id);
}

/* Piece after piece until the last one, which has no frame. */
static size_t bench_decode(struct bench *b, char *to, size_t room)
{
    size_t n = 0;
    for (const char *at = b->file.data + b->body_off;;) {
        uint32_t head[3];
        memcpy(head, at, sizeof head);
        if (head[0] == 0) return n;
        size_t got = ZSTD_decompress(to + n, room - n, at + sizeof head, head[2]);
        if (ZSTD_isError(got)) must(kvl_fail(&err, KVL_EIO, "%s", ZSTD_getErrorName(got)));
        at += sizeof head + head[2];
        n += got;
    }
}

static void bench_file(struct bench *b)
{
    uint32_t key_bytes;
    must(kvl_session_save(b->s, path, b->key.data, &err));
    must(kvl_read_file(path, SIZE_MAX, &b->file, &err));
    memcpy(&key_bytes, b->file.data + 12, sizeof key_bytes);
    b->body_off = 16 + (size_t)key_bytes + 8;
    size_t room = 4 * b->file.len + (1 << 20);
    char *data = bench_alloc(room);
    size_t n = bench_decode(b, data, room);
    must(kvl_buf_add(&b->body, data, n));
    kvl_free(data);
    b->room = bench_alloc(ZSTD_compressBound(n));
}

/* ---- what is measured ---------------------------------------------------------------------------- */

static void run_load(struct bench *b)
{
    struct kvl_session *s;
    must(kvl_session_load(b->engine, path, b->key.data, &s, &err));
    kvl_session_destroy(s);
}

static void run_save(struct bench *b)
{
    must(kvl_session_save(b->s, path, b->key.data, &err));
}

static void run_decode(struct bench *b)
{
    (void)bench_decode(b, b->room, b->body.len);
}

static void run_encode(struct bench *b)
{
    size_t n =
        ZSTD_compress(b->room, ZSTD_compressBound(b->body.len), b->body.data, b->body.len, 1);
    if (ZSTD_isError(n)) must(kvl_fail(&err, KVL_EIO, "%s", ZSTD_getErrorName(n)));
}

static void run_read(struct bench *b)
{
    FILE *f = fopen(path, "rb");
    if (!f || fread(b->room, 1, b->file.len, f) != b->file.len)
        must(kvl_fail(&err, KVL_EIO, "%s: cannot be read", path));
    fclose(f);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds(struct bench *b, void (*run)(struct bench *))
{
    int n = 0;
    double start = bench_now(), spent;
    do {
        run(b);
        n++;
        spent = bench_now() - start;
    } while (spent < 0.1);
    return spent / n;
}

static void compare(struct bench *b, const char *what, void (*ours)(struct bench *),
                    void (*theirs)(struct bench *), int rounds)
{
    double ratio[MAX_ROUNDS], a[MAX_ROUNDS];
    size_t n = (size_t)rounds;
    for (size_t i = 0; i < n; i++) {
        a[i] = seconds(b, ours);
        ratio[i] = seconds(b, theirs) / a[i];
    }
    qsort(ratio, n, sizeof *ratio, by_value);
    qsort(a, n, sizeof *a, by_value);
    printf("%-28s %7.2f GB/s  ratio %.2f (%.2f .. %.2f)\n", what,
           1e-9 * (double)b->body.len / a[n / 2], ratio[n / 2], ratio[0], ratio[n - 1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    int32_t n = argc > 2 ? atoi(argv[2]) : 4096;
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 2 || n < 1 || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_snapshot MODEL.gguf [tokens >= 1] [rounds 1 to %d]\n",
                MAX_ROUNDS);
        return 2;
    }
    bench_open(&b, argv[1], n);
    bench_file(&b);
    printf("%d tokens: %zu bytes of content, %zu in the file (%.3f)\n", n, b.body.len, b.file.len,
           (double)b.file.len / (double)b.body.len);
    compare(&b, "load / decode", run_load, run_decode, rounds);
    compare(&b, "load / read", run_load, run_read, rounds);
    compare(&b, "save / encode", run_save, run_encode, rounds);
    remove(path);
    kvl_session_destroy(b.s);
    kvl_engine_destroy(b.engine);
    kvl_model_close(b.model);
    kvl_buf_free(&b.key);
    kvl_buf_free(&b.file);
    kvl_buf_free(&b.body);
    kvl_free(b.room);
    return 0;
}
