// The four of STREAM (McCalpin), in fp64: 16 bytes a load, UNROLL independent ones before the first store.
#define UNROLL 4

extern "C" __global__ void stream_copy(const double2* __restrict__ a, double2* __restrict__ out) {
    const size_t first = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    double2 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) v[u] = a[first + u * blockDim.x];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) out[first + u * blockDim.x] = v[u];
}

extern "C" __global__ void stream_scale(const double2* __restrict__ a, double2* __restrict__ out, double scalar) {
    const size_t first = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    double2 v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) v[u] = a[first + u * blockDim.x];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u].x = scalar * v[u].x;
        v[u].y = scalar * v[u].y;
        out[first + u * blockDim.x] = v[u];
    }
}

extern "C" __global__ void stream_add(const double2* __restrict__ a, const double2* __restrict__ b,
                                      double2* __restrict__ out) {
    const size_t first = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    double2 v[UNROLL];
    double2 w[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u] = a[first + u * blockDim.x];
        w[u] = b[first + u * blockDim.x];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u].x = v[u].x + w[u].x;
        v[u].y = v[u].y + w[u].y;
        out[first + u * blockDim.x] = v[u];
    }
}

// out = a + scalar b, each element rounded once.
extern "C" __global__ void stream_triad(const double2* __restrict__ a, const double2* __restrict__ b,
                                        double2* __restrict__ out, double scalar) {
    const size_t first = (size_t)blockIdx.x * blockDim.x * UNROLL + threadIdx.x;
    double2 v[UNROLL];
    double2 w[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u] = a[first + u * blockDim.x];
        w[u] = b[first + u * blockDim.x];
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        v[u].x = fma(scalar, w[u].x, v[u].x);
        v[u].y = fma(scalar, w[u].y, v[u].y);
        out[first + u * blockDim.x] = v[u];
    }
}
