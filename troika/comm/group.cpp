#include "troika/comm/group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "troika/base/error.h"
#include "troika/comm/collectives.h"

namespace troika::comm {

namespace {

constexpr uint32_t kCollectiveTag = 1;

// What a rank is about to do, sent to its neighbour before every collective. The ranks form a ring,
// so if any two of them disagree, some neighbours do.
struct Fingerprint {
  int64_t sequence = 0;
  int64_t count = 0;
  int32_t type = 0;
  int32_t reduce_op = -1;
  int32_t root = -1;
  std::array<char, 20> operation{};
  std::array<char, 64> label{};

  bool agrees_with(const Fingerprint& other) const {
    return sequence == other.sequence && count == other.count && type == other.type &&
           reduce_op == other.reduce_op && root == other.root && operation == other.operation;
  }

  std::string describe() const {
    std::string text = fmt::format("{} #{}", operation.data(), sequence);
    if (label[0]) text += fmt::format(" '{}'", label.data());
    if (type >= 0) {
      text += fmt::format(" of {} x {}", c10::toString(static_cast<c10::ScalarType>(type)), count);
    }
    if (reduce_op >= 0) text += fmt::format(" {}", name(static_cast<ReduceOp>(reduce_op)));
    if (root >= 0) text += fmt::format(" from rank {}", root);
    return text;
  }
};

template <size_t N>
void copy_text(std::array<char, N>& into, std::string_view text) {
  std::memcpy(into.data(), text.data(), std::min(text.size(), N - 1));
}

}  // namespace

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;

  void finish(std::exception_ptr with) {
    const std::lock_guard lock(mutex);
    done = true;
    failure = std::move(with);
    changed.notify_all();
  }
};

void Work::wait() const {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->failure) std::rethrow_exception(state_->failure);
}

bool Work::done() const {
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

// Owns the back end and the thread that is the only one to talk to it.
class Group::Core {
 public:
  Core(std::unique_ptr<GroupImpl> made, const GroupOptions& options)
      : impl_(std::move(made)), options_(options), thread_([this] { run(); }) {}

  ~Core() {
    // A program that fails must not first wait for collectives that may never complete.
    if (std::uncaught_exceptions() > 0) give_up("its program failed");
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  using Body = std::function<void(const Channel&)>;

  std::shared_ptr<Work::State> post(Fingerprint print, std::string_view operation,
                                    const std::string& label, Body body) {
    auto state = std::make_shared<Work::State>();
    {
      const std::lock_guard lock(mutex_);
      refuse_if_failed();
      print.sequence = next_sequence_++;
      copy_text(print.operation, operation);
      copy_text(print.label, label);
      queue_.push_back({print, std::move(body), state});
    }
    changed_.notify_all();
    return state;
  }

  const GroupImpl& impl() const { return *impl_; }

 private:
  struct Call {
    Fingerprint print;
    Body body;
    std::shared_ptr<Work::State> state;
  };

  void run() {
    while (auto call = next()) {
      try {
        execute(*call);
        call->body = nullptr;  // lets go of the tensors before the caller goes on
        call->state->finish(nullptr);
      } catch (...) {
        fail(std::current_exception());
        call->state->finish(std::current_exception());
      }
    }
  }

  std::optional<Call> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return std::nullopt;
    Call call = std::move(queue_.front());
    queue_.pop_front();
    return call;
  }

  void execute(const Call& call) {
    {
      const std::lock_guard lock(mutex_);
      refuse_if_failed();
    }
    const Channel channel{*impl_, kCollectiveTag, Deadline::after(options_.timeout)};
    try {
      check_agreement(channel, call.print);
      call.body(channel);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::usage) throw;
      throw Error("comm", error.kind(),
                  {.what = fmt::format("rank {} of {} failed in {}: {}", impl_->rank(),
                                       impl_->size(), call.print.describe(), error.what())});
    }
  }

  void check_agreement(const Channel& channel, const Fingerprint& mine) const {
    const int n = impl_->size();
    if (n == 1) return;
    const int previous = (impl_->rank() + n - 1) % n;
    Fingerprint theirs;
    const auto send = impl_->send((impl_->rank() + 1) % n, channel.tag, &mine, sizeof(Fingerprint));
    impl_->receive(previous, channel.tag, &theirs, sizeof(Fingerprint))->wait(channel.deadline);
    send->wait(channel.deadline);
    if (!mine.agrees_with(theirs)) {
      throw Error("comm", ErrorKind::usage,
                  {.what = "ranks called different collectives",
                   .got = fmt::format("rank {}: {}; rank {}: {}", impl_->rank(), mine.describe(),
                                      previous, theirs.describe()),
                   .expected = "the same calls in the same order on every rank"});
    }
  }

  // Call with mutex_ held.
  void refuse_if_failed() const {
    if (!cause_) return;
    throw Error("comm", cause_kind_,
                {.what = "this group is unusable since an earlier failure: " + *cause_});
  }

  // Keeps the first failure and tells the other ranks.
  void give_up(const std::string& cause, ErrorKind kind = ErrorKind::peer) {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) return;
      cause_ = cause;
      cause_kind_ = kind;
    }
    impl_->abandon(cause);
  }

  void fail(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const Error& error) {
      give_up(error.what(), error.kind());
    } catch (const std::exception& error) {
      give_up(error.what(), ErrorKind::failure);
    } catch (...) {
      give_up("an unknown exception", ErrorKind::failure);
    }
  }

  std::unique_ptr<GroupImpl> impl_;
  const GroupOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> queue_;
  int64_t next_sequence_ = 0;
  bool closing_ = false;
  std::optional<std::string> cause_;  // of the first failure
  ErrorKind cause_kind_ = ErrorKind::failure;
  std::thread thread_;  // last: it uses everything above
};

