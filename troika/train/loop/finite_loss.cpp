#include "troika/train/loop/finite_loss.h"

#include <fmt/format.h>

#include <cmath>

#include "troika/base/error.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/compat/torch.h"
#include "troika/data/dataset.h"
#include "troika/train/engine/optimization.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {

// Does what Tensor::item<double>() does, but without LibTorch's dispatcher for common types.
double number_of(const at::Tensor& loss) {
  if (loss.is_cpu() && loss.numel() == 1) {
    if (loss.scalar_type() == at::kFloat) return *loss.data_ptr<float>();
    if (loss.scalar_type() == at::kDouble) return *loss.data_ptr<double>();
  }
  return loss.item<double>();
}

bool ends_run(double loss, const FitContext& context) {
  return !std::isfinite(loss) && context.options.trainer.terminate_on_nan &&
         !context.training.optimization->loss_scale();
}

void refuse_loss(const StepLoss& loss, const data::Batch& batch, const FitContext& context) {
  const auto file = context.folder / fmt::format("nonfinite-step-{}-rank-{}.safetensors", loss.step,
                                                 context.group.rank());
  const auto tensors = batch.tensors();
  checkpoint::save_safetensors(file, {tensors.begin(), tensors.end()});
  throw Error(
      "train", ErrorKind::failure,
      {.what = fmt::format("the training loss of step {} on {} is no number", loss.step,
                           context.groups.describe(context.group.rank())),
       .got = std::isnan(loss.loss) ? "nan" : fmt::format("{}", loss.loss),  // without a sign
       .expected = "a finite one",
       .hint = fmt::format("the batch is in {}; a lower optim.lr, a warm-up or "
                           "trainer.gradient_clip_val may help; "
                           "trainer.terminate_on_nan=false trains on",
                           file.string())});
}

}  // namespace troika::train
