/* The control file: what the simulated fleet is, and what goes wrong with it and when.
 *
 * Its path is in WHORL_NVML_CONTROL (unset: no driver; an empty file: eight H100 without faults). Every process
 * looks at it again at most 10 ms after it changed, so that a test steers collectors that are running. A mistake in
 * it is printed on stderr, and every call returns UNKNOWN (999) until it is mended.
 *
 * One statement a line; '#' begins a comment:
 *
 *     [from TIME] [until TIME] [gpu N[,N...]] WORD [ARGUMENT...]
 *
 * TIME is Unix seconds (fractions allowed). A statement acts in [from, until), by default always; without `gpu` it
 * is about every GPU. Of two that act at once the later line counts.
 *
 *     gpus N                    how many (default 8, at most 64)
 *     model NAME                V100, A100, H100 (default) or H200
 *     node N                    makes the UUIDs and serial numbers differ from those of other nodes
 *     now TIME                  the library's clock stands still at TIME
 *     root yes|no               whether settings may be changed (default: is the process root's?)
 *     mig PROFILE...            MIG mode, with these instances: 3g.40gb 1g.10gb
 *
 *     load PERIOD DUTY          busy for DUTY of every PERIOD seconds (default 10 0.7; duty 0 idle, 1 busy)
 *     limit MILLIWATT           power limit
 *     locked MHZ                highest clock allowed; 0 for no such limit
 *     slowdown KIND             clock halved by: thermal, brake (both hardware) or software (thermal)
 *         These four make the energy of the past: give `from` to change them while clients are running.
 *
 *     stuck                     power readings stay what they were at `from`
 *     step MILLIWATT            power readings are multiples of this
 *     every SECONDS             power readings change this often
 *     module                    instant power is answered for scope 1 (module) only
 *     ecc CORRECTED UNCORRECTED [CORRECTED UNCORRECTED]     counts of memory errors, volatile and of the GPU's life
 *     remapped CORRECTED UNCORRECTED [FAILED [PENDING]]
 *     sram                      so many errors of on-chip memory that their threshold is exceeded
 *     recovery ACTION           what the driver asks for to recover the GPU
 *     inforom                   it is corrupted
 *     image VERSION             of the InfoROM
 *     vbios VERSION
 *     retired CORRECTED UNCORRECTED PENDING     pages of memory, before Ampere
 *     links CRC REPLAYS RECOVERIES  errors of each NVLink; before Hopper counted for all links together
 *     pcie GENERATION WIDTH     of the link at present
 *     fabric STATE STATUS       what the GPU knows of its fabric
 *     answer FIELD TYPE VALUE   the field is answered with this NVML value type and these 8 bytes, as a whole number
 *     vgpu LICENSED             the GPU is a vGPU, with a licence (1) or without (0)
 *     process PID               computes on the GPU; may be said several times
 *     deaf                      settings are accepted, and stay what they were
 *
 *     lost [stale]              GPU_IS_LOST. After `until` it is back; with `stale` only for handles got since then
 *     deny STATUS [NAME...]     STATUS (a number) for all functions of the GPU, or these (nvmlDeviceGetTemperatureV) or fields (field:82),
 *                               or for a whole call that asks for a field (with:186)
 *     latency US [FUNCTION]     each call takes this much longer
 *     hang [FUNCTION]           calls do not return until the statement is gone or its time over
 *
 *     from TIME xid CODE        an XID event
 *     from TIME reset           the energy counter begins at 0
 *     from TIME reload [SECONDS [STATUS]]   the driver is loaded again: all counters begin at 0, and calls return
 *                               STATUS (default UNINITIALIZED) until nvmlInit, which for SECONDS fails (not loaded)
 *
 * Calls that change a setting are appended as statements (as root), so that they too are seen by every process.
 * Beside the file, FILE.calls gets a line "PID FUNCTION" at the first call of each function by a process and at
 * every call of one that would change something.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

typedef struct {
    const char *name;
    int least, most; /* arguments */
    int numeric;     /* how many of the first are numbers */
} Spelling;

