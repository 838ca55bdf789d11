// Makes the contents of buffers on the device (`work.Lanes`, `work.Words`, and `work.Array` where it rises). Defined by
// the launch: BYTES, the size of an element of `lanes`, and NUMBER, the type of one of `rising`.
#include "place.cuh"

#ifndef NUMBER
#define NUMBER unsigned int
#endif
#ifndef BYTES
#define BYTES 4
#endif

#if BYTES == 1
typedef unsigned char Element;
#elif BYTES == 2
typedef unsigned short Element;
#elif BYTES == 4
typedef unsigned int Element;
#else
typedef unsigned long long Element;
#endif

// out[i] = word i of the stream.
extern "C" __global__ void words(unsigned int* out, unsigned long long count, unsigned int stream) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = word_at(stream, i);
}

// A matrix of rows of `length` elements, stored by rows, or by columns where `across`: row r is lane r % lanes of the
// stream, scaled. `table` holds 4096 elements for each of the eight scales.
extern "C" __global__ void lanes(Element* out, unsigned long long count, unsigned int stream,
                                 const Element* __restrict__ table, unsigned long long length, unsigned int lanes,
                                 unsigned int across) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    const unsigned long long rows = count / length;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const unsigned long long high = i / (across ? rows : length);
        const unsigned long long low = i - high * (across ? rows : length);
        const unsigned long long row = across ? low : high;
        const unsigned long long column = across ? high : low;
        const unsigned int place = word_at(stream, ((row % lanes) << 32) + column) & 4095u;
        out[i] = table[(scale_code(row) << 12) + place];
    }
}

// out[i] = period[i % length] + rise * (i / length).
extern "C" __global__ void rising(NUMBER* out, unsigned long long count, const NUMBER* __restrict__ period,
                                  unsigned long long length, unsigned int rise) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride)
        out[i] = period[i % length] + (NUMBER)(rise * (unsigned int)(i / length));
}
