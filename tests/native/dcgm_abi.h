/* What a client of libdcgm.so.4 sees: status codes, and the layout of every structure that crosses the border.
 *
 * Written from the published behaviour of the interface, without any vendor's header. The sizes are those of
 * x86-64 Linux and are asserted here; the Python tests compare them with the structures of pydcgm.
 */
#ifndef WHORL_DCGM_ABI_H
#define WHORL_DCGM_ABI_H

#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef enum {
    OK = 0,
    BADPARAM = -1,
    MEMORY = -4,
    NOT_SUPPORTED = -6,
    NVML_ERROR = -8,
    UNINITIALIZED = -10,
    TIMEOUT = -11,
    VER_MISMATCH = -12,
    UNKNOWN_FIELD = -13,
    NO_DATA = -14,
    NOT_WATCHED = -16,
    NO_PERMISSION = -17,
    CONNECTION_NOT_VALID = -21,
    MAX_LIMIT = -24,
    LIBRARY_NOT_FOUND = -25,
    DUPLICATE_KEY = -26,
    MODULE_NOT_LOADED = -33,
} Status;

/* Kinds of entities. */
typedef enum { FE_NONE, FE_GPU, FE_VGPU, FE_SWITCH, FE_GPU_I, FE_GPU_CI, FE_LINK, FE_CPU, FE_CPU_CORE, FE_KINDS } Kind;

/* A missing value is a number near the end of what its type can hold. The next three say why. */
enum { BLANK, BLANK_NOT_FOUND, BLANK_NOT_SUPPORTED, BLANK_NOT_PERMITTED };
#define BLANK_INT32 0x7ffffff0
#define BLANK_INT64 0x7ffffffffffffff0LL
#define BLANK_DOUBLE 140737488355328.0

#define VERSION_OF(type, version) ((uint32_t)sizeof(type) | (uint32_t)(version) << 24)

enum {
    MAX_DEVICES = 32,
    MAX_GROUPS = 64,
    MAX_MEMBERS = 1024, /* entities of a group; clients with an older structure see the first 64 */
    OLD_MEMBERS = 64,
    MAX_FIELDS = 128,
    MAX_HIERARCHY = 448,
    MAX_INCIDENTS = 64,
    TEXT = 256,
};

/* Groups that are always there. */
enum { ALL_GPUS = 0x7fffffff, ALL_INSTANCES = 0x7ffffffd, ALL_COMPUTE = 0x7ffffffc, ALL_ENTITIES = 0x7ffffffb };

typedef uintptr_t Id;

typedef union {
    int64_t i64;
    double dbl;
    char text[TEXT];
    char blob[4096];
} Value;

typedef struct {
    uint32_t version;
    uint16_t field;
    int16_t type; /* 'd', 'i', 's' */
    int32_t status;
    int64_t ts; /* microseconds since 1970 */
    Value value;
} FieldValue1;

typedef struct {
    uint32_t version, kind, id;
    uint16_t field;
    int16_t type;
    int32_t status;
    uint32_t unused;
    int64_t ts;
    Value value;
} FieldValue2;

typedef struct {
    uint32_t kind, id;
} Entity;

typedef struct {
    uint32_t version, count;
    char name[TEXT];
    Entity members[MAX_MEMBERS];
} GroupInfo;
#define GROUP_INFO_SIZE(members) (8 + TEXT + 8 * (members))

typedef struct {
    uint32_t version, count;
    Id id;
    char name[TEXT];
    uint16_t fields[MAX_FIELDS];
} FieldGroupInfo;

typedef struct {
    uint32_t version, count;
    FieldGroupInfo groups[MAX_GROUPS];
} AllFieldGroups;

typedef struct {
    uint32_t version, persist, timeout_ms, is_socket;
} ConnectParameters;

typedef struct {
    uint32_t version;
    struct {
        uint32_t version, count, clocks[256][3];
    } clock_sets;
    struct {
        uint32_t version, slowdown, shutdown;
    } thermal;
    struct {
        uint32_t version, current, standard, enforced, least, most; /* W */
    } power;
    struct {
        uint32_t version;
        char brand[TEXT], name[TEXT], bus_id[TEXT], serial[TEXT], uuid[TEXT], vbios[TEXT], inforom[TEXT];
        uint32_t device_id, subsystem_id;
        char driver[TEXT];
        uint32_t virtualization;
    } identifiers;
    struct {
        uint32_t version, bar1_total, total, used, free; /* MiB */
    } memory;
    struct {
        uint32_t version, persistence, mig, confidential;
    } settings;
} Attributes;

