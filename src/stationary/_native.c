/* What PyTorch has no operation for, in one pass over memory. The activations first, in float32, one family in float64
   too: out = sigma(x), or out = grad sigma'(x) where grad is not NULL. Then kernels and the means over dropout masks, in
   float64.

   Compilers turn every loop below into vector instructions: there is no branch in it, and no call but for rint. A
   comparison with NaN is false, and they are written so that NaN stays NaN. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 16384     /* elements that a thread takes at a time */
#define LARGE 1e30f     /* as in activations/_cpu.py */
#define LOG2_E 1.44269504f
#define EACH _Pragma("omp simd") for (int64_t i = 0; i < n; i++)

static inline float from_bits(uint32_t bits) {
    float y;
    memcpy(&y, &bits, 4);
    return y;
}

static inline uint32_t to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float clamped(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* 2^a to 1 ulp: a polynomial for the fraction, and the whole in two factors, so that neither of them overflows. */
static inline float two_to(float a) {
    a = clamped(a, -200, 200);
    float whole = rintf(a), f = a - whole;
    float y = 5.5503571e-2f + f * (9.6180826e-3f + f * (1.3390863e-3f + f * 1.5453163e-4f));
    y = 1 + f * (0.69314719f + f * (0.24022651f + f * y));
    int32_t n = (int32_t)whole, half = n >> 1;
    return y * from_bits((uint32_t)(half + 127) << 23) * from_bits((uint32_t)(n - half + 127) << 23);
}

/* log2 u to 1 ulp, for normal u > 0: u = 2^e m with 1/2 <= m^2 <= 2 and log2 m = s P(s^2), s = (m - 1) / (m + 1). */
static inline float log2_of(float u) {
    int32_t e = (int32_t)(to_bits(u) - to_bits(0.70710678f)) >> 23;
    float m = from_bits(to_bits(u) - ((uint32_t)e << 23)), s = (m - 1) / (m + 1), z = s * s;
    return (float)e + s * (2.8853901f + z * (0.96179884f + z * (0.57671486f + z * 0.43172644f)));
}

/* ---- Matern: the twin of MaternTwin._value and MaternTwin._slope; kind is its power, -1 for any nu, -2 for nu = inf */

static inline float power(float b, int p) { /* for a constant p <= 8 */
    float b2 = b * b, b4 = b2 * b2;
    return (p & 1 ? b : 1) * (p & 2 ? b2 : 1) * (p & 4 ? b4 : 1) * (p & 8 ? b4 * b4 : 1);
}

#define STEP float v = x[i] + offset, y = constant * two_to(-rate * LOG2_E * v)
#define BUMP float u = clamped(x[i] * scale, -1e15f, 1e15f), y = constant * two_to(-LOG2_E * u * u)
#define BASE float u = clamped((x[i] + offset) * scale, 0, LARGE), fall = two_to(-LOG2_E * u), base = u * fall
#define POWER(P)                                                                                          \
    case P:                                                                                               \
        if (grad) EACH { BASE; out[i] = grad[i] * (fall * (u - 1) * steep * (u > 0 ? power(base, P - 1) : u)); } \
        else EACH { BASE; out[i] = constant * power(base, P); }                                           \
        break;

static void matern_chunk(int kind, int64_t n, const float *restrict x, const float *restrict grad,
                         float *restrict out, const double *p) {
    const float offset = p[0], scale = p[1], exponent = p[2], decay = p[3], log2_peak = p[4], constant = p[5],
                rate = p[6], lowest = p[7], log2_slope = p[8], steep = -rate * constant, nu = exponent + 0.5f;
    switch (kind) {
        POWER(1) POWER(2) POWER(3) POWER(4) POWER(5) POWER(6) POWER(7) POWER(8)
    case 0:
        if (grad) EACH { STEP; out[i] = grad[i] * (v <= 0 ? 0 : -rate * y); }
        else EACH { STEP; out[i] = v <= 0 ? 0 : y; }
        break;
    case -2:
        if (grad) EACH { BUMP; out[i] = grad[i] * (y * u * (-2 * rate)); }
        else EACH { BUMP; out[i] = y; }
        break;
    default:
        if (grad) EACH {
            float v = x[i] + offset, u = clamped(v * scale, lowest, LARGE);
            float y = two_to((exponent - 1) * log2_of(u) - decay * (u - 1) + log2_slope) * (exponent - nu * u);
            out[i] = grad[i] * (v <= 0 ? 0 : y);
        }
        else EACH {
            float v = x[i] + offset, u = clamped(v * scale, 1.17549435e-38f, LARGE);
            float y = two_to(exponent * log2_of(u) - decay * (u - 1) + log2_peak);
            out[i] = v <= 0 ? 0 : y;
        }
    }
}

/* ---- Matern in float64, for the powers 1 to 8 */

/* 2^a for a <= 0, to 1 ulp, and 0 where it is not a normal number. Adding 1.5 2^52 rounds a to a whole number, whose bits are
   the last ones of the sum; e^(f log 2) is its Taylor series, whose rest is below 2^-54 for |f| <= 1/2. */
static inline double two_to_wide(double a) {
    const double shift = 0x1.8p52, low = a < -1022 ? -1022 : a;
    double moved = low + shift, f = (low - (moved - shift)) * 0.6931471805599453, y = 1. / 6227020800;
    y = 1. / 39916800 + f * (1. / 479001600 + f * y);
    y = 1. / 362880 + f * (1. / 3628800 + f * y);
    y = 1. / 5040 + f * (1. / 40320 + f * y);
    y = 1. / 120 + f * (1. / 720 + f * y);
    y = 1. / 6 + f * (1. / 24 + f * y);
    y = 1 + f * (1 + f * (0.5 + f * y));
    uint64_t bits;
    memcpy(&bits, &moved, 8);
    bits = (bits + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, 8);
    return a < -1022 ? 0 : y * scale;
}

static inline double power_wide(double b, int p) { /* for a constant p <= 8 */
    double b2 = b * b, b4 = b2 * b2;
    return (p & 1 ? b : 1) * (p & 2 ? b2 : 1) * (p & 4 ? b4 : 1) * (p & 8 ? b4 * b4 : 1);
}

#define WIDE double u = (x[i] + offset) * scale; \
    u = u < 0 ? 0 : u; u = u > 1e30 ? 1e30 : u; \
    double fall = two_to_wide(-1.4426950408889634 * u), base = u * fall
#define POWER_WIDE(P)                                                                                          \
    case P:                                                                                                    \
        if (grad) EACH { WIDE; out[i] = grad[i] * (fall * (u - 1) * steep * (u > 0 ? power_wide(base, P - 1) : u)); } \
        else EACH { WIDE; out[i] = constant * power_wide(base, P); }                                           \
        break;

static void matern_wide_chunk(int kind, int64_t n, const double *restrict x, const double *restrict grad,
                              double *restrict out, const double *p) {
    const double offset = p[0], scale = p[1], constant = p[5], steep = -p[6] * constant;
    switch (kind) {
        POWER_WIDE(1) POWER_WIDE(2) POWER_WIDE(3) POWER_WIDE(4)
        POWER_WIDE(5) POWER_WIDE(6) POWER_WIDE(7) POWER_WIDE(8)
    }
}

/* ---- Periodic: the twin of PeriodicTwin; kind 0 is a sine, 1 a triangle wave, 2 two of them a quarter period apart */

/* The phase of x in turns, less its nearest whole number: double is exact enough for 10^8 turns. */
static inline double turn(float x, double turns, double shift) {
    double t = x * turns + shift;
    return t - rint(t);
}

/* The triangle wave through 0 with slope 1 and peaks 1/4, of which sin(2 pi a) has the same sine as sin(2 pi t). */
static inline float folded(double t) {
    double a = fabs(t), rest = 0.5 - a;
    return (float)copysign(a < rest ? a : rest, t);
}

static inline float sine(float a) {
    float z = a * a;
    return a * (6.2831853f + z * (-41.341681f + z * (81.602476f + z * (-76.581173f + z * 39.759827f))));
}

static inline float direction(double t) { /* the slope of folded, 0 at its kinks */
    float d = 0.25f - fabsf((float)t);
    return (d > 0) - (float)(d < 0);
}

static void periodic_chunk(int kind, int64_t n, const float *restrict x, const float *restrict grad,
                           float *restrict out, const double *p) {
    const double turns = p[0], shift = p[1] + (grad && kind == 0 ? 0.25 : 0);
    const float height = grad ? p[3] : p[2];
#define WRITE(y) if (grad) EACH out[i] = grad[i] * height * (y); else EACH out[i] = height * (y)
    if (kind == 0) WRITE(sine(folded(turn(x[i], turns, shift))));
    else if (kind == 1 && grad) WRITE(direction(turn(x[i], turns, 0)));
    else if (kind == 1) WRITE(folded(turn(x[i], turns, 0)));
    else if (grad) WRITE(direction(turn(x[i], turns, 0)) + direction(turn(x[i], turns, 0.25)));
    else WRITE(folded(turn(x[i], turns, 0)) + folded(turn(x[i], turns, 0.25)));
}

/* ---- Both of them, by as many threads as PyTorch uses */

#define BY_CHUNKS(NAME, TYPE)                                                                                     \
    void NAME(int kind, int64_t n, const TYPE *x, const TYPE *grad, TYPE *out, const double *p, int threads) {      \
        if (n <= 2 * CHUNK || threads == 1) { NAME##_chunk(kind, n, x, grad, out, p); return; }                     \
        _Pragma("omp parallel for num_threads(threads) schedule(static)")                                         \
        for (int64_t i = 0; i < n; i += CHUNK)                                                                    \
            NAME##_chunk(kind, n - i < CHUNK ? n - i : CHUNK, x + i, grad ? grad + i : NULL, out + i, p);           \
    }

BY_CHUNKS(matern, float)
BY_CHUNKS(matern_wide, double)
BY_CHUNKS(periodic, float)

/* ---- Kernels: the twins of theory/isotropic.py; squared distances become values, kind is nu - 1/2, or -2 for nu = inf */

#define KERNEL(KIND, RATE, VALUE)                                                              \
    case KIND:                                                                                 \
        EACH {                                                                                 \
            double square = s[i] < 1e-30 ? 1e-30 : s[i], a = RATE * sqrt(square > 1e8 ? 1e8 : square); \
            s[i] = (VALUE) * two_to_wide(-1.4426950408889634 * (KIND < 0 ? 0.5 * a * a : a));      \
        }                                                                                      \
        break;

static void kernel_chunk(int64_t kind, int64_t n, double *restrict s) {
    switch (kind) {
        KERNEL(0, 1., 1)
        KERNEL(1, 1.7320508075688772, 1 + a)
        KERNEL(2, 2.23606797749979, 1 + a + a * a * (1. / 3))
        KERNEL(3, 2.6457513110645907, 1 + a + 0.4 * a * a + a * a * a * (1. / 15))
        KERNEL(-2, 1., 1)
    }
}

void kernel(int64_t n, int64_t kind, double *s, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (threads > 1 && n > 2 * CHUNK) schedule(static)")
    for (int64_t i = 0; i < n; i += CHUNK) kernel_chunk(kind, n - i < CHUNK ? n - i : CHUNK, s + i);
}

#include "_native_dropout.c"
