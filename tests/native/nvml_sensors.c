/* What the sensors and counters make of the physics: when they read, over which window, and how they are wrong. */
#include "nvml.h"

/* The latest instant up to t at which the power sensor published; a stuck one does, always the same. */
double sensor_tick(const Call *call, double t) {
    const Statement *s = active(call->fleet, call->gpu, EVERY, t);
    double every = s ? s->number[0] : call->fleet->model->sensor_s, offset = call->gpu->sensor_offset;
    return floor((t - offset) / every + 1e-6) * every + offset;
}

/* Mean of the true power over the window before the last tick, through the sensor's faults, mW. */
static double reported_mw(const Call *call, double t, double window) {
    const Statement *s = active(call->fleet, call->gpu, STUCK, t);
    double tick = sensor_tick(call, s ? fmax(s->from, 0) : t);
    double mw = (energy_j(call->gpu, tick) - energy_j(call->gpu, tick - window)) / window * 1e3;
    if ((s = active(call->fleet, call->gpu, STEP, t))) mw = round(mw / s->number[0]) * s->number[0];
    return round(fmax(mw, 0));
}

double instant_mw(const Call *call, double t) { return reported_mw(call, t, call->fleet->model->window_s); }

double average_mw(const Call *call, double t) { return reported_mw(call, t, 1); }

/* The energy counter changes every 10 ms. */
double energy_tick(double t) { return floor(t / 0.010 + 1e-6) * 0.010; }

/* When the counters of the driver began: at its last loading. */
double counters_began(const Call *call) {
    double began = 0;
    for (int i = 0; i < call->fleet->n_statements; i++) {
        const Statement *s = &call->fleet->statements[i];
        if (s->word == RELOAD && s->from <= call->t && s->from > began) began = s->from;
    }
    return began;
}

unsigned long long energy_mj(const Call *call) {
    double began = counters_began(call), tick = energy_tick(call->t);
    for (int i = 0; i < call->fleet->n_statements; i++) {
        const Statement *s = &call->fleet->statements[i];
        int ours = s->word == RESET && s->gpus >> call->gpu->index & 1;
        if (ours && s->from <= call->t && s->from > began) began = s->from;
    }
    return (unsigned long long)fmax(0, round((energy_j(call->gpu, tick) - energy_j(call->gpu, began)) * 1e3));
}

unsigned long long held_ns(const Call *call, Hold hold) {
    double began = counters_began(call);
    return (unsigned long long)((held_seconds(call->gpu, hold, call->t) - held_seconds(call->gpu, hold, began)) * 1e9);
}

/* Bytes moved since the driver was loaded, by a GPU that moves so many while it is busy. */
unsigned long long traffic(const Call *call, double bytes_per_busy_second) {
    double began = counters_began(call);
    double seconds = busy_seconds(call->gpu, call->t) - busy_seconds(call->gpu, began);
    return (unsigned long long)(seconds * bytes_per_busy_second);
}

/* Share of the last quarter of a second in which a kernel ran, %; a new value every 50 ms. */
unsigned busy_percent(const Call *call, double t) {
    double tick = floor(t / 0.05 + 1e-6) * 0.05;
    return (unsigned)lround((busy_seconds(call->gpu, tick) - busy_seconds(call->gpu, tick - 0.25)) / 0.25 * 100);
}

/* Why the clock is where it is, as the interface's bits. */
unsigned long long event_reasons(const Call *call) {
    const Span *span = span_at(call->gpu, call->t);
    if (!busy(call->gpu, span, call->t)) return 0x1;
    unsigned long long bits = span->locked_mhz && (int)span->locked_mhz < call->fleet->model->max_mhz ? 0x2 : 0;
    if (span->held[HELD_POWER]) bits |= 0x4;
    if (span->held[HELD_SOFTWARE]) bits |= 0x20;
    if (span->held[HELD_THERMAL]) bits |= 0x8 | 0x40;
    if (span->held[HELD_BRAKE]) bits |= 0x8 | 0x80;
    return bits;
}
