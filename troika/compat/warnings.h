// Warnings of LibTorch, which it would print to standard error each time that it gives them.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace troika::compat {

// While it lives, warnings that LibTorch gives on this thread go to `take` instead, and those of
// backward passes that this thread calls. `place` is the line of LibTorch's source that warns, the
// same each time. Guards nest: the innermost takes.
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
