/* Watches and the values that they keep: sampling, retention, and what a client reads.
 *
 * As in the real engine, of all intervals asked for the shortest counts, the age is cut to whole seconds and is at
 * least one, and most values have the time of before the driver was asked, while the lock is free: a client can read
 * past a value that comes later with an older time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dcgm.h"

typedef struct Wish { /* of one client */
    Client *client;
    int64_t every_us, age_us;
    struct Wish *next;
} Wish;

typedef struct Watch {
    Entity entity;
    int id;
    const Field *field;
    Wish *wishes;            /* none: to be removed */
    int64_t every_us, age_us; /* the shortest, the longest */
    int64_t due_us;
    Profile *profile; /* of the profiling fields: what the next value is compared with */
    Kept *values;
    int first, count, room;
    struct Watch *next;
} Watch;

enum { LOST_EVERY_US = 12000 }; /* a lost GPU gives blanks so fast */

pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t cycle_lock = PTHREAD_MUTEX_INITIALIZER; /* one cycle at a time */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, cycled = PTHREAD_COND_INITIALIZER;
static pthread_t sampler, listener;
static int running, is_manual;
static unsigned long long begun, done; /* cycles */
static Watch *watches;

static Watch *find(Entity entity, int id) {
    for (Watch *w = watches; w; w = w->next)
        if (w->id == id && w->entity.id == entity.id && w->entity.kind == entity.kind) return w;
    return NULL;
}

static void settle(Watch *w) {
    w->every_us = INT64_MAX;
    w->age_us = 1000000;
    for (Wish *wish = w->wishes; wish; wish = wish->next) {
        if (wish->every_us < w->every_us) w->every_us = wish->every_us;
        if (wish->age_us > w->age_us) w->age_us = wish->age_us;
    }
}

Status watch(Client *client, Entity entity, int id, int64_t every_us, double age_s, int keep) {
    Watch *w = find(entity, id);
    if (!w) {
        w = calloc(1, sizeof *w);
        if (!w) return MEMORY;
        *w = (Watch){.entity = entity, .id = id, .field = field_of(id), .next = watches};
        watches = w;
    }
    if (!w->wishes) {
        w->due_us = w->count = w->first = 0;
        free_profile(w->profile);
        w->profile = NULL;
    }
    Wish *wish = w->wishes;
    while (wish && wish->client != client) wish = wish->next;
    if (!wish) {
        wish = calloc(1, sizeof *wish);
        if (!wish) return MEMORY;
        wish->next = w->wishes;
        w->wishes = wish;
    }
    wish->client = client;
    wish->every_us = every_us;
    wish->age_us = (int64_t)age_s * 1000000;
    if (keep * every_us > wish->age_us) wish->age_us = keep * every_us;
    settle(w);
    if (w->due_us > now_us() + w->every_us) w->due_us = 0;
    pthread_cond_signal(&wake);
    return OK;
}

static void drop_wish(Watch *w, Client *client) {
    for (Wish **at = &w->wishes; *at;) {
        Wish *wish = *at;
        if (wish->client == client) {
            *at = wish->next;
            free(wish);
        } else at = &wish->next;
    }
    settle(w);
}

void unwatch(Client *client, Entity entity, int id) {
    Watch *w = find(entity, id);
    if (w) drop_wish(w, client);
}

void end_watches(Client *client) {
    for (Watch *w = watches; w; w = w->next) drop_wish(w, client);
}

/* ---- sampling ---- */

static void keep_value(Watch *w, Kept value) {
    int64_t oldest = now_us() - w->age_us;
    while (w->count && w->values[w->first].ts < oldest) w->first++, w->count--;
    if (w->first + w->count == w->room) {
        if (w->count) memmove(w->values, w->values + w->first, (size_t)w->count * sizeof *w->values);
        w->first = 0;
        if (w->count >= w->room / 2) {
            int room = w->room ? 2 * w->room : 64;
            Kept *more = realloc(w->values, (size_t)room * sizeof *more);
            if (!more) return;
            w->values = more;
            w->room = room;
        }
    }
    w->values[w->first + w->count++] = value;
}

void keep_xid(int gpu, int64_t ts, int64_t code) {
    Watch *w = find((Entity){FE_GPU, (uint32_t)gpu}, 230);
    if (w && w->wishes) keep_value(w, (Kept){.type = 'i', .ts = ts, .i64 = code});
}

static int64_t every(const Watch *w) {
    int lost = gpu_of(w->entity)->condition == GPU_LOST;
    return lost && w->every_us > LOST_EVERY_US ? LOST_EVERY_US : w->every_us;
}

static void end(Watch *w, Kept value, int64_t before) {
    if (!value.ts) value.ts = before;
    if (w->wishes) keep_value(w, value);
}

