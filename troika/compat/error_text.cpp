#include "troika/compat/error_text.h"

#include <cstdlib>
#include <string_view>

#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::compat {

std::string error_text(const std::exception& problem) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&problem);
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (!from_torch || (wanted && std::string_view(wanted) == "1")) return problem.what();
  return std::string(trim(from_torch->what_without_backtrace()));
}

}  // namespace troika::compat
