/* Networks of dense layers in training: forward and backward passes, heads and losses, Adam, and
 * whole epochs, also of deep Q-learning. One call does one of these, and needs nothing but its
 * arguments.
 *
 * Arrays are float32, row after row. All parameters of a network lie in one array, as torch keeps
 * them: a weight is [outputs, inputs]. A gradient has the same order. Sums are added in an order
 * that depends on shapes alone, so that the same numbers give the same bits.
 */
#include <stdint.h>

/* A product is computed in tiles of ROWS x PANEL numbers, which stay in registers. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 8 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 6 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
enum { VECTORS = 2, PANEL = VECTORS * LANES };
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));

enum { NONE, TANH, RELU, SILU };
enum { VALUES, GAUSSIAN, CATEGORICAL };
enum { POLICY_GRADIENT, CLIPPED, SQUARED_ERROR, Q_LEARNING };
/* The columns of samples; those that are not there are null. Masks are those of the inputs, or of
 * the next inputs where there are any; targets are then rewards. */
enum { INPUTS, ACTIONS, MASKS, ADVANTAGES, LOG_PROBS, WEIGHTS, KL_WEIGHTS, TARGETS, NEXT,
       DISCOUNTS, COLUMNS };
/* The numbers of a loss, and what the last two are in Q-learning. */
enum { LOSS, ENTROPY, KL, NUMBERS };
enum { TD_ERROR = 1, VALUE };

/* A dense layer, perhaps a layer normalisation (Ba et al. 2016, eq. 4), and an activation.
 * `weight`, `bias`, `norm_weight` and `norm_bias` are offsets into the array of all parameters; -1:
 * there is no normalisation. */
typedef struct {
    int64_t inputs, outputs, weight, bias, norm_weight, norm_bias, activation;
    double epsilon;
} Layer;

/* What a loss gets of the last layer's output. Values are the output, times `scale` unless that is
 * null. A Gaussian has the output as its mean; the first parameters are logarithms of its standard
 * deviations. A categorical distribution has logits of one factor after another, `choices[f]` of
 * factor f. */
typedef struct {
    int64_t kind, factors;
    const int32_t *choices;
    const float *scale;
} Head;

typedef struct {
    int64_t count;
    const Layer *layers;
    Head head;
} Network;

/* For `CLIPPED`: Schulman et al. 2017, eq. 7. */
typedef struct {
    int64_t kind;
    float clip_range, entropy_coefficient;
} Loss;

typedef struct {
    const void *data[COLUMNS];
    int64_t bytes[COLUMNS]; /* of a row */
} Samples;

/* ---- elementwise functions, which the compiler turns into vectors ---- */

INLINE float absolute(float x) { return x < 0 ? -x : x; }

INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x; /* NaN stays NaN */
    union { float number; int32_t bits; } whole = {x * 1.44269504f + 12582912.0f}, power;
    float n = whole.number - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float sum = 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r * r + r + 1.0f;
    power.bits = (whole.bits - 0x4b400000 + 127) << 23;
    return sum * power.number;
}

/* A quotient of polynomials of x^2 times x, fitted to a relative error of 2e-8 below 9. */
INLINE float hyperbolic_tangent(float x) {
    x = x < -9.0f ? -9.0f : x > 9.0f ? 9.0f : x;
    float u = x * x;
    float above = 1.33546771e-8f, below = 7.77656512e-7f;
    above = above * u + 2.06090951e-5f;
    below = below * u + 3.28563615e-4f;
    above = above * u + 3.49558898e-3f;
    below = below * u + 2.58769855e-2f;
    above = above * u + 1.33810264e-1f;
    below = below * u + 4.67143420e-1f;
    above = above * u + 9.99999979e-1f;
    below = below * u + 1.0f;
    return x * above / below;
}

