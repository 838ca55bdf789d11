/* The part of cuBLAS and cuBLASLt that whorl calls, on the host: written from NVIDIA's documentation of the interface,
 * so that the calls through ctypes meet a real C interface. Matrices are column-major; sums are in double. What real
 * libraries refuse (unknown types, sizes of attributes that do not fit) is refused here too. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14, R_E4M3 = 28 };

struct handle { void *stream, *workspace; size_t size; int mode; };

int open_handles = 0; /* of both libraries, and plans: what is not given back shows here */

static double from_half(uint16_t bits)
{
    int e = bits >> 10 & 31, low = bits & 1023;
    double value = e == 31 ? (low ? NAN : INFINITY) : e ? ldexp(low + 1024, e - 25) : ldexp(low, -24);
    return bits & 0x8000 ? -value : value;
}

static uint16_t to_half(double value) /* to nearest, ties to even */
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    int e;
    frexp(size, &e);
    int step = size == 0 || e - 11 < -24 ? -24 : e - 11;
    long n = lrint(ldexp(size, -step));
    return sign | (uint16_t)(step == -24 ? n : ((step + 25) << 10) + (n - 1024));
}

static double loaded(const void *at, int type, size_t i)
{
    if (type == R_64F) return ((const double *)at)[i];
    if (type == R_32F) return ((const float *)at)[i];
    if (type == R_16F) return from_half(((const uint16_t *)at)[i]);
    if (type == R_16BF) {
        uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    uint8_t bits = ((const uint8_t *)at)[i];
    int e = bits >> 3 & 15, low = bits & 7;
    double value = e ? ldexp(low + 8, e - 10) : ldexp(low, -9);
    return bits & 0x80 ? -value : value;
}

static void stored(void *at, int type, size_t i, double value)
{
    if (type == R_64F) ((double *)at)[i] = value;
    else if (type == R_32F) ((float *)at)[i] = (float)value;
    else if (type == R_16F) ((uint16_t *)at)[i] = to_half(value);
    else {
        float single = (float)value;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

static int product(int ta, int tb, int m, int n, int k, double alpha, const void *a, int of_a, int lda, const void *b,
                   int of_b, int ldb, double beta, void *c, int of_c, int ldc)
{
    if (m < 1 || n < 1 || k < 1 || lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return INVALID_VALUE;
    double *left = malloc(sizeof(double) * m * k), *right = malloc(sizeof(double) * n * k);
    for (int row = 0; row < m; ++row)
        for (int i = 0; i < k; ++i)
            left[(size_t)row * k + i] = loaded(a, of_a, ta ? (size_t)row * lda + i : (size_t)i * lda + row);
    for (int column = 0; column < n; ++column)
        for (int i = 0; i < k; ++i)
            right[(size_t)column * k + i] = loaded(b, of_b, tb ? (size_t)i * ldb + column : (size_t)column * ldb + i);
    for (int column = 0; column < n; ++column)
        for (int row = 0; row < m; ++row) {
            double sum = 0;
            for (int i = 0; i < k; ++i) sum += left[(size_t)row * k + i] * right[(size_t)column * k + i];
            size_t ic = (size_t)column * ldc + row;
            stored(c, of_c, ic, alpha * sum + (beta ? beta * loaded(c, of_c, ic) : 0));
        }
    free(left);
    free(right);
    return SUCCESS;
}

int cublasCreate_v2(struct handle **made) { *made = calloc(1, sizeof **made); ++open_handles; return SUCCESS; }
int cublasDestroy_v2(struct handle *h) { free(h); --open_handles; return SUCCESS; }
int cublasSetStream_v2(struct handle *h, void *stream) { h->stream = stream; h->workspace = 0; return SUCCESS; }
int cublasSetMathMode(struct handle *h, int mode) { h->mode = mode; return SUCCESS; }
int cublasGetVersion_v2(struct handle *h, int *version) { (void)h; *version = 120905; return SUCCESS; }

int cublasSetWorkspace_v2(struct handle *h, void *workspace, size_t size)
{
    if ((uintptr_t)workspace % 256) return INVALID_VALUE;
    h->workspace = workspace;
    h->size = size;
    return SUCCESS;
}

static int compute_fits(int compute, int of_a, int of_b, int of_c)
{
    if (of_a != of_b) return 0;
    if (compute == 70) return of_a == R_64F && of_c == R_64F;
    if (compute == 77) return of_a == R_32F && of_c == R_32F;
    if (compute != 68) return 0;
    return of_a == R_32F ? of_c == R_32F : (of_a == R_16F || of_a == R_16BF) && (of_c == of_a || of_c == R_32F);
}

static double scalar(const void *at, int compute) { return compute == 70 ? *(const double *)at : *(const float *)at; }

int cublasGemmStridedBatchedEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                               int of_a, int lda, long long step_a, const void *b, int of_b, int ldb, long long step_b,
                               const void *beta, void *c, int of_c, int ldc, long long step_c, int batch, int compute,
                               int algorithm)
{
    if (!h->stream || !h->workspace || h->mode != 16 || algorithm != -1) return INVALID_VALUE;
    if (!compute_fits(compute, of_a, of_b, of_c)) return NOT_SUPPORTED;
    static const int sizes[] = {4, 8, 2};
    int wide = of_a == R_16BF ? 2 : sizes[of_a], out = of_c == R_16BF ? 2 : sizes[of_c];
    for (int i = 0; i < batch; ++i) {
        int status = product(ta, tb, m, n, k, scalar(alpha, compute), (const char *)a + i * step_a * wide, of_a, lda,
                             (const char *)b + i * step_b * wide, of_b, ldb, scalar(beta, compute),
                             (char *)c + i * step_c * out, of_c, ldc);
        if (status) return status;
    }
    return SUCCESS;
}

int cublasGemmEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int of_a,
                 int lda, const void *b, int of_b, int ldb, const void *beta, void *c, int of_c, int ldc, int compute,
                 int algorithm)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, of_a, lda, 0, b, of_b, ldb, 0, beta, c, of_c, ldc,
                                      0, 1, compute, algorithm);
}

