/* The functions of libdcgm.so.4 that watch fields and read values. */
#include <stdlib.h>
#include <string.h>

#include "dcgm_wire.h"

static Status no_answer(Id handle, Request request) {
    Buffer answer = {0};
    Status status = ask(handle, &request, NULL, &answer, NULL);
    free(answer.bytes);
    return status;
}

API Status dcgmWatchFields(Id handle, Id group, Id fields, long long every_us, double age_s, int keep) {
    Request request = {.operation = WATCH, .group = group, .fields = fields, .every_us = every_us, .age_s = age_s};
    request.keep = keep;
    return no_answer(handle, request);
}

API Status dcgmUnwatchFields(Id handle, Id group, Id fields) {
    return no_answer(handle, (Request){.operation = UNWATCH, .group = group, .fields = fields});
}

API Status dcgmUpdateAllFields(Id handle, int wait) {
    return no_answer(handle, (Request){.operation = UPDATE, .number = wait});
}

/* How many records a sample and its text take. */
static size_t records_of(const Sample *sample) {
    return sample->type == 's' ? 1 + ((size_t)sample->length + sizeof *sample - 1) / sizeof *sample : 1;
}

static void fill_value(Value *out, const Sample *sample) {
    if (sample->type == 's') memcpy(out->text, sample + 1, (size_t)sample->length);
    else out->i64 = sample->i64;
}

/* The whole structure is not cleared: what a client reads beyond the value is what was there before. */
static void fill_first(FieldValue1 *out, const Sample *sample) {
    out->version = VERSION_OF(FieldValue1, 1);
    out->field = sample->field;
    out->type = sample->type;
    out->status = sample->status;
    out->ts = sample->ts;
    fill_value(&out->value, sample);
}

/* Give each value to the caller; returns whether it wants more. */
static int hand_out(const Buffer *answer, EntityCallback call, GpuCallback call_gpu, void *data) {
    static __thread FieldValue1 value;
    const Sample *sample = (const Sample *)answer->bytes, *end = sample + answer->size / sizeof *sample;
    for (; sample < end; sample += records_of(sample)) {
        fill_first(&value, sample);
        int stop = call ? call(sample->entity.kind, sample->entity.id, &value, 1, data)
                        : call_gpu(sample->entity.id, &value, 1, data);
        if (stop) return 0;
    }
    return 1;
}

/* The members of a group and the fields of a field group, and the engine's time. */
typedef struct {
    GroupInfo group;
    FieldGroupInfo fields;
    int64_t now;
} Scope;

static Status look_up(Id handle, Id group, Id fields, int gpus_only, Scope *out) {
    Buffer answer = {0};
    Status status = ask(handle, &(Request){.operation = FIELDS_INFO, .fields = fields}, NULL, &answer, NULL);
    if (status == OK) memcpy(&out->fields, answer.bytes, sizeof out->fields);
    answer.size = 0;
    if (status == OK) status = ask(handle, &(Request){.operation = GROUP_INFO, .group = group}, NULL, &answer, &out->now);
    if (status == OK) memcpy(&out->group, answer.bytes, sizeof out->group);
    free(answer.bytes);
    for (uint32_t i = 0; gpus_only && status == OK && i < out->group.count; i++)
        if (out->group.members[i].kind != FE_GPU) status = NOT_SUPPORTED;
    return status;
}

/* One request for each field of each entity: all that was kept from `since` to now. */
static Status values_since(Id handle, Id group, Id fields, int64_t since, long long *next, EntityCallback call,
                           GpuCallback call_gpu, void *data) {
    Scope *scope = calloc(1, sizeof *scope);
    Buffer answer = {0};
    if (!scope) return MEMORY;
    if ((!call && !call_gpu) || !next) {
        free(scope);
        return BADPARAM;
    }
    *next = since;
    Status status = look_up(handle, group, fields, call_gpu != NULL, scope);
    Request request = {.operation = SAMPLES, .since = since, .until = scope->now};
    int more = 1;
    for (uint32_t i = 0; status == OK && more && i < scope->group.count; i++)
        for (uint32_t k = 0; status == OK && more && k < scope->fields.count; k++) {
            request.entity = scope->group.members[i];
            request.number = scope->fields.fields[k];
            answer.size = 0;
            status = ask(handle, &request, NULL, &answer, NULL);
            if (status == OK) more = hand_out(&answer, call, call_gpu, data);
        }
    if (status == OK && more) *next = scope->now + 1;
    free(answer.bytes);
    free(scope);
    return status;
}

