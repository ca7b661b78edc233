#include "troika/nn/memory_format.h"

#include <algorithm>
#include <limits>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::nn {

const std::vector<std::string>& memory_format_names() {
  static const std::vector<std::string> names{"auto", "contiguous", "channels_last"};
  return names;
}

const std::string& memory_format_name(at::MemoryFormat format) {
  return memory_format_names().at(format == at::MemoryFormat::ChannelsLast ? 2 : 1);
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
  for (const auto& [name, tensor] : named_parameters(module)) {
    if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(format));
  }
}

std::vector<double> time_memory_formats(const ModelOptions& options, int64_t batch,
                                        const Precision& precision,
                                        const std::vector<at::MemoryFormat>& formats) {
  constexpr double kSeconds = 2;
  constexpr int kRounds = 5;
  const at::AutoGradMode with_gradients(true);
  auto generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor random = generator.get_state();
  const auto model = make_model(options);
  model->to(precision.parameters);
  const auto images = example_input(options, batch).to(precision.parameters);
  const Stopwatch whole;
  std::vector<double> least(formats.size(), std::numeric_limits<double>::infinity());
  // The first round touches memory and has kernels compiled.
  for (int round = 0; round <= kRounds && (round < 2 || whole.seconds() < kSeconds); ++round) {
    for (size_t i = 0; i < formats.size(); ++i) {
      lay_out(*model, formats[i]);
      model->zero_grad(/*set_to_none=*/true);
      const auto input = images.contiguous(formats[i]);
      const Stopwatch one;
      const auto output = [&] {
        const Autocast autocast(precision, at::kCPU);
        return model->forward(input);
      }();
      output.sum().backward();
      if (round > 0) least[i] = std::min(least[i], one.seconds());
    }
  }
  generator.set_state(random);
  return least;
}

}  // namespace troika::nn
