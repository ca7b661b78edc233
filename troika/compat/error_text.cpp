#include "troika/compat/error_text.h"

#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <typeinfo>

#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::compat {

std::string error_text(const std::exception& problem) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&problem);
  const char* wanted = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (!from_torch || (wanted && std::string_view(wanted) == "1")) return problem.what();
  return std::string(trim(from_torch->what_without_backtrace()));
}

bool is_torch_error(const std::exception& problem) {
  if (dynamic_cast<const c10::Error*>(&problem)) return true;
  // at::infer_size() throws a std::runtime_error.
  const std::string_view text = problem.what();
  return typeid(problem) == typeid(std::runtime_error) && text.starts_with("shape '[") &&
         text.find("is invalid for input of size") != std::string_view::npos;
}

}  // namespace troika::compat
