// A handle to a communicator: the collectives of a fixed set of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call.h"
#include "troika/comm/group_impl.h"
#include "troika/comm/reduce.h"

namespace troika::comm {

class SendingEdge;
class ReceivingEdge;

// A collective under way. Copies share it; dropping it does not cancel anything.
class Work {
 public:
  // Blocks until the collective has finished on this rank and its tensors may be used: those of a
  // device by what is queued afterwards on this thread's current stream, for which the collective
  // may still go on when this returns. Throws what it failed with: Error `timeout` or `peer`, or
  // `usage` when ranks made different calls. Returns or throws at the latest when this call and
  // each one queued before it has had the group's time-out; after the first failure the rest fail
  // at once.
  void wait() const;
  // The same, but throws Error(timeout) when that is not so by the deadline. A collective goes on
  // meanwhile, and wait() may be called again; a message between two ranks has then failed, and the
  // group with it.
  void wait(Deadline deadline) const;
  bool done() const;

  // When this rank carried the collective out, the wait for other ranks included; nothing unless it
  // is done and a thread of the group did it beside the caller.
  struct Times {
    Clock::time_point start;
    Clock::time_point end;
  };
  std::optional<Times> times() const;

  struct State;

 private:
  friend class Group;
  friend class SendingEdge;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // none: was done when the call returned
};

struct GroupOptions {
  // How long one collective may take once its turn has come on this rank.
  Milliseconds timeout = std::chrono::minutes(5);
  // How long one may take before a warning names the ranks that have not come; zero for never.
  Milliseconds stall_warning = std::chrono::seconds(30);
  // For every all-reduce that names none itself.
  Algorithm algorithm = Algorithm::automatic;
  // Where every rank writes its flight record when the group fails, as <group>-rank<r>.json; empty
  // for nowhere.
  std::filesystem::path flight_record = {};
  // How a world's messages between processes are protected on their way, the same on all ranks:
  // "none", "authenticated" or "encrypted". Only back end tcp protects them, others refuse; shared
  // memory needs none. Whatever it is, only who holds the run's secret can connect to tcp.
  std::string protection = "none";
  // Connections over which back end tcp sends long messages of a pair of ranks, 1 to
  // net::kMostStreams. More than one is for links that a single connection does not fill.
  int streams = 1;
};

// How one collective is called.
struct CallOptions {
  // Names the call in errors and records, beside the place in the source.
  std::string_view label = {};
  // Returns at once, and a thread of the group does the work while the caller computes; its tensors
  // must not be touched until wait() has returned. Else the collective is done when the call
  // returns, without a change of threads.
  bool async_op = false;
  // All-reduce only: overrides the group's.
  Algorithm algorithm = Algorithm::automatic;
};

// A message of a batch.
struct PointToPoint {
  Direction direction = Direction::send;
  at::Tensor tensor;  // sent, or received into
  int peer = 0;
  int tag = 0;
};

struct EdgeOptions {
  // How many tensors may be under way, 1 to 65535: a sender blocks before it sends more, and a
  // receiver has so many receives posted. The same at both ends, or Error(usage) at the receiver.
  int depth = 2;
  // For errors and records; 47 bytes of it count.
  std::string_view label = {};
};

struct NewGroupOptions {
  // A failure of the group ends this group alone, not its world: an error of one of its calls, a
  // rank that does not come in time, ranks that call different things, an exception that unwinds
  // past its last handle. Its members are told, each of their calls in it throws, and its messages
  // under way are dropped. The same on all members. A rank of it that is lost as a process still
  // ends the world. Groups made of this one fail alone, too, apart from it. Back ends local, shm
  // and tcp; others throw Error(usage). Each group that has failed keeps one of the 511 numbers of
  // its members, and the memory that it used for messages, as long as the world lives. On shm,
  // collectives of such a group do not reduce in place.
  bool fails_alone = false;
};

// Messages and bytes of data that this rank has sent for collectives so far, without those needed
// to agree. Back ends that work in shared memory send nothing.
struct Counters {
  uint64_t messages = 0;
  uint64_t bytes = 0;
  // The part of them to ranks of other nodes.
  uint64_t messages_between_nodes = 0;
  uint64_t bytes_between_nodes = 0;
};

// The collectives of one set of ranks. Every rank must make the same calls in the same order; each
// message carries its call's number, operation, type and size, and ranks that disagree get an
// Error(usage) that says who called what: a rank whose part was done before the difference was
// found gets it at its next call. Calls run one after another in the order they were made.
//
// A rank that does not come is named by an Error(timeout) on every other rank within a second of
// the group's time-out. Errors are sticky: after the first one every further call throws with that
// cause. Copies are handles to the same group. The last handle to go leaves in peace, or, while an
// exception is unwinding the stack, tells the other ranks that this one is gone.
//
// Tensors may be of any dtype that can be reduced or moved, non-contiguous (they are packed and
// unpacked) and empty. Half-precision sums are computed in float32. All ranks get bit-identical
// results. Functions may be called from several threads, as long as the order is the same on all
// ranks.
class Group {
 public:
  explicit Group(std::shared_ptr<GroupImpl> impl, const GroupOptions& options = {});

