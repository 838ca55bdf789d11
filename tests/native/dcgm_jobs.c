/* Jobs: what GPUs used between two times, out of the values that were kept.
 *
 * As in the real engine, a summary over several GPUs has the sum of the mean powers, blanks where it has no figure,
 * and violation times as the counters give them.
 */
#include <stdlib.h>
#include <string.h>

#include "dcgm.h"

enum { MAX_JOBS = 64 };

typedef struct {
    char name[TEXT]; /* empty: the place is free */
    Members group;
    int64_t began, ended; /* ended 0: it runs */
} Job;
static Job jobs[MAX_JOBS];

static const uint16_t FIELDS[] = {100, 101, 155, 156, 203, 204, 202, 230, 240, 241, 242, 243, 244, 245, 252, 310, 311};
enum { N_FIELDS = sizeof FIELDS / sizeof *FIELDS };

static Job *find(const char *name) {
    for (int i = 0; i < MAX_JOBS; i++)
        if (!strcmp(jobs[i].name, name)) return &jobs[i];
    return NULL;
}

/* Least, most, mean, and how much it grew; of integers and of numbers. */
typedef struct {
    int count;
    double least, most, mean, first, last;
} Summary;

static Summary summary_of(const Job *job, Entity entity, int field) {
    Series series = kept(entity, field, job->began, job->ended ? job->ended : INT64_MAX);
    Summary s = {0};
    for (int i = 0; i < series.count; i++) {
        const Kept *value = &series.values[i];
        double number = value->type == 'd' ? value->dbl : (double)value->i64;
        if (number >= (value->type == 'd' ? BLANK_DOUBLE : (double)BLANK_INT64)) continue;
        if (!s.count || number < s.least) s.least = number;
        if (!s.count || number > s.most) s.most = number;
        if (!s.count) s.first = number;
        s.last = number;
        s.mean += number;
        s.count++;
    }
    if (s.count) s.mean /= s.count;
    return s;
}

static int64_t grown(const Job *job, Entity entity, int field) {
    Summary s = summary_of(job, entity, field);
    return s.count ? (int64_t)(s.last - s.first) : BLANK_INT64;
}

/* A count of 32 bits, which has a blank of its own. */
static uint32_t count_of(const Job *job, Entity entity, int field) {
    int64_t count = grown(job, entity, field);
    return count < BLANK_INT32 ? (uint32_t)count : BLANK_INT32;
}

static IntSummary integers(const Job *job, Entity entity, int field) {
    Summary s = summary_of(job, entity, field);
    if (!s.count) return (IntSummary){BLANK_INT32, BLANK_INT32, BLANK_INT32};
    return (IntSummary){(int32_t)s.least, (int32_t)s.most, (int32_t)s.mean};
}

static void clear(Usage *out, const Job *job) {
    const LongSummary none = {BLANK_INT64, BLANK_INT64, BLANK_INT64};
    const IntSummary no_integers = {BLANK_INT32, BLANK_INT32, BLANK_INT32};
    *out = (Usage){.pcie_rx = none, .pcie_tx = none, .sm_percent = no_integers, .memory_percent = no_integers};
    out->memory_mhz = out->sm_mhz = no_integers;
    out->power_w = (RealSummary){BLANK_DOUBLE, BLANK_DOUBLE, 0};
    out->began_us = job->began;
    out->ended_us = job->ended ? job->ended : now_us();
}

static void fill(Usage *out, const Job *job, Entity entity) {
    clear(out, job);
    Summary power = summary_of(job, entity, 155);
    Summary memory = summary_of(job, entity, 252);
    out->gpu = entity.id;
    out->energy_mj = grown(job, entity, 156);
    if (power.count) out->power_w = (RealSummary){power.least, power.most, power.mean};
    else out->power_w.mean = BLANK_DOUBLE;
    out->sm_percent = integers(job, entity, 203);
    out->memory_percent = integers(job, entity, 204);
    out->sm_mhz = integers(job, entity, 100);
    out->memory_mhz = integers(job, entity, 101);
    out->pcie_replays = grown(job, entity, 202);
    out->held_power = grown(job, entity, 240);
    out->held_thermal = grown(job, entity, 241);
    out->held_sync_boost = grown(job, entity, 242);
    out->held_board = grown(job, entity, 243);
    out->held_low_use = grown(job, entity, 244);
    out->held_reliability = grown(job, entity, 245);
    out->memory_used = memory.count ? (int64_t)memory.most << 20 : BLANK_INT64;
    out->ecc_corrected = count_of(job, entity, 310);
    out->ecc_uncorrected = count_of(job, entity, 311);
    Series xids = kept(entity, 230, job->began, out->ended_us);
    for (int i = 0; i < xids.count; i++)
        if (out->xids < 10) out->xid_us[out->xids++] = xids.values[i].ts;
}

static void stats(const Job *job, JobInfo *out) {
    clear(&out->summary, job);
    for (int i = 0; i < job->group.count && out->gpus < MAX_DEVICES; i++) {
        if (job->group.members[i].kind != FE_GPU) continue;
        Usage *each = &out->each[out->gpus++];
        fill(each, job, job->group.members[i]);
        if (each->energy_mj < BLANK_INT64) out->summary.energy_mj += each->energy_mj;
        if (each->power_w.mean < BLANK_DOUBLE) out->summary.power_w.mean += each->power_w.mean;
        if (each->held_power < BLANK_INT64) out->summary.held_power += each->held_power;
        if (each->held_thermal < BLANK_INT64) out->summary.held_thermal += each->held_thermal;
        if (each->ecc_corrected < BLANK_INT32) out->summary.ecc_corrected += each->ecc_corrected;
        if (each->ecc_uncorrected < BLANK_INT32) out->summary.ecc_uncorrected += each->ecc_uncorrected;
        for (int k = 0; k < each->xids && out->summary.xids < 10; k++)
            out->summary.xid_us[out->summary.xids++] = each->xid_us[k];
    }
}

static void forget(Job *job) {
    free(job->group.members);
    *job = (Job){0};
}

static Status watch_job(Client *client, const Request *request) {
    Members group;
    Status status = members_of(request->group, &group);
    for (int i = 0; status == OK && i < group.count; i++)
        for (int k = 0; status == OK && k < N_FIELDS; k++)
            status = watch(client, group.members[i], FIELDS[k], request->every_us, request->age_s, request->keep);
    free(group.members);
    return status;
}

static Status start_job(const Request *request) {
    if (find(request->text)) return DUPLICATE_KEY;
    Job *job = find("");
    if (!job) return MAX_LIMIT;
    Status status = members_of(request->group, &job->group);
    if (status != OK) return status;
    memcpy(job->name, request->text, TEXT);
    job->began = now_us();
    return OK;
}

Status serve_jobs(Client *client, const Request *request, Buffer *answer) {
    Job *job = *request->text ? find(request->text) : NULL;
    switch (request->operation) {
    case JOB_WATCH: return watch_job(client, request);
    case JOB_START: return start_job(request);
    case JOB_REMOVE_ALL:
        for (int i = 0; i < MAX_JOBS; i++) forget(&jobs[i]);
        return OK;
    default: break;
    }
    if (!job) return NO_DATA;
    if (request->operation == JOB_STATS) stats(job, extend(answer, sizeof(JobInfo)));
    else if (request->operation == JOB_REMOVE) forget(job);
    else if (!job->ended) job->ended = now_us();
    return OK;
}
