#include "troika/base/error.h"
#include "troika/comm/messages/backend.h"

namespace troika::comm::mpi {

std::string why_unavailable() {
  return "no MPI library (libopenmpi-dev, libmpich-dev) was found when Troika was built";
}

namespace {

Error unavailable() {
  return Error("comm", ErrorKind::usage,
               {.what = "mpi is not available", .got = why_unavailable()});
}

}  // namespace

MeetingPlace meeting_place(cluster::Environment, Deadline) {
  throw unavailable();
}

std::shared_ptr<GroupImpl> make(const Meeting&, Deadline) {
  throw unavailable();
}

}  // namespace troika::comm::mpi
