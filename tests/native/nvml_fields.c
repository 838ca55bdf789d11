/* nvmlDeviceGetFieldValues: many metrics in one call, each with its own status.
 *
 * A field is one row of FIELDS. The value lies in the part of the union that its type names; the other bytes are
 * set to a pattern, so that a client which reads the wrong part is found out.
 */
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

typedef struct {
    unsigned id;
    ValueType type;
    Status (*read)(const Call *call, unsigned scope, double *value, double *dated); /* dated: NULL unless asked */
} Field;

#define READER(name) static Status name(const Call *call, unsigned scope, double *value, double *dated)
#define UNUSED() (void)call, (void)scope, (void)dated

/* ---- power ---- */

READER(power_instant) {
    unsigned answered = active(call->fleet, call->gpu, MODULE, call->t) ? 1 : 0;
    if (scope != answered) return NOT_SUPPORTED;
    *value = instant_mw(call, call->t);
    *dated = sensor_tick(call, call->t);
    return OK;
}

READER(power_average) {
    if (scope || !call->fleet->model->averages) return NOT_SUPPORTED;
    *value = average_mw(call, call->t);
    *dated = sensor_tick(call, call->t);
    return OK;
}

READER(energy) {
    UNUSED();
    *value = (double)energy_mj(call); /* below 2^53 for 400 years at 700 W */
    *dated = energy_tick(call->t);
    return OK;
}

READER(limit) {
    UNUSED();
    *value = span_at(call->gpu, call->t)->limit_mw;
    return OK;
}

READER(limit_least) {
    UNUSED();
    *value = call->fleet->model->min_limit_w * 1e3;
    return OK;
}

READER(limit_most) {
    UNUSED();
    *value = call->fleet->model->limit_w * 1e3;
    return OK;
}

/* ---- how long the clock was held down, ns ---- */

#define HELD(name, expression) \
    READER(name) { \
        UNUSED(); \
        *value = (double)(expression); \
        return OK; \
    }
HELD(held_power, held_ns(call, HELD_POWER))
HELD(held_any_thermal, held_ns(call, HELD_SOFTWARE) + held_ns(call, HELD_THERMAL))
HELD(held_software, held_ns(call, HELD_SOFTWARE))
HELD(held_thermal, held_ns(call, HELD_THERMAL))
HELD(held_brake, held_ns(call, HELD_BRAKE))
HELD(none, 0)

/* ---- memory ---- */

READER(memory_celsius) {
    UNUSED();
    *value = floor(celsius(call->gpu, call->t) + 9);
    return OK;
}

static Status counted(const Call *call, Word word, int which, double *value) {
    const Statement *s = active(call->fleet, call->gpu, word, call->t);
    *value = s ? s->number[which] : 0;
    return OK;
}

READER(ecc_corrected) {
    UNUSED();
    return counted(call, ECC, 0, value);
}

READER(ecc_uncorrected) {
    UNUSED();
    return counted(call, ECC, 1, value);
}

READER(remapped_corrected) {
    UNUSED();
    return call->fleet->model->architecture < 7 ? NOT_SUPPORTED : counted(call, REMAPPED, 0, value);
}

READER(remapped_uncorrected) {
    UNUSED();
    return call->fleet->model->architecture < 7 ? NOT_SUPPORTED : counted(call, REMAPPED, 1, value);
}

READER(remap_failed) {
    UNUSED();
    return call->fleet->model->architecture < 7 ? NOT_SUPPORTED : counted(call, REMAPPED, 2, value);
}

READER(remap_pending) {
    UNUSED();
    return call->fleet->model->architecture < 7 ? NOT_SUPPORTED : counted(call, REMAPPED, 3, value);
}

#define RETIRED_PAGES(reader, which) \
    READER(reader) { \
        UNUSED(); \
        return call->fleet->model->architecture < 7 ? counted(call, RETIRED, which, value) : NOT_SUPPORTED; \
    }
RETIRED_PAGES(retired_corrected, 0)
RETIRED_PAGES(retired_uncorrected, 1)
RETIRED_PAGES(retired_pending, 2)

READER(ecc_corrected_ever) {
    UNUSED();
    return counted(call, ECC, 2, value);
}

READER(ecc_uncorrected_ever) {
    UNUSED();
    return counted(call, ECC, 3, value);
}

READER(recovery_action) {
    UNUSED();
    return counted(call, RECOVERY, 0, value);
}

/* ---- links ---- */

READER(pcie_sent) {
    UNUSED();
    *value = (double)traffic(call, 9e9);
    return OK;
}

READER(pcie_received) {
    UNUSED();
    *value = (double)traffic(call, 25e9);
    return OK;
}

/* KiB over one link, or over all; a little more with the protocol than without. */
static Status nvlink(const Call *call, unsigned scope, double share, double *value) {
    unsigned links = (unsigned)call->fleet->model->links;
    if (scope != ALL_LINKS && scope >= links) return INVALID_ARGUMENT;
    double one = floor((double)traffic(call, 6e9 * share) / 1024);
    *value = scope == ALL_LINKS ? one * links : one;
    return OK;
}

READER(nvlink_sent) {
    UNUSED();
    return nvlink(call, scope, 1, value);
}

READER(nvlink_received) {
    UNUSED();
    return nvlink(call, scope, 0.98, value);
}

READER(nvlink_sent_raw) {
    UNUSED();
    return nvlink(call, scope, 1.06, value);
}

