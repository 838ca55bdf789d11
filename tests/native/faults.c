/* Faults at file operations: preloaded into a process, which arms it.

   Every operation that changes what lies under a folder is counted. The one with the number that was armed fails: with
   an error (and with it all that follow, as on a disk that is full or read-only), or by the end of the process, before
   the operation or in the middle of it; or the process waits there while another one works, and locks hold nothing.
   A watched process tells of every operation before it does it, and waits until it may go on.
   What was written and not made durable is counted. Python, Arrow and DuckDB call the C library, and so come here. */
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
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define OWN __attribute__((visibility("default")))
enum { NONE = 0, ERROR = 1, KILL = 2, TEAR = 3, ONCE = 4, PAUSE = 5, WATCH = 6 };

static char root[PATH_MAX];
static size_t length;
static long fatal;
static int how, code;
static atomic_long count;
static char host[64];
static int lockless, say, hear;
static __thread char touched[PATH_MAX]; /* what the operation is about */

/* Files and folders by inode that were changed since they were last made durable. */
enum { MOST = 4096 };
static ino_t unsynced[MOST];
static int number_unsynced;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static void note(ino_t file, int changed) {
    pthread_mutex_lock(&guard);
    int at = 0;
    while (at < number_unsynced && unsynced[at] != file) at++;
    if (changed && at == number_unsynced && at < MOST) unsynced[number_unsynced++] = file;
    if (!changed && at < number_unsynced) unsynced[at] = unsynced[--number_unsynced];
    pthread_mutex_unlock(&guard);
}

static void note_handle(int handle, int changed) {
    struct stat status;
    if (!fstat(handle, &status)) note(status.st_ino, changed);
}

/* The folder in which a name appears. */
static void note_folder_of(int folder, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    snprintf(path, sizeof path, "%s", name);
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    if (!fstatat(folder, slash ? path : ".", &status, 0)) note(status.st_ino, 1);
}

/* Whether this file or folder was changed and not made durable since. */
OWN int faults_unsynced(unsigned long file) {
    int found = 0;
    pthread_mutex_lock(&guard);
    for (int at = 0; at < number_unsynced; at++) found |= unsynced[at] == file;
    pthread_mutex_unlock(&guard);
    return found;
}

/* From here on this process is on a host of that name, where locks hold nothing. */
OWN void faults_lockless(const char *name) {
    snprintf(host, sizeof host, "%s", name);
    lockless = 1;
}

/* Where a pause is told, and where its end is heard. */
OWN void faults_pipes(int out, int in) { say = out; hear = in; }

/* From here on operations under `folder` are counted; the one with the number `at` (from 1) fails. */
OWN void faults_arm(const char *folder, long at, int kind, int error) {
    snprintf(root, sizeof root, "%s", folder);
    length = strlen(root);
    fatal = at;
    how = kind;
    code = error;
    atomic_store(&count, 0);
}

OWN long faults_count(void) { return atomic_load(&count); }

static int under(const char *path) {
    snprintf(touched, sizeof touched, "%s", path);
    return length && strncmp(path, root, length) == 0 && (path[length] == '/' || !path[length]);
}

static int of_handle(int handle) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return under(path);
}

static int of_name(int folder, const char *name) {
    char here[PATH_MAX];
    if (name[0] == '/') return under(name);
    int mine = folder == AT_FDCWD ? getcwd(here, sizeof here) && under(here) : of_handle(folder);
    size_t end = strlen(touched);
    snprintf(touched + end, sizeof touched - end, "/%s", name);
    return mine;
}

/* Say something about the operation, and wait for a byte. */
static void pause_at(long number, const char *operation) {
    char line[PATH_MAX], byte;
    static ssize_t (*real_write)(int, const void *, size_t);
    real_write = (__typeof__(real_write))dlsym(RTLD_NEXT, "write");
    int size = snprintf(line, sizeof line, "%ld %s %s\n", number, operation, touched + length);
    (void)!real_write(say, line, (size_t)size);
    (void)!read(hear, &byte, 1);
}

