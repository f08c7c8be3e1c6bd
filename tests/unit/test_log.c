/* The result log: what was committed comes back, whatever happens to the file. */
#include "log_frame.h"
#include "log_maker.h"

#include <xxhash.h>

/* ---- reading and writing ------------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    (void)state;
    char *path = at("a.zst");
    write_groups(path, 0, 3, 4);
    write_groups(path, 3, 2, 1); /* a second run on the same log */
    struct kvl_log_health h = { 0 };
    struct seen s = read_file(path, &h);
    assert_int_equal(s.n, 14);
    for (int g = 0; g < 5; g++) assert_int_equal(s.group[g], g < 3 ? 4 : 1);
    assert_int_equal(h.n_groups, 5);
    assert_int_equal(h.n_records, 14);
    assert_int_equal(h.n_damage, 0);
    assert_true(kvl_log_health_ok(&h));
    assert_int_equal(access(at("a.zst.lock"), F_OK), -1);
}

static int collect(json_t *r, void *user, struct kvl_err *err)
{
    (void)err;
    return json_array_append(user, r) == 0 ? KVL_OK : KVL_ENOMEM;
}

/* The order of keys, numbers and text as they were given; numbers in their shortest form. */
static void test_text(void **state)
{
    (void)state;
    char *path = at("t.zst");
    struct kvl_log *log = open_log(path);
    json_t *r = json_pack("{ss sf sn s[ii] ss}", "kind", "run", "z", 0.1, "a", "list", 1, 2, "m",
                          "\"q\" \t\xe2\x82\xac");
    assert_int_equal(kvl_log_append(log, r, NULL), KVL_OK);
    json_decref(r);
    assert_true(kvl_log_pending_bytes(log) > 0);
    assert_int_equal(kvl_log_pending(log), 1);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    assert_int_equal(kvl_log_pending(log), 0);
    kvl_log_close(log, NULL);
    const char *want = "{\"kind\":\"run\",\"z\":0.1,\"a\":null,\"list\":[1,2],"
                       "\"m\":\"\\\"q\\\" \\t\xe2\x82\xac\"}\n";
    assert_int_equal(shell("zstd -dcq %s > %s/t.json", path, dir), 0);
    struct kvl_buf b = slurp(at("t.json"));
    assert_string_equal(b.data, want);
    kvl_buf_free(&b);
}

static void test_uncommitted_is_not_there(void **state)
{
    (void)state;
    char *path = at("u.zst");
    struct kvl_log *log = open_log(path);
    append(log, 0, 0);
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    append(log, 1, 0);
    kvl_log_discard(log);
    append(log, 2, 0);
    kvl_log_close(log, NULL);
    struct seen s = read_file(path, NULL);
    assert_int_equal(s.n, 1);
}

