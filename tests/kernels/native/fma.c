/* Multiply-adds of whole arrays, each rounded once: numpy has none. ftz: as `.ftz` of PTX, numbers below the normal
 * range are zeros of their sign. Bit 0, 1 or 2 of `scalars`: a, x or c is one number for all. */
#include <math.h>
#include <stddef.h>

static inline float flushed(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0.0f, value) : value; }

void fma_f32(size_t n, int ftz, int scalars, const float *a, const float *x, const float *c, float *out)
{
    const size_t ia = !(scalars & 1), ix = !(scalars & 2), ic = !(scalars & 4);
    if (ftz)
        for (size_t i = 0; i < n; ++i)
            out[i] = flushed(fmaf(flushed(a[i * ia]), flushed(x[i * ix]), flushed(c[i * ic])));
    else
        for (size_t i = 0; i < n; ++i) out[i] = fmaf(a[i * ia], x[i * ix], c[i * ic]);
}

void fma_f64(size_t n, int ftz, int scalars, const double *a, const double *x, const double *c, double *out)
{
    const size_t ia = !(scalars & 1), ix = !(scalars & 2), ic = !(scalars & 4);
    (void)ftz;
    for (size_t i = 0; i < n; ++i) out[i] = fma(a[i * ia], x[i * ix], c[i * ic]);
}
