#include "troika/compat/product_hook.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <vector>

namespace troika::compat {

namespace {

// A dispatch key for which LibTorch itself registers nothing, between autograd and the devices.
constexpr auto kProductKey = c10::DispatchKey::Fake;

std::vector<ProductHook*>& product_hooks() {
  thread_local std::vector<ProductHook*> stack;
  return stack;
}

void call_through_hook(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       torch::jit::Stack* stack) {
  // The hook does not see the operators that `work` itself calls.
  const c10::impl::ExcludeDispatchKeyGuard no_more(kProductKey);
  auto arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  const auto work = [&] {
    torch::jit::Stack inner = arguments;
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kProductKey),
                       &inner);
    return inner.front().toTensor();
  };
  stack->emplace_back(product_hooks().back()->call(work));
}

// Other operators ignore the key.
void register_products() {
  static const bool once = [] {
    const auto library = [](const char* space) {
      return new torch::Library(torch::Library::IMPL, space, kProductKey, __FILE__, __LINE__);
    };
    library("_")->fallback(torch::CppFunction::makeFallthrough());
    auto& products = *library("aten");
    for (const char* name : {"mm", "addmm", "convolution"}) {
      products.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_through_hook>());
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

ProductGuard::ProductGuard(ProductHook& hook) {
  register_products();
  product_hooks().push_back(&hook);
  c10::impl::tls_set_dispatch_key_included(kProductKey, true);
}

ProductGuard::~ProductGuard() {
  product_hooks().pop_back();
  c10::impl::tls_set_dispatch_key_included(kProductKey, !product_hooks().empty());
}

at::Tensor alias(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(impl->version_counter()),
                                                  /*allow_tensor_metadata_change=*/false));
}

}  // namespace troika::compat
