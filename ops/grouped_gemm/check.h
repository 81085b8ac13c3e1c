// check_grouped_gemm of any implementation: what it needs to know is where D is from.
#pragma once

#include <cstdint>

#include "blockscale/grouped_gemm.h"
#include "ops/gemm/path.h"

namespace blockscale::grouped_gemm_detail {

/// Of validated arguments whose memory the host can read.
void check_groups(const GroupedGemmArguments& validated);

/// Throws unsupported for arguments whose D has no bound of an element.
void check_is_plain(const GroupedGemmArguments& arguments);

/// Of validated arguments that both of the above accept.
GemmCheck check_elements(const GroupedGemmArguments& validated, std::int64_t samples,
                         gemm_detail::GemmPath path);

}  // namespace blockscale::grouped_gemm_detail
