/* Records what a process does to the files below a folder: preloaded, for benchmarks/store_power_loss.py.

   WHORL_RECORD is the log, WHORL_RECORD_BELOW the folder. Each operation that succeeded is one record, appended in one
   piece before the call returns: the lengths of a text and of data (two 32-bit numbers), the text, the data. The text
   has fields between tabs: the operation, the number of the file, a place or size, the length of the log when the call
   began, and paths. A write of a thread is in the log before anything can follow from it; a file made durable counts
   from the beginning of the call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define OWN __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static char below[PATH_MAX];
static int out = -1;

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("WHORL_RECORD"), *folder = getenv("WHORL_RECORD_BELOW");
    if (!log || !folder || out >= 0) return;
    snprintf(below, sizeof below, "%s", folder);
    int handle = REAL(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    out = fcntl(handle, F_DUPFD_CLOEXEC, 700);
    close(handle);
}

static int is_below(const char *path) {
    size_t length = strlen(below);
    return length && !strncmp(path, below, length) && (path[length] == '/' || !path[length]);
}

static int path_of(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static int resolve(int folder, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (folder == AT_FDCWD ? !getcwd(path, PATH_MAX) : (path_of(folder, path), 0)) return 0;
        size_t end = strlen(path);
        snprintf(path + end, PATH_MAX - end, "/%s", name);
    }
    return is_below(path);
}

static long long length_of_log(void) { return lseek(out, 0, SEEK_END); }

static unsigned long long number_of(int handle) {
    struct stat status;
    return fstat(handle, &status) ? 0 : status.st_ino;
}

static void record(const char *operation, unsigned long long number, long long place, long long began, const char *paths,
                   const void *content, size_t size) {
    char text[2 * PATH_MAX + 128];
    int kept = errno;
    snprintf(text, sizeof text, "%s\t%llu\t%lld\t%lld\t%s", operation, number, place, began, paths);
    uint32_t lengths[2] = {(uint32_t)strlen(text), (uint32_t)size};
    struct iovec parts[3] = {{lengths, sizeof lengths}, {text, lengths[0]}, {(void *)content, size}};
    if (REAL(writev)(out, parts, 3) < 0) abort();
    errno = kept;
}

static ssize_t wrote(int handle, const void *bytes, ssize_t size, off_t place) {
    char path[PATH_MAX];
    if (size > 0 && path_of(handle, path)) record("write", number_of(handle), place, 0, path, bytes, (size_t)size);
    return size;
}

static off_t place_of(int handle) {
    struct stat status;
    if (fcntl(handle, F_GETFL) & O_APPEND) return fstat(handle, &status) ? 0 : status.st_size;
    return lseek(handle, 0, SEEK_CUR);
}

OWN ssize_t write(int handle, const void *bytes, size_t size) {
    off_t place = place_of(handle);
    return wrote(handle, bytes, REAL(write)(handle, bytes, size), place);
}
OWN ssize_t pwrite(int handle, const void *bytes, size_t size, off_t place) {
    return wrote(handle, bytes, REAL(pwrite)(handle, bytes, size, place), place);
}
OWN ssize_t pwrite64(int handle, const void *bytes, size_t size, off_t place) { return pwrite(handle, bytes, size, place); }
OWN ssize_t writev(int handle, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!path_of(handle, path)) return REAL(writev)(handle, parts, count);
    ssize_t size, total = 0;
    for (int at = 0; at < count; at++, total += size)
        if ((size = write(handle, parts[at].iov_base, parts[at].iov_len)) < 0) return total ? total : size;
    return total;
}
/* Copies inside the kernel are refused; who asks for one writes instead. */
OWN ssize_t sendfile(int to, int from, off_t *place, size_t size) {
    char path[PATH_MAX];
    if (path_of(to, path)) { errno = ENOSYS; return -1; }
    return REAL(sendfile)(to, from, place, size);
}
OWN ssize_t sendfile64(int to, int from, off_t *place, size_t size) { return sendfile(to, from, place, size); }
OWN ssize_t copy_file_range(int from, off_t *read_at, int to, off_t *write_at, size_t size, unsigned flags) {
    char path[PATH_MAX];
    if (path_of(to, path)) { errno = ENOSYS; return -1; }
    return REAL(copy_file_range)(from, read_at, to, write_at, size, flags);
}