INLINE float logistic(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* exp(x) - 1 - x, which is never negative, without the rounding of its terms near 0. */
INLINE float divergence(float x) {
    float near = x * x * (0.5f + x * (1.0f / 6 + x * (1.0f / 24 + x / 120)));
    return absolute(x) < 0.1f ? near : exponential(x) - 1.0f - x;
}

/* The natural logarithm of a number from 1 on. */
static float logarithm(float x) {
    union { float number; int32_t bits; } parts = {x};
    int32_t power = ((parts.bits - 0x3f3504f3) >> 23);
    parts.bits -= power << 23; /* from the root of 1/2 to that of 2 */
    float s = (parts.number - 1.0f) / (parts.number + 1.0f), u = s * s;
    float sum = 2.0f + u * (2.0f / 3 + u * (2.0f / 5 + u * (2.0f / 7 + u * (2.0f / 9))));
    return power * 0.693147181f + s * sum;
}

/* ---- products ---- */

/* Numbers of a matrix lie `row` and `column` apart. */
typedef struct {
    float *data;
    int64_t row, column;
} Matrix;

INLINE Matrix matrix(const float *data, int64_t row, int64_t column) {
    return (Matrix){(float *)data, row, column};
}

INLINE Matrix transposed(Matrix a) { return matrix(a.data, a.column, a.row); }

/* Copy up to PANEL columns of B, which has `inner` rows, side by side; zeros fill the panel. */
static void pack(float *restrict panel, Matrix b, int64_t inner, int64_t columns) {
    if (columns < PANEL)
        for (int64_t i = 0; i < inner * PANEL; i++) panel[i] = 0;
    if (b.column == 1 && columns == PANEL) {
        for (int64_t k = 0; k < inner; k++)
            for (int64_t j = 0; j < PANEL; j++) panel[k * PANEL + j] = b.data[k * b.row + j];
        return;
    }
    /* Four rows at once, because those of a transpose are next to each other. */
    int64_t k = 0;
    for (; b.row == 1 && k + 4 <= inner; k += 4)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < 4; i++)
                panel[(k + i) * PANEL + j] = b.data[k + i + j * b.column];
    for (; k < inner; k++)
        for (int64_t j = 0; j < columns; j++)
            panel[k * PANEL + j] = b.data[k * b.row + j * b.column];
}

/* A tile of C = A B, or with `add` of C += A B, of up to `columns` columns; `panel` is B, packed. */
INLINE void tile(int rows, int vectors, Matrix c, Matrix a, const float *panel, int64_t inner,
                 int64_t columns, int add) {
    vector sum[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = (vector){0};
    for (int64_t k = 0; k < inner; k++) {
        const vector *b_row = (const vector *)(panel + k * PANEL);
        for (int i = 0; i < rows; i++) {
            vector each = (vector){0} + a.data[i * a.row + k * a.column];
            for (int v = 0; v < vectors; v++) sum[i][v] += each * b_row[v];
        }
    }
    if (c.column == 1 && columns >= vectors * LANES) {
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < vectors; v++) {
                vector *target = (vector *)(c.data + i * c.row) + v;
                *target = add ? *target + sum[i][v] : sum[i][v];
            }
        return;
    }
    float numbers[ROWS][PANEL];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) ((vector *)numbers[i])[v] = sum[i][v];
    for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float *target = c.data + i * c.row + j * c.column;
            *target = add ? *target + numbers[i][j] : numbers[i][j];
        }
}

INLINE int64_t vectors_of(int64_t numbers) { return (numbers + LANES - 1) / LANES; }

/* C = A B, or with `add` C += A B; C is [rows, columns], A [rows, inner] and B [inner, columns].
 * `scratch` holds inner * PANEL numbers. */
static void product(Matrix c, Matrix a, Matrix b, int64_t rows, int64_t inner, int64_t columns,
                    int add, float *scratch) {
    /* The way around that leaves fewer lanes of vectors empty. */
    if (4 * vectors_of(rows) * columns < 3 * vectors_of(columns) * rows) {
        product(transposed(c), transposed(b), transposed(a), columns, inner, rows, add, scratch);
        return;
    }
    for (int64_t j = 0; j < columns; j += PANEL) {
        int64_t width = columns - j < PANEL ? columns - j : PANEL;
        pack(scratch, matrix(b.data + j * b.column, b.row, b.column), inner, width);
        for (int64_t i = 0; i < rows; i += ROWS) {
            Matrix from = matrix(a.data + i * a.row, a.row, a.column);
            Matrix to = matrix(c.data + i * c.row + j * c.column, c.row, c.column);
#define CASE(R)                                                               \
    case R:                                                                   \
        if (width <= LANES) tile(R, 1, to, from, scratch, inner, width, add); \
        else tile(R, 2, to, from, scratch, inner, width, add);                \
        break;
            switch (rows - i) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#ifdef __AVX512F__
                CASE(6) CASE(7)
#endif
                default: CASE(ROWS)
            }
        }
    }
}

