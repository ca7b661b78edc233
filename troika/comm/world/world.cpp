#include "troika/comm/world/world.h"

#include <algorithm>

#include "troika/base/file.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/backend.h"
#include "troika/comm/messages/routed.h"
#include "troika/comm/nccl/nccl.h"
#include "troika/comm/shm/shm.h"

namespace troika::comm {

namespace {

bool started_by_mpi(const cluster::Environment& environment) {
  return environment.launcher == "openmpi" || environment.launcher == "pmi";
}

std::string between_nodes(const cluster::Environment& environment) {
  return started_by_mpi(environment) && mpi::why_unavailable().empty() ? "mpi" : "tcp";
}

std::shared_ptr<GroupImpl> connect(Meeting meeting, const WorldOptions& options,
                                   Deadline deadline) {
  const auto make = [&](const std::string& name) {
    meeting.protection = protection_for(name, options.group.protection);
    meeting.streams = options.group.streams;
    return backend(name).make(meeting, deadline);
  };
  if (options.backend != "auto") return make(options.backend);
  const bool one_node = std::ranges::all_of(meeting.nodes, [](int node) { return node == 0; });
  auto shared = shm::make_if_possible(meeting, deadline);
  if (shared && one_node) return shared;
  meeting.only_between_nodes = shared != nullptr;
  auto far = make(between_nodes(meeting.environment));
  return shared ? make_routed(std::move(shared), std::move(far)) : far;
}

// Other users cannot guess the name, so they cannot create the folder before the first failing rank
// does. Collective; rank 0 chooses the name even if only other ranks need it.
std::filesystem::path flight_record_folder(const Meeting& meeting, Deadline deadline) {
  constexpr const char* kKey = "comm/flight-record";
  auto& rendezvous = *meeting.rendezvous;
  if (meeting.environment.rank == 0) {
    rendezvous.set(kKey, "troika-flight-record-" + random_name(), deadline);
  }
  if (const auto folder = cluster::process_variable("TROIKA_FLIGHT_RECORD")) return *folder;
  const auto name = rendezvous.get(kKey, deadline);
  std::error_code none;
  const auto parent = std::filesystem::temp_directory_path(none);
  // A rank without a temporary folder writes no records.
  return none ? std::filesystem::path() : parent / name;
}

}  // namespace

std::string choose_backend(const cluster::Environment& environment) {
  if (environment.world_size == 1) return "local";
  return environment.num_nodes == 1 ? "shm" : "shm+" + between_nodes(environment);
}

Group world(const WorldOptions& options) {
  return world(cluster::discover(), options);
}

Group world(const cluster::Environment& environment, const WorldOptions& options) {
  const auto& name = options.backend;
  // Invalid names are refused before any rank waits.
  if (name != "auto") backend(name);
  protection_for(name == "auto" ? "tcp" : name, options.group.protection);
  if (environment.world_size == 1 && name == "auto") return local::alone(options.group);
  const auto deadline = Deadline::after(options.join_timeout);
  const bool by_mpi = name == "mpi" || (name == "auto" && environment.num_nodes != 1 &&
                                        between_nodes(environment) == "mpi");
  const auto meeting =
      hold_meeting(by_mpi ? mpi::meeting_place(environment, deadline)
                          : MeetingPlace{environment, cluster::secret_of_ranks(environment)},
                   deadline);
  // A rank that fails here must not seem to leave normally.
  try {
    GroupOptions group = options.group;
    if (group.flight_record.empty()) group.flight_record = flight_record_folder(meeting, deadline);
    auto impl = connect(meeting, options, deadline);
    // NCCL does not protect messages, so with protection, tensors on CUDA devices go over the host.
    if (group.protection == "none") impl = nccl::beside(std::move(impl));
    return Group(std::move(impl), group);
  } catch (const Error& error) {
    meeting.lifeline->abandon(error);
    throw;
  }
}
}  // namespace troika::comm
