/* Inside of the simulated libdcgm.so.4: an engine that samples GPUs, and the clients that ask it.
 *
 * The engine runs in a process of its own (nv-hostengine) or in the client's ("embedded"). A client's call is one or
 * more requests; `ask` takes them to the engine over a socket or directly, and there `serve` answers. Values come from
 * the libnvidia-ml.so.1 that the engine's process loads.
 */
#ifndef WHORL_DCGM_H
#define WHORL_DCGM_H

#include <pthread.h>
#include <stddef.h>

#include "dcgm_abi.h"

#define ENGINE_VERSION "4.6.0"
enum { MAX_GPUS = MAX_DEVICES, MAX_SLICES = 7 }; /* GPUs of an engine, instances of a GPU */

/* ---- between client and engine ---- */

typedef enum {
    CONNECT, GET_VERSION, GET_DEVICES, GET_STATUS, GET_ATTRIBUTES, GET_ENTITIES, GET_HIERARCHY,
    GROUP_CREATE, GROUP_DESTROY, GROUP_ADD, GROUP_REMOVE, GROUP_INFO, GROUP_IDS,
    FIELDS_CREATE, FIELDS_DESTROY, FIELDS_INFO, FIELDS_ALL,
    WATCH, UNWATCH, UPDATE, SAMPLES, LATEST,
    METRIC_GROUPS, HEALTH_SET, HEALTH_GET, HEALTH_CHECK,
    JOB_WATCH, JOB_START, JOB_STOP, JOB_STATS, JOB_REMOVE, JOB_REMOVE_ALL,
    OPERATIONS
} Operation;

typedef struct {
    Operation operation;
    uint32_t size; /* of what follows */
    Id group, fields;
    int64_t since, until, every_us; /* microseconds */
    double age_s;
    int32_t keep, number;
    Entity entity;
    char text[TEXT];
} Request;

typedef struct {
    Status status;
    uint32_t size;
    int64_t now_us; /* the engine's clock */
} Reply;

/* One value on its way. After one of type 's' comes its text, in as many records as it takes. */
typedef struct {
    Entity entity;
    uint16_t field;
    int16_t type;
    int32_t status;
    int64_t ts;
    union {
        int64_t i64;
        double dbl;
        int64_t length;
    };
} Sample;
_Static_assert(sizeof(Sample) == 32, "samples");

typedef struct {
    char *bytes;
    size_t size, room;
} Buffer;
void *extend(Buffer *buffer, size_t size);
void put(Buffer *buffer, const void *bytes, size_t size);

/* A connection as the engine knows it: what it made ends with it. */
typedef struct Client Client;

Status serve(Client *client, const Request *request, const void *more, Buffer *answer);
Client *new_client(void);
void end_client(Client *client);

/* dcgm_wire.c; what clients use of it is in dcgm_wire.h */
int64_t now_us(void);

/* ---- the engine ---- */

extern pthread_mutex_t engine_lock; /* held by `serve`, and by the sampling except while the driver is asked */
Status start_engine(int manual);
void stop_engine(void);

/* dcgm_groups.c: all with the lock held */
typedef struct {
    int count;
    Entity *members; /* of the caller, to be freed */
} Members;
Status members_of(Id group, Members *out);
const FieldGroupInfo *field_group(Id id);
Status serve_groups(Client *client, const Request *request, const void *more, Buffer *answer);
void end_groups(Client *client);

/* dcgm_cache.c */
typedef struct {
    int16_t type;
    int64_t ts;
    union {
        int64_t i64;
        double dbl;
        const char *text; /* kept for ever */
    };
} Kept;

typedef struct {
    const Kept *values;
    int count;
} Series;

Status watch(Client *client, Entity entity, int field, int64_t every_us, double age_s, int keep);
void unwatch(Client *client, Entity entity, int field);
void end_watches(Client *client);
Series kept(Entity entity, int field, int64_t since, int64_t until); /* count -1: not watched */
void keep_xid(int gpu, int64_t ts, int64_t code);
void update(int wait);

/* dcgm_driver.c: what the driver knows */
typedef enum { GPU_OK = 1, GPU_LOST = 4 } Condition;

typedef struct {
    void *device;
    char name[96], uuid[96];
    uint32_t instance, compute_instance, slices;
} Instance;

typedef struct {
    void *device;
    char uuid[96], bus_id[32];
    Condition condition;
    int n_instances;
    Instance instances[MAX_SLICES];
} Gpu;

extern Gpu gpus[MAX_GPUS];
extern int n_gpus;
Status open_driver(void);
void close_driver(void);
Status describe(int gpu, Attributes *out);
void *driver_function(const char *name);
int wait_for_xid(int *gpu, int64_t *code); /* returns whether one came; waits a little */
int valid_entity(Entity entity);
const Gpu *gpu_of(Entity entity);
const Instance *instance_of(Entity entity); /* NULL: a whole GPU */
Status serve_devices(const Request *request, Buffer *answer);

/* dcgm_fields.c */
typedef struct Field Field;
const Field *field_of(int id);
int is_profiling(int id);
int is_batched(const Field *field); /* read by the driver's call for many fields */
Kept blank(int field, int why);
int profiling_fields(const uint16_t **ids);

/* dcgm_reading.c. Without `before` a profiling field is blank. */
typedef struct Profile Profile;
Kept read_field(const Field *field, Entity entity, int64_t moment, Profile **before);
void read_batch(int count, const Field *const *fields, Entity entity, Kept *out);
void free_profile(Profile *profile);
Status profiling_of(int gpu);

/* dcgm_jobs.c and dcgm_health.c */
Status serve_jobs(Client *client, const Request *request, Buffer *answer);
Status serve_health(Client *client, const Request *request, Buffer *answer);

/* dcgm_control.c */
Status controlled(Operation operation); /* waits while it hangs; how it is refused, or OK */
int profiling_refused(Status *status);
void tell_version(char *text, size_t size);
int understands(const char *client_version);

#endif
