/* What a client of libnvidia-ml.so.1 sees: status codes, and the layout of every structure that crosses the border.
 *
 * Written from the published behaviour of the interface, without any vendor's header. The sizes are those of
 * x86-64 Linux and are asserted here; the Python tests compare them with the structures of nvidia-ml-py.
 */
#ifndef WHORL_NVML_ABI_H
#define WHORL_NVML_ABI_H

#define API __attribute__((visibility("default")))

typedef enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    CORRUPTED_INFOROM = 14,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
} Status;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} Memory2;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef union {
    double real;
    unsigned uint;
    unsigned long ulong;
    unsigned long long ull;
    long long sll;
    int sint;
} Value;

typedef enum {
    VALUE_DOUBLE = 0,
    VALUE_UINT = 1,
    VALUE_ULONG = 2,
    VALUE_ULL = 3,
    VALUE_SLL = 4,
    VALUE_SINT = 5,
} ValueType;

typedef struct {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    ValueType type;
    Status status;
    Value value;
} FieldValue;

typedef struct {
    unsigned long long reference_us, violation_ns;
} Violation;

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

typedef struct {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned pid;
    unsigned long long timestamp_us;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

typedef struct {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;

typedef struct GpmSample GpmSample; /* opaque to clients */

typedef struct {
    unsigned version, is_supported;
} GpmSupport;

typedef struct {
    unsigned id;
    Status status;
    double value;
    const char *short_name, *long_name, *unit;
} GpmMetric;

typedef struct {
    unsigned version, n;
    const GpmSample *first, *second;
    GpmMetric metrics[];
} GpmMetrics;

typedef struct {
    unsigned code, state; /* state: not 0 where there is a licence */
    char licence[128], product[128];
    unsigned enabled;
    unsigned expires_year;
    unsigned short expires_month, expires_day, expires_hour, expires_minute, expires_second;
    unsigned char expires_status;
} Feature;

typedef struct {
    int supported;
    unsigned n;
    Feature features[3];
} Licences;

typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_uncorrected, aggregate_corrected;
    unsigned long long volatile_parity, volatile_uncorrected, volatile_corrected;
    unsigned long long l2, sm, pcie, controller, other;
    unsigned threshold_exceeded;
} SramErrors;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique, state, health_mask;
    unsigned char health_summary; /* version 3 only */
} Fabric;

_Static_assert(sizeof(SramErrors) == 104 && sizeof(Fabric) == 40, "health");
_Static_assert(sizeof(GpmMetric) == 40 && sizeof(GpmMetrics) == 24, "GPM");
_Static_assert(sizeof(Licences) == 860, "licences");
_Static_assert(sizeof(PciInfo) == 68, "PciInfo v3");
_Static_assert(sizeof(Memory) == 24 && sizeof(Memory2) == 40, "memory");
_Static_assert(sizeof(FieldValue) == 40, "field values");
_Static_assert(sizeof(Process) == 24 && sizeof(ProcessSample) == 32, "processes");
_Static_assert(sizeof(Temperature) == 12, "temperature");
_Static_assert(sizeof(Event) == 32 && sizeof(Violation) == 16, "events and violations");

#endif