/* ---- layers ---- */

/* y = f(y + bias); `before` keeps what SILU got. */
static void activate(int64_t kind, float *restrict y, float *restrict before,
                     const float *restrict bias, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, y += width, before += width) {
        if (kind == NONE)
            for (int64_t j = 0; j < width; j++) y[j] += bias[j];
        else if (kind == TANH)
            for (int64_t j = 0; j < width; j++) y[j] = hyperbolic_tangent(y[j] + bias[j]);
        else if (kind == RELU)
            for (int64_t j = 0; j < width; j++) y[j] = y[j] + bias[j] < 0 ? 0 : y[j] + bias[j];
        else
            for (int64_t j = 0; j < width; j++) {
                before[j] = y[j] + bias[j];
                y[j] = before[j] * logistic(before[j]);
            }
    }
}

/* The gradient for x in place of that for y = f(x). */
static void activate_backward(int64_t kind, float *restrict gradient, const float *restrict y,
                              const float *restrict x, int64_t size) {
    if (kind == TANH)
        for (int64_t i = 0; i < size; i++) gradient[i] *= 1 - y[i] * y[i];
    else if (kind == RELU)
        for (int64_t i = 0; i < size; i++) gradient[i] = y[i] > 0 ? gradient[i] : 0;
    else if (kind == SILU)
        for (int64_t i = 0; i < size; i++) gradient[i] *= logistic(x[i]) * (1 + x[i] - y[i]);
}

static float sum_of_products(const float *a, const float *b, int64_t size) {
#pragma clang fp reassociate(on)
    float sum = 0;
    for (int64_t i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

static float sum_of(const float *a, int64_t size) {
#pragma clang fp reassociate(on)
    float sum = 0;
    for (int64_t i = 0; i < size; i++) sum += a[i];
    return sum;
}

/* x becomes (x + bias - mean) / deviation, by rows, and y = weight x. */
static void normalize_rows(float *y, float *x, float *inverse, const float *bias,
                           const float *weight, float epsilon, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, x += width, y += width) {
        for (int64_t j = 0; j < width; j++) x[j] += bias[j];
        float mean = sum_of(x, width) / width;
        for (int64_t j = 0; j < width; j++) x[j] -= mean;
        float factor = 1 / __builtin_sqrtf(sum_of_products(x, x, width) / width + epsilon);
        inverse[i] = factor;
        for (int64_t j = 0; j < width; j++) x[j] *= factor;
        for (int64_t j = 0; j < width; j++) y[j] = weight[j] * x[j];
    }
}

/* The gradient for what `normalize_rows` got in place of that for y; x is what it left. */
static void normalize_rows_backward(float *gradient, const float *x, const float *inverse,
                                    const float *weight, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, x += width, gradient += width) {
        for (int64_t j = 0; j < width; j++) gradient[j] *= weight[j];
        /* Shifting or stretching a row changes nothing, so the gradient has no such component. */
        float shift = sum_of(gradient, width) / width;
        float stretch = sum_of_products(gradient, x, width) / width;
        for (int64_t j = 0; j < width; j++)
            gradient[j] = (gradient[j] - shift - x[j] * stretch) * inverse[i];
    }
}

/* What a pass keeps of a layer: its output, what its activation got, its normalised rows and their
 * factors. */
typedef struct {
    float *output, *before, *normalized, *inverse;
} Saved;

INLINE int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t widest(const Network *network) {
    int64_t most = 0;
    for (int64_t i = 0; i < network->count; i++)
        most = greater(most, greater(network->layers[i].inputs, network->layers[i].outputs));
    return most;
}

/* The workspace of a pass of `rows` samples: scratch for products; two gradients that take turns,
 * `gradients`; what a loss sees and its gradients for that, `loss_buffers`; and what is `saved` of
 * each layer. Each function returns where its part begins. */
