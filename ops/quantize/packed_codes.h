// The codes of a packed row, one at a time: what SIMD loops fall back on for their tails.
#pragma once

#include "core/packing.h"