static const Spelling SPELLINGS[WORDS] = {
    [GPUS] = {"gpus", 1, 1, 1},
    [MODEL] = {"model", 1, 1, 0},
    [NODE] = {"node", 1, 1, 1},
    [ROOT] = {"root", 1, 1, 0},
    [NOW] = {"now", 1, 1, 1},
    [MIG] = {"mig", 1, MAX_INSTANCES, 0},
    [LOAD] = {"load", 2, 2, 2},
    [LIMIT] = {"limit", 1, 1, 1},
    [LOCKED] = {"locked", 1, 1, 1},
    [SLOWDOWN] = {"slowdown", 1, 1, 0},
    [STUCK] = {"stuck", 0, 0, 0},
    [STEP] = {"step", 1, 1, 1},
    [EVERY] = {"every", 1, 1, 1},
    [MODULE] = {"module", 0, 0, 0},
    [ECC] = {"ecc", 2, 4, 4},
    [REMAPPED] = {"remapped", 2, 4, 4},
    [VGPU] = {"vgpu", 1, 1, 1},
    [PROCESS] = {"process", 1, 1, 1},
    [DEAF] = {"deaf", 0, 0, 0},
    [LINKS] = {"links", 3, 3, 3},
    [PCIE] = {"pcie", 2, 2, 2},
    [SRAM] = {"sram", 0, 0, 0},
    [INFOROM] = {"inforom", 0, 0, 0},
    [IMAGE] = {"image", 1, 1, 0},
    [VBIOS] = {"vbios", 1, 1, 0},
    [RETIRED] = {"retired", 3, 3, 3},
    [FABRIC] = {"fabric", 2, 2, 2},
    [RECOVERY] = {"recovery", 1, 1, 1},
    [ANSWER] = {"answer", 3, 3, 3},
    [LOST] = {"lost", 0, 1, 0},
    [DENY] = {"deny", 1, MAX_WORDS, 1},
    [LATENCY] = {"latency", 1, 2, 1},
    [HANG] = {"hang", 0, 1, 0},
    [XID] = {"xid", 1, 1, 1},
    [RESET] = {"reset", 0, 0, 0},
    [RELOAD] = {"reload", 0, 2, 2},
};

static const char *parse_number(const char *text, double *number) {
    char *end;
    *number = strtod(text, &end);
    return end == text || *end ? "expected a number" : NULL;
}

static const char *parse_gpus(char *text, uint64_t *gpus) {
    *gpus = 0;
    for (char *rest, *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        double n;
        if (parse_number(item, &n) || n < 0 || n >= MAX_GPUS) return "expected numbers of GPUs";
        *gpus |= 1ULL << (int)n;
    }
    return NULL;
}

/* What is wrong with a line, or NULL; an empty line gives a statement whose word is WORDS. */
static const char *parse_line(char *line, Statement *out) {
    *out = (Statement){.word = WORDS, .from = -INFINITY, .until = INFINITY, .gpus = ~0ULL};
    line[strcspn(line, "#\n")] = 0;
    char *rest, *token = strtok_r(line, " \t", &rest);
    const char *wrong;
    for (; token; token = strtok_r(NULL, " \t", &rest)) {
        int from = !strcmp(token, "from"), until = !strcmp(token, "until"), gpu = !strcmp(token, "gpu");
        if (!from && !until && !gpu) break;
        token = strtok_r(NULL, " \t", &rest);
        if (!token) return "ends too early";
        double unix_s = 0;
        if ((wrong = gpu ? parse_gpus(token, &out->gpus) : parse_number(token, &unix_s))) return wrong;
        if (from) out->from = unix_s - EPOCH;
        if (until) out->until = unix_s - EPOCH;
    }
    if (!token) return out->from > -INFINITY || out->until < INFINITY || ~out->gpus ? "has no word" : NULL;
    int word = 0;
    while (word < WORDS && strcmp(token, SPELLINGS[word].name)) word++;
    if (word == WORDS) return "begins with an unknown word";
    out->word = (Word)word;
    while ((token = strtok_r(NULL, " \t", &rest))) {
        if (out->n == SPELLINGS[word].most || out->n == MAX_WORDS) return "has too many arguments";
        if (strlen(token) >= sizeof out->text[0]) return "has too long an argument";
        strcpy(out->text[out->n], token);
        wrong = parse_number(token, &out->number[out->n]);
        if (wrong && out->n < SPELLINGS[word].numeric) return wrong;
        out->n++;
    }
    if (out->n < SPELLINGS[word].least) return "has too few arguments";
    if (out->word >= XID && out->from == -INFINITY) return "needs 'from'";
    return NULL;
}

/* What is wrong with a statement's values, or NULL. */
static const char *doubt(const Statement *s) {
    if (s->word == MODEL && !find_model(s->text[0])) return "names an unknown model";
    if (s->word == GPUS && (s->number[0] < 0 || s->number[0] > MAX_GPUS)) return "has too many GPUs";
    if (s->word == LOAD && (s->number[0] <= 0 || s->number[1] < 0 || s->number[1] > 1)) return "has no such load";
    if (s->word == SLOWDOWN && strcmp(s->text[0], "thermal") && strcmp(s->text[0], "brake") &&
        strcmp(s->text[0], "software"))
        return "knows thermal, brake and software";
    if (s->word == LOST && s->n && strcmp(s->text[0], "stale")) return "knows only 'stale'";
    if (s->word == ROOT && strcmp(s->text[0], "yes") && strcmp(s->text[0], "no")) return "knows yes and no";
    if ((s->word == STEP || s->word == EVERY) && s->number[0] <= 0) return "needs a positive number";
    return NULL;
}

