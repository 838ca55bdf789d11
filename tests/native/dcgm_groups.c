/* Groups of entities and of fields. They belong to the client that made them, and everyone can use them. */
#include <stdlib.h>
#include <string.h>

#include "dcgm.h"

typedef struct {
    Client *owner;
    Id id;
    GroupInfo *info; /* NULL: the place is free */
} Group;

typedef struct {
    Client *owner;
    int used;
    FieldGroupInfo info;
} FieldGroup;

static Group groups[MAX_GROUPS];
static FieldGroup field_groups[MAX_GROUPS];
static Id last_group, last_field_group; /* ids are never given out twice */

/* ---- groups of entities ---- */

static Group *find_group(Id id) {
    for (int i = 0; i < MAX_GROUPS; i++)
        if (groups[i].info && groups[i].id == id) return &groups[i];
    return NULL;
}

static void add_kind(GroupInfo *info, Kind kind) {
    for (uint32_t i = 0; i < (uint32_t)n_gpus; i++) {
        if (kind == FE_GPU && gpus[i].condition == GPU_OK) info->members[info->count++] = (Entity){kind, i};
        for (uint32_t k = 0; kind != FE_GPU && k < (uint32_t)gpus[i].n_instances; k++)
            info->members[info->count++] = (Entity){kind, i * MAX_SLICES + k};
    }
}

/* One of the groups that are always there; returns 0 where it is none of them. */
static int fill_constant(Id id, GroupInfo *info) {
    if (id != ALL_GPUS && id != ALL_INSTANCES && id != ALL_COMPUTE && id != ALL_ENTITIES) return 0;
    strcpy(info->name, id == ALL_GPUS ? "DCGM_ALL_SUPPORTED_GPUS" : "DCGM_ALL_OTHERS");
    if (id == ALL_GPUS || id == ALL_ENTITIES) add_kind(info, FE_GPU);
    if (id == ALL_INSTANCES || id == ALL_ENTITIES) add_kind(info, FE_GPU_I);
    if (id == ALL_COMPUTE || id == ALL_ENTITIES) add_kind(info, FE_GPU_CI);
    return 1;
}

static Status group_info(Id id, GroupInfo *out) {
    *out = (GroupInfo){0};
    if (fill_constant(id, out)) return OK;
    const Group *group = find_group(id);
    if (!group) return NO_DATA;
    *out = *group->info;
    return OK;
}

Status members_of(Id id, Members *out) {
    GroupInfo *info = malloc(sizeof *info);
    *out = (Members){0};
    if (!info) return MEMORY;
    Status status = group_info(id, info);
    if (status == OK) {
        out->count = (int)info->count;
        out->members = malloc(sizeof *info->members * (info->count + 1));
        if (!out->members) status = MEMORY;
        else memcpy(out->members, info->members, sizeof *info->members * info->count);
    }
    free(info);
    return status;
}

static Status create_group(Client *owner, const Request *request, Buffer *answer) {
    int i = 0;
    while (i < MAX_GROUPS && groups[i].info) i++;
    if (i == MAX_GROUPS) return MAX_LIMIT;
    GroupInfo *info = calloc(1, sizeof *info);
    if (!info) return MEMORY;
    if (request->number == 0 || request->number == 5) add_kind(info, FE_GPU);
    if (request->number == 3 || request->number == 5) add_kind(info, FE_GPU_I);
    if (request->number == 4 || request->number == 5) add_kind(info, FE_GPU_CI);
    memcpy(info->name, request->text, TEXT);
    groups[i] = (Group){owner, ++last_group, info};
    put(answer, &last_group, sizeof(Id));
    return OK;
}

static void destroy_group(Group *group) {
    free(group->info);
    group->info = NULL;
}

