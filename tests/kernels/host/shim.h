// What CUDA C needs to be compiled and run by a host's C++ compiler: indices, barriers, atomics, vector types.
// Blocks run one after another; the threads of a block are fibres that change over at each barrier.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct dim3 {
    unsigned int x, y, z;
};
struct alignas(16) double2 {
    double x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};

static dim3 threadIdx, blockIdx, blockDim, gridDim;

// How many multiply-adds the intrinsics have done since the library was loaded; a packed one counts twice.
extern "C" {
unsigned long long multiply_adds = 0;
}

namespace host {

struct Fibre {
    ucontext_t context;
    dim3 index;
    bool ended;
};

static ucontext_t scheduler;
static Fibre* running = nullptr;

inline void barrier() { swapcontext(&running->context, &scheduler); }

template <class... Args>
struct Call {
    void (*function)(Args...);
    void** values;

    template <std::size_t... I>
    void apply(std::index_sequence<I...>) const {
        function(*static_cast<std::remove_cv_t<Args>*>(values[I])...);
    }
    void operator()() const { apply(std::index_sequence_for<Args...>{}); }
};

template <class C>
struct Current {
    static const C* call;
    static void enter() {
        (*call)();
        running->ended = true;
        swapcontext(&running->context, &scheduler);
    }
};
template <class C>
const C* Current<C>::call = nullptr;

// `sizes`: grid and block, three each.
template <class... Args>
void launch(void (*function)(Args...), void** values, const unsigned int* sizes) {
    constexpr std::size_t stack = 64 << 10;
    const Call<Args...> call{function, values};
    Current<Call<Args...>>::call = &call;
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    const std::size_t threads = std::size_t(sizes[3]) * sizes[4] * sizes[5];
    std::vector<Fibre> fibres(threads);
    std::vector<char> stacks(threads * stack);
    for (unsigned int bz = 0; bz < sizes[2]; bz++)
        for (unsigned int by = 0; by < sizes[1]; by++)
            for (unsigned int bx = 0; bx < sizes[0]; bx++) {
                blockIdx = {bx, by, bz};
                for (std::size_t t = 0; t < threads; t++) {
                    Fibre& fibre = fibres[t];
                    getcontext(&fibre.context);
                    fibre.context.uc_stack.ss_sp = &stacks[t * stack];
                    fibre.context.uc_stack.ss_size = stack;
                    fibre.context.uc_link = nullptr;
                    fibre.index = {unsigned(t % sizes[3]), unsigned(t / sizes[3] % sizes[4]),
                                   unsigned(t / sizes[3] / sizes[4])};
                    fibre.ended = false;
                    makecontext(&fibre.context, &Current<Call<Args...>>::enter, 0);
                }
                for (std::size_t ended = 0; ended < threads;) {
                    ended = 0;
                    for (Fibre& fibre : fibres) {
                        if (!fibre.ended) {
                            running = &fibre;
                            threadIdx = fibre.index;
                            swapcontext(&scheduler, &fibre.context);
                        }
                        ended += fibre.ended;
                    }
                }
            }
}

}  // namespace host

inline void __syncthreads() { host::barrier(); }

template <class T>
T atomicAdd(T* address, T value) {
    const T before = *address;
    *address = before + value;
    return before;
}
template <class T>
T atomicMin(T* address, T value) {
    const T before = *address;
    if (value < before) *address = value;
    return before;
}
template <class T>
T atomicMax(T* address, T value) {
    const T before = *address;
    if (value > before) *address = value;
    return before;
}

inline double __longlong_as_double(long long bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline long long __double_as_longlong(double value) {
    long long bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