static float *gradients(const Network *network, int64_t number, int64_t rows, float *workspace) {
    int64_t width = widest(network);
    return workspace + greater(rows, width) * PANEL + number * rows * width;
}

static float *loss_buffers(const Network *network, int64_t rows, float *workspace) {
    return gradients(network, 2, rows, workspace);
}

static int64_t width_of(const Network *network) {
    return network->layers[network->count - 1].outputs;
}

static Saved saved(const Network *network, int64_t layer, int64_t rows, float *workspace) {
    float *place = loss_buffers(network, rows, workspace) + 2 * rows * (width_of(network) + 1);
    for (int64_t i = 0; i < layer; i++) place += rows * (3 * network->layers[i].outputs + 1);
    int64_t size = rows * network->layers[layer].outputs;
    return (Saved){place, place + size, place + 2 * size, place + 3 * size};
}

/* How many numbers a workspace for `rows` samples holds. */
int64_t workspace_size(const Network *network, int64_t rows) {
    float none[1];
    return saved(network, network->count - 1, rows, none).inverse + rows - none;
}

/* Compute all layers; returns the output, [rows, outputs of the last layer]. */
static const float *layers_forward(const Network *network, const float *parameters, const float *x,
                                   int64_t rows, float *workspace) {
    for (int64_t i = 0; i < network->count; i++) {
        const Layer *layer = network->layers + i;
        int64_t inputs = layer->inputs, outputs = layer->outputs;
        Saved kept = saved(network, i, rows, workspace);
        int normal = layer->norm_weight >= 0;
        float *y = normal ? kept.normalized : kept.output;
        product(matrix(y, outputs, 1), matrix(x, inputs, 1),
                matrix(parameters + layer->weight, 1, inputs), rows, inputs, outputs, 0, workspace);
        if (normal)
            normalize_rows(kept.output, kept.normalized, kept.inverse, parameters + layer->bias,
                           parameters + layer->norm_weight, layer->epsilon, rows, outputs);
        const float *bias = parameters + (normal ? layer->norm_bias : layer->bias);
        activate(layer->activation, kept.output, kept.before, bias, rows, outputs);
        x = kept.output;
    }
    return x;
}

/* total[j] += sum over rows of a[i, j]. */
static void add_columns(float *total, const float *a, int64_t rows, int64_t width, float *scratch) {
    const float one = 1;
    product(matrix(total, width, 1), matrix(&one, 0, 0), matrix(a, width, 1), 1, rows, width, 1,
            scratch);
}

/* total[j] += sum over rows of a[i, j] b[i, j]. */
static void add_products(float *restrict total, const float *restrict a, const float *restrict b,
                         int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++, a += width, b += width)
        for (int64_t j = 0; j < width; j++) total[j] += a[j] * b[j];
}

/* Add the gradient of all layers' parameters to `d_parameters`, unless it is null, and write that for
 * x to `x_gradient`, unless that is null; that for the output is the first of the workspace's. */
static void layers_backward(const Network *network, const float *parameters, float *d_parameters,
                            const float *x, float *x_gradient, int64_t rows, float *workspace) {
    float *gradient = gradients(network, 0, rows, workspace);
    for (int64_t i = network->count - 1; i >= 0; i--) {
        const Layer *layer = network->layers + i;
        int64_t inputs = layer->inputs, outputs = layer->outputs;
        Saved kept = saved(network, i, rows, workspace);
        activate_backward(layer->activation, gradient, kept.output, kept.before, rows * outputs);
        if (layer->norm_weight >= 0) {
            if (d_parameters) {
                add_products(d_parameters + layer->norm_weight, gradient, kept.normalized, rows,
                             outputs);
                add_columns(d_parameters + layer->norm_bias, gradient, rows, outputs, workspace);
            }
            normalize_rows_backward(gradient, kept.normalized, kept.inverse,
                                    parameters + layer->norm_weight, rows, outputs);
        }
        const float *before = i ? saved(network, i - 1, rows, workspace).output : x;
        if (d_parameters) {
            product(matrix(d_parameters + layer->weight, inputs, 1), matrix(gradient, 1, outputs),
                    matrix(before, inputs, 1), outputs, rows, inputs, 1, workspace);
            add_columns(d_parameters + layer->bias, gradient, rows, outputs, workspace);
        }
        float *next = i ? gradients(network, (network->count - i) % 2, rows, workspace) : x_gradient;
        if (next)
            product(matrix(next, inputs, 1), matrix(gradient, outputs, 1),
                    matrix(parameters + layer->weight, inputs, 1), rows, outputs, inputs, 0,
                    workspace);
        gradient = next;
    }
}

