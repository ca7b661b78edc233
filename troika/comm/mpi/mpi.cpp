// Back end `mpi`: processes of an MPI job, connected by the MPI library.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/port.h"
#include "troika/comm/backend.h"
#include "troika/comm/mpi/mpi.h"

namespace troika::comm::mpi {

namespace {

// MPI counts are ints.
constexpr size_t kPieceBytes = size_t{1} << 30;
// How long a message of a rank that has left may still be under way.
constexpr Milliseconds kOnItsWay{1000};
constexpr std::chrono::seconds kJoinTime{60};
// How long transfers that cannot be cancelled are given to end, all of a group together.
constexpr Milliseconds kCancelTime{50};

// Set when a rank gives up: MPI_Finalize would then wait for ranks that no longer come. A process
// that ends without it makes mpirun end the job, which is what is wanted.
std::atomic<bool> gave_up{false};

void check(int code, int peer) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error("comm", ErrorKind::peer,
              {.what = fmt::format("MPI failed talking to rank {}", peer), .got = text});
}

// Polls until a request that was started outside of a group is done.
void finish(MPI_Request request, Deadline deadline, const Lifeline* lifeline) {
  for (int done = 0; !done;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), 0);
    if (lifeline) lifeline->require_live();
    if (!done && deadline.passed()) {
      throw Error("comm", ErrorKind::timeout,
                  {.what = "the ranks did not all come to MPI in time"});
    }
    std::this_thread::yield();
  }
}

class MpiGroup : public GroupImpl {
 public:
  // Works on a duplicate, so its messages never meet those of the rest of the program.
  MpiGroup(Station station, std::shared_ptr<Lifeline> lifeline, MPI_Comm parent, Deadline deadline)
      : GroupImpl(std::move(station), std::move(lifeline)) {
    MPI_Request duplicated;
    check(MPI_Comm_idup(parent, &comm_, &duplicated), 0);
    finish(duplicated, deadline, this->lifeline().get());
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiGroup() override {
    lifeline()->leave();
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (lifeline()->is_cut()) {
      gave_up = true;
    } else if (!finalized) {
      MPI_Comm_free(&comm_);
    }
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return start(peer, bytes, [&](size_t at, int count, MPI_Request* request) {
      return MPI_Isend(static_cast<const char*>(data) + at, count, MPI_BYTE, peer,
                       static_cast<int>(tag), comm_, request);
    });
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return start(peer, bytes, [&](size_t at, int count, MPI_Request* request) {
      return MPI_Irecv(static_cast<char*>(data) + at, count, MPI_BYTE, peer, static_cast<int>(tag),
                       comm_, request);
    });
  }

 private:
  class MpiTransfer : public Transfer {
   public:
    MpiTransfer(const MpiGroup& group, int peer, std::vector<MPI_Request> requests)
        : group_(group), peer_(peer), requests_(std::move(requests)) {}
    // After a failed wait MPI must not write into buffers that are going away.
    ~MpiTransfer() override {
      for (auto& request : requests_) {
        if (request == MPI_REQUEST_NULL) continue;
        const auto deadline = group_.cancel_deadline();
        MPI_Cancel(&request);
        // One that cannot be cancelled any more, being under way, is given a moment to end.
        int done = 0;
        do {
          if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
        } while (!done && !deadline.passed());
      }
    }
    MpiTransfer(const MpiTransfer&) = delete;
    MpiTransfer& operator=(const MpiTransfer&) = delete;

    void wait(Deadline deadline) override {
      for (int polls = 0;; ++polls) {
        if (done()) return;
        group_.lifeline()->require_live();
        if (polls % 1024 == 0 && group_.has_left_without_it(peer_)) {
          throw Error("comm", ErrorKind::peer, {.what = fmt::format("rank {} has left", peer_)});
        }
        if (deadline.passed()) {
          throw Error("comm", ErrorKind::timeout,
                      {.what = fmt::format("no message from rank {} in time", peer_)});
        }
        // MPI progresses only while it is called; yielding keeps an oversubscribed machine moving.
        if (polls > 1000) std::this_thread::yield();
      }
    }

    bool done() override {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                        MPI_STATUSES_IGNORE),
            peer_);
      return done;
    }

