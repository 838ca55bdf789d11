/* How every call begins and may fail: sessions, faults, counting; and the functions of the library as a whole. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int sessions;           /* nvmlInit less nvmlShutdown */
static double session_began;   /* at the last nvmlInit */

void pause_us(double us) {
    struct timespec t = {.tv_sec = (time_t)(us / 1e6), .tv_nsec = (long)(fmod(us, 1e6) * 1e3)};
    nanosleep(&t, NULL);
}

/* ---- counting ---- */

typedef struct {
    const char *function;
    unsigned long long *counter;
} Counted;

static Counted counted[512];
static int n_counted;

static void log_call(const char *function) {
    char line[128], path[4096];
    const char *control = control_path();
    if (!control || snprintf(path, sizeof path, "%s.calls", control) >= (int)sizeof path) return;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) return;
    int length = snprintf(line, sizeof line, "%d %s\n", (int)getpid(), function);
    (void)!write(file, line, (size_t)length);
    close(file);
}

/* Does it change something of a GPU? (nvmlEventSet... and the like do not.) */
static int is_setter(const char *function) {
    static const char *const VERBS[] = {"nvmlDeviceSet", "nvmlDeviceReset", "nvmlDeviceClear", "nvmlDeviceCreate"};
    for (size_t i = 0; i < sizeof VERBS / sizeof *VERBS; i++)
        if (!strncmp(function, VERBS[i], strlen(VERBS[i]))) return 1;
    return 0;
}

void count_call(unsigned long long *counter, const char *function) {
    if (__atomic_add_fetch(counter, 1, __ATOMIC_RELAXED) > 1) {
        if (is_setter(function)) log_call(function);
        return;
    }
    pthread_mutex_lock(&mutex);
    if (n_counted < (int)(sizeof counted / sizeof *counted)) counted[n_counted++] = (Counted){function, counter};
    pthread_mutex_unlock(&mutex);
    log_call(function);
}

/* For tests: how often this process called a function (NULL: any). */
API unsigned long long simulated_nvml_calls(const char *function) {
    unsigned long long sum = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < n_counted; i++)
        if (!function || !strcmp(function, counted[i].function))
            sum += __atomic_load_n(counted[i].counter, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&mutex);
    return sum;
}

/* ---- faults ---- */

static int names_function(const Statement *s, int first, const char *function) {
    for (int i = first; i < s->n; i++)
        if (!strcmp(s->text[i], function)) return 1;
    return s->n <= first;
}

/* Does a statement of the word hold this call? gpu -1: a call that is about no GPU, for statements that name it. */
static const Statement *holds(const Fleet *fleet, Word word, int first, int gpu, const char *function, double t) {
    for (int i = fleet->n_statements - 1; i >= 0; i--) {
        const Statement *s = &fleet->statements[i];
        if (s->word != word || t < s->from || t >= s->until) continue;
        if (gpu < 0 ? s->n > first && names_function(s, first, function)
                    : s->gpus >> gpu & 1 && names_function(s, first, function))
            return s;
    }
    return NULL;
}

/* Wait as long as the call hangs, and then for its latency; afterwards the fleet may be another. */
static const Fleet *delay(int gpu, const char *function) {
    const Fleet *fleet = current_fleet();
    if (gpu >= fleet->n_gpus) gpu = -1;
    if (gpu >= 0 && !(fleet->gpus[gpu].words & (1ULL << HANG | 1ULL << LATENCY))) return fleet;
    while (holds(fleet, HANG, 0, gpu, function, clock_now(fleet))) {
        pause_us(2000);
        fleet = current_fleet();
    }
    const Statement *s = holds(fleet, LATENCY, 1, gpu, function, clock_now(fleet));
    if (s) {
        pause_us(s->number[0]);
        fleet = current_fleet();
    }
    return fleet;
}

/* The last loading of the driver since a time, or NULL. */
static const Statement *reloaded_since(const Fleet *fleet, double since, double t) {
    for (int i = 0; i < fleet->n_statements; i++) {
        const Statement *s = &fleet->statements[i];
        if (s->word == RELOAD && s->from <= t && s->from > since) return s;
    }
    return NULL;
}

static Status session(const Fleet *fleet, double t) {
    pthread_mutex_lock(&mutex);
    int open_sessions = sessions;
    double began = session_began;
    pthread_mutex_unlock(&mutex);
    if (!open_sessions) return UNINITIALIZED;
    if (fleet->broken) return UNKNOWN;
    const Statement *s = reloaded_since(fleet, began, t);
    if (s) return s->n > 1 ? (Status)s->number[1] : UNINITIALIZED;
    return OK;
}

Status enter_system(const char *function, Call *call) {
    const Fleet *fleet = delay(-1, function);
    *call = (Call){.fleet = fleet, .t = clock_now(fleet)};
    Status status = session(fleet, call->t);
    if (status != OK) return status;
    const Statement *s = holds(fleet, DENY, 1, -1, function, call->t);
    return s ? (Status)s->number[0] : OK;
}

