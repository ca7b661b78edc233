#include "troika/comm/end_with.h"

#include <cstdio>

#include "troika/base/error.h"
#include "troika/cluster/ranks/failure.h"
#include "troika/compat/error_text.h"

namespace troika::comm {

int end_with(const std::exception& error) noexcept {
  std::fprintf(stderr, "error: %s\n", compat::error_text(error).c_str());
  cluster::report_failure(error);
  return exit_code(error);
}

}  // namespace troika::comm
