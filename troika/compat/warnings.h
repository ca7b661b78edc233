// Redirects warnings of LibTorch, which otherwise go to standard error.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace c10 {
class WarningHandler;
}

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

// Where the warnings of the thread go that makes this object: to a WarningGuard, or to standard
// error.
class WarningsOfThread {
 public:
  WarningsOfThread();
  // Calls `body` on the calling thread, whose warnings go to the same place meanwhile. The guard of
  // the other thread must exist until this returns; it is called on this thread.
  void during(const std::function<void()>& body) const;

 private:
  c10::WarningHandler* const handler_;
};

}  // namespace troika::compat
