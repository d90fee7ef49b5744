/* The means over dropout masks, a part of _native.c: the twins of theory/_coins.py, theory/logistic.py and
   predictive/categorical.py, and what inference/_units.py needs. Rows come in tiles, which stay in the cache from one
   step to the next. */

#define TILE 64
#define TILES _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)") \
    for (int64_t start = 0; start < n; start += TILE)
#define ROW _Pragma("omp simd") for (int64_t k = 0; k < m; k++)

/* Of the row phi (units): sums of the powers of x = phi_k factor_k over the units with |x| <= 1, and of those with NaN, the
   j-th at sums[j stride]. */
#define POWER_SUMS(NAME, TYPE)                                                                                      \
    static void NAME##_of_row(int64_t units, int64_t degree, const TYPE *phi, const double *factor, double *sums,   \
                              int64_t stride) {                                                                     \
        for (int64_t start = 0; start < units; start += 8 * TILE) {                                                 \
            const int64_t m = units - start < 8 * TILE ? units - start : 8 * TILE;                                  \
            double x[8 * TILE], power[8 * TILE];                                                                    \
            ROW { double y = phi[start + k] * factor[start + k]; x[k] = power[k] = fabs(y) > 1 ? 0 : y; }           \
            for (int64_t j = 0; j < degree; j++) {                                                                  \
                double sum = 0;                                                                                     \
                _Pragma("omp simd reduction(+ : sum)")                                                              \
                for (int64_t k = 0; k < m; k++) { sum += power[k]; power[k] *= x[k]; }                              \
                sums[j * stride] = start ? sums[j * stride] + sum : sum;                                            \
            }                                                                                                       \
        }                                                                                                           \
    }                                                                                                               \
    void NAME(int64_t n, int64_t units, int64_t degree, const TYPE *phi, const double *factor, double *sums,        \
              int threads) { /* (degree, n) */                                                                      \
        _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)")                          \
        for (int64_t i = 0; i < n; i++) NAME##_of_row(units, degree, phi + i * units, factor, sums + i, n);         \
    }

POWER_SUMS(power_sums, double)
POWER_SUMS(power_sums_single, float)

/* A layer of units phi = sigma(W x + b), and sums over them, for some rows at a time: neither W x + b nor phi is ever in
   memory as a whole. The columns of matrices come in panels of WIDTH, the panels (depth, WIDTH) one after the other, with
   zeros behind the last column; HEIGHT rows meet a panel in registers. */
#define WIDTH 8
#ifdef __AVX512F__
#define HEIGHT 8
#else
#define HEIGHT 4
#endif
#define SOME 32 /* rows at a time, a multiple of HEIGHT */
#define PANELS(columns) (((columns) + WIDTH - 1) / WIDTH * WIDTH)
typedef double vec __attribute__((vector_size(8 * WIDTH), aligned(8), may_alias));

/* out (SOME, PANELS(columns)) = a (rows, depth) w; a has a row every stride numbers. */
static void product(int64_t rows, int64_t depth, int64_t columns, const double *a, int64_t stride, const double *w,
                    double *out) {
    const int64_t width = PANELS(columns);
    for (int64_t j = 0; j < width; j += WIDTH, w += depth * WIDTH)
        for (int64_t i = 0; i < rows; i += HEIGHT) {
            const double *row[HEIGHT];
            for (int h = 0; h < HEIGHT; h++) row[h] = a + (i + h < rows ? i + h : rows - 1) * stride;
            vec sum[HEIGHT] = {0};
            for (int64_t k = 0; k < depth; k++) {
                const vec some = *(const vec *)(w + k * WIDTH);
                for (int h = 0; h < HEIGHT; h++) sum[h] += row[h][k] * some;
            }
            for (int h = 0; h < HEIGHT; h++) *(vec *)(out + (i + h) * width + j) = sum[h];
        }
}

/* to (columns, m), which has a row every n numbers, from (m, PANELS(columns)). */
static void transposed(int64_t m, int64_t columns, const double *from, double *to, int64_t n) {
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < m; i++) to[j * n + i] = from[i * PANELS(columns) + j];
}

/* out (linear + square + degree, n): A phi, B phi^2 and the sums of powers of phi with these factors, for the activation
   matern_wide of this kind and with these constants p; W, A and B in panels. Without memory it leaves out as it is. */
