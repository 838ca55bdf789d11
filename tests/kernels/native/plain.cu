// Kernels of the tests: what they do is plain to see.
typedef unsigned long long word;

extern "C" __global__ void twice(const float *in, float *out, word n)
{
    const word stride = (word)gridDim.x * blockDim.x;
    for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) out[i] = FACTOR * in[i];
}

extern "C" __global__ void increased(unsigned *counters, word n)
{
    for (word i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&counters[i], 1u);
}

extern "C" __global__ void cleared(unsigned *counters, word n)
{
    for (word i = threadIdx.x; i < n; i += blockDim.x) counters[i] = 0u;
}
