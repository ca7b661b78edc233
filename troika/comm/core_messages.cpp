// Messages between two ranks of a group.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/comm/core.h"
#include "troika/comm/messages/packing.h"
#include "troika/comm/messages/parcel.h"

namespace troika::comm {

namespace {

// The header before the data.
struct MessageHead {
  int64_t count = 0;
  int32_t type = 0;
  uint32_t group = 0;  // GroupInfo::id

  std::string describe() const {
    return fmt::format("{} x {}", c10::toString(static_cast<c10::ScalarType>(type)), count);
  }
};

MessageHead head_of(const MessageFingerprint& fingerprint, const GroupInfo& info) {
  return {fingerprint.count, fingerprint.type, info.id};
}

std::string_view view(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

ParcelTags message_tags(int tag) {
  const auto bits = static_cast<uint32_t>(tag);
  return {.head = kHeadTag | bits, .payload = kMessageTag | bits};
}

}  // namespace

// A message in flight. Has either a SentParcel or an ArrivingParcel, and the tensor that is sent or
// received.
struct Group::Core::Message {
  int peer;  // rank in the group
  at::Tensor data;
  MessageFingerprint fingerprint;
  int64_t id = -1;  // id in the log
  std::optional<SentParcel> sent = std::nullopt;
  std::optional<ArrivingParcel> arriving = std::nullopt;

  bool done() { return sent ? sent->done() : arriving->done(); }
};

MessageFingerprint Group::Core::make_fingerprint(Direction direction, int peer, int tag,
                                                 int largest_tag, std::string_view label,
                                                 const std::source_location& site) const {
  const auto& info = impl_->info();
  if (peer < 0 || peer >= info.size || peer == info.rank) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no such peer for a message",
                 .got = std::to_string(peer),
                 .expected = fmt::format("another rank of 0 to {}", info.size - 1)});
  }
  auto fingerprint = make_fingerprint_for_any(direction, tag, largest_tag, label, site);
  fingerprint.peer = info.world_ranks[static_cast<size_t>(peer)];
  return fingerprint;
}

MessageFingerprint Group::Core::make_fingerprint_for_any(Direction direction, int tag,
                                                         int largest_tag, std::string_view label,
                                                         const std::source_location& site) {
  if (tag < 0 || tag > largest_tag) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no such tag",
                 .got = std::to_string(tag),
                 .expected = fmt::format("0 to {}", largest_tag)});
  }
  MessageFingerprint fingerprint{
      .direction = direction, .peer = kAnyRank, .tag = tag, .site = site};
  fingerprint.label[label.copy(fingerprint.label.data(), fingerprint.label.size() - 1)] = 0;
  return fingerprint;
}

std::shared_ptr<Group::Core::Message> Group::Core::begin_message(MessageFingerprint fingerprint,
                                                                 int peer, at::Tensor data) {
  auto message = std::make_shared<Message>(peer, std::move(data), std::move(fingerprint));
  message->id = recorder_->messages().begun(message->fingerprint);
  return message;
}

bool Group::Core::send_at_once(MessageFingerprint& fingerprint, int peer, const at::Tensor& data) {
  auto& log = recorder_->messages();
  bool is_sent = false;
  const MessageHead head = head_of(fingerprint, impl_->info());
  guarded([&] {
    try {
      is_sent =
          send_parcel_at_once(*impl_, peer, message_tags(fingerprint.tag),
                              view(&head, sizeof(head)), view(data.data_ptr(), data.nbytes()));
    } catch (...) {
      log.ended(log.begun(fingerprint), false);
      throw;
    }
  });
  if (is_sent) log.passed(fingerprint);
  return is_sent;
}

