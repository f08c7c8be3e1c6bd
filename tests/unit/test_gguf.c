/* The GGUF reader against sound and malformed files.  The malformed ones are the known cases of
 * other readers' tests and advisories; each must be refused for its own reason. */
#include "gguf_writer.h"
#include "kvl/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

static const int64_t dims32[4] = { 32, 1, 1, 1 };
static float zeros[1024];

/* ---- helpers ------------------------------------------------------------------------------- */

static int open_copy(const struct kvl_buf *file, void **copy, struct kvl_gguf **g,
                     struct kvl_err *err)
{
    *copy = gw_exact(file);
    return kvl_gguf_open_memory(*copy, file->len, g, err);
}

static void expect_loads(struct gw *w)
{
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    void *copy;
    gw_finish(w, &file);
    int rc = open_copy(&file, &copy, &g, &err);
    if (rc != KVL_OK) fail_msg("refused: %s", err.msg);
    assert_int_equal(kvl_gguf_n_tensors(g), (int64_t)w->n_tensors);
    kvl_gguf_close(g);
    kvl_free(copy);
    kvl_buf_free(&file);
    gw_free(w);
}

static void expect_refused(struct gw *w, const char *name, const char *why)
{
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    void *copy;
    gw_finish(w, &file);
    int rc = open_copy(&file, &copy, &g, &err);
    if (rc != KVL_EMODEL || g) fail_msg("%s: status %d, want refused", name, rc);
    if (!strstr(err.msg, why)) fail_msg("%s: \"%s\" does not say \"%s\"", name, err.msg, why);
    assert_null(strchr(err.msg, '\n'));
    kvl_free(copy);
    kvl_buf_free(&file);
    gw_free(w);
}

static void add_f32(struct gw *w, const char *name, int64_t n)
{
    gw_tensor(w, name, 0, 1, &n, zeros, (size_t)n * sizeof *zeros);
}

/* ---- malformed files ----------------------------------------------------------------------- */