static void read_file(Fleet *fleet, const char *path) {
    FILE *file = fopen(path, "re");
    char line[512];
    if (!file) {
        fprintf(stderr, "simulated NVML: cannot read the control file %s\n", path);
        fleet->broken = 1;
        return;
    }
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        Statement *next = &fleet->statements[fleet->n_statements];
        const char *wrong = fleet->n_statements == MAX_STATEMENTS - 1 ? "is one too many" : parse_line(line, next);
        if (!wrong && next->word != WORDS) {
            wrong = doubt(next);
            fleet->n_statements++;
        }
        if (wrong) {
            fprintf(stderr, "simulated NVML: %s, line %d %s\n", path, number, wrong);
            fleet->broken = 1;
        }
    }
    fclose(file);
}

static double first_number(const Fleet *fleet, Word word, double otherwise) {
    const Statement *found = statement_of(fleet, -1, word, INFINITY);
    return found ? found->number[0] : otherwise;
}

static Fleet *read_fleet(const char *path) {
    Fleet *fleet = calloc(1, sizeof *fleet);
    if (!fleet) abort();
    if (path) read_file(fleet, path);
    if (fleet->broken) fleet->n_statements = 0;
    const Statement *model = statement_of(fleet, -1, MODEL, INFINITY);
    fleet->model = find_model(model ? model->text[0] : "H100");
    fleet->n_gpus = (int)first_number(fleet, GPUS, 8);
    fleet->node = (int)first_number(fleet, NODE, 0);
    fleet->stands_still = statement_of(fleet, -1, NOW, INFINITY) != NULL;
    fleet->still = first_number(fleet, NOW, EPOCH) - EPOCH;
    for (int i = 0; i < fleet->n_gpus; i++) build_gpu(fleet, i);
    return fleet;
}

/* The last statement of a word that acts on a GPU (-1: on any) at a time (INFINITY: at any), or NULL. */
const Statement *statement_of(const Fleet *fleet, int gpu, Word word, double t) {
    for (int i = fleet->n_statements - 1; i >= 0; i--) {
        const Statement *s = &fleet->statements[i];
        if (s->word == word && (gpu < 0 || s->gpus >> gpu & 1) && (t == INFINITY || (t >= s->from && t < s->until)))
            return s;
    }
    return NULL;
}

/* The same for a GPU, quick where no statement says the word of it. */
const Statement *active(const Fleet *fleet, const Gpu *gpu, Word word, double t) {
    return gpu->words >> word & 1 ? statement_of(fleet, gpu->index, word, t) : NULL;
}

const char *control_path(void) {
    const char *path = getenv("WHORL_NVML_CONTROL");
    return path && *path ? path : NULL;
}

double clock_now(const Fleet *fleet) {
    if (fleet->stands_still) return fleet->still;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)(t.tv_sec - (time_t)EPOCH) + (double)t.tv_nsec * 1e-9;
}

static long long looked_ms = -1000; /* when the control file was last looked at */

/* The fleet as the control file describes it now. One that was replaced is never freed: a call may still read it. */
const Fleet *current_fleet(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static const Fleet *fleet;
    static struct stat seen;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long now_ms = t.tv_sec * 1000LL + t.tv_nsec / 1000000;
    const Fleet *present = __atomic_load_n(&fleet, __ATOMIC_ACQUIRE);
    if (present && now_ms - __atomic_load_n(&looked_ms, __ATOMIC_RELAXED) < 2) return present;
    pthread_mutex_lock(&mutex);
    __atomic_store_n(&looked_ms, now_ms, __ATOMIC_RELAXED);
    const char *path = control_path();
    struct stat found = {0};
    if (path) (void)!stat(path, &found);
    int changed = found.st_ino != seen.st_ino || found.st_size != seen.st_size ||
                  found.st_mtim.tv_sec != seen.st_mtim.tv_sec || found.st_mtim.tv_nsec != seen.st_mtim.tv_nsec;
    if (!fleet || changed) {
        seen = found;
        __atomic_store_n(&fleet, read_fleet(path), __ATOMIC_RELEASE);
    }
    present = fleet;
    pthread_mutex_unlock(&mutex);
    return present;
}

/* Append a setting to the control file: from now on, for this GPU. */
Status keep_setting(const Call *call, const char *word, double value) {
    char line[96];
    const char *path = control_path();
    if (!path) return NOT_SUPPORTED; /* nowhere to keep it */
    int length = snprintf(line, sizeof line, "\nfrom %.6f gpu %d %s %.0f\n", call->t + EPOCH, call->gpu->index, word,
                          value);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return NO_PERMISSION;
    int written = write(file, line, (size_t)length) == length;
    close(file);
    __atomic_store_n(&looked_ms, -1000, __ATOMIC_RELAXED); /* who set it sees it at once */
    return written ? OK : UNKNOWN;
}
