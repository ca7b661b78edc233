#include "troika/optim/optimizer.h"

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/optim/methods.h"

namespace troika::optim {

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd",  "adam", "adamw",     "adagrad",
                                              "lars", "lamb", "adamw_8bit"};
  return names;
}

bool steps_on_devices(const OptimizerOptions& options) {
  const auto& name = options.name;
  const bool is_element_wise =
      name == "sgd" || name == "adam" || name == "adamw" || name == "adagrad";
  return is_element_wise && options.offload.empty();
}

int64_t shard_multiple(const std::string& name) {
  return name == "adamw_8bit" ? kernels::kBlock : 1;
}

std::unique_ptr<FlatOptimizer> make_optimizer(std::vector<Parameter> parameters,
                                              const OptimizerOptions& options) {
  for (auto& parameter : parameters) {
    const bool is_vector = parameter.tensor.defined() && parameter.tensor.dim() <= 1;
    if (is_vector && !options.decay_vectors) parameter.decay = false;
  }
  FlatParameters flat(std::move(parameters));
  const std::string& name = options.name;
  if (!flat.device().is_cpu() && !steps_on_devices(options)) {
    throw Error("optim", ErrorKind::usage,
                {.what = name + (options.offload.empty() ? "" : " with states in files") +
                         " steps tensors in host memory",
                 .got = flat.device().str(),
                 .expected = "cpu",
                 .hint = "optim::MasterWeights keeps copies in host memory"});
  }
  if (name == "adamw_8bit" && !options.offload.empty()) {
    throw Error("optim", ErrorKind::usage,
                {.what = "adamw_8bit keeps its states in memory",
                 .got = "offload to " + options.offload,
                 .expected = "none, or adamw"});
  }
  if (name == "sgd") {
    if (options.nesterov && options.momentum <= 0) {
      throw Error("optim", ErrorKind::usage,
                  {.what = "Nesterov's method needs a momentum",
                   .got = std::to_string(options.momentum),
                   .expected = "a number > 0"});
    }
    return make_sgd(std::move(flat), options);
  }
  if (name == "adam") return make_adam(std::move(flat), options, /*decoupled=*/false);
  if (name == "adamw") return make_adam(std::move(flat), options, /*decoupled=*/true);
  if (name == "adagrad") return make_adagrad(std::move(flat), options);
  if (name == "lars") return make_lars(std::move(flat), options);
  if (name == "lamb") return make_lamb(std::move(flat), options);
  if (name == "adamw_8bit") return make_adamw_8bit(std::move(flat), options);
  throw Error("optim", ErrorKind::usage,
              {.what = "unknown optimizer",
               .got = name,
               .hint = "did you mean " + nearest(name, optimizer_names()) + "?"});
}

std::unique_ptr<FlatOptimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                              const OptimizerOptions& options) {
  std::vector<Parameter> named;
  for (const auto& tensor : parameters) named.push_back({std::to_string(named.size()), tensor});
  return make_optimizer(std::move(named), options);
}

}  // namespace troika::optim
