/* Input bytes are operations on a KV store and on a naive model of it. */
#include "../kvstore_driver.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct drive *d = calloc(1, sizeof *d);
    if (!d) return 0;
    if (!drive_run(d, data, size)) {
        fprintf(stderr, "%s\n", d->msg);
        abort();
    }
    free(d);
    return 0;
}
