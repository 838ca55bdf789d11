/* The physics in closed form: power, its integral, temperature, clocks; all functions of the time.
 *
 *     power = idle + (busy - idle) * square wave + ripple
 *
 * The ripple is two sines whose integral is written beside them. The die is one thermal resistance and capacity;
 * under a periodic load its course is periodic, and what a change of settings leaves decays exponentially.
 */
#include "nvml.h"

static const double WARM_UP_S = 25;
static const struct {
    double watt, hertz;
} RIPPLE[] = {{2.4, 7.3}, {1.1, 0.83}};

const Span *span_at(const Gpu *gpu, double t) {
    int i = gpu->n_spans - 1;
    while (i > 0 && gpu->spans[i].began > t) i--;
    return &gpu->spans[i];
}

/* Where in its period the load is, s. */
static double in_period(const Gpu *gpu, const Span *span, double t) {
    double x = t + gpu->phase;
    return x - floor(x / span->period) * span->period;
}

int busy(const Gpu *gpu, const Span *span, double t) { return in_period(gpu, span, t) < span->busy_for; }

static double square_integral(const Gpu *gpu, const Span *span, double t) {
    double x = t + gpu->phase, periods = floor(x / span->period);
    return periods * span->busy_for + fmin(x - periods * span->period, span->busy_for);
}

static double ripple(const Gpu *gpu, double t) {
    double sum = 0;
    for (int i = 0; i < 2; i++) sum += RIPPLE[i].watt * cos(2 * M_PI * RIPPLE[i].hertz * t + gpu->phase);
    return sum;
}

static double ripple_integral(const Gpu *gpu, double t) {
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        double omega = 2 * M_PI * RIPPLE[i].hertz;
        sum += RIPPLE[i].watt / omega * sin(omega * t + gpu->phase);
    }
    return sum;
}

/* Busy seconds since the span began. */
static double busy_in(const Gpu *gpu, const Span *span, double t) {
    return square_integral(gpu, span, t) - square_integral(gpu, span, span->began);
}

/* Joules since the span began. */
static double energy_in(const Gpu *gpu, const Span *span, double t) {
    return span->idle_w * (t - span->began) + (span->busy_w - span->idle_w) * busy_in(gpu, span, t) +
           ripple_integral(gpu, t) - ripple_integral(gpu, span->began);
}

/* Carry the integrals of a span on to the next, which begins at t. */
void integrate(const Gpu *gpu, const Span *span, double t, Span *next) {
    next->busy_s = span->busy_s + busy_in(gpu, span, t);
    next->energy_j = span->energy_j + energy_in(gpu, span, t);
    for (int i = 0; i < HOLDS; i++) next->held_s[i] = span->held_s[i] + (span->held[i] ? busy_in(gpu, span, t) : 0);
}

double busy_seconds(const Gpu *gpu, double t) {
    const Span *span = span_at(gpu, t);
    return span->busy_s + busy_in(gpu, span, t);
}

/* Seconds in which the clock was held down for a reason: the busy time of the spans that have it. */
double held_seconds(const Gpu *gpu, Hold hold, double t) {
    const Span *span = span_at(gpu, t);
    return span->held_s[hold] + (span->held[hold] ? busy_in(gpu, span, t) : 0);
}

double power_w(const Gpu *gpu, double t) {
    const Span *span = span_at(gpu, t);
    return (busy(gpu, span, t) ? span->busy_w : span->idle_w) + ripple(gpu, t);
}

double energy_j(const Gpu *gpu, double t) {
    const Span *span = span_at(gpu, t);
    return span->energy_j + energy_in(gpu, span, t);
}

/* The die above the inlet air, K, by a span's settings. */
double kelvin_above_inlet(const Gpu *gpu, const Span *span, double t) {
    double high = span->busy_w * gpu->kelvin_per_w, low = span->idle_w * gpu->kelvin_per_w;
    double warms = exp(-span->busy_for / WARM_UP_S), cools = exp(-(span->period - span->busy_for) / WARM_UP_S);
    double at_start = (low * (1 - cools) + high * (1 - warms) * cools) / (1 - warms * cools);
    double at_end = high - (high - at_start) * warms, r = in_period(gpu, span, t);
    double course = r < span->busy_for ? high - (high - at_start) * exp(-r / WARM_UP_S)
                                       : low + (at_end - low) * exp(-(r - span->busy_for) / WARM_UP_S);
    return course + span->kelvin_above * exp(-(t - span->began) / WARM_UP_S);
}

double celsius(const Gpu *gpu, double t) { return gpu->inlet_c + kelvin_above_inlet(gpu, span_at(gpu, t), t); }

int sm_mhz(const Call *call) {
    const Span *span = span_at(call->gpu, call->t);
    return busy(call->gpu, span, call->t) ? span->busy_mhz : call->fleet->model->min_mhz;
}

/* For tests: the true power at a Unix time; the time in which the GPU was busy, and the energy, since EPOCH. */
API double simulated_nvml_power_w(unsigned gpu, double unix_s) {
    const Fleet *fleet = current_fleet();
    return gpu < (unsigned)fleet->n_gpus ? power_w(&fleet->gpus[gpu], unix_s - EPOCH) : NAN;
}

API double simulated_nvml_busy_s(unsigned gpu, double unix_s) {
    const Fleet *fleet = current_fleet();
    return gpu < (unsigned)fleet->n_gpus ? busy_seconds(&fleet->gpus[gpu], unix_s - EPOCH) : NAN;
}

API double simulated_nvml_energy_j(unsigned gpu, double unix_s) {
    const Fleet *fleet = current_fleet();
    return gpu < (unsigned)fleet->n_gpus ? energy_j(&fleet->gpus[gpu], unix_s - EPOCH) : NAN;
}
