// The table of back ends that connect processes. Each is one folder with why_unavailable() and
// make(); where it cannot be built, CMake picks an empty twin that says so.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "troika/cluster/environment.h"
#include "troika/comm/group_impl.h"

namespace troika::comm {

struct Backend {
  std::string_view name;
  // Empty when the back end works in this build; else the reason and what to install.
  std::string (*why_unavailable)();
  // Connects all ranks of the environment; blocks until they are there or the deadline passes.
  std::unique_ptr<GroupImpl> (*make)(const cluster::Environment& environment, Deadline deadline);
};

std::span<const Backend> backends();

// The row of that name; throws Error(usage) for an unknown or unavailable one.
const Backend& backend(std::string_view name);

namespace gloo {
std::string why_unavailable();
std::unique_ptr<GroupImpl> make(const cluster::Environment& environment, Deadline deadline);
}  // namespace gloo

namespace mpi {
std::string why_unavailable();
std::unique_ptr<GroupImpl> make(const cluster::Environment& environment, Deadline deadline);
}  // namespace mpi

}  // namespace troika::comm
