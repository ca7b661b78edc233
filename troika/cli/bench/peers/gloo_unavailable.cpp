#include "troika/base/error.h"
#include "troika/cli/bench/peers/peer.h"

namespace troika::cli::bench::gloo {

std::string why_unavailable() {
  return "LibTorch was built without Gloo, or Gloo's headers (libgloo-dev) were missing";
}

std::unique_ptr<Peer> make(const comm::Group&) {
  throw Error("bench", ErrorKind::usage,
              {.what = "peer gloo is not available", .got = why_unavailable()});
}

}  // namespace troika::cli::bench::gloo