/* ---- heads ---- */

INLINE float scale_of(const Head *head) { return head->scale ? *head->scale : 1; }

/* A choice that a mask forbids, by bits as NumPy packs them, has the lowest logit. */
INLINE int allowed(const uint8_t *mask, int64_t choice) {
    return !mask || mask[choice >> 3] >> (7 - (choice & 7)) & 1;
}

/* log p of all choices of a row's factor, which begin at `first`; returns their entropy. */
static float log_softmax(float *log_p, const float *logits, const uint8_t *mask, int64_t first,
                         int64_t choices) {
    float most = -1e30f, total = 0, entropy = 0;
    for (int64_t j = 0; j < choices; j++) {
        log_p[j] = allowed(mask, first + j) ? logits[j] : -1e30f;
        most = log_p[j] > most ? log_p[j] : most;
    }
    for (int64_t j = 0; j < choices; j++) {
        log_p[j] = logits[j] != logits[j] ? logits[j] : log_p[j] - most;
        total += exponential(log_p[j]) * (log_p[j] > -1e29f || log_p[j] != log_p[j]);
    }
    float log_total = logarithm(total);
    for (int64_t j = 0; j < choices; j++) {
        log_p[j] -= log_total;
        if (log_p[j] > -1e29f) entropy -= exponential(log_p[j]) * log_p[j];
    }
    return entropy;
}

/* What a loss sees of `rows` samples: as `result` log-probabilities of the actions, [rows], or
 * values, [rows, outputs]; of a policy also the entropies, [rows]. */
void forward(const Network *network, const float *parameters, const Samples *samples, int64_t rows,
             float *workspace, float *result, float *entropy) {
    const Head *head = &network->head;
    const float *x = samples->data[INPUTS];
    const float *output = layers_forward(network, parameters, x, rows, workspace);
    float *scratch = workspace;
    int64_t width = width_of(network);
    if (head->kind == VALUES)
        for (int64_t i = 0; i < rows * width; i++) result[i] = output[i] * scale_of(head);
    if (head->kind == GAUSSIAN) {
        const float *log_std = parameters, *actions = samples->data[ACTIONS];
        float constant = 0.918938533f * width; /* log(2 pi) / 2 */
        for (int64_t j = 0; j < width; j++) {
            constant += log_std[j];
            scratch[j] = exponential(-log_std[j]);
        }
        for (int64_t i = 0; i < rows; i++, output += width, actions += width) {
            float squares = 0;
            for (int64_t j = 0; j < width; j++) {
                float z = (actions[j] - output[j]) * scratch[j];
                squares += z * z;
            }
            result[i] = -0.5f * squares - constant;
            entropy[i] = constant + 0.5f * width;
        }
    }
    if (head->kind == CATEGORICAL) {
        const int32_t *actions = samples->data[ACTIONS];
        const uint8_t *mask = samples->data[MASKS];
        for (int64_t i = 0; i < rows; i++, output += width, actions += head->factors) {
            result[i] = entropy[i] = 0;
            for (int64_t f = 0, start = 0; f < head->factors; start += head->choices[f++]) {
                entropy[i] += log_softmax(scratch, output + start, mask, start, head->choices[f]);
                result[i] += scratch[actions[f]];
            }
            if (mask) mask += samples->bytes[MASKS];
        }
    }
}

/* After `forward`, and given the gradients of a loss for what it sees: add that of the parameters to
 * `d_parameters`, and write that for the inputs to `x_gradient`, [rows, inputs], unless these are
 * null. */
