// Back end `mpi`: processes of an MPI job, connected by the MPI library.
#define OMPI_SKIP_MPICXX 1
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "troika/base/error.h"
#include "troika/cluster/port.h"
#include "troika/cluster/rendezvous.h"
#include "troika/comm/backend.h"
#include "troika/comm/lifeline.h"

namespace troika::comm::mpi {

namespace {

// MPI counts are ints.
constexpr size_t kPieceBytes = size_t{1} << 30;

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

class MpiGroup : public GroupImpl {
 public:
  // Works on a duplicate, so its messages never meet those of the rest of the program.
  MpiGroup(MPI_Comm parent, std::shared_ptr<cluster::Rendezvous> rendezvous)
      : lifeline_(std::move(rendezvous), [] {}) {
    check(MPI_Comm_dup(parent, &comm_), 0);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiGroup() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized && !is_broken()) MPI_Comm_free(&comm_);
  }

  std::string_view backend() const override { return "mpi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

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

  void abandon(const std::string& reason) override {
    gave_up = true;
    abandoned_ = true;
    lifeline_.abandon(reason);
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
        MPI_Cancel(&request);
        MPI_Request_free(&request);
      }
    }
    MpiTransfer(const MpiTransfer&) = delete;
    MpiTransfer& operator=(const MpiTransfer&) = delete;

    void wait(Deadline deadline) override {
      for (int polls = 0;; ++polls) {
        int done = 0;
        check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                          MPI_STATUSES_IGNORE),
              peer_);
        if (done) return;
        group_.require_live();
        if (deadline.passed()) {
          throw Error("comm", ErrorKind::timeout,
                      {.what = fmt::format("no message from rank {} in time", peer_)});
        }
        // MPI progresses only while it is called; yielding keeps an oversubscribed machine moving.
        if (polls > 1000) std::this_thread::yield();
      }
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

  bool is_broken() const { return abandoned_ || lifeline_.is_cut(); }

  void require_live() const {
    if (abandoned_) {
      throw Error("comm", ErrorKind::peer, {.what = "this rank has abandoned the group"});
    }
    lifeline_.require_uncut();
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::atomic<bool> abandoned_ = false;
  Lifeline lifeline_;
};

// The control connection of an MPI job: where rank 0 listens is agreed on over MPI itself.
std::shared_ptr<cluster::Rendezvous> meet(cluster::Environment environment, Deadline deadline) {
  char host[MPI_MAX_PROCESSOR_NAME] = "127.0.0.1";
  int length = 0;
  if (environment.num_nodes != 1) MPI_Get_processor_name(host, &length);
  int port = environment.rank == 0 ? cluster::free_port() : 0;
  check(MPI_Bcast(host, sizeof(host), MPI_CHAR, 0, MPI_COMM_WORLD), 0);
  check(MPI_Bcast(&port, 1, MPI_INT, 0, MPI_COMM_WORLD), 0);
  environment.master_address = host;
  environment.master_port = port;
  return cluster::Rendezvous::join(environment, deadline);
}

void finalize_at_exit() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized && !gave_up) MPI_Finalize();
}

// A program that called MPI_Init itself keeps owning it.
void initialise() {
  int initialised = 0;
  MPI_Initialized(&initialised);
  int provided = 0;
  if (initialised) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::atexit(finalize_at_exit);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw Error("comm", ErrorKind::usage,
                {.what = "MPI's thread support is too low",
                 .got = fmt::format("level {}", provided),
                 .expected = fmt::format("MPI_THREAD_MULTIPLE ({})", MPI_THREAD_MULTIPLE),
                 .hint = "call MPI_Init_thread with MPI_THREAD_MULTIPLE"});
  }
}

}  // namespace

std::string why_unavailable() {
  return {};
}

std::unique_ptr<GroupImpl> make(const cluster::Environment& environment, Deadline deadline) {
  initialise();
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  try {
    cluster::require_world_size(environment, size, "MPI");
  } catch (...) {
    // A world of one can be finalised, which ends the daemon that MPI started for it.
    gave_up = size > 1;
    throw;
  }
  return std::make_unique<MpiGroup>(MPI_COMM_WORLD, meet(environment, deadline));
}

}  // namespace troika::comm::mpi
