#include "troika/base/error.h"

#include <fmt/format.h>

namespace troika {

namespace {

std::string render(std::string_view room, const ErrorText& text) {
  std::string line = fmt::format("[{}] {}", room, text.what);
  if (!text.got.empty()) line += fmt::format("; got {}", text.got);
  if (!text.expected.empty()) {
    line += fmt::format("{} expected {}", text.got.empty() ? ";" : ",", text.expected);
  }
  if (!text.hint.empty()) line += fmt::format(" ({})", text.hint);
  return line;
}

}  // namespace

Error::Error(std::string_view room, ErrorKind kind, const ErrorText& text)
    : std::runtime_error(render(room, text)), kind_(kind) {}

int exit_code(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return static_cast<int>(ours ? ours->kind() : ErrorKind::failure);
}

void detail::check_failed(const char* condition, const char* file, int line,
                          const std::string& message) {
  throw CheckError(fmt::format("{}:{}: {} (check failed: {})", file, line, message, condition));
}

}  // namespace troika
