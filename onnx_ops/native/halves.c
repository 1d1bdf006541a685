/* Conversion of 16-bit floats to float32, and back: rounded to the nearest value, ties to even. */
#include "halves.h"
#include <string.h>

static float as_float(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static uint32_t as_bits(float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* float16 to float32. The difference of the biases is added to the exponent: twice for infinity and NaN, which have the
 * largest exponent. A subnormal number, whose exponent is 0, is then normalized by a subtraction. */
static float widened(uint16_t half) {
    enum { BIAS = (127 - 15) << 23, EXPONENT = 0x1F << 23 };
    uint32_t bits = (uint32_t)(half & 0x7FFF) << 13, exponent = bits & EXPONENT, sign = (uint32_t)(half & 0x8000) << 16;
    bits += BIAS;
    if (exponent == EXPONENT) bits += BIAS;
    if (!exponent) bits = as_bits(as_float(bits + (1 << 23)) - as_float(BIAS + (1 << 23)));
    return as_float(bits | sign);
}

static uint16_t narrowed(float number) {
    uint32_t bits = as_bits(number), sign = bits >> 16 & 0x8000, half;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) half = 0x7E00 | (bits >> 13 & 0x1FF);                    /* NaN */
    else if (bits >= 0x47800000) half = 0x7C00;                                     /* 65536 or more */
    else if (bits < 0x38800000) half = as_bits(as_float(bits) + 0.5f) - 0x3F000000; /* subnormal */
    else half = (bits - ((127 - 15) << 23) + 0xFFF + (bits >> 13 & 1)) >> 13;
    return (uint16_t)(half | sign);
}

void widen(int type, const uint16_t *from, float *to, int64_t count) {
    if (type == HALF)
        for (int64_t k = 0; k < count; k++) to[k] = widened(from[k]);
    else
        for (int64_t k = 0; k < count; k++) to[k] = as_float((uint32_t)from[k] << 16);
}

void narrow(int type, const float *from, uint16_t *to, int64_t count) {
    if (type == HALF)
        for (int64_t k = 0; k < count; k++) to[k] = narrowed(from[k]);
    else
        for (int64_t k = 0; k < count; k++) {
            uint32_t bits = as_bits(from[k]);
            to[k] = (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 0x40
                                                                : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
        }
}