static void bad_magic(struct gw *w)
{
    w->magic[3] = 'X';
}
static void version_0(struct gw *w)
{
    w->version = 0;
}
static void version_1(struct gw *w)
{
    w->version = 1;
}
static void version_4(struct gw *w)
{
    w->version = 4;
}
static void big_endian(struct gw *w)
{
    w->version = 3u << 24;
}
static void tensors_minus_1(struct gw *w)
{
    w->n_tensors = UINT64_MAX;
}
static void keys_minus_1(struct gw *w)
{
    w->n_keys = UINT64_MAX;
}
/* More than the file can hold, but few enough to allocate. */
static void keys_too_many(struct gw *w)
{
    gw_u32(w, "a", 1);
    w->n_keys = 5000;
}
static void keys_over_cap(struct gw *w)
{
    for (int i = 0; i < 300; i++) gw_raw(&w->keys, zeros, sizeof zeros);
    w->n_keys = 65537;
}
static void tensors_too_many(struct gw *w)
{
    add_f32(w, "a", 32);
    w->n_tensors = 60000;
}
static void key_len_minus_1(struct gw *w)
{
    gw_raw_u64(&w->keys, UINT64_MAX);
    gw_raw(&w->keys, zeros, 64);
    w->n_keys = 1;
}
static void key_empty(struct gw *w)
{
    gw_u32(w, "", 1);
}
static void key_with_nul(struct gw *w)
{
    gw_raw_str(&w->keys, "a\0b", 3);
    gw_raw_u32(&w->keys, 4);
    gw_raw_u32(&w->keys, 0);
    w->n_keys = 1;
}
static void key_too_long(struct gw *w)
{
    char name[65537];
    memset(name, 'a', sizeof name);
    name[65536] = '\0';
    gw_u32(w, name, 1);
}
static void key_bad_type(struct gw *w)
{
    gw_scalar(w, "a.key", 13, zeros, 16);
}
static void key_twice(struct gw *w)
{
    gw_u32(w, "a.key", 1);
    gw_u32(w, "another", 1);
    gw_str(w, "a.key", "x");
}
static void bool_2(struct gw *w)
{
    gw_scalar(w, "a.key", 7, "\2", 1);
}
static void value_cut(struct gw *w)
{
    gw_scalar(w, "a.key", 10, zeros, 4);
}
static void string_too_long(struct gw *w)
{
    uint64_t len = 1000;
    gw_scalar(w, "a.key", 8, &len, sizeof len);
    gw_raw(&w->keys, zeros, 100);
}
static void string_over_cap(struct gw *w)
{
    uint64_t len = UINT64_MAX - 7;
    gw_scalar(w, "a.key", 8, &len, sizeof len);
}
static void array_nested(struct gw *w)
{
    gw_arr(w, "a.key", 9, 1, zeros, 32);
}
static void array_bad_elem(struct gw *w)
{
    gw_arr(w, "a.key", 77, 1, zeros, 32);
}
/* A 43-byte file that once hung a reader. */
static void array_2_63(struct gw *w)
{
    gw_arr(w, "abc", 0, (uint64_t)1 << 63, "", 0);
}
/* 8 * n wraps to a small number. */
static void array_wraps(struct gw *w)
{
    gw_arr(w, "a.key", 12, ((uint64_t)1 << 61) + 1, zeros, 64);
}
static void array_cut(struct gw *w)
{
    gw_arr(w, "a.key", 4, 100, zeros, 100);
}
static void array_string_cut(struct gw *w)
{
    const char *s[] = { "one", "two" };
    gw_arr_str(w, "a.key", 2, s);
    w->keys.len -= 2;
}
static void align_13(struct gw *w)
{
    gw_u32(w, "general.alignment", 13);
    add_f32(w, "a", 32);
}
static void align_0(struct gw *w)
{
    gw_u32(w, "general.alignment", 0);
}
static void align_4(struct gw *w)
{
    gw_u32(w, "general.alignment", 4);
}
static void align_huge(struct gw *w)
{
    gw_u32(w, "general.alignment", 1u << 31);
}
static void align_wrong_type(struct gw *w)
{
    uint64_t v = 32;
    gw_scalar(w, "general.alignment", 10, &v, sizeof v);
}
/* The data is laid out for 32, the key says 64. */
static void align_inconsistent(struct gw *w)
{
    gw_u32(w, "general.alignment", 64);
    add_f32(w, "a", 8);
    add_f32(w, "b", 8);
}
static void name_64(struct gw *w)
{
    char name[65];
    memset(name, 'n', 64);
    name[64] = '\0';
    add_f32(w, name, 32);
}
static void name_empty(struct gw *w)
{
    add_f32(w, "", 32);
}
static void name_escape(struct gw *w)
{
    add_f32(w, "a\033[2Jb", 32);
}
static void name_twice(struct gw *w)
{
    add_f32(w, "same", 32);
    add_f32(w, "same", 32);
}
static void five_dims(struct gw *w)
{
    const int64_t d[5] = { 32, 1, 1, 1, 1 };
    gw_tensor(w, "a", 0, 5, d, zeros, 128);
}
static void dim_negative(struct gw *w)
{
    const int64_t d[2] = { 32, -1 };
    gw_tensor_raw(w, "a", 1, 0, 2, d, 0);
}
static void elements_overflow(struct gw *w)
{
    const int64_t d[4] = { INT64_C(1) << 32, INT64_C(1) << 32, 2, 1 };
    gw_tensor_raw(w, "a", 1, 0, 4, d, 0);
}
/* An exabyte that a wrapped product made look like four megabytes. */
static void bytes_overflow(struct gw *w)
{
    const int64_t d[2] = { INT64_C(1) << 62, 1 };
    gw_tensor_raw(w, "a", 1, 0, 2, d, 0);
}
static void type_unknown(struct gw *w)
{
    gw_tensor_raw(w, "a", 1, 4, 1, dims32, 0);
    gw_raw(&w->data, zeros, 128);
}
static void type_huge(struct gw *w)
{
    gw_tensor_raw(w, "a", 1, UINT32_MAX, 1, dims32, 0);
    gw_raw(&w->data, zeros, 128);
}
static void row_not_blocks(struct gw *w)
{
    const int64_t d[1] = { 48 };
    gw_tensor(w, "a", 8, 1, d, zeros, 68);
}
static void offset_unaligned(struct gw *w)
{
    gw_tensor_raw(w, "a", 1, 0, 1, dims32, 16);
    gw_raw(&w->data, zeros, 256);
}
static void offset_gap(struct gw *w)
{
    add_f32(w, "a", 32);
    gw_tensor_raw(w, "b", 1, 0, 1, dims32, 160);
    gw_raw(&w->data, zeros, 512);
}
static void offset_overlap(struct gw *w)
{
    add_f32(w, "a", 32);
    gw_tensor_raw(w, "b", 1, 0, 1, dims32, 96);
    gw_raw(&w->data, zeros, 512);
}
static void offset_max(struct gw *w)
{
    gw_tensor_raw(w, "a", 1, 0, 1, dims32, UINT64_MAX - 31);
}
static void data_short(struct gw *w)
{
    add_f32(w, "a", 32);
    w->data.len -= 4;
    w->no_tail = true;
}
static void data_none(struct gw *w)
{
    gw_tensor_raw(w, "a", 1, 0, 1, dims32, 0);
}
/* Two tensors whose sizes add up to less than nothing. */
static void sum_overflow(struct gw *w)
{
    const int64_t d[1] = { 0x7FFFFFFFFFFFFFC0 };
    gw_tensor_raw(w, "a", 1, 24, 1, d, 0);
    gw_tensor_raw(w, "b", 1, 24, 1, d, (uint64_t)d[0]);
    gw_tensor_raw(w, "c", 1, 24, 1, d, 0xFFFFFFFFFFFFFF80u);
}

