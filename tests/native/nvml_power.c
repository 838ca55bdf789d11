/* Power, energy and their limits; clocks and why they are where they are; and the calls that set them. */
#include <string.h>

#include "nvml.h"

/* A one-second mean where the hardware has one, else the instantaneous reading: the same call, another meaning. */
NUMBER(unsigned, nvmlDeviceGetPowerUsage,
       call.fleet->model->averages ? average_mw(&call, call.t) : instant_mw(&call, call.t))
NUMBER(unsigned long long, nvmlDeviceGetTotalEnergyConsumption, energy_mj(&call))
NUMBER(unsigned, nvmlDeviceGetPowerManagementLimit, span_at(call.gpu, call.t)->limit_mw)
NUMBER(unsigned, nvmlDeviceGetEnforcedPowerLimit, span_at(call.gpu, call.t)->limit_mw)
NUMBER(unsigned, nvmlDeviceGetPowerManagementDefaultLimit, call.fleet->model->limit_w * 1e3)

API Status nvmlDeviceGetPowerManagementLimitConstraints(Handle *device, unsigned *least, unsigned *most) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(least && most, INVALID_ARGUMENT);
    *least = (unsigned)(call.fleet->model->min_limit_w * 1e3);
    *most = (unsigned)(call.fleet->model->limit_w * 1e3);
    return OK;
}

/* ---- clocks ---- */

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_KINDS };

static unsigned clock_mhz(const Call *call, int kind, int sm) {
    return (unsigned)(kind == CLOCK_MEMORY ? call->fleet->model->memory_mhz : kind == CLOCK_VIDEO ? sm * 4 / 5 : sm);
}

API Status nvmlDeviceGetMaxClockInfo(Handle *device, int kind, unsigned *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && kind >= 0 && kind < CLOCK_KINDS, INVALID_ARGUMENT);
    *out = clock_mhz(&call, kind, call.fleet->model->max_mhz);
    return OK;
}

API Status nvmlDeviceGetClockInfo(Handle *device, int kind, unsigned *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && kind >= 0 && kind < CLOCK_KINDS, INVALID_ARGUMENT);
    *out = clock_mhz(&call, kind, sm_mhz(&call));
    return OK;
}

API Status nvmlDeviceGetSupportedMemoryClocks(Handle *device, unsigned *count, unsigned *mhz) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(count, INVALID_ARGUMENT);
    unsigned room = *count;
    *count = 1;
    REQUIRE(mhz && room >= 1, INSUFFICIENT_SIZE);
    mhz[0] = (unsigned)call.fleet->model->memory_mhz;
    return OK;
}

/* The highest first, as drivers list them. */
API Status nvmlDeviceGetSupportedGraphicsClocks(Handle *device, unsigned memory_mhz, unsigned *count, unsigned *mhz) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(count, INVALID_ARGUMENT);
    const Model *m = call.fleet->model;
    REQUIRE(memory_mhz == (unsigned)m->memory_mhz, NOT_FOUND);
    unsigned room = *count, n = (unsigned)((m->max_mhz - m->min_mhz) / m->step_mhz) + 1;
    *count = n;
    REQUIRE(mhz && room >= n, INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < n; i++) mhz[i] = (unsigned)m->min_mhz + (n - 1 - i) * (unsigned)m->step_mhz;
    return OK;
}

NUMBER(unsigned long long, nvmlDeviceGetCurrentClocksEventReasons, event_reasons(&call))
NUMBER(unsigned long long, nvmlDeviceGetCurrentClocksThrottleReasons, event_reasons(&call))
NUMBER(int, nvmlDeviceGetPerformanceState, 0)

API Status nvmlDeviceGetViolationStatus(Handle *device, int policy, Violation *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && policy >= 0 && policy < 12, INVALID_ARGUMENT);
    unsigned long long thermal = held_ns(&call, HELD_SOFTWARE) + held_ns(&call, HELD_THERMAL);
    *out = (Violation){.reference_us = (unsigned long long)((call.t + EPOCH) * 1e6),
                       .violation_ns = policy == 0 ? held_ns(&call, HELD_POWER) : policy == 1 ? thermal : 0};
    return OK;
}

/* ---- temperature and fans ---- */

API Status nvmlDeviceGetTemperature(Handle *device, int sensor, unsigned *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && sensor == 0, INVALID_ARGUMENT);
    *out = (unsigned)celsius(call.gpu, call.t);
    return OK;
}

API Status nvmlDeviceGetTemperatureV(Handle *device, Temperature *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && out->sensor == 0, INVALID_ARGUMENT);
    out->celsius = (int)celsius(call.gpu, call.t);
    return OK;
}

API Status nvmlDeviceGetTemperatureThreshold(Handle *device, int kind, unsigned *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out, INVALID_ARGUMENT);
    const Model *model = call.fleet->model;
    const int thresholds[] = {model->shutdown_c, model->slowdown_c, model->slowdown_c + 6, model->slowdown_c - 2};
    REQUIRE(kind >= 0 && kind < 4, NOT_SUPPORTED);
    *out = (unsigned)thresholds[kind];
    return OK;
}

ABSENT(nvmlDeviceGetFanSpeed)
ABSENT(nvmlDeviceGetFanSpeed_v2)

/* ---- settings: root only, kept in the control file so that every process sees them ---- */

static Status change(const Call *call, const char *word, double value) {
    if (call->instance) return NOT_SUPPORTED;
    if (!is_root(call->fleet)) return NO_PERMISSION;
    if (active(call->fleet, call->gpu, DEAF, call->t)) return OK;
    return word ? keep_setting(call, word, value) : OK;
}

API Status nvmlDeviceSetPowerManagementLimit(Handle *device, unsigned milliwatt) {
    ENTER(device);
    const Model *model = call.fleet->model;
    REQUIRE(milliwatt >= model->min_limit_w * 1e3 && milliwatt <= model->limit_w * 1e3, INVALID_ARGUMENT);
    return change(&call, "limit", milliwatt);
}

API Status nvmlDeviceSetGpuLockedClocks(Handle *device, unsigned least, unsigned most) {
    ENTER(device);
    REQUIRE(least <= most, INVALID_ARGUMENT);
    return change(&call, "locked", most);
}

API Status nvmlDeviceResetGpuLockedClocks(Handle *device) {
    ENTER(device);
    return change(&call, "locked", 0);
}

API Status nvmlDeviceSetPersistenceMode(Handle *device, unsigned mode) {
    ENTER(device);
    (void)mode;
    return change(&call, NULL, 0);
}

API Status nvmlDeviceSetAccountingMode(Handle *device, unsigned mode) {
    ENTER(device);
    (void)mode;
    return change(&call, NULL, 0);
}

API Status nvmlDeviceSetComputeMode(Handle *device, int mode) {
    ENTER(device);
    (void)mode;
    return change(&call, NULL, 0);
}

API Status nvmlDeviceClearEccErrorCounts(Handle *device, int kind) {
    ENTER(device);
    (void)kind;
    return change(&call, NULL, 0);
}
