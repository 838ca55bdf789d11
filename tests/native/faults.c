/* Faults at file operations: preloaded into a process, which arms it.

   Every operation that changes what lies under a folder is counted. The one with the number that was armed fails: with
   an error (and with it all that follow, as on a disk that is full or read-only), or by the end of the process, before
   the operation or in the middle of it, or of the machine, which takes away what was not made durable; or the process
   waits there while another one works, and locks hold nothing. A watched process tells of every operation before it
   does it, and waits until it may go on. Python, Arrow and DuckDB call the C library, and so come here. */
#include "preloaded.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/types.h>

enum { NONE = 0, ERROR = 1, KILL = 2, TEAR = 3, ONCE = 4, PAUSE = 5, WATCH = 6, DEATH = 7 };

static long fatal;
static int how, code;
static atomic_long count;
static char host[64];
static int lockless, say, hear;

/* From here on this process is on a host of that name, where locks hold nothing. */
OWN void faults_lockless(const char *name) {
    snprintf(host, sizeof host, "%s", name);
    lockless = 1;
}

/* Where a pause is told, and where its end is heard. */
OWN void faults_pipes(int out, int in) { say = out; hear = in; }

/* From here on operations under `folder` are counted; the one with the number `at` (from 1) fails. */
OWN void faults_arm(const char *folder, long at, int kind, int error) {
    look_at(folder);
    fatal = at;
    how = kind;
    code = error;
    atomic_store(&count, 0);
}

OWN long faults_count(void) { return atomic_load(&count); }

/* What was changed under the folder and not made durable: the content of a file, of which the first `size` bytes are
   durable, or a name (size -1), which the file had not, or of which it had another one (`before`), when its folder was
   made durable. A name that went is taken for gone. */
enum { MOST = 4096 };
static struct change { char *path, *before; off_t size; } changes[MOST];
static int number_of_changes;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static struct change *change_of(const char *path, int of_name) {
    for (int at = 0; at < number_of_changes; at++)
        if (!strcmp(changes[at].path, path) && (changes[at].size < 0) == of_name) return &changes[at];
    return NULL;
}

static void forget(struct change *change) {
    if (!change) return;
    free(change->path);
    free(change->before);
    *change = changes[--number_of_changes];
}

static void note(const char *path, const char *before, off_t size) {
    struct change *change = change_of(path, size < 0);
    if (!change && number_of_changes == MOST) abort();
    if (!change) changes[number_of_changes++] = (struct change){strdup(path), before ? strdup(before) : NULL, size};
    else if (size < change->size) change->size = size;
}

static void note_content(int handle, off_t size) {
    pthread_mutex_lock(&guard);
    if (of_handle(handle)) note(touched, NULL, size);
    pthread_mutex_unlock(&guard);
}

static void note_name(int folder, const char *name) {
    pthread_mutex_lock(&guard);
    if (of_name(folder, name)) note(touched, NULL, -1);
    pthread_mutex_unlock(&guard);
}

static void note_gone(int folder, const char *name) {
    pthread_mutex_lock(&guard);
    if (of_name(folder, name)) {
        forget(change_of(touched, 0));
        forget(change_of(touched, 1));
    }
    pthread_mutex_unlock(&guard);
}

static void note_rename(int here, const char *from, int there, const char *to, int replaces) {
    char old[PATH_MAX];
    if (replaces) note_gone(there, to);
    pthread_mutex_lock(&guard);
    of_name(here, from);
    memcpy(old, touched, sizeof old);
    if (of_name(there, to)) {
        struct change *content = change_of(old, 0);
        int is_new = change_of(old, 1) != NULL;
        if (content) {
            free(content->path);
            content->path = strdup(touched);
        }
        forget(change_of(old, 1));
        if (!replaces) note(touched, is_new ? NULL : old, -1);
    }
    pthread_mutex_unlock(&guard);
}

/* A file, or the names in a folder, are durable. */
static void note_durable(int handle) {
    pthread_mutex_lock(&guard);
    if (of_handle(handle)) {
        size_t end = strlen(touched);
        for (int at = number_of_changes - 1; at >= 0; at--) {
            const char *path = changes[at].path;
            int inside = !strncmp(path, touched, end) && path[end] == '/' && !strchr(path + end + 1, '/');
            if (changes[at].size < 0 ? inside : !strcmp(path, touched)) forget(&changes[at]);
        }
    }
    pthread_mutex_unlock(&guard);
}