struct bad_case {
    const char *name;
    void (*make)(struct gw *w);
    const char *why;
};
#define BAD(f, why)                                                                                \
    {                                                                                              \
#f, f, why                                                                                 \
    }
static const struct bad_case bad_cases[] = {
    BAD(bad_magic, "not a GGUF file"),
    BAD(version_0, "version 0, want"),
    BAD(version_1, "version 1, want"),
    BAD(version_4, "version 4, want"),
    BAD(big_endian, "big-endian"),
    BAD(tensors_minus_1, "18446744073709551615 tensors"),
    BAD(keys_minus_1, "18446744073709551615 metadata keys"),
    BAD(keys_too_many, "5000 metadata keys"),
    BAD(keys_over_cap, "65537 metadata keys, at most 65536"),
    BAD(tensors_too_many, "60000 tensors"),
    BAD(key_len_minus_1, "key at offset 24 has 18446744073709551615 bytes"),
    BAD(key_empty, "is empty"),
    BAD(key_with_nul, "NUL"),
    BAD(key_too_long, "key at offset 24 has 65536 bytes"),
    BAD(key_bad_type, "\"a.key\" at offset 24: type 13"),
    BAD(key_twice, "\"a.key\" at offset 68 appears twice, first at offset 24"),
    BAD(bool_2, "boolean is 2"),
    BAD(value_cut, "a.key at offset 41 needs 8 bytes, but the file ends after 4: it is cut short"),
    BAD(string_too_long, "a.key at offset 49 needs 1000 bytes"),
    BAD(string_over_cap, "a.key at offset 41 has 18446744073709551608 bytes"),
    BAD(array_nested, "array of type 9"),
    BAD(array_bad_elem, "array of type 77"),
    BAD(array_2_63, "array of 9223372036854775808 elements"),
    BAD(array_wraps, "array of 2305843009213693953 elements"),
    BAD(array_cut, "array of 100 elements"),
    BAD(array_string_cut, "needs 3 bytes"),
    BAD(align_13, "is 13, want a power of two"),
    BAD(align_0, "is 0, want a power of two"),
    BAD(align_4, "is 4, want a power of two"),
    BAD(align_huge, "is 2147483648, want a power of two"),
    BAD(align_wrong_type, "has type u64, want u32"),
    BAD(align_inconsistent, "tensor \"b\": data offset 32, want 64"),
    BAD(name_64, "tensor name at offset 24 has 64 bytes"),
    BAD(name_empty, "is empty"),
    BAD(name_escape, "\"a?[2Jb\""),
    BAD(name_twice, "tensor \"same\" at offset 60 appears twice"),
    BAD(five_dims, "5 dimensions"),
    BAD(dim_negative, "dimension 1 is -1"),
    BAD(elements_overflow, "too many"),
    BAD(bytes_overflow, "too many"),
    BAD(type_unknown, "unknown type number 4"),
    BAD(type_huge, "unknown type number 4294967295"),
    BAD(row_not_blocks, "rows of 48 elements, Q8_0 wants a multiple of 32"),
    BAD(offset_unaligned, "data offset 16, want 0"),
    BAD(offset_gap, "data offset 160, want 128"),
    BAD(offset_overlap, "data offset 96, want 128"),
    BAD(offset_max, "data offset 18446744073709551584, want 0"),
    BAD(data_short, "within tensor \"a\"; its tensors need"),
    BAD(data_none, "within tensor \"a\"; its tensors need"),
    BAD(sum_overflow, "9223372036854775744 bytes at offset 9223372036854775744: no file"),
};