void layer_sums(int64_t n, int64_t inputs, int64_t units, int64_t linear, int64_t square, int64_t degree, int64_t kind,
                const double *x, const double *w, const double *bias, const double *p, const double *a, const double *b,
                const double *factor, double *out, int threads) {
    const int64_t wide = PANELS(units), most = PANELS(linear > square ? linear : square);
    _Pragma("omp parallel num_threads(threads) if (threads > 1)")
    {
        double *z = malloc(SOME * (2 * wide + most) * sizeof(double)), *phi = z + SOME * wide, *sums = phi + SOME * wide;
        _Pragma("omp for schedule(dynamic)")
        for (int64_t start = 0; start < n; start += SOME) {
            const int64_t m = z ? n - start < SOME ? n - start : SOME : 0;
            product(m, inputs, units, x + start * inputs, inputs, w, z);
            for (int64_t i = 0; i < m; i++)
                for (int64_t k = 0; k < units; k++) z[i * wide + k] += bias[k];
            matern_wide_chunk((int)kind, m * wide, z, NULL, phi, p);
            product(m, units, linear, phi, wide, a, sums);
            transposed(m, linear, sums, out + start, n);
            for (int64_t i = 0; degree && i < m; i++)
                power_sums_of_row(units, degree, phi + i * wide, factor, out + (linear + square) * n + start + i, n);
            for (int64_t i = 0; i < m * wide; i++) phi[i] *= phi[i];
            product(m, units, square, phi, wide, b, sums);
            transposed(m, square, sums, out + linear * n + start, n);
        }
        free(z);
    }
}

#define TURNS 0.15915494309189535 /* in an angle of 1 */

/* sin and cos of so many turns, to 1e-15: Taylor series of a quarter of the angle, at most pi/4, doubled twice. */
static inline void sine_and_cosine(double turns, double *sine, double *cosine) {
    double a = (turns - rint(turns)) * 1.5707963267948966, z = a * a;
    double s = 1. / 362880 + z * (-1. / 39916800 + z * (1. / 6227020800 - z * (1. / 1307674368000)));
    s = a * (1 + z * (-1. / 6 + z * (1. / 120 + z * (-1. / 5040 + z * s))));
    double c = -1. / 3628800 + z * (1. / 479001600 + z * (-1. / 87178291200 + z * (1. / 20922789888000)));
    c = 1 + z * (-1. / 2 + z * (1. / 24 + z * (-1. / 720 + z * (1. / 40320 + z * c))));
    double s2 = 2 * s * c, c2 = 1 - 2 * s * s;
    *sine = 2 * s2 * c2;
    *cosine = 1 - 2 * s2 * s2;
}

/* out (3, all) at these n rows: sums over nodes t of Im phi w_1, Re phi w_2 and (1 - Re phi) w_3, with log phi(t) = i t
   offset - t^2 variance / 2 and the polynomials of the light coins: even (nodes, half) and odd times the even and the odd
   sums of powers (2 half, all). Then phi is multiplied by drop + (1 - drop) e^(i t a) for each heavy coin a (coins, all).
   Nodes are equally far apart, so that the addition theorems lead from one to the next in a block of them. */
#define BLOCK 16

void node_sums(int64_t n, int64_t all, int64_t nodes, int64_t half, int64_t coins, double drop, const int64_t *rows,
               const double *sums, const double *even, const double *odd, const double *t, const double *w,
               const double *heavy, const double *offset, const double *variance, double *out, int threads) {
    TILES {
        const int64_t m = n - start < TILE ? n - start : TILE, *at = rows + start;
        double total[3][TILE] = {{0}}, size[TILE], angle[TILE], re[BLOCK][TILE], im[BLOCK][TILE], own[2 * half + 1][TILE];
        double s[TILE], c[TILE], s_step[TILE], c_step[TILE], part_sum[TILE], of_offset[TILE], of_variance[TILE];
        ROW { of_offset[k] = offset[at[k]]; of_variance[k] = variance[at[k]]; }
        for (int64_t j = 0; j < 2 * half; j++) ROW own[j][k] = sums[j * all + at[k]];
        for (int64_t first = 0; first < nodes; first += BLOCK) {
            const int64_t block = nodes - first < BLOCK ? nodes - first : BLOCK;
            for (int64_t b = 0, l = first; b < block; b++, l++) {
                ROW { size[k] = -0.5 * t[l] * t[l] * of_variance[k]; angle[k] = t[l] * of_offset[k]; }
                for (int64_t j = 0; j < half; j++) {
                    const double of_even = even[l * half + j], of_odd = odd[l * half + j];
                    ROW { size[k] += of_even * own[2 * j + 1][k]; angle[k] += of_odd * own[2 * j][k]; }
                }
                ROW {
                    double modulus = two_to_wide(1.4426950408889634 * size[k]), sine, cosine;
                    sine_and_cosine(angle[k] * TURNS, &sine, &cosine);
                    re[b][k] = modulus * cosine;
                    im[b][k] = modulus * sine;
                }
            }
            for (int64_t j = 0; j < coins; j++) {
                const double *a = heavy + j * all;
                ROW {
                    sine_and_cosine(t[first] * a[at[k]] * TURNS, s + k, c + k);
                    sine_and_cosine(2 * t[0] * a[at[k]] * TURNS, s_step + k, c_step + k);
                }
                for (int64_t b = 0; b < block; b++)
                    ROW {
                        double x = drop + (1 - drop) * c[k], y = (1 - drop) * s[k], r = re[b][k], cosine = c[k];
                        re[b][k] = r * x - im[b][k] * y;
                        im[b][k] = r * y + im[b][k] * x;
                        c[k] = cosine * c_step[k] - s[k] * s_step[k];
                        s[k] = cosine * s_step[k] + s[k] * c_step[k];
                    }
            }
            for (int j = 0; j < 3; j++) {
                double (*part)[TILE] = j ? re : im; /* summed on its own, for few roundings of the large total */
                ROW part_sum[k] = 0;
                const double sign = j == 2 ? -1 : 1, plus = j == 2;
                for (int64_t b = 0; b < block; b++)
                    ROW part_sum[k] += (plus + sign * part[b][k]) * w[j * nodes + first + b];
                ROW total[j][k] += part_sum[k];
            }
        }
        for (int j = 0; j < 3; j++)
            for (int64_t k = 0; k < m; k++) out[j * all + at[k]] = total[j][k];
    }
}

