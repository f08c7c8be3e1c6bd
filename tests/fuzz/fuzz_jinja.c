/* Any bytes as a chat template: parsed and run with a conversation.  Every byte that is rendered has its
 * mark, and a second run gives the same. */
#include "jinja.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void turn(struct kvl_jinja_run *r, struct jin_val messages, const char *role,
                 const char *text)
{
    struct jin_val m = jin_dict(r);
    jin_put(r, m, "role", jin_text(r, role, strlen(role), 0));
    jin_put(r, m, "content", jin_text(r, text, strlen(text), 1));
    jin_push(r, messages, m);
}

static int render(const struct kvl_jinja *t, struct kvl_buf *out, struct kvl_buf *mark)
{
    struct kvl_jinja_run *r;
    must(kvl_jinja_open(t, 64, &r, NULL) == KVL_OK);
    struct jin_val messages = jin_list(r), none = { .type = JIN_NONE };
    turn(r, messages, "system", "Be brief.");
    turn(r, messages, "user", " {{ a }} <s>\n\xc3\xa9\xe2\x80\xa8 7 ");
    turn(r, messages, "assistant", "</think> B");
    turn(r, messages, "user", "");
    jin_set(r, "messages", messages);
    jin_set(r, "add_generation_prompt", (struct jin_val){ JIN_BOOL, { .b = true } });
    jin_set(r, "tools", none);
    jin_set(r, "bos_token", jin_text(r, "<s>", 3, 0));
    int rc = kvl_jinja_render(r, out, mark);
    kvl_jinja_close(r);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvl_jinja *t;
    struct kvl_buf out[2] = { 0 }, mark[2] = { 0 };
    int rc[2];
    if (kvl_jinja_parse((const char *)data, size, &t, NULL) != KVL_OK) return 0;
    for (int i = 0; i < 2; i++) rc[i] = render(t, &out[i], &mark[i]);
    must(rc[0] == rc[1] && out[0].len == out[1].len);
    must(rc[0] != KVL_OK || out[0].len == mark[0].len);
    must(out[0].len == 0 || memcmp(out[0].data, out[1].data, out[0].len) == 0);
    must(mark[0].len == 0 || memcmp(mark[0].data, mark[1].data, mark[0].len) == 0);
    for (int i = 0; i < 2; i++) {
        kvl_buf_free(&out[i]);
        kvl_buf_free(&mark[i]);
    }
    kvl_jinja_free(t);
    return 0;
}
