#include "troika/base/error.h"
#include "troika/comm/messages/backend.h"

namespace troika::comm::gloo {

std::string why_unavailable() {
  return "LibTorch was built without Gloo, or Gloo's headers (libgloo-dev) were missing";
}

std::shared_ptr<GroupImpl> make(const Meeting&, Deadline) {
  throw Error("comm", ErrorKind::usage,
              {.what = "gloo is not available", .got = why_unavailable()});
}

}  // namespace troika::comm::gloo
