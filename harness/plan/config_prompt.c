/* Prompts, as a sweep file asks for them. */
#include "config_prompt.h"

#include "args.h"
#include "kvl/chat.h"
#include "prompt.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT_MOST_NAMES = 64 };

static int chat_unknown(struct kvl_yaml *y, const yaml_node_t *v, const char *key, const char *text)
{
    const char *name[PROMPT_MOST_NAMES] = { "auto", "none" };
    size_t n = 2;
    for (size_t i = 0; kvl_chat_at(i) && n < PROMPT_MOST_NAMES; i++)
        name[n++] = kvl_chat_name(kvl_chat_at(i));
    const char *near = kvl_nearest(text, name, n);
    struct kvl_buf names = { 0 };
    if (near)
        return kvl_yaml_fail(y, v, key, "no chat template \"%s\", did you mean \"%s\"?", text,
                             near);
    int rc = kvl_prompt_names(&names);
    if (rc == KVL_OK)
        rc = kvl_yaml_fail(y, v, key, "no chat template \"%s\", want auto, none, %s", text,
                           names.data);
    kvl_buf_free(&names);
    return rc;
}

int kvl_chat_read(struct kvl_yaml *y, const yaml_node_t *v, const char *key, char **out)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0 && !kvl_chat_find(text))
        return chat_unknown(y, v, key, text);
    free(*out);
    *out = strdup(text);
    return *out ? KVL_OK : kvl_fail(y->err, KVL_ENOMEM, "%s: %s: out of memory", y->name, key);
}
