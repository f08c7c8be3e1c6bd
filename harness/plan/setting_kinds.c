/* Values of a sweep file's keys, kind by kind: from YAML and back. */
#include "setting_kinds.h"

#include "config_point.h"
#include "kvl/chat.h"
#include "policy_spec.h"
#include "prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvl_config_memory(const struct kvl_yaml *y, const char *key)
{
    return kvl_fail(y->err, KVL_ENOMEM, "%s: %s: out of memory", y->name, key);
}

/* ---- single values --------------------------------------------------------------------------- */

static int int_read(KVL_SETTING_READ)
{
    int64_t wide;
    (void)to;
    KVL_TRY(kvl_yaml_i64(y, v, key, (int64_t)row->opt.min, (int64_t)row->opt.max, &wide));
    *(int32_t *)at = (int32_t)wide;
    return KVL_OK;
}

static int seed_read(KVL_SETTING_READ)
{
    int64_t seed;
    (void)row, (void)to;
    KVL_TRY(kvl_yaml_i64(y, v, key, 0, INT64_MAX, &seed));
    *(uint64_t *)at = (uint64_t)seed;
    return KVL_OK;
}

static int number_read(KVL_SETTING_READ)
{
    const char *text;
    double x;
    (void)to;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_parse_f64(text, &x) != KVL_OK || !(x >= row->opt.min && x <= row->opt.max))
        return kvl_yaml_fail(y, v, key, "\"%s\" is out of range, want %g to %g", text, row->opt.min,
                             row->opt.max);
    *(double *)at = x;
    return KVL_OK;
}

static void choice_set(const struct kvl_opt *o, int32_t i, void *at)
{
    if (o->type == KVL_OPT_BOOL)
        *(bool *)at = i != 0;
    else
        *(int32_t *)at = i;
}

static int choice_read(KVL_SETTING_READ)
{
    const char *text, *const *names = row->opt.choices;
    char want[128] = "";
    (void)to;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    for (int32_t i = 0; names[i]; i++) {
        size_t n = strlen(want);
        if (strcmp(text, names[i]) == 0) {
            choice_set(&row->opt, i, at);
            return KVL_OK;
        }
        snprintf(want + n, sizeof want - n, "%s%s",
                 !i             ? ""
                 : names[i + 1] ? ", "
                                : " or ",
                 names[i]);
    }
    return kvl_yaml_fail(y, v, key, "\"%s\" is no %s, want %s", text, row->opt.help, want);
}

static int int_value(KVL_SETTING_VALUE)
{
    (void)row;
    return kvl_buf_printf(b, "%d", *(const int32_t *)at);
}

static int seed_value(KVL_SETTING_VALUE)
{
    (void)row;
    return kvl_buf_printf(b, "%llu", (unsigned long long)*(const uint64_t *)at);
}

static int number_value(KVL_SETTING_VALUE)
{
    (void)row;
    return kvl_buf_printf(b, "%.15g", *(const double *)at);
}

static int choice_value(KVL_SETTING_VALUE)
{
    int32_t i = row->opt.type == KVL_OPT_BOOL ? *(const bool *)at : *(const int32_t *)at;
    return kvl_buf_adds(b, row->opt.choices[i]);
}

const struct kvl_setting_kind kvl_kind_int = { int_read, int_value, false };
const struct kvl_setting_kind kvl_kind_seed = { seed_read, seed_value, false };
const struct kvl_setting_kind kvl_kind_number = { number_read, number_value, false };
const struct kvl_setting_kind kvl_kind_choice = { choice_read, choice_value, false };

/* By its name, and GPUs by number. */
static int device_read(KVL_SETTING_READ)
{
    const char *text;
    (void)row;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_device_parse(text, at, &to->s->gpus, NULL) != KVL_OK)
        return kvl_yaml_fail(
            y, v, key,
            "\"%s\" is no device, want " KVL_DEVICE_NAMES "; GPUs by number as in cuda:0..7", text);
    return KVL_OK;
}

static int device_value(KVL_SETTING_VALUE)
{
    (void)row;
    return kvl_buf_adds(b, *(const char *const *)at);
}

const struct kvl_setting_kind kvl_kind_device = { device_read, device_value, false };

