/* Inside of the simulated libnvidia-ml.so.1: the fleet that a control file describes, and one call's view of it.
 *
 * Every value is a pure function of the time, the number of the GPU and the control file, so that all processes
 * agree without a server. Times are seconds since EPOCH as double: exact to 30 ns.
 */
#ifndef WHORL_NVML_H
#define WHORL_NVML_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "nvml_abi.h"

enum { MAX_GPUS = 64, MAX_INSTANCES = 7, MAX_PROCESSES = 16, GENERATIONS = 16 };
enum { MAX_STATEMENTS = 512, MAX_SPANS = 256, MAX_WORDS = 8 };

#define EPOCH 1704067200.0 /* 2024-01-01T00:00:00Z in Unix seconds; unless it was reloaded, the driver's loading */
#define ALL_LINKS 0xFFFFFFFFu

/* What can stand in the control file: see nvml_control.c. */
typedef enum {
    GPUS, MODEL, NODE, ROOT, NOW, MIG,                      /* the fleet */
    LOAD, LIMIT, LOCKED, SLOWDOWN,                          /* what the power follows from: cuts time into spans */
    STUCK, STEP, EVERY, MODULE, ECC, REMAPPED, VGPU, PROCESS, DEAF, /* what sensors, counters and lists say */
    LINKS, PCIE, SRAM, INFOROM, IMAGE, VBIOS, FABRIC, RETIRED, RECOVERY, ANSWER,
    LOST, DENY, LATENCY, HANG,                              /* how calls end */
    XID, RESET, RELOAD,                                     /* what happens at a time */
    WORDS
} Word;

typedef struct {
    Word word;
    double from, until; /* active in [from, until) */
    uint64_t gpus;      /* a bit for each GPU */
    int n;
    char text[MAX_WORDS][48]; /* the arguments, and as numbers (0 where one is none) */
    double number[MAX_WORDS];
} Statement;

/* A product: data-sheet limits, and how its power sensor works. */
typedef struct {
    const char *name, *product;
    int architecture, major, minor;
    unsigned device_id;
    double idle_w, limit_w, min_limit_w;
    int min_mhz, max_mhz, step_mhz, memory_mhz;
    int memory_gib, slowdown_c, shutdown_c, links, max_instances;
    double sensor_s, window_s; /* a new power value every sensor_s, the mean of the last window_s */
    int averages;              /* there is a one-second mean, and nvmlDeviceGetPowerUsage returns it */
} Model;

/* Why the clock is held down; each has a counter of time. */
typedef enum { HELD_POWER, HELD_SOFTWARE, HELD_THERMAL, HELD_BRAKE, HOLDS } Hold;

/* A stretch of time in which the settings of a GPU stay the same, with its integrals at the beginning. */
typedef struct {
    double began;
    double period, busy_for; /* the load is a square wave: busy for the first busy_for seconds of each period */
    double idle_w, busy_w;
    unsigned limit_mw, locked_mhz;
    int busy_mhz, held[HOLDS];
    double energy_j, busy_s, held_s[HOLDS], kelvin_above; /* kelvin_above: what is left of the span before, decays */
} Span;

typedef struct {
    char profile[16], uuid[64];
    unsigned slices;
    unsigned long long memory;
} Instance;

typedef struct {
    int index;
    char uuid[64], serial[24];
    PciInfo pci;
    double want_w, kelvin_per_w, inlet_c, phase, sensor_offset;
    uint64_t words; /* a bit for each word that some statement says of this GPU */
    int n_spans, n_instances;
    Span spans[MAX_SPANS];
    Instance instances[MAX_INSTANCES];
} Gpu;

typedef struct {
    int n_gpus, n_statements, node, broken; /* broken: the control file has a mistake, every call fails */
    int stands_still;                       /* the clock does, at `still` */
    double still;
    const Model *model;
    Gpu gpus[MAX_GPUS];
    Statement statements[MAX_STATEMENTS];
} Fleet;