static int is_due(const Watch *w) { return w->wishes && w->id != 230 && now_us() >= w->due_us; }

/* The values of a watch, and of all others of its GPU that are due and come in the same call of the driver. The lock,
 * which is held, is free while the driver is asked. */
static void sample(Watch *w) {
    Watch *together[MAX_FIELDS];
    const Field *fields[MAX_FIELDS];
    Kept values[MAX_FIELDS];
    int count = 0;
    int64_t before = now_us();
    int answers = gpu_of(w->entity)->condition == GPU_OK;
    for (Watch *one = w; one && count < MAX_FIELDS; one = is_batched(w->field) && answers ? one->next : NULL) {
        if (one != w && (one->entity.kind != w->entity.kind || one->entity.id != w->entity.id ||
                         !is_batched(one->field) || !is_due(one)))
            continue;
        one->due_us = before + every(one); /* no grid: an engine that is late does not hurry */
        values[count] = blank(one->id, BLANK);
        fields[count] = one->field;
        together[count++] = one;
    }
    if (answers) {
        pthread_mutex_unlock(&engine_lock);
        if (is_batched(w->field)) read_batch(count, fields, w->entity, values);
        else values[0] = read_field(w->field, w->entity, (int64_t)begun, &w->profile);
        pthread_mutex_lock(&engine_lock);
    }
    for (int i = 0; i < count; i++) end(together[i], values[i], before);
}

static void remove_unwatched(void) {
    for (Watch **at = &watches; *at;) {
        Watch *w = *at;
        if (w->wishes) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        free_profile(w->profile);
        free(w->values);
        free(w);
    }
}

/* What is due; returns when the next one is. Watches are removed only here. */
static int64_t cycle(void) {
    pthread_mutex_lock(&cycle_lock);
    pthread_mutex_lock(&engine_lock);
    begun++;
    remove_unwatched();
    int64_t next = now_us() + 1000000;
    for (Watch *w = watches; w; w = w->next) {
        if (is_due(w)) sample(w);
        if (w->wishes && w->id != 230 && w->due_us < next) next = w->due_us;
    }
    done = begun;
    pthread_cond_broadcast(&cycled);
    pthread_mutex_unlock(&engine_lock);
    pthread_mutex_unlock(&cycle_lock);
    return next;
}

static void *keep_sampling(void *unused) {
    (void)unused;
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        int64_t next = cycle();
        struct timespec until = {.tv_sec = next / 1000000, .tv_nsec = next % 1000000 * 1000};
        pthread_mutex_lock(&engine_lock);
        if (now_us() < next && running) pthread_cond_timedwait(&wake, &engine_lock, &until);
        pthread_mutex_unlock(&engine_lock);
    }
    return NULL;
}

static void *keep_listening(void *unused) {
    (void)unused;
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
        int gpu;
        int64_t code;
        if (!wait_for_xid(&gpu, &code)) continue;
        pthread_mutex_lock(&engine_lock);
        keep_xid(gpu, now_us(), code);
        pthread_mutex_unlock(&engine_lock);
    }
    return NULL;
}

/* Sample what is due; in an engine that samples by itself, wait for a whole cycle if asked to. Without the lock. */
void update(int wait) {
    if (is_manual) {
        cycle();
        return;
    }
    pthread_mutex_lock(&engine_lock);
    unsigned long long enough = begun + 1;
    pthread_cond_signal(&wake);
    while (wait && done < enough && running) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 1000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&cycled, &engine_lock, &until);
        pthread_cond_signal(&wake);
    }
    pthread_mutex_unlock(&engine_lock);
}

Status start_engine(int manual) {
    Status status = running ? OK : open_driver();
    if (status != OK || running) return status;
    running = 1;
    is_manual = manual;
    if (pthread_create(&listener, NULL, keep_listening, NULL)) return MEMORY;
    return manual || !pthread_create(&sampler, NULL, keep_sampling, NULL) ? OK : MEMORY;
}

void stop_engine(void) {
    if (!running) return;
    __atomic_store_n(&running, 0, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&wake);
    pthread_join(listener, NULL);
    if (!is_manual) pthread_join(sampler, NULL);
    cycle(); /* nothing is watched any more: frees what was */
    close_driver();
}

/* ---- reading ---- */

Series kept(Entity entity, int id, int64_t since, int64_t until) {
    const Watch *w = find(entity, id);
    if (!w || !w->wishes) return (Series){.count = -1};
    const Kept *values = w->values + w->first;
    int last = w->count;
    while (last && values[last - 1].ts > until) last--;
    int first = last;
    while (first && values[first - 1].ts >= since) first--;
    return (Series){values + first, last - first};
}
