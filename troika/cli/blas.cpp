#include "troika/cli/blas.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "troika/base/clock.h"
#include "troika/compat/torch.h"

namespace troika::cli {

namespace {

constexpr std::array<std::pair<const char*, const char*>, 6> kNames{{{"openblas", "OpenBLAS"},
                                                                     {"mkl", "MKL"},
                                                                     {"blis", "BLIS"},
                                                                     {"atlas", "ATLAS"},
                                                                     {"/blas/", "reference"},
                                                                     {"libblas", "reference"}}};

// Asks the dynamic loader, because distributions use links to choose the BLAS behind one name.
std::string library_of_sgemm() {
  void* symbol = ::dlsym(RTLD_DEFAULT, "sgemm_");
  Dl_info info{};
  if (!symbol || !::dladdr(symbol, &info) || !info.dli_fname) return {};
  std::error_code none;
  const auto path = std::filesystem::canonical(info.dli_fname, none);
  return none ? info.dli_fname : path.string();
}

double measure_gflops() {
  constexpr int64_t kSize = 512;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto a = at::rand({kSize, kSize});
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    const Stopwatch watch;
    at::mm(a, a);
    best = std::min(best, watch.seconds());
  }
  at::set_num_threads(threads);
  return 2.0 * kSize * kSize * kSize / best * 1e-9;
}

}  // namespace

Blas find_blas() {
  Blas blas;
  blas.library = library_of_sgemm();
  blas.name = blas.library.empty() && at::hasMKL() ? "MKL" : "unknown";
  for (const auto& [part, name] : kNames) {
    if (blas.library.find(part) != std::string::npos) {
      blas.name = name;
      break;
    }
  }
  blas.gflops = measure_gflops();
  return blas;
}

}  // namespace troika::cli
