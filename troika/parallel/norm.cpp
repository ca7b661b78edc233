#include "troika/parallel/norm.h"

#include <algorithm>
#include <cmath>

#include "troika/compat/torch.h"

namespace troika::parallel {

namespace {

// Pieces are too small for LibTorch to split among threads, since the number of threads would
// change the bits.
constexpr int64_t kPieceOfNorm = 1 << 14;

double sum_of_flat(const at::Tensor& flat) {
  const int64_t piece = flat.device().is_cpu() ? kPieceOfNorm : std::max<int64_t>(1, flat.numel());
  double sum = 0;
  for (int64_t at = 0; at < flat.numel(); at += piece) {
    const auto values = flat.narrow(0, at, std::min(piece, flat.numel() - at)).to(at::kDouble);
    sum += values.dot(values).item<double>();
  }
  return sum;
}

}  // namespace

double sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& tensor : tensors) sum += sum_of_flat(tensor.detach().reshape({-1}));
  return sum;
}

void clip_to(const std::vector<at::Tensor>& tensors, double norm, double max_norm) {
  const at::NoGradGuard no_grad;
  if (!std::isfinite(norm) || norm <= max_norm) return;
  for (const auto& tensor : tensors) tensor.mul_(max_norm / norm);
}

}  // namespace troika::parallel
