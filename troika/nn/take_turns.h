// Interleaved timing of several alternatives.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace troika::nn {

// Times `candidates` alternatives in rounds and returns seconds [candidate][round];
// `time(candidate)` runs one alternative once and returns its duration. Each round runs all
// alternatives, so that other load on the machine affects all of them equally. A first round warms
// up memory and compiled kernels and is dropped. Then follow one to five rounds; none begins later
// than `seconds` after the start. Ranks that must make the same number of rounds give `decide`:
// called between rounds with this rank's wish to continue, it returns the decision for all ranks.
std::vector<std::vector<double>> take_turns(size_t candidates, double seconds,
                                            const std::function<double(size_t)>& time,
                                            const std::function<bool(bool)>& decide = {});

// Returns the minimum over each alternative's rounds.
std::vector<double> least_of(const std::vector<std::vector<double>>& rounds);

}  // namespace troika::nn
