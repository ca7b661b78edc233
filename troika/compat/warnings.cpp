#include "troika/compat/warnings.h"

#include <utility>

#include "troika/compat/torch.h"

namespace troika::compat {

#if TROIKA_TORCH_VERSION >= 200
namespace handling = c10::WarningUtils;
#else
namespace handling = c10::Warning;
#endif

namespace {

std::string place_of(const c10::SourceLocation& place) {
  return c10::str(place.file, ":", place.line);
}

}  // namespace

struct WarningGuard::Handler : c10::WarningHandler {
  explicit Handler(Take given) : take(std::move(given)), guard(this) {}

#if TROIKA_TORCH_VERSION >= 200
  void process(const c10::Warning& warning) override {
    take(warning.msg(), place_of(warning.source_location()));
  }
#else
  void process(const c10::SourceLocation& place, const std::string& message, bool) override {
    take(message, place_of(place));
  }
#endif

  const Take take;
  const handling::WarningHandlerGuard guard;
};

WarningGuard::WarningGuard(Take take) : handler_(std::make_unique<Handler>(std::move(take))) {}

WarningGuard::~WarningGuard() = default;

WarningsOfThread::WarningsOfThread() : handler_(handling::get_warning_handler()) {}

void WarningsOfThread::during(const std::function<void()>& body) const {
  const handling::WarningHandlerGuard guard(handler_);
  body();
}

}  // namespace troika::compat
