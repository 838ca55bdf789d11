// What runs beside copies: rows that came over the link are kept and summed, activations are encoded and decoded.
// Every word is compared with what its place says. A block whose number is above that of the parts of the work begins
// with the first part again, so that the time of a launch follows from its blocks.
#include "faults.cuh"
#include "place.cuh"

#define BLOCK 256
#define EACH 8  // rows of a sum

#ifndef WIDE
#define WIDE 64  // of a row, in units of 16 bytes
#endif

__device__ __forceinline__ uint4 words_at(word stream, unsigned long long i) {
    i *= 4;
    return uint4{word_at(stream, i), word_at(stream, i + 1), word_at(stream, i + 2), word_at(stream, i + 3)};
}

__device__ __forceinline__ uint4 plus(uint4 a, uint4 b) {
    return uint4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__device__ __forceinline__ word differ(uint4 a, uint4 b) {
    return (a.x != b.x) + (a.y != b.y) + (a.z != b.z) + (a.w != b.w);
}

__device__ __forceinline__ void tell(unsigned long long* faults, word compared, word wrong, unsigned long long place) {
    report(faults, compared, wrong, wrong ? place : ~0ull);
}

// One of `rows` rows that arrived: the 16 bytes of this thread, of row `at` + its number, are what stands in row `first`
// + its number of the table. `to`: where they are copied to, or nothing.
__device__ __forceinline__ void arrive(const uint4* from, uint4* to, word stream, unsigned long long* faults, word at,
                                       word first, word rows, const word* slot) {
    const word thread = blockIdx.x * BLOCK + threadIdx.x;
    const word row = thread / WIDE, column = thread % WIDE;
    const unsigned long long place = (unsigned long long)(first + row) * WIDE + column;
    word wrong = 0;
    if (row < rows) {
        const uint4 value = from[(unsigned long long)(at + row) * WIDE + column];
        wrong = differ(value, words_at(stream, place));
        if (to) to[(unsigned long long)slot[first + row] * WIDE + column] = value;
    }
    tell(faults, row < rows ? 4 : 0, wrong, 4 * place);
}

// Moves the staged rows first .. first + rows - 1 to their slots of the cache; they stand from `staged` on.
extern "C" __global__ void keep(const uint4* __restrict__ stage, const word* __restrict__ slot,
                                uint4* __restrict__ cache, word stream, unsigned long long* faults, word staged,
                                word first, word rows) {
    arrive(stage, cache, stream, faults, staged, first, rows, slot);
}

// Looks at the rows at .. at + rows - 1, which are the rows from `first` on of the table.
extern "C" __global__ void meet(const uint4* __restrict__ held, word stream, unsigned long long* faults, word at,
                                word first, word rows) {
    arrive(held, nullptr, stream, faults, at, first, rows, nullptr);
}

// Sums EACH rows at a time, modulo 2^32: sum s is of the rows place[EACH s] .. place[EACH s + EACH - 1], which are the
// rows name[...] of the table. Of the sums first .. first + sums - 1, one for each WIDE threads.
extern "C" __global__ void pool(const uint4* __restrict__ rows, const word* __restrict__ place,
                                const word* __restrict__ name, word stream,
                                unsigned long long* faults, word first, word sums) {
    const word thread = blockIdx.x * BLOCK + threadIdx.x;
    const word sum = first + thread / WIDE % sums, column = thread % WIDE;
    uint4 found = {0, 0, 0, 0}, expected = {0, 0, 0, 0};
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        found = plus(found, rows[(unsigned long long)place[sum * EACH + e] * WIDE + column]);
        expected = plus(expected, words_at(stream, (unsigned long long)name[sum * EACH + e] * WIDE + column));
    }
    tell(faults, 4, differ(found, expected), 4ull * (sum * WIDE + column));
}

// -- activations ------------------------------------------------------------------------------------------------------

#ifndef BITS
#define BITS 8  // of a code; 0: the KEPT largest of TOKENS, with their numbers
#endif
#define TOKENS 32
#define KEPT 4
#define CODES (BITS == 0 ? KEPT + 1 : BITS + 1)  // words of TOKENS codes and their scale

#if BITS == 0
#define LEVELS 1.0f
#else
#define LEVELS ((float)(1 << (BITS - 1)))
#endif

// An activation in [-1, 1), by its word.
__device__ __forceinline__ float activation(word bits) { return (float)(int)bits * 4.656612873077393e-10f; }

__device__ __forceinline__ word size_of(word bits) { return (int)bits < 0 ? 0u - bits : bits; }

