/* Temporary names, renames, and what is not renamed. */
#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUTFILE_TRIES = 16 };

char *kvl_outfile_temp(const char *beside, int mode, int *fd)
{
    const char *slash = strrchr(beside, '/');
    int folder = slash ? (int)(slash + 1 - beside) : 0;
    for (int i = 0; i < OUTFILE_TRIES; i++) {
        uint64_t lot[2];
        char *name;
        if (getrandom(lot, sizeof lot, 0) != (ssize_t)sizeof lot) return NULL;
        if (asprintf(&name, "%.*s.part-%016" PRIx64 "%016" PRIx64, folder, beside, lot[0], lot[1]) <
            0)
            return NULL;
        *fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (*fd >= 0) return name;
        free(name);
        if (errno != EEXIST) return NULL;
    }
    return NULL;
}

/* File systems without links have renames, which take a name from its holder: asked before, which is not one step. */
static int outfile_link(const char *part, const char *path)
{
    struct stat st;
    if (link(part, path) == 0) return 0;
    int error = errno;
    /* An answer of NFS that got lost: the second try finds the link of the first. */
    if (stat(part, &st) == 0 && st.st_nlink == 2) return 0;
    if (error != EPERM && error != EOPNOTSUPP && error != ENOSYS && error != EMLINK) return error;
    if (access(path, F_OK) == 0) return EEXIST;
    return rename(part, path) == 0 ? 0 : errno;
}

int kvl_outfile_place(const char *part, const char *path, bool *placed, struct kvl_err *err)
{
    int error = outfile_link(part, path);
    unlink(part);
    *placed = error == 0;
    if (!error || error == EEXIST) return KVL_OK;
    return kvl_fail(err, KVL_EIO, "%s: cannot create: %s", path, strerror(error));
}

static int outfile_failed(const struct kvl_outfile *o, const char *what, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EIO, "%s: cannot %s: %s", o->path, what, strerror(errno));
}

static void outfile_free(struct kvl_outfile *o)
{
    free(o->path);
    free(o->part);
    *o = (struct kvl_outfile){ 0 };
}

/* A file that may be written stays as open to others as it was. */
static int outfile_create(struct kvl_outfile *o, const struct stat *before)
{
    int fd = -1;
    o->part = kvl_outfile_temp(o->path, 0666, &fd);
    if (o->part && before) fchmod(fd, before->st_mode & 0777);
    if (o->part || !before || (errno != EACCES && errno != EROFS && errno != EPERM)) return fd;
    /* Its folder takes no file, but it may be written itself. */
    return open(o->path, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
}

int kvl_outfile_open(struct kvl_outfile *o, const char *path, struct kvl_err *err)
{
    struct stat st;
    *o = (struct kvl_outfile){ .path = strdup(path) };
    if (!o->path) return kvl_fail(err, KVL_ENOMEM, "%s: no memory to write it", path);
    bool there = lstat(path, &st) == 0;
    int fd = !there || S_ISREG(st.st_mode)
                 ? outfile_create(o, there ? &st : NULL)
                 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd >= 0) o->f = fdopen(fd, "w");
    if (o->f) return KVL_OK;
    int rc = outfile_failed(o, "create", err);
    if (fd >= 0) close(fd);
    if (o->part) unlink(o->part);
    outfile_free(o);
    return rc;
}

int kvl_outfile_close(struct kvl_outfile *o, int rc, struct kvl_err *err)
{
    if (!o->f) return rc;
    bool failed = ferror(o->f) != 0;
    failed |= fclose(o->f) != 0;
    if (rc == KVL_OK && (failed || (o->part && rename(o->part, o->path) != 0)))
        rc = outfile_failed(o, "write", err);
    if (rc != KVL_OK && o->part) unlink(o->part);
    outfile_free(o);
    return rc;
}
