// The table of back ends that connect processes. Each is one folder with why_unavailable() and
// make(); where it cannot be built, CMake picks an empty twin that says so.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troika/cluster/environment.h"
#include "troika/cluster/rendezvous.h"
#include "troika/cluster/run_secret.h"
#include "troika/comm/group_impl.h"
#include "troika/net/frame_cipher.h"

namespace troika::comm {

// The ranks of a world that have found each other, before they are connected for data.
struct Meeting {
  cluster::Environment environment;
  std::shared_ptr<cluster::Rendezvous> rendezvous;
  std::shared_ptr<Lifeline> lifeline;
  std::vector<int> nodes;  // of each rank, from 0 in order of first appearance
  // How tcp protects messages.
  net::Protection protection = net::Protection::none;
  int streams = 1;  // of tcp, as GroupOptions says
  // Whether ranks of one node reach each other another way.
  bool only_between_nodes = false;

  Station station(std::string backend) const;
};

// Where the ranks of a world gather, and the secret by which they prove that they belong to it.
struct MeetingPlace {
  cluster::Environment environment;
  cluster::RunSecret secret;
};

// Gathers the ranks and finds out which share a node. Blocks until all are there. Throws what
// Rendezvous::join throws.
Meeting meet(const MeetingPlace& place, Deadline deadline);

struct Backend {
  std::string_view name;
  // Empty when the back end works in this build and on this machine; else the reason and what to do
  // about it.
  std::string (*why_unavailable)();
  // Connects all ranks; called by all of them. Blocks until they are connected or the deadline
  // passes. Throws the same kind of Error on every rank.
  std::shared_ptr<GroupImpl> (*make)(const Meeting& meeting, Deadline deadline);
};

std::span<const Backend> backends();

// The row of that name; throws Error(usage) for an unknown or unavailable one.
const Backend& backend(std::string_view name);

// The protection of that name (GroupOptions) for messages of a back end. Throws Error(usage) for an
// unknown one, and for one that the back end cannot give.
net::Protection protection_for(std::string_view backend, const std::string& name);

namespace shm {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
}  // namespace shm

namespace tcp {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
}  // namespace tcp

namespace gloo {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
}  // namespace gloo

namespace mpi {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
// For the ranks of MPI_COMM_WORLD: rank 0 chooses the place, and makes a secret unless its
// environment gives it one, in which case every rank takes its own. Called by all of them.
// Initialises MPI where the program has not. Throws Error(usage) when MPI does not see the
// environment's ranks.
MeetingPlace place_to_meet(cluster::Environment environment, Deadline deadline);
}  // namespace mpi

}  // namespace troika::comm
