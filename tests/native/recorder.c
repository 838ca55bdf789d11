/* Records what a process does to the files below a folder: preloaded, for tests/store/power_loss.py.

   WHORL_RECORD is the log, WHORL_RECORD_BELOW the folder. Each operation that succeeded is one record, appended in one
   piece before the call returns: the lengths of a text and of data (two 32-bit numbers), the text, the data. The text
   has fields between tabs: the operation, the number of the file, a place or size, the length of the log when the call
   began, and paths. A write of a thread is in the log before anything can follow from it; a file made durable counts
   from the beginning of the call. */
#include "preloaded.h"
#include <stdint.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

static int out = -1;

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("WHORL_RECORD"), *folder = getenv("WHORL_RECORD_BELOW");
    if (!log || !folder || out >= 0) return;
    look_at(folder);
    int handle = REAL(open)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    out = fcntl(handle, F_DUPFD_CLOEXEC, 700);
    close(handle);
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
    if (size > 0 && of_handle(handle)) record("write", number_of(handle), place, 0, touched, bytes, (size_t)size);
    return size;
}

static off_t place_of(int handle) {
    return fcntl(handle, F_GETFL) & O_APPEND ? size_of(handle) : lseek(handle, 0, SEEK_CUR);
}

OWN ssize_t write(int handle, const void *bytes, size_t size) {
    off_t place = place_of(handle);
    return wrote(handle, bytes, REAL(write)(handle, bytes, size), place);
}
OWN ssize_t pwrite(int handle, const void *bytes, size_t size, off_t place) {
    return wrote(handle, bytes, REAL(pwrite)(handle, bytes, size, place), place);
}
OWN ssize_t writev(int handle, const struct iovec *parts, int count) {
    if (!of_handle(handle)) return REAL(writev)(handle, parts, count);
    ssize_t size, total = 0;
    for (int at = 0; at < count; at++, total += size)
        if ((size = write(handle, parts[at].iov_base, parts[at].iov_len)) < 0) return total ? total : size;
    return total;
}
/* Copies inside the kernel are refused; who asks for one writes instead. */
OWN ssize_t sendfile(int to, int from, off_t *place, size_t size) {
    if (of_handle(to)) { errno = ENOSYS; return -1; }
    return REAL(sendfile)(to, from, place, size);
}
OWN ssize_t sendfile64(int to, int from, off_t *place, size_t size) { return sendfile(to, from, place, size); }
OWN ssize_t copy_file_range(int from, off_t *read_at, int to, off_t *write_at, size_t size, unsigned flags) {
    if (of_handle(to)) { errno = ENOSYS; return -1; }
    return REAL(copy_file_range)(from, read_at, to, write_at, size, flags);
}

#define DURABLE(name)                                                                      \
    OWN int name(int handle) {                                                             \
        int mine = of_handle(handle);                                                      \
        long long began = mine ? length_of_log() : 0;                                      \
        int failed = REAL(name)(handle);                                                   \
        if (mine && !failed) record("sync", number_of(handle), 0, began, touched, "", 0);  \
        return failed;                                                                     \
    }
DURABLE(fsync)
DURABLE(fdatasync)

OWN int ftruncate(int handle, off_t size) {
    int failed = REAL(ftruncate)(handle, size);
    if (!failed && of_handle(handle)) record("truncate", number_of(handle), size, 0, touched, "", 0);
    return failed;
}

/* Both names of an operation, between tabs; whether one of them is under the folder. */
static int names(int here, const char *from, int there, const char *to, char *both) {
    int mine = of_name(here, from);
    int end = snprintf(both, 2 * PATH_MAX, "%s\t", touched);
    mine |= of_name(there, to);
    snprintf(both + end, PATH_MAX, "%s", touched);
    return mine;
}
OWN int renameat2(int here, const char *from, int there, const char *to, unsigned flags) {
    char both[2 * PATH_MAX];
    int mine = names(here, from, there, to, both), failed = REAL(renameat2)(here, from, there, to, flags);
    if (mine && !failed) record("rename", 0, 0, 0, both, "", 0);
    return failed;
}
OWN int renameat(int here, const char *from, int there, const char *to) { return renameat2(here, from, there, to, 0); }
OWN int linkat(int here, const char *from, int there, const char *to, int flags) {
    char both[2 * PATH_MAX];
    int mine = names(here, from, there, to, both), failed = REAL(linkat)(here, from, there, to, flags);
    if (mine && !failed) record("link", 0, 0, 0, both, "", 0);
    return failed;
}
OWN int unlinkat(int folder, const char *name, int flags) {
    int mine = of_name(folder, name), failed = REAL(unlinkat)(folder, name, flags);
    if (mine && !failed) record("unlink", 0, 0, 0, touched, "", 0);
    return failed;
}
OWN int mkdirat(int folder, const char *name, mode_t mode) {
    struct stat status;
    int mine = of_name(folder, name), failed = REAL(mkdirat)(folder, name, mode);
    if (mine && !failed && !stat(touched, &status)) record("mkdir", status.st_ino, 0, 0, touched, "", 0);
    return failed;
}

static int opened(int folder, const char *name, int flags, mode_t mode) {
    int mine = (flags & (O_CREAT | O_TRUNC)) && of_name(folder, name), is_new = mine && !is_there(folder, name);
    int handle = REAL(openat)(folder, name, flags, mode);
    if (mine && handle >= 0 && is_new) record("create", number_of(handle), 0, 0, touched, "", 0);
    if (mine && handle >= 0 && !is_new && (flags & O_TRUNC)) record("truncate", number_of(handle), 0, 0, touched, "", 0);
    return handle;
}
