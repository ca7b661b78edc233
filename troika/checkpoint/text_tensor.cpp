#include "troika/checkpoint/text_tensor.h"

#include <algorithm>

#include "troika/compat/torch.h"

namespace troika::checkpoint {

at::Tensor text_tensor(const std::string& text) {
  auto bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  const auto* text = reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>());
  return {text, static_cast<size_t>(bytes.numel())};
}

}  // namespace troika::checkpoint