/* What is to happen to an operation under the folder: NONE, ERROR or TEAR; KILL does not come back. */
static int step(int mine, const char *operation) {
    if (!mine) return NONE;
    long number = atomic_fetch_add(&count, 1) + 1;
    if (how == WATCH) {
        pause_at(number, operation);
        return NONE;
    }
    if (!fatal || number < fatal || (number > fatal && how != ERROR)) return NONE;
    if (how == KILL) kill(getpid(), SIGKILL);
    if (how == PAUSE) {
        pause_at(number, operation);
        return NONE;
    }
    return how == ONCE ? ERROR : how;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define GUARD(mine)                                     \
    int what = step(mine, __func__);                    \
    if (what == ERROR) { errno = code; return -1; }
#define DYING(call)                                     \
    if (what == TEAR) { (void)!(call); kill(getpid(), SIGKILL); } \
    return call

OWN int flock(int handle, int what) {
    if (lockless) { errno = ENOLCK; return -1; }
    return REAL(flock)(handle, what);
}
OWN int gethostname(char *name, size_t size) {
    if (!host[0]) return REAL(gethostname)(name, size);
    snprintf(name, size, "%s", host);
    return 0;
}
OWN ssize_t write(int handle, const void *bytes, size_t size) {
    int mine = of_handle(handle), what = step(mine, __func__);
    if (what == ERROR) { /* a disk takes a part of the bytes before it fails */
        if (how == ONCE) (void)!REAL(write)(handle, bytes, size / 2);
        errno = code;
        return -1;
    }
    if (mine) note_handle(handle, 1);
    if (what == TEAR) { (void)!REAL(write)(handle, bytes, size / 2); kill(getpid(), SIGKILL); }
    return REAL(write)(handle, bytes, size);
}
OWN ssize_t pwrite(int handle, const void *bytes, size_t size, off_t place) {
    GUARD(of_handle(handle));
    if (what == TEAR) { (void)!REAL(pwrite)(handle, bytes, size / 2, place); kill(getpid(), SIGKILL); }
    return REAL(pwrite)(handle, bytes, size, place);
}
OWN ssize_t pwrite64(int handle, const void *bytes, size_t size, off_t place) { return pwrite(handle, bytes, size, place); }
OWN int fsync(int handle) { GUARD(of_handle(handle)); note_handle(handle, 0); DYING(REAL(fsync)(handle)); }
OWN int fdatasync(int handle) { GUARD(of_handle(handle)); note_handle(handle, 0); DYING(REAL(fdatasync)(handle)); }
OWN int ftruncate(int handle, off_t size) { GUARD(of_handle(handle)); DYING(REAL(ftruncate)(handle, size)); }
OWN int ftruncate64(int handle, off_t size) { return ftruncate(handle, size); }
OWN int rename(const char *from, const char *to) {
    int mine = of_name(AT_FDCWD, to);
    GUARD(mine);
    if (mine) note_folder_of(AT_FDCWD, to);
    DYING(REAL(rename)(from, to));
}
OWN int renameat(int here, const char *from, int there, const char *to) {
    int mine = of_name(there, to);
    GUARD(mine);
    if (mine) note_folder_of(there, to);
    DYING(REAL(renameat)(here, from, there, to));
}
OWN int unlink(const char *path) { GUARD(of_name(AT_FDCWD, path)); DYING(REAL(unlink)(path)); }
OWN int unlinkat(int folder, const char *path, int flags) {
    GUARD(of_name(folder, path));
    DYING(REAL(unlinkat)(folder, path, flags));
}
OWN int mkdir(const char *path, mode_t mode) { GUARD(of_name(AT_FDCWD, path)); DYING(REAL(mkdir)(path, mode)); }
OWN int linkat(int here, const char *from, int there, const char *to, int flags) {
    GUARD(of_name(there, to));
    DYING(REAL(linkat)(here, from, there, to, flags));
}
OWN int link(const char *from, const char *to) { GUARD(of_name(AT_FDCWD, to)); DYING(REAL(link)(from, to)); }

static int opened(int folder, const char *path, int flags, mode_t mode) {
    GUARD((flags & (O_CREAT | O_TRUNC)) != 0 && of_name(folder, path));
    DYING(REAL(openat)(folder, path, flags, mode));
}
#define WITH_MODE                                                   \
    mode_t mode = 0;                                                \
    if (flags & (O_CREAT | O_TMPFILE)) {                            \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode = va_arg(more, mode_t);                                \
        va_end(more);                                               \
    }
OWN int open(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
OWN int open64(const char *path, int flags, ...) { WITH_MODE return opened(AT_FDCWD, path, flags, mode); }
OWN int openat(int folder, const char *path, int flags, ...) { WITH_MODE return opened(folder, path, flags, mode); }
OWN int openat64(int folder, const char *path, int flags, ...) { WITH_MODE return opened(folder, path, flags, mode); }
