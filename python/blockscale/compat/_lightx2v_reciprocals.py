"""What an H200's `rcp.approx.ftz.f32` gives for the scales of NVFP4's blocks."""

from __future__ import annotations

#: Bits of float32 for each code of e4m3, 0 for those of 0 and NaN; tools/record_rcp.py prints them.
#: Empty: they are not recorded yet, and what needs them is refused.
RECIPROCALS: tuple[int, ...] = ()
