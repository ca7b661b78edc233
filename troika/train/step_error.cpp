#include "troika/train/step_error.h"

#include "troika/base/error.h"
#include "troika/compat/error_text.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// "inputs Float [8, 2], targets Long [8]"
std::string shapes_of(const data::Batch& batch) {
  std::string text;
  for (const auto& [name, tensor] : batch.tensors()) {
    text +=
        c10::str(text.empty() ? "" : ", ", name, " ", tensor.scalar_type(), " ", tensor.sizes());
  }
  return text;
}

}  // namespace

void rethrow_plainly(const std::exception& problem, const std::string& where,
                     const data::Batch* batch) {
  if (!dynamic_cast<const c10::Error*>(&problem)) throw;
  std::throw_with_nested(Error("train", ErrorKind::failure,
                               {.what = "LibTorch refused an operation in " + where,
                                .got = "`" + compat::error_text(problem) + "`",
                                .hint = batch ? "batch: " + shapes_of(*batch) : ""}));
}

}  // namespace troika::train
