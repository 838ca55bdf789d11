/* What is in use: memory, utilisation, processes; and what went wrong in memory and on the links. */
#include <string.h>

#include "nvml.h"

static const unsigned long long GIB = 1ULL << 30, MIB = 1ULL << 20;

static unsigned long long memory_total(const Call *call) {
    return call->instance ? call->instance->memory : (unsigned long long)call->fleet->model->memory_gib * GIB;
}

/* Two fifths while idle, four fifths while busy: what a job holds, and what it works with. */
unsigned long long memory_used(const Call *call) {
    unsigned fifths = busy(call->gpu, span_at(call->gpu, call->t), call->t) ? 4 : 2;
    return memory_total(call) / MIB * fifths / 5 * MIB;
}

static unsigned long long reserved(const Call *call) { return call->instance ? 0 : 500 * MIB; }

/* The first version counts what the driver keeps for itself as used. */
API Status nvmlDeviceGetMemoryInfo(Handle *device, Memory *out) {
    ENTER(device);
    REQUIRE(out, INVALID_ARGUMENT);
    out->total = memory_total(&call);
    out->used = memory_used(&call) + reserved(&call);
    out->free = out->total - out->used;
    return OK;
}

API Status nvmlDeviceGetMemoryInfo_v2(Handle *device, Memory2 *out) {
    ENTER(device);
    REQUIRE(out, INVALID_ARGUMENT);
    out->total = memory_total(&call);
    out->reserved = reserved(&call);
    out->used = memory_used(&call);
    out->free = out->total - out->used - out->reserved;
    return OK;
}

API Status nvmlDeviceGetBAR1MemoryInfo(Handle *device, Memory *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out, INVALID_ARGUMENT);
    *out = (Memory){.total = 128 * GIB, .used = 4 * MIB, .free = 128 * GIB - 4 * MIB};
    return OK;
}

/* Neither an instance nor a GPU in MIG mode has it. */
API Status nvmlDeviceGetUtilizationRates(Handle *device, Utilization *out) {
    ENTER(device);
    REQUIRE(!call.instance && !call.gpu->n_instances, NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    out->gpu = busy_percent(&call, call.t);
    out->memory = out->gpu * 6 / 10;
    return OK;
}

/* The load is taken for one that works on video: both follow it. */
#define CODEC(function, share) \
    API Status function(Handle *device, unsigned *percent, unsigned *period_us) { \
        ENTER(device); \
        WHOLE_GPU(); \
        REQUIRE(percent && period_us, INVALID_ARGUMENT); \
        *percent = busy_percent(&call, call.t) * (share) / 100; \
        *period_us = 167000; \
        return OK; \
    }
CODEC(nvmlDeviceGetEncoderUtilization, 10)
CODEC(nvmlDeviceGetDecoderUtilization, 25)

/* ---- processes: those that statements name, which share the memory in use ---- */

static unsigned processes(const Call *call, unsigned pids[MAX_PROCESSES]) {
    unsigned n = 0;
    for (int i = 0; i < call->fleet->n_statements && n < MAX_PROCESSES; i++) {
        const Statement *s = &call->fleet->statements[i];
        if (s->word == PROCESS && s->gpus >> call->gpu->index & 1 && call->t >= s->from && call->t < s->until)
            pids[n++] = (unsigned)s->number[0];
    }
    return n;
}

static Status list_processes(const Call *call, unsigned *count, Process *out) {
    unsigned pids[MAX_PROCESSES], n = processes(call, pids), room = *count;
    *count = n;
    if (!n) return OK;
    if (!out || room < n) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++) out[i] = (Process){pids[i], memory_used(call) / n, ~0u, ~0u};
    return OK;
}

#define PROCESSES(function) \
    API Status function(Handle *device, unsigned *count, Process *out) { \
        ENTER(device); \
        REQUIRE(count, INVALID_ARGUMENT); \
        return list_processes(&call, count, out); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)

#define NO_PROCESSES(function) \
    API Status function(Handle *device, unsigned *count, Process *out) { \
        ENTER(device); \
        (void)out; \
        REQUIRE(count, INVALID_ARGUMENT); \
        *count = 0; \
        return OK; \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)


