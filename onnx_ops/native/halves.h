#pragma once
/* Conversion of 16-bit floats to float32, and back. */
#include "table.h"

void widen(int type, const uint16_t *from, float *to, int64_t count);
void narrow(int type, const float *from, uint16_t *to, int64_t count);
