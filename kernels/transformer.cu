// What lies between the matrix products of a transformer block, forward and back. Defined by the launch: NUMBER, READ
// and WRITE (half, from_fp16, to_fp16, or float and as_is). All arithmetic is fp32.
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

// Mean of a row, and 1 / sqrt(variance + 1e-5).
__device__ __forceinline__ float2 moments(const NUMBER* row, int width) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) sum += READ(row[i]);
    float2 moment;
    moment.x = over_block(sum, false) / width;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) {
        const float off = READ(row[i]) - moment.x;
        squares += off * off;
    }
    moment.y = 1.0f / sqrtf(over_block(squares, false) / width + 1e-5f);
    return moment;
}

// One block a row of `width` numbers, the first at in[at]: (x - mean) / sqrt(variance + 1e-5) * gain + bias.
extern "C" __global__ void layernorm(const NUMBER* __restrict__ in, unsigned long long at,
                                     const float* __restrict__ gain, const float* __restrict__ bias,
                                     NUMBER* __restrict__ out, int width) {
    const NUMBER* row = in + at + (size_t)blockIdx.x * width;
    const float2 moment = moments(row, width);
    for (int i = threadIdx.x; i < width; i += BLOCK)
        out[(size_t)blockIdx.x * width + i] = WRITE((READ(row[i]) - moment.x) * moment.y * gain[i] + bias[i]);
}

// Slopes of a loss by a row of `in`, from those by what layernorm made of it, plus those that passed it by.
extern "C" __global__ void layernorm_back(const NUMBER* __restrict__ in, const float* __restrict__ gain,
                                          const NUMBER* __restrict__ slopes, const NUMBER* __restrict__ passed,
                                          NUMBER* __restrict__ out, int width) {
    const size_t first = (size_t)blockIdx.x * width;
    const float2 moment = moments(in + first, width);
    float sum = 0.0f;
    float along = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) {
        const float slope = READ(slopes[first + i]) * gain[i];
        sum += slope;
        along += slope * (READ(in[first + i]) - moment.x) * moment.y;
    }
    sum = over_block(sum, false) / width;
    along = over_block(along, false) / width;
    for (int i = threadIdx.x; i < width; i += BLOCK) {
        const float standard = (READ(in[first + i]) - moment.x) * moment.y;
        const float slope = READ(slopes[first + i]) * gain[i];
        out[first + i] = WRITE(READ(passed[first + i]) + moment.y * (slope - sum - standard * along));
    }
}

// Place of number i of the matrix (token, HEAD) of this block's sequence and head, in rows of a token: `parts` (query,
// key and value, or one) times (heads, HEAD). Grid: (sequence, head), block y: tokens of it.
__device__ __forceinline__ size_t in_rows(int i, int tokens, int heads, int parts) {
    const size_t token = (size_t)(blockIdx.x / heads) * tokens + i / HEAD;
    return (token * parts * heads + blockIdx.x % heads) * HEAD + i % HEAD;
}

// Of each token its query, key and value to matrices by sequence and head: q and k (tokens, HEAD), v (HEAD, tokens).
extern "C" __global__ void split(const NUMBER* __restrict__ qkv, NUMBER* __restrict__ q, NUMBER* __restrict__ k,
                                 NUMBER* __restrict__ v, int tokens, int heads) {
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK) {
        const size_t from = in_rows(i, tokens, heads, 3);
        q[matrix + i] = qkv[from];
        k[matrix + i] = qkv[from + (size_t)heads * HEAD];
        v[matrix + (size_t)(i % HEAD) * tokens + i / HEAD] = qkv[from + (size_t)2 * heads * HEAD];
    }
}

// The way back, of slopes: three matrices (tokens, HEAD) by sequence and head to rows of a token.
extern "C" __global__ void split_back(const NUMBER* __restrict__ q, const NUMBER* __restrict__ k,
                                      const NUMBER* __restrict__ v, NUMBER* __restrict__ qkv, int tokens, int heads) {
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK) {
        const size_t to = in_rows(i, tokens, heads, 3);
        qkv[to] = q[matrix + i];
        qkv[to + (size_t)heads * HEAD] = k[matrix + i];
        qkv[to + (size_t)2 * heads * HEAD] = v[matrix + i];
    }
}

// Matrices (tokens, HEAD) by sequence and head to rows of a token.
extern "C" __global__ void merge(const NUMBER* __restrict__ in, NUMBER* __restrict__ out, int tokens, int heads) {
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK)
        out[in_rows(i, tokens, heads, 1)] = in[matrix + i];
}

// The way back.
extern "C" __global__ void merge_back(const NUMBER* __restrict__ in, NUMBER* __restrict__ out, int tokens, int heads) {
    const size_t matrix = (size_t)blockIdx.x * tokens * HEAD;
    for (int i = blockIdx.y * BLOCK + threadIdx.x; i < tokens * HEAD; i += gridDim.y * BLOCK)
        out[matrix + i] = in[in_rows(i, tokens, heads, 1)];
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

// Slopes by the shares of softmax to slopes by its scores, in place.
extern "C" __global__ void softmax_back(const NUMBER* __restrict__ shares, NUMBER* slopes, float scale, int width) {
    const size_t first = (size_t)blockIdx.x * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += BLOCK) sum += READ(shares[first + i]) * READ(slopes[first + i]);
    sum = over_block(sum, false);
    for (int i = threadIdx.x; i < width; i += BLOCK)
        slopes[first + i] = WRITE(scale * READ(shares[first + i]) * (READ(slopes[first + i]) - sum));
}

// tanh(sqrt(2 / pi) (x + 0.044715 x^3)).
__device__ __forceinline__ float bend(float x) { return tanhf(0.7978845608f * (x + 0.044715f * x * x * x)); }

// The form with tanh: x / 2 (1 + bend(x)).
extern "C" __global__ void gelu(const NUMBER* __restrict__ in, NUMBER* __restrict__ out) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    const float x = READ(in[i]);
    out[i] = WRITE(0.5f * x * (1.0f + bend(x)));
}

// Slopes by what gelu made of `in` to slopes by `in`, in place.
extern "C" __global__ void gelu_back(const NUMBER* __restrict__ in, NUMBER* slopes) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    const float x = READ(in[i]);
    const float bent = bend(x);
    const float slope = 0.5f * (1.0f + bent) +
                        0.5f * x * (1.0f - bent * bent) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    slopes[i] = WRITE(READ(slopes[i]) * slope);
}

// Of a from a[at] on, and of out from out[to] on.
extern "C" __global__ void add(const NUMBER* __restrict__ a, unsigned long long at, const NUMBER* __restrict__ b,
                               NUMBER* __restrict__ out, unsigned long long to) {
    const size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    out[to + i] = WRITE(READ(a[at + i]) + READ(b[i]));
}
