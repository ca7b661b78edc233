// Predictions and targets of classification, checked and brought into one form.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace troika::metrics {

// The target that is not counted, as in torch.nn.functional.cross_entropy.
inline constexpr int64_t kIgnored = -100;

enum class ClassificationTask { binary, multiclass };

// Samples that count, ignored ones left out.
struct ScoredSamples {
  at::Tensor preds;   // of multiclass [samples, classes], of binary [samples]
  at::Tensor target;  // [samples] of Long
};

// `preds` is [..., classes] of a floating-point type, `target` [...] of an integer type. Throws
// Error when the shapes do not go together, when classes is not num_classes (0: any number), or for
// a target that is neither ignore_index nor a class number. Waits for the device.
ScoredSamples multiclass_samples(const at::Tensor& preds, const at::Tensor& target,
                                 int64_t num_classes, std::optional<int64_t> ignore_index);
// `preds` has the shape of `target`, whose elements are 0, 1 or ignore_index.
ScoredSamples binary_samples(const at::Tensor& preds, const at::Tensor& target,
                             std::optional<int64_t> ignore_index);

// Throws Error when an element is less than 0 or more than 1; NaN passes.
void require_probabilities(const at::Tensor& preds, const std::string& hint);

// How samples become pairs of labels.
struct LabelRule {
  ClassificationTask task = ClassificationTask::multiclass;
  int64_t num_classes = 0;  // of multiclass; 0: as many as `preds` has
  int64_t top_k = 1;        // of multiclass
  double threshold = 0.5;   // of binary: a probability above it means 1
  std::optional<int64_t> ignore_index = kIgnored;
};

// Throws Error for values that are out of range, or that this task has no use for.
// `needs_classes`: num_classes may not be 0 for multiclass.
void require_valid(const LabelRule& rule, bool needs_classes);

struct LabelPairs {
  at::Tensor predicted;  // [samples] of Long
  at::Tensor target;     // [samples] of Long
};

// `preds` are scores as above, of which binary ones must be probabilities, or labels in the shape
// of `target`. With top_k > 1 a sample whose target is among its k best classes is predicted right,
// any other to be of its best class, as torchmetrics does.
LabelPairs to_labels(const LabelRule& rule, const at::Tensor& preds, const at::Tensor& target);

}  // namespace troika::metrics