API Status dcgmGetValuesSince_v2(Id handle, Id group, Id fields, long long since, long long *next,
                                 EntityCallback call, void *data) {
    return values_since(handle, group, fields, since, next, call, NULL, data);
}

API Status dcgmGetValuesSince(Id handle, Id group, Id fields, long long since, long long *next, GpuCallback call,
                              void *data) {
    return values_since(handle, group, fields, since, next, NULL, call, data);
}

/* ---- latest values ---- */

static Status ask_latest(Id handle, const Entity *entities, uint32_t n_entities, const uint16_t *fields,
                         uint32_t n_fields, uint32_t flags, Buffer *answer) {
    Buffer more = {0};
    put(&more, entities, n_entities * sizeof *entities);
    put(&more, fields, n_fields * sizeof *fields);
    Request request = {.operation = LATEST, .size = (uint32_t)more.size, .since = flags};
    request.number = (int)n_entities;
    request.keep = (int)n_fields;
    Status status = ask(handle, &request, more.bytes, answer, NULL);
    free(more.bytes);
    return status;
}

static Status latest(Id handle, Id group, Id fields, EntityCallback call, GpuCallback call_gpu, void *data) {
    Scope *scope = calloc(1, sizeof *scope);
    Buffer answer = {0};
    if (!scope) return MEMORY;
    Status status = call || call_gpu ? look_up(handle, group, fields, call_gpu != NULL, scope) : BADPARAM;
    if (status == OK)
        status = ask_latest(handle, scope->group.members, scope->group.count, scope->fields.fields,
                            scope->fields.count, 0, &answer);
    if (status == OK) hand_out(&answer, call, call_gpu, data);
    free(answer.bytes);
    free(scope);
    return status;
}

API Status dcgmGetLatestValues_v2(Id handle, Id group, Id fields, EntityCallback call, void *data) {
    return latest(handle, group, fields, call, NULL, data);
}

API Status dcgmGetLatestValues(Id handle, Id group, Id fields, GpuCallback call, void *data) {
    return latest(handle, group, fields, NULL, call, data);
}

API Status dcgmEntitiesGetLatestValues(Id handle, const Entity *entities, uint32_t n_entities, const uint16_t *fields,
                                       uint32_t n_fields, uint32_t flags, FieldValue2 *out) {
    Buffer answer = {0};
    Status status = ask_latest(handle, entities, n_entities, fields, n_fields, flags, &answer);
    const Sample *sample = (const Sample *)answer.bytes;
    for (uint32_t i = 0; status == OK && i < n_entities * n_fields; i++, sample += records_of(sample), out++) {
        out->version = VERSION_OF(FieldValue2, 2);
        out->kind = sample->entity.kind;
        out->id = sample->entity.id;
        out->field = sample->field;
        out->type = sample->type;
        out->status = sample->status;
        out->ts = sample->ts;
        fill_value(&out->value, sample);
    }
    free(answer.bytes);
    return status;
}

API Status dcgmEntityGetLatestValues(Id handle, Kind kind, uint32_t id, const uint16_t *fields, uint32_t n_fields,
                                     FieldValue1 *out) {
    Buffer answer = {0};
    Status status = ask_latest(handle, &(Entity){kind, id}, 1, fields, n_fields, 0, &answer);
    const Sample *sample = (const Sample *)answer.bytes;
    for (uint32_t i = 0; status == OK && i < n_fields; i++, sample += records_of(sample)) fill_first(out++, sample);
    free(answer.bytes);
    return status;
}