void backward(const Network *network, const float *parameters, const Samples *samples, int64_t rows,
              float *workspace, const float *d_result, const float *d_entropy, float *d_parameters,
              float *x_gradient) {
    const Head *head = &network->head;
    const float *output = saved(network, network->count - 1, rows, workspace).output;
    float *gradient = gradients(network, 0, rows, workspace), *scratch = workspace;
    int64_t width = width_of(network);
    if (head->kind == VALUES)
        for (int64_t i = 0; i < rows * width; i++) gradient[i] = d_result[i] * scale_of(head);
    if (head->kind == GAUSSIAN) {
        /* With z = (a - mean) / std: d log p / d mean = z / std, d log p / d log std = z^2 - 1, and
         * d entropy / d log std = 1. */
        const float *log_std = parameters, *actions = samples->data[ACTIONS];
        for (int64_t j = 0; j < width; j++) scratch[j] = exponential(-log_std[j]);
        for (int64_t i = 0; i < rows; i++, output += width, actions += width, gradient += width)
            for (int64_t j = 0; j < width; j++) {
                float z = (actions[j] - output[j]) * scratch[j];
                gradient[j] = d_result[i] * z * scratch[j];
                if (d_parameters) d_parameters[j] += d_result[i] * (z * z - 1) + d_entropy[i];
            }
    }
    if (head->kind == CATEGORICAL) {
        /* With p = softmax(x): d log p_a / d x_j = [a = j] - p_j, and with the entropy H,
         * d H / d x_j = -p_j (log p_j + H). */
        const int32_t *actions = samples->data[ACTIONS];
        const uint8_t *mask = samples->data[MASKS];
        for (int64_t i = 0; i < rows; i++, output += width, gradient += width) {
            for (int64_t f = 0, start = 0; f < head->factors; start += head->choices[f++]) {
                int64_t choices = head->choices[f];
                float entropy = log_softmax(scratch, output + start, mask, start, choices);
                for (int64_t j = 0; j < choices; j++) {
                    float p = exponential(scratch[j]);
                    float d_logit = -p * (d_result[i] + d_entropy[i] * (scratch[j] + entropy));
                    gradient[start + j] = scratch[j] < -1e29f ? 0 : d_logit;
                }
                gradient[start + actions[f]] += d_result[i];
            }
            actions += head->factors;
            if (mask) mask += samples->bytes[MASKS];
        }
    }
    layers_backward(network, parameters, d_parameters, samples->data[INPUTS], x_gradient, rows,
                    workspace);
}

/* ---- losses ---- */

/* Write the loss's numbers of each sample, [rows, NUMBERS], and its gradients for what it saw. */
static void loss_of(const Network *network, const Loss *loss, const Samples *samples, int64_t rows,
                    const float *result, const float *entropy, float *d_result, float *d_entropy,
                    float *numbers) {
    const float *advantages = samples->data[ADVANTAGES], *old = samples->data[LOG_PROBS];
    const float *kl_weights = samples->data[KL_WEIGHTS], *weights = samples->data[WEIGHTS];
    const float *targets = samples->data[TARGETS];
    const int32_t *actions = samples->data[ACTIONS];
    float bonus = loss->entropy_coefficient, low = 1 - loss->clip_range, high = 1 + loss->clip_range;
    float scale = scale_of(&network->head);
    int64_t width = width_of(network);
    for (int64_t i = 0; i < rows; i++, numbers += NUMBERS) {
        if (loss->kind == SQUARED_ERROR) { /* ((V - target) / scale)^2 / 2 */
            float error = (result[i] - targets[i]) / scale;
            numbers[LOSS] = 0.5f * error * error;
            numbers[ENTROPY] = numbers[KL] = 0;
            d_result[i] = error / scale;
        } else if (loss->kind == Q_LEARNING) { /* the Huber loss of Q(s, a) - target */
            const float value = result[i * width + actions[i]];
            float error = value - targets[i], size = absolute(error);
            float weight = weights ? weights[i] : 1, clipped = size > 1 ? 1 : size;
            numbers[LOSS] = weight * clipped * (size - 0.5f * clipped);
            numbers[TD_ERROR] = size;
            numbers[VALUE] = value;
            for (int64_t j = 0; j < width; j++) d_result[i * width + j] = 0;
            d_result[i * width + actions[i]] = weight * (error < 0 ? -clipped : clipped);
        } else { /* CLIPPED: the smaller of r A and clip(r) A; or POLICY_GRADIENT, below */
            float advantage = advantages[i], log_ratio = result[i] - old[i];
            float ratio = exponential(log_ratio), plain = ratio * advantage;
            float clipped = (ratio < low ? low : ratio > high ? high : ratio) * advantage;
            float objective = plain <= clipped ? plain : clipped;
            d_result[i] = plain <= clipped ? -plain : 0; /* a clipped ratio is constant */
            if (loss->kind == POLICY_GRADIENT) {
                objective = result[i] * advantage;
                d_result[i] = -advantage;
            }
            d_entropy[i] = -bonus;
            numbers[LOSS] = -(objective + bonus * entropy[i]);
            numbers[ENTROPY] = entropy[i];
            numbers[KL] = (kl_weights ? kl_weights[i] : 1) * divergence(log_ratio);
        }
    }
}

