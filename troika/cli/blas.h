// Finds the BLAS library that LibTorch's matrix products use, and its speed.
#pragma once

#include <string>

namespace troika::cli {

struct Blas {
  std::string name;     // "OpenBLAS", "MKL", "reference", "unknown", ...
  std::string library;  // path of the shared library
  double gflops = 0;    // in a float32 product of 512 x 512 matrices on one thread
};

Blas find_blas();

}  // namespace troika::cli