API Status nvmlDeviceGetProcessUtilization(Handle *device, ProcessSample *out, unsigned *count,
                                           unsigned long long since) {
    ENTER(device);
    REQUIRE(count, INVALID_ARGUMENT);
    unsigned pids[MAX_PROCESSES], n = processes(&call, pids), room = *count;
    unsigned long long now_us = (unsigned long long)((call.t + EPOCH) * 1e6);
    *count = n;
    if (!n || since >= now_us) return NOT_FOUND;
    if (!out || room < n) return INSUFFICIENT_SIZE;
    unsigned percent = busy_percent(&call, call.t) / n;
    for (unsigned i = 0; i < n; i++) out[i] = (ProcessSample){pids[i], now_us, percent, percent * 6 / 10, 0, 0};
    return OK;
}


/* ---- memory errors ---- */

API Status nvmlDeviceGetEccMode(Handle *device, unsigned *current, unsigned *pending) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(current && pending, INVALID_ARGUMENT);
    *current = *pending = 1;
    return OK;
}

API Status nvmlDeviceGetTotalEccErrors(Handle *device, int kind, int counter, unsigned long long *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && kind >= 0 && kind < 2 && counter >= 0 && counter < 2, INVALID_ARGUMENT);
    const Statement *s = active(call.fleet, call.gpu, ECC, call.t);
    *out = s ? (unsigned long long)s->number[2 * counter + kind] : 0;
    return OK;
}

API Status nvmlDeviceGetRemappedRows(Handle *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failed) {
    ENTER(device);
    REQUIRE(!call.instance && call.fleet->model->architecture >= 7, NOT_SUPPORTED);
    REQUIRE(corrected && uncorrected && pending && failed, INVALID_ARGUMENT);
    const Statement *s = active(call.fleet, call.gpu, REMAPPED, call.t);
    *corrected = s ? (unsigned)s->number[0] : 0;
    *uncorrected = s ? (unsigned)s->number[1] : 0;
    *failed = s ? (unsigned)s->number[2] : 0;
    *pending = s ? (unsigned)s->number[3] : 0;
    return OK;
}

API Status nvmlDeviceGetSramEccErrorStatus(Handle *device, SramErrors *out) {
    ENTER(device);
    REQUIRE(!call.instance && call.fleet->model->architecture >= 7, NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    REQUIRE(out->version == (sizeof *out | 1u << 24), VERSION_MISMATCH);
    *out = (SramErrors){.version = out->version, .threshold_exceeded = active(call.fleet, call.gpu, SRAM, call.t) != NULL};
    return OK;
}

API Status nvmlDeviceValidateInforom(Handle *device) {
    ENTER(device);
    WHOLE_GPU();
    return active(call.fleet, call.gpu, INFOROM, call.t) ? CORRUPTED_INFOROM : OK;
}


/* ---- PCIe and NVLink ---- */

NUMBER(unsigned, nvmlDeviceGetPcieReplayCounter, 0)

/* Generation 3 for Volta, 4 for Ampere, 5 for Hopper. */
static unsigned pcie_at_most(const Call *call) { return (call->fleet->model->architecture + 1) / 2; }

static unsigned pcie_now(const Call *call, int which, unsigned otherwise) {
    const Statement *s = active(call->fleet, call->gpu, PCIE, call->t);
    return s ? (unsigned)s->number[which] : otherwise;
}

NUMBER(unsigned, nvmlDeviceGetMaxPcieLinkGeneration, pcie_at_most(&call))
NUMBER(unsigned, nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(unsigned, nvmlDeviceGetCurrPcieLinkGeneration, pcie_now(&call, 0, pcie_at_most(&call)))
NUMBER(unsigned, nvmlDeviceGetCurrPcieLinkWidth, pcie_now(&call, 1, 16))

/* Only a GPU that a statement places in a fabric is in one. Version 2 lacks the summary. */
API Status nvmlDeviceGetGpuFabricInfoV(Handle *device, Fabric *out) {
    ENTER(device);
    REQUIRE(!call.instance && call.fleet->model->architecture >= 9, NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    unsigned size = out->version & 0xffff, number = out->version >> 24;
    REQUIRE((number == 2 && size == 36) || (number == 3 && size == 40), VERSION_MISMATCH);
    const Statement *s = active(call.fleet, call.gpu, FABRIC, call.t);
    out->state = s ? (unsigned)s->number[0] : 0;
    out->status = s ? (unsigned)s->number[1] : 0;
    return OK;
}

/* The driver counts for 20 ms, in which the caller waits; kB/s. */
API Status nvmlDeviceGetPcieThroughput(Handle *device, int direction, unsigned *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(out && (direction == 0 || direction == 1), INVALID_ARGUMENT);
    pause_us(20000);
    *out = busy_percent(&call, call.t) * (direction ? 25000 : 9000);
    return OK;
}
