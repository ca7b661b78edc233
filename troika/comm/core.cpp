#include "troika/comm/core.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/base/log.h"
#include "troika/comm/parcel.h"

namespace troika::comm {

namespace {

// For the last questions about who is missing, within the second after a time-out; the rest is for
// telling the others.
constexpr Milliseconds kAskTime{500};

// Precedes the data of a message between two ranks.
struct MessageHead {
  int64_t count = 0;
  int32_t type = 0;
  uint32_t group = 0;  // Station::id

  std::string describe() const {
    return fmt::format("{} x {}", c10::toString(static_cast<c10::ScalarType>(type)), count);
  }
};

MessageHead head_of(const at::Tensor& tensor, const Station& station) {
  return {tensor.numel(), static_cast<int32_t>(tensor.scalar_type()), station.id};
}

// Booleans travel and are reduced as bytes.
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool ? tensor.view(at::kByte) : tensor;
}

// A contiguous tensor with the same content where `device` says, or the tensor itself where it is
// that already. `filled` is whether the content counts.
at::Tensor packed(const at::Tensor& tensor, c10::Device device, bool filled) {
  if (!tensor.defined()) return {};
  if (tensor.device() == device && tensor.is_contiguous()) return as_bytes(tensor);
  const auto options = tensor.options().requires_grad(false).device(device);
  const auto result = at::empty(tensor.sizes(), options);
  if (filled) result.copy_(tensor.detach());
  return as_bytes(result);
}

void unpack(const at::Tensor& from, const at::Tensor& into) {
  if (from.data_ptr() == into.data_ptr()) return;
  into.detach().copy_(into.scalar_type() == at::kBool ? from.view(at::kBool) : from);
}

ParcelTags message_tags(uint32_t tag) {
  return {.head = kHeadTag | tag, .payload = kMessageTag | tag};
}

bool on_cuda(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cuda();
}

}  // namespace

// A message under way has one of the parcels, and the tensor whose content it is.
struct Group::Core::Message {
  at::Tensor data;
  std::unique_ptr<SentParcel> sent = nullptr;
  std::unique_ptr<ArrivingParcel> arriving = nullptr;

  bool done() const { return sent ? sent->done() : arriving->done(); }
};

Group::Core::Core(std::shared_ptr<GroupImpl> impl, const GroupOptions& options)
    : impl_(std::move(impl)),
      options_(options),
      recorder_(std::make_shared<Recorder>()),
      collectives_(impl_->station()) {
  const auto& station = impl_->station();
  const std::string name =
      station.id == 0 ? "world"
                      : fmt::format("group{}-of-{}", station.id, station.world_ranks.front());
  impl_->lifeline()->enrol({.id = station.id,
                            .tag_space = station.tag_space,
                            .ranks = station.world_ranks,
                            .recorder = recorder_,
                            .owner = {name, station.rank, station.world_ranks, {}, station.backend},
                            .stall_warning = options.stall_warning,
                            .flight_record = options.flight_record});
}

Group::Core::~Core() {
  // A program that fails must not first wait for collectives that may never complete.
  if (std::uncaught_exceptions() > 0) impl_->lifeline()->abandon_for_program();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  try {
    for (const auto& message : messages_) {
      if (message->sent) message->sent->wait(deadline());
    }
  } catch (const Error& error) {
    if (!cause_) log::warn("[comm] a message was never received: {}", error.what());
  }
  impl_->lifeline()->dismiss(impl_->station().id);
}

void Group::Core::refuse_other_thread() const {
  if (impl_->station().any_thread || std::this_thread::get_id() == maker_) return;
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("back end {} is called from another thread than made the group",
                                   impl_->station().backend),
               .got = "an MPI that was not initialised for that",
               .expected = "MPI_Init_thread with MPI_THREAD_MULTIPLE"});
}

std::shared_ptr<Work::State> Group::Core::submit(Job&& job, bool async) {
  refuse_other_thread();
  async = async && impl_->station().any_thread && impl_->size() > 1;
  const auto state = run_or_queue(std::move(job), async);
  if (async || !state) return state;
  Work(state).wait();
  return nullptr;
}