static void test_malformed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        struct gw w;
        gw_init(&w);
        bad_cases[i].make(&w);
        expect_refused(&w, bad_cases[i].name, bad_cases[i].why);
    }
}

/* Of every type in blocks: a row that ends within a block, a file that does. */
static void test_part_blocks(void **state)
{
    int32_t n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    (void)state;
    for (int32_t i = 0; i < n; i++) {
        const int64_t part = t[i].block * 3 / 2, whole = t[i].block;
        char why[64];
        struct gw w;
        if (whole == 1) continue;
        snprintf(why, sizeof why, "rows of %d elements, %s wants a multiple of %d", (int)part,
                 t[i].name, (int)whole);
        gw_init(&w);
        gw_tensor(&w, "a", (uint32_t)t[i].type, 1, &part, zeros, 2 * t[i].block_bytes);
        expect_refused(&w, t[i].name, why);
        gw_init(&w);
        w.no_tail = true;
        gw_tensor(&w, "a", (uint32_t)t[i].type, 1, &whole, zeros, t[i].block_bytes - 1);
        expect_refused(&w, t[i].name, "within tensor \"a\"; its tensors need");
    }
}

/* ---- sound files --------------------------------------------------------------------------- */

static void test_empty_header(void **state)
{
    (void)state;
    struct gw w;
    gw_init(&w);
    expect_loads(&w);
    w.version = 2;
    expect_loads(&w);
}

static void test_sound_forms(void **state)
{
    (void)state;
    struct gw w;
    const int64_t none[2] = { 32, 0 };
    char name[64] = { 0 };
    memset(name, 'n', 63);
    gw_init(&w);
    gw_tensor(&w, "zero", 0, 2, none, NULL, 0);
    add_f32(&w, name, 32);
    gw_tensor(&w, "scalar", 0, 0, dims32, zeros, 4);
    gw_tensor(&w, "zero at the end", 0, 2, none, NULL, 0);
    expect_loads(&w);

    gw_init(&w); /* without padding after the last tensor */
    w.no_tail = true;
    add_f32(&w, "a", 3);
    expect_loads(&w);

    gw_init(&w);
    w.alignment = 128;
    gw_u32(&w, "general.alignment", 128);
    add_f32(&w, "a", 3);
    add_f32(&w, "b", 3);
    expect_loads(&w);
}

