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
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/call/call.h"
#include "troika/comm/call/direction.h"
#include "troika/comm/call/reduce.h"

namespace troika::layout {
class Mesh;
}  // namespace troika::layout

namespace troika::comm {

class GroupImpl;
class SendingEdge;
class ReceivingEdge;

// A collective or message in flight. Copies are handles to the same operation; destroying them does
// not cancel it.
class Work {
 public:
  // Blocks until the operation has finished on this rank and its tensors may be used. A collective
  // on device tensors may still be running on the device then; work queued afterwards on this
  // thread's current stream is ordered after the collective. Throws the error of the operation:
  // Error `timeout` or `peer`, or `usage` when ranks made different calls. Returns or throws at the
  // latest when this call and each call queued before it have had the group's timeout. After the
  // first failure, all remaining calls fail at once.
  void wait() const;
  // The same, but throws Error(timeout) if the operation has not finished by the deadline. A
  // collective then continues, and wait() may be called again. A message between two ranks then
  // fails, and the group fails with it.
  void wait(Deadline deadline) const;
  bool done() const;

  // The time in which this rank ran the collective on the host, including the wait for other ranks.
  // Empty unless the collective is done and the group's thread ran it asynchronously.
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
  std::shared_ptr<State> state_;  // null: the operation was done when the call returned
};

struct GroupOptions {
  // The longest time that one collective may take after it has started on this rank.
  Milliseconds timeout = std::chrono::minutes(5);
  // The time after which a collective that still runs causes a warning that names the missing
  // ranks; zero disables the warning.
  Milliseconds stall_warning = std::chrono::seconds(30);
  // For every all-reduce whose CallOptions choose none.
  Algorithm algorithm = Algorithm::automatic;
  // The folder in which every rank writes its flight record when the group fails, as
  // <group>-rank<r>.json. Empty writes nothing.
  std::filesystem::path flight_record = {};
  // How messages between the processes of a world are protected in transit, the same on all ranks:
  // "none", "authenticated" or "encrypted". Only back end tcp protects messages. Shared memory
  // needs no protection; the other back ends throw. With any value, a process needs the run's
  // secret to connect to tcp.
  std::string protection = "none";
  // Connections that back end tcp uses for long messages between two ranks, 1 to net::kMostStreams.
  // More than one helps where a single connection does not fill the link.
  int streams = 1;
};

// How one collective is called.
struct CallOptions {
  // Names the call in errors and records, in addition to the source location.
  std::string_view label = {};
  // With true, the call returns at once, and the group's thread does the work while the caller
  // computes; the tensors must not be touched until wait() has returned. With false, the collective
  // is done when the call returns; it runs on the calling thread unless earlier calls are not done.
  bool async_op = false;
  // All-reduce only: overrides the group's algorithm.
  Algorithm algorithm = Algorithm::automatic;
};

// One message of Group::batch().
struct PointToPoint {
  Direction direction = Direction::send;
  at::Tensor tensor;  // sent, or received into
  int peer = 0;
  int tag = 0;
};

struct EdgeOptions {
  // Tensors in flight, 1 to 65535: the sender blocks before it sends more, and the receiver keeps
  // as many receives posted. Must be the same at both ends; otherwise the receiver throws
  // Error(usage).
  int depth = 2;
  // Names the edge in errors and records; only the first 47 bytes are used.
  std::string_view label = {};
};

struct NewGroupOptions {
  // With true, a failure of the group ends this group only, not its world. Failures are an error of
  // one of its calls, a rank that does not join in time, ranks that make different calls, and an
  // exception that unwinds past the group's last handle. The members are notified, each of their
  // calls in the group throws, and its messages in flight are dropped. Must be the same on all
  // members. A member whose process dies still ends the world. Groups made from this one also fail
  // alone, independently of it. Back ends local, shm and tcp only; others throw Error(usage). Each
  // failed group still counts towards its members' limit of 511 groups (see Group::split()), and
  // keeps its message memory, as long as the world lives. On shm, collectives of a group that fails
  // alone do not reduce in place.
  bool fails_alone = false;
};

// Messages and bytes of data that this rank has sent for collectives so far, excluding the messages
// by which ranks agree on a call. Back ends that use shared memory send none.
struct Counters {
  uint64_t messages = 0;
  uint64_t bytes = 0;
  // Messages and bytes that went to ranks of other nodes; included in the numbers above.
  uint64_t messages_between_nodes = 0;
  uint64_t bytes_between_nodes = 0;
  // Bytes of data that this rank has sent with send() and batch().
  uint64_t bytes_of_messages = 0;
};

// The collectives of one set of ranks. Every rank must make the same calls in the same order. Each
// message carries the number, operation, type and size of its call. Ranks that disagree get an
// Error(usage) that says which rank called what; a rank that finished its part before the
// difference was found gets the error at its next call. Calls run one after another in the order
// they were made.
//
// If a rank does not join a call, every other rank gets an Error(timeout) that names it, within a
// second of the group's timeout. Errors are sticky: after the first error, every further call
// throws with that cause. Copies are handles to the same group. Destroying the last handle leaves
// the group normally, or, while an exception unwinds the stack, tells the other ranks that this
// rank failed.
//
// Tensors may be empty, non-contiguous (they are packed and unpacked), and of any dtype that can be
// reduced or moved. Half-precision sums are computed in float32. All ranks get bit-identical
// results. Several threads may call functions, as long as the order is the same on all ranks.
class Group {
 public:
  explicit Group(std::shared_ptr<GroupImpl> impl, const GroupOptions& options = {});

