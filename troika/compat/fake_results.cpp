#include "troika/compat/fake_results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

namespace troika::compat {

namespace {

using at::Tensor;
using torch::jit::Stack;

Tensor make(at::IntArrayRef sizes, at::ScalarType type) {
  return at::detail::empty_cpu(sizes, type);
}

// Returns a dense tensor with the memory format of `tensor` if that is a format of images.
Tensor make_like(const Tensor& tensor) {
  return at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type(), /*pin_memory=*/false,
                               tensor.suggest_memory_format());
}

// Returns the dtype of statistics and of gradients of parameters: float32 if the parameters are
// float32, even if the inputs have 16 bits.
at::ScalarType type_of(const c10::IValue& parameter, const Tensor& input) {
  const auto& tensor = parameter.toTensor();
  return tensor.defined() ? tensor.scalar_type() : input.scalar_type();
}

// input, normalized_shape, weight, bias, eps -> output, mean, rstd
Stack layer_norm(const Stack& in) {
  const Tensor& input = in[0].toTensor();
  auto sizes = input.sizes().vec();
  const size_t normalized = in[1].toIntVector().size();
  for (size_t i = sizes.size() - normalized; i < sizes.size(); ++i) sizes[i] = 1;
  const auto type = type_of(in[2], input);
  return {make(input.sizes(), input.scalar_type()), make(sizes, type), make(sizes, type)};
}

// grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask
Stack layer_norm_backward(const Stack& in) {
  const Tensor& input = in[1].toTensor();
  const auto shape = in[2].toIntVector();
  const auto wanted = in[7].toBoolList();
  const auto type = type_of(in[5], input);
  const auto parameter = [&](size_t i) { return wanted[i] ? make(shape, type) : Tensor(); };
  return {wanted[0] ? make(input.sizes(), input.scalar_type()) : Tensor(), parameter(1),
          parameter(2)};
}

// input, weight, bias, running_mean, running_var, training, momentum, eps -> output, mean, invstd
Stack batch_norm(const Stack& in) {
  const Tensor& input = in[0].toTensor();
  const std::vector<int64_t> channels{in[5].toBool() ? input.size(1) : 0};
  const auto type = type_of(in[1], input);
  return {make_like(input), make(channels, type), make(channels, type)};
}

// grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps,
// output_mask
Stack batch_norm_backward(const Stack& in) {
  const Tensor& input = in[1].toTensor();
  const auto wanted = in[9].toBoolList();
  const auto type = type_of(in[2], input);
  const auto parameter = [&](size_t i) {
    return wanted[i] ? make({input.size(1)}, type) : Tensor();
  };
  return {wanted[0] ? make_like(input) : Tensor(), parameter(1), parameter(2)};
}

// self, dim, index
Stack index_select(const Stack& in) {
  const Tensor& from = in[0].toTensor();
  auto sizes = from.sizes().vec();
  if (!sizes.empty()) {
    const auto last = static_cast<int64_t>(sizes.size());
    sizes[static_cast<size_t>((in[1].toInt() + last) % last)] = in[2].toTensor().numel();
  }
  return {make(sizes, from.scalar_type())};
}

// grad_output, indices, num_weights, padding_idx, scale_grad_by_freq
Stack embedding_backward(const Stack& in) {
  const Tensor& gradient = in[0].toTensor();
  return {make({in[2].toInt(), gradient.size(-1)}, gradient.scalar_type())};
}

// Makes a tensor [batch, heads, length, size] with the memory layout [batch, length, heads, size].
Tensor make_heads(const Tensor& like) {
  return make({like.size(0), like.size(2), like.size(1), like.size(3)}, like.scalar_type())
      .transpose(1, 2);
}

// query, key, value, ... -> output, logsumexp
Stack attention(const Stack& in) {
  const Tensor& query = in[0].toTensor();
  const auto type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {make_heads(query),
          make({query.size(0), query.size(2), query.size(1)}, type).transpose(1, 2)};
}

// grad_out, query, key, value, ...
Stack attention_backward(const Stack& in) {
  return {make_heads(in[1].toTensor()), make_heads(in[2].toTensor()), make_heads(in[3].toTensor())};
}

at::MemoryFormat format_of_convolution(const Tensor& input, const Tensor& weight) {
  const auto is_last = [](const Tensor& tensor) {
    return tensor.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
  };
  return is_last(input) || is_last(weight) ? at::MemoryFormat::ChannelsLast
                                           : at::MemoryFormat::Contiguous;
}

// Returns the columns to which the kernel of a convolution copies its input (im2col); undefined if
// it uses the input itself. `out` are the height and the width of the output.
Tensor columns_of(const Tensor& input, at::IntArrayRef kernel, at::IntArrayRef stride,
                  at::IntArrayRef padding, at::IntArrayRef out) {
  const bool is_point_wise = kernel[0] == 1 && kernel[1] == 1 && stride[0] == 1 && stride[1] == 1 &&
                             padding[0] == 0 && padding[1] == 0;
  if (is_point_wise) return {};
  return make({input.size(0), input.size(1) * kernel[0] * kernel[1], out[0] * out[1]},
              input.scalar_type());
}

// self, weight, kernel_size, bias, stride, padding -> output
Stack slow_convolution(const Stack& in) {
  const Tensor& weight = in[1].toTensor();
  const auto format = format_of_convolution(in[0].toTensor(), weight);
  const Tensor input = in[0].toTensor().contiguous(format);
  const auto kernel = in[2].toIntVector(), stride = in[4].toIntVector(),
             padding = in[5].toIntVector();
  const auto out = [&](size_t i) {
    const auto size = input.size(static_cast<int64_t>(i) + 2);
    return (size + 2 * padding[i] - kernel[i]) / stride[i] + 1;
  };
  const std::vector<int64_t> sizes{out(0), out(1)};
  const Tensor columns = columns_of(input, kernel, stride, padding, sizes);
  return {at::detail::empty_cpu({input.size(0), weight.size(0), sizes[0], sizes[1]},
                                input.scalar_type(), /*pin_memory=*/false, format)};
}

// grad_output, self, weight, kernel_size, stride, padding, output_mask
Stack slow_convolution_backward(const Stack& in) {
  const Tensor& weight = in[2].toTensor();
  const auto format = format_of_convolution(in[1].toTensor(), weight);
  const Tensor gradient = in[0].toTensor().contiguous(format);
  const Tensor input = in[1].toTensor().contiguous(format);
  const auto wanted = in[6].toBoolList();
  const auto type = input.scalar_type();
  const auto like = [&](const Tensor& tensor) {
    return at::detail::empty_cpu(tensor.sizes(), type, /*pin_memory=*/false, format);
  };
  Stack results(3, Tensor());
  if (wanted[2]) results[2] = make({weight.size(0)}, type);
  if (wanted[0]) results[0] = like(input);
  if (!wanted[1]) return results;
  results[1] = like(weight);
  const Tensor columns = columns_of(input, in[3].toIntVector(), in[4].toIntVector(),
                                    in[5].toIntVector(), gradient.sizes().slice(2));
  return results;
}

const std::map<std::string, Stack (*)(const Stack&)>& rules() {
  static const std::map<std::string, Stack (*)(const Stack&)> all{
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::index_select", index_select},
      {"aten::_slow_conv2d_forward", slow_convolution},
      {"aten::_slow_conv2d_backward", slow_convolution_backward},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward}};
  return all;
}

}  // namespace

bool has_rule(const std::string& operator_name) {
  return rules().count(operator_name) > 0;
}

Stack results_by_rule(const std::string& operator_name, const Stack& arguments) {
  return rules().at(operator_name)(arguments);
}

}  // namespace troika::compat
