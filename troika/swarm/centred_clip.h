// A mean that few liars cannot move far.
#pragma once

#include <span>
#include <vector>

namespace troika::swarm {

// Returns the fixed point of v += sum w (x - v) min(1, t / |x - v|) / sum w over vectors x of equal
// length, from their median in each coordinate: centred clipping (Karimireddy et al., Learning from
// History for Byzantine Robust Optimization, ICML 2021; BTARD, Gorbunov et al., ICML 2022). t is
// the median of the distances |x - v| at the beginning, and a weight counts as at most the median
// of the weights. So b of n vectors that are anywhere move the result by about t b / (n - b), if b
// is below half of n. Ends after 20 iterations, or a step of 1e-6 t. Computes in float64 and in the
// order of the vectors. There must be at least one, and a weight above 0.
template <typename Number>
std::vector<double> centred_clip(std::span<const std::span<const Number>> vectors,
                                 std::span<const double> weights);

}  // namespace troika::swarm
