/* The table of settings: defaults, reading, the resolved text, keys of cells. */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- the table ------------------------------------------------------------------------------- */

static const struct kvl_setting_kind kvl_kind_exclude, kvl_kind_speed, kvl_kind_quality,
    kvl_kind_sampling, kvl_kind_analyze;

#define AT(member) .off = offsetof(struct kvl_sweep, member)
#define INT(member, text, least, most)                                                             \
    .kind = &kvl_kind_int,                                                                         \
    .opt = { .type = KVL_OPT_INT, AT(member), .def = (text), .min = (least), .max = (most) }
#define NUMBER(member, text, most)                                                                 \
    .kind = &kvl_kind_number,                                                                      \
    .opt = { .type = KVL_OPT_FLOAT, AT(member), .def = (text), .max = (most) }
#define NAMES(opt_type, member, text, what, ...)                                                   \
    .kind = &kvl_kind_choice, .opt = { .type = (opt_type),                                         \
                                       AT(member),                                                 \
                                       .def = (text),                                              \
                                       .choices = (const char *const[]){ __VA_ARGS__, NULL },      \
                                       .help = (what) }
#define CHOICE(member, text, what, ...) NAMES(KVL_OPT_ENUM, member, text, what, __VA_ARGS__)
#define SWITCH(member, text, what, ...) NAMES(KVL_OPT_BOOL, member, text, what, __VA_ARGS__)
#define OTHER_OF(member, of_kind, text) .kind = &(of_kind), .opt = { AT(member), .def = (text) }
#define OTHER(member, of_kind)          OTHER_OF(member, of_kind, NULL)
#define TEXT(member, of_kind)           OTHER(member, of_kind)
#define RULE(member, of_kind)                                                                      \
    .kind = &(of_kind), .opt = { .off = offsetof(struct kvl_exclude, member) }
#define NO_KEY               .in_key = KVL_KEY_NONE
#define IN_KEY               .in_key = KVL_KEY_GIVEN
#define IN_KEY_AS(as)        .in_key = KVL_KEY_GIVEN, .key = (as)
#define ALWAYS_IN_KEY        .in_key = KVL_KEY_ALWAYS
#define ALWAYS_IN_KEY_AS(as) .in_key = KVL_KEY_ALWAYS, .key = (as)
#define IN_SPEED_KEY         .in_key = KVL_KEY_SPEED

static const struct kvl_setting settings[] = {
#define SETTING(key, how, is_shown, where, ...) { .name = (key), how, .shown = (is_shown), where },
#include "settings.def"
};
enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* The next row below `map` from `i` on; SETTINGS: none. */
static size_t setting_below(const char *map, size_t i)
{
    size_t n = strlen(map);
    while (i < SETTINGS &&
           (strncmp(settings[i].name, map, n) != 0 || strchr(settings[i].name + n, '.')))
        i++;
    return i;
}

#define EACH_BELOW(map, i)                                                                         \
    for (size_t i = setting_below(map, 0); i < SETTINGS; i = setting_below(map, i + 1))

/* ---- defaults -------------------------------------------------------------------------------- */

static void numbers_default(const char *text, struct kvl_numbers *out)
{
    char *end;
    for (out->n = 0; *text != ']'; text = end)
        out->v[out->n++] = (int32_t)strtol(text + 1, &end, 10);
}

static void setting_default(const struct kvl_setting *row, char *at)
{
    const struct kvl_opt *o = &row->opt;
    int32_t i = 0;
    if (o->type == KVL_OPT_INT)
        *(int32_t *)(void *)at = (int32_t)strtol(o->def, NULL, 10);
    else if (o->type == KVL_OPT_FLOAT)
        *(double *)(void *)at = strtod(o->def, NULL);
    else if (row->kind == &kvl_kind_seed)
        *(uint64_t *)(void *)at = strtoull(o->def, NULL, 10);
    else if (row->kind == &kvl_kind_numbers)
        numbers_default(o->def, (struct kvl_numbers *)(void *)at);
    else if (row->kind == &kvl_kind_what)
        *(unsigned *)(void *)at = KVL_ANALYZE_ALL;
    else if (row->kind == &kvl_kind_device)
        *(const char **)(void *)at = o->def;
    else if (row->kind == &kvl_kind_kv_type)
        (void)kvl_kv_find(o->def, (enum kvl_kv_type *)(void *)at);
    if (row->kind != &kvl_kind_choice) return;
    while (strcmp(o->choices[i], o->def) != 0) i++;
    if (o->type == KVL_OPT_BOOL)
        *(bool *)at = i != 0;
    else
        *(int32_t *)(void *)at = i;
}

