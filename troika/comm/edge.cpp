// A tensor on an edge is sent as a parcel: a frame, and the tensor's bytes, which follow the frame
// or are a separate message. A frame has a header if the shape or dtype has changed. The receiver
// always has receives posted for the next `depth` tensors; the payload receives have the last known
// size. So before a tensor of another shape or dtype, the sender sends `depth` fillers that match
// these receives, no matter how far ahead the sender is.
#include "troika/comm/edge.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/core.h"
#include "troika/comm/edge_parts.h"
#include "troika/comm/messages/packing.h"
#include "troika/comm/messages/parcel.h"

namespace troika::comm {

namespace {

constexpr char kFiller = 0;

ParcelTags edge_tags(int tag) {
  const auto bits = static_cast<uint32_t>(tag);
  return {.head = kEdgeFrameTag | bits, .payload = kEdgePayloadTag | bits};
}

at::Tensor lend(const std::shared_ptr<BufferPool>& pool, PoolBuffer buffer,
                const TensorKind& kind) {
  void* const data = buffer.memory.data_ptr();
  return at::from_blob(
      data, kind.sizes, [pool, buffer = std::move(buffer)](void*) { pool->give_back(buffer); },
      kind.type);
}

}  // namespace

struct SendingEdge::State : Group::Core::Edge {
  struct Sent {
    MessageFingerprint fingerprint;
    size_t bytes;
    at::Tensor data;
    int64_t id = -1;                                        // id in the log
    std::vector<std::unique_ptr<Transfer>> transfers = {};  // until the tensor is received

    bool is_received() const {
      return std::ranges::all_of(transfers, [](const auto& transfer) { return transfer->done(); });
    }
    void wait(Deadline deadline) const {
      for (const auto& transfer : transfers) transfer->wait(deadline);
    }
    void let_go() {
      transfers.clear();
      data.reset();
    }
  };

  State(Group::Core& core, int peer, MessageFingerprint fingerprint, int depth)
      : Edge(std::move(fingerprint)), core(core), peer(peer), places(static_cast<size_t>(depth)) {}

  void finish(Deadline until) override {
    for (const auto& sent : places) {
      if (sent) sent->wait(until);
    }
  }

  // Blocks until the tensor has been received.
  void wait(Sent& sent, Deadline until) {
    if (sent.transfers.empty()) return;
    core.await_message(sent.id, sent.fingerprint, until,
                       [&](Deadline deadline) { sent.wait(deadline); });
    sent.let_go();
  }

  void let_go_of_received() {
    for (const auto& sent : places) {
      if (!sent || sent->transfers.empty() || !sent->is_received()) continue;
      core.recorder().messages().ended(sent->id, true);
      sent->let_go();
    }
  }

  std::shared_ptr<Sent> send(const at::Tensor& tensor, Group::Site site) {
    const at::NoGradGuard no_grad;
    if (tensor.dim() > kMostDims) {
      throw Error("comm", ErrorKind::usage,
                  {.what = "a tensor has too many dimensions for an edge",
                   .got = std::to_string(tensor.dim()),
                   .expected = fmt::format("at most {}", kMostDims)});
    }
    let_go_of_received();
    auto& place = places[next % places.size()];
    if (place) wait(*place, Deadline::after(Milliseconds::max()));
    const auto sent =
        std::make_shared<Sent>(fingerprint, tensor.nbytes(), packed(tensor, c10::kCPU, true));
    sent->fingerprint.site = site;
    sent->fingerprint.type = static_cast<int32_t>(tensor.scalar_type());
    sent->fingerprint.count = tensor.numel();
    sent->id = core.recorder().messages().begun(sent->fingerprint);
    if (core.impl().lifeline()->is_cut(core.impl().info().tag_space)) {
      // Throws the loss with the fingerprint of this message.
      core.await_message(sent->id, sent->fingerprint, Deadline::after(Milliseconds::max()),
                         [](Deadline) {});
    }
    core.guarded(sent->fingerprint, [&] { start(*sent, TensorKind::of(tensor)); });
    place = sent;
    ++next;
    return sent;
  }

  void start(Sent& sent, const TensorKind& now) {
    const auto tags = edge_tags(fingerprint.tag);
    std::vector<int64_t> header;
    if (now != kind) {
      for (size_t i = 0; is_posted_ahead(bytes) && i < places.size(); ++i) {
        sent.transfers.push_back(
            core.impl().send_until_received(peer, tags.payload, &kFiller, sizeof(kFiller)));
      }
      kind = now;
      bytes = kind.bytes();
      header = kind.header();
    }
    const EdgeFrame frame{core.impl().info().id, static_cast<uint16_t>(places.size()),
                          static_cast<uint16_t>(header.size() * sizeof(int64_t))};
    std::vector<char> head(sizeof(EdgeFrame) + frame.header_bytes);
    std::memcpy(head.data(), &frame, sizeof(EdgeFrame));
    if (!header.empty()) {
      std::memcpy(head.data() + sizeof(EdgeFrame), header.data(), frame.header_bytes);
    }
    sent.transfers.push_back(std::make_unique<SentParcel>(core.impl(), peer, tags, head.data(),
                                                          head.size(), sent.data.data_ptr(), bytes,
                                                          &GroupImpl::send_until_received));
    if (sent.transfers.back()->has_copied()) sent.data.reset();
  }

