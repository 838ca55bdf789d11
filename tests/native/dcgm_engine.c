/* What the engine answers: each request of a client comes to `serve`. */
#include <stdlib.h>
#include <string.h>

#include "dcgm.h"

struct Client {
    char identity; /* its address is all that is asked of it */
};

Client *new_client(void) { return calloc(1, sizeof(Client)); }

void end_client(Client *client) {
    pthread_mutex_lock(&engine_lock);
    end_watches(client);
    end_groups(client);
    pthread_mutex_unlock(&engine_lock);
    free(client);
}

void *extend(Buffer *buffer, size_t size) {
    if (buffer->size + size > buffer->room) {
        buffer->room = 2 * buffer->room + size;
        buffer->bytes = realloc(buffer->bytes, buffer->room);
        if (!buffer->bytes) abort();
    }
    buffer->size += size;
    return memset(buffer->bytes + buffer->size - size, 0, size);
}

void put(Buffer *buffer, const void *bytes, size_t size) { memcpy(extend(buffer, size), bytes, size); }

/* ---- watches ---- */

/* All or nothing: one profiling field that cannot be watched refuses the whole group. */
static Status change_watches(Client *client, const Request *request) {
    Members group;
    const FieldGroupInfo *fields = field_group(request->fields);
    int begin = request->operation == WATCH;
    if (!fields) return NO_DATA;
    if (begin && request->every_us <= 0) return BADPARAM;
    Status status = members_of(request->group, &group);
    for (int i = 0; begin && status == OK && i < group.count; i++)
        for (uint32_t k = 0; status == OK && k < fields->count; k++)
            if (is_profiling(fields->fields[k])) status = profiling_of((int)(gpu_of(group.members[i]) - gpus));
    for (int i = 0; status == OK && i < group.count; i++)
        for (uint32_t k = 0; status == OK && k < fields->count; k++) {
            if (!begin) unwatch(client, group.members[i], fields->fields[k]);
            else
                status = watch(client, group.members[i], fields->fields[k], request->every_us, request->age_s,
                               request->keep);
        }
    free(group.members);
    return status;
}

/* ---- values ---- */

static void put_sample(Buffer *answer, Entity entity, int field, const Kept *value, int status) {
    Sample sample = {.entity = entity, .field = (uint16_t)field, .type = value->type, .status = status};
    sample.ts = value->ts;
    sample.i64 = value->i64;
    if (value->type != 's') {
        put(answer, &sample, sizeof sample);
        return;
    }
    size_t length = strlen(value->text) + 1, records = (length + sizeof sample - 1) / sizeof sample;
    sample.length = (int64_t)length;
    put(answer, &sample, sizeof sample);
    memcpy(extend(answer, records * sizeof sample), value->text, length);
}

/* A row that says only that there is nothing, without a time. */
static void put_nothing(Buffer *answer, Entity entity, int field, Status why) {
    Kept nothing = blank(field, BLANK);
    put_sample(answer, entity, field, &nothing, why);
}

/* What does not fit into an answer is left out, without a word. */
static void put_series(Buffer *answer, const Request *request) {
    enum { MOST = 4186112 / sizeof(Sample) };
    Entity entity = request->entity;
    Series series = kept(entity, request->number, request->since, request->until);
    if (series.count > MOST) series.count = MOST;
    if (series.count <= 0) put_nothing(answer, entity, request->number, series.count ? NOT_WATCHED : NO_DATA);
    for (int i = 0; i < series.count; i++) put_sample(answer, entity, request->number, &series.values[i], OK);
}

/* `more` holds the entities and then the fields. Live values come with those last that are read in a batch. */
static Status put_latest(const Request *request, const void *more, Buffer *answer) {
    const Entity *entities = more;
    int n_entities = request->number, n_fields = request->keep, live = request->since & 1;
    const uint16_t *fields = (const uint16_t *)(entities + n_entities);
    for (int i = 0; i < n_entities; i++)
        if (!valid_entity(entities[i])) return BADPARAM;
    for (int k = 0; k < n_fields; k++)
        if (!field_of(fields[k])) return UNKNOWN_FIELD;
    for (int batched = 0; batched <= live; batched++)
        for (int i = 0; i < n_entities; i++)
            for (int k = 0; k < n_fields; k++) {
                if (live && is_batched(field_of(fields[k])) != batched) continue;
                if (live) {
                    Kept value = read_field(field_of(fields[k]), entities[i], 0, NULL);
                    if (!value.ts) value.ts = now_us();
                    put_sample(answer, entities[i], fields[k], &value, OK);
                    continue;
                }
                Series series = kept(entities[i], fields[k], 0, INT64_MAX);
                if (series.count > 0)
                    put_sample(answer, entities[i], fields[k], &series.values[series.count - 1], OK);
                else put_nothing(answer, entities[i], fields[k], series.count ? NOT_WATCHED : NO_DATA);
            }
    return OK;
}

/* ---- profiling ---- */

static Status put_metric_groups(const Request *request, Buffer *answer) {
    const uint16_t *ids;
    int count = profiling_fields(&ids);
    if (request->number < 0 || request->number >= n_gpus) return BADPARAM;
    Status status = profiling_of(request->number);
    if (status != OK) return status;
    MetricGroup group = {.major = 1, .count = (uint32_t)count};
    memcpy(group.fields, ids, sizeof *ids * (size_t)count);
    put(answer, &group, sizeof group);
    return OK;
}

/* ---- all requests ---- */

static Status serve_locked(Client *client, const Request *request, const void *more, Buffer *answer) {
    char version[64];
    switch (request->operation) {
    case CONNECT: return understands(request->text) ? OK : VER_MISMATCH;
    case GET_VERSION:
        tell_version(version, sizeof version);
        put(answer, version, sizeof version);
        return OK;
    case GET_DEVICES:
    case GET_STATUS:
    case GET_ATTRIBUTES:
    case GET_ENTITIES:
    case GET_HIERARCHY: return serve_devices(request, answer);
    case WATCH:
    case UNWATCH: return change_watches(client, request);
    case SAMPLES: put_series(answer, request); return OK;
    case LATEST: return put_latest(request, more, answer);
    case METRIC_GROUPS: return put_metric_groups(request, answer);
    case HEALTH_SET:
    case HEALTH_GET:
    case HEALTH_CHECK: return serve_health(client, request, answer);
    case JOB_WATCH:
    case JOB_START:
    case JOB_STOP:
    case JOB_STATS:
    case JOB_REMOVE:
    case JOB_REMOVE_ALL: return serve_jobs(client, request, answer);
    default: return serve_groups(client, request, more, answer);
    }
}

Status serve(Client *client, const Request *request, const void *more, Buffer *answer) {
    Status status = controlled(request->operation);
    if (status != OK) return status;
    if (request->operation == UPDATE) {
        update(request->number);
        return OK;
    }
    pthread_mutex_lock(&engine_lock);
    status = serve_locked(client, request, more, answer);
    pthread_mutex_unlock(&engine_lock);
    return status;
}