  int rank() const;
  int size() const;
  std::string_view backend() const;
  // The node of each rank: ranks with equal numbers share memory.
  const std::vector<int>& nodes() const;
  const GroupOptions& options() const;
  Counters counters() const;

  using Site = std::source_location;

  // Reduces the ranks' tensors with `op`; every rank gets the result in `tensor`.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  const CallOptions& how = {}, Site site = Site::current()) const;
  // Reduces like all_reduce(), but only the root gets the result. The tensors of other ranks stay
  // unchanged.
  Work reduce(const at::Tensor& tensor, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& how = {}, Site site = Site::current()) const;
  // Copies the root's tensor to every rank.
  Work broadcast(const at::Tensor& tensor, int root = 0, const CallOptions& how = {},
                 Site site = Site::current()) const;

  // Reduces the ranks' inputs; each rank gets its block. `input` is split along its first dimension
  // into one block per rank, of equal length or of splits[r] rows; all ranks must pass the same
  // list. `output` has as many elements as this rank's block, and the dtype of `input`. `output`
  // may be that block of `input`.
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                      ReduceOp op = ReduceOp::sum, const std::vector<int64_t>& splits = {},
                      const CallOptions& how = {}, Site site = Site::current()) const;
  // Concatenates the ranks' inputs into `output`. The inputs have equal sizes or splits[r] rows of
  // the first dimension of `output`; all ranks must pass the same list. `input` may be this rank's
  // block of `output`.
  Work all_gather(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& splits = {}, const CallOptions& how = {},
                  Site site = Site::current()) const;
  // On the root: concatenates the ranks' inputs into `output`. On other ranks `output` may be
  // undefined.
  Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0,
              const CallOptions& how = {}, Site site = Site::current()) const;
  // Copies this rank's block of the root's input to `output`. On other ranks than the root `input`
  // may be undefined.
  Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0,
               const CallOptions& how = {}, Site site = Site::current()) const;
  // Block s of rank r's input becomes block r of rank s's output. Blocks have equal lengths, or
  // input_splits[r] and output_splits[r] rows.
  Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                  const std::vector<int64_t>& output_splits = {},
                  const std::vector<int64_t>& input_splits = {}, const CallOptions& how = {},
                  Site site = Site::current()) const;
  // Blocks until every rank has called it.
  void barrier(const CallOptions& how = {}, Site site = Site::current()) const;

  // Messages between two ranks, matched by tag (0 to 8190) in the order of sending, independently
  // of collectives. They start at once; a received message is checked and unpacked inside wait().
  // If size or type differ, the receiver throws Error(usage). If the other end does not call,
  // Error(timeout) says what that rank is doing instead; the group's timeout counts from the start
  // of wait(). `label` names the message in errors and records; only its first 47 bytes are used.
  Work send(const at::Tensor& tensor, int peer, int tag = 0, std::string_view label = {},
            Site site = Site::current()) const;
  Work receive(const at::Tensor& tensor, int peer, int tag = 0, std::string_view label = {},
               Site site = Site::current()) const;

  // Blocks until a message with this tag has arrived from any rank, receives it as receive() does,
  // and returns the sender's rank. Among ranks that have all sent, the choice is round-robin; with
  // mpi, MPI chooses. Two threads must not use the same tag. Back ends local, shm, tcp and mpi;
  // others throw Error(usage).
  int receive_any(const at::Tensor& tensor, int tag = 0, std::string_view label = {},
                  Site site = Site::current()) const;
  // Starts all messages, receives first, as torch.distributed.batch_isend_irecv does. The Work is
  // done when all messages are. Matching batches never deadlock, in any order of their messages,
  // and with back ends that buffer sends as well as back ends that wait for the receiver.
  Work batch(const std::vector<PointToPoint>& messages, std::string_view label = {},
             Site site = Site::current()) const;

  // Makes one end of an edge (edge.h): a stream of tensors to, or from, another rank, which makes
  // the other end with the same tag (0 to 8190). Edges and messages have separate tags. Does not
  // block or communicate. Throws Error(usage) if this end exists already: an end lives as long as
  // the group.
  SendingEdge edge_to(int peer, int tag = 0, const EdgeOptions& options = {}) const;
  ReceivingEdge edge_from(int peer, int tag = 0, const EdgeOptions& options = {}) const;

  // For strings of any length. Blocking.
  std::vector<std::string> all_gather_text(const std::string& text, std::string_view label = {},
                                           Site site = Site::current()) const;
  std::string broadcast_text(const std::string& text, int root = 0, std::string_view label = {},
                             Site site = Site::current()) const;

  // Collective. Ranks that pass the same color form a new group, ordered by key, then by rank. A
  // rank with a negative color gets nothing. Calls of the new groups are independent, but a failure
  // of one group fails all groups of the same world. Two threads must not call this at once. A rank
  // can be in at most 511 groups at a time besides the world, fewer with MPI libraries that have
  // few tags; beyond this limit, all members throw Error(usage).
  std::optional<Group> split(int color, int key = 0, Site site = Site::current()) const;

  // Makes a group of the listed ranks; only these ranks call it. All of them pass the same list of
  // different ranks of this group. Position in the list becomes the rank in the new group. Ranks
  // that share several lists must make these groups in the same order. Blocks until all members
  // have called, at most for the timeout: Error(timeout) names a member that has not. Throws
  // Error(usage) for a list without this rank, or for lists that differ. Like torch.distributed's
  // new_group with use_local_synchronization.
  Group new_group(const std::vector<int>& ranks, const NewGroupOptions& options = {},
                  Site site = Site::current()) const;

  // Returns the measured message costs from which Algorithm::automatic chooses, for assume_links():
  // float64 [5] with latency and bandwidth inside a node, the same between nodes, and seconds to
  // reduce a byte (layout::Links). The same on all ranks. Measured at the first call that needs the
  // costs, or here. A run that must reproduce the same bits must choose the same algorithms, so
  // store this tensor in its checkpoint. Collective and blocking; no other call may be in flight.
  // Groups of all ranks that are split off later inherit the costs.
  at::Tensor links(Site site = Site::current()) const;
  // Uses `links` instead of measured costs. Collective; no other call may be in flight. Throws
  // Error(usage) for another shape or type.
  void assume_links(const at::Tensor& links) const;

  // Names ranks by their mesh coordinates too, from now on, in errors, warnings and flight records
  // of the world and of all groups split from it. Has no effect for a mesh of one axis, and on a
  // group that was split from a world. Does not block or communicate. MeshGroups calls it.
  void place_ranks(const layout::Mesh& mesh) const;

  // Returns an uninitialised tensor on the host in the memory from which this group communicates
  // fastest: on ranks that share memory, collectives on it copy nothing. The tensor may outlive the
  // group.
  at::Tensor allocate(at::IntArrayRef shape, c10::ScalarType type) const;

 private:
  friend class SendingEdge;
  friend class ReceivingEdge;
  class Core;
  explicit Group(std::shared_ptr<Core> core);
  template <typename State>
  std::shared_ptr<State> make_edge(Direction direction, int peer, int tag,
                                   const EdgeOptions& options) const;
  // The new group of these ranks of this group. All members pass the same `id` and `tag_space`.
  Group make_part(const std::vector<int>& members, int64_t id, uint32_t tag_space,
                  const NewGroupOptions& options) const;
  std::shared_ptr<Core> core_;
};

}  // namespace troika::comm
