// Back end `mpi`: processes of an MPI job, connected by the MPI library.
#include <fmt/format.h>
#include <string.h>

#include <cstdlib>
#include <utility>

#include "troika/base/error.h"
#include "troika/cluster/discovery/port.h"
#include "troika/comm/messages/backend.h"
#include "troika/comm/mpi/mpi_group.h"

namespace troika::comm::mpi {

namespace {

constexpr std::chrono::seconds kJoinTime{60};

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !gave_up) MPI_Finalize();
}

// Initialises MPI unless the program has. A program that called MPI_Init itself keeps ownership of
// MPI. Returns the level of thread support.
int initialise() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = 0;
  if (initialised) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::atexit(finalize_at_exit);
    std::at_quick_exit(finalize_at_exit);
  }
  return provided;
}

// Sent by rank 0 to the other ranks. Sent as raw memory.
struct Invitation {
  char host[MPI_MAX_PROCESSOR_NAME] = "127.0.0.1";
  int port = 0;
  char secret[2 * net::Secret::kSize + 1] = {};  // in hexadecimal; empty: each rank uses its own

  Invitation() = default;
  Invitation(const Invitation&) = delete;
  Invitation& operator=(const Invitation&) = delete;
  ~Invitation() { ::explicit_bzero(this, sizeof(Invitation)); }
};

// The meeting place for the control connection is broadcast over MPI, and so is the secret, because
// processes on several machines may have no other way to share it.
MeetingPlace meeting_place(cluster::Environment environment, MPI_Comm comm, Deadline deadline) {
  Invitation invitation;
  if (environment.rank == 0) {
    int length = 0;
    if (environment.num_nodes != 1) MPI_Get_processor_name(invitation.host, &length);
    invitation.port = cluster::free_port();
    if (!cluster::is_secret_given()) {
      net::Secret::random().to_hex().copy(invitation.secret, 2 * net::Secret::kSize);
    }
  }
  MPI_Request request;
  check(MPI_Ibcast(&invitation, sizeof(invitation), MPI_BYTE, 0, comm, &request), 0);
  finish(request, deadline, nullptr);
  environment.master_address = invitation.host;
  environment.master_port = invitation.port;
  if (invitation.secret[0] == '\0') return {environment, cluster::secret_of_ranks(environment)};
  return {environment, {net::Secret::parse(invitation.secret, "MPI"), "rank 0, over MPI"}};
}

std::shared_ptr<GroupImpl> make_on(const Meeting& meeting, MPI_Comm comm, Deadline deadline) {
  GroupInfo info = meeting.group_info("mpi");
  int level = 0;
  MPI_Query_thread(&level);
  info.any_thread = level == MPI_THREAD_MULTIPLE;
  info.receives_any = true;
  // The standard guarantees the same value on all ranks, and at least 32767, which is assumed for a
  // library without the attribute.
  int largest_tag = 32767;
  int* attribute = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&attribute), &found), 0);
  if (found) largest_tag = *attribute;
  info.tag_spaces = tag_spaces_within(largest_tag);
  return make_group(std::move(info), meeting.lifeline, comm, meeting.is_crowded, deadline);
}

// Initialises MPI if necessary, and compares its ranks with the launcher's.
void require_same_world(const cluster::Environment& environment) {
  initialise();
  int size = 0;
  int rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  try {
    cluster::require_world_size(environment, size, "MPI");
    if (rank != environment.rank) {
      throw Error("comm", ErrorKind::usage,
                  {.what = "the launcher and MPI number the ranks in different ways",
                   .got = fmt::format("rank {} from MPI", rank),
                   .expected = cluster::describe(environment),
                   .hint = "start with mpirun alone, or choose back end tcp"});
    }
  } catch (...) {
    // A world of one rank can call MPI_Finalize, which ends the daemon that MPI started for it.
    gave_up = size > 1;
    throw;
  }
}

}  // namespace

std::string why_unavailable() {
  return {};
}

MeetingPlace meeting_place(cluster::Environment environment, Deadline deadline) {
  require_same_world(environment);
  return meeting_place(std::move(environment), MPI_COMM_WORLD, deadline);
}

std::shared_ptr<GroupImpl> make(const Meeting& meeting, Deadline deadline) {
  require_same_world(meeting.environment);
  return make_on(meeting, MPI_COMM_WORLD, deadline);
}

Group group_of(MPI_Comm comm, const GroupOptions& options) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (!initialised) {
    throw Error("comm", ErrorKind::usage,
                {.what = "a group of an MPI communicator before MPI_Init",
                 .expected = "MPI_Init_thread to have been called"});
  }
  protection_for("mpi", options.protection);
  cluster::Environment environment{.launcher = "openmpi", .run_id = "MPI_Comm"};
  MPI_Comm_rank(comm, &environment.rank);
  MPI_Comm_size(comm, &environment.world_size);
  MPI_Comm node;
  check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, environment.rank, MPI_INFO_NULL, &node), 0);
  MPI_Comm_rank(node, &environment.local_rank);
  MPI_Comm_size(node, &environment.local_world_size);
  MPI_Comm_free(&node);
  const bool one_node = environment.local_world_size == environment.world_size;
  environment.num_nodes = one_node ? 1 : -1;
  environment.node_rank = one_node ? 0 : -1;
  const auto deadline = Deadline::after(kJoinTime);
  const auto meeting =
      hold_meeting(meeting_place(std::move(environment), comm, deadline), deadline);
  try {
    return Group(make_on(meeting, comm, deadline), options);
  } catch (const Error& error) {
    meeting.lifeline->abandon(error);
    throw;
  }
}

}  // namespace troika::comm::mpi