/* Element and byte counts of a type, by the published block layouts. */
static void test_tensor_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        int64_t n;
        size_t bytes;
    } row[] = { { 0, "F32", 8, 32 },      { 1, "F16", 8, 16 },      { 2, "Q4_0", 64, 36 },
                { 3, "Q4_1", 64, 40 },    { 6, "Q5_0", 64, 44 },    { 7, "Q5_1", 64, 48 },
                { 8, "Q8_0", 64, 68 },    { 10, "Q2_K", 256, 84 },  { 11, "Q3_K", 256, 110 },
                { 12, "Q4_K", 512, 288 }, { 13, "Q5_K", 256, 176 }, { 14, "Q6_K", 256, 210 },
                { 20, "IQ4_NL", 64, 36 }, { 24, "I8", 3, 3 },       { 27, "I64", 3, 24 },
                { 30, "BF16", 5, 10 },    { 28, "F64", 2, 16 } };
    struct gw w;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    gw_init(&w);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        gw_tensor(&w, row[i].name, row[i].type, 1, &row[i].n, zeros, row[i].bytes);
    gw_finish(&w, &file);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor(g, row[i].name);
        assert_int_equal(t->bytes, row[i].bytes);
        assert_string_equal(kvl_gguf_tensor_type_name(t->type), row[i].name);
        assert_ptr_equal(t->data, file.data + t->offset);
        assert_int_equal(t->dims[1], 1);
    }
    assert_null(kvl_gguf_tensor(g, "absent"));
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    gw_free(&w);
}

/* ---- typed access -------------------------------------------------------------------------- */

static void write_numbers(struct gw *w)
{
    const int8_t i8 = -5;
    const uint16_t u16 = 65535;
    const int16_t i16 = -300;
    const int32_t i32 = -70000, list[3] = { 7, 8, 9 };
    const uint64_t u64 = UINT64_MAX;
    const int64_t i64 = -5000000000;
    const double f64 = 0.1;
    const char *str[] = { "a", "", "ccc" };
    gw_scalar(w, "u8", 0, "\xff", 1);
    gw_scalar(w, "i8", 1, &i8, 1);
    gw_scalar(w, "u16", 2, &u16, 2);
    gw_scalar(w, "i16", 3, &i16, 2);
    gw_u32(w, "u32", 4000000000u);
    gw_scalar(w, "i32", 5, &i32, 4);
    gw_f32(w, "f32", 0.25f);
    gw_bool(w, "bool", true);
    gw_str(w, "str", "text \033 here");
    gw_arr(w, "list", 5, 3, list, sizeof list);
    gw_arr_str(w, "texts", 3, str);
    gw_scalar(w, "u64", 10, &u64, 8);
    gw_scalar(w, "i64", 11, &i64, 8);
    gw_scalar(w, "f64", 12, &f64, 8);
    add_f32(w, "a.weight", 32);
}

static struct kvl_gguf *open_numbers(struct kvl_buf *file)
{
    struct gw w;
    struct kvl_gguf *g = NULL;
    gw_init(&w);
    write_numbers(&w);
    gw_finish(&w, file);
    gw_free(&w);
    assert_int_equal(kvl_gguf_open_memory(file->data, file->len, &g, NULL), KVL_OK);
    return g;
}

