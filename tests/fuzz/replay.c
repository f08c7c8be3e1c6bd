/* Calls a fuzz target with every file of a folder: what the fuzzer once found is an ordinary test.
 * Each input lies in a block of exactly its size, so that ASan sees a read one byte too far. */
#include "kvl/base.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replay(const struct kvl_buf *content)
{
    uint8_t *exact = malloc(content->len);
    if (content->len && !exact) abort();
    if (content->len) memcpy(exact, content->data, content->len);
    (void)LLVMFuzzerTestOneInput(exact, content->len);
    free(exact);
}

static bool replay_file(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    struct kvl_buf content = { 0 };
    struct kvl_err err = { 0 };
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return false;
    fprintf(stderr, "%s\n", path); /* before the call: a crash names its file */
    if (kvl_read_file(path, (size_t)64 << 20, &content, &err) != KVL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    replay(&content);
    kvl_buf_free(&content);
    return true;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (!folder) {
            fprintf(stderr, "%s: no such folder\n", argv[i]);
            return 1;
        }
        for (struct dirent *e = readdir(folder); e; e = readdir(folder))
            n += replay_file(argv[i], e->d_name);
        closedir(folder);
    }
    printf("%d inputs\n", n);
    return n > 0 ? 0 : 1;
}