void kvl_settings_default(const char *map, struct kvl_sweep *s)
{
    EACH_BELOW(map, i) setting_default(&settings[i], (char *)s + settings[i].opt.off);
}

struct kvl_sampling kvl_greedy(void)
{
    struct kvl_sweep s = { 0 };
    kvl_settings_default("sampling.", &s);
    return s.sampling;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int setting_read(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_setting_for *to = user;
    const struct kvl_setting *row = settings;
    while (strcmp(row->name, key) != 0) row++;
    char *base = strncmp(key, "exclude.", 8) == 0 ? (char *)to->rule : (char *)to->s;
    return row->kind->read(y, v, key, row, to, base + row->opt.off);
}

int kvl_settings_walk(struct kvl_yaml *y, yaml_node_t *node, const char *map,
                      struct kvl_setting_for *to)
{
    struct kvl_yaml_key keys[SETTINGS];
    size_t n = 0;
    EACH_BELOW(map, i)
    {
        const struct kvl_setting *row = &settings[i];
        keys[n++] = (struct kvl_yaml_key){ row->name + strlen(map), setting_read, row->kind->map };
    }
    return kvl_yaml_walk(y, node, map, keys, n, to);
}

static int speed_read(KVL_SETTING_READ)
{
    (void)key, (void)row;
    ((struct kvl_speed *)at)->on = true;
    kvl_settings_default("speed.", to->s);
    return kvl_settings_walk(y, v, "speed.", to);
}

static int quality_read(KVL_SETTING_READ)
{
    (void)key, (void)row, (void)at;
    kvl_settings_default("quality.", to->s);
    return kvl_settings_walk(y, v, "quality.", to);
}

static int sampling_read(KVL_SETTING_READ)
{
    const struct kvl_sampling *s = at;
    (void)key, (void)row;
    kvl_settings_default("sampling.", to->s);
    KVL_TRY(kvl_settings_walk(y, v, "sampling.", to));
    if (s->n > 1 && !(s->temperature > 0.0))
        return kvl_yaml_fail(y, v, "sampling.n",
                             "%d answers without a temperature are all the same", s->n);
    return KVL_OK;
}

static int analyze_read(KVL_SETTING_READ)
{
    (void)key, (void)row;
    ((struct kvl_analyze *)at)->on = true;
    return kvl_settings_walk(y, v, "analyze.", to);
}

static int exclude_read(KVL_SETTING_READ)
{
    struct kvl_sweep *s = to->s;
    size_t n = kvl_yaml_len(v);
    (void)row, (void)at;
    s->exclude = kvl_alloc(n + 1, sizeof *s->exclude);
    if (!s->exclude) return kvl_config_memory(y, key);
    for (size_t i = 0; i < n; i++) {
        yaml_node_t *item = kvl_yaml_at(y, v, i);
        to->rule = &s->exclude[s->n_exclude++];
        KVL_TRY(kvl_settings_walk(y, item, "exclude.", to));
        if (kvl_yaml_n_pairs(item) == 0)
            return kvl_yaml_fail(y, item, key, "an empty rule would leave out every cell");
    }
    return KVL_OK;
}

static const struct kvl_setting_kind kvl_kind_exclude = { exclude_read, NULL, false };
static const struct kvl_setting_kind kvl_kind_speed = { speed_read, NULL, true };
static const struct kvl_setting_kind kvl_kind_quality = { quality_read, NULL, true };
static const struct kvl_setting_kind kvl_kind_sampling = { sampling_read, NULL, true };
static const struct kvl_setting_kind kvl_kind_analyze = { analyze_read, NULL, true };

/* ---- text ------------------------------------------------------------------------------------ */

/* Appends `before`, the value and `after` where there is one that is to be seen. */
static int setting_print(const struct kvl_setting *row, const void *base, const char *before,
                         const char *after, struct kvl_buf *b, bool *printed)
{
    struct kvl_buf value = { 0 };
    int rc = row->kind->value(row, (const char *)base + row->opt.off, &value);
    bool is_default = value.data && row->opt.def && strcmp(value.data, row->opt.def) == 0;
    *printed = rc == KVL_OK && value.len > 0 && (row->shown || !is_default);
    if (*printed) rc = kvl_buf_printf(b, "%s%s%s", before, value.data, after);
    kvl_buf_free(&value);
    return rc;
}

/* The keys below `map`, a line each; the first one may stand behind another indent. */
static int text_lines(const char *map, const void *base, const char *first, const char *indent,
                      struct kvl_buf *b)
{
    EACH_BELOW(map, i)
    {
        char key[64];
        bool printed;
        snprintf(key, sizeof key, "%s%s: ", first, settings[i].name + strlen(map));
        KVL_TRY(setting_print(&settings[i], base, key, "\n", b, &printed));
        if (printed) first = indent;
    }
    return KVL_OK;
}

/* "temperature<is>0.7<sep>top_p..." */
static int text_sampling(const struct kvl_sweep *s, const char *is, const char *sep,
                         struct kvl_buf *b)
{
    static const char map[] = "sampling.";
    const char *before = "";
    EACH_BELOW(map, i)
    {
        char key[64];
        bool printed;
        snprintf(key, sizeof key, "%s%s%s", before, settings[i].name + sizeof map - 1, is);
        KVL_TRY(setting_print(&settings[i], s, key, "", b, &printed));
        before = sep;
    }
    return KVL_OK;
}

int kvl_sampling_print(const struct kvl_sampling *s, struct kvl_buf *b)
{
    const struct kvl_sweep of = { .sampling = *s };
    return s->temperature > 0.0 ? text_sampling(&of, "=", ",", b) : KVL_OK;
}

static int text_map(const struct kvl_setting *row, const struct kvl_sweep *s, struct kvl_buf *b)
{
    bool on = row->kind == &kvl_kind_speed     ? s->speed.on
              : row->kind == &kvl_kind_quality ? s->quality.questions > 0
                                               : s->analyze.on;
    char map[32];
    if (!on) return KVL_OK;
    snprintf(map, sizeof map, "%s.", row->name);
    KVL_TRY(kvl_buf_printf(b, "%s:\n", row->name));
    return text_lines(map, s, "  ", "  ", b);
}

/* Of what is no line of its own. */
static int text_block(const struct kvl_setting *row, const struct kvl_sweep *s, struct kvl_buf *b)
{
    if (row->kind == &kvl_kind_sampling) {
        if (!(s->sampling.temperature > 0.0)) return KVL_OK;
        KVL_TRY(kvl_buf_adds(b, "sampling: {"));
        KVL_TRY(text_sampling(s, ": ", ", ", b));
        return kvl_buf_adds(b, "}\n");
    }
    if (row->kind != &kvl_kind_exclude) return text_map(row, s, b);
    if (s->n_exclude) KVL_TRY(kvl_buf_adds(b, "exclude:\n"));
    for (size_t i = 0; i < s->n_exclude; i++)
        KVL_TRY(text_lines("exclude.", &s->exclude[i], "  - ", "    ", b));
    return KVL_OK;
}

/* All of an axis; keys of cells have the one at hand. */
static int text_kv_types(const struct kvl_sweep *s, const char *key, struct kvl_buf *b)
{
    KVL_TRY(kvl_buf_adds(b, key));
    KVL_TRY(kvl_kind_kv_types.value(NULL, &s->kv_types, b));
    return kvl_buf_adds(b, "\n");
}

static int text_all(const struct kvl_sweep *s, struct kvl_buf *b)
{
    EACH_BELOW("", i)
    {
        const struct kvl_setting *row = &settings[i];
        char key[64];
        bool printed;
        snprintf(key, sizeof key, "%s: ", row->name);
        if (row->kind == &kvl_kind_path && s->models.n) continue; /* `models` has it */
        if (row->kind == &kvl_kind_kv_type && s->kv_types.n)
            KVL_TRY(text_kv_types(s, key, b));
        else if (row->kind->value)
            KVL_TRY(setting_print(row, s, key, "\n", b, &printed));
        else
            KVL_TRY(text_block(row, s, b));
    }
    return KVL_OK;
}

int kvl_sweep_print(struct kvl_sweep *s)
{
    struct kvl_buf b = { 0 };
    int rc = text_all(s, &b);
    if (rc != KVL_OK) {
        kvl_buf_free(&b);
        return rc;
    }
    XXH128_hash_t h = XXH3_128bits(b.data, b.len);
    snprintf(s->hash, sizeof s->hash, "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    s->text = b.data;
    return KVL_OK;
}

/* ---- keys of cells --------------------------------------------------------------------------- */

int kvl_settings_key(const struct kvl_sweep *s, enum kvl_in_key where, struct kvl_buf *b)
{
    for (size_t i = 0; i < SETTINGS; i++) {
        struct kvl_setting row = settings[i];
        char key[64];
        bool printed;
        if (row.in_key != where) continue;
        row.shown = where == KVL_KEY_ALWAYS;
        snprintf(key, sizeof key, ";%s=", row.key ? row.key : row.name);
        KVL_TRY(setting_print(&row, s, key, "", b, &printed));
    }
    return KVL_OK;
}