/* Softmax of Gaussian outputs with mean (classes, n) and covariance (classes, classes, n), over members that lie at
   points (half, classes) of the standard normal distribution and at their mirror images: p (classes, n), the sum of the
   softmax, and out (3, n): the sum of the largest logits, the product of the sums of exponentials less these, and the
   sum of p-weighted logits less these. The product is -1 where the covariance, with this share of its largest variance
   added to all, has no Cholesky factor. */
#define LANES 16
#define LANE _Pragma("omp simd") for (int64_t k = 0; k < LANES; k++)

static void softmax_members(int64_t classes, double sign, double (*z)[LANES], const double (*mean)[LANES],
                            const double (*u)[LANES], double (*p)[LANES], double *tops, double *product,
                            double *weighted) {
    double top[LANES], total[LANES] = {0}, part[LANES] = {0};
    LANE top[k] = -INFINITY;
    for (int64_t c = 0; c < classes; c++)
        LANE { z[c][k] = mean[c][k] + sign * u[c][k]; top[k] = z[c][k] < top[k] ? top[k] : z[c][k]; }
    for (int64_t c = 0; c < classes; c++)
        LANE {
            double y = z[c][k] - top[k], e = two_to_wide(1.4426950408889634 * y);
            z[c][k] = e;
            total[k] += e;
            part[k] += e * y;
        }
    LANE { tops[k] += top[k]; product[k] *= total[k]; total[k] = 1 / total[k]; weighted[k] += part[k] * total[k]; }
    for (int64_t c = 0; c < classes; c++) LANE p[c][k] += z[c][k] * total[k];
}

void softmax_of_gaussian(int64_t n, int64_t half, int64_t classes, double share, const double *mean,
                         const double *covariance, const double *points, double *p, double *out, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)")
    for (int64_t start = 0; start < n; start += LANES) {
        const int64_t m = n - start < LANES ? n - start : LANES;
        double root[classes * (classes + 1) / 2][LANES], centre[classes][LANES];
        double u[classes][LANES], z[classes][LANES];
        double sums[classes][LANES], tops[LANES] = {0}, product[LANES], weighted[LANES] = {0};
        double raise[LANES], failed[LANES] = {0};
        LANE { raise[k] = 1e-300; product[k] = 1; }
        memset(root, 0, sizeof root), memset(centre, 0, sizeof centre), memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < classes; i++) {
            ROW centre[i][k] = mean[i * n + start + k];
            double (*of_i)[LANES] = root + i * (i + 1) / 2;
            for (int64_t j = 0; j <= i; j++) ROW of_i[j][k] = covariance[(i * classes + j) * n + start + k];
            LANE { double v = share * of_i[i][k]; raise[k] = v < raise[k] ? raise[k] : v; }
        }
        for (int64_t j = 0; j < classes; j++) { /* the Cholesky factor takes the place of the covariance */
            double (*of_j)[LANES] = root + j * (j + 1) / 2, pivot[LANES], inverse[LANES];
            LANE pivot[k] = of_j[j][k] + raise[k];
            for (int64_t l = 0; l < j; l++) LANE pivot[k] -= of_j[l][k] * of_j[l][k];
            LANE { failed[k] = pivot[k] <= 0 ? 1 : failed[k]; of_j[j][k] = sqrt(pivot[k]); }
            LANE inverse[k] = 1 / of_j[j][k];
            for (int64_t i = j + 1; i < classes; i++) {
                double (*of_i)[LANES] = root + i * (i + 1) / 2;
                for (int64_t l = 0; l < j; l++) LANE of_i[j][k] -= of_i[l][k] * of_j[l][k];
                LANE of_i[j][k] *= inverse[k];
            }
        }
        for (int64_t s = 0; s < half; s++) {
            const double *point = points + s * classes;
            for (int64_t i = 0; i < classes; i++) {
                double (*of_i)[LANES] = root + i * (i + 1) / 2;
                LANE u[i][k] = of_i[0][k] * point[0];
                for (int64_t j = 1; j <= i; j++) LANE u[i][k] += of_i[j][k] * point[j];
            }
            for (double sign = 1; sign >= -1; sign -= 2)
                softmax_members(classes, sign, z, centre, u, sums, tops, product, weighted);
        }
        for (int64_t i = 0; i < classes; i++) ROW p[i * n + start + k] = sums[i][k];
        ROW { out[start + k] = tops[k]; out[n + start + k] = failed[k] ? -1 : product[k]; }
        ROW out[2 * n + start + k] = weighted[k];
    }
}
