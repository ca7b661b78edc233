// Number types of training, under Lightning's names.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

#include "troika/compat/autocast.h"

namespace troika::nn {

// Types of parameters, buffers and activations; entries for bf16 apply to 16 too.
//   "32", "64": everything in float32 or float64.
//   "bf16-mixed": parameters in float32; matrix products and convolutions compute in bfloat16,
//     operations that need more digits in float32, as autocast decides (Micikevicius et al. 2018,
//     arXiv 1710.03740).
//   "bf16-true": everything in bfloat16; optimizers need float32 masters (optim::MasterWeights).
// Gradients in float16 also need a loss scaler (optim::GradScaler).
struct NumericPrecision {
  std::string name = "32";
  at::ScalarType parameters = at::ScalarType::Float;
  at::ScalarType compute = at::ScalarType::Float;  // for matrix products and convolutions

  bool is_mixed() const { return parameters != compute; }
  bool needs_masters() const { return parameters == compute && c10::elementSize(compute) == 2; }
  bool needs_scaler() const { return compute == at::ScalarType::Half; }
};

// Returns "32", "64", "bf16-mixed", "16-mixed", "bf16-true", "16-true", then Lightning's aliases:
// "32-true", "64-true", "bf16" and "16" (the mixed ones).
const std::vector<std::string>& precision_names();
// Returns spellings of other programs, which are not accepted, with the accepted name: "fp16" with
// "16-mixed".
const std::map<std::string, std::string>& other_precision_names();

// Sets NumericPrecision::name to the first of a precision's names. Throws Error(usage) for an
// unknown name, naming the nearest known one.
NumericPrecision parse_precision(const std::string& name);

// Throws Error(usage), naming an alternative, if LibTorch has no matrix product or convolution of
// this precision on the device, e.g. float16 on a CPU before LibTorch 2.
void require_supported(const NumericPrecision& precision, c10::DeviceType device);
// Returns false where require_supported() throws.
bool is_supported(const NumericPrecision& precision, c10::DeviceType device);

// Sets this thread's autocast to a precision during its lifetime: on for mixed precisions, off for
// others. For forward passes and losses; backward passes use the types of the forward pass.
class [[nodiscard]] Autocast {
 public:
  Autocast(const NumericPrecision& precision, c10::DeviceType device)
      : guard_(device, {precision.is_mixed(), precision.compute}) {}

 private:
  compat::AutocastGuard guard_;
};

}  // namespace troika::nn
