// The terms that training adds to a cross entropy.
#pragma once

namespace troika::nn {

// With the logits z of a row, V classes and lse = log(sum(exp(z))), the loss of a row is
//
//   (1 - label_smoothing) (lse - z[target]) + label_smoothing / V sum over v of (lse - z[v])
//     + z_loss lse^2:
//
// PyTorch's `label_smoothing`, and the z-loss of PaLM, which keeps lse near 0 (Chowdhery et al.
// 2022, arXiv 2204.02311, section 5). The loss of a batch is the mean over targets that are not
// ignored.
struct LossTerms {
  double label_smoothing = 0;  // 0 to 1
  double z_loss = 0;           // a coefficient, at least 0

  bool is_plain() const { return label_smoothing == 0 && z_loss == 0; }
};

}  // namespace troika::nn
