#include "troika/base/error.h"
#include "troika/cli/bench/peers/peer.h"

namespace troika::cli::bench::mpi {

std::string why_unavailable() {
  return "no MPI library (libopenmpi-dev, libmpich-dev) was found when Troika was built";
}

std::unique_ptr<Peer> make(const comm::Group&) {
  throw Error("bench", ErrorKind::usage,
              {.what = "peer mpi is not available", .got = why_unavailable()});
}

}  // namespace troika::cli::bench::mpi