typedef struct {
    Entity entity, parent;
    char gpu_uuid[128];
    uint32_t nvml_index, instance, compute_instance, profile, slices;
} HierarchyEntry;

typedef struct {
    uint32_t version, count;
    HierarchyEntry entries[MAX_HIERARCHY];
} Hierarchy;

typedef struct {
    uint32_t system, health;
    char message[1024];
    uint32_t code;
    Entity entity;
} Incident;

typedef struct {
    uint32_t version, overall, count;
    Incident incidents[MAX_INCIDENTS];
} HealthResponse;

typedef struct {
    uint32_t version;
    Id group;
    uint32_t systems;
    int64_t every_us;
    double age_s;
} HealthParameters;

typedef struct {
    double least, most, mean;
} RealSummary;
typedef struct {
    int64_t least, most, mean;
} LongSummary;
typedef struct {
    int32_t least, most, mean;
} IntSummary;

typedef struct {
    uint32_t pid;
    double sm, memory;
} ProcessUse;

/* What a job used of one GPU; in the summary, of all. */
typedef struct {
    uint32_t gpu;
    int64_t energy_mj;
    RealSummary power_w;
    LongSummary pcie_rx, pcie_tx;
    int64_t pcie_replays, began_us, ended_us;
    IntSummary sm_percent, memory_percent;
    uint32_t ecc_corrected, ecc_uncorrected;
    IntSummary memory_mhz, sm_mhz;
    int32_t xids;
    int64_t xid_us[10];
    int32_t compute_processes;
    ProcessUse compute[16];
    int32_t graphics_processes;
    ProcessUse graphics[16];
    int64_t memory_used;
    int64_t held_power, held_thermal, held_reliability, held_board, held_low_use, held_sync_boost;
    uint32_t health, incidents;
    uint32_t systems[10][2];
} Usage;

typedef struct {
    uint32_t version;
    int32_t gpus;
    Usage summary;
    Usage each[MAX_DEVICES];
} JobInfo;

typedef struct {
    uint32_t version;
    char text[512];
} VersionInfo;

typedef struct {
    uint16_t major, minor;
    uint32_t count;
    uint16_t fields[64];
} MetricGroup;

typedef struct {
    uint32_t version, unused, gpu, count;
    MetricGroup groups[10];
} MetricGroups;

typedef struct {
    uint16_t id;
    char type;
    uint8_t size;
    char tag[48];
    int32_t scope; /* 0: of the whole engine, 1: of an entity */
    char short_name[10], unit[4];
    int16_t width;
} FieldMeta;

/* They return 0 to go on. */
typedef int (*EntityCallback)(uint32_t kind, uint32_t id, FieldValue1 *values, int count, void *data);
typedef int (*GpuCallback)(uint32_t gpu, FieldValue1 *values, int count, void *data);

_Static_assert(sizeof(FieldValue1) == 4120 && sizeof(FieldValue2) == 4128, "field values");
_Static_assert(sizeof(GroupInfo) == GROUP_INFO_SIZE(MAX_MEMBERS) && GROUP_INFO_SIZE(OLD_MEMBERS) == 776, "groups");
_Static_assert(sizeof(FieldGroupInfo) == 528 && sizeof(AllFieldGroups) == 33800, "field groups");
_Static_assert(sizeof(Attributes) == 5220, "attributes");
_Static_assert(sizeof(HierarchyEntry) == 164 && sizeof(Hierarchy) == 73480, "hierarchy");
_Static_assert(sizeof(Incident) == 1044 && sizeof(HealthResponse) == 66828 && sizeof(HealthParameters) == 40, "health");
_Static_assert(sizeof(Usage) == 1184 && sizeof(JobInfo) == 39080, "jobs");
_Static_assert(sizeof(VersionInfo) == 516 && sizeof(MetricGroups) == 1376 && sizeof(FieldMeta) == 72, "others");

#endif
