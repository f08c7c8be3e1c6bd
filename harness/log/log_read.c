/* Reading logs: records out of groups, files behind command-line words, repair. */
#include "log_frame.h"
#include "show.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A longer line is no record of ours; it is counted as bad and not kept. */
#define LINE_MAX_BYTES ((size_t)64 << 20)

void kvl_log_health_free(struct kvl_log_health *h)
{
    for (size_t i = 0; i < h->n_damage; i++) free(h->damage[i].path);
    free(h->damage);
    *h = (struct kvl_log_health){ 0 };
}

bool kvl_log_health_ok(const struct kvl_log_health *h)
{
    for (size_t i = 0; i < h->n_damage; i++)
        if (!h->damage[i].tail) return false;
    return h->n_bad_lines == 0;
}

/* ---- records ------------------------------------------------------------------------------- */

struct reader {
    kvl_log_fn fn;
    kvl_log_line_fn line_fn; /* instead of fn */
    void *user;
    struct kvl_log_health *health;
    struct kvl_log_unpacker unpacker;
    struct kvl_buf line; /* the unfinished line */
    bool too_long;
};

static int reader_line(struct reader *r, const char *text, size_t len, struct kvl_err *err)
{
    if (len == 0 && !r->too_long) return KVL_OK;
    errno = 0; /* jansson does not always say that memory ran out, its allocations do */
    json_t *record = r->too_long ? NULL : json_loadb(text, len, JSON_ALLOW_NUL, NULL);
    if (!record && !r->too_long && errno == ENOMEM)
        return kvl_fail(err, KVL_ENOMEM, "no memory for a log line of %zu bytes", len);
    r->too_long = false;
    if (!json_is_object(record)) {
        json_decref(record);
        r->health->n_bad_lines++;
        return KVL_OK;
    }
    r->health->n_records++;
    int rc = r->fn ? kvl_show_record(record, err) : KVL_OK;
    if (r->line_fn) rc = r->line_fn(text, len, r->user, err);
    if (rc == KVL_OK && r->fn) rc = r->fn(record, r->user, err);
    json_decref(record);
    return rc;
}

/* The line ends here, with or without a line feed. */
static int reader_flush(struct reader *r, struct kvl_err *err)
{
    int rc = reader_line(r, r->line.data, r->line.len, err);
    r->line.len = 0;
    return rc;
}

static int reader_keep(struct reader *r, const char *text, size_t len, struct kvl_err *err)
{
    if (r->line.len + len > LINE_MAX_BYTES) {
        r->too_long = true;
        r->line.len = 0;
    }
    if (r->too_long) return KVL_OK;
    if (kvl_buf_add(&r->line, text, len) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for a log line of %zu bytes",
                        r->line.len + len);
    return KVL_OK;
}

static int reader_text(const char *text, size_t len, void *user, struct kvl_err *err)
{
    struct reader *r = user;
    const char *end = text + len;
    while (text < end) {
        const char *feed = memchr(text, '\n', (size_t)(end - text));
        if (!feed) return reader_keep(r, text, (size_t)(end - text), err);
        if (r->line.len || r->too_long) {
            KVL_TRY(reader_keep(r, text, (size_t)(feed - text), err));
            KVL_TRY(reader_flush(r, err));
        } else {
            KVL_TRY(reader_line(r, text, (size_t)(feed - text), err));
        }
        text = feed + 1;
    }
    return KVL_OK;
}

static int reader_group(const struct kvl_log_group *g, void *user, struct kvl_err *err)
{
    struct reader *r = user;
    if (g->lost) return KVL_OK;
    if (!g->joined) KVL_TRY(reader_flush(r, err));
    return kvl_log_unpack(&r->unpacker, g->frame, g->frame_bytes, reader_text, r, err);
}

static int reader_run(struct reader *r, const char *name, const void *data, size_t len,
                      struct kvl_err *err)
{
    struct kvl_log_health own = { 0 };
    if (!r->health) r->health = &own;
    int rc = kvl_log_walk(name, data, len, reader_group, r, r->health, err);
    if (rc == KVL_OK) rc = reader_flush(r, err);
    kvl_buf_free(&r->line);
    kvl_log_unpacker_free(&r->unpacker);
    kvl_log_health_free(&own);
    return rc;
}

int kvl_log_read_memory(const char *name, const void *data, size_t len, kvl_log_fn fn, void *user,
                        struct kvl_log_health *health, struct kvl_err *err)
{
    struct reader r = { .fn = fn, .user = user, .health = health };
    return reader_run(&r, name, data, len, err);
}