// Runs the job on this thread, or returns the state of the queued one.
std::shared_ptr<Work::State> Group::Core::run_or_queue(Job&& job, bool async) {
  auto& print = job.call.print;
  std::unique_lock lock(mutex_);
  refuse_if_failed();
  print.sequence = next_sequence_++;
  const auto bytes = std::max(job.input.defined() ? job.input.nbytes() : 0,
                              job.output.defined() ? job.output.nbytes() : 0);
  const bool at_once = !async && !busy_ && queue_.empty();
  recorder_->queued(print, static_cast<int64_t>(bytes), at_once);
  if (at_once) {
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(job);
    } catch (...) {
      failure = std::current_exception();
      fail(failure);
    }
    lock.lock();
    busy_ = false;
    const bool others = !queue_.empty();
    lock.unlock();
    if (others) changed_.notify_all();
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  }
  if (const auto& tensor = on_cuda(job.input) ? job.input : job.output; on_cuda(tensor)) {
    const c10::impl::VirtualGuardImpl device(c10::kCUDA);
    job.ready.emplace(c10::kCUDA);
    job.ready->record(device.getStream(tensor.device()));
  }
  auto state = std::make_shared<Work::State>();
  queue_.push_back({std::move(job), state});
  if (!thread_.joinable()) thread_ = std::thread([this] { run_queue(); });
  lock.unlock();
  changed_.notify_all();
  return state;
}

void Group::Core::run_queue() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !busy_ && (closing_ || !queue_.empty()); });
    if (queue_.empty()) return;
    Queued next = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    const auto start = Clock::now();
    std::exception_ptr failure;
    try {
      {
        const std::lock_guard again(mutex_);
        refuse_if_failed();
      }
      recorder_->started(next.job.call.print);
      run_beside(next.job);
    } catch (...) {
      failure = std::current_exception();
      fail(failure);
    }
    next.job = Job();  // lets go of the tensors before the caller goes on
    lock.lock();
    busy_ = false;
    lock.unlock();
    next.state->finish(failure, Work::Times{start, Clock::now()});
    lock.lock();
  }
}

// On a stream of its own, to its end: the tensors may then be used on any.
void Group::Core::run_beside(Job& job) {
  if (!job.ready) return run(job);
  const auto& tensor = on_cuda(job.input) ? job.input : job.output;
  const c10::impl::VirtualGuardImpl device(c10::kCUDA);
  const c10::Stream own = device.getStreamFromGlobalPool(tensor.device());
  const c10::StreamGuard guard(own);
  job.ready->block(own);
  run(job);
  own.synchronize();
}

void Group::Core::run(Job& job) {
  Call& call = job.call;
  const int64_t sequence = call.print.sequence;
  const at::NoGradGuard no_grad;
  try {
    impl_->lifeline()->require_live();
    impl_->lifeline()->require_present(impl_->station().id, sequence);
    const bool cuda = impl_->station().takes_cuda && (on_cuda(job.input) || on_cuda(job.output));
    const auto device = !cuda                 ? c10::Device(c10::kCPU)
                        : job.input.defined() ? job.input.device()
                                              : job.output.device();
    call.input = packed(job.input, device, true);
    call.output = packed(job.output, device, job.reads_output);
    carry_out(call, deadline());
    if (job.writes_output && job.output.defined()) unpack(call.output, job.output);
    call.input = call.output = at::Tensor();
  } catch (const Error& error) {
    recorder_->ended(sequence, false);
    throw explained(error, call.print);
  } catch (...) {
    recorder_->ended(sequence, false);
    throw;
  }
  recorder_->ended(sequence, true);
}

void Group::Core::carry_out(Call& call, Deadline deadline) {
  Channel channel(*impl_, call.print);
  if (impl_->size() > 1) {
    impl_->agree(channel, call, deadline);
    if (impl_->shortcut(call, deadline)) return;
  }
  if (!on_cuda(call.input) && !on_cuda(call.output)) {
    return collectives_.run(channel, call, deadline);
  }
  // The back end has no way of its own for this one: over the host.
  Call host = call;
  host.input = packed(call.input, c10::kCPU, true);
  host.output = packed(call.output, c10::kCPU, true);
  collectives_.run(channel, host, deadline);
  if (call.output.defined()) call.output.copy_(host.output);
}

