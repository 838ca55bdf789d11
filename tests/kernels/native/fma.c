/* Multiply-adds of whole arrays, each rounded once: numpy has none. */
#include <math.h>
#include <stddef.h>

void fma_f32(size_t n, const float *a, const float *x, const float *c, float *out)
{
    for (size_t i = 0; i < n; ++i) out[i] = fmaf(a[i], x[i], c[i]);
}

void fma_f64(size_t n, const double *a, const double *x, const double *c, double *out)
{
    for (size_t i = 0; i < n; ++i) out[i] = fma(a[i], x[i], c[i]);
}
