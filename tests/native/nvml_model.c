/* The products, and what one GPU of a product is: chip-to-chip spread, identity, and its time cut into spans. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

const Model MODELS[] = {
    {.name = "V100", .product = "Tesla V100-SXM2-32GB", .architecture = 5, .major = 7, .minor = 0,
     .device_id = 0x1DB510DE, .idle_w = 45, .limit_w = 300, .min_limit_w = 150,
     .min_mhz = 135, .max_mhz = 1530, .step_mhz = 8, .memory_mhz = 877,
     .memory_gib = 32, .slowdown_c = 87, .shutdown_c = 90, .links = 6,
     .sensor_s = 0.020, .window_s = 0.010},
    {.name = "A100", .product = "NVIDIA A100-SXM4-80GB", .architecture = 7, .major = 8, .minor = 0,
     .device_id = 0x20B210DE, .idle_w = 60, .limit_w = 400, .min_limit_w = 100,
     .min_mhz = 210, .max_mhz = 1410, .step_mhz = 15, .memory_mhz = 1593,
     .memory_gib = 80, .slowdown_c = 89, .shutdown_c = 92, .links = 12, .max_instances = 7,
     .sensor_s = 0.100, .window_s = 0.025},
    {.name = "H100", .product = "NVIDIA H100 80GB HBM3", .architecture = 9, .major = 9, .minor = 0,
     .device_id = 0x233010DE, .idle_w = 70, .limit_w = 700, .min_limit_w = 200,
     .min_mhz = 345, .max_mhz = 1980, .step_mhz = 15, .memory_mhz = 2619,
     .memory_gib = 80, .slowdown_c = 89, .shutdown_c = 92, .links = 18, .max_instances = 7,
     .sensor_s = 0.100, .window_s = 0.025, .averages = 1},
    {.name = "H200", .product = "NVIDIA H200", .architecture = 9, .major = 9, .minor = 0,
     .device_id = 0x233510DE, .idle_w = 75, .limit_w = 700, .min_limit_w = 200,
     .min_mhz = 345, .max_mhz = 1980, .step_mhz = 15, .memory_mhz = 3201,
     .memory_gib = 141, .slowdown_c = 89, .shutdown_c = 92, .links = 18, .max_instances = 7,
     .sensor_s = 0.100, .window_s = 0.025, .averages = 1},
    {.name = NULL},
};

const Model *find_model(const char *name) {
    for (const Model *model = MODELS; model->name; model++)
        if (!strcasecmp(name, model->name)) return model;
    return NULL;
}

/* A number in [-1, 1) that follows from the GPU and a purpose: multiplicative hashing with the golden ratio. */
static double scatter(int gpu, int purpose) {
    uint64_t x = (uint64_t)(gpu + 1) * 0x9E3779B97F4A7C15ULL + (uint64_t)(purpose + 1) * 0xD1B54A32D192ED03ULL;
    x ^= x >> 32;
    x *= 0x9E3779B97F4A7C15ULL;
    x ^= x >> 29;
    return (double)(x >> 11) / 4503599627370496.0 - 1;
}

/* Power and clock of the busy GPU under its settings: above the limit the clock goes down until the power fits. */
static void settle(const Fleet *fleet, const Gpu *gpu, Span *span) {
    const Model *m = fleet->model;
    const double steepness = 2.2; /* power over idle grows with this power of the clock, as the voltage rises with it */
    double range = gpu->want_w - m->idle_w, clock = m->max_mhz, limit = span->limit_mw / 1e3;
    int slowed = span->held[HELD_SOFTWARE] || span->held[HELD_THERMAL] || span->held[HELD_BRAKE];
    if (slowed) clock /= 2;
    if (span->locked_mhz && span->locked_mhz < clock) clock = span->locked_mhz;
    span->idle_w = m->idle_w;
    span->busy_w = m->idle_w + range * pow(clock / m->max_mhz, steepness);
    if (span->busy_w > limit) {
        span->held[HELD_POWER] = 1;
        span->busy_w = limit;
        clock = m->max_mhz * pow((limit - m->idle_w) / range, 1 / steepness);
    }
    span->busy_mhz = m->min_mhz + (int)fmax(0, floor((clock - m->min_mhz) / m->step_mhz)) * m->step_mhz;
}

