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

// Runs `body`, and adds the message's name to its errors.
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
                             std::vector<size_t> tensors, at::MemoryFormat format,
                             c10::Device device)
    : group_(std::move(group)),
      edges_(std::move(edges)),
      tensors_(std::move(tensors)),
      format_(format),
      device_(device) {
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
  return {.depth = std::clamp(edges_[index].depth, 1, kMostDepth), .label = labels_[index]};
}

int StageMessages::tag(size_t index, size_t tensor) const {
  const size_t most = std::max<size_t>(1, *std::ranges::max_element(tensors_));
  return static_cast<int>(index * most + tensor);
}

void StageMessages::send(const Action& send, int to, const nn::Tensors& tensors) {
  const size_t index = tensors.empty() ? 0 : index_of(send);
  const auto name = name_of(send, to);
  drop_finished();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Key key{index, i, to};
    auto edge = sending_.find(key);
    if (edge == sending_.end()) {
      edge = sending_.emplace(key, group_.edge_to(to, tag(index, i), options(index))).first;
    }
    auto message = packed(tensors[i], format_);
    auto work = with_name(name, [&] { return edge->second.send(message); });
    if (!work.done()) sent_.push_back({std::move(work), std::move(message), name});
  }
}

nn::Tensors StageMessages::receive(const Action& receive, int from, size_t count) {
  const size_t index = count == 0 ? 0 : index_of(layout::partner_of(receive));
  nn::Tensors result;
  for (size_t i = 0; i < count; ++i) {
    const Key key{index, i, from};
    auto edge = receiving_.find(key);
    if (edge == receiving_.end()) {
      edge = receiving_.emplace(key, group_.edge_from(from, tag(index, i), options(index))).first;
    }
    with_name(name_of(receive, from),
              [&] { result.push_back(unpacked(edge->second.receive(device_), format_)); });
  }
  return result;
}

void StageMessages::drop_finished() {
  std::erase_if(sent_, [](const Sent& sent) { return sent.work.done(); });
}

void StageMessages::finish() {
  for (const auto& sent : sent_) {
    with_name(sent.name, [&] { sent.work.wait(); });
  }
  sent_.clear();
}

}  // namespace troika::parallel
