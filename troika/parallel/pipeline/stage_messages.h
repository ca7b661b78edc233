// The tensors that travel between stages on different ranks.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "troika/comm/edge.h"
#include "troika/comm/group.h"
#include "troika/layout/schedules/edges.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/nn/block.h"

namespace troika::parallel {

// Sends and receives the messages of a schedule. For each tensor of a message, direction, and pair
// of stages and ranks there is one edge (comm/edge.h), whose receives are posted early. So a send
// returns at once unless the receiver is behind by the depth of the edge.
class StageMessages {
 public:
  // Makes each end of an edge of this group on first use; no other object may make edges in this
  // group. `tensors` has the number of tensors in a message of each edge. 4-d tensors travel in
  // `format`, which must be the same on all ranks. Received tensors are on `device`.
  StageMessages(comm::Group group, std::vector<layout::MessageEdge> edges,
                std::vector<size_t> tensors, at::MemoryFormat format, c10::Device device);

  // Sends the tensors of one message to a rank of the group. `send` is its action. The tensors must
  // not change until finish(). Blocks while the receiver is behind. Throws the errors of
  // SendingEdge::send(), naming stages, micro-batch and direction.
  void send(const layout::Action& send, int to, const nn::Tensors& tensors);
  // Returns the tensors of one message from the rank `from`; `receive` is its action. Blocks until
  // they have arrived. Throws the errors of ReceivingEdge::receive(), naming stages, micro-batch
  // and direction.
  nn::Tensors receive(const layout::Action& receive, int from, size_t count);
  // Blocks until all receivers have taken what was sent.
  void finish();

 private:
  struct Sent {
    comm::Work work;
    at::Tensor tensor;  // kept until the work is done
    std::string name;   // for errors
  };
  using Key = std::tuple<size_t, size_t, int>;  // index in edges_, tensor, and the other rank

  size_t index_of(const layout::Action& send) const;
  comm::EdgeOptions options(size_t index) const;
  int tag(size_t index, size_t tensor) const;
  void drop_finished();

  comm::Group group_;
  const std::vector<layout::MessageEdge> edges_;
  const std::vector<size_t> tensors_;
  std::vector<std::string> labels_;
  const at::MemoryFormat format_;
  const c10::Device device_;
  std::map<Key, comm::SendingEdge> sending_;
  std::map<Key, comm::ReceivingEdge> receiving_;
  std::vector<Sent> sent_;
};

}  // namespace troika::parallel
