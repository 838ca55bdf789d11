/* GPM, the profiling metrics of Hopper and newer: what a GPU did between two samples, which the client holds.
 *
 * All follow from the time in which the GPU was busy: each is a share of it.
 */
#include <stdlib.h>

#include "nvml.h"

struct GpmSample {
    int gpu, instance; /* -1: the whole GPU */
    double t, busy_s;
};

typedef struct {
    unsigned id;
    double busy;      /* the value of a GPU that is busy all the time: %, or bytes/s */
    int rate, nvlink; /* nvlink: of each link, and of whole GPUs only */
} GpmKind;

static const GpmKind KINDS[] = {
    {1, 100, 0, 0},      /* engine */
    {2, 96, 0, 0},       /* SMs */
    {3, 48, 0, 0},       /* warps */
    {4, 12, 0, 0},       /* integer */
    {5, 62, 0, 0},       /* tensor: all, DFMA, HMMA, DMMA, IMMA */
    {6, 0, 0, 0},
    {7, 60, 0, 0},
    {8, 0, 0, 0},
    {9, 2, 0, 0},
    {10, 55, 0, 0},      /* memory */
    {11, 3, 0, 0},       /* FP64, FP32, FP16 */
    {12, 21, 0, 0},
    {13, 8, 0, 0},
    {20, 9e9, 1, 0},     /* PCIe sent, received: as field values 197 and 198 */
    {21, 25e9, 1, 0},
    {60, 6.2328e9, 1, 1}, /* NVLink received, sent: as field values 139 and 138, and 6 % of protocol */
    {61, 6.36e9, 1, 1},
};

static int has_gpm(const Call *call) { return call->fleet->model->architecture >= 9; }

API Status nvmlGpmQueryDeviceSupport(Handle *device, GpmSupport *out) {
    ENTER(device);
    REQUIRE(out && out->version == 1, INVALID_ARGUMENT);
    out->is_supported = (unsigned)has_gpm(&call);
    return OK;
}

API Status nvmlGpmSampleAlloc(GpmSample **out) {
    ENTER_SYSTEM();
    REQUIRE(out, INVALID_ARGUMENT);
    *out = calloc(1, sizeof **out);
    return *out ? OK : UNKNOWN;
}

API Status nvmlGpmSampleFree(GpmSample *sample) {
    ENTER_SYSTEM();
    REQUIRE(sample, INVALID_ARGUMENT);
    free(sample);
    return OK;
}

static Status sample_now(const Call *call, int instance, GpmSample *out) {
    REQUIRE(has_gpm(call), NOT_SUPPORTED);
    REQUIRE(out, INVALID_ARGUMENT);
    *out = (GpmSample){call->gpu->index, instance, call->t, busy_seconds(call->gpu, call->t)};
    return OK;
}

API Status nvmlGpmSampleGet(Handle *device, GpmSample *out) {
    ENTER(device);
    WHOLE_GPU();
    return sample_now(&call, -1, out);
}

/* Of a GPU and the number of its GPU instance. */
API Status nvmlGpmMigSampleGet(Handle *device, unsigned instance, GpmSample *out) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(instance > 0 && instance <= (unsigned)call.gpu->n_instances, INVALID_ARGUMENT);
    return sample_now(&call, (int)instance - 1, out);
}

static Status read_metric(const Call *call, const GpmSample *sample, double share, GpmMetric *out) {
    const GpmKind *kind = NULL;
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS && !kind; i++)
        if (KINDS[i].id == out->id) kind = &KINDS[i];
    const Gpu *gpu = &call->fleet->gpus[sample->gpu];
    REQUIRE(kind && !(kind->nvlink && sample->instance >= 0), NOT_SUPPORTED);
    out->value = kind->busy * share;
    if (kind->nvlink) out->value *= call->fleet->model->links;
    if (kind->rate) out->value /= 1 << 20; /* MiB/s */
    if (kind->rate && sample->instance >= 0) out->value *= gpu->instances[sample->instance].slices / 7.0;
    return OK;
}

API Status nvmlGpmMetricsGet(GpmMetrics *out) {
    ENTER_SYSTEM();
    REQUIRE(out && out->version == 1 && out->first && out->second, INVALID_ARGUMENT);
    const GpmSample *first = out->first, *second = out->second;
    double seconds = second->t - first->t;
    REQUIRE(first->gpu == second->gpu && first->instance == second->instance && seconds > 0, INVALID_ARGUMENT);
    for (unsigned i = 0; i < out->n; i++) {
        out->metrics[i].status = read_metric(&call, second, (second->busy_s - first->busy_s) / seconds, &out->metrics[i]);
        out->metrics[i].short_name = out->metrics[i].long_name = out->metrics[i].unit = "";
    }
    return OK;
}
