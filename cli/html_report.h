// compare --html: the page is made by the Python package, run as a program of its own.
#pragma once

#include <string>
#include <vector>

namespace blockscale::cli {

struct HtmlReport {
  std::string a;
  std::string b;
  std::string output;
  std::vector<std::string> tensors;  // patterns; empty: everything
  std::string conversion;            // file of convert's --json; empty: none
  int threads = 0;
  bool overwrite = false;
};

/// Throws already_exists, not_found or invalid_argument if `report.output` cannot become a file;
/// write_html_report finds the same, but only after the checkpoints were compared.
void check_html_output(const HtmlReport& report);

/// Runs `python -m blockscale.report` and waits for it. The Python is BLOCKSCALE_PYTHON, else
/// python3 on PATH. Throws not_found where there is no such Python, or it lacks the package or
/// matplotlib, and otherwise the error that the program ended with. `output` appears whole or not
/// at all.
void write_html_report(const HtmlReport& report);

}  // namespace blockscale::cli