  int rank() const;
  int size() const;
  std::string_view backend() const;
  // The number of each rank's node: ranks with equal numbers share memory.
  const std::vector<int>& nodes() const;
  const GroupOptions& options() const;
  Counters counters() const;

  using Site = std::source_location;

  // tensor = op over the ranks' tensors.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  const CallOptions& how = {}, Site site = Site::current()) const;
  // The same on root only; the others' tensors stay as they are.
  Work reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& how = {}, Site site = Site::current()) const;
  // tensor = root's tensor.
  Work broadcast(const at::Tensor& tensor, int root = 0, const CallOptions& how = {},
                 Site site = Site::current()) const;

  // The ranks' inputs are reduced, and each rank gets its block: `input` is cut along its first
  // dimension into one block a rank, of equal length or of splits[r] rows, which must be the same
  // list on all ranks. output has rank's block's number of elements, and input's dtype; it may be
  // that block of input.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::sum, const std::vector<int64_t>& splits = {},
                      const CallOptions& how = {}, Site site = Site::current()) const;
  // output = the ranks' inputs one after another, of equal size or of splits[r] rows of output's
  // first dimension, the same list on all ranks. input may be its own part of output.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& splits = {}, const CallOptions& how = {},
                  Site site = Site::current()) const;
  // On root: output = the ranks' inputs one after another. Elsewhere output may be undefined.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0,
              const CallOptions& how = {}, Site site = Site::current()) const;
  // output = this rank's of root's input's blocks. Elsewhere than on root input may be undefined.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0,
               const CallOptions& how = {}, Site site = Site::current()) const;
  // Rank r's s-th block of input becomes rank s's r-th block of output. Blocks are of equal length,
  // or of input_splits[r] and output_splits[r] rows.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits = {},
                  const std::vector<int64_t>& input_splits = {}, const CallOptions& how = {},
                  Site site = Site::current()) const;
  // Blocks until every rank has come.
  void barrier(const CallOptions& how = {}, Site site = Site::current()) const;

  // Messages between two ranks, matched by tag (0 to 8190) in the order of sending, whatever
  // collectives run meanwhile. They start at once; what arrives is checked and unpacked inside
  // wait(). Sizes and types that differ are an Error(usage) at the receiver. A message whose other
  // end does not come is named by an Error(timeout) at the group's time-out, counted from wait()
  // on, with what that rank does instead. `label` is for errors and records; 47 bytes of it count.
  Work send(const at::Tensor& tensor, int peer, int tag = 0, std::string_view label = {},
            Site site = Site::current()) const;
  Work receive(const at::Tensor& tensor, int peer, int tag = 0, std::string_view label = {},
               Site site = Site::current()) const;

  // Blocks until a message with this tag is here from any rank, takes it in as receive() does, and
  // returns its rank. Ranks that have all sent take turns, over mpi as MPI sees fit. Not for two
  // threads with one tag. Back ends local, shm, tcp and mpi; others throw Error(usage).
  int receive_any(const at::Tensor& tensor, int tag = 0, std::string_view label = {},
                  Site site = Site::current()) const;
  // Starts all of these messages, receives first, as torch.distributed.batch_isend_irecv. The Work
  // is done when all are. Ranks whose batches match cannot wait for each other in a circle,
  // whatever the order in each batch and whether a back end copies what is sent or waits for its
  // receiver.
  Work batch(const std::vector<PointToPoint>& messages, std::string_view label = {},
             Site site = Site::current()) const;

  // One end of an edge (edge.h): a stream of tensors to, or from, another rank, which makes the
  // other end with the same tag (0 to 8190; edges and messages do not meet). Does not block or
  // communicate. Throws Error(usage) where this end exists already: it lives as long as the group.
  SendingEdge edge_to(int peer, int tag = 0, const EdgeOptions& options = {}) const;
  ReceivingEdge edge_from(int peer, int tag = 0, const EdgeOptions& options = {}) const;

  // Blocking, for strings of any length, e.g. what a rank has to say about itself.
  std::vector<std::string> all_gather_text(const std::string& text, std::string_view label = {},
                                           Site site = Site::current()) const;
  std::string broadcast_text(const std::string& text, int root = 0, std::string_view label = {},
                             Site site = Site::current()) const;

  // Called by every rank: ranks that give the same color make a group of their own, ordered by key,
  // then by rank. A negative color takes no part and gets nothing. The groups stay independent in
  // their calls, but a failure of one fails all that were split from the same world. Not to be
  // called by two threads at once. A rank can be in at most 511 groups at a time besides the world,
  // over MPI libraries with few tags in fewer; beyond, all members get Error(usage).
  std::optional<Group> split(int color, int key = 0, Site site = Site::current()) const;

  // The same for the ranks of a list, which alone call it; no other rank has to come. Each gives
  // the same list of different ranks of this group, and becomes the rank in the new one at whose
  // place it stands. Ranks that are together in several lists make these groups in the same order.
  // Blocks until all members have called, at most for the time-out: Error(timeout) names one that
  // has not. Error(usage) for a list without this rank, or for lists that differ. As
  // torch.distributed's new_group with use_local_synchronization.
  Group new_group(const std::vector<int>& ranks, const NewGroupOptions& options = {},
                  Site site = Site::current()) const;

  // The measured costs of messages, by which Algorithm::automatic chooses: float64 [5] of latency
  // and bandwidth inside a node, the same between nodes, and seconds to reduce a byte (layout::
  // Links). The same on all ranks, for assume_links(). Measured at the first call that needs it, or
  // here. A run that is to give the same bits again must choose alike, so this belongs into its
  // checkpoint. Collective, blocking, with no call under way; as is assume_links(). Groups of all
  // ranks that are split off later take it over.
  at::Tensor links(Site site = Site::current()) const;
  // Throws Error(usage) for another shape or type.
  void assume_links(const at::Tensor& links) const;

  // From now on errors, warnings and flight records of the world and of all groups split from it
  // name ranks by their coordinates too, where the mesh has several axes. `mesh` is the world's.
  // Does not block or communicate; MeshGroups calls it.
  void place_ranks(const layout::Mesh& mesh) const;

  // An uninitialised tensor on the host from which this group communicates fastest: on ranks that
  // share memory, collectives on it copy nothing. It may outlive the group.
  at::Tensor allocate(at::IntArrayRef shape, c10::ScalarType type) const;

 private:
  friend class SendingEdge;
  friend class ReceivingEdge;
  class Core;
  explicit Group(std::shared_ptr<Core> core);
  template <typename State>
  std::shared_ptr<State> make_edge(Direction direction, int peer, int tag,
                                   const EdgeOptions& options) const;
  // The group of these ranks of this one, which agree on both numbers.
  Group make_part(const std::vector<int>& members, int64_t id, uint32_t tag_space,
                  const NewGroupOptions& options) const;
  std::shared_ptr<Core> core_;
};

}  // namespace troika::comm