/* cuBLASLt */

struct layout { int type; uint64_t rows, columns; int64_t ld; };
struct operation { int compute, scale; int32_t ta, tb; };
struct result { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };

#define MAKE(made, count) do { *(made) = calloc(1, sizeof **(made)); open_handles += count; } while (0)

int cublasLtCreate(struct handle **made) { MAKE(made, 1); return SUCCESS; }
int cublasLtDestroy(struct handle *h) { free(h); --open_handles; return SUCCESS; }

int cublasLtMatrixLayoutCreate(struct layout **made, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    MAKE(made, 1);
    **made = (struct layout){type, rows, columns, ld};
    return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(struct layout *l) { free(l); --open_handles; return SUCCESS; }

int cublasLtMatmulDescCreate(struct operation **made, int compute, int scale)
{
    MAKE(made, 1);
    **made = (struct operation){compute, scale, 0, 0};
    return SUCCESS;
}
int cublasLtMatmulDescDestroy(struct operation *o) { free(o); --open_handles; return SUCCESS; }
int cublasLtMatmulDescSetAttribute(struct operation *o, int attribute, const void *value, size_t size)
{
    if (size != 4 || (attribute != 3 && attribute != 4)) return INVALID_VALUE;
    memcpy(attribute == 3 ? &o->ta : &o->tb, value, 4);
    return SUCCESS;
}

int cublasLtMatmulPreferenceCreate(uint64_t **made) { MAKE(made, 1); return SUCCESS; }
int cublasLtMatmulPreferenceDestroy(uint64_t *p) { free(p); --open_handles; return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(uint64_t *p, int attribute, const void *value, size_t size)
{
    if (attribute != 1 || size != 8) return INVALID_VALUE;
    memcpy(p, value, 8);
    return SUCCESS;
}

static int fits(const struct operation *o, const struct layout *a, const struct layout *b, const struct layout *c)
{
    return o->compute == 68 && o->scale == R_32F && o->ta == 1 && o->tb == 0 && a->type == R_E4M3 &&
           b->type == R_E4M3 && (c->type == R_16BF || c->type == R_16F || c->type == R_32F) && a->rows == b->rows &&
           a->rows % 16 == 0 && c->rows * (c->type == R_32F ? 4 : 2) % 16 == 0 && /* columns begin at 16 bytes */
           c->rows == a->columns && c->columns == b->columns;
}

int cublasLtMatmulAlgoGetHeuristic(struct handle *h, struct operation *o, struct layout *a, struct layout *b,
                                   struct layout *c, struct layout *d, uint64_t *preference, int asked,
                                   struct result *found, int *count)
{
    (void)h;
    *count = 0;
    if (asked < 1 || c != d || !preference[0]) return INVALID_VALUE;
    if (!fits(o, a, b, c)) return NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    found->algorithm[0] = 0x5eed;
    *count = 1;
    return SUCCESS;
}

int cublasLtMatmul(struct handle *h, struct operation *o, const float *alpha, const void *a, struct layout *of_a,
                   const void *b, struct layout *of_b, const float *beta, const void *c, struct layout *of_c, void *d,
                   struct layout *of_d, const uint64_t *algorithm, void *workspace, size_t size, void *stream)
{
    (void)h;
    if (algorithm[0] != 0x5eed || !workspace || !size || !stream || c != d || of_c != of_d) return INVALID_VALUE;
    if (!fits(o, of_a, of_b, of_c)) return NOT_SUPPORTED;
    return product(o->ta, o->tb, (int)of_c->rows, (int)of_c->columns, (int)of_a->rows, *alpha, a, of_a->type,
                   (int)of_a->ld, b, of_b->type, (int)of_b->ld, *beta, d, of_d->type, (int)of_d->ld);
}
