/* What the libraries share that are preloaded into a process and stand before operations on files: which folder they
   look at, what an operation is about, and the other names of the operations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OWN __attribute__((visibility("default")))
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static char root[PATH_MAX]; /* the folder */
static size_t length;
static __thread char touched[PATH_MAX]; /* what the operation is about */

static void look_at(const char *folder) {
    snprintf(root, sizeof root, "%s", folder);
    length = strlen(root);
}

static int is_under(void) {
    return length && strncmp(touched, root, length) == 0 && (touched[length] == '/' || !touched[length]);
}

static int under(const char *path) {
    snprintf(touched, sizeof touched, "%s", path);
    return is_under();
}

static int of_handle(int handle) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, sizeof path - 1);
    path[size < 0 ? 0 : size] = 0;
    return under(path);
}

static int of_name(int folder, const char *name) {
    char here[PATH_MAX];
    if (name[0] == '/') return under(name);
    if (folder != AT_FDCWD) of_handle(folder);
    else if (getcwd(here, sizeof here)) under(here);
    size_t end = strlen(touched);
    snprintf(touched + end, sizeof touched - end, "/%s", name);
    return is_under();
}

static off_t size_of(int handle) {
    struct stat status;
    return fstat(handle, &status) ? 0 : status.st_size;
}

static int is_there(int folder, const char *name) { return !faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW); }

static int opened(int folder, const char *path, int flags, mode_t mode);
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
OWN ssize_t pwrite64(int handle, const void *bytes, size_t size, off_t place) { return pwrite(handle, bytes, size, place); }
OWN int ftruncate64(int handle, off_t size) { return ftruncate(handle, size); }
OWN int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
OWN int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
OWN int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
OWN int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }
OWN int remove(const char *path) {
    int failed = unlink(path);
    return failed && errno == EISDIR ? rmdir(path) : failed;
}
OWN int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
