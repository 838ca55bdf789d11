/* The part of CUDA's driver library that tells UUIDs, opens contexts and knows events. Device 1's holds zero bytes, device 2 does not answer. */
#include <string.h>

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 40;
    return ordinal < 0 || ordinal > 2 ? 101 : 0;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    for (int i = 0; i < 16; ++i) uuid[i] = (unsigned char)(device == 41 && i % 3 == 0 ? 0 : 0xa0 + i);
    return device == 42 ? 999 : 0;
}

int opened = 0; /* the device that was opened last */
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &opened;
    opened = device;
    return device == 42 ? 46 : 0;
}

/* An event is the address of its status, a stream that of the status which it gives. */
int cuEventQuery(int *event) { return *event; }
int cuEventRecord(int *event, int *stream)
{
    *event = *stream;
    return *stream == 700 ? 700 : 0;
}
