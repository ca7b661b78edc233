// Checks predictions and targets of classification and converts them to one form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace troika::metrics {

// The target of ignored samples, as in torch.nn.functional.cross_entropy.
inline constexpr int64_t kIgnored = -100;

enum class ClassificationTask { binary, multiclass };

// The samples that are not ignored.
struct ScoredSamples {
  at::Tensor preds;   // multiclass: [samples, classes]; binary: [samples]
  at::Tensor target;  // Long [samples]
};

// `preds` is [..., classes] of a floating-point type, `target` [...] of an integer type. Throws
// Error if the shapes do not match, if classes differs from num_classes (0: any number), or for a
// target that is neither ignore_index nor a class index. Waits for the device.
ScoredSamples multiclass_samples(const at::Tensor& preds, const at::Tensor& target,
                                 int64_t num_classes, std::optional<int64_t> ignore_index);
// `preds` has the shape of `target`, whose elements are 0, 1 or ignore_index.
ScoredSamples binary_samples(const at::Tensor& preds, const at::Tensor& target,
                             std::optional<int64_t> ignore_index);

// Throws Error if an element is below 0 or above 1; accepts NaN.
void require_probabilities(const at::Tensor& preds, const std::string& hint);

// The rule by which scores become labels.
struct LabelRule {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;  // for multiclass; 0: the number of classes in `preds`
  int64_t top_k = 1;        // for multiclass
  double threshold = 0.5;   // for binary: probabilities above it mean class 1
  std::optional<int64_t> ignore_index = kIgnored;
};

// Throws Error for values that are out of range or do not apply to the task. With `needs_classes`,
// num_classes must not be 0 for multiclass.
void require_valid(const LabelRule& rule, bool needs_classes);

struct LabelPairs {
  at::Tensor predicted;  // Long [samples]
  at::Tensor target;     // Long [samples]
};

// `preds` are scores as above (binary ones must be probabilities) or labels in the shape of
// `target`. With top_k > 1, a sample whose target is among its k best classes is predicted right;
// any other sample gets its best class, as in torchmetrics.
LabelPairs to_labels(const LabelRule& rule, const at::Tensor& preds, const at::Tensor& target);

}  // namespace troika::metrics