  Group::Core& core;                          // owns this
  const int peer;                             // rank in the group
  std::vector<std::shared_ptr<Sent>> places;  // of message n: n % depth
  size_t next = 0;
  TensorKind kind;  // of the last tensor
  size_t bytes = 0;
};

Work SendingEdge::send(const at::Tensor& tensor, Group::Site site) const {
  const auto sent = state_->send(tensor, site);
  if (!sent->data.defined()) return Work(nullptr);
  return Work(make_rest([state = state_, sent](Deadline until) { state->wait(*sent, until); },
                        [state = state_, sent] { return sent->is_received(); }));
}

int64_t SendingEdge::kept_bytes() const {
  state_->let_go_of_received();
  int64_t bytes = 0;
  for (const auto& sent : state_->places) {
    if (sent && !sent->transfers.empty()) bytes += static_cast<int64_t>(sent->bytes);
  }
  return bytes;
}

struct ReceivingEdge::State : Group::Core::Edge {
  // The buffers and receives of one posted tensor.
  struct Place {
    std::unique_ptr<char[]> frame = std::make_unique_for_overwrite<char[]>(kFrameRoom);
    PoolBuffer buffer;                            // of a payload that is a separate message
    std::unique_ptr<Transfer> head = nullptr;     // destroyed before the buffer it writes to
    std::unique_ptr<Transfer> payload = nullptr;  // the same
  };

  State(Group::Core& core, int peer, MessageFingerprint fingerprint, int depth)
      : Edge(std::move(fingerprint)),
        core(core),
        peer(peer),
        places(static_cast<size_t>(depth)),
        pool(std::make_shared<BufferPool>(static_cast<size_t>(depth))),
        copies(static_cast<size_t>(depth)) {
    core.guarded([&] {
      for (auto& place : places) post(place);
    });
  }
  // The latest receive is cancelled first.
  ~State() override {
    for (size_t n = next + places.size(); n-- > next;) {
      auto& place = places[n % places.size()];
      place.payload.reset();
      place.head.reset();
    }
  }

  void post(Place& place) {
    const auto tags = edge_tags(fingerprint.tag);
    place.head = core.impl().receive(peer, tags.head, place.frame.get(), kFrameRoom);
    if (is_posted_ahead(bytes)) post_payload(place);
  }
  void post_payload(Place& place) {
    place.buffer = pool->take(bytes);
    place.payload = core.impl().receive(peer, edge_tags(fingerprint.tag).payload,
                                        place.buffer.memory.data_ptr(), bytes);
  }

  // Switches to the shape and dtype of the tensors from the next one on.
  void change(TensorKind to, Deadline deadline) {
    const auto for_all = [&](auto&& body) {
      for (size_t n = next; n < next + places.size(); ++n) body(places[n % places.size()]);
    };
    for_all([&](Place& place) {
      if (!place.payload) return;
      place.payload->wait(deadline);
      place.payload.reset();
      pool->give_back(std::exchange(place.buffer, {}));
    });
    kind = std::move(to);
    bytes = kind.bytes();
    if (is_posted_ahead(bytes)) for_all([&](Place& place) { post_payload(place); });
  }

  EdgeFrame take_frame(const Place& place) const {
    EdgeFrame frame;
    std::memcpy(&frame, place.frame.get(), sizeof(EdgeFrame));
    const auto from = [&] {
      return fmt::format("from {}, edge {}", core.impl().rank_name(peer), fingerprint.tag);
    };
    if (frame.group != core.impl().info().id) {
      throw Error("comm", ErrorKind::usage,
                  {.what = fmt::format("a tensor {}, that a former group never received", from()),
                   .expected = "every tensor to be received while its group exists"});
    }
    if (frame.depth != places.size()) {
      throw Error("comm", ErrorKind::usage,
                  {.what = fmt::format("the ends of an edge have different depths: {}", from()),
                   .got = fmt::format("{} at its sender", frame.depth),
                   .expected = std::to_string(places.size())});
    }
    TROIKA_CHECK(frame.header_bytes <= kMostHeaderBytes, "the header of an edge fits its room");
    return frame;
  }