static void test_not_json(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    struct kvl_log *log = open_log(at("n.zst"));
    json_t *array = json_array();
    assert_int_equal(kvl_log_append(log, array, &err), KVL_EINTERNAL);
    json_t *bad = json_pack("{ss}", "kind", "sample");
    json_object_set_new(bad, "text", json_string_nocheck("\xff"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_log_append(log, bad, &err), KVL_EINTERNAL);
    assert_non_null(strstr(err.msg, "sample"));
    append(log, 0, 0); /* a refused record leaves nothing behind */
    assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
    kvl_log_close(log, NULL);
    assert_int_equal(read_file(at("n.zst"), NULL).n, 1);
    json_decref(array);
    json_decref(bad);
}

/* The stock tools read it: zstd as one stream, jq line by line; `cat` merges. */
static void test_stock_tools(void **state)
{
    (void)state;
    write_groups(at("a.zst"), 0, 3, 5);
    write_groups(at("b.zst"), 3, 2, 5);
    assert_int_equal(shell("cd %s && cat a.zst b.zst > c.zst && zstd -tq c.zst", dir), 0);
    assert_int_equal(shell("cd %s && test $(zstd -dcq c.zst | wc -l) = 25", dir), 0);
    if (shell("command -v jq > /dev/null") == 0)
        assert_int_equal(shell("cd %s && test $(zstd -dcq c.zst | jq -s 'map(.i)|add') = 50", dir),
                         0);
    struct kvl_log_health h = { 0 };
    struct seen s = read_file(at("c.zst"), &h);
    assert_int_equal(s.n, 25);
    assert_int_equal(h.n_damage, 0);
}

/* A log that zstd has compressed again has no headers; several such frames may follow each other,
 * even cut in mid-line, and a run may go on behind them. */
static void test_plain_frames(void **state)
{
    (void)state;
    write_groups(at("a.zst"), 0, 3, 5);
    assert_int_equal(shell("cd %s && zstd -dcq a.zst > l && head -c 300 l | zstd -q > p.zst && "
                           "tail -c +301 l | zstd -q --no-check >> p.zst",
                           dir),
                     0);
    struct kvl_log_health h = { 0 };
    struct seen s = read_file(at("p.zst"), &h);
    assert_int_equal(s.n, 15);
    assert_int_equal(h.n_plain, 2);
    assert_int_equal(h.n_damage + h.n_bad_lines, 0);
    kvl_log_health_free(&h);
    write_groups(at("p.zst"), 3, 2, 1);
    s = read_file(at("p.zst"), &h);
    assert_int_equal(s.n, 17);
    assert_int_equal(h.n_damage, 0);
}

static void test_bad_lines(void **state)
{
    (void)state;
    assert_int_equal(
        shell("cd %s && printf '{\"a\":1}\\n[1]\\nnot json\\n\\n{\"b\":2}' | zstd -q > "
              "x.zst",
              dir),
        0);
    json_t *all = json_array();
    struct kvl_log_health h = { 0 };
    assert_int_equal(kvl_log_read(at("x.zst"), collect, all, &h, NULL), KVL_OK);
    assert_int_equal(json_array_size(all), 2);
    assert_int_equal(h.n_bad_lines, 2);
    assert_false(kvl_log_health_ok(&h));
    json_decref(all);
}

/* ---- damage -------------------------------------------------------------------------------- */

enum { SMALL_GROUPS = 3, SMALL_PER = 3 };

/* Cut at every byte: the groups that are whole come back, nothing else does. */
static void test_truncation(void **state)
{
    (void)state;
    size_t ends[SMALL_GROUPS];
    size_t len = grow_log(at("a.zst"), SMALL_GROUPS, SMALL_PER, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    for (size_t cut = 0; cut <= len; cut++) {
        int whole = 0;
        while (whole < SMALL_GROUPS && ends[whole] <= cut) whole++;
        bool torn = cut != (whole ? ends[whole - 1] : 0);
        struct kvl_log_health h = { 0 };
        struct seen s = read_memory(b.data, cut, &h);
        assert_int_equal(s.n, whole * SMALL_PER);
        assert_int_equal(h.n_damage, torn);
        if (torn) assert_true(h.damage[0].tail);
        assert_true(kvl_log_health_ok(&h));
        kvl_log_health_free(&h);
    }
    kvl_buf_free(&b);
}

/* Opening after a crash saves the torn tail, cuts it, and appends behind the last commit. */
static void test_torn_tail(void **state)
{
    (void)state;
    size_t ends[2];
    size_t len = grow_log(at("a.zst"), 2, 3, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    for (size_t cut = ends[0] + 1; cut < len; cut += 7) {
        spill(at("t.zst"), b.data, cut);
        struct kvl_log_health h = { 0 };
        struct seen s = { 0 };
        struct kvl_log *log = NULL;
        assert_int_equal(kvl_log_open(at("t.zst"), look, &s, &h, &log, NULL), KVL_OK);
        assert_int_equal(s.n, 3);
        assert_int_equal(h.n_damage, 1);
        assert_true(h.damage[0].tail);
        assert_int_equal(h.damage[0].bytes, cut - ends[0]);
        append(log, 7, 0);
        assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
        kvl_log_close(log, NULL);
        kvl_log_health_free(&h);
        s = read_file(at("t.zst"), &h);
        assert_int_equal(s.n, 4);
        assert_int_equal(s.group[7], 1);
        assert_int_equal(h.n_damage, 0);
        struct kvl_buf torn = slurp(at("t.zst.torn-1"));
        assert_int_equal(torn.len, cut - ends[0]);
        assert_memory_equal(torn.data, b.data + ends[0], torn.len);
        kvl_buf_free(&torn);
        unlink(at("t.zst.torn-1"));
    }
    kvl_buf_free(&b);
}

static void test_torn_names_count_up(void **state)
{
    (void)state;
    write_groups(at("t.zst"), 0, 1, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(shell("printf '\\050\\265\\057' >> %s", at("t.zst")), 0);
        write_groups(at("t.zst"), i + 1, 1, 1);
    }
    assert_int_equal(access(at("t.zst.torn-3"), F_OK), 0);
    assert_int_equal(read_file(at("t.zst"), NULL).n, 4);
}

/* 10 000 single bytes changed at random: all groups but the one that was hit, and no wrong record;
 * and the damage never goes unseen unless nothing is lost. */
static void test_corruption(void **state)
{
    (void)state;
    enum { N = 12, PER = 3 };
    size_t ends[N];
    size_t len = grow_log(at("a.zst"), N, PER, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 20);
    for (int trial = 0; trial < 10000; trial++) {
        size_t where = kvl_rng_below(&rng, (uint32_t)len);
        char change = (char)(1 + kvl_rng_below(&rng, 255));
        int hit = 0;
        while (ends[hit] <= where) hit++;
        b.data[where] ^= change;
        struct kvl_log_health h = { 0 };
        struct seen s = read_memory(b.data, len, &h);
        for (int g = 0; g < N; g++)
            if (g != hit) assert_int_equal(s.group[g], PER);
        if (s.group[hit] != PER)
            assert_int_equal(s.group[hit], 0);
        else if (hit < N - 1)
            assert_int_equal(h.damage[0].n_groups, 0); /* only a header */
        assert_true(h.n_damage >= 1 && h.n_damage <= 2);
        if (s.group[hit] == 0) {
            struct kvl_log_damage *d = &h.damage[0];
            if (hit < N - 1) {
                assert_int_equal(d->n_groups, 1);
                assert_int_equal(d->sequence, hit);
                assert_false(kvl_log_health_ok(&h));
            }
            assert_true(d->n_records == PER || d->n_records == -1);
            size_t start = hit ? ends[hit - 1] : 0;
            assert_true(d->offset >= start && d->offset + d->bytes <= ends[hit]);
        }
        kvl_log_health_free(&h);
        b.data[where] ^= change;
    }
    printf("10000 single bytes changed: only the group that was hit is lost, and none unseen\n");
    kvl_buf_free(&b);
}

/* A run of wrong bytes or zeros anywhere behind the first group: what is outside comes back. */
static void test_larger_damage(void **state)
{
    (void)state;
    enum { N = 12, PER = 3 };
    size_t ends[N];
    size_t len = grow_log(at("a.zst"), N, PER, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    char *copy = malloc(len);
    assert_non_null(copy);
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 21);
    for (int trial = 0; trial < 2000; trial++) {
        memcpy(copy, b.data, len);
        size_t from = ends[0] + kvl_rng_below(&rng, (uint32_t)(len - ends[0]));
        size_t to = from + 1 + kvl_rng_below(&rng, (uint32_t)(len - from));
        for (size_t i = from; i < to; i++) copy[i] = trial % 2 ? (char)kvl_rng_u32(&rng) : 0;
        struct seen s = read_memory(copy, len, NULL);
        for (int g = 0; g < N; g++) {
            size_t start = g ? ends[g - 1] : 0;
            if (ends[g] <= from || start >= to) assert_int_equal(s.group[g], PER);
        }
    }
    free(copy);
    kvl_buf_free(&b);
}

/* Bytes that are missing or that somebody put between are seen; a missing group is counted. */
static void test_hole_and_insertion(void **state)
{
    (void)state;
    enum { N = 6, PER = 2 };
    size_t ends[N];
    size_t len = grow_log(at("a.zst"), N, PER, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    struct kvl_buf c = { 0 };
    kvl_buf_add(&c, b.data, ends[1]);
    kvl_buf_add(&c, b.data + ends[3], len - ends[3]);
    struct kvl_log_health h = { 0 };
    assert_int_equal(read_memory(c.data, c.len, &h).n, 8);
    assert_int_equal(h.n_damage, 1);
    assert_int_equal(h.damage[0].n_groups, 2);
    assert_int_equal(h.damage[0].sequence, 2);
    assert_int_equal(h.damage[0].offset, ends[1]);
    assert_false(kvl_log_health_ok(&h));
    kvl_log_health_free(&h);
    c.len = ends[1];
    kvl_buf_adds(&c, "somebody wrote here");
    kvl_buf_add(&c, b.data + ends[1], len - ends[1]);
    assert_int_equal(read_memory(c.data, c.len, &h).n, N * PER);
    assert_int_equal(h.n_damage, 1);
    assert_int_equal(h.damage[0].bytes, 19);
    assert_int_equal(h.damage[0].n_groups, 0);
    kvl_log_health_free(&h);
    kvl_buf_free(&b);
    kvl_buf_free(&c);
}

/* A damaged size in a header takes nothing else with it, wherever it points. */
static void test_damaged_size(void **state)
{
    (void)state;
    enum { N = 4, PER = 2 };
    size_t ends[N];
    size_t len = grow_log(at("a.zst"), N, PER, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    uint8_t *head = (uint8_t *)b.data + ends[0];
    for (size_t to = ends[0] + 9; to < len; to++) {
        size_t size = to - ends[0] - 8;
        for (int i = 0; i < 4; i++) head[4 + i] = (uint8_t)(size >> (8 * i));
        struct kvl_log_health h = { 0 };
        struct seen s = read_memory(b.data, len, &h);
        assert_int_equal(s.n, N * PER); /* the frame behind it verifies by itself */
        assert_int_equal(h.n_damage, to == ends[0] + KVL_LOG_HEADER ? 0 : 1);
        kvl_log_health_free(&h);
    }
    memset(head + 8, 0, 16); /* and with its marker gone */
    for (size_t size = 1; size < ends[2] - ends[0] - 8; size++) {
        for (int i = 0; i < 4; i++) head[4 + i] = (uint8_t)(size >> (8 * i));
        struct seen s = read_memory(b.data, len, NULL);
        for (int g = 0; g < N; g++)
            if (g != 1 && ends[0] + 8 + size != ends[2]) assert_int_equal(s.group[g], PER);
    }
    kvl_buf_free(&b);
}

static void test_repair(void **state)
{
    (void)state;
    size_t ends[4];
    size_t len = grow_log(at("a.zst"), 4, 3, ends);
    struct kvl_buf b = slurp(at("a.zst"));
    b.data[ends[0] + 120] ^= 1;
    spill(at("d.zst"), b.data, len - 5);
    struct kvl_log_health h = { 0 };
    assert_int_equal(kvl_log_repair(at("d.zst"), at("r.zst"), &h, NULL), KVL_OK);
    assert_int_equal(h.n_damage, 2);
    assert_int_equal(h.n_records, 6);
    kvl_log_health_free(&h);
    assert_int_equal(shell("zstd -tq %s", at("r.zst")), 0);
    struct seen s = read_file(at("r.zst"), &h);
    assert_int_equal(s.n, 6);
    assert_int_equal(s.group[2], 3);
    /* It is whole, and says what is missing for ever. */
    assert_int_equal(h.n_damage, 0);
    assert_true(kvl_log_health_ok(&h));
    assert_int_equal(h.n_repairs, 2);
    assert_int_equal(h.lost_groups, 2);
    assert_int_equal(h.lost_records, 6);
    assert_true(h.lost_bytes > 0);
    kvl_log_health_free(&h);
    /* Once more: the notes go along, and none is added. */
    assert_int_equal(kvl_log_repair(at("r.zst"), at("rr.zst"), &h, NULL), KVL_OK);
    kvl_log_health_free(&h);
    s = read_file(at("rr.zst"), &h);
    assert_int_equal(s.n, 6);
    assert_int_equal(h.n_damage, 0);
    assert_int_equal(h.lost_groups, 2);
    kvl_log_health_free(&h);
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_log_repair(at("d.zst"), at("r.zst"), &h, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "exists"));
    kvl_buf_free(&b);
}

/* 38 KB of beginnings of frames, each of which can be unpacked up to the end: looked at one by one they took more than
 * 100 s. */
static void test_made_slow(void **state)
{
    /* A frame's head (window of 128 KiB, checksum); a block of the 6 bytes that follow, which are the head of the next frame; a
     * byte that stands for 128 KiB. */
    static const uint8_t unit[] = { 0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x38, 0x30, 0x00, 0x00 };
    static const uint8_t block[] = { 0x02, 0x00, 0x10, 'x' }, last[] = { 0x03, 0x00, 0x10, 'x' };
    struct kvl_buf b = { 0 };
    (void)state;
    for (int i = 0; i < 220; i++) kvl_buf_add(&b, (const char *)unit, sizeof unit);
    kvl_buf_add(&b, "123456", 6);
    for (int i = 0; i < 9000; i++) kvl_buf_add(&b, (const char *)block, sizeof block);
    kvl_buf_add(&b, (const char *)last, sizeof last);
    kvl_buf_add(&b, "none", 4); /* no checksum of that */
    spill(at("slow.zst"), b.data, b.len);
    struct kvl_err err = { 0 };
    uint64_t begin = kvl_now_ns();
    int rc = kvl_log_read(at("slow.zst"), NULL, NULL, NULL, &err);
    double s = 1e-9 * (double)(kvl_now_ns() - begin);
    assert_int_equal(rc, KVL_ELOG);
    assert_true(s < 30.0);
    kvl_buf_free(&b);
}

/* Headers that are right, one within the frame of another, whose hashes are not. */
static void test_headers_in_headers(void **state)
{
    enum { N = 40000 };
    struct kvl_buf b = { 0 };
    (void)state;
    for (int i = 0; i < N; i++) {
        uint8_t head[KVL_LOG_HEADER];
        struct kvl_log_header h = { .version = KVL_LOG_VERSION,
                                    .packed = (uint64_t)(N - 1 - i) * KVL_LOG_HEADER };
        kvl_log_header_pack(&h, head);
        kvl_buf_add(&b, (const char *)head, sizeof head);
    }
    spill(at("nest.zst"), b.data, b.len);
    struct kvl_err err = { 0 };
    uint64_t begin = kvl_now_ns();
    assert_int_equal(kvl_log_read(at("nest.zst"), NULL, NULL, NULL, &err), KVL_ELOG);
    assert_non_null(strstr(err.msg, "groups within groups"));
    assert_true(1e-9 * (double)(kvl_now_ns() - begin) < 30.0);
    kvl_buf_free(&b);
}

/* Cut or grown by somebody while it is written: the next commit says so, or the end. */
static void test_changed_meanwhile(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        for (int grown = 0; grown < 2; grown++) {
            struct kvl_err err = { 0 };
            unlink(at("c.zst"));
            struct kvl_log *log = open_log(at("c.zst"));
            append(log, 0, 0);
            assert_int_equal(kvl_log_commit(log, NULL), KVL_OK);
            struct kvl_buf b = slurp(at("c.zst"));
            assert_int_equal(truncate(at("c.zst"), (off_t)(grown ? b.len + 7 : b.len - 7)), 0);
            kvl_buf_free(&b);
            if (!late) {
                append(log, 1, 0);
                assert_int_equal(kvl_log_commit(log, &err), KVL_ELOG);
            }
            assert_int_equal(kvl_log_close(log, &err), late ? KVL_ELOG : KVL_OK);
            assert_non_null(strstr(err.msg, "somebody else changed it meanwhile"));
        }
    }
}

static void test_not_a_log(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    spill(at("x.zst"), "GGUF is no log", 14);
    assert_int_equal(kvl_log_read(at("x.zst"), NULL, NULL, NULL, &err), KVL_ELOG);
    struct kvl_log *log = NULL;
    kvl_err_clear(&err);
    assert_int_equal(kvl_log_open(at("x.zst"), NULL, NULL, NULL, &log, &err), KVL_ELOG);
    assert_non_null(strstr(err.msg, "not a kvlab log"));
    struct kvl_buf b = slurp(at("x.zst"));
    assert_int_equal(b.len, 14); /* untouched */
    kvl_buf_free(&b);
    assert_int_equal(access(at("x.zst.lock"), F_OK), -1);
    kvl_err_clear(&err);
    assert_int_equal(kvl_log_open("/dev/null", NULL, NULL, NULL, &log, &err), KVL_EINVAL);
    kvl_err_clear(&err);
    assert_int_equal(kvl_log_open("/no/such/folder/a.zst", NULL, NULL, NULL, &log, &err), KVL_EIO);
    assert_non_null(strstr(err.msg, "/no/such/folder/a.zst"));
}

/* A header of a later version, its hash right, made by hand from the description in log.h. */
static void test_newer_version(void **state)
{
    (void)state;
    write_groups(at("a.zst"), 0, 1, 1);
    struct kvl_buf b = slurp(at("a.zst"));
    b.data[24] = 9; /* version */
    uint64_t hash = XXH64(b.data, 88, 0);
    for (int i = 0; i < 8; i++) b.data[88 + i] = (char)(hash >> (8 * i));
    spill(at("a.zst"), b.data, b.len);
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_log_read(at("a.zst"), NULL, NULL, NULL, &err), KVL_ELOG);
    assert_non_null(strstr(err.msg, "format 9"));
    assert_non_null(strstr(err.msg, "up to 1"));
    kvl_buf_free(&b);
}

/* ---- files --------------------------------------------------------------------------------- */

static void test_paths(void **state)
{
    (void)state;
    write_groups(at("b.zst"), 0, 1, 1);
    write_groups(at("a.zst"), 1, 1, 1);
    spill(at("note.txt"), "x", 1);
    struct kvl_log_paths p = { 0 };
    char *pattern = at("*.zst");
    char *words[] = { dir, pattern, at("a.zst") };
    assert_int_equal(kvl_log_paths(words, 3, &p, NULL), KVL_OK);
    assert_int_equal(p.n, 5);
    assert_string_equal(p.path[0], at("a.zst"));
    assert_string_equal(p.path[1], at("b.zst"));
    assert_string_equal(p.path[4], at("a.zst"));
    struct seen s = { 0 };
    assert_int_equal(kvl_log_each((const char *const *)p.path, 2, look, &s, NULL, NULL), KVL_OK);
    assert_int_equal(s.n, 2);
    kvl_log_paths_free(&p);
    struct kvl_err err = { 0 };
    char *none[] = { at("none.zst") };
    assert_int_equal(kvl_log_paths(none, 1, &p, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "none.zst"));
    assert_int_equal(kvl_log_paths(none, 0, &p, NULL), KVL_EINVAL);
}

static int stop_at_two(json_t *r, void *user, struct kvl_err *err)
{
    (void)r;
    (void)err;
    int *n = user;
    return ++*n == 2 ? KVL_ESTOP : KVL_OK;
}

static void test_reader_can_stop(void **state)
{
    (void)state;
    write_groups(at("a.zst"), 0, 2, 3);
    int n = 0;
    assert_int_equal(kvl_log_read(at("a.zst"), stop_at_two, &n, NULL, NULL), KVL_ESTOP);
    assert_int_equal(n, 2);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_round_trip),
        T(test_text),
        T(test_uncommitted_is_not_there),
        T(test_not_json),
        T(test_stock_tools),
        T(test_plain_frames),
        T(test_bad_lines),
        T(test_truncation),
        T(test_torn_tail),
        T(test_torn_names_count_up),
        T(test_corruption),
        T(test_larger_damage),
        T(test_hole_and_insertion),
        T(test_damaged_size),
        T(test_repair),
        T(test_made_slow),
        T(test_headers_in_headers),
        T(test_changed_meanwhile),
        T(test_not_a_log),
        T(test_newer_version),
        T(test_paths),
        T(test_reader_can_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
