/* Split files, and files that are no models: what is opened by a path, and what is said of the rest. */
#include "gguf_impl.h"
#include "gguf_writer.h"
#include "kvl/model.h"
#include "weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PARTS = 3, U16 = 2, I32 = 5 };

/* Keys of a part that may be wrong. */
struct part_keys {
    uint16_t no, count;
    int32_t tensors;
};

struct folder {
    char path[32];
    struct kvl_buf whole; /* the file that the parts are made of */
};

static const char *part_path(const struct folder *f, int no)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/a model-%05d-of-%05d.gguf", f->path, no, PARTS);
    return path;
}

static void add_keys(struct gw *w, const struct part_keys *k)
{
    gw_scalar(w, "split.no", U16, &k->no, sizeof k->no);
    gw_scalar(w, "split.count", U16, &k->count, sizeof k->count);
    gw_scalar(w, "split.tensors.count", I32, &k->tensors, sizeof k->tensors);
}

/* Part no (from 1) has the no-th third of the tensors; the first has the model's keys. */
static void write_part(const struct folder *f, int no, const struct part_keys *keys)
{
    const struct gw_llama m = gw_llama_defaults(&(struct gw_llama){ .n_layers = 3 });
    struct kvl_gguf *g = NULL;
    struct kvl_buf file = { 0 };
    struct gw w;
    assert_int_equal(kvl_gguf_open_memory(f->whole.data, f->whole.len, &g, NULL), KVL_OK);
    int64_t n = kvl_gguf_n_tensors(g);
    struct part_keys right = { (uint16_t)(no - 1), PARTS, (int32_t)n };
    gw_init(&w);
    if (no == 1) {
        gw_llama_keys(&w, &m);
        gw_byte_vocab(&w);
    }
    add_keys(&w, keys ? keys : &right);
    for (int64_t i = (no - 1) * n / PARTS; i < no * n / PARTS; i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
        gw_tensor(&w, t->name, t->type, t->n_dims, t->dims, t->data, t->bytes);
    }
    gw_finish(&w, &file);
    assert_true(gw_save(&file, part_path(f, no)));
    kvl_buf_free(&file);
    gw_free(&w);
    kvl_gguf_close(g);
}

static void folder_open(struct folder *f)
{
    *f = (struct folder){ .path = "/tmp/kvl-parts-XXXXXX" };
    assert_non_null(mkdtemp(f->path));
    gw_llama(&(struct gw_llama){ .n_layers = 3 }, &f->whole);
    for (int no = 1; no <= PARTS; no++) write_part(f, no, NULL);
}

static void folder_close(struct folder *f)
{
    for (int no = 1; no <= PARTS; no++) unlink(part_path(f, no));
    rmdir(f->path);
    kvl_buf_free(&f->whole);
}

static void expect_refused(const char *path, const char *who, const char *why)
{
    struct kvl_model *m = NULL;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_model_open(path, &m, &err), KVL_EMODEL);
    assert_null(m);
    if (!strstr(err.msg, who) || !strstr(err.msg, why))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", err.msg, who, why);
    assert_null(strchr(err.msg, '\n'));
}

/* ---- split files --------------------------------------------------------------------------- */

/* Whichever part is named, all tensors and the keys of the first are there, and it is one model. */
static void test_split(void **state)
{
    struct folder f;
    struct kvl_gguf *whole = NULL;
    char hash[PARTS][33];
    (void)state;
    folder_open(&f);
    assert_int_equal(kvl_gguf_open_memory(f.whole.data, f.whole.len, &whole, NULL), KVL_OK);
    for (int no = 1; no <= PARTS; no++) {
        struct kvl_gguf *g = NULL;
        struct kvl_weights weights;
        struct kvl_err err = { 0 };
        if (kvl_gguf_open(part_path(&f, no), &g, &err) != KVL_OK) fail_msg("%s", err.msg);
        assert_int_equal(kvl_gguf_n_tensors(g), kvl_gguf_n_tensors(whole));
        for (int64_t i = 0; i < kvl_gguf_n_tensors(whole); i++) {
            const struct kvl_gguf_tensor *want = kvl_gguf_tensor_at(whole, i);
            const struct kvl_gguf_tensor *t = kvl_gguf_tensor(g, want->name);
            assert_non_null(t);
            assert_string_equal(t->name, want->name);
            assert_int_equal(t->bytes, want->bytes);
            assert_memory_equal(t->data, want->data, want->bytes);
        }
        if (kvl_weights_load(g, &weights, &err) != KVL_OK) fail_msg("%s", err.msg);
        kvl_weights_free(&weights);
        kvl_gguf_hash(g, hash[no - 1]);
        kvl_gguf_close(g);
    }
    assert_string_equal(hash[0], hash[1]);
    assert_string_equal(hash[0], hash[2]);
    kvl_gguf_close(whole);
    folder_close(&f);
}