  // Blocks until the next tensor has arrived.
  at::Tensor take(Deadline deadline, const at::Tensor* into) {
    Place& place = places[next % places.size()];
    place.head->wait(deadline);
    const auto frame = take_frame(place);
    const char* data = place.frame.get() + sizeof(EdgeFrame);
    if (frame.header_bytes > 0) {
      change(TensorKind::from_header({data, frame.header_bytes}), deadline);
    }
    if (into && TensorKind::of(*into) != kind) {
      throw Error("comm", ErrorKind::usage,
                  {.what = fmt::format("a tensor of another shape or dtype from {}, edge {}",
                                       core.impl().rank_name(peer), fingerprint.tag),
                   .got = kind.describe(),
                   .expected = TensorKind::of(*into).describe()});
    }
    at::Tensor tensor;
    if (bytes > kInlineBytes) {
      if (!place.payload) post_payload(place);
      place.payload->wait(deadline);
      tensor = lend(pool, std::exchange(place.buffer, {}), kind);
      place.payload.reset();
    } else {
      tensor = at::empty(kind.sizes, kind.type);
      if (bytes > 0) std::memcpy(tensor.data_ptr(), data + frame.header_bytes, bytes);
    }
    ++next;
    post(place);
    return tensor;
  }

  at::Tensor receive(Group::Site site, const at::Tensor* into) {
    const at::NoGradGuard no_grad;
    MessageFingerprint mine = fingerprint;
    mine.site = site;
    const int64_t id = core.recorder().messages().begun(mine);
    at::Tensor tensor;
    core.await_message(id, mine, Deadline::after(Milliseconds::max()),
                       [&](Deadline deadline) { tensor = take(deadline, into); });
    return tensor;
  }

  at::Tensor receive_on(c10::Device device, Group::Site site) {
    if (device.is_cpu()) return receive(site, nullptr);
    pool->stage_for(at::empty({0}, device));
    const auto received = receive(site, nullptr);
    auto tensor = at::empty_like(received, received.options().device(device).pinned_memory(false));
    copy_to_device(received, tensor);
    return tensor;
  }

  void receive_into(const at::Tensor& tensor, Group::Site site) {
    if (is_on_device(tensor)) pool->stage_for(tensor);
    const auto received = receive(site, &tensor);
    const at::NoGradGuard no_grad;
    const auto into = tensor.detach();
    if (!is_on_device(tensor)) {
      into.copy_(received);
    } else {
      copy_to_device(received, into);
    }
  }

  void copy_to_device(const at::Tensor& received, const at::Tensor& into) {
    core.guarded(fingerprint, [&] { copies.copy(received, into, core.deadline()); });
  }

  Group::Core& core;          // owns this
  const int peer;             // rank in the group
  std::vector<Place> places;  // of message n: n % depth
  const std::shared_ptr<BufferPool> pool;
  CopiesToDevice copies;
  size_t next = 0;
  TensorKind kind;  // of the last tensor
  size_t bytes = 0;
};

at::Tensor ReceivingEdge::receive(Group::Site site) const {
  return state_->receive(site, nullptr);
}

at::Tensor ReceivingEdge::receive(c10::Device device, Group::Site site) const {
  return state_->receive_on(device, site);
}

void ReceivingEdge::receive_into(const at::Tensor& tensor, Group::Site site) const {
  state_->receive_into(tensor, site);
}

int64_t ReceivingEdge::buffer_bytes() const {
  return state_->pool->held() + static_cast<int64_t>(state_->places.size() * kFrameRoom);
}

template <typename State>
std::shared_ptr<State> Group::make_edge(Direction direction, int peer, int tag,
                                        const EdgeOptions& options) const {
  auto fingerprint =
      core_->make_fingerprint(direction, peer, tag, kLargestTag, options.label, Site::current());
  fingerprint.on_edge = true;
  constexpr int kMostDepth = std::numeric_limits<uint16_t>::max();
  if (options.depth < 1 || options.depth > kMostDepth) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no such depth of an edge",
                 .got = std::to_string(options.depth),
                 .expected = fmt::format("1 to {}", kMostDepth)});
  }
  auto state = std::make_shared<State>(*core_, peer, std::move(fingerprint), options.depth);
  core_->keep_edge(state);
  // Keeps the group alive.
  return {core_, state.get()};
}

SendingEdge Group::edge_to(int peer, int tag, const EdgeOptions& options) const {
  return SendingEdge(make_edge<SendingEdge::State>(Direction::send, peer, tag, options));
}

ReceivingEdge Group::edge_from(int peer, int tag, const EdgeOptions& options) const {
  return ReceivingEdge(make_edge<ReceivingEdge::State>(Direction::receive, peer, tag, options));
}

}  // namespace troika::comm
