#include "troika/parallel/exchange.h"

#include <utility>

#include "troika/base/error.h"
#include "troika/nn/state.h"

namespace troika::parallel {

std::vector<optim::Parameter> Exchange::parameters(const torch::nn::Module& module) const {
  std::vector<optim::Parameter> result;
  for (auto& item : nn::trained_parameters(module)) {
    result.push_back({std::move(item.name), std::move(item.tensor)});
  }
  return result;
}

void Exchange::refuse_state(const std::string& name) {
  throw Error("parallel", ErrorKind::usage,
              {.what = "a saved state does not fit",
               .got = name,
               .hint = "load with the model, strategy and options it was saved with"});
}

}  // namespace troika::parallel