/* The span that begins at a time: settings from the statements, integrals from the span before. */
static Span span_from(const Fleet *fleet, const Gpu *gpu, double began) {
    Span span = {.began = began, .period = 10, .busy_for = 7, .limit_mw = (unsigned)(fleet->model->limit_w * 1e3)};
    const Statement *s;
    if ((s = active(fleet, gpu, LOAD, began))) {
        span.period = s->number[0];
        span.busy_for = s->number[0] * s->number[1];
    }
    if ((s = active(fleet, gpu, LIMIT, began))) span.limit_mw = (unsigned)s->number[0];
    if ((s = active(fleet, gpu, LOCKED, began))) span.locked_mhz = (unsigned)s->number[0];
    if ((s = active(fleet, gpu, SLOWDOWN, began)))
        span.held[*s->text[0] == 't' ? HELD_THERMAL : *s->text[0] == 'b' ? HELD_BRAKE : HELD_SOFTWARE] = 1;
    settle(fleet, gpu, &span);
    return span;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void build_spans(Fleet *fleet, Gpu *gpu) {
    double edges[2 * MAX_STATEMENTS];
    int n = 0;
    for (int i = 0; i < fleet->n_statements; i++) {
        const Statement *s = &fleet->statements[i];
        if (s->word < LOAD || s->word > SLOWDOWN || !(s->gpus >> gpu->index & 1)) continue;
        if (s->from > 0) edges[n++] = s->from;
        if (s->until > 0 && s->until < INFINITY) edges[n++] = s->until;
    }
    qsort(edges, (size_t)n, sizeof *edges, ascending);
    gpu->spans[0] = span_from(fleet, gpu, 0);
    gpu->n_spans = 1;
    for (int i = 0; i < n; i++) {
        const Span *last = &gpu->spans[gpu->n_spans - 1];
        if (edges[i] == last->began) continue;
        if (gpu->n_spans == MAX_SPANS) {
            fprintf(stderr, "simulated NVML: more than %d changes of a GPU's settings\n", MAX_SPANS);
            fleet->broken = 1;
            return;
        }
        Span *next = &gpu->spans[gpu->n_spans];
        *next = span_from(fleet, gpu, edges[i]);
        integrate(gpu, last, edges[i], next);
        next->kelvin_above = 0; /* so that the difference is to the new span's own course */
        next->kelvin_above = kelvin_above_inlet(gpu, last, edges[i]) - kelvin_above_inlet(gpu, next, edges[i]);
        gpu->n_spans++;
    }
}

static void build_instances(const Fleet *fleet, Gpu *gpu) {
    const Statement *s = active(fleet, gpu, MIG, INFINITY);
    for (int i = 0; s && i < s->n; i++) {
        Instance *instance = &gpu->instances[gpu->n_instances++];
        const char *memory = strchr(s->text[i], '.');
        snprintf(instance->profile, sizeof instance->profile, "%.15s", s->text[i]);
        snprintf(instance->uuid, sizeof instance->uuid, "MIG-77686f72-6c00-5000-%04x-%06x%06x", i,
                 (unsigned)fleet->node & 0xFFFFFF, (unsigned)gpu->index);
        instance->slices = (unsigned)atoi(s->text[i]);
        instance->memory = memory ? strtoull(memory + 1, NULL, 10) << 30 : 0;
    }
}

void build_gpu(Fleet *fleet, int index) {
    Gpu *gpu = &fleet->gpus[index];
    gpu->index = index;
    for (int i = 0; i < fleet->n_statements; i++)
        if (fleet->statements[i].gpus >> index & 1) gpu->words |= 1ULL << fleet->statements[i].word;
    unsigned node = (unsigned)fleet->node & 0xFFFFFF, bus = 0x10 + 3 * (unsigned)index;
    int unit = fleet->node * MAX_GPUS + index;
    snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-77686f72-6c00-4000-8000-%06x%06x", node, (unsigned)index);
    snprintf(gpu->serial, sizeof gpu->serial, "165%06u%04u", node, (unsigned)index);
    unsigned device_id = fleet->model->device_id;
    gpu->pci = (PciInfo){.bus = bus, .device_id = device_id, .subsystem_id = device_id + 0x10000};
    snprintf(gpu->pci.bus_id_legacy, sizeof gpu->pci.bus_id_legacy, "0000:%02X:00.0", bus & 0xFF);
    snprintf(gpu->pci.bus_id, sizeof gpu->pci.bus_id, "00000000:%02X:00.0", bus & 0xFF);
    gpu->want_w = fleet->model->limit_w * (1.01 + 0.06 * scatter(unit, 0)); /* some reach the limit, some do not */
    gpu->kelvin_per_w = 42 / fleet->model->limit_w * (1 + 0.08 * scatter(unit, 1));
    gpu->inlet_c = 24 + 3 * scatter(unit, 2);
    gpu->phase = 0.37 * index;
    gpu->sensor_offset = 0.0011 * index;
    build_spans(fleet, gpu);
    build_instances(fleet, gpu);
}
