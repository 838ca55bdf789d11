/* The GPUs of the engine, as the libnvidia-ml.so.1 that this process loads describes them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dcgm.h"

Gpu gpus[MAX_GPUS];
int n_gpus;
static void *library, *events;

/* A function of the driver, or NULL; all of them return 0 when all is well. */
void *driver_function(const char *name) { return library ? dlsym(library, name) : NULL; }

#define CALL(name, ...) \
    ({ \
        int (*function_)() = (int (*)())driver_function(name); \
        function_ ? function_(__VA_ARGS__) : 13; \
    })

static void find_instances(Gpu *gpu) {
    for (unsigned k = 0; k < MAX_SLICES; k++) {
        Instance found = {0};
        if (CALL("nvmlDeviceGetMigDeviceHandleByIndex", gpu->device, k, &found.device)) continue;
        CALL("nvmlDeviceGetUUID", found.device, found.uuid, (unsigned)sizeof found.uuid);
        CALL("nvmlDeviceGetName", found.device, found.name, (unsigned)sizeof found.name);
        CALL("nvmlDeviceGetGpuInstanceId", found.device, &found.instance);
        CALL("nvmlDeviceGetComputeInstanceId", found.device, &found.compute_instance);
        const char *profile = strstr(found.name, "MIG ");
        if (profile) sscanf(profile, "MIG %u", &found.slices);
        gpu->instances[gpu->n_instances++] = found;
    }
}

void close_driver(void) {
    if (events) CALL("nvmlEventSetFree", events);
    events = NULL;
    CALL("nvmlShutdown");
}

/* A session of the driver, and the GPUs that it has now. */
Status open_driver(void) {
    unsigned count = 0;
    if (!library) library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return LIBRARY_NOT_FOUND;
    if (CALL("nvmlInit_v2") || CALL("nvmlDeviceGetCount_v2", &count)) return NVML_ERROR;
    n_gpus = 0;
    if (CALL("nvmlEventSetCreate", &events)) events = NULL;
    for (unsigned i = 0; i < count && i < MAX_GPUS; i++) {
        Gpu *gpu = &gpus[n_gpus++];
        struct {
            char legacy[16];
            unsigned ids[5];
            char bus_id[32];
        } pci = {0};
        *gpu = (Gpu){.condition = GPU_OK};
        if (CALL("nvmlDeviceGetHandleByIndex_v2", i, &gpu->device)) gpu->condition = GPU_LOST;
        CALL("nvmlDeviceGetUUID", gpu->device, gpu->uuid, (unsigned)sizeof gpu->uuid);
        if (!CALL("nvmlDeviceGetPciInfo_v3", gpu->device, &pci)) memcpy(gpu->bus_id, pci.bus_id, sizeof gpu->bus_id);
        if (events) CALL("nvmlDeviceRegisterEvents", gpu->device, 8ULL, events);
        find_instances(gpu);
    }
    return OK;
}

/* Ids: a GPU has its number, an instance its GPU's times MAX_SLICES and its own. */
const Gpu *gpu_of(Entity entity) {
    uint32_t index = entity.kind == FE_GPU ? entity.id : entity.id / MAX_SLICES;
    return index < (uint32_t)n_gpus ? &gpus[index] : NULL;
}

const Instance *instance_of(Entity entity) {
    if (entity.kind != FE_GPU_I && entity.kind != FE_GPU_CI) return NULL;
    return &gpu_of(entity)->instances[entity.id % MAX_SLICES];
}

int valid_entity(Entity entity) {
    if (entity.kind != FE_GPU && entity.kind != FE_GPU_I && entity.kind != FE_GPU_CI) return 0;
    const Gpu *gpu = gpu_of(entity);
    return gpu && (entity.kind == FE_GPU || (int)(entity.id % MAX_SLICES) < gpu->n_instances);
}

int wait_for_xid(int *gpu, int64_t *code) {
    struct {
        void *device;
        unsigned long long type, data;
        unsigned instance, compute_instance;
    } event;
    if (!events || CALL("nvmlEventSetWait_v2", events, &event, 20u)) {
        if (!events) usleep(20000);
        return 0;
    }
    for (*gpu = 0; *gpu < n_gpus && gpus[*gpu].device != event.device; ++*gpu);
    *code = (int64_t)event.data;
    return *gpu < n_gpus;
}

static unsigned watts(const char *function, void *device) {
    unsigned mw = 0;
    return CALL(function, device, &mw) ? BLANK_INT32 : mw / 1000;
}

