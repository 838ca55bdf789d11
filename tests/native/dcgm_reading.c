/* Values, read from the driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dcgm_fields.h"

static const char *keep_text(const char *text) {
    static const char *texts[4096];
    static int n;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n && strcmp(texts[i], text)) i++;
    if (i == n && n < (int)(sizeof texts / sizeof *texts)) texts[n++] = strdup(text);
    const char *found = i < n ? texts[i] : "";
    pthread_mutex_unlock(&lock);
    return found;
}

Kept blank(int id, int why) {
    static const char *const TEXTS[] = {"<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"};
    const Field *field = field_of(id);
    Kept value = {.type = field ? field->type : 'i'};
    if (value.type == 's') value.text = TEXTS[why];
    else if (value.type == 'd') value.dbl = BLANK_DOUBLE + why;
    else value.i64 = BLANK_INT64 + why;
    return value;
}

static int why_blank(int driver_status) {
    return driver_status == 6 ? BLANK_NOT_FOUND
           : driver_status == 3 || driver_status == 13 ? BLANK_NOT_SUPPORTED
           : driver_status == 4 ? BLANK_NOT_PERMITTED
                                : BLANK;
}

/* As the driver has it in its call for many fields. */
typedef struct {
    unsigned field, scope;
    long long ts, latency;
    unsigned type;
    int status;
    union {
        double real;
        unsigned uint;
        unsigned long long ull;
        long long sll;
        int sint;
    };
} Batched;

static double number_of(const Batched *answer) {
    return answer->type == 0   ? answer->real
           : answer->type == 1 ? answer->uint
           : answer->type == 4 ? (double)answer->sll
           : answer->type == 5 ? answer->sint
                               : (double)answer->ull;
}

static int read_number(const Field *field, void *device, double *value) {
    int (*function)() = field->function ? (int (*)())driver_function(field->function) : NULL;
    if (!function) return 13;
    unsigned words[4] = {0};
    unsigned long long wide = 0;
    struct {
        unsigned version;
        unsigned long long bytes[4];
    } memory = {.version = sizeof memory | 2u << 24};
    int status;
    switch (field->way) {
    case UINT: status = function(device, &words[0]); *value = words[0]; break;
    case UINT_OF: status = function(device, field->which, &words[0]); *value = words[0]; break;
    case ULL: status = function(device, &wide); *value = (double)wide; break;
    case ERRORS: status = function(device, field->which % 2, field->which / 2, &wide); *value = (double)wide; break;
    case PART_OF: status = function(device, words); *value = words[field->which]; break;
    case SPREAD:
        status = function(device, &words[0], &words[1], &words[2], &words[3]);
        *value = words[field->which];
        break;
    default: status = function(device, &memory); *value = (double)memory.bytes[field->which]; break;
    }
    return status;
}

static int read_text(const Field *field, const Gpu *gpu, void *device, char *text, unsigned size) {
    if (field->id == 57) return snprintf(text, size, "%s", gpu->bus_id) < 0;
    int (*function)() = (int (*)())driver_function(field->function);
    if (!function) return 13;
    return field->way == OTHER ? function(text, size) : function(device, text, size);
}

/* ---- profiling: a sample of each entity and moment, which all of its metrics share ---- */

struct Profile {
    void *sample;
    int uses;
    int64_t moment;
};

typedef struct {
    Entity entity;
    Profile *last;
} Sampled;

void free_profile(Profile *profile) {
    int (*release)() = (int (*)())driver_function("nvmlGpmSampleFree");
    if (!profile || --profile->uses) return;
    if (release) release(profile->sample);
    free(profile);
}

static int take_profile(Entity entity, Profile **out) {
    int (*allocate)() = (int (*)())driver_function("nvmlGpmSampleAlloc");
    const Instance *instance = instance_of(entity);
    int (*get)() = (int (*)())driver_function(instance ? "nvmlGpmMigSampleGet" : "nvmlGpmSampleGet");
    Profile *profile = calloc(1, sizeof *profile);
    if (!allocate || !get || !profile) return free(profile), 13;
    int status = allocate(&profile->sample);
    if (status) return free(profile), status;
    void *device = gpu_of(entity)->device;
    status = instance ? get(device, instance->instance, profile->sample) : get(device, profile->sample);
    profile->uses = 1;
    if (status) free_profile(profile);
    else *out = profile;
    return status;
}