/* A byte of any part changes what the model is called. */
static void test_split_hash(void **state)
{
    struct folder f;
    struct kvl_model *m = NULL;
    struct kvl_err err = { 0 };
    char hash[33];
    struct kvl_buf last = { 0 };
    (void)state;
    folder_open(&f);
    if (kvl_model_open(part_path(&f, 2), &m, &err) != KVL_OK) fail_msg("%s", err.msg);
    memcpy(hash, kvl_model_hash(m), sizeof hash);
    kvl_model_close(m);
    struct kvl_gguf *g = NULL; /* one pass over bytes and weights gives what the bytes alone do */
    char plain[33];
    assert_int_equal(kvl_gguf_open(part_path(&f, 1), &g, &err), KVL_OK);
    kvl_gguf_hash(g, plain);
    assert_string_equal(hash, plain);
    kvl_gguf_close(g);
    assert_int_equal(kvl_read_file(part_path(&f, PARTS), 1 << 24, &last, &err), KVL_OK);
    last.data[last.len - 40] ^= 1;
    assert_true(gw_save(&last, part_path(&f, PARTS)));
    assert_int_equal(kvl_model_open(part_path(&f, 1), &m, &err), KVL_OK);
    assert_string_not_equal(kvl_model_hash(m), hash);
    kvl_model_close(m);
    kvl_buf_free(&last);
    folder_close(&f);
}

static void test_split_missing(void **state)
{
    struct folder f;
    char missing[128];
    (void)state;
    folder_open(&f);
    snprintf(missing, sizeof missing, "%s", part_path(&f, 2));
    unlink(missing);
    expect_refused(part_path(&f, 3), missing, "part 2 of 3 is missing");
    expect_refused(part_path(&f, 1), missing, "part 2 of 3 is missing");
    folder_close(&f);
}

/* A download that stopped: whatever is missing, the line speaks of the file's end. */
static void test_cut_short(void **state)
{
    static const int keep[] = {
        2, 20, 30, 60, 98, 100
    }; /* of a hundred parts of the file; 100: but one byte */
    struct folder f;
    char path[128], want[64];
    (void)state;
    folder_open(&f);
    snprintf(path, sizeof path, "%s", part_path(&f, 2));
    off_t whole = (off_t)kvl_filemap_size(path);
    for (size_t i = sizeof keep / sizeof keep[0]; i-- > 0;) {
        assert_int_equal(truncate(path, keep[i] == 100 ? whole - 1 : whole * keep[i] / 100), 0);
        expect_refused(part_path(&f, 1), path, "cut short");
    }
    write_part(&f, 2, NULL);
    assert_int_equal(truncate(path, whole * 98 / 100), 0);
    snprintf(want, sizeof want, "ends after %lld bytes, within tensor",
             (long long)(whole * 98 / 100));
    expect_refused(path, path, want);
    snprintf(want, sizeof want, "need %lld: it is cut short", (long long)whole);
    expect_refused(path, path, want);
    folder_close(&f);
}

