/* The functions of libdcgm.so.4: each makes a request, and puts the answer into the caller's structure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcgm_wire.h"

/* A request whose answer is nothing, or a structure of a fixed size. */
static Status simple(Id handle, Request request, void *out, size_t size) {
    Buffer answer = {0};
    Status status = ask(handle, &request, NULL, &answer, NULL);
    if (status == OK && out) memcpy(out, answer.bytes, answer.size < size ? answer.size : size);
    free(answer.bytes);
    return status;
}

static void copy_text(char *to, const char *text) { snprintf(to, TEXT, "%s", text ? text : ""); }

/* ---- the library, and connections ---- */

API Status dcgmInit(void) { return OK; }
API Status dcgmShutdown(void) { return OK; }

API Status dcgmConnect_v2(const char *address, const ConnectParameters *parameters, Id *out) {
    if (!address || !parameters || !out) return BADPARAM;
    uint32_t size = parameters->version & 0xffffff;
    if (size != sizeof(ConnectParameters) && size != 8) return VER_MISMATCH;
    int old = size == 8;
    return connect_to(address, !old && parameters->is_socket, old ? 0 : (int)parameters->timeout_ms, out);
}

API Status dcgmConnect(const char *address, Id *out) {
    ConnectParameters parameters = {.version = VERSION_OF(ConnectParameters, 2)};
    return dcgmConnect_v2(address, &parameters, out);
}

API Status dcgmStartEmbedded(int mode, Id *out) { return mode < 1 || mode > 2 ? BADPARAM : embed(mode == 2, out); }
API Status dcgmStopEmbedded(Id handle) { return disconnect(handle); }
API Status dcgmDisconnect(Id handle) { return disconnect(handle); }

static Status tell(VersionInfo *out, const char *version) {
    if (out->version != VERSION_OF(VersionInfo, 2)) return VER_MISMATCH;
    snprintf(out->text, sizeof out->text, "version:%s;arch:x86_64;buildtype:Simulated", version);
    return OK;
}

API Status dcgmVersionInfo(VersionInfo *out) { return tell(out, ENGINE_VERSION); }

API Status dcgmHostengineVersionInfo(Id handle, VersionInfo *out) {
    char version[64];
    Status status = simple(handle, (Request){.operation = GET_VERSION}, version, sizeof version);
    return status == OK ? tell(out, version) : status;
}

API const char *errorString(Status status) {
    switch (status) {
    case OK: return "Success";
    case BADPARAM: return "Bad parameter passed to function";
    case NOT_SUPPORTED: return "This request is not supported";
    case TIMEOUT: return "The request timed out";
    case VER_MISMATCH: return "API version mismatch";
    case UNKNOWN_FIELD: return "Unknown field";
    case NO_DATA: return "No data is available";
    case NOT_WATCHED: return "Field is not being watched";
    case NO_PERMISSION: return "No permission";
    case CONNECTION_NOT_VALID: return "Host engine connection invalid/disconnected";
    case DUPLICATE_KEY: return "Duplicate key passed to function";
    case MODULE_NOT_LOADED: return "This request needs a module that is not loaded";
    default: return "Unknown error";
    }
}

/* ---- what there is ---- */

static Status list_gpus(Id handle, int supported, uint32_t *ids, int *count) {
    Entity found[MAX_DEVICES];
    Buffer answer = {0};
    Status status = ask(handle, &(Request){.operation = GET_DEVICES, .number = supported}, NULL, &answer, NULL);
    *count = status == OK ? (int)(answer.size / sizeof *found) : 0;
    memcpy(found, answer.bytes ? answer.bytes : "", status == OK ? answer.size : 0);
    for (int i = 0; i < *count; i++) ids[i] = found[i].id;
    free(answer.bytes);
    return status;
}

API Status dcgmGetAllDevices(Id handle, uint32_t *ids, int *count) { return list_gpus(handle, 0, ids, count); }
API Status dcgmGetAllSupportedDevices(Id handle, uint32_t *ids, int *count) { return list_gpus(handle, 1, ids, count); }

API Status dcgmGetEntityGroupEntities(Id handle, Kind kind, uint32_t *ids, int *count, uint32_t flags) {
    Buffer answer = {0};
    Request request = {.operation = GET_ENTITIES, .entity = {kind, 0}, .number = flags & 1};
    Status status = ask(handle, &request, NULL, &answer, NULL);
    int found = status == OK ? (int)(answer.size / sizeof(Entity)) : 0;
    if (found > *count) status = -31; /* too small a table */
    for (int i = 0; status == OK && i < found; i++) ids[i] = ((Entity *)answer.bytes)[i].id;
    *count = found;
    free(answer.bytes);
    return status;
}

