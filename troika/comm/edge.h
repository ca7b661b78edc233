// One-way streams of tensors between two ranks of a group. The receiver need not know the shapes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "troika/comm/group.h"

namespace troika::comm {

// The sending end of an edge, made by Group::edge_to(). Copies are handles to the same end and keep
// the group alive. One thread at a time may use an end and the Work of its tensors.
class SendingEdge {
 public:
  // Sends a tensor of any dtype and of any shape with at most 64 dimensions. Shape and dtype are
  // sent with the first tensor, and again whenever they change. Blocks while `depth` tensors have
  // not been received (back end tcp bounds small tensors by bytes instead). After the group's
  // timeout, throws Error(timeout) that names the first of these tensors and says what the receiver
  // is doing.
  //
  // The tensor must not change until the Work is done. The Work is done at once if the tensor is
  // small or the back end copies it; otherwise when the receiver has taken the tensor in. A tensor
  // of the same shape and dtype as the one before needs no receive() for this, because its receive
  // is posted already. Other tensors may need one, so two ranks that send each other tensors of
  // changing shapes must call receive() before they wait. A tensor on a GPU is copied to the host
  // first.
  Work send(const at::Tensor& tensor, Group::Site site = Group::Site::current()) const;

  // Bytes of sent tensors that have not been received and that this end or its back end keeps: at
  // most `depth` tensors.
  int64_t kept_bytes() const;

  struct State;

 private:
  friend class Group;
  explicit SendingEdge(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;  // owned by the group
};

// The receiving end of an edge, made by Group::edge_from(). The notes on SendingEdge hold here too.
// Receives of the next `depth` tensors are always posted, into reused buffers.
class ReceivingEdge {
 public:
  // Blocks until the next tensor is here, and returns it on the host. Its memory returns to the
  // edge with the last reference to the tensor, which may outlive the edge and the group. Throws
  // the errors of Group::receive(), after the group's timeout.
  at::Tensor receive(Group::Site site = Group::Site::current()) const;
  // The same, but returns the tensor on this device. The copy is queued as by receive_into().
  at::Tensor receive(c10::Device device, Group::Site site = Group::Site::current()) const;
  // Copies the next tensor into `tensor`. Throws Error(usage) when shape or dtype differ. If
  // `tensor` is on a device, the copy is queued on its current stream, from page-locked memory for
  // CUDA; the host waits for the device only if `depth` earlier copies have not run.
  void receive_into(const at::Tensor& tensor, Group::Site site = Group::Site::current()) const;

  // Bytes of all buffers of this edge: posted, received and still referenced, and free.
  // receiving_edge_bytes() in edge_memory.h bounds them.
  int64_t buffer_bytes() const;

  struct State;

 private:
  friend class Group;
  explicit ReceivingEdge(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace troika::comm
