// Which BLAS library LibTorch's matrix products end up in, and how fast it is.
#pragma once

#include <string>

namespace troika::cli {

struct Blas {
  std::string name;     // "OpenBLAS", "MKL", "reference", "unknown", ...
  std::string library;  // path of the shared library
  double gflops = 0;    // of a float32 product of 512 x 512 matrices on one thread
};

Blas find_blas();

}  // namespace troika::cli
