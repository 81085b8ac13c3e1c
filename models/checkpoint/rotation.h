// The rotation of comfy-kitchen's ConvRot: rows times a normalised Hadamard matrix.
#pragma once

#include <cmath>
#include <cstdint>

namespace blockscale::models {

/// Whether there is such a matrix of this size: a power of 4, of at least 4.
constexpr bool is_rotation_size(std::int64_t size) {
  if (size < 4) return false;
  while (size % 4 == 0) size /= 4;
  return size == 1;
}

/// Multiplies each `size` of the `count` values by the matrix whose element (i, j) is 1 /
/// sqrt(size) times -1 for each digit of i and j in base 4 that add up to 3. It is its own inverse.
inline void rotate(float* values, std::int64_t count, std::int64_t size) {
  for (std::int64_t stride = 1; stride < size; stride *= 4) {
    for (std::int64_t begin = 0; begin < count; begin += 4 * stride) {
      for (float* v = values + begin; v < values + begin + stride; ++v) {
        float& second = v[stride];
        float& third = v[2 * stride];
        float& fourth = v[3 * stride];
        const float sum = v[0] + second, difference = v[0] - second;
        const float other_sum = third + fourth, other_difference = third - fourth;
        v[0] = sum + other_difference;
        second = sum - other_difference;
        third = difference + other_sum;
        fourth = other_sum - difference;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(size));  // a power of two
  for (std::int64_t i = 0; i < count; ++i) values[i] *= norm;
}

}  // namespace blockscale::models
