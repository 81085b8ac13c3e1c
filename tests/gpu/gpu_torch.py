"""torch, where it sees a GPU. Elsewhere a test module that imports this is skipped, or fails where
BLOCKSCALE_REQUIRE_GPU is set."""

from __future__ import annotations

import os
from typing import Any

import pytest

try:
    import torch

    problem = "" if torch.cuda.is_available() else "torch sees no GPU"
except ImportError as error:
    problem = f"torch cannot be imported: {error}"
if problem and os.environ.get("BLOCKSCALE_REQUIRE_GPU"):
    pytest.fail(f"{problem}, and BLOCKSCALE_REQUIRE_GPU is set", pytrace=False)
if problem:
    pytest.skip(problem, allow_module_level=True)


def normal(*shape: int, seed: int = 0, dtype: Any = torch.bfloat16) -> Any:
    """The same values on every machine, on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