   private:
    const MpiGroup& group_;
    const int peer_;
    std::vector<MPI_Request> requests_;
  };

  template <typename Start>
  std::unique_ptr<Transfer> start(int peer, size_t bytes, Start&& post) {
    std::vector<MPI_Request> requests;
    size_t at = 0;
    do {
      const size_t piece = std::min(kPieceBytes, bytes - at);
      check(post(at, static_cast<int>(piece), &requests.emplace_back()), peer);
      at += piece;
    } while (at < bytes);
    return std::make_unique<MpiTransfer>(*this, peer, std::move(requests));
  }

  // One for transfers that are cancelled one after another, as when a collective fails.
  Deadline cancel_deadline() const {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (!cancelling_ || now - cancelling_->at() > 10 * kCancelTime) {
      cancelling_ = Deadline::after(kCancelTime);
    }
    return *cancelling_;
  }

  // A message of a rank that has left is either here or on its way for a moment.
  bool has_left_without_it(int peer) const {
    const int world_rank = station().world_ranks[static_cast<size_t>(peer)];
    if (!lifeline()->has_left(world_rank)) return false;
    const std::lock_guard lock(mutex_);
    const auto noticed = left_.try_emplace(peer, Deadline::after(kOnItsWay)).first;
    return noticed->second.passed();
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::map<int, Deadline> left_;
  mutable std::optional<Deadline> cancelling_;
};

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !gave_up) MPI_Finalize();
}

// A program that called MPI_Init itself keeps owning it. Returns the level of thread support.
int initialise() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = 0;
  if (initialised) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::atexit(finalize_at_exit);
  }
  return provided;
}

// Where the ranks of a communicator meet for the control connection is agreed on over MPI itself.
cluster::Environment place_to_meet(cluster::Environment environment, MPI_Comm comm,
                                   Deadline deadline) {
  char host[MPI_MAX_PROCESSOR_NAME] = "127.0.0.1";
  int length = 0;
  if (environment.num_nodes != 1) MPI_Get_processor_name(host, &length);
  int port = environment.rank == 0 ? cluster::free_port() : 0;
  MPI_Request request;
  check(MPI_Ibcast(host, sizeof(host), MPI_CHAR, 0, comm, &request), 0);
  finish(request, deadline, nullptr);
  check(MPI_Ibcast(&port, 1, MPI_INT, 0, comm, &request), 0);
  finish(request, deadline, nullptr);
  environment.master_address = host;
  environment.master_port = port;
  return environment;
}

std::shared_ptr<GroupImpl> make_on(const Meeting& meeting, MPI_Comm comm, Deadline deadline) {
  Station station = meeting.station("mpi");
  int level = 0;
  MPI_Query_thread(&level);
  station.any_thread = level == MPI_THREAD_MULTIPLE;
  // The same on all ranks, by the standard; at least 32767, which is also what a library without
  // the attribute has to allow.
  int largest_tag = 32767;
  int* attribute = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&attribute), &found), 0);
  if (found) largest_tag = *attribute;
  station.tag_spaces = tag_spaces_within(largest_tag);
  return std::make_shared<MpiGroup>(std::move(station), meeting.lifeline, comm, deadline);
}

// Initialises MPI where that has not been done, and compares its ranks with the launcher's.
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
                   .hint = "start with mpirun alone, or choose back end gloo"});
    }
  } catch (...) {
    // A world of one can be finalised, which ends the daemon that MPI started for it.
    gave_up = size > 1;
    throw;
  }
}

}  // namespace

std::string why_unavailable() {
  return {};
}

cluster::Environment place_to_meet(cluster::Environment environment, Deadline deadline) {
  require_same_world(environment);
  return place_to_meet(std::move(environment), MPI_COMM_WORLD, deadline);
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
  const auto meeting = meet(place_to_meet(std::move(environment), comm, deadline), deadline);
  try {
    return Group(make_on(meeting, comm, deadline), options);
  } catch (const Error& error) {
    meeting.lifeline->abandon(error);
    throw;
  }
}

}  // namespace troika::comm::mpi