static void test_split_wrong(void **state)
{
    static const struct {
        struct part_keys keys;
        const char *why;
    } row[] = {
        { { 0, PARTS, 29 }, "its keys say part 1 of 3, its name part 2 of 3" },
        { { 1, 4, 29 }, "its keys say part 2 of 4, its name part 2 of 3" },
    };
    struct folder f;
    char path[128];
    (void)state;
    folder_open(&f);
    snprintf(path, sizeof path, "%s", part_path(&f, 2));
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        write_part(&f, 2, &row[i].keys);
        expect_refused(part_path(&f, 1), path, row[i].why);
    }
    write_part(&f, 2, NULL);
    write_part(&f, 1, &(struct part_keys){ 0, PARTS, 28 });
    expect_refused(part_path(&f, 3), part_path(&f, 3), "split.tensors.count of the first says 28");
    folder_close(&f);
}

/* Another part under this name: the same tensors come twice. */
static void test_split_twice(void **state)
{
    struct folder f;
    struct kvl_buf file = { 0 };
    (void)state;
    folder_open(&f);
    struct part_keys keys = { 2, PARTS, 0 };
    write_part(&f, 2, &keys);
    assert_int_equal(kvl_read_file(part_path(&f, 2), 1 << 24, &file, NULL), KVL_OK);
    assert_true(gw_save(&file, part_path(&f, 3)));
    write_part(&f, 2, NULL);
    kvl_buf_free(&file);
    struct kvl_gguf *g = NULL;
    struct kvl_err err = { 0 };
    int rc = kvl_gguf_open(part_path(&f, 1), &g, &err);
    if (rc != KVL_EMODEL || !strstr(err.msg, "appears twice")) fail_msg("%d %s", rc, err.msg);
    folder_close(&f);
}

static void test_split_renamed(void **state)
{
    struct folder f;
    char path[128];
    (void)state;
    folder_open(&f);
    snprintf(path, sizeof path, "%s/first.gguf", f.path);
    assert_int_equal(rename(part_path(&f, 1), path), 0);
    expect_refused(path, path, "NAME-00001-of-00003.gguf");
    assert_int_equal(rename(path, part_path(&f, 1)), 0);
    folder_close(&f);
}

/* ---- what is no model ---------------------------------------------------------------------- */

static void test_foreign(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *why;
    } row[] = {
        { "lmgg\0\0\0\0", 8, "GGML file" },
        { "tjgg\3\0\0\0", 8, "GGJT file" },
        { "FUGG\0\0\0\3", 8, "big-endian" },
        { "GGUF\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, "big-endian" },
        { "PK\3\4....", 8, "PyTorch" },
        { "\x80\2}q\0", 5, "pickle" },
        { "version https://git-lfs.github.com/spec/v1\n", 43, "git lfs pull" },
        { "<!DOCTYPE html><html>", 21, "web page" },
        { "\x08\0\0\0\0\0\0\0{\"a\":{} }....", 20, "its folder" },
        { "what is this", 12, "not a GGUF file" },
    };
    char path[] = "/tmp/kvl-foreign-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(row[i].bytes, 1, row[i].n, f), row[i].n);
        fclose(f);
        expect_refused(path, path, row[i].why);
    }
    unlink(path);
}

static void test_kinds(void **state)
{
    static const struct {
        const char *key, *value, *why;
    } row[] = {
        { "general.type", "adapter", "LoRA" },
        { "general.type", "imatrix", "importance matrix" },
        { "general.type", "mmproj", "text part" },
        { "general.architecture", "clip", "text part" },
        { "general.type", "vocab", "want model" },
        { "general.name", "some name", "a vocabulary alone" },
    };
    char path[] = "/tmp/kvl-kind-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_buf file = { 0 };
        struct gw w;
        gw_init(&w);
        gw_str(&w, row[i].key, row[i].value);
        gw_byte_vocab(&w);
        gw_finish(&w, &file);
        assert_true(gw_save(&file, path));
        expect_refused(path, path, row[i].why);
        kvl_buf_free(&file);
        gw_free(&w);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),         cmocka_unit_test(test_split_hash),
        cmocka_unit_test(test_split_missing), cmocka_unit_test(test_split_wrong),
        cmocka_unit_test(test_cut_short),     cmocka_unit_test(test_split_twice),
        cmocka_unit_test(test_split_renamed), cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
