// Compares every element of a result with what it must be. The reference repeats: row r, column c of the result must
// lie within tolerance[(r % p) * q + c % q] of values[the same].
//
// ELEMENT says what an element is: 0 fp64, 1 fp32, 2 fp16, 3 bf16, 4 fp8 (E4M3), 5 int32, 6 uint32, 7 int64, 8 uint64.
// The small formats are decoded from their bits, so that no header of a toolkit is needed. Everything is compared in
// fp64, which holds each of them exactly (64-bit integers below 2^53).
//
// found[0]: how many are outside their tolerance. found[1]: index of the first of them. found[2]: bits of the largest
// error in tolerances, as fp64 (never negative, so that bits order as values do). found[3]: how many were compared.

#ifndef ELEMENT
#define ELEMENT 1
#endif

typedef unsigned long long word;

__device__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }

__device__ double not_a_number() { return __longlong_as_double(0x7ff8000000000000ll); }

__device__ double power_of_two(int exponent) { return ldexp(1.0, exponent); }

// An IEEE-like format of `fraction` bits under `exponent` bits; fp16 is (10, 5), bf16 is (7, 8).
__device__ double decoded(unsigned bits, int fraction, int exponent)
{
    const int bias = (1 << (exponent - 1)) - 1;
    const unsigned low = bits & ((1u << fraction) - 1u);
    const int e = (int)((bits >> fraction) & ((1u << exponent) - 1u));
    const double sign = ((bits >> (fraction + exponent)) & 1u) ? -1.0 : 1.0;
    if (e == (1 << exponent) - 1) return low ? not_a_number() : sign * infinity();
    if (e == 0) return sign * (double)low * power_of_two(1 - bias - fraction);
    return sign * (double)(low + (1u << fraction)) * power_of_two(e - bias - fraction);
}

// E4M3 has no infinity: its largest code alone is NaN.
__device__ double decoded_e4m3(unsigned bits)
{
    if ((bits & 0x7fu) == 0x7fu) return not_a_number();
    const double sign = (bits & 0x80u) ? -1.0 : 1.0;
    const int e = (int)((bits >> 3) & 15u);
    const unsigned low = bits & 7u;
    return e == 0 ? sign * (double)low * power_of_two(-9) : sign * (double)(low + 8u) * power_of_two(e - 10);
}

__device__ double element(const void *result, word i)
{
#if ELEMENT == 0
    return ((const double *)result)[i];
#elif ELEMENT == 1
    return (double)((const float *)result)[i];
#elif ELEMENT == 2
    return decoded(((const unsigned short *)result)[i], 10, 5);
#elif ELEMENT == 3
    return decoded(((const unsigned short *)result)[i], 7, 8);
#elif ELEMENT == 4
    return decoded_e4m3(((const unsigned char *)result)[i]);
#elif ELEMENT == 5
    return (double)((const int *)result)[i];
#elif ELEMENT == 6
    return (double)((const unsigned *)result)[i];
#elif ELEMENT == 7
    return (double)((const long long *)result)[i];
#else
    return (double)((const word *)result)[i];
#endif
}

// Error in tolerances. What is not a number, or infinite, is infinitely wrong, unless just that is expected.
__device__ double error_in_tolerances(double is, double should, double tolerance)
{
    if (is == should) return 0.0;
    if (is != is && should != should) return 0.0;
    const double error = fabs(is - should);
    if (!(error < infinity()) || !(tolerance > 0.0)) return infinity();
    return error / tolerance;
}

extern "C" __global__ void compare(const void *result, const double *values, const double *tolerance, word count,
                                   word columns, unsigned p, unsigned q, word *found)
{
    const word stride = (word)gridDim.x * blockDim.x;
    word wrong = 0, first = ~0ull, compared = 0;
    double worst = 0.0;
    for (word i = (word)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {
        const word row = i / columns, column = i - row * columns;
        const word at = (row % p) * q + column % q;
        const double off = error_in_tolerances(element(result, i), values[at], tolerance[at]);
        if (!(off <= 1.0)) {
            ++wrong;
            if (i < first) first = i;
        }
        if (off > worst) worst = off;
        ++compared;
    }
    if (compared) atomicAdd(&found[3], compared);
    if (wrong) {
        atomicAdd(&found[0], wrong);
        atomicMin(&found[1], first);
    }
    if (worst > 0.0) atomicMax(&found[2], (word)__double_as_longlong(worst));
}
