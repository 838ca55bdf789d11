// What lies between the matrix products of a transformer block. Defined by the launch: NUMBER, READ and WRITE
// (half, from_fp16, to_fp16, or float and as_is). All arithmetic is fp32.
#include "intrinsics.cuh"

#define BLOCK 128
#define HEAD 64

__device__ __forceinline__ float as_is(float value) { return value; }

// The sum, or the largest, of one value of each of BLOCK threads, to all of them.
__device__ __forceinline__ float over_block(float value, bool largest) {
    __shared__ float values[BLOCK];
    values[threadIdx.x] = value;
    __syncthreads();
    for (int half_way = BLOCK / 2; half_way > 0; half_way /= 2) {
        if (threadIdx.x < half_way) {
            const float a = values[threadIdx.x];
            const float b = values[threadIdx.x + half_way];
            values[threadIdx.x] = largest ? fmaxf(a, b) : a + b;
        }
        __syncthreads();
    }
    const float result = values[0];
    __syncthreads();
    return result;
}

// One block a row of `width` numbers: (x - mean) / sqrt(variance + 1e-5) * gain + bias.
extern "C" __global__ void layernorm(const NUMBER* __restrict__ in, const float* __restrict__ gain,
                                     const float* __restrict__ bias, NUMBER* __restrict__ out, int width) {
    const NUMBER* row = in + (size_t)blockIdx.x * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) sum += READ(row[i]);
    const float mean = over_block(sum, false) / width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) {
        const float off = READ(row[i]) - mean;
        squares += off * off;
    }
    const float scale = 1.0f / sqrtf(over_block(squares, false) / width + 1e-5f);
    for (int i = threadIdx.x; i < width; i += BLOCK)
        out[(size_t)blockIdx.x * width + i] = WRITE((READ(row[i]) - mean) * scale * gain[i] + bias[i]);
}

// Of each token its query, key and value, (3, heads, HEAD), to matrices by sequence and head: q and k (tokens, HEAD),
// v (HEAD, tokens). Grid: (sequence, head), block y: tokens of it.
extern "C" __global__ void split(const NUMBER* __restrict__ qkv, NUMBER* __restrict__ q, NUMBER* __restrict__ k,
                                 NUMBER* __restrict__ v, int tokens, int heads) {
    const int sequence = blockIdx.x / heads;
    const int head = blockIdx.x % heads;
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK) {
        const int token = i / HEAD;
        const int at = i % HEAD;
        const size_t from = (((size_t)sequence * tokens + token) * 3 * heads + head) * HEAD + at;
        q[matrix + i] = qkv[from];
        k[matrix + i] = qkv[from + (size_t)heads * HEAD];
        v[matrix + (size_t)at * tokens + token] = qkv[from + (size_t)2 * heads * HEAD];
    }
}

// The way back: matrices (tokens, HEAD) by sequence and head to rows of a token.
extern "C" __global__ void merge(const NUMBER* __restrict__ in, NUMBER* __restrict__ out, int tokens, int heads) {
    const int sequence = blockIdx.x / heads;
    const int head = blockIdx.x % heads;
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK)
        out[(((size_t)sequence * tokens + i / HEAD) * heads + head) * HEAD + i % HEAD] = in[matrix + i];
}

// One block a row of `width` scores, in place: exp(scale (s - largest)) by its sum.
extern "C" __global__ void softmax(NUMBER* scores, float scale, int width) {
    NUMBER* row = scores + (size_t)blockIdx.x * width;
    float most = -3.0e38f;
    for (int i = threadIdx.x; i < width; i += BLOCK) most = fmaxf(most, READ(row[i]));
    most = over_block(most, true);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) sum += expf(scale * (READ(row[i]) - most));
    sum = over_block(sum, false);
    for (int i = threadIdx.x; i < width; i += BLOCK) row[i] = WRITE(expf(scale * (READ(row[i]) - most)) / sum);
}

// In place, the form with tanh: x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
extern "C" __global__ void gelu(NUMBER* values) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    const float x = READ(values[i]);
    values[i] = WRITE(0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))));
}

extern "C" __global__ void add(const NUMBER* __restrict__ a, const NUMBER* __restrict__ b, NUMBER* __restrict__ out) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    out[i] = WRITE(READ(a[i]) + READ(b[i]));
}
