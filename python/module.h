// The parts that python/module.cpp assembles.
#pragma once

#include "arrays.h"
#include "blockscale/quantize.h"

namespace blockscale::python {

void bind_dlpack(nb::module_& module);      // arrays of any DLPack library
void bind_quantizers(nb::module_& module);  // quantize, dequantize
void bind_products(nb::module_& module);    // gemm
void bind_linear(nb::module_& module);      // what nn.Linear calls
void bind_threads(nb::module_& module);     // whose threads do the CPU's work
void bind_grouped_products(nb::module_& module);
void bind_moe(nb::module_& module);          // route, moe_sort, moe
void bind_checkpoints(nb::module_& module);  // Checkpoint, convert, compare

}  // namespace blockscale::python
