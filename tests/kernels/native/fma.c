/* Multiply-adds of whole arrays, each rounded once: numpy has none. ftz: as `.ftz` of PTX, numbers below the normal
 * range are zeros of their sign. */
#include <math.h>
#include <stddef.h>

static inline float flushed(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0.0f, value) : value; }

void fma_f32(size_t n, int ftz, const float *a, const float *x, const float *c, float *out)
{
    if (ftz)
        for (size_t i = 0; i < n; ++i) out[i] = flushed(fmaf(flushed(a[i]), flushed(x[i]), flushed(c[i])));
    else
        for (size_t i = 0; i < n; ++i) out[i] = fmaf(a[i], x[i], c[i]);
}

void fma_f64(size_t n, int ftz, const double *a, const double *x, const double *c, double *out)
{
    (void)ftz;
    for (size_t i = 0; i < n; ++i) out[i] = fma(a[i], x[i], c[i]);
}