// The activations of one channel as CODES words. Codes are round(x / scale * 2^(BITS - 1)), within their range; the
// scale is the largest magnitude, as fp16, and is the last word.
__device__ __forceinline__ void encoded(const word (&x)[TOKENS], word (&code)[CODES]) {
#if BITS == 0
    word taken = 0, numbers = 0;
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
        word best = 0, value = 0, number = 0;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const bool better = !(taken >> t & 1u) && (size_of(x[t]) > best || best == 0);
            if (!better) continue;
            best = size_of(x[t]);
            value = x[t];
            number = t;
        }
        taken |= 1u << number;
        numbers |= number << 5 * k;
        code[k] = value;
    }
    code[KEPT] = numbers;
#else
    float most = 0.0f;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) most = fmaxf(most, fabsf(activation(x[t])));
    const half scale = to_fp16(most);
    const float steps = LEVELS / from_fp16(scale);
#pragma unroll
    for (int w = 0; w < BITS; w++) {
        word packed = 0;
#pragma unroll
        for (int i = 0; i < TOKENS / BITS; i++) {
            const float level = rintf(activation(x[w * (TOKENS / BITS) + i]) * steps);
            const int number = (int)fminf(fmaxf(level, -LEVELS), LEVELS - 1.0f);
            packed |= ((word)number & ((1u << BITS) - 1u)) << BITS * i;
        }
        code[w] = packed;
    }
    code[BITS] = scale;
#endif
}

// How many activations differ from what their codes say by more than half a step, or, of the largest ones, are not the
// same or are larger than one that was kept. The highest code is a step below the scale, and the scale may be rounded
// down by 2^-11 of it.
__device__ __forceinline__ word too_far(const word (&x)[TOKENS], const word (&code)[CODES]) {
    word wrong = 0;
#if BITS == 0
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        word value = 0;
#pragma unroll
        for (int k = 0; k < KEPT; k++)
            if ((code[KEPT] >> 5 * k & 31u) == (word)t) value = code[k];
        wrong += value != x[t] && (value != 0 || size_of(x[t]) > size_of(code[KEPT - 1]));
    }
#else
    const float step = from_fp16((half)code[BITS]) / LEVELS;
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const word bits = code[t / (TOKENS / BITS)] >> BITS * (t % (TOKENS / BITS));
        const int number = (int)(bits << (32 - BITS)) >> (32 - BITS);
        const float most = (float)number == LEVELS - 1.0f ? step + step * LEVELS / 2048.0f : 0.5f * step;
        wrong += !(fabsf((float)number * step - activation(x[t])) <= most * 1.000001f);
    }
#endif
    return wrong;
}

// The channel of a thread: its first activation and its first code are `activations` and `codes`. Both lie with the
// channels next to each other, for TOKENS tokens or CODES words, and so for `tensors` of them.
__device__ __forceinline__ void place_of(word channels, word tensors, unsigned long long* activations,
                                         unsigned long long* codes) {
    const word thread = blockIdx.x % (channels / BLOCK * tensors) * BLOCK + threadIdx.x;
    const word tensor = thread / channels, channel = thread % channels;
    *activations = (unsigned long long)tensor * TOKENS * channels + channel;
    *codes = (unsigned long long)tensor * CODES * channels + channel;
}

extern "C" __global__ void encode(const word* __restrict__ x, word* __restrict__ code, unsigned long long from,
                                  unsigned long long to, word channels, word tensors) {
    unsigned long long activations, codes;
    place_of(channels, tensors, &activations, &codes);
    word bits[TOKENS], made[CODES];
#pragma unroll
    for (int t = 0; t < TOKENS; t++) bits[t] = x[from + activations + (unsigned long long)t * channels];
    encoded(bits, made);
#pragma unroll
    for (int w = 0; w < CODES; w++) code[to + codes + (unsigned long long)w * channels] = made[w];
}

// Decodes what came back, and compares it with the activations that stood at `from` of the stream.
extern "C" __global__ void decode(const word* __restrict__ code, word stream,
                                  unsigned long long* faults, unsigned long long from, unsigned long long at,
                                  word channels, word tensors) {
    unsigned long long activations, codes;
    place_of(channels, tensors, &activations, &codes);
    word bits[TOKENS], made[CODES], back[CODES];
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        bits[t] = word_at(stream, from + activations + (unsigned long long)t * channels);
    encoded(bits, made);
    word wrong = 0;
#pragma unroll
    for (int w = 0; w < CODES; w++) {
        back[w] = code[at + codes + (unsigned long long)w * channels];
        wrong += back[w] != made[w];
    }
    wrong += too_far(bits, back);
    tell(faults, CODES + TOKENS, wrong, at + codes);
}