std::shared_ptr<Work::State> Group::Core::send(const at::Tensor& tensor, int peer,
                                               MessageFingerprint fingerprint) {
  const at::NoGradGuard no_grad;
  fingerprint.type = static_cast<int32_t>(tensor.scalar_type());
  fingerprint.count = tensor.numel();
  auto data = packed(tensor, c10::kCPU, true);
  bytes_of_messages_ += data.nbytes();
  if (send_at_once(fingerprint, peer, data)) return nullptr;
  const auto message = begin_message(std::move(fingerprint), peer, std::move(data));
  const MessageHead head = head_of(message->fingerprint, impl_->info());
  guarded([&] {
    message->sent.emplace(*impl_, peer, message_tags(message->fingerprint.tag), &head, sizeof(head),
                          message->data.data_ptr(), message->data.nbytes());
  });
  if (message->done()) {
    recorder_->messages().ended(message->id, true);
    return nullptr;
  }
  transfers_.keep(message);
  return make_rest(
      [self = shared_from_this(), message](Deadline until) {
        self->await_message(message->id, message->fingerprint, until,
                            [&](Deadline deadline) { message->sent->wait(deadline); });
        self->transfers_.release(message);
      },
      [message] { return message->done(); });
}

std::shared_ptr<Work::State> Group::Core::receive(const at::Tensor& tensor, int peer,
                                                  MessageFingerprint fingerprint) {
  const at::NoGradGuard no_grad;
  fingerprint.type = static_cast<int32_t>(tensor.scalar_type());
  fingerprint.count = tensor.numel();
  const auto message =
      begin_message(std::move(fingerprint), peer, packed(tensor, c10::kCPU, /*filled=*/false));
  guarded([&] {
    message->arriving.emplace(*impl_, peer, message_tags(message->fingerprint.tag),
                              sizeof(MessageHead), message->data.data_ptr(),
                              message->data.nbytes());
    // Posted even if nobody waits, so that messages are consumed in order.
    message->arriving->post_payload();
  });
  transfers_.keep(message);
  return make_rest([self = shared_from_this(), message, tensor](Deadline until) {
    self->await_message(message->id, message->fingerprint, until, [&](Deadline deadline) {
      self->take(*message, deadline);
      const at::NoGradGuard no_grad_either;
      unpack(message->data, tensor);
    });
    self->transfers_.release(message);
  });
}

int Group::Core::receive_any(const at::Tensor& tensor, int tag, std::string_view label,
                             const std::source_location& site) {
  if (!impl_->info().receives_any) {
    throw Error(
        "comm", ErrorKind::usage,
        {.what = fmt::format("back end {} cannot receive from any rank", impl_->info().backend),
         .expected = "local, shm, tcp or mpi, or a rank to receive from"});
  }
  auto any = make_fingerprint_for_any(Direction::receive, tag, kLargestTag, label, site);
  any.type = static_cast<int32_t>(tensor.scalar_type());
  any.count = tensor.numel();
  const int64_t id = recorder_->messages().begun(any);
  int from = 0;
  await_message(id, any, Deadline::after(Milliseconds::max()), [&](Deadline deadline) {
    from = impl_->await_any(message_tags(tag).head, next_of_any_, deadline);
  });
  next_of_any_ = (from + 1) % impl_->size();
  Work(receive(tensor, from,
               make_fingerprint(Direction::receive, from, tag, kLargestTag, label, site)))
      .wait();
  return from;
}

std::shared_ptr<Work::State> Group::Core::batch(const std::vector<PointToPoint>& messages,
                                                std::string_view label,
                                                const std::source_location& site) {
  std::vector<MessageFingerprint> fingerprints;
  for (const auto& [direction, tensor, peer, tag] : messages) {
    fingerprints.push_back(make_fingerprint(direction, peer, tag, kLargestTag, label, site));
  }
  if (impl_->info().is_lone) {
    for (const auto& [direction, tensor, peer, tag] : messages) {
      if (direction == Direction::send) bytes_of_messages_ += tensor.nbytes();
    }
    return nullptr;
  }
  std::vector<Work> works;
  for (const auto direction : {Direction::receive, Direction::send}) {
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto& [own, tensor, peer, tag] = messages[i];
      if (own != direction) continue;
      const bool sends = direction == Direction::send;
      works.push_back(Work(sends ? send(tensor, peer, fingerprints[i])
                                 : receive(tensor, peer, fingerprints[i])));
    }
  }
  return make_rest([self = shared_from_this(), works = std::move(works)](Deadline until) {
    const auto deadline = std::min(until, self->deadline());
    for (const auto& work : works) work.wait(deadline);
  });
}

