/* The control file of the simulated DCGM: what its engine does wrong.
 *
 * Its path is in WHORL_DCGM_CONTROL (unset: nothing is wrong). What the GPUs do, stands in the control file of the
 * simulated driver: lost GPUs, XIDs, memory errors, MIG instances, latency of each call, permissions.
 *
 * One statement a line; '#' begins a comment. Changes are seen after 2 ms.
 *
 *     hang [FUNCTION]             requests wait until the statement is gone: all but Connect, or those of FUNCTION
 *     refuse STATUS [FUNCTION]    requests fail with STATUS (a number): the same
 *     profiling STATUS            profiling fields cannot be watched: -33 no module, -29 only as root, -36 not on
 *                                 this GPU, -37 another tool has the counters
 *     version TEXT                the engine's version; to a library of another major version it says VER_MISMATCH
 *
 * FUNCTION is the name of a function without "dcgm", as Connect, WatchFields or GetValuesSince: see NAMES.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dcgm.h"

static const char *const NAMES[OPERATIONS] = {
    [CONNECT] = "Connect",
    [GET_VERSION] = "HostengineVersionInfo",
    [GET_DEVICES] = "GetAllDevices",
    [GET_STATUS] = "GetGpuStatus",
    [GET_ATTRIBUTES] = "GetDeviceAttributes",
    [GET_ENTITIES] = "GetEntityGroupEntities",
    [GET_HIERARCHY] = "GetGpuInstanceHierarchy",
    [GROUP_CREATE] = "GroupCreate",
    [GROUP_DESTROY] = "GroupDestroy",
    [GROUP_ADD] = "GroupAddEntity",
    [GROUP_REMOVE] = "GroupRemoveEntity",
    [GROUP_INFO] = "GroupGetInfo",
    [GROUP_IDS] = "GroupGetAllIds",
    [FIELDS_CREATE] = "FieldGroupCreate",
    [FIELDS_DESTROY] = "FieldGroupDestroy",
    [FIELDS_INFO] = "FieldGroupGetInfo",
    [FIELDS_ALL] = "FieldGroupGetAll",
    [WATCH] = "WatchFields",
    [UNWATCH] = "UnwatchFields",
    [UPDATE] = "UpdateAllFields",
    [SAMPLES] = "GetValuesSince",
    [LATEST] = "EntitiesGetLatestValues",
    [METRIC_GROUPS] = "ProfGetSupportedMetricGroups",
    [HEALTH_SET] = "HealthSet",
    [HEALTH_GET] = "HealthGet",
    [HEALTH_CHECK] = "HealthCheck",
    [JOB_WATCH] = "WatchJobFields",
    [JOB_START] = "JobStartStats",
    [JOB_STOP] = "JobStopStats",
    [JOB_STATS] = "JobGetStats",
    [JOB_REMOVE] = "JobRemove",
    [JOB_REMOVE_ALL] = "JobRemoveAll",
};

/* Copies the file as it was at most 2 ms ago. */
static void read_control(char *copy, size_t size) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char text[4096];
    static int64_t looked_us;
    pthread_mutex_lock(&lock);
    if (now_us() - looked_us > 2000) {
        const char *path = getenv("WHORL_DCGM_CONTROL");
        FILE *file = path && *path ? fopen(path, "re") : NULL;
        text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
        if (file) fclose(file);
        looked_us = now_us();
    }
    snprintf(copy, size, "%s", text);
    pthread_mutex_unlock(&lock);
}

/* Does a statement begin with `word` and is about the function (NULL: any)? The argument of the last is copied. */
static int says(const char *word, int has_argument, const char *function, char *argument, size_t size) {
    char text[4096], *rest;
    int found = 0;
    read_control(text, sizeof text);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        line[strcspn(line, "#")] = 0;
        char *more, *first = strtok_r(line, " \t", &more);
        if (!first || strcmp(first, word)) continue;
        const char *value = has_argument ? strtok_r(NULL, " \t", &more) : "";
        const char *about = strtok_r(NULL, " \t", &more);
        if (!value || (function && (about ? strcmp(about, function) : !strcmp(function, "Connect")))) continue;
        snprintf(argument, size, "%s", value);
        found = 1;
    }
    return found;
}

Status controlled(Operation operation) {
    char argument[64];
    while (says("hang", 0, NAMES[operation], argument, sizeof argument)) usleep(2000);
    return says("refuse", 1, NAMES[operation], argument, sizeof argument) ? (Status)atoi(argument) : OK;
}

int profiling_refused(Status *status) {
    char argument[64];
    int found = says("profiling", 1, NULL, argument, sizeof argument);
    if (found) *status = (Status)atoi(argument);
    return found;
}

void tell_version(char *text, size_t size) {
    snprintf(text, size, "%s", ENGINE_VERSION);
    says("version", 1, NULL, text, size);
}

int understands(const char *client_version) {
    char version[64];
    tell_version(version, sizeof version);
    return atoi(version) == atoi(client_version);
}
