/* Values, read from the driver. */
#include <stdio.h>
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

static int read_batched(int which, void *device, double *value, int64_t *ts) {
    struct {
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
    } answer = {.field = (unsigned)which};
    int (*function)() = (int (*)())driver_function("nvmlDeviceGetFieldValues");
    int status = function ? function(device, 1, &answer) : 13;
    if (status || answer.status) return status ? status : answer.status;
    *value = answer.type == 0   ? answer.real
             : answer.type == 1 ? answer.uint
             : answer.type == 4 ? (double)answer.sll
             : answer.type == 5 ? answer.sint
                                : (double)answer.ull;
    if (answer.ts) *ts = answer.ts;
    return 0;
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

/* The mean of a metric since the sample in *profile, which is replaced. */
static int read_profile(const Field *field, const Gpu *gpu, const Instance *instance, void **profile, double *value) {
    int (*allocate)() = (int (*)())driver_function("nvmlGpmSampleAlloc");
    int (*release)() = (int (*)())driver_function("nvmlGpmSampleFree");
    int (*sample)() = (int (*)())driver_function(instance ? "nvmlGpmMigSampleGet" : "nvmlGpmSampleGet");
    int (*metrics)() = (int (*)())driver_function("nvmlGpmMetricsGet");
    if (!allocate || !release || !sample || !metrics) return 13;
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
    void *fresh = NULL;
    int status = allocate(&fresh);
    if (status) return status;
    status = instance ? sample(gpu->device, instance->instance, fresh) : sample(gpu->device, fresh);
    if (status || !profile) {
        release(fresh);
        return status ? status : -1;
    }
    void *before = *profile;
    *profile = fresh;
    if (!before) return -1; /* blank: the first time there is nothing to compare with */
    request.before = before;
    request.after = fresh;
    request.metric[0].id = (unsigned)field->which;
    status = metrics(&request);
    release(before);
    *value = request.metric[0].value;
    return status ? status : request.metric[0].status;
}

void free_profile(void *profile) {
    int (*release)() = (int (*)())driver_function("nvmlGpmSampleFree");
    if (profile && release) release(profile);
}

/* Now, from the driver. Without a time stamp, the caller gives it that of before the call. */
Kept read_field(const Field *field, Entity entity, void **profile) {
    const Gpu *gpu = gpu_of(entity);
    const Instance *instance = instance_of(entity);
    void *device = instance && (field->way == MEMORY_2 || field->way == STRING) ? instance->device : gpu->device;
    char text[TEXT] = "";
    double value = 0;
    int64_t ts = 0;
    int status;
    switch (field->way) {
    case NONE: status = 3; break;
    case EVENT: status = -1; break;
    case STRING:
    case OTHER: status = read_text(field, gpu, device, text, sizeof text); break;
    case BATCHED: status = read_batched(field->which, device, &value, &ts); break;
    case GPM: status = read_profile(field, gpu, instance, profile, &value); break;
    default: status = read_number(field, device, &value); break;
    }
    if (instance && field->way == PART_OF) status = 3; /* utilisation: of whole GPUs only */
    if (status == 15 && instance == NULL) ((Gpu *)gpu)->condition = GPU_LOST;
    Kept kept = {.type = field->type, .ts = ts};
    if (status) {
        kept = blank(field->id, why_blank(status));
        kept.ts = ts;
    } else if (field->type == 's') kept.text = keep_text(text);
    else if (field->type == 'd') kept.dbl = value * field->scale;
    else kept.i64 = (int64_t)(value * field->scale);
    return kept;
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
