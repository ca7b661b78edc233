#include "troika/compat/deferred_init.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "troika/compat/accelerator.h"
#include "troika/compat/fake_tensors.h"
#include "troika/compat/torch.h"

namespace troika::compat {

namespace {

using torch::jit::Stack;

// In-place operators that overwrite all elements without reading them.
constexpr std::array<std::string_view, 11> kOverwrites{
    "aten::normal_", "aten::uniform_",    "aten::fill_",      "aten::zero_",
    "aten::copy_",   "aten::random_",     "aten::bernoulli_", "aten::exponential_",
    "aten::cauchy_", "aten::log_normal_", "aten::geometric_"};
// In-place operators that change the tensor but not its values.
constexpr std::array<std::string_view, 7> kOfTensor{
    "aten::set_", "aten::as_strided_", "aten::squeeze_", "aten::unsqueeze_",
    "aten::t_",   "aten::transpose_",  "aten::detach_"};

template <size_t N>
bool is_among(const std::array<std::string_view, N>& names, const c10::FunctionSchema& schema) {
  return std::ranges::find(names, schema.name()) != names.end();
}

bool is_generator(const c10::Argument& argument) {
  return argument.type()->str().find("Generator") != std::string::npos;
}

bool draws(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), is_generator);
}

// Calls `each(tensor, argument)` for every defined tensor among the arguments.
template <typename Each>
void for_each_tensor(const c10::FunctionSchema& schema, const Stack& arguments, const Each& each) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) each(value.toTensor(), schema.arguments()[i]);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (tensor.defined()) each(tensor, schema.arguments()[i]);
      }
    }
  }
}

// Copies the tensors' handles: a module's tensors may get other memory (Tensor::set_data) before
// the operator is run.
Stack with_own_tensors(const Stack& arguments) {
  Stack result;
  for (const c10::IValue& value : arguments) {
    if (value.isTensor() && value.toTensor().defined()) {
      result.emplace_back(value.toTensor().tensor_data());
    } else if (value.isTensorList()) {
      auto tensors = value.toTensorVector();
      for (at::Tensor& tensor : tensors) {
        if (tensor.defined()) tensor = tensor.tensor_data();
      }
      result.emplace_back(std::move(tensors));
    } else {
      result.push_back(value);
    }
  }
  return result;
}

bool is_view(const c10::FunctionSchema& schema) {
  return !schema.returns().empty() &&
         std::ranges::all_of(schema.returns(),
                             [](const c10::Argument& result) { return result.alias_info(); });
}

}  // namespace

class DeferredInit::Recorder : public FakeObserver {
 public:
  Recorder() : generator_(at::detail::getDefaultCPUGenerator().get_state()) {}

  void left_out(const c10::OperatorHandle& op, const Stack& arguments) override {
    Operator recorded{
        .op = op, .arguments = with_own_tensors(arguments), .draws = draws(op.schema())};
    size_t writes = 0;
    bool fills = false;
    for_each_tensor(op.schema(), arguments, [&](const at::Tensor& tensor, const auto& argument) {
      const bool is_written = argument.alias_info() && argument.alias_info()->isWrite();
      const size_t memory = number_of(tensor);
      writes += is_written ? 1 : 0;
      if (is_written) {
        recorded.written = memory;
        fills = tensor.is_non_overlapping_and_dense() && tensor.nbytes() == memories_[memory].bytes;
      }
      recorded.touched.push_back(memory);
    });
    std::ranges::sort(recorded.touched);
    const bool is_once = std::ranges::adjacent_find(recorded.touched) == recorded.touched.end();
    recorded.touched.erase(std::ranges::unique(recorded.touched).begin(), recorded.touched.end());
    recorded.overwrites = writes == 1 && fills && is_once && is_among(kOverwrites, op.schema());
    operators_.push_back(std::move(recorded));
  }