/* Add the gradient of a loss, summed over the samples, to `d_parameters`; write its numbers of each
 * sample, [rows, NUMBERS], and add them to `totals`. */
void add_gradient(const Network *network, const float *parameters, const Loss *loss,
                  const Samples *samples, int64_t rows, float *workspace, float *d_parameters,
                  float *numbers, double *totals) {
    float *result = loss_buffers(network, rows, workspace);
    float *d_result = result + rows * width_of(network);
    float *entropy = d_result + rows * width_of(network), *d_entropy = entropy + rows;
    forward(network, parameters, samples, rows, workspace, result, entropy);
    loss_of(network, loss, samples, rows, result, entropy, d_result, d_entropy, numbers);
    for (int64_t i = 0; i < rows * NUMBERS; i++) totals[i % NUMBERS] += numbers[i];
    backward(network, parameters, samples, rows, workspace, d_result, d_entropy, d_parameters, 0);
}

/* ---- gradient steps ---- */

/* Adam's step (Kingma and Ba 2015, algorithm 1) for `factor` times the gradient. Moments, without
 * the factors 1 - beta, become 0 where they are too small to matter: subnormal numbers are slow. */
void adam(float *parameters, const float *gradient, float *m, float *v, double factor,
          double epsilon, double rate, int64_t size) {
    float scale = factor, small = epsilon, step = rate;
    for (int64_t i = 0; i < size; i++) {
        float g = gradient[i] * scale;
        float mean = m[i] * 0.9f + g, squares = v[i] * 0.999f + g * g;
        m[i] = absolute(mean) < 1e-20f ? 0 : mean;
        v[i] = squares < 1e-36f ? 0 : squares;
        parameters[i] -= step * m[i] / (__builtin_sqrtf(v[i]) + small);
    }
}

/* followers += tau (parameters - followers); tau 1 copies, without rounding. */
void follow(float *followers, const float *parameters, double tau, int64_t size) {
    for (int64_t i = 0; i < size; i++)
        followers[i] = tau == 1 ? parameters[i]
                                : followers[i] + (float)tau * (parameters[i] - followers[i]);
}

/* `factors`: Adam's epsilon and rate for each minibatch. */
typedef struct {
    float *parameters, *gradient, *m, *v;
    const double *factors;
    int64_t size;
    double max_grad_norm, max_kl;
} Optimizer;

/* Of deep Q-learning (Mnih et al. 2015): the target network, which moves every `period` steps,
 * `taken` of them before the epoch. `doubled`: double Q-learning, in which the online network
 * chooses the action and the target network values it (van Hasselt et al. 2016, eq. 4). */
typedef struct {
    float *parameters;
    int64_t period, taken, doubled;
    double tau;
} Target;

/* `rows` are those of each step's inputs, `order` is that of the steps. What an epoch writes:
 * `numbers` of each step, in this order, [steps, NUMBERS]; `means` of each minibatch, and its
 * gradient's norm, [minibatch_count, NUMBERS + 1]. */
typedef struct {
    Samples samples;
    const int64_t *rows, *order;
    float *workspace;
    uint8_t *scratch;
    float *numbers;
    double *means;
    int64_t steps, minibatch_count, slice_rows;
} Epoch;

