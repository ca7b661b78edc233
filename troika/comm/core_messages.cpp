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
  uint32_t group = 0;  // Station::id

  std::string describe() const {
    return fmt::format("{} x {}", c10::toString(static_cast<c10::ScalarType>(type)), count);
  }
};

MessageHead head_of(const MessagePrint& print, const Station& station) {
  return {print.count, print.type, station.id};
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
  MessagePrint print;
  int64_t id = -1;  // id in the log
  std::optional<SentParcel> sent = std::nullopt;
  std::optional<ArrivingParcel> arriving = std::nullopt;

  bool done() { return sent ? sent->done() : arriving->done(); }
};

MessagePrint Group::Core::make_print(Direction direction, int peer, int tag, int largest_tag,
                                     std::string_view label,
                                     const std::source_location& site) const {
  const auto& station = impl_->station();
  if (peer < 0 || peer >= station.size || peer == station.rank) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no such peer for a message",
                 .got = std::to_string(peer),
                 .expected = fmt::format("another rank of 0 to {}", station.size - 1)});
  }
  auto print = make_print_for_any(direction, tag, largest_tag, label, site);
  print.peer = station.world_ranks[static_cast<size_t>(peer)];
  return print;
}

MessagePrint Group::Core::make_print_for_any(Direction direction, int tag, int largest_tag,
                                             std::string_view label,
                                             const std::source_location& site) {
  if (tag < 0 || tag > largest_tag) {
    throw Error("comm", ErrorKind::usage,
                {.what = "no such tag",
                 .got = std::to_string(tag),
                 .expected = fmt::format("0 to {}", largest_tag)});
  }
  MessagePrint print{.direction = direction, .peer = kAnyRank, .tag = tag, .site = site};
  print.label[label.copy(print.label.data(), print.label.size() - 1)] = 0;
  return print;
}

std::shared_ptr<Group::Core::Message> Group::Core::begin_message(MessagePrint print, int peer,
                                                                 at::Tensor data) {
  auto message = std::make_shared<Message>(peer, std::move(data), std::move(print));
  message->id = recorder_->messages().begun(message->print);
  return message;
}

bool Group::Core::send_at_once(MessagePrint& print, int peer, const at::Tensor& data) {
  auto& log = recorder_->messages();
  bool is_sent = false;
  const MessageHead head = head_of(print, impl_->station());
  guarded([&] {
    try {
      is_sent =
          send_parcel_at_once(*impl_, peer, message_tags(print.tag), view(&head, sizeof(head)),
                              view(data.data_ptr(), data.nbytes()));
    } catch (...) {
      log.ended(log.begun(print), false);
      throw;
    }
  });
  if (is_sent) log.passed(print);
  return is_sent;
}

std::shared_ptr<Work::State> Group::Core::send(const at::Tensor& tensor, int peer,
                                               MessagePrint print) {
  const at::NoGradGuard no_grad;
  print.type = static_cast<int32_t>(tensor.scalar_type());
  print.count = tensor.numel();
  auto data = packed(tensor, c10::kCPU, true);
  if (send_at_once(print, peer, data)) return nullptr;
  const auto message = begin_message(std::move(print), peer, std::move(data));
  const MessageHead head = head_of(message->print, impl_->station());
  guarded([&] {
    message->sent.emplace(*impl_, peer, message_tags(message->print.tag), &head, sizeof(head),
                          message->data.data_ptr(), message->data.nbytes());
  });
  if (message->done()) {
    recorder_->messages().ended(message->id, true);
    return nullptr;
  }
  keep(message);
  return make_rest([self = shared_from_this(), message](Deadline until) {
    self->await_message(message->id, message->print, until,
                        [&](Deadline deadline) { message->sent->wait(deadline); });
    self->release(message);
  });
}

std::shared_ptr<Work::State> Group::Core::receive(const at::Tensor& tensor, int peer,
                                                  MessagePrint print) {
  const at::NoGradGuard no_grad;
  print.type = static_cast<int32_t>(tensor.scalar_type());
  print.count = tensor.numel();
  const auto message =
      begin_message(std::move(print), peer, packed(tensor, c10::kCPU, /*filled=*/false));
  guarded([&] {
    message->arriving.emplace(*impl_, peer, message_tags(message->print.tag), sizeof(MessageHead),
                              message->data.data_ptr(), message->data.nbytes());
    // Posted even if nobody waits, so that messages are consumed in order.
    message->arriving->post_payload();
  });
  keep(message);
  return make_rest([self = shared_from_this(), message, tensor](Deadline until) {
    self->await_message(message->id, message->print, until, [&](Deadline deadline) {
      self->take(*message, deadline);
      const at::NoGradGuard no_grad_either;
      unpack(message->data, tensor);
    });
    self->release(message);
  });
}