/* How many times a GPU has come back "stale" up to now: handles of another generation stay lost. */
static int generation(const Fleet *fleet, int gpu, double t) {
    int n = 0;
    for (int i = 0; i < fleet->n_statements; i++) {
        const Statement *s = &fleet->statements[i];
        n += s->word == LOST && s->n && s->gpus >> gpu & 1 && s->until <= t;
    }
    return n % GENERATIONS;
}

static int is_lost(const Call *call) { return active(call->fleet, call->gpu, LOST, call->t) != NULL; }

/* The present handle of a GPU, or GPU_IS_LOST; for the functions that give handles out. */
static Status give_handle(const Call *call, int instance, Handle **out) {
    if (is_lost(call)) return GPU_IS_LOST;
    *out = handle_of(call->gpu->index, instance, generation(call->fleet, call->gpu->index, call->t));
    return OK;
}

Status enter(Handle *handle, const char *function, Call *call) {
    int valid = valid_handle(handle);
    const Fleet *fleet = delay(valid ? handle->gpu : -1, function);
    *call = (Call){.fleet = fleet, .t = clock_now(fleet)};
    Status status = session(fleet, call->t);
    if (status != OK) return status;
    if (!valid || handle->gpu >= fleet->n_gpus) return INVALID_ARGUMENT;
    call->gpu = &fleet->gpus[handle->gpu];
    if (handle->instance >= call->gpu->n_instances) return INVALID_ARGUMENT;
    if (handle->instance >= 0) call->instance = &call->gpu->instances[handle->instance];
    if (is_lost(call) || handle->generation != generation(fleet, handle->gpu, call->t)) return GPU_IS_LOST;
    return denied(call, function, 0);
}

/* What a call is refused with by a statement, else OK; with a field, the reading of it (`function` is "field") or a
 * whole call that asks for it ("with"). */
Status denied(const Call *call, const char *function, unsigned field) {
    if (!(call->gpu->words >> DENY & 1)) return OK;
    char name[32];
    if (field) snprintf(name, sizeof name, "%s:%u", function, field);
    const Statement *s = holds(call->fleet, DENY, 1, call->gpu->index, field ? name : function, call->t);
    return s ? (Status)s->number[0] : OK;
}

int is_root(const Fleet *fleet) {
    const Statement *s = statement_of(fleet, -1, ROOT, INFINITY);
    return s ? *s->text[0] == 'y' : geteuid() == 0;
}

Status put_text(char *to, unsigned size, const char *text) {
    if (!to) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

/* ---- the library as a whole ---- */

static Status begin_session(void) {
    const Fleet *fleet = delay(-1, "nvmlInit");
    double t = clock_now(fleet);
    const Statement *s = reloaded_since(fleet, -INFINITY, t);
    if (fleet->broken) return UNKNOWN;
    if (!control_path()) return DRIVER_NOT_LOADED;
    if (s && s->n && t < s->from + s->number[0]) return DRIVER_NOT_LOADED;
    pthread_mutex_lock(&mutex);
    sessions++;
    session_began = t;
    pthread_mutex_unlock(&mutex);
    return OK;
}

API Status nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    COUNT();
    return begin_session();
}

API Status nvmlInit_v2(void) {
    COUNT();
    return begin_session();
}

API Status nvmlInit(void) {
    COUNT();
    return begin_session();
}

API Status nvmlShutdown(void) {
    COUNT();
    pthread_mutex_lock(&mutex);
    Status status = sessions ? OK : UNINITIALIZED;
    if (sessions) sessions--;
    pthread_mutex_unlock(&mutex);
    return status;
}

API const char *nvmlErrorString(Status status) {
    switch (status) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

API Status nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER_SYSTEM();
    return put_text(text, size, "575.57.08");
}

API Status nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER_SYSTEM();
    REQUIRE(version, INVALID_ARGUMENT);
    *version = 12090;
    return OK;
}

API Status nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

API Status nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER_SYSTEM();
    REQUIRE(count, INVALID_ARGUMENT);
    *count = (unsigned)call.fleet->n_gpus;
    return OK;
}

API Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle **out) {
    ENTER_SYSTEM();
    REQUIRE(out && index < (unsigned)call.fleet->n_gpus, INVALID_ARGUMENT);
    call.gpu = &call.fleet->gpus[index];
    return give_handle(&call, -1, out);
}

API Status nvmlDeviceGetHandleByUUID(const char *uuid, Handle **out) {
    ENTER_SYSTEM();
    REQUIRE(uuid && out, INVALID_ARGUMENT);
    for (int i = 0; i < call.fleet->n_gpus; i++) {
        call.gpu = &call.fleet->gpus[i];
        if (!strcmp(uuid, call.gpu->uuid)) return give_handle(&call, -1, out);
        for (int k = 0; k < call.gpu->n_instances; k++)
            if (!strcmp(uuid, call.gpu->instances[k].uuid)) return give_handle(&call, k, out);
    }
    return NOT_FOUND;
}
