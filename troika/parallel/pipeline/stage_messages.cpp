#include "troika/parallel/pipeline/stage_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

using layout::Action;
using layout::ActionKind;

constexpr int kMostDepth = 65535;

// A message in channels-last order travels as a contiguous tensor of its permuted dimensions.
at::Tensor packed(const at::Tensor& tensor, at::MemoryFormat format) {
  if (tensor.dim() != 4 || format != at::MemoryFormat::ChannelsLast) return tensor.contiguous();
  return tensor.contiguous(format).permute({0, 2, 3, 1});
}

at::Tensor unpacked(at::Tensor tensor, at::MemoryFormat format) {
  if (tensor.dim() != 4 || format != at::MemoryFormat::ChannelsLast) return tensor;
  return tensor.permute({0, 3, 1, 2});
}

// Runs `body`, and adds what the message was to its errors.
template <typename Body>
decltype(auto) with_name(const std::string& name, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error("parallel", error.kind(), {.what = fmt::format("{}: {}", name, error.what())});
  }
}

std::string name_of(const Action& action, int peer_rank) {
  const bool is_activation =
      action.kind == ActionKind::send_activation || action.kind == ActionKind::receive_activation;
  const bool is_send =
      action.kind == ActionKind::send_activation || action.kind == ActionKind::send_gradient;
  return fmt::format("stage {} {} {} of micro-batch {} {} stage {} on rank {}", action.stage,
                     is_send ? "sends" : "receives", is_activation ? "activations" : "gradients",
                     action.micro_batch, is_send ? "to" : "from", layout::peer_stage(action),
                     peer_rank);
}

}  // namespace

StageMessages::StageMessages(comm::Group group, std::vector<layout::MessageEdge> edges,
                             std::vector<size_t> tensors, at::MemoryFormat format)
    : group_(std::move(group)),
      edges_(std::move(edges)),
      tensors_(std::move(tensors)),
      format_(format) {
  for (const auto& edge : edges_) {
    labels_.push_back(
        fmt::format("{} of stage {} for {}",
                    edge.kind == ActionKind::send_activation ? "activations" : "gradients",
                    edge.from, edge.to));
  }
}

size_t StageMessages::index_of(const Action& send) const {
  const int to = layout::peer_stage(send);
  const auto found = std::ranges::find_if(edges_, [&](const layout::MessageEdge& edge) {
    return edge.kind == send.kind && edge.from == send.stage && edge.to == to;
  });
  TROIKA_CHECK(found != edges_.end(), "the schedule has an edge for " + layout::describe(send));
  return static_cast<size_t>(found - edges_.begin());
}

comm::EdgeOptions StageMessages::options(size_t index) const {
  const auto depth = static_cast<int64_t>(std::max(1, edges_[index].depth)) *
                     static_cast<int64_t>(std::max<size_t>(1, tensors_[index]));
  return {.depth = static_cast<int>(std::min<int64_t>(depth, kMostDepth)), .label = labels_[index]};
}

void StageMessages::send(const Action& send, int to, const nn::Tensors& tensors) {
  if (tensors.empty()) return;
  const size_t index = index_of(send);
  auto edge = sending_.find({index, to});
  if (edge == sending_.end()) {
    edge = sending_
               .emplace(Key{index, to}, group_.edge_to(to, static_cast<int>(index), options(index)))
               .first;
  }
  drop_finished();
  const auto name = name_of(send, to);
  for (const auto& tensor : tensors) {
    auto message = packed(tensor, format_);
    auto work = with_name(name, [&] { return edge->second.send(message); });
    if (!work.done()) sent_.push_back({std::move(work), std::move(message), name});
  }
}

nn::Tensors StageMessages::receive(const Action& receive, int from, size_t count) {
  if (count == 0) return {};
  const size_t index = index_of(layout::partner_of(receive));
  auto edge = receiving_.find({index, from});
  if (edge == receiving_.end()) {
    edge = receiving_
               .emplace(Key{index, from},
                        group_.edge_from(from, static_cast<int>(index), options(index)))
               .first;
  }
  nn::Tensors result;
  with_name(name_of(receive, from), [&] {
    for (size_t i = 0; i < count; ++i) {
      result.push_back(unpacked(edge->second.receive(), format_));
    }
  });
  return result;
}

void StageMessages::drop_finished() {
  while (!sent_.empty() && sent_.front().work.done()) sent_.pop_front();
}

void StageMessages::finish() {
  while (!sent_.empty()) {
    const auto sent = std::move(sent_.front());
    sent_.pop_front();
    with_name(sent.name, [&] { sent.work.wait(); });
  }
}

}  // namespace troika::parallel
