/* Health: what the kept values say is wrong with a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcgm.h"

enum { SYSTEM_MEMORY = 0x10, SYSTEM_THERMAL = 0x80, SYSTEM_POWER = 0x100, SYSTEM_DRIVER = 0x200 };
enum { PASS = 0, WARN = 10, FAIL = 20 };
enum { LOOK_BACK_US = 60000000 };

typedef struct {
    Id group;
    int systems;
} Watched;
static Watched watched[MAX_GROUPS];

static const uint16_t FIELDS[] = {230, 240, 241, 311, 395, 396};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

static Watched *find(Id group) {
    for (int i = 0; i < MAX_GROUPS; i++)
        if (watched[i].group == group) return &watched[i];
    return NULL;
}

static void add(HealthResponse *out, Entity entity, int system, int health, int code, const char *message) {
    if (out->count == MAX_INCIDENTS) return;
    Incident *incident = &out->incidents[out->count++];
    *incident = (Incident){.system = (uint32_t)system, .health = (uint32_t)health, .entity = entity};
    incident->code = (uint32_t)code;
    snprintf(incident->message, sizeof incident->message, "%s", message);
    if ((uint32_t)health > out->overall) out->overall = (uint32_t)health;
}

/* How much a counter grew, or its latest value; 0 where it says nothing. */
static int64_t grown(Entity entity, int field, int latest) {
    Series series = kept(entity, field, now_us() - LOOK_BACK_US, INT64_MAX);
    if (series.count <= 0) return 0;
    int64_t last = series.values[series.count - 1].i64;
    if (last >= BLANK_INT64) return 0;
    return latest || series.values[0].i64 >= BLANK_INT64 ? last : last - series.values[0].i64;
}

static void check(HealthResponse *out, Entity entity, int systems) {
    char message[1024];
    if (systems & SYSTEM_MEMORY && grown(entity, 311, 1))
        add(out, entity, SYSTEM_MEMORY, FAIL, 4, "There are memory errors that could not be corrected.");
    if (systems & SYSTEM_MEMORY && grown(entity, 395, 1))
        add(out, entity, SYSTEM_MEMORY, FAIL, 80, "A row of memory could not be remapped.");
    if (systems & SYSTEM_MEMORY && grown(entity, 396, 1))
        add(out, entity, SYSTEM_MEMORY, WARN, 85, "A row of memory waits for a reset to be remapped.");
    if (systems & SYSTEM_THERMAL && grown(entity, 241, 0))
        add(out, entity, SYSTEM_THERMAL, WARN, 10, "The clock was held down by temperature.");
    if (systems & SYSTEM_POWER && grown(entity, 240, 0))
        add(out, entity, SYSTEM_POWER, WARN, 12, "The clock was held down by the power limit.");
    Series xids = kept(entity, 230, now_us() - LOOK_BACK_US, INT64_MAX);
    for (int i = 0; systems & SYSTEM_DRIVER && i < xids.count; i++) {
        snprintf(message, sizeof message, "XID %lld happened.", (long long)xids.values[i].i64);
        add(out, entity, SYSTEM_DRIVER, FAIL, 101, message);
    }
}

Status serve_health(Client *client, const Request *request, Buffer *answer) {
    Members group;
    Watched *of_group = find(request->group);
    Status status = members_of(request->group, &group);
    if (status == OK && request->operation == HEALTH_SET) {
        if (!of_group) of_group = find(0);
        if (of_group) *of_group = (Watched){request->group, request->number};
        else status = MAX_LIMIT;
        for (int i = 0; i < group.count; i++)
            for (int k = 0; status == OK && k < N_FIELDS; k++) {
                double age_s = request->age_s > LOOK_BACK_US / 1e6 ? request->age_s : LOOK_BACK_US / 1e6;
                status = watch(client, group.members[i], FIELDS[k], request->every_us, age_s, 0);
            }
    } else if (status == OK && request->operation == HEALTH_GET) {
        int32_t systems = of_group ? of_group->systems : 0;
        put(answer, &systems, sizeof systems);
    } else if (status == OK) {
        HealthResponse *out = extend(answer, sizeof *out);
        for (int i = 0; of_group && i < group.count; i++)
            if (group.members[i].kind == FE_GPU) check(out, group.members[i], of_group->systems);
    }
    free(group.members);
    return status;
}
