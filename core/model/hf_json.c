/* Parses JSON by jansson. */
#include "hf_json.h"

#include "gguf_impl.h"

#include <string.h>

#define HF_JSON_LIMIT ((size_t)128 << 20)

int kvl_hf_json(const char *text, size_t len, json_t **out, struct kvl_err *err)
{
    json_error_t e = { .line = 0 };
    char shown[GGUF_SHOWN + 4];
    json_t *v = json_loadb(text ? text : "", len, JSON_REJECT_DUPLICATES, &e);
    if (!v)
        return kvl_fail(err, KVL_EMODEL, "line %d, column %d: %s", e.line, e.column,
                        kvl_gguf_show(e.text, strlen(e.text), shown));
    if (!json_is_object(v)) {
        json_decref(v);
        return kvl_fail(err, KVL_EMODEL, "the JSON is no object, want {...}");
    }
    *out = v;
    return KVL_OK;
}

int kvl_hf_json_file(const char *path, json_t **out, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_read_file(path, HF_JSON_LIMIT, &text, err));
    int rc = kvl_hf_json(text.data, text.len, out, err);
    kvl_buf_free(&text);
    return rc == KVL_OK ? KVL_OK : kvl_fail_at(err, rc, "%s", path);
}