Status describe(int index, Attributes *out) {
    if (index < 0 || index >= n_gpus) return BADPARAM;
    const Gpu *gpu = &gpus[index];
    unsigned least = 0, most = 0;
    unsigned long long memory[3] = {0};
    struct {
        char legacy[16];
        unsigned domain, bus, device, device_id, subsystem_id;
        char bus_id[32];
    } pci = {0};
    out->power.current = watts("nvmlDeviceGetPowerManagementLimit", gpu->device);
    out->power.standard = watts("nvmlDeviceGetPowerManagementDefaultLimit", gpu->device);
    out->power.enforced = watts("nvmlDeviceGetEnforcedPowerLimit", gpu->device);
    CALL("nvmlDeviceGetPowerManagementLimitConstraints", gpu->device, &least, &most);
    out->power.least = least / 1000;
    out->power.most = most / 1000;
    CALL("nvmlDeviceGetName", gpu->device, out->identifiers.name, (unsigned)TEXT);
    CALL("nvmlDeviceGetSerial", gpu->device, out->identifiers.serial, (unsigned)TEXT);
    CALL("nvmlDeviceGetVbiosVersion", gpu->device, out->identifiers.vbios, (unsigned)TEXT);
    CALL("nvmlSystemGetDriverVersion", out->identifiers.driver, (unsigned)TEXT);
    CALL("nvmlDeviceGetPciInfo_v3", gpu->device, &pci);
    strcpy(out->identifiers.uuid, gpu->uuid);
    strcpy(out->identifiers.bus_id, gpu->bus_id);
    out->identifiers.device_id = pci.device_id;
    out->identifiers.subsystem_id = pci.subsystem_id;
    CALL("nvmlDeviceGetTemperatureThreshold", gpu->device, 0, &out->thermal.shutdown);
    CALL("nvmlDeviceGetTemperatureThreshold", gpu->device, 1, &out->thermal.slowdown);
    CALL("nvmlDeviceGetMemoryInfo", gpu->device, memory);
    out->memory.total = (uint32_t)(memory[0] >> 20);
    out->memory.free = (uint32_t)(memory[1] >> 20);
    out->memory.used = (uint32_t)(memory[2] >> 20);
    out->settings.persistence = 1;
    out->settings.mig = gpu->n_instances > 0;
    return OK;
}

/* ---- requests ---- */

static void put_entity(Buffer *answer, Entity entity) { put(answer, &entity, sizeof entity); }

static Status list_entities(Kind kind, int supported, Buffer *answer) {
    if (kind == FE_SWITCH || kind == FE_LINK || kind == FE_CPU || kind == FE_CPU_CORE) return MODULE_NOT_LOADED;
    if (kind >= FE_KINDS) return BADPARAM;
    for (uint32_t i = 0; i < (uint32_t)n_gpus; i++) {
        if (supported && gpus[i].condition != GPU_OK) continue;
        if (kind == FE_GPU) put_entity(answer, (Entity){kind, i});
        for (uint32_t k = 0; (kind == FE_GPU_I || kind == FE_GPU_CI) && k < (uint32_t)gpus[i].n_instances; k++)
            put_entity(answer, (Entity){kind, i * MAX_SLICES + k});
    }
    return OK;
}

static void put_hierarchy(Buffer *answer) {
    for (uint32_t i = 0; i < (uint32_t)n_gpus; i++)
        for (uint32_t k = 0; k < (uint32_t)gpus[i].n_instances; k++) {
            const Instance *instance = &gpus[i].instances[k];
            HierarchyEntry entry = {.entity = {FE_GPU_I, i * MAX_SLICES + k}, .parent = {FE_GPU, i}};
            snprintf(entry.gpu_uuid, sizeof entry.gpu_uuid, "%s", gpus[i].uuid);
            entry.nvml_index = i;
            entry.instance = instance->instance;
            entry.compute_instance = instance->compute_instance;
            entry.slices = instance->slices;
            put(answer, &entry, sizeof entry);
            entry.parent = entry.entity;
            entry.entity.kind = FE_GPU_CI;
            put(answer, &entry, sizeof entry);
        }
}

Status serve_devices(const Request *request, Buffer *answer) {
    switch (request->operation) {
    case GET_DEVICES: return list_entities(FE_GPU, request->number, answer);
    case GET_ENTITIES: return list_entities(request->entity.kind, request->number, answer);
    case GET_ATTRIBUTES: return describe(request->number, extend(answer, sizeof(Attributes)));
    case GET_HIERARCHY: put_hierarchy(answer); return OK;
    default: /* GET_STATUS */
        if (request->number < 0 || request->number >= n_gpus) return BADPARAM;
        put(answer, &gpus[request->number].condition, sizeof(Condition));
        return OK;
    }
}