static int kv_part_read(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    enum kvl_kv_type *type = user;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    type += key[strlen(key) - 1] == 'v';
    if (kvl_kv_find(text, type) && kvl_kv_facts(*type)) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%s\" is no element type, want one of %s", text,
                         kvl_kv_list());
}

/* One for both, or keys and values apart: {k: q8_0, v: q4_0}, and in one word q8_0/q4_0. */
static int kv_one_read(struct kvl_yaml *y, yaml_node_t *v, const char *key, enum kvl_kv_type *out)
{
    static const struct kvl_yaml_key keys[] = { { "k", kv_part_read, false },
                                                { "v", kv_part_read, false } };
    enum kvl_kv_type part[] = { KVL_KV_F16, KVL_KV_F16 };
    const char *text;
    if (v->type == YAML_MAPPING_NODE) {
        KVL_TRY(kvl_yaml_walk(y, v, "kv_type.", keys, 2, part));
        *out = kvl_kv_pair(part[0], part[1]);
        return KVL_OK;
    }
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_kv_find(text, out)) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%s\" is no element type, want one of %s, or {k: .., v: ..}",
                         text, kvl_kv_list());
}

static int kv_types_read(KVL_SETTING_READ)
{
    struct kvl_kv_types *types = at;
    size_t n = kvl_yaml_len(v);
    (void)row, (void)to;
    *types = (struct kvl_kv_types){ 0 };
    if (n == 0 || n > KVL_KV_AXIS)
        return kvl_yaml_fail(y, v, key, "has %zu types, want 1 to %d", n, KVL_KV_AXIS);
    for (size_t i = 0; i < n; i++) {
        yaml_node_t *item = kvl_yaml_at(y, v, i);
        enum kvl_kv_type type;
        KVL_TRY(kv_one_read(y, item, key, &type));
        if (kvl_kv_types_have(types, type))
            return kvl_yaml_fail(y, item, key, "%s is in the list twice", kvl_kv_name(type).text);
        types->v[types->n++] = type;
    }
    return KVL_OK;
}

static int kv_types_value(KVL_SETTING_VALUE)
{
    const struct kvl_kv_types *types = at;
    (void)row;
    for (int32_t i = 0; i < types->n; i++)
        KVL_TRY(kvl_buf_printf(b, "%s%s", i ? ", " : "[", kvl_kv_name(types->v[i]).text));
    return types->n ? kvl_buf_adds(b, "]") : KVL_OK;
}

/* Several are an axis. */
static int kv_type_read(KVL_SETTING_READ)
{
    struct kvl_kv_types *types = &to->s->kv_types;
    KVL_TRY(kv_types_read(y, v, key, row, to, types));
    *(enum kvl_kv_type *)at = types->v[0];
    if (types->n == 1) types->n = 0;
    return KVL_OK;
}

static int kv_type_value(KVL_SETTING_VALUE)
{
    (void)row;
    return kvl_buf_adds(b, kvl_kv_name(*(const enum kvl_kv_type *)at).text);
}

const struct kvl_setting_kind kvl_kind_kv_type = { kv_type_read, kv_type_value, false };
const struct kvl_setting_kind kvl_kind_kv_types = { kv_types_read, kv_types_value, false };

/* ---- texts ----------------------------------------------------------------------------------- */

int kvl_text_quote(struct kvl_buf *b, const char *s)
{
    KVL_TRY(kvl_buf_adds(b, "\""));
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            KVL_TRY(kvl_buf_printf(b, "\\%c", c));
        else if (c < 0x20 || c == 0x7f)
            KVL_TRY(kvl_buf_printf(b, "\\x%02x", c));
        else
            KVL_TRY(kvl_buf_add(b, s, 1));
    }
    return kvl_buf_adds(b, "\"");
}

static int texts_value(KVL_SETTING_VALUE)
{
    const char *text = *(char *const *)at;
    (void)row;
    return text ? kvl_text_quote(b, text) : KVL_OK;
}

static int text_set(const struct kvl_yaml *y, const char *key, const char *text, char **out)
{
    free(*out);
    *out = strdup(text);
    return *out ? KVL_OK : kvl_config_memory(y, key);
}