void Group::Core::take(Message& message, Deadline deadline) {
  MessageHead head;
  message.arriving->wait_for_head(&head, deadline);
  if (head.group != impl_->info().id) {
    throw Error(
        "comm", ErrorKind::usage,
        {.what = fmt::format("a message from {}, tag {}, that a former group never received",
                             impl_->rank_name(message.peer), message.fingerprint.tag),
         .expected = "every message to be received while its group exists"});
  }
  const auto expected = head_of(message.fingerprint, impl_->info());
  if (head.count != expected.count || head.type != expected.type) {
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("a message of another size from {}, tag {}",
                                     impl_->rank_name(message.peer), message.fingerprint.tag),
                 .got = head.describe(),
                 .expected = expected.describe()});
  }
  message.arriving->wait_for_payload(deadline);
}

void Group::Core::await_message(int64_t id, const MessageFingerprint& fingerprint, Deadline until,
                                c10::function_ref<void(Deadline)> body) {
  auto& log = recorder_->messages();
  const auto start = Clock::now();
  refuse_unusable();
  log.awaited(id, fingerprint, start);
  try {
    impl_->lifeline()->require_live(impl_->info().tag_space);
    body(std::min(until, deadline()));
  } catch (const Error& error) {
    const auto waited = std::chrono::floor<Milliseconds>(Clock::now() - start);
    // The log shows the message as waiting until the other ranks have been asked.
    const Error why = explained(error, fingerprint.describe(), waited, [&](Deadline asking) {
      return impl_->lifeline()->other_end(impl_->info().id, fingerprint, asking);
    });
    log.ended(id, false);
    fail(std::make_exception_ptr(why));
    throw why;
  } catch (...) {
    log.ended(id, false);
    fail(std::current_exception());
    throw;
  }
  log.ended(id, true);
}

void Group::Core::keep_edge(std::shared_ptr<Edge> edge) {
  if (transfers_.keep(edge)) return;
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("edge {} {} {} exists already", edge->fingerprint.tag,
                                   edge->fingerprint.direction == Direction::send ? "to" : "from",
                                   impl_->lifeline()->rank_name(edge->fingerprint.peer)),
               .hint = "keep its end, or choose another tag"});
}

void Group::Core::wait_for_sent() {
  try {
    transfers_.finish(options_.timeout);
  } catch (const Error& error) {
    if (!failure_.is_set()) log::warn("[comm] a message was never received: {}", error.what());
  }
}

void Group::Core::KeptTransfers::keep(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  std::erase_if(messages_, [](const auto& kept) { return kept->done(); });
  messages_.push_back(message);
}

void Group::Core::KeptTransfers::release(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  std::erase(messages_, message);
}

bool Group::Core::KeptTransfers::keep(std::shared_ptr<Edge> edge) {
  const auto end = [](const Edge& one) {
    const auto& fingerprint = one.fingerprint;
    return std::tuple(fingerprint.direction, fingerprint.peer, fingerprint.tag);
  };
  const std::lock_guard lock(mutex_);
  for (const auto& other : edges_) {
    if (end(*other) == end(*edge)) return false;
  }
  edges_.push_back(std::move(edge));
  return true;
}

void Group::Core::KeptTransfers::finish(Milliseconds timeout) {
  for (const auto& message : messages_) {
    if (message->sent) message->sent->wait(Deadline::after(timeout));
  }
  for (const auto& edge : edges_) edge->finish(Deadline::after(timeout));
}

}  // namespace troika::comm