int Group::Core::receive_any(const at::Tensor& tensor, int tag, std::string_view label,
                             const std::source_location& site) {
  if (!impl_->station().receives_any) {
    throw Error(
        "comm", ErrorKind::usage,
        {.what = fmt::format("back end {} cannot receive from any rank", impl_->station().backend),
         .expected = "local, shm, tcp or mpi, or a rank to receive from"});
  }
  auto any = make_print_for_any(Direction::receive, tag, kLargestTag, label, site);
  any.type = static_cast<int32_t>(tensor.scalar_type());
  any.count = tensor.numel();
  const int64_t id = recorder_->messages().begun(any);
  int from = 0;
  await_message(id, any, Deadline::after(Milliseconds::max()), [&](Deadline deadline) {
    from = impl_->await_any(message_tags(tag).head, next_of_any_, deadline);
  });
  next_of_any_ = (from + 1) % impl_->size();
  Work(receive(tensor, from, make_print(Direction::receive, from, tag, kLargestTag, label, site)))
      .wait();
  return from;
}

std::shared_ptr<Work::State> Group::Core::batch(const std::vector<PointToPoint>& messages,
                                                std::string_view label,
                                                const std::source_location& site) {
  std::vector<MessagePrint> prints;
  for (const auto& [direction, tensor, peer, tag] : messages) {
    prints.push_back(make_print(direction, peer, tag, kLargestTag, label, site));
  }
  std::vector<Work> works;
  for (const auto direction : {Direction::receive, Direction::send}) {
    for (size_t i = 0; i < messages.size(); ++i) {
      const auto& [own, tensor, peer, tag] = messages[i];
      if (own != direction) continue;
      const bool sends = direction == Direction::send;
      works.push_back(
          Work(sends ? send(tensor, peer, prints[i]) : receive(tensor, peer, prints[i])));
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
  if (head.group != impl_->station().id) {
    throw Error(
        "comm", ErrorKind::usage,
        {.what = fmt::format("a message from {}, tag {}, that a former group never received",
                             impl_->rank_name(message.peer), message.print.tag),
         .expected = "every message to be received while its group exists"});
  }
  const auto expected = head_of(message.print, impl_->station());
  if (head.count != expected.count || head.type != expected.type) {
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("a message of another size from {}, tag {}",
                                     impl_->rank_name(message.peer), message.print.tag),
                 .got = head.describe(),
                 .expected = expected.describe()});
  }
  message.arriving->wait_for_payload(deadline);
}

void Group::Core::await_message(int64_t id, const MessagePrint& print, Deadline until,
                                c10::function_ref<void(Deadline)> body) {
  auto& log = recorder_->messages();
  const auto start = Clock::now();
  refuse_unusable();
  log.awaited(id, print, start);
  try {
    impl_->lifeline()->require_live(impl_->station().tag_space);
    body(std::min(until, deadline()));
  } catch (const Error& error) {
    const auto waited = std::chrono::floor<Milliseconds>(Clock::now() - start);
    // The log shows the message as waiting until the other ranks have been asked.
    const Error why = explained(error, print.describe(), waited, [&](Deadline asking) {
      return impl_->lifeline()->other_end(impl_->station().id, print, asking);
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
  const auto end = [](const MessagePrint& print) {
    return std::tuple(print.direction, print.peer, print.tag);
  };
  const std::lock_guard lock(mutex_);
  for (const auto& other : edges_) {
    if (end(other->print) != end(edge->print)) continue;
    throw Error("comm", ErrorKind::usage,
                {.what = fmt::format("edge {} {} {} exists already", edge->print.tag,
                                     edge->print.direction == Direction::send ? "to" : "from",
                                     impl_->lifeline()->rank_name(edge->print.peer)),
                 .hint = "keep its end, or choose another tag"});
  }
  edges_.push_back(std::move(edge));
}

void Group::Core::wait_for_sent() {
  try {
    for (const auto& message : messages_) {
      if (message->sent) message->sent->wait(deadline());
    }
    for (const auto& edge : edges_) edge->finish(deadline());
  } catch (const Error& error) {
    if (!cause_) log::warn("[comm] a message was never received: {}", error.what());
  }
}

void Group::Core::keep(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  std::erase_if(messages_, [](const auto& kept) { return kept->done(); });
  messages_.push_back(message);
}

void Group::Core::release(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  std::erase(messages_, message);
}

}  // namespace troika::comm
