#include "troika/train/task/step_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "troika/base/error.h"
#include "troika/compat/error_text.h"
#include "troika/compat/torch.h"

namespace troika::train {

namespace {

// "inputs Float [8, 2]"
std::string shape_of(const std::string& name, const at::Tensor& tensor) {
  return c10::str(name, " ", tensor.scalar_type(), " ", tensor.sizes());
}

// "inputs Float [8, 2], targets Long [8]"
std::string shapes_of(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<std::string> shapes;
  for (const auto& [name, tensor] : tensors) shapes.push_back(shape_of(name, tensor));
  return fmt::format("{}", fmt::join(shapes, ", "));
}

// Must be called in the handler of an error of LibTorch.
[[noreturn]] void throw_around(const std::exception& problem, const std::string& where,
                               const std::string& outputs, const data::Batch* batch) {
  std::string hint = outputs;
  if (batch) hint += (hint.empty() ? "batch: " : "; batch: ") + shapes_of(batch->tensors());
  std::throw_with_nested(Error("train", ErrorKind::failure,
                               {.what = "LibTorch refused an operation in " + where,
                                .got = "`" + compat::error_text(problem) + "`",
                                .hint = hint}));
}

}  // namespace

LossError::LossError(const std::exception& problem, const Outputs& outputs)
    : std::runtime_error(compat::error_text(problem)), outputs_(shapes_of(outputs.named())) {}

void rethrow_plainly(const std::exception& problem, const std::string& where,
                     const data::Batch* batch) {
  const auto* in_loss = dynamic_cast<const LossError*>(&problem);
  try {
    if (!in_loss) throw;
    std::rethrow_if_nested(*in_loss);
  } catch (const std::exception& refused) {
    if (!compat::is_torch_error(refused)) throw;
    throw_around(refused, in_loss ? "the loss of " + where : where,
                 in_loss ? in_loss->outputs() : "", batch);
  }
  throw;
}

}  // namespace troika::train
