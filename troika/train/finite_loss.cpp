#include "troika/train/finite_loss.h"

#include <fmt/format.h>

#include <cmath>

#include "troika/base/error.h"
#include "troika/data/dataset.h"
#include "troika/train/checkpoint/safetensors.h"
#include "troika/train/fit_context.h"
#include "troika/train/optimization.h"

namespace troika::train {

void require_finite(double loss, const data::Batch& batch, const FitContext& context) {
  if (std::isfinite(loss) || !context.options.trainer.terminate_on_nan) return;
  if (context.optimization->loss_scale()) return;
  const auto file = context.folder / fmt::format("nonfinite-step-{}-rank-{}.safetensors",
                                                 context.at.step, context.group.rank());
  const auto tensors = batch.tensors();
  save_safetensors(file, {tensors.begin(), tensors.end()});
  throw Error("train", ErrorKind::failure,
              {.what = fmt::format("the training loss of step {} on {} is no number",
                                   context.at.step, context.groups.describe(context.group.rank())),
               .got = std::isnan(loss) ? "nan" : fmt::format("{}", loss),  // a NaN may have a sign
               .expected = "a finite one",
               .hint = fmt::format("the batch is in {}; a lower optim.lr, a warm-up or "
                                   "trainer.gradient_clip_val may help; "
                                   "trainer.terminate_on_nan=false trains on",
                                   file.string())});
}

}  // namespace troika::train