Error Group::Core::explained(const Error& error, const Print& print) const {
  auto& lifeline = *impl_->lifeline();
  if (error.kind() == ErrorKind::usage) return error;
  if (error.kind() == ErrorKind::timeout && !lifeline.is_cut()) {
    const auto who =
        lifeline.missing(impl_->station().id, print.sequence, Deadline::after(kAskTime));
    // A rank that timed out earlier may have given up meanwhile, and told who was missing.
    if (!lifeline.is_cut()) {
      return Error(
          "comm", ErrorKind::timeout,
          {.what = fmt::format("{} timed out on {} after {} ms", print.describe(),
                               lifeline.rank_name(lifeline.world_rank()), options_.timeout.count()),
           .got = who.empty() ? "all ranks in it: " + std::string(error.what()) : who,
           .expected = "every rank to come, and the data to arrive, in time"});
    }
  }
  // This call's error may be but an echo of the loss that cut the lifeline.
  const Error cause = lifeline.cause().value_or(error);
  if (cause.kind() == ErrorKind::usage) return cause;
  return Error("comm", cause.kind(),
               {.what = fmt::format("{} failed on {}: {}", print.describe(),
                                    lifeline.rank_name(lifeline.world_rank()), cause.what())});
}

void Group::Core::refuse_if_failed() const {
  if (!cause_) return;
  throw Error(
      "comm", cause_->kind(),
      {.what = fmt::format("this group is unusable since an earlier failure: {}", cause_->what())});
}

// Keeps the first failure and tells the other ranks.
void Group::Core::fail(const std::exception_ptr& failure) {
  Error cause("comm", ErrorKind::failure, {.what = "an unknown exception"});
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    cause = error;
  } catch (const std::exception& error) {
    cause = Error("comm", ErrorKind::failure, {.what = error.what()});
  } catch (...) {
  }
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    cause_ = cause;
  }
  impl_->lifeline()->abandon(cause);
  impl_->lifeline()->write_flight_records(cause.what());
}

void Group::Core::guarded(const std::function<void()>& body) {
  refuse_other_thread();
  {
    const std::lock_guard lock(mutex_);
    refuse_if_failed();
  }
  try {
    impl_->lifeline()->require_live();
    body();
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

std::shared_ptr<Work::State> Group::Core::send(const at::Tensor& tensor, int peer, uint32_t tag) {
  const at::NoGradGuard no_grad;
  const auto message = std::make_shared<Message>(packed(tensor, c10::kCPU, true));
  const MessageHead head = head_of(tensor, impl_->station());
  guarded([&] {
    message->sent =
        std::make_unique<SentParcel>(*impl_, peer, message_tags(tag), &head, sizeof(head),
                                     message->data.data_ptr(), message->data.nbytes());
  });
  if (message->done()) return nullptr;
  keep(message);
  auto state = std::make_shared<Work::State>();
  state->rest = [self = shared_from_this(), message](Deadline until) {
    self->guarded([&] { message->sent->wait(std::min(until, self->deadline())); });
    self->release(message);
  };
  return state;
}

std::shared_ptr<Work::State> Group::Core::receive(const at::Tensor& tensor, int peer,
                                                  uint32_t tag) {
  const at::NoGradGuard no_grad;
  const auto message = std::make_shared<Message>(packed(tensor, c10::kCPU, false));
  guarded([&] {
    message->arriving =
        std::make_unique<ArrivingParcel>(*impl_, peer, message_tags(tag), sizeof(MessageHead),
                                         message->data.data_ptr(), message->data.nbytes());
    // Also where nobody waits: a message is consumed in its turn.
    message->arriving->post_payload();
  });
  keep(message);
  auto state = std::make_shared<Work::State>();
  state->rest = [self = shared_from_this(), message, tensor, peer, tag](Deadline until) {
    self->guarded([&] {
      const Deadline deadline = std::min(until, self->deadline());
      MessageHead head;
      message->arriving->wait_for_head(&head, deadline);
      if (head.group != self->impl_->station().id) {
        throw Error(
            "comm", ErrorKind::usage,
            {.what = fmt::format("a message from {}, tag {}, that a former group never received",
                                 self->impl_->rank_name(peer), tag),
             .expected = "every message to be received while its group exists"});
      }
      const auto expected = head_of(tensor, self->impl_->station());
      if (head.count != expected.count || head.type != expected.type) {
        throw Error("comm", ErrorKind::usage,
                    {.what = fmt::format("a message of another size from {}, tag {}",
                                         self->impl_->rank_name(peer), tag),
                     .got = head.describe(),
                     .expected = expected.describe()});
      }
      message->arriving->wait_for_payload(deadline);
      const at::NoGradGuard no_grad_either;
      unpack(message->data, tensor);
    });
    self->release(message);
  };
  return state;
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
