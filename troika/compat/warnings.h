// Redirects warnings of LibTorch, which otherwise go to standard error.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace troika::compat {

// While this guard exists, warnings that LibTorch issues on this thread, and in backward passes
// that this thread starts, go to `take` instead. `place` is the line of LibTorch's source that
// warns, the same each time. Guards nest: only the innermost `take` is called.
class [[nodiscard]] WarningGuard {
 public:
  using Take = std::function<void(const std::string& message, const std::string& place)>;

  explicit WarningGuard(Take take);
  ~WarningGuard();
  WarningGuard(const WarningGuard&) = delete;
  WarningGuard& operator=(const WarningGuard&) = delete;

 private:
  struct Handler;
  std::unique_ptr<Handler> handler_;
};

}  // namespace troika::compat