/* Errors of NVLinks: up to Ampere of all links together, from Hopper on of one. */
static Status links_total(const Call *call, int which, double *value) {
    if (call->fleet->model->architecture >= 9) return NOT_SUPPORTED;
    Status status = counted(call, LINKS, which, value);
    *value *= call->fleet->model->links;
    return status;
}

static Status link_errors(const Call *call, unsigned scope, int which, double *value) {
    if (call->fleet->model->architecture < 9) return NOT_SUPPORTED;
    return scope < (unsigned)call->fleet->model->links ? counted(call, LINKS, which, value) : INVALID_ARGUMENT;
}

#define LINK_ERRORS(total, each, which) \
    READER(total) { \
        UNUSED(); \
        return links_total(call, which, value); \
    } \
    READER(each) { \
        UNUSED(); \
        return link_errors(call, scope, which, value); \
    }
LINK_ERRORS(crc_total, crc_of_link, 0)
LINK_ERRORS(replay_total, replay_of_link, 1)
LINK_ERRORS(recovery_total, recovery_of_link, 2)

static const Field FIELDS[] = {
    {3, VALUE_ULL, ecc_corrected},         /* single bit, since the driver was loaded */
    {4, VALUE_ULL, ecc_uncorrected},       /* double bit */
    {5, VALUE_ULL, ecc_corrected_ever},    /* in the GPU's life */
    {6, VALUE_ULL, ecc_uncorrected_ever},
    {29, VALUE_ULL, retired_corrected},    /* pages */
    {30, VALUE_ULL, retired_uncorrected},
    {31, VALUE_UINT, retired_pending},
    {38, VALUE_ULL, crc_total},            /* of NVLinks: flow control */
    {45, VALUE_ULL, none},                 /* and data */
    {52, VALUE_ULL, replay_total},
    {59, VALUE_ULL, recovery_total},
    {74, VALUE_ULL, held_power},           /* power limit */
    {75, VALUE_ULL, held_any_thermal},     /* temperature */
    {76, VALUE_ULL, none},                 /* synchronised boost */
    {77, VALUE_ULL, none},                 /* limit of the board */
    {79, VALUE_ULL, none},                 /* reliability */
    {82, VALUE_UINT, memory_celsius},
    {83, VALUE_ULL, energy},               /* mJ */
    {94, VALUE_UINT, none},                /* PCIe replays */
    {138, VALUE_ULL, nvlink_sent},         /* KiB */
    {139, VALUE_ULL, nvlink_received},
    {140, VALUE_ULL, nvlink_sent_raw},
    {142, VALUE_UINT, remapped_corrected}, /* rows */
    {143, VALUE_UINT, remapped_uncorrected},
    {144, VALUE_UINT, remap_pending},
    {145, VALUE_UINT, remap_failed},
    {161, VALUE_ULL, replay_of_link},
    {162, VALUE_ULL, recovery_of_link},
    {163, VALUE_ULL, crc_of_link},
    {185, VALUE_UINT, power_average},      /* mW */
    {186, VALUE_UINT, power_instant},
    {187, VALUE_UINT, limit_least},
    {188, VALUE_UINT, limit_most},
    {190, VALUE_UINT, limit},              /* in force */
    {191, VALUE_ULL, energy},
    {197, VALUE_ULL, pcie_sent},           /* bytes */
    {198, VALUE_ULL, pcie_received},
    {230, VALUE_UINT, recovery_action},
    {269, VALUE_ULL, held_software},       /* temperature, by the driver */
    {270, VALUE_ULL, held_thermal},        /* temperature, by the hardware */
    {271, VALUE_ULL, held_brake},          /* power brake */
};

static Status read_field(const Call *call, FieldValue *out) {
    const Field *field = NULL;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS && !field; i++)
        if (FIELDS[i].id == out->field) field = &FIELDS[i];
    if (!field || call->instance) return NOT_SUPPORTED;
    Status status = denied(call, "field", field->id);
    double value = 0, dated = call->t;
    if (status == OK) status = field->read(call, out->scope, &value, &dated);
    if (status != OK) return status;
    memset(&out->value, 0xA5, sizeof out->value);
    out->type = field->type;
    if (field->type == VALUE_UINT) out->value.uint = (unsigned)value;
    else out->value.ull = (unsigned long long)value;
    out->timestamp_us = llround((dated + EPOCH) * 1e6);
    for (int i = 0; i < call->fleet->n_statements; i++) {
        const Statement *s = &call->fleet->statements[i];
        if (s->word != ANSWER || !(s->gpus >> call->gpu->index & 1) || s->number[0] != out->field) continue;
        if (call->t < s->from || call->t >= s->until) continue;
        out->type = (ValueType)s->number[1];
        out->value.ull = strtoull(s->text[2], NULL, 0);
    }
    return OK;
}

API Status nvmlDeviceGetFieldValues(Handle *device, int count, FieldValue *values) {
    ENTER(device);
    REQUIRE(values && count > 0, INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        Status status = denied(&call, "with", values[i].field);
        if (status != OK) return status;
    }
    for (int i = 0; i < count; i++) {
        values[i].timestamp_us = llround((call.t + EPOCH) * 1e6);
        values[i].latency_us = 0;
        values[i].status = read_field(&call, &values[i]);
    }
    return OK;
}

API Status nvmlDeviceClearFieldValues(Handle *device, int count, FieldValue *values) {
    ENTER(device);
    (void)count;
    (void)values;
    return is_root(call.fleet) ? OK : NO_PERMISSION;
}