/* An empty system text is one, too: it takes the place of the template's own. */
static int any_text_read(KVL_SETTING_READ)
{
    const char *text;
    (void)row, (void)to;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    return text_set(y, key, text, at);
}

static int text_read(KVL_SETTING_READ)
{
    KVL_TRY(any_text_read(y, v, key, row, to, at));
    return **(char **)at ? KVL_OK : kvl_yaml_fail(y, v, key, "is empty");
}

static int name_read(KVL_SETTING_READ)
{
    KVL_TRY(text_read(y, v, key, row, to, at));
    const char *name = *(char **)at;
    if (strchr(name, '/'))
        return kvl_yaml_fail(y, v, key, "\"%s\" has a slash, want a plain name", name);
    return KVL_OK;
}

const struct kvl_setting_kind kvl_kind_any_text = { any_text_read, texts_value, false };
const struct kvl_setting_kind kvl_kind_text = { text_read, texts_value, false };
const struct kvl_setting_kind kvl_kind_name = { name_read, texts_value, false };

/* Relative to the file. */
static int path_set(const struct kvl_setting_for *c, struct kvl_yaml *y, const yaml_node_t *v,
                    const char *key, const char *text, char **out)
{
    struct kvl_buf path = { 0 };
    bool relative = text[0] != '/' && y->lines && c->model_dir;
    if (!text[0]) return kvl_yaml_fail(y, v, key, "is empty, want the path of a GGUF file");
    if (kvl_buf_printf(&path, "%s%s%s", relative ? c->model_dir : "", relative ? "/" : "", text))
        return kvl_config_memory(y, key);
    free(*out);
    *out = path.data;
    return KVL_OK;
}

static int path_read(KVL_SETTING_READ)
{
    const char *text;
    (void)row;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    return path_set(to, y, v, key, text, at);
}

/* Paths are no ranges, whatever dots they have. */
static int paths_read(KVL_SETTING_READ)
{
    struct kvl_texts *paths = at;
    (void)row;
    kvl_texts_free(paths);
    if (kvl_yaml_len(v) == 0) return kvl_yaml_fail(y, v, key, "is an empty list, want paths");
    for (size_t i = 0; i < kvl_yaml_len(v); i++) {
        const char *text;
        char *path = NULL;
        const yaml_node_t *item = kvl_yaml_at(y, v, i);
        KVL_TRY(kvl_yaml_text(y, item, key, &text));
        KVL_TRY(path_set(to, y, item, key, text, &path));
        int rc = kvl_texts_add(paths, path);
        free(path);
        if (rc != KVL_OK) return kvl_config_memory(y, key);
    }
    return KVL_OK;
}

static int paths_value(KVL_SETTING_VALUE)
{
    const struct kvl_texts *paths = at;
    (void)row;
    for (size_t i = 0; i < paths->n; i++) {
        KVL_TRY(kvl_buf_adds(b, i ? ", " : "["));
        KVL_TRY(kvl_text_quote(b, paths->v[i]));
    }
    return paths->n ? kvl_buf_adds(b, "]") : KVL_OK;
}

const struct kvl_setting_kind kvl_kind_path = { path_read, texts_value, false };
const struct kvl_setting_kind kvl_kind_paths = { paths_read, paths_value, false };

enum { PROMPT_MOST_NAMES = 64 };

static int chat_unknown(struct kvl_yaml *y, const yaml_node_t *v, const char *key, const char *text)
{
    const char *name[PROMPT_MOST_NAMES] = { "auto", "none" };
    size_t n = 2;
    for (size_t i = 0; kvl_chat_at(i) && n < PROMPT_MOST_NAMES; i++) name[n++] = kvl_chat_at(i);
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

static bool chat_known(const char *text)
{
    for (size_t i = 0; kvl_chat_at(i); i++)
        if (strcmp(kvl_chat_at(i), text) == 0) return true;
    return false;
}

/* auto, none or the name of a template. */
static int chat_read(KVL_SETTING_READ)
{
    const char *text;
    (void)row, (void)to;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (strcmp(text, "auto") != 0 && strcmp(text, "none") != 0 && !chat_known(text))
        return chat_unknown(y, v, key, text);
    return text_set(y, key, text, at);
}

const struct kvl_setting_kind kvl_kind_chat = { chat_read, texts_value, false };
