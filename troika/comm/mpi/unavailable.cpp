#include "troika/base/error.h"
#include "troika/comm/backend.h"

namespace troika::comm::mpi {

std::string why_unavailable() {
  return "no MPI library (libopenmpi-dev, libmpich-dev) was found when Troika was built";
}

std::unique_ptr<GroupImpl> make(const cluster::Environment&, Deadline) {
  throw Error("comm", ErrorKind::usage, {.what = "mpi is not available", .got = why_unavailable()});
}

}  // namespace troika::comm::mpi
