"""What engines call today, by the names of the libraries that they call: an engine changes one
import. `blockscale.compat.deep_gemm` is DeepGEMM's FP8 part, `blockscale.compat.hpc` hpc-ops'
products of groups and layers of experts in FP8, `blockscale.compat.lightx2v` LightX2V's quantizers,
products and weight classes."""
