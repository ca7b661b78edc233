#include "troika/compat/fake_tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/compat/fake_results.h"
#include "troika/compat/tensor_memory.h"

namespace troika::compat {

namespace {

using torch::jit::Stack;

// A dispatch key between autograd (and the product hook) and the CPU, for which LibTorch registers
// no operator. Operators that LibTorch composes of others for every backend are composed for this
// key too. These include all operators with an `out` variant; the `out` variant is then dispatched
// here.
constexpr auto kKey = c10::DispatchKey::CustomRNGKeyId;

thread_local int guards = 0;
thread_local FakeObserver* observer = nullptr;

enum class Treatment {
  run,        // makes no values, or the shapes of its results are unknown
  leave,      // only writes to its arguments, which stay unchanged
  from_rule,  // the results follow from a rule in fake_results.h
};

// In-place operators that change the tensor but not its values.
constexpr std::array<std::string_view, 12> kChangesTensor{
    "aten::resize_",   "aten::resize_as_", "aten::set_",    "aten::as_strided_",
    "aten::squeeze_",  "aten::unsqueeze_", "aten::t_",      "aten::transpose_",
    "aten::swapaxes_", "aten::swapdims_",  "aten::detach_", "aten::_resize_output_"};

// The operators of matrix products, and the index of the left factor among their arguments.
constexpr std::array<std::pair<std::string_view, size_t>, 4> kProducts{
    {{"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}}};
// The multiplications of a matrix product that takes about a millisecond.
constexpr int64_t kSmallProduct = int64_t{1} << 23;

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

Treatment treatment_of(const c10::FunctionSchema& schema) {
  if (std::ranges::find(kChangesTensor, schema.name()) != kChangesTensor.end()) {
    return Treatment::run;
  }
  if (has_rule(schema.name())) return Treatment::from_rule;
  if (std::ranges::none_of(schema.arguments(), is_written) ||
      !std::ranges::all_of(schema.returns(), is_written)) {
    return Treatment::run;
  }
  return Treatment::leave;
}

Treatment known_treatment_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Treatment> known;
  const auto [entry, is_new] = known.try_emplace(&op.schema());
  if (is_new) entry->second = treatment_of(op.schema());
  return entry->second;
}

// A result without a size yet gets its size from the kernel.
bool is_unsized(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().numel() == 0;
}

// oneDNN's 16-bit products use scratch memory, which matters only for small results.
bool takes_scratch(std::string_view name, const Stack& arguments, const c10::IValue& result) {
  const auto* product = std::ranges::find(kProducts, name, &decltype(kProducts)::value_type::first);
  if (product == kProducts.end()) return false;
  const at::Tensor& into = result.toTensor();
  return into.element_size() == 2 &&
         into.numel() * arguments[product->second].toTensor().size(-1) <= kSmallProduct;
}

void without_work(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const auto treatment = known_treatment_of(op);
  Stack results;
  bool run = treatment == Treatment::run;
  if (treatment == Treatment::leave) {
    for (size_t i = 0; i < count; ++i) {
      if (is_written(schema.arguments()[i])) results.push_back(arguments[i]);
    }
    run = std::ranges::any_of(results, is_unsized) ||
          (!results.empty() && takes_scratch(schema.name(), arguments, results.front()));
    results.resize(schema.returns().size());  // operators on lists return nothing
  }
  if (observer) {
    if (!run && treatment == Treatment::leave) {
      observer->left_out(op, arguments);
    } else {
      observer->ran(op, arguments);
    }
  }
  if (run) {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
    return;
  }
  if (treatment == Treatment::from_rule) results = results_by_rule(schema.name(), arguments);
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

void register_once() {
  static const bool once = [] {
    const auto ours = [] { return torch::CppFunction::makeFromBoxedFunction<&without_work>(); };
    auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library->fallback(ours());
    // An operator's composed kernel would take precedence over the fallback. So the key is
    // registered for the operators with a composed kernel that are skipped or have a CPU kernel of
    // their own.
    auto* operators = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findOp(name);
      if (!op || !name.name.starts_with("aten::") ||
          !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
        continue;
      }
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          treatment_of(op->schema()) != Treatment::run) {
        operators->impl(c10::toString(name).c_str(), ours());
      }
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

FakeTensorGuard::FakeTensorGuard(FakeObserver* told) {
  register_once();
  TROIKA_CHECK(!told || guards == 0, "an observer of a guard that is not the outermost");
  if (guards++ > 0) return;
  observer = told;
  give_tensors_no_memory(true, /*counts=*/told == nullptr);
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

FakeTensorGuard::~FakeTensorGuard() {
  if (--guards > 0) return;
  observer = nullptr;
  give_tensors_no_memory(false);
  c10::impl::tls_set_dispatch_key_included(kKey, false);
}

}  // namespace troika::compat