/* Copy the rows of all columns of `count` steps, from the place `start` in the order on. */
static Samples gather(const Epoch *epoch, int64_t start, int64_t count) {
    Samples slice = epoch->samples;
    uint8_t *scratch = epoch->scratch;
    for (int64_t c = 0; c < COLUMNS; c++) {
        const uint8_t *column = slice.data[c];
        if (!column) continue;
        slice.data[c] = scratch;
        for (int64_t i = start; i < start + count; i++, scratch += slice.bytes[c]) {
            int64_t row = c == INPUTS ? epoch->rows[epoch->order[i]] : epoch->order[i];
            const uint8_t *from = column + row * slice.bytes[c];
            if (slice.bytes[c] == sizeof(float)) *(float *)scratch = *(const float *)from;
            else __builtin_memcpy(scratch, from, slice.bytes[c]);
        }
        scratch += -(uintptr_t)scratch & 63;
    }
    return slice;
}

/* Rewards become targets: r + discount Q'(s', a'), with the allowed action of the greatest value,
 * by Q' or by Q; one that is not a number counts as the greatest. */
static void add_next_values(const Network *network, const float *online, const Target *target,
                            const Samples *slice, int64_t rows, float *workspace) {
    const float *x = slice->data[NEXT], *discounts = slice->data[DISCOUNTS];
    const uint8_t *mask = slice->data[MASKS];
    float *targets = (float *)slice->data[TARGETS];
    int32_t *best = (int32_t *)loss_buffers(network, rows, workspace);
    int64_t width = width_of(network);
    const float *choosing = target->doubled ? online : target->parameters;
    const float *values = layers_forward(network, choosing, x, rows, workspace);
    for (int64_t i = 0; i < rows; i++) {
        float most = -__builtin_inff();
        best[i] = 0;
        for (int64_t j = 0; j < width; j++) {
            float value = values[i * width + j];
            if (allowed(mask, j) && most == most && !(value <= most)) most = value, best[i] = j;
        }
        if (mask) mask += slice->bytes[MASKS];
    }
    if (target->doubled) values = layers_forward(network, target->parameters, x, rows, workspace);
    for (int64_t i = 0; i < rows; i++) targets[i] += discounts[i] * values[i * width + best[i]];
}

/* Gradient steps on the minibatches from `begin` to `end`, or to one whose KL divergence is above
 * the limit, which takes no step; returns the number of steps taken. `target` is null, but for
 * Q-learning, which has no limit. */
int64_t epoch(const Network *network, const Loss *loss, const Target *target, const Epoch *epoch,
              const Optimizer *o, int64_t begin, int64_t end) {
    for (int64_t minibatch = begin; minibatch < end; minibatch++) {
        int64_t first = epoch->steps * minibatch / epoch->minibatch_count;
        int64_t last = epoch->steps * (minibatch + 1) / epoch->minibatch_count;
        double *means = epoch->means + minibatch * (NUMBERS + 1), share = 1.0 / (last - first);
        for (int64_t i = 0; i < o->size; i++) o->gradient[i] = 0;
        for (int64_t start = first; start < last; start += epoch->slice_rows) {
            int64_t rows = last - start < epoch->slice_rows ? last - start : epoch->slice_rows;
            Samples slice = gather(epoch, start, rows);
            if (target)
                add_next_values(network, o->parameters, target, &slice, rows, epoch->workspace);
            add_gradient(network, o->parameters, loss, &slice, rows, epoch->workspace, o->gradient,
                         epoch->numbers + start * NUMBERS, means);
        }
        for (int64_t i = 0; i < NUMBERS; i++) means[i] *= share;
        double norm = __builtin_sqrt(sum_of_products(o->gradient, o->gradient, o->size)) * share;
        means[NUMBERS] = norm;
        /* Not "greater than": a divergence of NaN exceeds the limit, too. */
        if (!target && !((float)means[KL] <= (float)o->max_kl)) return minibatch - begin;
        const double *factors = o->factors + 2 * minibatch;
        double factor = norm > o->max_grad_norm ? share * o->max_grad_norm / norm : share;
        adam(o->parameters, o->gradient, o->m, o->v, factor, factors[0], factors[1], o->size);
        if (target && (target->taken + minibatch + 1) % target->period == 0)
            follow(target->parameters, o->parameters, target->tau, o->size);
    }
    return end - begin;
}
