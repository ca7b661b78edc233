#include "troika/comm/core.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <utility>

#include "troika/base/error.h"
#include "troika/comm/messages/packing.h"

namespace troika::comm {

namespace {

// Returns the request's tensor that is on a device, if any.
const at::Tensor& on_device_of(const CallRequest& request) {
  return is_on_device(request.input) ? request.input : request.output;
}

}  // namespace

Group::Core::Core(std::shared_ptr<GroupImpl> impl, const GroupOptions& options)
    : impl_(std::move(impl)),
      options_(options),
      recorder_(std::make_shared<Recorder>()),
      collectives_(impl_->info()) {
  const auto& info = impl_->info();
  const std::string name =
      info.id == 0 ? "world" : fmt::format("group{}-of-{}", info.id, info.world_ranks.front());
  impl_->lifeline()->enrol({.id = info.id,
                            .tag_space = info.tag_space,
                            .ranks = info.world_ranks,
                            .recorder = recorder_,
                            .owner = {name, info.rank, info.world_ranks, {}, info.backend},
                            .stall_warning = options.stall_warning,
                            .flight_record = options.flight_record,
                            .fails_alone = info.fails_alone});
}

Group::Core::~Core() {
  // A failing program must not first wait for collectives that may never complete.
  if (std::uncaught_exceptions() > 0) {
    auto& lifeline = *impl_->lifeline();
    const auto& info = impl_->info();
    info.fails_alone ? lifeline.abandon_group_for_program(info.id) : lifeline.abandon_for_program();
  }
  {
    const std::lock_guard lock(mutex_);
    calls_.closing = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  wait_for_sent();
  impl_->lifeline()->dismiss(impl_->info().id);
}

void Group::Core::refuse_other_thread() const {
  if (impl_->info().any_thread || std::this_thread::get_id() == maker_) return;
  throw Error("comm", ErrorKind::usage,
              {.what = fmt::format("back end {} is called from another thread than made the group",
                                   impl_->info().backend),
               .got = "an MPI that was not initialised for that",
               .expected = "MPI_Init_thread with MPI_THREAD_MULTIPLE"});
}

std::shared_ptr<Work::State> Group::Core::submit(CallRequest&& request, bool async) {
  refuse_other_thread();
  async = async && impl_->info().any_thread && impl_->size() > 1;
  const auto state = run_or_queue(std::move(request), async);
  if (async || !state) return state;
  Work(state).wait();
  return nullptr;
}

// Runs the request on this thread and returns null, or queues it and returns its state.
std::shared_ptr<Work::State> Group::Core::run_or_queue(CallRequest&& request, bool async) {
  auto& fingerprint = request.call.fingerprint;
  std::unique_lock lock(mutex_);
  failure_.refuse_if_set();
  fingerprint.sequence = calls_.next_sequence++;
  const auto bytes = std::max(request.input.defined() ? request.input.nbytes() : 0,
                              request.output.defined() ? request.output.nbytes() : 0);
  const bool at_once = !async && !calls_.busy && calls_.queue.empty();
  recorder_->queued(fingerprint, static_cast<int64_t>(bytes), at_once);
  if (at_once) {
    calls_.busy = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      run(request);
    } catch (...) {
      failure = std::current_exception();
      fail(failure);
    }
    lock.lock();
    calls_.busy = false;
    const bool others = !calls_.queue.empty();
    lock.unlock();
    if (others) changed_.notify_all();
    if (failure) std::rethrow_exception(failure);
    return nullptr;
  }
  if (const auto& tensor = on_device_of(request); is_on_device(tensor)) {
    const c10::impl::VirtualGuardImpl device(tensor.device().type());
    request.ready.emplace(tensor.device().type());
    request.ready->record(device.getStream(tensor.device()));
  }
  auto state = std::make_shared<Work::State>();
  calls_.queue.push_back({std::move(request), state});
  start_thread();
  lock.unlock();
  changed_.notify_all();
  return state;
}

void Group::Core::start_thread() {
  if (!thread_.joinable()) thread_ = std::thread([this] { run_queue(); });
}

void Group::Core::run_queue() {
  // How often it looks at calls that run on a device. Nobody waits for the result, but the tensors
  // stay in memory until then.
  constexpr std::chrono::microseconds kLook{200};
  const auto has_call = [&] { return !calls_.busy && !calls_.queue.empty(); };
  std::unique_lock lock(mutex_);
  while (true) {
    if (calls_.on_device.empty()) {
      changed_.wait(lock, [&] {
        return has_call() || !calls_.on_device.empty() || (calls_.closing && !calls_.busy);
      });
    } else {
      changed_.wait_for(lock, kLook, has_call);
      look_at_device(lock);
    }
    if (!has_call()) {
      if (calls_.closing && calls_.queue.empty() && calls_.on_device.empty()) return;
      continue;
    }
    Queued next = std::move(calls_.queue.front());
    calls_.queue.pop_front();
    calls_.busy = true;
    lock.unlock();
    const auto start = Clock::now();
    std::exception_ptr failure;
    std::optional<c10::Event> end;
    try {
      failure_.refuse_if_set();
      recorder_->started(next.request.call.fingerprint);
      end = run_beside(next.request);
    } catch (...) {
      failure = std::current_exception();
      fail(failure);
    }
    next.request = CallRequest();  // releases the tensors before the caller continues
    lock.lock();
    calls_.busy = false;
    lock.unlock();
    next.state->finish(failure, Work::Times{start, Clock::now()}, std::move(end));
    lock.lock();
  }
}

// Runs a request with device tensors on a separate stream, and returns the end of its work there.
std::optional<c10::Event> Group::Core::run_beside(CallRequest& request) {
  if (!request.ready) {
    run(request);
    return std::nullopt;
  }
  const auto where = on_device_of(request).device();
  const c10::impl::VirtualGuardImpl device(where.type());
  const c10::Stream own = device.getStreamFromGlobalPool(where);
  const c10::StreamGuard guard(own);
  request.ready->block(own);
  // The caller may release the tensors before the device has finished this work.
  for (const auto& tensor : {request.input, request.output}) {
    if (is_on_device(tensor)) device.recordDataPtrOnStream(tensor.storage().data_ptr(), own);
  }
  run(request);
  std::optional<c10::Event> end(where.type());
  end->record(own);
  return end;
}

void Group::Core::run(CallRequest& request) {
  Call& call = request.call;
  const int64_t sequence = call.fingerprint.sequence;
  const at::NoGradGuard no_grad;
  const Deadline until = deadline();
  try {
    impl_->lifeline()->require_live(impl_->info().tag_space);
    impl_->lifeline()->require_present(impl_->info().id, sequence);
    const auto& tensor = request.input.defined() ? request.input : request.output;
    const bool stays = tensor.defined() && tensor.device().type() == impl_->info().native_device;
    const auto device = stays ? tensor.device() : c10::Device(c10::kCPU);
    call.input = packed(request.input, device, true);
    call.output = packed(request.output, device, request.reads_output);
    carry_out(call, until);
    if (request.writes_output && request.output.defined()) unpack(call.output, request.output);
    call.input = call.output = at::Tensor();
  } catch (const Error& error) {
    recorder_->ended(sequence, false);
    throw explained(error, call.fingerprint.describe(), options_.timeout, [&](Deadline asking) {
      return impl_->lifeline()->missing(impl_->info().id, sequence, asking);
    });
  } catch (...) {
    recorder_->ended(sequence, false);
    throw;
  }
  end_or_watch(call.fingerprint, until);
}

void Group::Core::carry_out(Call& call, Deadline deadline) {
  Channel channel(*impl_, call.fingerprint);
  if (impl_->size() > 1) {
    impl_->verify_call(channel, call, deadline);
    if (impl_->try_native(call, deadline)) return;
  }
  if (!is_on_device(call.input) && !is_on_device(call.output)) {
    return collectives_.run(channel, call, deadline);
  }
  // The back end cannot carry out this call on the device: copy over the host.
  Call host = call;
  host.input = packed(call.input, c10::kCPU, true);
  host.output = packed(call.output, c10::kCPU, true);
  collectives_.run(channel, host, deadline);
  if (call.output.defined()) unpack(host.output, call.output);
}

Error Group::Core::explained(const Error& error, const std::string& what, Milliseconds waited,
                             const std::function<std::string(Deadline)>& who) const {
  auto& lifeline = *impl_->lifeline();
  const uint32_t space = impl_->info().tag_space;
  if (error.kind() == ErrorKind::usage) return error;
  if (error.kind() == ErrorKind::timeout && !lifeline.is_cut(space)) {
    const auto answer = who(Deadline::after(kAskTime));
    // A rank that timed out earlier may have failed in the meantime and reported who was missing.
    if (!lifeline.is_cut(space)) {
      return Error(
          "comm", ErrorKind::timeout,
          {.what = fmt::format("{} timed out on {} after {} ms", what,
                               lifeline.rank_name(lifeline.world_rank()), waited.count()),
           .got = answer.empty() ? "all ranks in it: " + std::string(error.what()) : answer,
           .expected = "all ranks to join, and the data to arrive, in time"});
    }
  }
  // This error may only be a consequence of the loss that cut the lifeline.
  const Error cause = lifeline.cause(space).value_or(error);
  if (cause.kind() == ErrorKind::usage) return cause;
  return Error("comm", cause.kind(),
               {.what = fmt::format("{} failed on {}: {}", what,
                                    lifeline.rank_name(lifeline.world_rank()), cause.what())});
}

// Keeps the first failure and notifies the other ranks.
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
  if (!failure_.set(cause)) return;
  auto& lifeline = *impl_->lifeline();
  const auto& info = impl_->info();
  if (info.fails_alone) {
    lifeline.abandon_group(info.id, cause);
    return lifeline.write_flight_record_of(info.id, cause.what());
  }
  lifeline.abandon(cause);
  lifeline.write_flight_records(cause.what());
}

void Group::Core::refuse_unusable() const {
  refuse_other_thread();
  failure_.refuse_if_set();
}

void Group::Core::guarded(c10::function_ref<void()> body) {
  refuse_unusable();
  try {
    impl_->lifeline()->require_live(impl_->info().tag_space);
    body();
  } catch (...) {
    fail(std::current_exception());
    throw;
  }
}

void Group::Core::guarded(const MessageFingerprint& fingerprint, c10::function_ref<void()> body) {
  try {
    guarded(body);
  } catch (const Error& error) {
    throw explained(error, fingerprint.describe(), Milliseconds(0),
                    [](Deadline) { return std::string(); });
  }
}

}  // namespace troika::comm
