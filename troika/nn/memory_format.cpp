#include "troika/nn/memory_format.h"

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::nn {

const std::vector<std::string>& memory_format_names() {
  static const std::vector<std::string> names{"auto", "contiguous", "channels_last"};
  return names;
}

at::MemoryFormat parse_memory_format(const std::string& name, const Precision& precision) {
  if (name == "contiguous") return at::MemoryFormat::Contiguous;
  if (name == "channels_last") return at::MemoryFormat::ChannelsLast;
  if (name == "auto") {
    return c10::elementSize(precision.compute) == 2 ? at::MemoryFormat::ChannelsLast
                                                    : at::MemoryFormat::Contiguous;
  }
  throw Error("nn", ErrorKind::usage,
              {.what = "unknown memory format",
               .got = name,
               .hint = "did you mean " + nearest(name, memory_format_names()) + "?"});
}

void lay_out(torch::nn::Module& module, at::MemoryFormat format) {
  const at::NoGradGuard no_grad;
  for (auto& entry : named_state(module)) {
    if (entry.is_buffer || entry.tensor.dim() != 4) continue;
    entry.tensor.set_data(entry.tensor.detach().contiguous(format));
  }
}

}  // namespace troika::nn
