/* Event sets: XIDs at the times that the control file names. */
#include <stdlib.h>

#include "nvml.h"

enum { EVENT_XID = 8, AT_ONCE = MAX_STATEMENTS };

typedef struct {
    double seen;      /* events up to this time were given out, or came before the set */
    uint64_t gpus;    /* registered for XIDs */
    Statement given[AT_ONCE]; /* statements of exactly that time that were given out: their places in the file change */
    int n_given;
    uint64_t waiting; /* GPUs that the latest statement still has an event for */
    unsigned long long xid;
    Handle *handles[MAX_GPUS];
} EventSet;


API Status nvmlEventSetCreate(EventSet **out) {
    ENTER_SYSTEM();
    REQUIRE(out, INVALID_ARGUMENT);
    *out = calloc(1, sizeof **out);
    if (!*out) return UNKNOWN;
    (*out)->seen = call.t;
    (*out)->n_given = AT_ONCE; /* what happened at this very time came before the set */
    return OK;
}

API Status nvmlEventSetFree(EventSet *set) {
    COUNT();
    free(set);
    return OK;
}

API Status nvmlDeviceRegisterEvents(Handle *device, unsigned long long types, EventSet *set) {
    ENTER(device);
    WHOLE_GPU();
    REQUIRE(set, INVALID_ARGUMENT);
    REQUIRE(!(types & ~(unsigned long long)EVENT_XID), NOT_SUPPORTED);
    set->gpus |= 1ULL << call.gpu->index;
    set->handles[call.gpu->index] = device;
    return OK;
}

/* Whether a statement of the time `seen` was given out. */
static int was_given(const EventSet *set, const Statement *s) {
    if (set->n_given == AT_ONCE) return 1;
    for (int i = 0; i < set->n_given; i++)
        if (set->given[i].gpus == s->gpus && set->given[i].number[0] == s->number[0]) return 1;
    return 0;
}

/* The earliest XID that the set has not seen; one of several GPUs comes once for each. Returns 0 when there is none. */
static int next_xid(const Call *call, EventSet *set, Event *out) {
    if (!set->waiting) {
        const Statement *next = NULL;
        for (int i = 0; i < call->fleet->n_statements; i++) {
            const Statement *s = &call->fleet->statements[i];
            if (s->word != XID || s->from > call->t || s->from < set->seen || !(s->gpus & set->gpus)) continue;
            if (s->from == set->seen && was_given(set, s)) continue;
            if (!next || s->from < next->from) next = s;
        }
        if (!next) return 0;
        if (next->from > set->seen) set->n_given = 0;
        set->given[set->n_given++] = *next;
        set->seen = next->from;
        set->waiting = next->gpus & set->gpus;
        set->xid = (unsigned long long)next->number[0];
    }
    int gpu = __builtin_ctzll(set->waiting);
    set->waiting &= set->waiting - 1;
    *out = (Event){set->handles[gpu], EVENT_XID, set->xid, ~0u, ~0u};
    return 1;
}

API Status nvmlEventSetWait_v2(EventSet *set, Event *out, unsigned timeout_ms) {
    ENTER_SYSTEM();
    REQUIRE(set && out, INVALID_ARGUMENT);
    for (double waited_ms = 0;; waited_ms += 2) {
        if (next_xid(&call, set, out)) return OK;
        if (waited_ms >= timeout_ms) return TIMEOUT;
        pause_us(2000);
        Status status = enter_system(__func__, &call);
        if (status != OK) return status;
    }
}

API Status nvmlEventSetWait(EventSet *set, Event *out, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
