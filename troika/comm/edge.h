// One-way streams of tensors between two ranks of a group, whose shapes the receiver need not know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "troika/comm/group.h"

namespace troika::comm {

// The end of an edge that sends; Group::edge_to() makes it. Copies are handles to the same end, and
// hold the group. An end, and the Work of its tensors, are for one thread at a time.
class SendingEdge {
 public:
  // Sends the tensor, of any shape of at most 64 dimensions and any dtype. Shape and dtype travel
  // with the first tensor and with each one that differs from the one before. Blocks while `depth`
  // tensors have not been received (back end tcp bounds small ones by bytes instead), at most for
  // the group's time-out: then Error(timeout) names the first of them and says what the receiver
  // does instead. The tensor must not be changed until the Work is done: at once where it is small
  // or the back end copies it, else when the receiver's end has taken it in. That needs no call of
  // receive() there for a tensor of the same shape and dtype as the one before, for which a receive
  // is posted; for another it may, so two ranks that send each other such tensors call receive()
  // before they wait. A tensor on a GPU is copied to the host first.
  Work send(const at::Tensor& tensor, Group::Site site = Group::Site::current()) const;

  // Bytes of the tensors that have not been received, which this end or its back end keeps: at most
  // `depth` tensors.
  int64_t kept_bytes() const;

  struct State;

 private:
  friend class Group;
  explicit SendingEdge(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // the group's
};

// The end of an edge that receives; Group::edge_from() makes it. As SendingEdge for the rest.
// Receives of the next `depth` tensors are always posted, in buffers that are used again.
class ReceivingEdge {
 public:
  // Blocks until the next tensor is here, and returns it, on the host. Its memory goes back to the
  // edge with the last reference to it, which may outlive edge and group. Errors as those of
  // Group::receive(), at the group's time-out.
  at::Tensor receive(Group::Site site = Group::Site::current()) const;
  // The same, copied into `tensor`, on any device. Throws Error(usage) when shape or dtype differ.
  void receive_into(const at::Tensor& tensor, Group::Site site = Group::Site::current()) const;

  // Bytes of all buffers of this edge that exist: for what is to come, for what was received and
  // is still referenced, and free ones.
  int64_t buffer_bytes() const;
  // The most that buffer_bytes() can be with tensors of `bytes` bytes, of which at most
  // `referenced` are kept at a time.
  static int64_t most_buffer_bytes(int64_t bytes, int depth, int referenced);

  struct State;

 private:
  friend class Group;
  explicit ReceivingEdge(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace troika::comm