/* What a client holds. It never moves and never ends; a GPU that came back "stale" has handles of a new generation. */
typedef struct {
    int gpu, instance, generation; /* instance: -1 for the GPU itself */
} Handle;

/* One call in progress: whom it asks, and the time its answer is about. */
typedef struct {
    const Fleet *fleet;
    const Gpu *gpu;
    const Instance *instance; /* NULL: the whole GPU */
    double t;
} Call;

/* nvml_control.c */
const Fleet *current_fleet(void);
const char *control_path(void);
double clock_now(const Fleet *fleet);
const Statement *active(const Fleet *fleet, const Gpu *gpu, Word word, double t);
const Statement *statement_of(const Fleet *fleet, int gpu, Word word, double t);
Status keep_setting(const Call *call, const char *word, double value);

/* nvml_model.c */
extern const Model MODELS[];
const Model *find_model(const char *name);
void build_gpu(Fleet *fleet, int index);

/* nvml_physics.c */
const Span *span_at(const Gpu *gpu, double t);
int busy(const Gpu *gpu, const Span *span, double t);
double busy_seconds(const Gpu *gpu, double t);
double held_seconds(const Gpu *gpu, Hold hold, double t);
double power_w(const Gpu *gpu, double t);
double energy_j(const Gpu *gpu, double t);
double celsius(const Gpu *gpu, double t);
double kelvin_above_inlet(const Gpu *gpu, const Span *span, double t);
int sm_mhz(const Call *call);
void integrate(const Gpu *gpu, const Span *span, double t, Span *next);

/* nvml_sensors.c */
double sensor_tick(const Call *call, double t);
double energy_tick(double t);
double counters_began(const Call *call);
double instant_mw(const Call *call, double t);
double average_mw(const Call *call, double t);
unsigned busy_percent(const Call *call, double t);
unsigned long long energy_mj(const Call *call);
unsigned long long held_ns(const Call *call, Hold hold);
unsigned long long traffic(const Call *call, double bytes_per_busy_second);
unsigned long long event_reasons(const Call *call);

/* nvml_calls.c */
Status enter(Handle *handle, const char *function, Call *call);
Status enter_system(const char *function, Call *call);
Status denied(const Call *call, const char *function, unsigned field);
void count_call(unsigned long long *counter, const char *function);
int is_root(const Fleet *fleet);
Status put_text(char *to, unsigned size, const char *text);
void pause_us(double us);

/* nvml_identity.c */
Handle *handle_of(int gpu, int instance, int generation);
int valid_handle(const Handle *handle);

/* nvml_memory.c */
unsigned long long memory_used(const Call *call);

/* The first line of every function of the interface: count the call, let the faults act, find the GPU. */
#define COUNT() do { static unsigned long long counter_; count_call(&counter_, __func__); } while (0)
#define ENTER(device) \
    Call call; \
    COUNT(); \
    do { Status status_ = enter(device, __func__, &call); if (status_ != OK) return status_; } while (0)
#define ENTER_SYSTEM() \
    Call call; \
    COUNT(); \
    do { Status status_ = enter_system(__func__, &call); if (status_ != OK) return status_; } while (0)
#define REQUIRE(condition, otherwise) do { if (!(condition)) return otherwise; } while (0)
#define WHOLE_GPU() REQUIRE(call.instance == NULL, NOT_SUPPORTED)

/* A function of the interface that returns one number of a whole GPU. */
#define NUMBER(type, function, expression) \
    API Status function(Handle *device, type *out) { \
        ENTER(device); \
        WHOLE_GPU(); \
        REQUIRE(out, INVALID_ARGUMENT); \
        *out = (type)(expression); \
        return OK; \
    }
/* One that this hardware does not have. */
#define ABSENT(function) \
    API Status function(Handle *device) { \
        ENTER(device); \
        return NOT_SUPPORTED; \
    }

#endif