#define DURABLE(name)                                                                   \
    OWN int name(int handle) {                                                          \
        char path[PATH_MAX];                                                            \
        int mine = path_of(handle, path);                                               \
        long long began = mine ? length_of_log() : 0;                                   \
        int failed = REAL(name)(handle);                                                \
        if (mine && !failed) record("sync", number_of(handle), 0, began, path, "", 0);  \
        return failed;                                                                  \
    }
DURABLE(fsync)
DURABLE(fdatasync)

OWN int ftruncate(int handle, off_t size) {
    char path[PATH_MAX];
    int failed = REAL(ftruncate)(handle, size);
    if (!failed && path_of(handle, path)) record("truncate", number_of(handle), size, 0, path, "", 0);
    return failed;
}
OWN int ftruncate64(int handle, off_t size) { return ftruncate(handle, size); }

static int two_names(const char *operation, const char *from, const char *to, int mine, int failed) {
    char both[2 * PATH_MAX];
    snprintf(both, sizeof both, "%s\t%s", from, to);
    if (mine && !failed) record(operation, 0, 0, 0, both, "", 0);
    return failed;
}
OWN int renameat2(int here, const char *from, int there, const char *to, unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    int mine = resolve(here, from, old) | resolve(there, to, new);
    return two_names("rename", old, new, mine, REAL(renameat2)(here, from, there, to, flags));
}
OWN int renameat(int here, const char *from, int there, const char *to) { return renameat2(here, from, there, to, 0); }
OWN int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
OWN int linkat(int here, const char *from, int there, const char *to, int flags) {
    char old[PATH_MAX], new[PATH_MAX];
    int mine = resolve(here, from, old) | resolve(there, to, new);
    return two_names("link", old, new, mine, REAL(linkat)(here, from, there, to, flags));
}
OWN int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
OWN int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    int mine = resolve(folder, name, path), failed = REAL(unlinkat)(folder, name, flags);
    if (mine && !failed) record("unlink", 0, 0, 0, path, "", 0);
    return failed;
}
OWN int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
OWN int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
OWN int remove(const char *path) { return unlink(path) && errno == EISDIR ? rmdir(path) : 0; }
OWN int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    int mine = resolve(folder, name, path), failed = REAL(mkdirat)(folder, name, mode);
    if (mine && !failed && !stat(path, &status)) record("mkdir", status.st_ino, 0, 0, path, "", 0);
    return failed;
}
OWN int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int mine = (flags & (O_CREAT | O_TRUNC)) && resolve(folder, name, path);
    int is_new = mine && faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW);
    int handle = REAL(openat)(folder, name, flags, mode);
    if (mine && handle >= 0 && is_new) record("create", number_of(handle), 0, 0, path, "", 0);
    if (mine && handle >= 0 && !is_new && (flags & O_TRUNC)) record("truncate", number_of(handle), 0, 0, path, "", 0);
    return handle;
}
#define WITH_MODE                         \
    mode_t mode = 0;                      \
    if (flags & (O_CREAT | O_TMPFILE)) {  \
        va_list more;                     \
        va_start(more, flags);            \
        mode = va_arg(more, mode_t);      \
        va_end(more);                     \
    }
OWN int open(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
OWN int open64(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
OWN int openat(int folder, const char *path, int flags, ...) { WITH_MODE return opened(folder, path, flags, mode); }
OWN int openat64(int folder, const char *path, int flags, ...) { WITH_MODE return opened(folder, path, flags, mode); }
OWN int creat(const char *path, mode_t mode) { return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
