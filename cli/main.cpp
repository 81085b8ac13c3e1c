#include "blockscale/tensor.h"

int main() {
  return 0;
}