API Status dcgmGetGpuStatus(Id handle, uint32_t gpu, uint32_t *out) {
    return simple(handle, (Request){.operation = GET_STATUS, .number = (int)gpu}, out, sizeof *out);
}

API Status dcgmGetDeviceAttributes(Id handle, uint32_t gpu, Attributes *out) {
    uint32_t version = out->version;
    if (version != VERSION_OF(Attributes, 3)) return VER_MISMATCH;
    Status status = simple(handle, (Request){.operation = GET_ATTRIBUTES, .number = (int)gpu}, out, sizeof *out);
    out->version = version;
    return status;
}

API Status dcgmGetGpuInstanceHierarchy(Id handle, Hierarchy *out) {
    if (out->version != VERSION_OF(Hierarchy, 2)) return VER_MISMATCH;
    Buffer answer = {0};
    Status status = ask(handle, &(Request){.operation = GET_HIERARCHY}, NULL, &answer, NULL);
    out->count = status == OK ? (uint32_t)(answer.size / sizeof(HierarchyEntry)) : 0;
    if (out->count) memcpy(out->entries, answer.bytes, answer.size);
    free(answer.bytes);
    return status;
}

API Status dcgmHostengineIsHealthy(Id handle, uint32_t *out) {
    out[1] = 0;
    return simple(handle, (Request){.operation = GROUP_IDS}, NULL, 0);
}

/* ---- groups ---- */

API Status dcgmGroupCreate(Id handle, int type, const char *name, Id *out) {
    Request request = {.operation = GROUP_CREATE, .number = type};
    copy_text(request.text, name);
    return simple(handle, request, out, sizeof *out);
}

API Status dcgmGroupDestroy(Id handle, Id group) {
    return simple(handle, (Request){.operation = GROUP_DESTROY, .group = group}, NULL, 0);
}

API Status dcgmGroupAddEntity(Id handle, Id group, Kind kind, uint32_t id) {
    return simple(handle, (Request){.operation = GROUP_ADD, .group = group, .entity = {kind, id}}, NULL, 0);
}

API Status dcgmGroupRemoveEntity(Id handle, Id group, Kind kind, uint32_t id) {
    return simple(handle, (Request){.operation = GROUP_REMOVE, .group = group, .entity = {kind, id}}, NULL, 0);
}

API Status dcgmGroupAddDevice(Id handle, Id group, uint32_t gpu) {
    return dcgmGroupAddEntity(handle, group, FE_GPU, gpu);
}

API Status dcgmGroupRemoveDevice(Id handle, Id group, uint32_t gpu) {
    return dcgmGroupRemoveEntity(handle, group, FE_GPU, gpu);
}

API Status dcgmGroupGetInfo(Id handle, Id group, GroupInfo *out) {
    static const int ROOM[] = {OLD_MEMBERS, MAX_MEMBERS};
    uint32_t version = out->version;
    int room = 0;
    for (int i = 0; i < 2; i++)
        if ((version & 0xffffff) == (uint32_t)GROUP_INFO_SIZE(ROOM[i])) room = ROOM[i];
    if (!room) return VER_MISMATCH;
    Status status = simple(handle, (Request){.operation = GROUP_INFO, .group = group}, out,
                           (size_t)GROUP_INFO_SIZE(room));
    out->version = version;
    if (status == OK && out->count > (uint32_t)room) out->count = (uint32_t)room;
    return status;
}

API Status dcgmGroupGetAllIds(Id handle, Id *ids, uint32_t *count) {
    Buffer answer = {0};
    Status status = ask(handle, &(Request){.operation = GROUP_IDS}, NULL, &answer, NULL);
    *count = status == OK ? (uint32_t)(answer.size / sizeof *ids) : 0;
    if (*count > MAX_GROUPS) *count = MAX_GROUPS;
    if (*count) memcpy(ids, answer.bytes, *count * sizeof *ids);
    free(answer.bytes);
    return status;
}

API Status dcgmFieldGroupCreate(Id handle, int count, const uint16_t *fields, const char *name, Id *out) {
    if (count < 1 || count > 4096 || !fields || !out) return BADPARAM;
    Request request = {.operation = FIELDS_CREATE, .number = count, .size = (uint32_t)count * sizeof *fields};
    Buffer answer = {0};
    copy_text(request.text, name);
    Status status = ask(handle, &request, fields, &answer, NULL);
    if (status == OK) memcpy(out, answer.bytes, sizeof *out);
    free(answer.bytes);
    return status;
}

