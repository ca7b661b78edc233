// Timing of several ways to do one thing.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace troika::nn {

// Seconds of rounds of `ways` ways, [way][round]: `time(way)` does the thing once and returns how
// long it took. The ways take turns, so that whatever else the machine does meets all alike. The
// first round touches memory and has kernels compiled, and is left out. One round follows at least,
// five at most, and none begins later than `seconds` after the start. Ranks that must make the same
// number of rounds give `agree`, which is called between rounds with whether this rank would go on,
// and returns what all of them do.
std::vector<std::vector<double>> take_turns(size_t ways, double seconds,
                                            const std::function<double(size_t)>& time,
                                            const std::function<bool(bool)>& agree = {});

// The least of each way's rounds.
std::vector<double> least_of(const std::vector<std::vector<double>>& rounds);

}  // namespace troika::nn
