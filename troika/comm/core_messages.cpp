// Messages between two ranks of a group.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/comm/core.h"
#include "troika/comm/packing.h"
#include "troika/comm/parcel.h"

namespace troika::comm {

namespace {

// Precedes the data.
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

ParcelTags message_tags(int tag) {
  const auto bits = static_cast<uint32_t>(tag);
  return {.head = kHeadTag | bits, .payload = kMessageTag | bits};
}

}  // namespace

// Under way. It has one of the parcels, and the tensor whose content it is.
struct Group::Core::Message {
  int peer;  // in the group
  at::Tensor data;
  MessagePrint print;
  int64_t id = -1;  // in the log
  std::unique_ptr<SentParcel> sent = nullptr;
  std::unique_ptr<ArrivingParcel> arriving = nullptr;

  bool done() const { return sent ? sent->done() : arriving->done(); }
};

std::shared_ptr<Group::Core::Message> Group::Core::begin_message(MessagePrint print, int peer,
                                                                 const at::Tensor& tensor) {
  const bool sends = print.direction == Direction::send;
  const auto message =
      std::make_shared<Message>(peer, packed(tensor, c10::kCPU, sends), std::move(print));
  message->print.peer = impl_->station().world_ranks[static_cast<size_t>(peer)];
  message->print.type = static_cast<int32_t>(tensor.scalar_type());
  message->print.count = tensor.numel();
  message->id = recorder_->messages().begun(message->print);
  return message;
}

std::shared_ptr<Work::State> Group::Core::send(const at::Tensor& tensor, int peer,
                                               MessagePrint print) {
  const at::NoGradGuard no_grad;
  const auto message = begin_message(std::move(print), peer, tensor);
  const MessageHead head = head_of(message->print, impl_->station());
  guarded([&] {
    message->sent = std::make_unique<SentParcel>(*impl_, peer, message_tags(message->print.tag),
                                                 &head, sizeof(head), message->data.data_ptr(),
                                                 message->data.nbytes());
  });
  if (message->done()) {
    recorder_->messages().ended(message->id, true);
    return nullptr;
  }
  keep(message);
  auto state = std::make_shared<Work::State>();
  state->rest = [self = shared_from_this(), message](Deadline until) {
    self->finish_message(message, until, [&](Deadline deadline) { message->sent->wait(deadline); });
  };
  return state;
}

std::shared_ptr<Work::State> Group::Core::receive(const at::Tensor& tensor, int peer,
                                                  MessagePrint print) {
  const at::NoGradGuard no_grad;
  const auto message = begin_message(std::move(print), peer, tensor);
  guarded([&] {
    message->arriving = std::make_unique<ArrivingParcel>(
        *impl_, peer, message_tags(message->print.tag), sizeof(MessageHead),
        message->data.data_ptr(), message->data.nbytes());
    // Also where nobody waits: a message is consumed in its turn.
    message->arriving->post_payload();
  });
  keep(message);
  auto state = std::make_shared<Work::State>();
  state->rest = [self = shared_from_this(), message, tensor](Deadline until) {
    self->finish_message(message, until, [&](Deadline deadline) {
      self->take(*message, deadline);
      const at::NoGradGuard no_grad_either;
      unpack(message->data, tensor);
    });
  };
  return state;
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

void Group::Core::finish_message(const std::shared_ptr<Message>& message, Deadline until,
                                 const std::function<void(Deadline)>& body) {
  auto& log = recorder_->messages();
  guarded([&] {
    const auto start = Clock::now();
    log.awaited(message->id, message->print);
    try {
      body(std::min(until, deadline()));
    } catch (const Error& error) {
      const auto waited = std::chrono::floor<Milliseconds>(Clock::now() - start);
      // Its record says that it waits until the other ranks have been asked.
      const Error why = explained(error, message->print.describe(), waited, [&](Deadline asking) {
        return impl_->lifeline()->other_end(impl_->station().id, message->print, asking);
      });
      log.ended(message->id, false);
      throw why;
    } catch (...) {
      log.ended(message->id, false);
      throw;
    }
  });
  log.ended(message->id, true);
  release(message);
}

void Group::Core::wait_for_sent() {
  try {
    for (const auto& message : messages_) {
      if (message->sent) message->sent->wait(deadline());
    }
  } catch (const Error& error) {
    if (!cause_) log::warn("[comm] a message was never received: {}", error.what());
  }
}

void Group::Core::keep(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  messages_.remove_if([](const auto& kept) { return kept->done(); });
  messages_.push_back(message);
}

void Group::Core::release(const std::shared_ptr<Message>& message) {
  const std::lock_guard lock(mutex_);
  messages_.remove(message);
}

}  // namespace troika::comm