int kvl_log_lines(const char *path, kvl_log_line_fn fn, void *user, struct kvl_log_health *health,
                  struct kvl_err *err)
{
    struct kvl_buf file = { 0 };
    struct reader r = { .line_fn = fn, .user = user, .health = health };
    int rc = kvl_read_file(path, KVL_LOG_FILE_MAX, &file, err);
    if (rc == KVL_OK) rc = reader_run(&r, path, file.len ? file.data : "", file.len, err);
    kvl_buf_free(&file);
    return rc;
}

int kvl_log_read(const char *path, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                 struct kvl_err *err)
{
    struct kvl_buf file = { 0 };
    int rc = kvl_read_file(path, KVL_LOG_FILE_MAX, &file, err);
    if (rc == KVL_OK)
        rc = kvl_log_read_memory(path, file.len ? file.data : "", file.len, fn, user, health, err);
    kvl_buf_free(&file);
    return rc;
}

int kvl_log_each(const char *const *paths, size_t n_paths, kvl_log_fn fn, void *user,
                 struct kvl_log_health *health, struct kvl_err *err)
{
    for (size_t i = 0; i < n_paths; i++) KVL_TRY(kvl_log_read(paths[i], fn, user, health, err));
    return KVL_OK;
}

/* ---- files behind words -------------------------------------------------------------------- */

static int paths_add(struct kvl_log_paths *out, const char *path, struct kvl_err *err)
{
    char **grown = realloc(out->path, (out->n + 1) * sizeof *grown);
    if (grown) out->path = grown;
    char *copy = strdup(path);
    if (!grown || !copy) {
        free(copy);
        return kvl_fail(err, KVL_ENOMEM, "no memory for %zu file names", out->n + 1);
    }
    out->path[out->n++] = copy;
    return KVL_OK;
}

/* Adds what matches, sorted.  `literal`: no characters of `pattern` are special. */
static int paths_glob(struct kvl_log_paths *out, const char *pattern, const char *word,
                      struct kvl_err *err)
{
    glob_t g;
    int rc = glob(pattern, 0, NULL, &g);
    if (rc == GLOB_NOSPACE) return kvl_fail(err, KVL_ENOMEM, "no memory for the files of %s", word);
    if (rc != 0) return kvl_fail(err, KVL_EINVAL, "%s: no log there, want *.zst files", word);
    int done = KVL_OK;
    for (size_t i = 0; i < g.gl_pathc && done == KVL_OK; i++)
        done = paths_add(out, g.gl_pathv[i], err);
    globfree(&g);
    return done;
}

static int paths_folder(struct kvl_log_paths *out, const char *folder, struct kvl_err *err)
{
    struct kvl_buf pattern = { 0 };
    int rc = KVL_OK;
    for (const char *p = folder; *p && rc == KVL_OK; p++) {
        if (strchr("*?[]\\", *p)) rc = kvl_buf_adds(&pattern, "\\");
        if (rc == KVL_OK) rc = kvl_buf_add(&pattern, p, 1);
    }
    if (rc == KVL_OK) rc = kvl_buf_adds(&pattern, "/*.zst");
    if (rc == KVL_OK)
        rc = paths_glob(out, pattern.data, folder, err);
    else
        kvl_fail(err, rc, "no memory for the name of folder %s", folder);
    kvl_buf_free(&pattern);
    return rc;
}

static int paths_word(struct kvl_log_paths *out, const char *word, struct kvl_err *err)
{
    struct stat st;
    if (strcmp(word, "-") == 0) return paths_add(out, word, err);
    if (stat(word, &st) != 0) {
        if (strpbrk(word, "*?[")) return paths_glob(out, word, word, err);
        return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", word, strerror(errno));
    }
    if (S_ISDIR(st.st_mode)) return paths_folder(out, word, err);
    if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
        return kvl_fail(err, KVL_EINVAL, "%s: a device, want a log (file or folder)", word);
    return paths_add(out, word, err);
}

int kvl_log_paths(char *const *words, size_t n_words, struct kvl_log_paths *out,
                  struct kvl_err *err)
{
    struct kvl_log_paths p = { 0 };
    if (n_words == 0)
        return kvl_fail(err, KVL_EINVAL, "no log given, want LOG... (file or folder)");
    for (size_t i = 0; i < n_words; i++) {
        int rc = paths_word(&p, words[i], err);
        if (rc == KVL_OK) continue;
        kvl_log_paths_free(&p);
        return rc;
    }
    *out = p;
    return KVL_OK;
}

