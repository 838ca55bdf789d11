/* How a field is read: a row of the table in dcgm_fields.c. */
#ifndef WHORL_DCGM_FIELDS_H
#define WHORL_DCGM_FIELDS_H

#include "dcgm.h"

/* How a value is asked for: which function of the driver, with what beside the device. */
typedef enum {
    NONE,     /* there is no such value here */
    UINT,     /* function(device, &value) */
    UINT_OF,  /* function(device, which, &value) */
    ULL,      /* function(device, &value), 64 bits */
    ERRORS,   /* function(device, kind, counter, &value), 64 bits; which is kind + 2 * counter */
    PART_OF,  /* function(device, array of numbers of 32 bits); which one */
    SPREAD,   /* function(device, &a, &b, &c, &d); which one */
    MEMORY_2, /* bytes: total, reserved, free, used; which one */
    STRING,   /* function(device, text, size) */
    OTHER,    /* the bus, the driver and the UUID, which the engine knows */
    BATCHED,  /* nvmlDeviceGetFieldValues of field `which` */
    GPM,      /* metric `which`, the mean since the last time it was asked for */
    EVENT     /* kept when it happens */
} Way;

struct Field {
    uint16_t id;
    char type;
    const char *tag;
    Way way;
    int which;
    double scale; /* of what the driver says */
    const char *function;
};

#endif
