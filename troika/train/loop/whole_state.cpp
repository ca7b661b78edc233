#include "troika/train/loop/whole_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::train {

checkpoint::NamedTensors whole_state(const torch::nn::Module& module,
                                     const std::set<std::string>& own, const comm::Group& world) {
  const at::NoGradGuard no_grad;
  std::vector<std::set<std::string>> held;
  for (const auto& text :
       world.all_gather_text(fmt::format("{}", fmt::join(own, "\n")), "names of weights")) {
    const auto names = split(text, '\n');
    held.emplace_back(names.begin(), names.end());
  }
  checkpoint::NamedTensors result;
  for (const auto& [name, tensor] : nn::named_state(module)) {
    int owner = 0;
    while (owner < world.size() && !held[static_cast<size_t>(owner)].contains(name)) ++owner;
    TROIKA_CHECK(owner < world.size(), "a rank holds " + name);
    if (world.rank() == owner && owner > 0) {
      world.send(tensor.detach().contiguous(), 0, 0, "weights").wait();
    }
    if (world.rank() > 0) continue;
    if (owner == 0) {
      result.emplace_back(name, tensor);
      continue;
    }
    const auto copy = at::empty(tensor.sizes(), tensor.options().requires_grad(false));
    world.receive(copy, owner, 0, "weights").wait();
    result.emplace_back(name, copy);
  }
  return result;
}

}  // namespace troika::train
