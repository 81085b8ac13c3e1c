"""One self-contained HTML page about what converting a checkpoint cost and saved.

    python -m blockscale.report ORIGINAL CONVERTED... --output report.html

`blockscale compare A B --html report.html` calls this. Plots need matplotlib:
`pip install '.[report]'` in a checkout brings it.
"""

from .page import write_report

__all__ = ["write_report"]
