/* Calls a fuzz target with inputs: what the fuzzer once found is an ordinary test.
 *
 *     fuzz_x [-n COUNT] PATH...
 *
 * A path that ends in .tar.zst is a packed corpus (corpus.sh), another one is an input.  With -n there
 * must be that many.  Each input lies in a block of exactly its size, so that ASan sees a read one byte
 * too far. */
#include "kvl/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { REPLAY_LIMIT = 64 << 20 };

static _Noreturn void replay_fail(const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    exit(1);
}

static int replay(const char *name, const char *data, size_t size)
{
    uint8_t *exact = malloc(size);
    fprintf(stderr, "%s\n", name); /* before the call: a crash names its input */
    if (size && !exact) abort();
    if (size) memcpy(exact, data, size);
    (void)LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

/* ---- archives ---------------------------------------------------------------------------------- */

/* ustar: a header of 512 bytes, the file, zeros up to the next 512; at the end a header of zeros. */
enum { TAR_BLOCK = 512, TAR_NAME = 100, TAR_SIZE = 124, TAR_SIZE_LEN = 12, TAR_TYPE = 156 };

static int replay_tar(const char *path, const char *tar, size_t len)
{
    int n = 0;
    for (size_t at = 0; at + TAR_BLOCK <= len;) {
        const char *header = tar + at;
        char name[TAR_NAME + 1] = "", digits[TAR_SIZE_LEN + 1] = "";
        if (header[0] == '\0') return n;
        memcpy(name, header, TAR_NAME);
        memcpy(digits, header + TAR_SIZE, TAR_SIZE_LEN);
        size_t size = strtoull(digits, NULL, 8);
        if (header[TAR_TYPE] != '0') replay_fail(path, "holds what is no file, want corpus.sh");
        at += TAR_BLOCK;
        if (size > len - at) break;
        n += replay(name, tar + at, size);
        at += (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    }
    replay_fail(path, "is cut off");
}

static int replay_archive(const char *path, const struct kvl_buf *packed)
{
    unsigned long long size = ZSTD_getFrameContentSize(packed->data, packed->len);
    if (size > REPLAY_LIMIT) replay_fail(path, "is no archive of corpus.sh");
    char *tar = malloc((size_t)size + 1);
    if (!tar) abort();
    size_t got = ZSTD_decompress(tar, (size_t)size, packed->data, packed->len);
    if (ZSTD_isError(got)) replay_fail(path, ZSTD_getErrorName(got));
    int n = replay_tar(path, tar, got);
    free(tar);
    return n;
}

/* ---- paths ------------------------------------------------------------------------------------- */

static int replay_path(const char *path)
{
    static const char tail[] = ".tar.zst";
    struct kvl_buf file = { 0 };
    struct kvl_err err = { 0 };
    size_t n = strlen(path);
    if (kvl_read_file(path, REPLAY_LIMIT, &file, &err) != KVL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    bool packed = n >= sizeof tail && strcmp(path + n - (sizeof tail - 1), tail) == 0;
    int inputs = packed ? replay_archive(path, &file) : replay(path, file.data, file.len);
    kvl_buf_free(&file);
    return inputs;
}

int main(int argc, char **argv)
{
    int n = 0, want = -1, i = 1;
    if (argc > 2 && strcmp(argv[1], "-n") == 0) {
        want = atoi(argv[2]);
        i = 3;
    }
    for (; i < argc; i++) n += replay_path(argv[i]);
    printf("%d inputs\n", n);
    if (want >= 0 && n != want) printf("want %d\n", want);
    return n > 0 && (want < 0 || n == want) ? 0 : 1;
}