Group::Group(std::unique_ptr<GroupImpl> impl, const GroupOptions& options)
    : core_(std::make_shared<Core>(std::move(impl), options)) {}

int Group::rank() const {
  return core_->impl().rank();
}
int Group::size() const {
  return core_->impl().size();
}
std::string_view Group::backend() const {
  return core_->impl().backend();
}

namespace {

Fingerprint fingerprint(const at::Tensor& tensor) {
  Fingerprint print;
  print.count = tensor.numel();
  print.type = static_cast<int32_t>(tensor.scalar_type());
  return print;
}

// A contiguous host copy of `tensor` in `type`, or the tensor itself where it is that already.
at::Tensor packed(const at::Tensor& tensor, c10::ScalarType type) {
  return tensor.detach().to(at::kCPU, type).contiguous();
}

void unpack(const at::Tensor& from, const at::Tensor& into) {
  const at::NoGradGuard no_grad;
  if (!from.is_same(into) && from.data_ptr() != into.data_ptr()) into.detach().copy_(from);
}

// Sums and products of booleans are "any" and "all"; counting would overflow a byte.
ReduceOp for_type(ReduceOp op, c10::ScalarType type) {
  if (type != c10::ScalarType::Bool) return op;
  if (op == ReduceOp::average) {
    throw Error("comm", ErrorKind::usage,
                {.what = "all_reduce", .got = "the average of booleans", .expected = "numbers"});
  }
  if (op == ReduceOp::sum) return ReduceOp::max;
  return op == ReduceOp::product ? ReduceOp::min : op;
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) {
    throw Error("comm", ErrorKind::usage,
                {.what = "broadcast from a rank that is not in the group",
                 .got = std::to_string(root),
                 .expected = fmt::format("0 to {}", size - 1)});
  }
}

}  // namespace

Work Group::all_reduce(const at::Tensor& tensor, ReduceOp op, std::string label) const {
  const auto type = accumulation_type(tensor.scalar_type());
  op = for_type(op, tensor.scalar_type());
  Fingerprint print = fingerprint(tensor);
  print.reduce_op = static_cast<int32_t>(op);
  return Work(core_->post(print, "all_reduce", label, [tensor, type, op](const Channel& channel) {
    const at::Tensor data = packed(tensor, type);
    ring_all_reduce(channel, data.data_ptr(), static_cast<size_t>(data.numel()), type, op);
    unpack(data, tensor);
  }));
}

Work Group::broadcast(const at::Tensor& tensor, int root, std::string label) const {
  check_root(root, size());
  Fingerprint print = fingerprint(tensor);
  print.root = root;
  return Work(core_->post(print, "broadcast", label, [tensor, root](const Channel& channel) {
    const at::Tensor data = packed(tensor, tensor.scalar_type());
    tree_broadcast(channel, data.data_ptr(), data.nbytes(), root);
    unpack(data, tensor);
  }));
}

Work Group::all_gather(const at::Tensor& output, const at::Tensor& input, std::string label) const {
  TROIKA_CHECK(output.numel() == input.numel() * size() && output.dtype() == input.dtype(),
               "all_gather's output must be [size, ...input's shape] of input's dtype");
  const auto body = [output, input](const Channel& channel) {
    const at::Tensor data = packed(output, output.scalar_type());
    const at::Tensor own = packed(input, input.scalar_type());
    auto* blocks = static_cast<char*>(data.data_ptr());
    std::memcpy(blocks + own.nbytes() * static_cast<size_t>(channel.impl.rank()), own.data_ptr(),
                own.nbytes());
    ring_all_gather(channel, blocks, own.nbytes());
    unpack(data, output);
  };
  return Work(core_->post(fingerprint(input), "all_gather", label, body));
}

void Group::barrier(std::string label) const {
  Fingerprint print;
  print.type = -1;
  Work(core_->post(print, "barrier", label, dissemination_barrier)).wait();
}

std::vector<std::string> Group::all_gather_text(const std::string& text, std::string label) const {
  const auto length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  const auto lengths = at::zeros({size(), 1}, at::kLong);
  all_gather(lengths, length, label + " length").wait();
  const int64_t longest = lengths.max().item<int64_t>();
  const auto own = at::zeros({longest}, at::kByte);
  if (!text.empty()) std::memcpy(own.data_ptr(), text.data(), text.size());
  const auto all = at::zeros({size(), longest}, at::kByte);
  all_gather(all, own, label).wait();
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const auto* bytes = static_cast<const char*>(all.data_ptr()) + r * longest;
    texts.emplace_back(bytes, static_cast<size_t>(lengths[r].item<int64_t>()));
  }
  return texts;
}

std::string Group::broadcast_text(const std::string& text, int root, std::string label) const {
  const auto length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  broadcast(length, root, label + " length").wait();
  std::string result(static_cast<size_t>(length.item<int64_t>()), '\0');
  if (rank() == root) result = text;
  const auto bytes = at::from_blob(result.data(), {static_cast<int64_t>(result.size())}, at::kByte);
  broadcast(bytes, root, label).wait();
  return result;
}

}  // namespace troika::comm