  void ran(const c10::OperatorHandle& op, const Stack& arguments) override {
    const auto& schema = op.schema();
    if (is_view(schema) && (!is_among(kOverwrites, schema))) {
      // A view, or a change of the tensor itself.
      const bool writes = std::ranges::any_of(schema.arguments(), [](const auto& argument) {
        return argument.alias_info() && argument.alias_info()->isWrite();
      });
      if (!writes || is_among(kOfTensor, schema)) return;
    }
    bool reads = draws(schema);
    for_each_tensor(schema, arguments, [&](const at::Tensor& tensor, const auto& /*argument*/) {
      reads = reads || numbers_.contains(key(tensor));
    });
    is_complete_ = is_complete_ && !reads;
  }

  bool is_complete() const { return is_complete_; }
  bool has(Key memory) const { return numbers_.contains(memory); }
  at::Tensor& generator() { return generator_; }

  void move(const at::Tensor& tensor, c10::Device device) {
    const at::NoGradGuard no_grad;
    const size_t number = numbers_.at(key(tensor));
    Memory& memory = memories_[number];
    const auto like = at::empty({0}, tensor.options().device(device).requires_grad(false));
    if (!memory.on_device) {
      memory.on_device = like.storage();
      numbers_.emplace(key(like), number);
    }
    auto moved = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(*memory.on_device),
                                                          like.key_set(), tensor.dtype());
    moved.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                       tensor.storage_offset());
    replace_data(tensor, moved);
  }

  void materialize(const Take& take) {
    TROIKA_CHECK(is_complete_, "values that were read before they were made");
    const at::AutoDispatchBelowAutograd below;
    // Not the default generator: ranks may be threads.
    auto generator = at::detail::createCPUGenerator();
    generator.set_state(generator_);
    plan();
    for (Operator& next : operators_) {
      if (!next.is_needed && !next.draws) continue;
      if (next.draws) draw_from(generator, next);
      run(next, take);
    }
    operators_.clear();
    memories_.clear();
    numbers_.clear();
  }

 private:
  // Memory, which several tensors may share.
  struct Memory {
    c10::Storage storage;
    size_t bytes = 0;
    at::ScalarType type = at::kFloat;
    bool is_there = false;
    std::optional<c10::Storage> on_device = {};  // of the tensors that were moved

    Key known_as() const { return (on_device ? *on_device : storage).unsafeGetStorageImpl(); }
  };
  struct Operator {
    c10::OperatorHandle op;
    Stack arguments;
    bool draws = false;
    std::vector<size_t> touched = {};  // indices of memories
    size_t written = 0;
    bool overwrites = false;  // overwrites everything in `written` without reading it
    bool is_needed = true;
    // One entry per touched memory: whether its values are needed afterwards, and whether this
    // operator was the last to touch it.
    std::vector<bool> keeps = {};
    std::vector<bool> ends = {};
  };

  size_t number_of(const at::Tensor& tensor) {
    const auto [found, is_new] = numbers_.try_emplace(key(tensor), memories_.size());
    if (is_new) {
      memories_.push_back({tensor.storage(), tensor.storage().nbytes(), tensor.scalar_type()});
    }
    return found->second;
  }

  // Moves an operator that draws no random numbers right behind the operators it needs, so that
  // tensors are finished one after another. Then finds the operators that nobody needs.
  void plan() {
    std::vector<size_t> times(operators_.size());
    std::map<size_t, size_t> last;  // last operator, by memory
    for (size_t i = 0; i < operators_.size(); ++i) {
      size_t time = 0;
      bool follows = false;
      for (const size_t memory : operators_[i].touched) {
        const auto before = last.find(memory);
        if (before != last.end()) {
          follows = true;
          time = std::max(time, times[before->second]);
        }
        last[memory] = i;
      }
      times[i] = operators_[i].draws || !follows ? i : time;
    }
    std::vector<size_t> order(operators_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t i) { return times[i]; });
    std::vector<Operator> sorted;
    for (const size_t i : order) sorted.push_back(std::move(operators_[i]));
    operators_ = std::move(sorted);
    std::vector<bool> matters(memories_.size(), true), seen(memories_.size(), false);
    for (auto next = operators_.rbegin(); next != operators_.rend(); ++next) {
      next->is_needed = next->touched.empty() || matters[next->written];
      if (!next->is_needed && !next->draws) continue;
      for (const size_t memory : next->touched) {
        next->keeps.push_back(matters[memory]);
        next->ends.push_back(!seen[memory]);
        seen[memory] = true;
      }
      if (!next->is_needed) continue;
      for (const size_t memory : next->touched) matters[memory] = true;
      if (next->overwrites) matters[next->written] = false;
    }
  }

  static void draw_from(const at::Generator& generator, Operator& next) {
    const auto& arguments = next.op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!is_generator(arguments[i])) continue;
      auto& given = next.arguments[i];
      const auto standard = at::detail::getDefaultCPUGenerator();
      if (given.isNone() || given.toGenerator() == standard) given = generator;
    }
  }

  void run(Operator& next, const Take& take) {
    for (const size_t memory : next.touched) give(memories_[memory]);
    next.op.callBoxed(&next.arguments);
    next.arguments.clear();
    for (size_t i = 0; i < next.touched.size(); ++i) {
      Memory& memory = memories_[next.touched[i]];
      bool is_of_use = next.keeps[i];
      if (next.ends[i]) {
        const auto values = at::empty({0}, at::TensorOptions(memory.type));
        const auto count = static_cast<int64_t>(memory.bytes / values.element_size());
        values.set_(memory.storage, 0, {count}, {1});
        is_of_use = !take(memory.known_as(), values);
        if (is_of_use && memory.on_device) {
          give_copy(*memory.on_device, values);
          is_of_use = false;
        }
      }
      if (!is_of_use) release(memory);
    }
  }

  static void give(Memory& memory) {
    if (std::exchange(memory.is_there, true)) return;
    take_memory(memory.storage, at::empty({static_cast<int64_t>(memory.bytes)}, at::kByte));
  }

  static void give_copy(const c10::Storage& storage, const at::Tensor& values) {
    take_memory(storage, values.to(storage.device(), /*non_blocking=*/false, /*copy=*/true));
  }

  static void take_memory(const c10::Storage& storage, const at::Tensor& of) {
    auto* from = of.storage().unsafeGetStorageImpl();
    auto* into = storage.unsafeGetStorageImpl();
    into->set_nbytes(of.nbytes());
    into->set_data_ptr(from->set_data_ptr(at::DataPtr(nullptr, from->device())));
    from->set_nbytes(0);
  }

  static void release(Memory& memory) {
    memory.is_there = false;
    auto* storage = memory.storage.unsafeGetStorageImpl();
    storage->set_data_ptr(at::DataPtr(nullptr, storage->device()));
    storage->set_nbytes(0);
  }

  at::Tensor generator_;
  bool is_complete_ = true;
  std::vector<Operator> operators_;
  std::vector<Memory> memories_;
  std::map<Key, size_t> numbers_;  // index in memories_
};

DeferredInit::DeferredInit() : recorder_(std::make_unique<Recorder>()) {}
DeferredInit::~DeferredInit() = default;

void DeferredInit::record(const std::function<void()>& body) {
  const FakeTensorGuard guard(recorder_.get());
  body();
}

bool DeferredInit::is_complete() const {
  return recorder_->is_complete();
}

DeferredInit::Key DeferredInit::key(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

bool DeferredInit::has(const at::Tensor& tensor) const {
  return recorder_->has(key(tensor));
}

void DeferredInit::move(const at::Tensor& tensor, c10::Device device) {
  recorder_->move(tensor, device);
}

const at::Tensor& DeferredInit::generator() const {
  return recorder_->generator();
}

void DeferredInit::set_generator(at::Tensor state) {
  recorder_->generator() = std::move(state);
}

void DeferredInit::materialize(const Take& take) {
  recorder_->materialize(take);
}

}  // namespace troika::compat
