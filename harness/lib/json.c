/* Values of JSON objects by path. */
#include "json.h"

#include "stats.h"

#include <string.h>

json_t *kvl_json_value(const json_t *record, const char *path)
{
    const json_t *in = record;
    for (;;) {
        char key[64];
        size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        json_t *value = json_object_get(in, key);
        if (!value || path[n] == '\0') return value;
        in = value;
        path += n + 1;
    }
}

const char *kvl_json_text(const json_t *record, const char *path)
{
    const char *text = json_string_value(kvl_json_value(record, path));
    return text ? text : "";
}

double kvl_json_number(const json_t *record, const char *path)
{
    const json_t *value = kvl_json_value(record, path);
    return json_is_number(value) ? json_number_value(value) : KVL_NAN;
}