/* The sample of this moment (a number that grows); only one thread at a time. */
static int profile_of(Entity entity, int64_t moment, Profile **out) {
    static Sampled sampled[MAX_GPUS * (MAX_SLICES + 1) * 2];
    Sampled *at = sampled;
    while (at->last && (at->entity.kind != entity.kind || at->entity.id != entity.id)) at++;
    if (!at->last || at->last->moment != moment) {
        Profile *fresh = NULL;
        int status = take_profile(entity, &fresh);
        if (status) return status;
        free_profile(at->last);
        fresh->moment = moment;
        *at = (Sampled){entity, fresh};
    }
    at->last->uses++;
    *out = at->last;
    return 0;
}

/* The mean of a metric since the sample in *before, which is replaced. */
static int read_profile(const Field *field, Entity entity, int64_t moment, Profile **before, double *value) {
    int (*metrics)() = (int (*)())driver_function("nvmlGpmMetricsGet");
    struct {
        unsigned version, count;
        void *before, *after;
        struct {
            unsigned id;
            int status;
            double value;
            char *names[3];
        } metric[210];
    } request = {.version = 1, .count = 1};
    Profile *fresh, *old = *before;
    int status = metrics ? profile_of(entity, moment, &fresh) : 13;
    if (status) return status;
    *before = fresh;
    if (!old) return -1; /* blank: the first time there is nothing to compare with */
    request.before = old->sample;
    request.after = fresh->sample;
    request.metric[0].id = (unsigned)field->which;
    status = metrics(&request);
    free_profile(old);
    *value = request.metric[0].value;
    return status ? status : request.metric[0].status;
}

/* ---- all values ---- */

static Kept kept_value(const Field *field, Entity entity, int status, double value, const char *text, int64_t ts) {
    if (status == 15 && entity.kind == FE_GPU) gpus[entity.id].condition = GPU_LOST;
    Kept kept = {.type = field->type};
    if (status) kept = blank(field->id, why_blank(status));
    else if (field->type == 's') kept.text = keep_text(text);
    else if (field->type == 'd') kept.dbl = value * field->scale;
    else kept.i64 = (int64_t)(value * field->scale);
    kept.ts = ts;
    return kept;
}

/* Fields of a GPU that the driver gives in one call, with times of its own. */
void read_batch(int count, const Field *const *fields, Entity entity, Kept *out) {
    Batched answers[MAX_FIELDS] = {0};
    int (*function)() = (int (*)())driver_function("nvmlDeviceGetFieldValues");
    for (int i = 0; i < count; i++) answers[i].field = (unsigned)fields[i]->which;
    int status = function ? function(gpu_of(entity)->device, count, answers) : 13;
    for (int i = 0; i < count; i++)
        out[i] = kept_value(fields[i], entity, status ? status : answers[i].status, number_of(&answers[i]), NULL,
                            status ? 0 : answers[i].ts);
}

/* Now, from the driver. Without a time stamp, the caller gives it that of before the call. */
Kept read_field(const Field *field, Entity entity, int64_t moment, Profile **before) {
    const Gpu *gpu = gpu_of(entity);
    const Instance *instance = instance_of(entity);
    void *device = instance && (field->way == MEMORY_2 || field->way == STRING) ? instance->device : gpu->device;
    char text[TEXT] = "";
    double value = 0;
    int status;
    Kept kept;
    switch (field->way) {
    case NONE: status = 3; break;
    case EVENT: status = -1; break;
    case STRING:
    case OTHER: status = read_text(field, gpu, device, text, sizeof text); break;
    case BATCHED: read_batch(1, &field, entity, &kept); return kept;
    case GPM: status = before ? read_profile(field, entity, moment, before, &value) : -1; break;
    default: status = read_number(field, device, &value); break;
    }
    if (instance && field->way == PART_OF) status = 3; /* utilisation: of whole GPUs only */
    return kept_value(field, entity, status, value, text, 0);
}

/* Whether the profiling fields of a GPU can be watched. */
Status profiling_of(int gpu) {
    struct {
        unsigned version, supported;
    } answer = {.version = 1};
    Status refused;
    if (profiling_refused(&refused)) return refused;
    int (*function)() = (int (*)())driver_function("nvmlGpmQueryDeviceSupport");
    if (!function || function(gpus[gpu].device, &answer) || !answer.supported) return MODULE_NOT_LOADED;
    return OK;
}
