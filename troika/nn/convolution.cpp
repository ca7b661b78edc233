#include "troika/nn/convolution.h"

#include "troika/base/error.h"
#include "troika/compat/torch.h"

namespace troika::nn {

Conv2dImpl::Conv2dImpl(const torch::nn::Conv2dOptions& given) : torch::nn::Conv2dImpl(given) {
  constexpr size_t kZeros = 0;  // of LibTorch's variant, whose type depends on the version
  if (given.padding_mode().index() == kZeros) return;
  throw Error("nn", ErrorKind::usage,
              {.what = "nn::Conv2d cannot pad in this way",
               .got = "another padding mode",
               .expected = "zeros",
               .hint = "pad before a convolution without padding"});
}

at::Tensor Conv2dImpl::forward(const at::Tensor& input) {
  const at::Tensor x = hooked_input(input);
  if (!hooks_product()) return torch::nn::Conv2dImpl::forward(x);
  const auto without_bias = torch::nn::functional::Conv2dFuncOptions()
                                .stride(options.stride())
                                .padding(options.padding())
                                .dilation(options.dilation())
                                .groups(options.groups());
  const at::Tensor product = hooked_product(torch::nn::functional::conv2d(x, weight, without_bias));
  return bias.defined() ? product + bias.to(product.scalar_type()).view({-1, 1, 1}) : product;
}

}  // namespace troika::nn
