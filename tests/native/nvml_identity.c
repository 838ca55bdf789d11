/* Who a GPU is: handles, names, places, and the instances of a GPU in MIG mode. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static Handle handles[MAX_GPUS][MAX_INSTANCES + 1][GENERATIONS]; /* the first of each GPU is the GPU itself */

Handle *handle_of(int gpu, int instance, int generation) {
    Handle *handle = &handles[gpu][instance + 1][generation];
    *handle = (Handle){gpu, instance, generation};
    return handle;
}

int valid_handle(const Handle *handle) {
    uintptr_t at = (uintptr_t)handle, first = (uintptr_t)handles;
    return at >= first && at < first + sizeof handles && (at - first) % sizeof(Handle) == 0;
}

API Status nvmlDeviceGetUUID(Handle *device, char *text, unsigned size) {
    ENTER(device);
    return put_text(text, size, call.instance ? call.instance->uuid : call.gpu->uuid);
}

API Status nvmlDeviceGetName(Handle *device, char *text, unsigned size) {
    ENTER(device);
    char name[96];
    snprintf(name, sizeof name, "%s%s%s", call.fleet->model->product, call.instance ? " MIG " : "",
             call.instance ? call.instance->profile : "");
    return put_text(text, size, name);
}

/* The text of a statement that is in force, else the usual one. */
static const char *said(const Call *call, Word word, const char *usual) {
    const Statement *statement = active(call->fleet, call->gpu, word, call->t);
    return statement ? statement->text[0] : usual;
}

#define TEXT(function, expression) \
    API Status function(Handle *device, char *text, unsigned size) { \
        ENTER(device); \
        WHOLE_GPU(); \
        return put_text(text, size, expression); \
    }
TEXT(nvmlDeviceGetSerial, call.gpu->serial)
TEXT(nvmlDeviceGetInforomImageVersion, said(&call, IMAGE, "G520.0200.00.05"))
TEXT(nvmlDeviceGetGspFirmwareVersion, "550.54.15")
TEXT(nvmlDeviceGetVbiosVersion,
     said(&call, VBIOS, call.fleet->model->architecture >= 9 ? "96.00.74.00.01" : "88.00.51.00.01"))

NUMBER(unsigned, nvmlDeviceGetIndex, call.gpu->index)
NUMBER(unsigned, nvmlDeviceGetArchitecture, call.fleet->model->architecture)
NUMBER(unsigned, nvmlDeviceGetPersistenceMode, 1)
NUMBER(unsigned, nvmlDeviceGetComputeMode, 0)
NUMBER(unsigned, nvmlDeviceGetDisplayMode, 0)
NUMBER(unsigned, nvmlDeviceGetDisplayActive, 0)
ABSENT(nvmlDeviceGetDriverModel_v2)

API Status nvmlDeviceGetPciInfo_v3(Handle *device, PciInfo *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out, INVALID_ARGUMENT);
    *out = call.gpu->pci;
    return OK;
}

API Status nvmlDeviceGetCudaComputeCapability(Handle *device, int *major, int *minor) {
    ENTER(device);
    REQUIRE(major && minor, INVALID_ARGUMENT);
    *major = call.fleet->model->major;
    *minor = call.fleet->model->minor;
    return OK;
}

/* ---- MIG ---- */

API Status nvmlDeviceGetMigMode(Handle *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    REQUIRE(!call.instance && call.fleet->model->max_instances, NOT_SUPPORTED);
    REQUIRE(current && pending, INVALID_ARGUMENT);
    *current = *pending = call.gpu->n_instances > 0;
    return OK;
}

NUMBER(unsigned, nvmlDeviceGetMaxMigDeviceCount, call.fleet->model->max_instances)

API Status nvmlDeviceGetMigDeviceHandleByIndex(Handle *device, unsigned index, Handle **out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && index < (unsigned)call.fleet->model->max_instances, INVALID_ARGUMENT);
    REQUIRE(index < (unsigned)call.gpu->n_instances, NOT_FOUND);
    *out = handle_of(call.gpu->index, (int)index, device->generation);
    return OK;
}

API Status nvmlDeviceIsMigDeviceHandle(Handle *device, unsigned *out) {
    ENTER(device);
    REQUIRE(out, INVALID_ARGUMENT);
    *out = call.instance != NULL;
    return OK;
}

API Status nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle *device, Handle **out) {
    ENTER(device);
    REQUIRE(out && call.instance, INVALID_ARGUMENT);
    *out = handle_of(call.gpu->index, -1, device->generation);
    return OK;
}

API Status nvmlDeviceGetGpuInstanceId(Handle *device, unsigned *out) {
    ENTER(device);
    REQUIRE(call.instance, NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    *out = (unsigned)(call.instance - call.gpu->instances) + 1;
    return OK;
}

API Status nvmlDeviceGetComputeInstanceId(Handle *device, unsigned *out) {
    ENTER(device);
    REQUIRE(call.instance, NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    *out = 0;
    return OK;
}

/* ---- vGPU ---- */

API Status nvmlDeviceGetGridLicensableFeatures_v4(Handle *device, Licences *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out, INVALID_ARGUMENT);
    const Statement *s = active(call.fleet, call.gpu, VGPU, call.t);
    *out = (Licences){.supported = s != NULL, .n = s != NULL};
    if (s) out->features[0] = (Feature){.code = 1, .state = s->number[0] != 0, .product = "NVIDIA Virtual Compute"};
    return OK;
}