static void test_integers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int64_t want;
    } row[] = { { "u8", 255 },         { "i8", -5 },      { "u16", 65535 },      { "i16", -300 },
                { "u32", 4000000000 }, { "i32", -70000 }, { "i64", -5000000000 } };
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = open_numbers(&file);
    int64_t v = 0, def = 42;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        assert_int_equal(kvl_gguf_i64(g, row[i].key, INT64_MIN, INT64_MAX, NULL, &v, NULL), KVL_OK);
        assert_int_equal(v, row[i].want);
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_gguf_i64(g, row[i].key, v + 1, v + 2, NULL, &v, &err), KVL_EMODEL);
        assert_non_null(strstr(err.msg, row[i].key));
    }
    /* Beyond int64: never a negative number. */
    assert_int_equal(kvl_gguf_i64(g, "u64", 0, INT64_MAX - 1, NULL, &v, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_i64(g, "u64", -10, 10, NULL, &v, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_i64(g, "absent", 0, 1, NULL, &v, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_i64(g, "absent", 0, 1, &def, &v, NULL), KVL_OK);
    assert_int_equal(v, 42);
    assert_int_equal(kvl_gguf_i64(g, "f32", 0, 1, &def, &v, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_i64(g, "list", 0, 10, &def, &v, NULL), KVL_EMODEL);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

static void test_other_values(void **state)
{
    (void)state;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = open_numbers(&file);
    double x;
    bool b;
    struct kvl_str s, *list = NULL;
    int64_t n;
    enum kvl_gguf_type elem;
    const void *data;
    int32_t third;
    assert_int_equal(kvl_gguf_f64(g, "f32", NULL, &x, NULL), KVL_OK);
    assert_true(x > 0.2499999 && x < 0.2500001);
    assert_int_equal(kvl_gguf_f64(g, "f64", NULL, &x, NULL), KVL_OK);
    assert_true(x > 0.0999999999999 && x < 0.1000000000001);
    assert_int_equal(kvl_gguf_f64(g, "u32", NULL, &x, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_bool(g, "bool", false, &b, NULL), KVL_OK);
    assert_true(b);
    assert_int_equal(kvl_gguf_bool(g, "absent", true, &b, NULL), KVL_OK);
    assert_true(b);
    assert_int_equal(kvl_gguf_bool(g, "u8", true, &b, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_str(g, "str", &s, NULL), KVL_OK);
    assert_int_equal(s.len, 11);
    assert_memory_equal(s.s, "text \033 here", 11);
    assert_int_equal(kvl_gguf_str(g, "texts", &s, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_arr(g, "list", &elem, &n, &data, NULL), KVL_OK);
    memcpy(&third, (const char *)data + 8, 4);
    assert_int_equal(elem, KVL_GGUF_I32);
    assert_int_equal(n * 100 + third, 309);
    assert_int_equal(kvl_gguf_arr(g, "u8", &elem, &n, &data, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_arr_str(g, "list", &list, &n, NULL), KVL_EMODEL);
    assert_int_equal(kvl_gguf_arr_str(g, "texts", &list, &n, NULL), KVL_OK);
    assert_int_equal(n, 3);
    assert_int_equal(list[1].len, 0);
    assert_memory_equal(list[2].s, "ccc", 3);
    kvl_free(list);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

static void test_describe(void **state)
{
    (void)state;
    struct gw w;
    struct kvl_buf file = { 0 }, text = { 0 };
    struct kvl_gguf *g = NULL;
    const int64_t d[2] = { 32, 2 };
    const uint8_t six[6] = { 1, 2, 3, 4, 5, 6 };
    gw_init(&w);
    gw_str(&w, "general.name", "tab\there");
    gw_f32(&w, "x", 0.5f);
    gw_bool(&w, "y", false);
    gw_arr(&w, "z", 0, 6, six, 6);
    gw_tensor(&w, "t", 8, 2, d, zeros, 68);
    gw_finish(&w, &file);
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
    assert_int_equal(kvl_gguf_describe(g, &text), KVL_OK);
    assert_string_equal(text.data,
                        "GGUF version 3, 4 keys, 1 tensors, alignment 32, 288 bytes\n"
                        "general.name                             str \"tab?here\"\n"
                        "x                                        f32 0.5\n"
                        "y                                        bool false\n"
                        "z                                        u8[6] 1, 2, 3, 4, ...\n"
                        "t                                        Q8_0 [32, 2] 68 bytes at 192\n");
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    kvl_buf_free(&text);
    gw_free(&w);
}

static void test_hash(void **state)
{
    (void)state;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = open_numbers(&file);
    XXH128_canonical_t want;
    char hex[33], got[33];
    XXH128_canonicalFromHash(&want, XXH3_128bits(file.data, file.len));
    for (size_t i = 0; i < sizeof want.digest; i++)
        snprintf(hex + 2 * i, 3, "%02x", want.digest[i]);
    kvl_gguf_hash(g, got);
    assert_string_equal(got, hex);
    kvl_gguf_close(g);
    kvl_buf_free(&file);
}

/* ---- files --------------------------------------------------------------------------------- */

static void expect_open_fails(const char *path, const char *why)
{
    struct kvl_err err = { 0 };
    struct kvl_gguf *g = NULL;
    assert_int_not_equal(kvl_gguf_open(path, &g, &err), KVL_OK);
    assert_null(g);
    if (!strstr(err.msg, why) || !strstr(err.msg, path)) fail_msg("%s", err.msg);
}

static void test_files(void **state)
{
    (void)state;
    char path[] = "/tmp/kvl_gguf_XXXXXX";
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = open_numbers(&file);
    kvl_gguf_close(g);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    expect_open_fails(path, "needs 4 bytes"); /* empty */
    assert_true(gw_save(&file, path));
    g = NULL;
    assert_int_equal(kvl_gguf_open(path, &g, NULL), KVL_OK);
    /* A small file is ours: truncating it changes nothing. */
    assert_int_equal(truncate(path, 10), 0);
    assert_memory_equal(kvl_gguf_data(g), file.data, file.len);
    kvl_gguf_close(g);
    expect_open_fails(path, "the file ends");
    assert_int_equal(unlink(path), 0);
    expect_open_fails(path, "No such file");
    expect_open_fails("/dev", "no config.json");
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open_fails(path, "not a regular file");
    unlink(path);
    kvl_buf_free(&file);
}

/* A large file is mapped: no second copy of it; or read, where that is asked for. */
static void test_large_file(void **state)
{
    (void)state;
    char path[] = "/tmp/kvl_gguf_XXXXXX";
    const int64_t big = (INT64_C(65) << 20);
    struct gw w;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    gw_init(&w);
    gw_tensor_raw(&w, "big", 3, 24, 1, &big, 0);
    gw_finish(&w, &file);
    gw_pad(&file, 32);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(gw_save(&file, path));
    assert_int_equal(truncate(path, (off_t)file.len + big), 0); /* a hole: no space is used */
    assert_int_equal(kvl_gguf_open(path, &g, NULL), KVL_OK);
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(g, "big");
    assert_int_equal(((const char *)t->data)[big - 1], 0);
    assert_true(kvl_gguf_mapped(g));
    kvl_gguf_close(g);
    assert_int_equal(setenv("KVL_WEIGHTS", "copy", 1), 0);
    assert_int_equal(kvl_gguf_open(path, &g, NULL), KVL_OK);
    assert_int_equal(unsetenv("KVL_WEIGHTS"), 0);
    assert_false(kvl_gguf_mapped(g));
    t = kvl_gguf_tensor(g, "big");
    assert_int_equal(((const char *)t->data)[big - 1], 0);
    kvl_gguf_close(g);
    assert_int_equal(truncate(path, (off_t)file.len + big - 1), 0);
    expect_open_fails(path, "tensor \"big\"");
    unlink(path);
    kvl_buf_free(&file);
    gw_free(&w);
}

/* ---- size of the work ---------------------------------------------------------------------- */

/* 60000 keys and 60000 tensors: a quadratic check of duplicates would take minutes. */
static void test_many_entries(void **state)
{
    (void)state;
    struct gw w;
    struct kvl_buf file = { 0 };
    struct kvl_gguf *g = NULL;
    gw_init(&w);
    for (uint32_t i = 0; i < 60000; i++) {
        char name[32];
        const int64_t none[1] = { 0 };
        snprintf(name, sizeof name, "key.%u", i);
        gw_u32(&w, name, i);
        gw_tensor_raw(&w, name, strlen(name), 0, 1, none, 0);
    }
    gw_finish(&w, &file);
    uint64_t start = kvl_now_ns();
    assert_int_equal(kvl_gguf_open_memory(file.data, file.len, &g, NULL), KVL_OK);
    assert_true(kvl_now_ns() - start < 60000000000u);
    int64_t v;
    assert_int_equal(kvl_gguf_i64(g, "key.59999", 0, 100000, NULL, &v, NULL), KVL_OK);
    assert_int_equal(v, 59999);
    assert_non_null(kvl_gguf_tensor(g, "key.31415"));
    kvl_gguf_close(g);
    kvl_buf_free(&file);
    gw_free(&w);
}

static void test_unaligned_memory(void **state)
{
    (void)state;
    struct kvl_gguf *g = NULL;
    assert_int_equal(kvl_gguf_open_memory((const char *)zeros + 1, 100, &g, NULL), KVL_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),    cmocka_unit_test(test_empty_header),
        cmocka_unit_test(test_sound_forms),  cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_integers),     cmocka_unit_test(test_other_values),
        cmocka_unit_test(test_describe),     cmocka_unit_test(test_hash),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_large_file),
        cmocka_unit_test(test_many_entries), cmocka_unit_test(test_unaligned_memory),
        cmocka_unit_test(test_part_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
