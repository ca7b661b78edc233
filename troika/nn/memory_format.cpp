#include "troika/nn/memory_format.h"

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"
#include "troika/nn/take_turns.h"
#include "troika/nn/timed_pass.h"

namespace troika::nn {

const std::vector<std::string>& memory_format_names() {
  static const std::vector<std::string> names{"auto", "contiguous", "channels_last"};
  return names;
}

const std::string& memory_format_name(at::MemoryFormat format) {
  return memory_format_names().at(format == at::MemoryFormat::ChannelsLast ? 2 : 1);
}

at::MemoryFormat parse_memory_format(const std::string& name, const NumericPrecision& precision) {
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
  for (const auto& [name, tensor] : named_parameters(module)) {
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(format));
  }
}

std::vector<double> time_memory_formats(const ModelOptions& options, int64_t batch,
                                        const NumericPrecision& precision,
                                        const std::vector<at::MemoryFormat>& formats) {
  constexpr double kSeconds = 2;
  TimedPass pass(options, batch, precision);
  return least_of(take_turns(formats.size(), kSeconds,
                             [&](size_t candidate) { return pass.seconds(formats[candidate]); }));
}

}  // namespace troika::nn
