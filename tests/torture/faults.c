/* Counts the calls by which a process changes files below one folder, and lets one of them go wrong.

   Loaded in front of the C library (LD_PRELOAD). A call that changes files is a write, a flush, a change of size, the
   creation of a file or folder, a renaming or a removal. `faults_set` says which call of these is hit, and how. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, KILL, FAIL, SHORT };

static char below[PATH_MAX];
static atomic_long calls;
static long target = -1;
static int kind = NONE, number, lasting;

/* From now on count calls that touch files below `folder`; the `at`-th one (from 1) is hit. With `forever`, all later
   writes fail as well, as on a full disk. */
void faults_set(const char *folder, long at, int what, int error, int forever) {
    snprintf(below, sizeof below, "%s", folder);
    target = at, kind = what, number = error, lasting = forever;
    atomic_store(&calls, 0);
}

long faults_calls(void) { return atomic_load(&calls); }

static int is_below(const char *path) {
    return below[0] && path && strncmp(path, below, strlen(below)) == 0;
}

static int fd_is_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

/* What is to happen to this call: NONE, FAIL or SHORT. `writes`: whether a full disk can refuse it. */
static int next(int writes) {
    long now = atomic_fetch_add(&calls, 1) + 1;
    if (kind == NONE || target < 0 || now < target) return NONE;
    if (now == target && kind == KILL) { raise(SIGKILL); pause(); }
    if (!writes) return NONE;
    if (now == target || (lasting && kind == FAIL)) return kind;
    return NONE;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define REFUSE(fd) \
    if (fd_is_below(fd)) { if (next(1) == FAIL) { errno = number; return -1; } }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    if (fd_is_below(fd)) {
        int what = next(1);
        if (what == FAIL) { errno = number; return -1; }
        if (what == SHORT && size > 1) size /= 2;
    }
    return real(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    if (fd_is_below(fd)) {
        int what = next(1);
        if (what == FAIL) { errno = number; return -1; }
        if (what == SHORT && count > 1) count = 1;
    }
    return real(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    if (fd_is_below(fd)) {
        int what = next(1);
        if (what == FAIL) { errno = number; return -1; }
        if (what == SHORT && size > 1) size /= 2;
    }
    return real(fd, data, size, at);
}

int fsync(int fd) { REAL(int, "fsync", int); REFUSE(fd) return real(fd); }
int fdatasync(int fd) { REAL(int, "fdatasync", int); REFUSE(fd) return real(fd); }
int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    if (fd_is_below(fd)) next(0);
    return real(fd, size);
}
int ftruncate(int fd, off_t size) {
    REAL(int, "ftruncate", int, off_t);
    if (fd_is_below(fd)) next(0);
    return real(fd, size);
}

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, #name, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if ((flags & O_CREAT) && is_below(path) && next(1) == FAIL) { errno = number; return -1; } \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(int, #name, int, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        if ((flags & O_CREAT) && is_below(path) && next(1) == FAIL) { errno = number; return -1; } \
        return real(folder, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

int rename(const char *from, const char *to) {
    REAL(int, "rename", const char *, const char *);
    if (is_below(to) && next(1) == FAIL) { errno = number; return -1; }
    return real(from, to);
}
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, "renameat", int, const char *, int, const char *);
    if (is_below(to) && next(1) == FAIL) { errno = number; return -1; }
    return real(a, from, b, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    if (is_below(to) && next(1) == FAIL) { errno = number; return -1; }
    return real(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, "mkdir", const char *, mode_t);
    if (is_below(path) && next(1) == FAIL) { errno = number; return -1; }
    return real(path, mode);
}
int unlink(const char *path) {
    REAL(int, "unlink", const char *);
    if (is_below(path)) next(0);
    return real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    next(0); /* relative to a folder that is being removed: counted wherever it is */
    return real(folder, path, flags);
}
int rmdir(const char *path) {
    REAL(int, "rmdir", const char *);
    if (is_below(path)) next(0);
    return real(path);
}