/* The machine dies: take away what is not durable. */
OWN void faults_lose(void) {
    char lost[PATH_MAX + 32];
    __typeof__(&rename) real_rename = (__typeof__(&rename))dlsym(RTLD_NEXT, "rename");
    __typeof__(&truncate) real_truncate = (__typeof__(&truncate))dlsym(RTLD_NEXT, "truncate");
    pthread_mutex_lock(&guard);
    for (int at = 0; at < number_of_changes; at++)
        if (changes[at].size >= 0) (void)!real_truncate(changes[at].path, changes[at].size);
    for (int at = number_of_changes - 1; at >= 0; at--) {
        snprintf(lost, sizeof lost, "%s.lost-%d-%d", root, getpid(), at);
        if (changes[at].size < 0) (void)real_rename(changes[at].path, changes[at].before ? changes[at].before : lost);
    }
    pthread_mutex_unlock(&guard);
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
    if (how == DEATH) faults_lose();
    if (how == KILL || how == DEATH) kill(getpid(), SIGKILL);
    if (how == PAUSE) {
        pause_at(number, operation);
        return NONE;
    }
    return how == ONCE ? ERROR : how;
}

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
    if (mine) note_content(handle, size_of(handle));
    if (what == ERROR) { /* a disk takes a part of the bytes before it fails */
        if (how == ONCE) (void)!REAL(write)(handle, bytes, size / 2);
        errno = code;
        return -1;
    }
    if (what == TEAR) { (void)!REAL(write)(handle, bytes, size / 2); kill(getpid(), SIGKILL); }
    return REAL(write)(handle, bytes, size);
}
OWN ssize_t pwrite(int handle, const void *bytes, size_t size, off_t place) {
    GUARD(of_handle(handle));
    if (what == TEAR) { (void)!REAL(pwrite)(handle, bytes, size / 2, place); kill(getpid(), SIGKILL); }
    return REAL(pwrite)(handle, bytes, size, place);
}
OWN int fsync(int handle) { GUARD(of_handle(handle)); note_durable(handle); DYING(REAL(fsync)(handle)); }
OWN int fdatasync(int handle) { GUARD(of_handle(handle)); note_durable(handle); DYING(REAL(fdatasync)(handle)); }
OWN int ftruncate(int handle, off_t size) {
    GUARD(of_handle(handle));
    note_content(handle, size);
    DYING(REAL(ftruncate)(handle, size));
}
OWN int renameat(int here, const char *from, int there, const char *to) {
    GUARD(of_name(there, to));
    int replaces = is_there(there, to), done = REAL(renameat)(here, from, there, to);
    if (what == TEAR) kill(getpid(), SIGKILL);
    if (!done) note_rename(here, from, there, to, replaces);
    return done;
}
OWN int unlinkat(int folder, const char *path, int flags) {
    GUARD(of_name(folder, path));
    if (what == NONE) note_gone(folder, path);
    DYING(REAL(unlinkat)(folder, path, flags));
}
OWN int mkdirat(int folder, const char *path, mode_t mode) {
    GUARD(of_name(folder, path));
    int done = REAL(mkdirat)(folder, path, mode);
    if (what == TEAR) kill(getpid(), SIGKILL);
    if (!done) note_name(folder, path);
    return done;
}
OWN int linkat(int here, const char *from, int there, const char *to, int flags) {
    GUARD(of_name(there, to));
    int done = REAL(linkat)(here, from, there, to, flags);
    if (what == TEAR) kill(getpid(), SIGKILL);
    if (!done) note_name(there, to);
    return done;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    int mine = (flags & (O_CREAT | O_TRUNC)) != 0 && of_name(folder, path);
    GUARD(mine);
    int is_new = mine && !is_there(folder, path), handle = REAL(openat)(folder, path, flags, mode);
    if (what == TEAR) kill(getpid(), SIGKILL);
    if (is_new && handle >= 0) note_name(folder, path);
    return handle;
}
