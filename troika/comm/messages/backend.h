// The table of back ends that connect processes. Each back end is one folder with why_unavailable()
// and make(). Where a back end cannot be built, CMake compiles a stub whose why_unavailable() gives
// the reason.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troika/cluster/discovery/environment.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/comm/messages/group_impl.h"
#include "troika/net/frame_cipher.h"

namespace troika::comm {

// The ranks of a world after rendezvous, before the data connections are made.
struct Meeting {
  cluster::Environment environment;
  std::shared_ptr<cluster::Rendezvous> rendezvous;
  std::shared_ptr<Lifeline> lifeline;
  std::vector<int> nodes;  // node of each rank, numbered from 0 by first appearance
  // Whether the ranks of this node outnumber the processors that any of them may use.
  bool is_crowded = false;
  // How back end tcp protects messages.
  net::Protection protection = net::Protection::none;
  int streams = 1;  // connections of back end tcp for each peer; see GroupOptions::streams
  // Whether this back end serves only peers on other nodes, because ranks of one node use another.
  bool only_between_nodes = false;

  GroupInfo group_info(std::string backend) const;
};

// Where the ranks of a world rendezvous, and the secret that proves membership.
struct MeetingPlace {
  cluster::Environment environment;
  cluster::RunSecret secret;
};

// Runs the rendezvous and finds out which ranks share a node. Blocks until all ranks are there.
// Throws what Rendezvous::join throws.
Meeting hold_meeting(const MeetingPlace& place, Deadline deadline);

struct Backend {
  std::string_view name;
  // Returns an empty string when the back end works in this build and on this machine; otherwise
  // the reason and how to fix it.
  std::string (*why_unavailable)();
  // Connects all ranks. Collective. Blocks until they are connected or the deadline passes. Throws
  // the same kind of Error on every rank.
  std::shared_ptr<GroupImpl> (*make)(const Meeting& meeting, Deadline deadline);
  // See most_mailbox_bytes(), for at least two ranks. Null: unknown.
  int64_t (*most_mailbox_bytes)(int ranks);
};

std::span<const Backend> backends();

// Returns the back end with this name. Throws Error(usage) if it is unknown or unavailable.
const Backend& backend(std::string_view name);

// Converts GroupOptions::protection for this back end. Throws Error(usage) if the name is unknown
// or the back end does not support it.
net::Protection protection_for(std::string_view backend, const std::string& name);

namespace shm {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
int64_t most_mailbox_bytes(int ranks);
}  // namespace shm

namespace tcp {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
int64_t most_mailbox_bytes(int ranks);
}  // namespace tcp

namespace gloo {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
}  // namespace gloo

namespace mpi {
std::string why_unavailable();
std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline);
// Returns the meeting place for the ranks of MPI_COMM_WORLD. Rank 0 chooses the place. Rank 0 also
// makes a secret, unless its environment holds one; then every rank uses the secret of its own
// environment. Collective. Initialises MPI if the program has not. Throws Error(usage) when the
// ranks of MPI differ from those of the environment.
MeetingPlace meeting_place(cluster::Environment environment, Deadline deadline);
}  // namespace mpi

}  // namespace troika::comm
