// A handle to a communicator: the collectives of a fixed set of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/base/clock.h"
#include "troika/comm/group_impl.h"
#include "troika/comm/reduce.h"

namespace troika::comm {

// A collective under way. Copies share it; dropping it does not cancel anything.
class Work {
 public:
  // Blocks until the collective has finished on this rank and its tensors may be used. Throws what
  // it failed with: Error `timeout` or `peer`, or `usage` when ranks made different calls. Returns
  // or throws at the latest when this call and each one queued before it has had the group's
  // time-out; after the first failure the rest fail at once.
  void wait() const;
  bool done() const;

  struct State;

 private:
  friend class Group;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

struct GroupOptions {
  // How long one collective may take once its turn has come on this rank.
  Milliseconds timeout = std::chrono::minutes(5);
};

// The collectives of one set of ranks. Every rank must make the same calls in the same order; each
// call carries its number, operation, type and size, and ranks that disagree get an Error that says
// who called what. Calls are queued and run one after another on a thread of the group, so that
// they overlap with the caller's computation; tensors must not be touched until wait() returns.
//
// Errors are sticky: after the first one every further call throws with that cause. Copies are
// handles to the same group. The last handle to go leaves in peace, or, while an exception is
// unwinding the stack, tells the other ranks that this one is gone.
//
// Tensors may be of any dtype that can be reduced or moved, and non-contiguous (they are packed and
// unpacked). Half-precision sums are computed in float32. All ranks get bit-identical results.
class Group {
 public:
  explicit Group(std::unique_ptr<GroupImpl> impl, const GroupOptions& options = {});

  int rank() const;
  int size() const;
  std::string_view backend() const;

  // tensor = op over the ranks' tensors. `label` names the call in errors.
  Work all_reduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  std::string label = {}) const;
  // tensor = root's tensor.
  Work broadcast(const at::Tensor& tensor, int root = 0, std::string label = {}) const;
  // output[r] = rank r's input; output has shape [size, ...input's shape] and input's dtype.
  Work all_gather(const at::Tensor& output, const at::Tensor& input, std::string label = {}) const;
  // Blocks until every rank has come.
  void barrier(std::string label = {}) const;

  // Blocking, for strings of any length, e.g. what a rank has to say about itself.
  std::vector<std::string> all_gather_text(const std::string& text, std::string label = {}) const;
  std::string broadcast_text(const std::string& text, int root = 0, std::string label = {}) const;

 private:
  class Core;
  std::shared_ptr<Core> core_;
};

}  // namespace troika::comm
