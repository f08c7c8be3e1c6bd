/* Numbers of shards as text. */
#include "log_shards.h"

#include "kvl/opt.h"

#include <stdio.h>
#include <string.h>

bool kvl_log_shard(const char *text, int64_t *index, int64_t *count)
{
    char first[24];
    const char *slash = strchr(text, '/');
    if (!slash || (size_t)(slash - text) >= sizeof first) return false;
    snprintf(first, sizeof first, "%.*s", (int)(slash - text), text);
    return kvl_parse_i64(first, index) == KVL_OK && kvl_parse_i64(slash + 1, count) == KVL_OK &&
           *count > 0 && *index >= 0 && *index < *count;
}

int kvl_log_ranges_add(struct kvl_log_ranges *r, int64_t number)
{
    bool goes_on = r->text.len && number == r->last + 1;
    if (!goes_on) {
        if (r->text.len) KVL_TRY(kvl_buf_adds(&r->text, ","));
        KVL_TRY(kvl_buf_printf(&r->text, "%lld", (long long)number));
        r->stem = r->text.len;
    } else {
        r->text.len = r->stem;
        KVL_TRY(kvl_buf_printf(&r->text, "-%lld", (long long)number));
    }
    r->last = number;
    return KVL_OK;
}
