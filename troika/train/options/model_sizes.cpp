#include "troika/train/options/model_sizes.h"

#include "troika/compat/deferred_init.h"
#include "troika/compat/torch.h"
#include "troika/nn/state.h"

namespace troika::train {

ModelSizes model_sizes(const nn::ModelOptions& options) {
  compat::DeferredInit without_memory;
  ModelSizes sizes;
  without_memory.record([&] {
    const auto model = nn::make_model(options);
    sizes = {.blocks = model->blocks().size(), .parameters = nn::parameter_count(*model)};
  });
  return sizes;
}

}  // namespace troika::train