void kvl_log_paths_free(struct kvl_log_paths *p)
{
    for (size_t i = 0; i < p->n; i++) free(p->path[i]);
    free(p->path);
    *p = (struct kvl_log_paths){ 0 };
}

/* ---- repair -------------------------------------------------------------------------------- */

struct repair {
    int fd, error;
    struct kvl_log_health *health; /* of the walk that copies */
    size_t n_told;                 /* damage that notes tell of */
    bool in_run;                   /* what a reader of the copy expects */
    uint8_t run[16];
    uint64_t next;
};

static void repair_write(struct repair *r, const void *data, size_t len)
{
    if (!r->error) r->error = kvl_log_write_all(r->fd, data, len);
}

static int64_t repair_sum(int64_t a, int64_t b)
{
    return a < 0 || b < 0 ? -1 : a + b;
}

/* The damage since the last note; before group `h` of a run, or NULL. */
static void repair_note(struct repair *r, const struct kvl_log_header *h)
{
    uint8_t note[KVL_LOG_LOST];
    struct kvl_log_lost lost = { .next = h ? h->sequence : KVL_LOG_LOST_NO_RUN };
    if (h) memcpy(lost.run, h->run, sizeof lost.run);
    for (; r->n_told < r->health->n_damage; r->n_told++) {
        const struct kvl_log_damage *d = &r->health->damage[r->n_told];
        lost.n_groups = repair_sum(lost.n_groups, d->n_groups);
        lost.n_records = repair_sum(lost.n_records, d->n_records);
        lost.bytes += d->bytes;
    }
    kvl_log_lost_pack(&lost, note);
    repair_write(r, note, sizeof note);
}

static int repair_group(const struct kvl_log_group *g, void *user, struct kvl_err *err)
{
    struct repair *r = user;
    const struct kvl_log_header *h = g->header;
    (void)err;
    bool same = h && r->in_run && memcmp(r->run, h->run, sizeof r->run) == 0;
    bool gap = h && h->sequence > (same ? r->next : 0);
    if (gap || r->n_told < r->health->n_damage) repair_note(r, h);
    bool goes_on = h || (g->lost && g->lost->next != KVL_LOG_LOST_NO_RUN);
    if (goes_on) {
        r->in_run = true;
        memcpy(r->run, h ? h->run : g->lost->run, sizeof r->run);
        r->next = h ? h->sequence + 1 : g->lost->next;
    }
    repair_write(r, g->start, g->start_bytes);
    return KVL_OK;
}

/* Counts its records as well: what one wants to know of a repaired log. */
static int repair_copy(const char *from, struct repair *r, struct kvl_log_health *health,
                       struct kvl_err *err)
{
    struct kvl_buf file = { 0 };
    int rc = kvl_read_file(from, KVL_LOG_FILE_MAX, &file, err);
    const void *data = file.len ? file.data : "";
    struct kvl_log_health again = { 0 };
    r->health = &again;
    if (rc == KVL_OK) rc = kvl_log_read_memory(from, data, file.len, NULL, NULL, health, err);
    if (rc == KVL_OK) rc = kvl_log_walk(from, data, file.len, repair_group, r, &again, err);
    if (rc == KVL_OK && r->n_told < again.n_damage) repair_note(r, NULL);
    kvl_log_health_free(&again);
    kvl_buf_free(&file);
    if (rc == KVL_OK && !r->error && fsync(r->fd) != 0) r->error = errno;
    return rc;
}

int kvl_log_repair(const char *from, const char *to, struct kvl_log_health *health,
                   struct kvl_err *err)
{
    struct stat st;
    if (stat(from, &st) != 0)
        return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", from, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return kvl_fail(err, KVL_EINVAL, "%s: no regular file, repair wants one log", from);
    struct repair r = { .fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) };
    if (r.fd < 0 && errno == EEXIST)
        return kvl_fail(err, KVL_EINVAL, "%s: exists; repair writes a new file", to);
    if (r.fd < 0) return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", to, strerror(errno));
    int rc = repair_copy(from, &r, health, err);
    if (close(r.fd) != 0 && !r.error) r.error = errno;
    if (rc == KVL_OK && r.error)
        rc = kvl_fail(err, KVL_EIO, "%s: cannot write: %s", to, strerror(r.error));
    if (rc != KVL_OK) unlink(to);
    return rc;
}
