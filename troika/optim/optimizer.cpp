#include "troika/optim/optimizer.h"

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/compat/torch.h"

namespace troika::optim {

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw"};
  return names;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> parameters,
                                                        const OptimizerOptions& options) {
  if (options.name == "sgd") {
    if (options.nesterov && options.momentum <= 0) {
      throw Error("optim", ErrorKind::usage,
                  {.what = "Nesterov's method needs a momentum",
                   .got = std::to_string(options.momentum),
                   .expected = "a number > 0"});
    }
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(options.lr)
                                                   .momentum(options.momentum)
                                                   .nesterov(options.nesterov)
                                                   .weight_decay(options.weight_decay));
  }
  if (options.name == "adam") {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(options.lr)
                                                    .betas({options.beta1, options.beta2})
                                                    .eps(options.eps)
                                                    .weight_decay(options.weight_decay));
  }
  if (options.name == "adamw") {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(options.lr)
                                                     .betas({options.beta1, options.beta2})
                                                     .eps(options.eps)
                                                     .weight_decay(options.weight_decay));
  }
  throw Error("optim", ErrorKind::usage,
              {.what = "unknown optimizer",
               .got = options.name,
               .hint = "did you mean " + nearest(options.name, optimizer_names()) + "?"});
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace troika::optim