static Status change_group(const Request *request) {
    Group *group = find_group(request->group);
    if (!group) return NO_DATA;
    GroupInfo *info = group->info;
    Entity wanted = request->entity;
    uint32_t at = 0;
    while (at < info->count && (info->members[at].kind != wanted.kind || info->members[at].id != wanted.id)) at++;
    if (request->operation == GROUP_REMOVE) {
        if (at == info->count) return BADPARAM;
        memmove(&info->members[at], &info->members[at + 1], sizeof wanted * (info->count - at - 1));
        info->count--;
        return OK;
    }
    if (at < info->count || !valid_entity(wanted)) return BADPARAM;
    if (info->count == MAX_MEMBERS) return MAX_LIMIT;
    info->members[info->count++] = wanted;
    return OK;
}

/* ---- groups of fields ---- */

static FieldGroup *find_fields(Id id) {
    for (int i = 0; i < MAX_GROUPS; i++)
        if (field_groups[i].used && field_groups[i].info.id == id) return &field_groups[i];
    return NULL;
}

const FieldGroupInfo *field_group(Id id) {
    const FieldGroup *found = find_fields(id);
    return found ? &found->info : NULL;
}

static Status create_fields(Client *owner, const Request *request, const uint16_t *ids, Buffer *answer) {
    int free_place = -1;
    if (request->number < 1 || request->number >= MAX_FIELDS || !*request->text) return BADPARAM;
    for (int i = 0; i < request->number; i++)
        if (!field_of(ids[i])) return UNKNOWN_FIELD;
    for (int i = MAX_GROUPS - 1; i >= 0; i--) {
        if (!field_groups[i].used) free_place = i;
        else if (!strcmp(field_groups[i].info.name, request->text)) return DUPLICATE_KEY;
    }
    if (free_place < 0) return MAX_LIMIT;
    FieldGroup *made = &field_groups[free_place];
    *made = (FieldGroup){.owner = owner, .used = 1};
    made->info = (FieldGroupInfo){.version = VERSION_OF(FieldGroupInfo, 1), .count = (uint32_t)request->number};
    made->info.id = ++last_field_group;
    memcpy(made->info.name, request->text, TEXT);
    memcpy(made->info.fields, ids, sizeof *ids * (size_t)request->number);
    put(answer, &made->info.id, sizeof(Id));
    return OK;
}

void end_groups(Client *client) {
    for (int i = 0; i < MAX_GROUPS; i++) {
        if (groups[i].info && groups[i].owner == client) destroy_group(&groups[i]);
        if (field_groups[i].used && field_groups[i].owner == client) field_groups[i].used = 0;
    }
}

Status serve_groups(Client *client, const Request *request, const void *more, Buffer *answer) {
    Group *group;
    FieldGroup *fields;
    switch (request->operation) {
    case GROUP_CREATE: return create_group(client, request, answer);
    case GROUP_DESTROY:
        if (!(group = find_group(request->group))) return NO_DATA;
        destroy_group(group);
        return OK;
    case GROUP_ADD:
    case GROUP_REMOVE: return change_group(request);
    case GROUP_INFO: return group_info(request->group, extend(answer, sizeof(GroupInfo)));
    case GROUP_IDS:
        put(answer, &(Id){ALL_GPUS}, sizeof(Id));
        for (int i = 0; i < MAX_GROUPS; i++)
            if (groups[i].info) put(answer, &groups[i].id, sizeof(Id));
        return OK;
    case FIELDS_CREATE: return create_fields(client, request, more, answer);
    case FIELDS_DESTROY:
        if (!(fields = find_fields(request->fields))) return NO_DATA;
        fields->used = 0;
        return OK;
    case FIELDS_INFO:
        if (!(fields = find_fields(request->fields))) return NO_DATA;
        put(answer, &fields->info, sizeof fields->info);
        return OK;
    default: /* FIELDS_ALL */
        for (int i = 0; i < MAX_GROUPS; i++)
            if (field_groups[i].used) put(answer, &field_groups[i].info, sizeof(FieldGroupInfo));
        return OK;
    }
}