API Status dcgmFieldGroupDestroy(Id handle, Id fields) {
    return simple(handle, (Request){.operation = FIELDS_DESTROY, .fields = fields}, NULL, 0);
}

API Status dcgmFieldGroupGetInfo(Id handle, FieldGroupInfo *out) {
    if (out->version != VERSION_OF(FieldGroupInfo, 1)) return VER_MISMATCH;
    return simple(handle, (Request){.operation = FIELDS_INFO, .fields = out->id}, out, sizeof *out);
}

API Status dcgmFieldGroupGetAll(Id handle, AllFieldGroups *out) {
    if (out->version != VERSION_OF(AllFieldGroups, 1)) return VER_MISMATCH;
    Buffer answer = {0};
    Status status = ask(handle, &(Request){.operation = FIELDS_ALL}, NULL, &answer, NULL);
    out->count = status == OK ? (uint32_t)(answer.size / sizeof(FieldGroupInfo)) : 0;
    if (out->count) memcpy(out->groups, answer.bytes, answer.size);
    free(answer.bytes);
    return status;
}

/* ---- profiling ---- */

API Status dcgmProfGetSupportedMetricGroups(Id handle, MetricGroups *out) {
    if (out->version != VERSION_OF(MetricGroups, 3)) return VER_MISMATCH;
    out->count = 0;
    Status status = simple(handle, (Request){.operation = METRIC_GROUPS, .number = (int)out->gpu}, out->groups,
                           sizeof *out->groups);
    if (status == OK) out->count = 1;
    return status;
}

/* ---- health ---- */

API Status dcgmHealthSet(Id handle, Id group, int systems) {
    return simple(handle, (Request){.operation = HEALTH_SET, .group = group, .number = systems, .every_us = 30000000},
                  NULL, 0);
}

API Status dcgmHealthSet_v2(Id handle, const HealthParameters *parameters) {
    if (parameters->version != VERSION_OF(HealthParameters, 2)) return VER_MISMATCH;
    Request request = {.operation = HEALTH_SET, .group = parameters->group, .number = (int)parameters->systems};
    request.every_us = parameters->every_us;
    request.age_s = parameters->age_s;
    return simple(handle, request, NULL, 0);
}

API Status dcgmHealthGet(Id handle, Id group, int32_t *systems) {
    return simple(handle, (Request){.operation = HEALTH_GET, .group = group}, systems, sizeof *systems);
}

API Status dcgmHealthCheck(Id handle, Id group, HealthResponse *out) {
    uint32_t version = out->version;
    if (version != VERSION_OF(HealthResponse, 4)) return VER_MISMATCH;
    Status status = simple(handle, (Request){.operation = HEALTH_CHECK, .group = group}, out, sizeof *out);
    out->version = version;
    return status;
}

/* ---- jobs ---- */

static Status about_job(Id handle, Operation operation, Id group, const char *job, void *out, size_t size) {
    Request request = {.operation = operation, .group = group};
    if (!job || !*job || strlen(job) >= 64) return BADPARAM;
    copy_text(request.text, job);
    return simple(handle, request, out, size);
}

API Status dcgmWatchJobFields(Id handle, Id group, long long every_us, double age_s, int keep) {
    Request request = {.operation = JOB_WATCH, .group = group, .every_us = every_us, .age_s = age_s, .keep = keep};
    return simple(handle, request, NULL, 0);
}

API Status dcgmJobStartStats(Id handle, Id group, const char *job) {
    return about_job(handle, JOB_START, group, job, NULL, 0);
}

API Status dcgmJobStopStats(Id handle, const char *job) { return about_job(handle, JOB_STOP, 0, job, NULL, 0); }
API Status dcgmJobRemove(Id handle, const char *job) { return about_job(handle, JOB_REMOVE, 0, job, NULL, 0); }
API Status dcgmJobRemoveAll(Id handle) { return simple(handle, (Request){.operation = JOB_REMOVE_ALL}, NULL, 0); }

API Status dcgmJobGetStats(Id handle, const char *job, JobInfo *out) {
    uint32_t version = out->version;
    if (version != VERSION_OF(JobInfo, 3)) return VER_MISMATCH;
    Status status = about_job(handle, JOB_STATS, 0, job, out, sizeof *out);
    out->version = version;
    return status;
}
